//! Running nodes allocates nothing.
//!
//! An allocator counts every byte that is asked for while a launch runs, on any thread. The same
//! schedules run again and again; after the first rounds nothing may be asked for any more.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lazybatch_graph::{
    Act, DType, Fused, Greedy, MultiHead, Pool, Program, ProgramBuilder, Repeat, SharedProgram,
    Window,
};
use lazybatch_kernels::conformance::{Request, Schedule, run};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{Completion, CpuDevice, CpuOptions, Device, Error, Plan};
use lazybatch_sla::{Launch, ModelId, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

fn count(bytes: usize) {
    if COUNTING.load(Ordering::Relaxed) {
        ASKED.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: all calls go to the system's allocator as they come.
#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts what its device asks for from the issue of a launch to its completion.
struct Metered {
    device: CpuDevice,
    launches: usize,
}

impl lazybatch_kernels::Wrapper for Metered {
    fn inner(&self) -> &dyn Device {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        COUNTING.store(true, Ordering::Relaxed);
        let result = self.device.enqueue(now, plan, launch);
        COUNTING.store(false, Ordering::Relaxed);
        self.launches += 1;
        result
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        COUNTING.store(true, Ordering::Relaxed);
        let done = self.device.poll(now);
        COUNTING.store(false, Ordering::Relaxed);
        done
    }
}

/// Plain, grouped and depthwise convolutions, skips, batch norm, pooling, a head.
fn conv_net() -> Program {
    let mut b = ProgramBuilder::new("conv").with_seed(3);
    let image = b.input("image", DType::F32, &[3, 20, 20]);
    let y = b.output("y", DType::F32, &[10]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let relu = || Fused {
        act: Some(Act::Relu),
        ..Fused::default()
    };
    let x = b.conv("stem", x, 32, Window::square(3, 2, 1), 1, relu());
    let wide = b.conv("wide", x, 64, Window::square(1, 1, 0), 1, relu());
    let wide = b.conv("depthwise", wide, 64, Window::square(3, 1, 1), 64, relu());
    let fused = Fused {
        residual: Some(x),
        ..relu()
    };
    let x = b.conv("narrow", wide, 32, Window::square(1, 1, 0), 1, fused);
    let x = b.conv("grouped", x, 32, Window::square(3, 1, 1), 4, relu());
    let x = b.bn("bn", x, 1e-3);
    let p = b.pool2d("pool", x, Pool::Max, Window::square(2, 2, 0));
    let t = b.unary("tanh", Act::Tanh, p);
    let x = b.concat("both", &[p, t]);
    let dims: usize = b.ty(x).fixed_dims().iter().product();
    let flat = b.reshape("flat", x, &[dims]);
    let head = b.dense("head", flat, 10, None);
    let head = b.softmax("softmax", head);
    b.emit("emit", y, head);
    b.finish().unwrap()
}

/// Two layers of an encoder over sequences.
fn encoder() -> Program {
    let mut b = ProgramBuilder::new("encoder").with_seed(4);
    let ids = b.sequence_ids("ids", 40, 100);
    let each = b.output_sequence("each", DType::F32, &[48]);
    let pooled = b.output("pooled", DType::F32, &[5]);
    b.begin_block("encoder", Repeat::Once);
    let i = b.read_input("ids", ids);
    let mut x = b.embed("embed", i, 100, 48);
    for layer in 0..2 {
        x = b.scope(&format!("layer{layer}"), |b| {
            let y = b.self_attention("attention", x, MultiHead::new(4), Some(x));
            let n = b.norm("norm", y, 1e-5);
            let y = b.ffn("ffn", n, 96, Act::Gelu, Some(n));
            b.norm("norm2", y, 1e-5)
        });
    }
    b.emit("emit.each", each, x);
    let first = b.first_row("first", x);
    let mean = b.mean_rows("mean", x);
    let both = b.add("both", first, mean);
    let head = b.dense("head", both, 5, Some(Act::Tanh));
    b.emit("emit", pooled, head);
    b.finish().unwrap()
}

/// LSTM and GRU cells over the steps of a sequence.
fn recurrent() -> Program {
    let mut b = ProgramBuilder::new("recurrent").with_seed(5);
    let x = b.sequence("x", DType::F32, &[24], 30);
    let y = b.output_sequence("y", DType::F32, &[40]);
    b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input("x", x);
    let h = b.lstm("lstm", x, 64);
    let state = b.vector_state("gru.h", DType::F32, &[40], 0.0);
    let h = b.gru("gru", h, 40, state);
    b.emit("emit", y, h);
    b.finish().unwrap()
}

/// A decoder with its cache and cross-attention, greedy.
fn decoder() -> Program {
    let mut b = ProgramBuilder::new("decoder").with_seed(6);
    let ids = b.sequence_ids("ids", 20, 50);
    let greedy = Greedy::sampled(&mut b, 1, 2);
    b.begin_block("encoder", Repeat::Once);
    let i = b.read_input("ids", ids);
    let x = b.embed("embed", i, 50, 32);
    let memory = b.cross_memory("cross", x, 32, 20);
    b.begin_block("decoder", Repeat::UntilStop { max: 12 });
    let token = greedy.read(&mut b);
    let x = b.embed("last", token, 50, 32);
    let x = b.cached_self_attention("self", x, 4, 12, Some(x));
    let x = b.norm("norm", x, 1e-5);
    let x = b.cross_attention("over", x, 4, memory, Some(x));
    let gamma = b.constant("gamma", &[32], 1.0);
    let x = b.rms_norm("rms", x, gamma, 1e-6);
    let logits = b.dense("logits", x, 50, None);
    greedy.choose(&mut b, logits);
    b.finish().unwrap()
}

fn requests(program: &Program, num: usize) -> Vec<Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let longest = program
        .length_input
        .and_then(|i| program.input(i).max_len)
        .unwrap_or(0);
    let one = |_| {
        let len = if longest == 0 {
            0
        } else {
            rng.random_range(1..=longest)
        };
        Request {
            inputs: random_inputs(program, len, 1, &mut rng),
            len,
            samples: 1,
        }
    };
    (0..num).map(one).collect()
}

/// Rounds until everything has found its size.
const WARM: usize = 6;

#[test]
fn launches_allocate_nothing_once_warm() {
    let programs = [conv_net(), encoder(), recurrent(), decoder()];
    let schedules = [
        Schedule::Together,
        Schedule::Padded,
        Schedule::Random(1),
        Schedule::Random(2),
    ];
    let mut cold = 0;
    for (program, weights, threads) in programs
        .iter()
        .flat_map(|p| [(p, WeightType::F32, 1), (p, WeightType::F32, 2)])
        .chain([
            (&programs[2], WeightType::Int8Dynamic, 1),
            (&programs[3], WeightType::F16, 1),
        ])
    {
        let program: SharedProgram = Arc::new(program.clone());
        let requests = requests(&program, 44);
        let mut device = Metered {
            device: CpuDevice::new(CpuOptions {
                threads,
                // Every node is spread over the threads.
                parallel_flops: 1,
                weights,
                // Launches of images in parts, and as a whole.
                part_bytes: [usize::MAX, 0][threads - 1],
                max_open: 64,
                ..CpuOptions::default()
            }),
            launches: 0,
        };
        device.load(ModelId(0), Arc::clone(&program)).unwrap();
        let round = |device: &mut Metered| {
            ASKED.store(0, Ordering::Relaxed);
            for schedule in schedules {
                run(device, &program, &requests, schedule).unwrap();
            }
            ASKED.load(Ordering::Relaxed)
        };
        cold += round(&mut device);
        for _ in 0..WARM {
            round(&mut device);
        }
        let before = device.launches;
        let asked = round(&mut device);
        let launches = device.launches - before;
        assert!(launches > 40, "{launches} launches");
        assert_eq!(
            asked, 0,
            "bytes in {launches} launches of {} on {threads} threads with {weights} weights",
            program.name
        );
    }
    assert!(
        cold > 100_000,
        "the count sees only {cold} bytes of the first rounds"
    );
}
