//! Planned memory of whole models: how much the places of values share, and what requests hold.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_graph::{BlockId, Liveness, Program, Repeat};
use lazybatch_kernels::cpu::ProgramMemory;
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{CpuDevice, CpuOptions, Device, OpenRequest};
use lazybatch_sla::{ModelId, RequestId, Slot};
use lazybatch_workloads::zoo;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn program(name: &str) -> Program {
    zoo::find(name).unwrap().program().unwrap()
}

/// Bytes of a block's arena, of its values with a place each, and of what no plan can do without:
/// the most that is alive at any node, for a request of `len` positions.
fn sizes(program: &Program, block: usize, len: u64) -> [u64; 3] {
    let memory = &ProgramMemory::of(program).blocks[block];
    let liveness = Liveness::of(program);
    let nodes = &program.blocks[block].nodes;
    let alive = (0..=nodes.len()).map(|at| liveness.at(BlockId::new(block), at).bytes(1, len));
    [
        memory.arena.of(len, 1),
        memory.separate.of(len, 1),
        alive.max().unwrap(),
    ]
}

#[test]
fn values_share_most_of_their_memory() {
    // Model, length, and the least ratio of all values to the arena.
    for (name, len, ratio) in [
        ("resnet50", 0, 7.0),
        ("vgg16", 0, 2.0),
        ("mobilenet-v1", 0, 4.0),
        ("bert-base", 128, 20.0),
        ("bert-large", 128, 40.0),
        ("transformer", 64, 10.0),
    ] {
        let [arena, separate, alive] = sizes(&program(name), 0, len);
        assert!(alive <= arena, "{name}: {alive} bytes alive in {arena}");
        assert!(
            arena as f64 * ratio <= separate as f64,
            "{name}: {arena} of {separate} bytes"
        );
        // A node's operands and result live together, which no boundary shows.
        assert!(
            arena <= 2 * alive,
            "{name}: {arena} bytes for {alive} alive"
        );
    }
}

#[test]
fn bounds_grow_with_length_and_count_every_state() {
    let program = program("transformer-tiny");
    let memory = ProgramMemory::of(&program);
    let longest = memory.longest().unwrap();
    let totals: Vec<u64> = (1..=longest)
        .map(|n| memory.request(n, 1).total())
        .collect();
    assert!(totals.is_sorted());
    let long = memory.request(longest, 1);
    // Two layers, each with keys and values of the decoder (40 steps in 3 pages of 16) and of the
    // encoder (40 positions), 32 features; and one token.
    assert_eq!(long.states, 2 * 2 * 2 * 48 * 32 * 4 + 64 * 4);
    // Ids, which may come as 64 bits.
    assert_eq!(long.inputs, longest as u64 * 8);
    let steps = program.blocks.iter().find_map(|b| match b.repeat {
        Repeat::UntilStop { max } => Some(u64::from(max)),
        _ => None,
    });
    assert_eq!(long.outputs, steps.unwrap() * 4);
    assert!(memory.request(1, 1).states < long.states);
}

/// What a device reserves for the states of a request is what the bound says.
#[test]
fn the_device_states_the_same_bound_and_keeps_to_it() {
    for name in ["transformer-tiny", "gnmt-tiny", "cnn-tiny", "phonemes"] {
        let program = Arc::new(program(name));
        let mut device = CpuDevice::new(CpuOptions {
            max_open: 3,
            threads: 1,
            ..CpuOptions::default()
        });
        device.load(ModelId(0), Arc::clone(&program)).unwrap();
        let bound = device.memory(ModelId(0)).unwrap();
        let memory = ProgramMemory::of(&program);
        let longest = memory.longest().unwrap_or(0) as u32;
        assert_eq!(bound(longest, 1), memory.request(longest as usize, 1));
        let most = device.max_open(ModelId(0));
        let inputs = random_inputs(
            &program,
            longest as usize,
            1,
            &mut ChaCha8Rng::seed_from_u64(1),
        );
        let mut open = |i: u32| {
            device.open(&OpenRequest {
                slot: Slot(i),
                request: RequestId(u64::from(i)),
                model: ModelId(0),
                inputs: &inputs,
                input_len: longest,
                samples: 1,
                output_len: None,
            })
        };
        let opened = (0..10).take_while(|&i| open(i).is_ok()).count() as u32;
        assert_eq!(opened, most.unwrap_or(10), "{name}");
        assert_eq!(most.is_some(), name != "cnn-tiny", "{name}");
    }
}
