//! What observers of an engine hear: requests end for them as for their clients, and journals replay.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use lazybatch_engine::core::{Action, CoreConfig};
use lazybatch_engine::driver::Observer;
use lazybatch_engine::journal::{self, Header, Writer};
use lazybatch_engine::{Builder, Engine, ModelHandle, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Device, Error, OpenRequest, Plan, Wrapper};
use lazybatch_sla::profile::FORMAT;
use lazybatch_sla::{Launch, Nanos, Outcome, Profile, RequestId, Time};

/// The input that the device does not take.
const BAD: f32 = 9.0;
/// Why not.
const WHY: &str = "a test wants it so";

/// The embedded device, which takes no [`BAD`] inputs and begins when it is told.
struct Picky {
    inner: CpuDevice,
    begin: Option<Receiver<()>>,
}

impl Wrapper for Picky {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.inner
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        if request.inputs.last().unwrap().to_f32()[0] == BAD {
            return Err(Error::Device {
                device: "picky".into(),
                why: WHY.into(),
            });
        }
        self.inner.open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        if let Some(begin) = self.begin.take() {
            begin.recv().unwrap();
        }
        self.inner.enqueue(now, plan, launch)
    }
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    })
}

/// The sum of all inputs of a sequence, in several launches.
fn sums() -> Program {
    let mut b = ProgramBuilder::new("sums");
    let (before, x) = (
        b.input("before", DType::F32, &[1]),
        b.input("x", DType::F32, &[1]),
    );
    let sum = b.output("sum", DType::F32, &[1]);
    b.carry(sum, before);
    b.begin_block("all", Repeat::Once);
    let (before, x) = (
        b.read_input("before.read", before),
        b.read_input("x.read", x),
    );
    let added = b.add("add", before, x);
    b.emit("emit", sum, added);
    b.finish().unwrap()
}

fn input(value: f32) -> Vec<Tensor> {
    vec![Tensor::from_f32(&[1, 1], &[value])]
}

/// A request, how it ended, and why.
type End = (RequestId, Outcome, Option<String>);

/// Notes how requests end.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<End>>>);

impl Observer for Ends {
    fn on_action(&mut self, _now: Time, action: &Action) {
        if let Action::Finish {
            request,
            outcome,
            cause,
            ..
        } = action
        {
            let end = (*request, *outcome, cause.clone());
            self.0.lock().unwrap().push(end);
        }
    }
}

/// The profile of an engine without models.
fn no_models() -> Profile {
    Profile {
        format: FORMAT.into(),
        device: "engine".into(),
        copy_gbps: 0.0,
        dispatch_us: 0.0,
        issue_us: 0.0,
        models: Vec::new(),
    }
}

/// The journal of an engine that had no models when it was built.
struct Journal(Arc<Mutex<Writer<Vec<u8>>>>);

impl Journal {
    fn new(policy: &str, depth: u32, notes: bool) -> Self {
        let config = CoreConfig {
            lane_depths: vec![depth],
            is_in_place: true,
            notes,
            ..CoreConfig::new(Vec::new())
        };
        let header = Header::new(policy, &no_models(), &config);
        Self(Arc::new(Mutex::new(Writer::new(Vec::new(), &header))))
    }

    /// How many requests ended in its replay.
    fn replay(self) -> usize {
        let writer = Arc::into_inner(self.0).unwrap().into_inner().unwrap();
        let journal = writer.finish().unwrap();
        journal::replay(&journal[..], &mut ()).unwrap().finished
    }
}

#[test]
fn a_journal_with_notes_replays_whoever_asked_why() {
    for notes in [true, false] {
        let journal = Journal::new("adaptive", 1, notes);
        let engine = Engine::builder()
            .device(cpu())
            .policy("adaptive")
            .explain_on_request(4)
            .observer(journal.0.clone(), notes)
            .build()
            .unwrap();
        let model = engine
            .load("sums", sums(), ModelOptions::default())
            .unwrap();
        for i in 0..6 {
            let options = Options {
                explain: i % 3 == 1,
                ..Options::default()
            };
            let handle = model.try_submit(input(i as f32), options).unwrap();
            handle.wait().unwrap();
        }
        drop(model);
        engine.drain_blocking().unwrap();
        assert_eq!(journal.replay(), 6);
    }
}

/// What a plan counts of the host hangs on it, and rules may change when one is asked for.
#[test]
fn a_journal_says_whether_the_device_works_in_place() {
    let told = |device: Option<CpuDevice>| {
        let builder = Engine::builder();
        let builder = device.into_iter().fold(builder, Builder::device);
        let config = builder.core_config(1).unwrap();
        let header = Header::new("adaptive", &no_models(), &config);
        let line = serde_json::to_string(&header).unwrap();
        let read: Header = serde_json::from_str(&line).unwrap();
        read.config().unwrap().is_in_place
    };
    assert!(told(Some(cpu())));
    assert!(!told(None));
}

/// Zeros stand for what was left out, as many as the samples of the others: not before these are known
/// to be no more than a launch takes.
#[test]
fn no_zeros_are_made_for_more_samples_than_a_launch_takes() {
    let engine = Engine::builder()
        .device(cpu())
        .model("sums", sums(), ModelOptions::default())
        .build()
        .unwrap();
    for samples in [1 << 20, 1 << 45, usize::MAX] {
        let none = Tensor::from_f32(&[samples, 0], &[]);
        let refused = engine.try_submit("sums", vec![none], Options::default());
        assert!(
            matches!(refused, Err(RequestError::Samples { .. })),
            "{samples}: {:?}",
            refused.err()
        );
    }
}

