//! Models of the zoo, computed: alone, on the CPU device and on the reference.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_graph::{
    Act, DType, Fused, Program, ProgramBuilder, Repeat, Tensor, optimize, passes,
};
use lazybatch_kernels::synthetic::random_inputs;
use lazybatch_kernels::{
    CpuDevice, CpuOptions, Device, KernelRegistry, OpenRequest, ReferenceDevice,
};
use lazybatch_sla::{LaneId, Launch, Member, ModelId, RequestId, Slot, SubBatchId, Ticket, Time};
use lazybatch_workloads::zoo::{self, phonemes};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const MODEL: ModelId = ModelId(0);

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        max_open: 2,
        poison: true,
        ..CpuOptions::default()
    })
}

/// A device with one model, which serves one request at a time.
struct Alone<D> {
    device: D,
    program: Arc<Program>,
    plans: Vec<lazybatch_kernels::Plan>,
    served: u64,
}

impl<D: Device> Alone<D> {
    fn new(mut device: D, program: Program) -> Self {
        let program = Arc::new(program);
        device.load(MODEL, Arc::clone(&program)).unwrap();
        let bucket = *device.buckets().first().unwrap();
        let blocks = program.blocks.iter().enumerate();
        let plans = blocks
            .map(|(k, b)| {
                device
                    .prepare(MODEL, k as u32, 0, b.nodes.len() as u32, bucket)
                    .unwrap()
            })
            .collect();
        Self {
            device,
            program,
            plans,
            served: 0,
        }
    }

    /// Runs a request to its end and returns its outputs.
    fn run(&mut self, inputs: &[Tensor], input_len: u32) -> Vec<Tensor> {
        self.served += 1;
        let request = RequestId(self.served);
        let slot = Slot(0);
        let open = OpenRequest {
            slot,
            request,
            model: MODEL,
            inputs,
            input_len,
            samples: 1,
            output_len: None,
        };
        self.device.open(&open).unwrap();
        for block in 0..self.program.blocks.len() {
            let passes = match self.program.blocks[block].repeat {
                Repeat::Once => 1,
                Repeat::PerInputStep { stride } => input_len.div_ceil(stride),
                Repeat::UntilStop { max } => max,
            };
            let member = Member {
                request,
                slot,
                step: 0,
                input_len,
                samples: 1,
                idle: false,
            };
            if (0..passes).any(|step| self.pass(block, Member { step, ..member })) {
                continue;
            }
        }
        self.device
            .close(slot)
            .into_iter()
            .map(|t| t.unwrap())
            .collect()
    }

    /// One pass through a block; whether it ended the loop.
    fn pass(&mut self, block: usize, member: Member) -> bool {
        let launch = Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: MODEL,
            block: block as u32,
            segment: 0,
            first_node: 0,
            end_node: self.program.blocks[block].nodes.len() as u32,
            sub_batch: SubBatchId(0),
            members: vec![member],
            padded_len: None,
            merged_members: 0,
        };
        self.device
            .enqueue(Time::ZERO, self.plans[block], &launch)
            .unwrap();
        let done = self.device.poll(Time::ZERO).unwrap();
        done.whole().unwrap();
        !done.stopped.is_empty()
    }
}

fn inputs_of(program: &Program, len: usize, seed: u64) -> Vec<Tensor> {
    random_inputs(program, len, 1, &mut ChaCha8Rng::seed_from_u64(seed))
}

fn assert_close(name: &str, got: &[Tensor], expected: &[Tensor], tolerance: f32) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert_eq!(
            (got.dtype, &got.dims),
            (expected.dtype, &expected.dims),
            "{name}"
        );
        for (a, b) in got.to_f32().iter().zip(expected.to_f32()) {
            assert!(a.is_finite(), "{name}: {a}");
            assert!(
                (a - b).abs() <= tolerance * b.abs().max(1.0),
                "{name}: {a} is not {b}"
            );
        }
    }
}

#[test]
fn the_cpu_agrees_with_the_reference() {
    for (name, len) in [
        ("cnn-tiny", 0),
        ("bert-tiny", 9),
        ("transformer-tiny", 7),
        ("gnmt-tiny", 7),
        ("decoder-tiny", 7),
        ("phonemes", 6),
        ("las", 2),
    ] {
        let program = zoo::find(name).unwrap().program().unwrap();
        let inputs = inputs_of(&program, len, 3);
        let got = Alone::new(cpu(), program.clone()).run(&inputs, len as u32);
        let reference = ReferenceDevice::new(KernelRegistry::default());
        let expected = Alone::new(reference, program).run(&inputs, len as u32);
        assert_close(name, &got, &expected, 1e-4);
    }
}

