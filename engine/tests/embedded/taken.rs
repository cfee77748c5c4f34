//! What a device does not take, and what it is asked in which order.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::tiny::model;
use lazybatch_engine::driver::Observer;
use lazybatch_engine::{Engine, Handle, ModelOptions, Options, RequestError, StepStream};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Device, Error, OpenRequest, Packer, Plan, Wrapper};
use lazybatch_sla::{Launch, ModelId, Outcome, Time};

/// The first id of a request that is not taken.
const BAD: i32 = 7;
const WHY: &str = "a test wants it so";

/// The embedded device, but for what it refuses.
struct Picky {
    inner: CpuDevice,
    log: Arc<Mutex<Vec<&'static str>>>,
    /// Told of each launch, which goes on when it is told to; both only once each is there.
    gate: Option<(Sender<()>, Receiver<()>)>,
}

impl Picky {
    fn new() -> Self {
        Self {
            inner: CpuDevice::new(CpuOptions {
                threads: 1,
                ..CpuOptions::default()
            }),
            log: Arc::default(),
            gate: None,
        }
    }
}

impl Wrapper for Picky {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.inner
    }

    /// None, so that loads are seen.
    fn packer(&self) -> Option<Arc<dyn Packer>> {
        None
    }

    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        self.log.lock().unwrap().push("load");
        self.inner.load(model, program)
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        if request.inputs[0].to_i32()[0] == BAD {
            return Err(Error::Device {
                device: "picky".into(),
                why: WHY.into(),
            });
        }
        self.inner.open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.log.lock().unwrap().push("launch");
        if let Some((begins, goes_on)) = &self.gate {
            let _ = begins.send(());
            let _ = goes_on.recv();
        }
        self.inner.enqueue(now, plan, launch)
    }
}

fn word(first: i32) -> Vec<Tensor> {
    vec![Tensor::from_i32(&[3], &[first, (first + 5) % 12, 2])]
}

fn submit(engine: &Engine, first: i32) -> Handle {
    let handle = engine.try_submit("tiny", word(first), Options::default());
    handle.unwrap()
}

#[test]
fn who_is_not_taken_fails_alone() {
    let build = |policy: &str| {
        let builder = Engine::builder().device(Picky::new());
        let builder = builder.model("tiny", model(), ModelOptions::default());
        builder.policy(policy).build().unwrap()
    };
    let alone: Vec<_> = {
        let engine = build("serial");
        let answer = |first| submit(&engine, first).wait().ok();
        (0..12)
            .map(|f| answer(f).map(|a| a.outputs[0].to_i32()))
            .collect()
    };
    assert_eq!(alone.iter().filter(|a| a.is_none()).count(), 1);
    for policy in ["graph:20", "greedy", "adaptive", "lazy", "continuous"] {
        let engine = build(policy);
        let handles: Vec<Handle> = (0..12).map(|first| submit(&engine, first)).collect();
        for (first, handle) in handles.into_iter().enumerate() {
            match (&alone[first], handle.wait()) {
                (Some(alone), Ok(answer)) => {
                    assert_eq!(answer.outputs[0].to_i32(), *alone, "{policy}");
                }
                (None, Err(RequestError::Failed(cause))) => {
                    assert!(cause.contains(WHY), "{policy}: {cause}");
                }
                (alone, other) => panic!("{policy}: {first}: {alone:?}, {other:?}"),
            }
        }
        let account = &engine.stats().accounts[0];
        assert_eq!((account.count(Outcome::Failed), account.total()), (1, 12));
        engine.drain_blocking().unwrap();
    }
}

#[test]
fn what_came_before_a_load_does_not_wait_for_it() {
    let (begins, begun) = channel();
    let (go_on, goes_on) = channel();
    let mut device = Picky::new();
    device.gate = Some((begins, goes_on));
    let log = device.log.clone();
    // One launch for a pass of either block.
    let nodes = |b: &lazybatch_graph::Block| 0..b.nodes.len() as u32;
    let segments = || Some(model().blocks.iter().map(|b| vec![nodes(b)]).collect());
    let options = || ModelOptions {
        segments: segments(),
        ..ModelOptions::default()
    };
    let engine = Engine::builder().device(device).policy("serial");
    let engine = engine.model("tiny", model(), options()).build().unwrap();
    log.lock().unwrap().clear();
    let once = Options {
        max_steps: Some(0),
        ..Options::default()
    };
    let letter = || vec![Tensor::from_i32(&[1], &[1])];
    let first = engine.try_submit("tiny", letter(), once.clone()).unwrap();
    begun.recv().unwrap();
    let second = engine.try_submit("tiny", letter(), once).unwrap();
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| engine.load("late", model(), options()).unwrap());
        // It is handed in by now; if not, the order is right in any case.
        (0..10_000).for_each(|_| std::thread::yield_now());
        go_on.send(()).unwrap();
        begun.recv().unwrap();
        go_on.send(()).unwrap();
        drop(go_on);
        loads.join().unwrap();
    });
    first.wait().unwrap();
    second.wait().unwrap();
    assert_eq!(*log.lock().unwrap(), ["launch", "launch", "load"]);
}

/// Ends the driver's thread.
struct Panics;

impl Observer for Panics {
    fn on_launch(&mut self, _now: Time, _launch: &Launch) {
        panic!("{WHY}");
    }
}

#[test]
fn a_stream_whose_engine_dies_ends_with_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    let builder = Engine::builder().device(Picky::new());
    let builder = builder.model("tiny", model(), ModelOptions::default());
    let engine = builder.observer(Panics, false).build().unwrap();
    let mut stream: StepStream = engine
        .try_submit_stream("tiny", word(1), Options::default())
        .unwrap();
    runtime.block_on(async {
        let end = stream.next().await;
        let crashed = RequestError::Crashed(WHY.into());
        assert_eq!(end.map(Result::err), Some(Some(crashed)));
        assert!(stream.next().await.is_none());
    });
}

#[test]
fn a_device_in_place_refuses_launches_ahead_of_a_stop() {
    let build = |depth, program: Program| {
        let builder = Engine::builder().device(Picky::new()).depth(depth);
        let built = builder.model("m", program, ModelOptions::default()).build();
        built.err().map(|e| e.to_string())
    };
    assert_eq!(build(1, model()), None);
    let refused = build(2, model()).unwrap();
    assert!(
        refused.starts_with("model m: depth: expected at most 1 launches in flight on cpu")
            && refused.ends_with("got 2"),
        "{refused}"
    );
    let mut b = ProgramBuilder::new("once");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("all", Repeat::Once);
    let h = b.read_input("read", x);
    b.emit("emit", y, h);
    assert_eq!(build(2, b.finish().unwrap()), None, "nobody stops early");
}