/// What an observer heard of a request, and what the engine told of it behind its end.
fn check(engine: &Engine, ends: &Ends, id: RequestId, cause: &str) {
    let heard = ends.0.lock().unwrap().clone();
    let heard: Vec<_> = heard.into_iter().filter(|e| e.0 == id).collect();
    assert_eq!(heard.len(), 1);
    let (_, outcome, told) = &heard[0];
    assert_eq!(*outcome, Outcome::Failed, "{told:?}");
    assert!(told.as_ref().unwrap().contains(cause), "{told:?}");
    let why = engine.explain(id).unwrap();
    assert_eq!(why.ended.unwrap().1, Outcome::Failed);
}

fn engine(device: impl Device + 'static, depth: u32, journal: &Journal, ends: &Ends) -> Engine {
    Engine::builder()
        .device(device)
        .policy("greedy")
        .depth(depth)
        .explain_on_request(8)
        .observer((journal.0.clone(), ends.clone()), false)
        .build()
        .unwrap()
}

fn load(engine: &Engine) -> ModelHandle {
    engine
        .load("sums", sums(), ModelOptions::default())
        .unwrap()
}

fn explained() -> Options {
    Options {
        explain: true,
        ..Options::default()
    }
}

#[test]
fn who_is_not_taken_by_the_device_fails_for_observers_too() {
    for depth in [1, 2] {
        let (journal, ends) = (Journal::new("greedy", depth, false), Ends::default());
        let (begin, begins) = channel();
        let device = Picky {
            inner: cpu(),
            begin: Some(begins),
        };
        let engine = engine(device, depth, &journal, &ends);
        let model = load(&engine);
        let submit = |value| {
            let handle = model.try_submit(input(value), explained());
            handle.unwrap()
        };
        // The others come while the first keeps the device.
        let first = submit(1.0);
        let values = [2.0, BAD, 3.0, BAD, 4.0];
        let others: Vec<_> = values.into_iter().map(|v| (v, submit(v))).collect();
        begin.send(()).unwrap();
        assert_eq!(first.wait().unwrap().outputs[0].to_f32(), [1.0]);
        for (value, handle) in others {
            let id = handle.id();
            match handle.wait() {
                Ok(answer) => assert_eq!(answer.outputs[0].to_f32(), [value]),
                Err(RequestError::Failed(cause)) => {
                    assert!(value == BAD && cause.contains(WHY), "{cause}");
                    check(&engine, &ends, id, WHY);
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(model.stats().account.count(Outcome::Failed), 2);
        drop(model);
        engine.drain_blocking().unwrap();
        assert_eq!(journal.replay(), 6);
    }
}

#[test]
fn who_is_of_a_broken_sequence_fails_for_observers_too() {
    for depth in [1, 2] {
        let (journal, ends) = (Journal::new("greedy", depth, false), Ends::default());
        let engine = engine(cpu(), depth, &journal, &ends);
        let model = load(&engine);
        let of_sequence = |is_start| Options {
            sequence: Some(1),
            sequence_start: is_start,
            ..explained()
        };
        let submit = |value, is_start| {
            let handle = model.try_submit(input(value), of_sequence(is_start));
            handle.unwrap()
        };
        let first = submit(1.0, true).wait().unwrap();
        assert_eq!(first.outputs[0].to_f32(), [1.0]);
        model.refused(&of_sequence(false), WHY);
        let behind = submit(2.0, false);
        let id = behind.id();
        match behind.wait() {
            Err(RequestError::Broken(cause)) => {
                assert!(cause.contains(WHY), "{cause}")
            }
            other => panic!("{other:?}"),
        }
        check(&engine, &ends, id, WHY);
        let again = submit(3.0, true).wait().unwrap();
        assert_eq!(again.outputs[0].to_f32(), [3.0]);
        assert_eq!(model.stats().account.count(Outcome::Failed), 1);
        drop(model);
        engine.drain_blocking().unwrap();
        assert_eq!(journal.replay(), 3);
    }
}

#[test]
fn a_simulated_device_takes_only_models_that_it_has_latencies_of() {
    let sim = lazybatch_kernels::SimDevice::new(
        "sim",
        1,
        Vec::new(),
        Nanos::ZERO,
        lazybatch_kernels::Noise::default(),
    );
    let engine = Engine::builder().device(sim).policy("greedy").build();
    let engine = engine.unwrap();
    let refused = engine.load("sums", sums(), ModelOptions::default());
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("latency table"), "{refused}");
}

#[test]
fn nobody_waits_out_a_window_in_which_nothing_may_come() {
    const WINDOW: Nanos = Nanos::from_ms(20_000);
    for policy in [
        "graph:20000",
        "triton:delay=20000",
        "triton:delay=20000,preferred=4",
    ] {
        for unloads in [false, true] {
            let journal = Journal::new(policy, 1, true);
            let builder = Engine::builder().device(cpu()).policy(policy);
            let built = builder.observer(journal.0.clone(), true).build();
            let engine = built.unwrap();
            let model = engine.load("sums", sums(), ModelOptions::default());
            let model = model.unwrap();
            let submit = |i| model.try_submit(input(i as f32), Options::default());
            let mut handles: Vec<_> = (0..6).map(|i| submit(i).unwrap()).collect();
            let mut end = || {
                for handle in handles.drain(..) {
                    let answer = handle.wait().unwrap();
                    let took = answer.finish.since(answer.arrival);
                    assert!(took < WINDOW, "{policy}: {took:?}");
                }
            };
            match unloads {
                true => {
                    drop(model);
                    end();
                    engine.drain_blocking().unwrap();
                }
                false => {
                    engine.drain_blocking().unwrap();
                    end();
                }
            }
            assert_eq!(journal.replay(), 6, "{policy}");
        }
    }
}