#[test]
fn larger_models_stay_finite() {
    for (name, len) in [
        ("resnet50", 0),
        ("mobilenet-v1", 0),
        ("rnnt", 3),
        ("dlrm", 0),
    ] {
        let program = zoo::find(name).unwrap().program().unwrap();
        let inputs = inputs_of(&program, len, 4);
        let outputs = Alone::new(cpu(), program).run(&inputs, len as u32);
        let data: Vec<f32> = outputs.iter().flat_map(Tensor::to_f32).collect();
        assert!(data.iter().all(|x| x.is_finite()), "{name}");
        let spread = data.iter().fold(0f32, |m, x| m.max((x - data[0]).abs()));
        assert!(
            data.len() == 1 || name == "rnnt" || spread > 1e-3,
            "{name}: all {}",
            data[0]
        );
    }
}

#[test]
fn passes_keep_the_bits() {
    for name in [
        "bert-tiny",
        "transformer-tiny",
        "gnmt-tiny",
        "decoder-tiny",
        "phonemes",
    ] {
        let program = (zoo::find(name).unwrap().build)().unwrap();
        check_passes(program, 0.0);
    }
    check_passes(unfused(), 0.0);
    // Folding a batch norm rounds the weights.
    check_passes((zoo::find("cnn-tiny").unwrap().build)().unwrap(), 1e-5);
}

fn check_passes(mut program: Program, tolerance: f32) {
    // Devices take no node of weights alone.
    let fold = passes::find("fold_constants").unwrap();
    passes::apply(fold, &mut program).unwrap();
    let len = if program.length_input.is_some() { 6 } else { 0 };
    let inputs = inputs_of(&program, len, 5);
    let better = optimize(program.clone()).unwrap();
    let name = program.name.clone();
    let expected = Alone::new(cpu(), program).run(&inputs, len as u32);
    let got = Alone::new(cpu(), better).run(&inputs, len as u32);
    assert_close(&name, &got, &expected, tolerance);
}

/// Layers as an importer writes them: every part a node of its own.
fn unfused() -> Program {
    let mut b = ProgramBuilder::new("unfused");
    let x = b.input("x", DType::F32, &[24]);
    let y = b.output("y", DType::F32, &[24]);
    b.begin_block("main", Repeat::Once);
    let mut x = b.read_input("x", x);
    for layer in 0..3 {
        x = b.scope(&format!("layer{layer}"), |b| {
            let h = b.dense_with("up", x, 40, Fused::default());
            let bias = b.seeded("up.bias", &[40], 4);
            let bias = b.scale("up.bias.scaled", bias, 0.5);
            let h = b.add("up.biased", h, bias);
            let h = b.unary("up.act", Act::Gelu, h);
            let h = b.dense_with("down", h, 24, Fused::default());
            let s = b.add("skip", x, h);
            let n = b.norm("norm", s, 1e-5);
            let twice = b.add("twice", n, s);
            b.norm("again", twice, 1e-5)
        });
    }
    b.emit("y", y, x);
    b.finish().unwrap()
}

#[test]
fn phonemes_spells_as_its_trainer_does() {
    let text = include_str!("../../models/phonemes/golden.json");
    let golden: serde_json::Value = serde_json::from_str(text).unwrap();
    let words = golden["words"].as_array().unwrap();
    assert!(words.len() >= 100);
    let program = zoo::find("phonemes").unwrap().program().unwrap();
    let mut alone = Alone::new(cpu(), program);
    for word in words {
        let spelling = word["word"].as_str().unwrap();
        let ids = phonemes::encode(spelling).unwrap();
        let input = Tensor::from_i32(&[ids.len()], &ids);
        let outputs = alone.run(&[input], ids.len() as u32);
        let got = phonemes::decode(&outputs[0].to_i32());
        let expected: Vec<&str> = word["phonemes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_str().unwrap())
            .collect();
        // Below this margin a rounding may change a choice.
        let margin = word["margin"].as_f64().unwrap();
        assert!(
            got == expected || margin < 1e-3,
            "{spelling}: {got:?} is not {expected:?}"
        );
    }
}
