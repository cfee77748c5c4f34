//! A model is made ready for its device while the device runs others.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Condvar, Mutex};

use lazybatch_engine::{Engine, Handle, ModelHandle, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Device, Error, Packed, Packer, Wrapper};
use lazybatch_sla::ModelId;

/// Who waits at it, and whether it is shut.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
    /// Samples that memory was made ready for, by whom in the order of calls.
    ready: Mutex<Vec<(&'static str, u32)>>,
    /// Whether the driver's thread may pack, too.
    may_load: bool,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().1 = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |s| s.1).unwrap());
    }

    fn wait_for(&self, num: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |s| s.0 < num).unwrap());
    }
}

/// A packer that takes as long as its gate is shut.
struct Slow(Arc<dyn Packer>, Arc<Gate>);

impl Packer for Slow {
    fn pack(&self, program: SharedProgram, samples: u32) -> Result<Packed, Error> {
        self.1.pass();
        self.1.ready.lock().unwrap().push(("packed", samples));
        self.0.pack(program, samples)
    }
}

/// The embedded device with such a packer.
struct Held(CpuDevice, Arc<Gate>);

impl Wrapper for Held {
    fn inner(&self) -> &dyn Device {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.0
    }

    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        let name = &program.name;
        assert!(self.1.may_load, "{name} is packed on the driver's thread");
        self.0.load(model, program)
    }

    fn warm(&mut self, model: ModelId, samples: u32) {
        self.1.ready.lock().unwrap().push(("loaded", samples));
        self.0.warm(model, samples);
    }

    fn packer(&self) -> Option<Arc<dyn Packer>> {
        Some(Arc::new(Slow(self.0.packer()?, self.1.clone())))
    }
}

fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    })
}

fn layers(width: usize) -> Program {
    let mut b = ProgramBuilder::new("layers").with_seed(3);
    let x = b.input("x", DType::F32, &[width]);
    let y = b.output("y", DType::F32, &[width]);
    b.begin_block("all", Repeat::Once);
    let h = b.read_input("x", x);
    let h = b.dense("a", h, width, None);
    let h = b.dense("b", h, width, None);
    b.emit("emit", y, h);
    b.finish().unwrap()
}

fn load(engine: &Engine, width: usize) -> ModelHandle {
    let options = ModelOptions::default();
    engine.load("layers", layers(width), options).unwrap()
}

fn inputs(width: usize, seed: usize) -> Vec<Tensor> {
    let values: Vec<f32> = (0..width).map(|i| ((i * 7 + seed) % 11) as f32).collect();
    vec![Tensor::from_f32(&[1, width], &values)]
}

fn bits(handle: Result<Handle, RequestError>) -> Vec<f32> {
    handle.unwrap().wait().unwrap().outputs[0].to_f32()
}

#[test]
fn requests_of_others_end_while_a_model_is_made_ready() {
    let gate = Arc::new(Gate::default());
    let held = Held(device(), gate.clone());
    let engine = Engine::builder().device(held).build().unwrap();
    let small = load(&engine, 16);
    gate.set(true);
    let large = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&engine, 300));
        gate.wait_for(2);
        for seed in 0..20 {
            bits(small.try_submit(inputs(16, seed), Options::default()));
        }
        assert!(!loading.is_finished());
        assert_eq!(engine.models().len(), 1);
        gate.set(false);
        loading.join().unwrap()
    });
    let plain = Engine::builder()
        .device(device())
        .model("layers", layers(300), ModelOptions::default())
        .build()
        .unwrap();
    let loaded = bits(large.try_submit(inputs(300, 5), Options::default()));
    let alone = bits(plain.try_submit("layers", inputs(300, 5), Options::default()));
    assert_eq!(loaded, alone);
    let stats = small.stats();
    assert_eq!(stats.account.total(), 20);
}

#[test]
fn memory_is_made_ready_for_the_largest_launch() {
    let gate = Arc::new(Gate {
        may_load: true,
        ..Gate::default()
    });
    let of = |max_batch| ModelOptions {
        max_batch: Some(max_batch),
        ..ModelOptions::default()
    };
    let engine = Engine::builder()
        .device(Held(device(), gate.clone()))
        .model("first", layers(16), of(3))
        .build()
        .unwrap();
    let _later = engine.load("later", layers(16), of(5)).unwrap();
    let ready = gate.ready.lock().unwrap();
    assert_eq!(*ready, [("loaded", 3), ("packed", 5)]);
}
