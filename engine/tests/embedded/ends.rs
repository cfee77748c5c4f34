//! How an engine ends: drained, dropped, left in the middle, or by a panic of its driver; and that no
//! turn of the driver goes on for ever.

#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use lazybatch_engine::core::{Action, Event};
use lazybatch_engine::driver::Observer;
use lazybatch_engine::{BuildError, Builder, Engine, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_sla::{Class, Launch, Outcome, Time};

/// Long enough for whatever ends, and told from never.
const NEVER: Duration = Duration::from_secs(60);

fn identity() -> Program {
    let mut b = ProgramBuilder::new("identity");
    let input = b.input("x", DType::F32, &[4]);
    let output = b.output("y", DType::F32, &[4]);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("read", input);
    b.emit("emit", output, x);
    b.finish().unwrap()
}

fn x(samples: usize) -> Vec<Tensor> {
    vec![Tensor::from_f32(&[samples, 4], &vec![1.0; 4 * samples])]
}

fn builder(policy: &str) -> Builder {
    let options = CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    };
    let builder = Engine::builder().device(CpuDevice::new(options));
    let builder = builder.model("id", identity(), ModelOptions::default());
    builder.policy(policy)
}

fn one(engine: &Engine) -> lazybatch_engine::Handle {
    engine.try_submit("id", x(1), Options::default()).unwrap()
}

/// Waits at each launch until it may go on.
struct Waits(mpsc::Receiver<()>);

impl Observer for Waits {
    fn on_launch(&mut self, _now: Time, _launch: &Launch) {
        // Nobody tells it any more behind the test.
        let _ = self.0.recv();
    }
}

#[test]
fn a_drain_that_is_left_stops_the_engine() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let (go_on, waits) = mpsc::channel();
    let builder = builder("greedy").observer(Waits(waits), false);
    let engine = builder.build().unwrap();
    let waiting = one(&engine);
    runtime.block_on(async {
        let drained = tokio::time::timeout(Duration::from_millis(20), engine.drain());
        assert!(drained.await.is_err(), "it waits for the launch");
        drop(go_on);
        let ended = tokio::time::timeout(NEVER, waiting).await.unwrap();
        assert_eq!(ended.unwrap_err(), RequestError::Closed);
    });
}

/// Arrivals, and how many ended how.
#[derive(Default)]
struct Ended {
    arrived: AtomicU32,
    cancelled: AtomicU32,
}

struct Counts(Arc<Ended>);

impl Observer for Counts {
    fn on_event(&mut self, _now: Time, event: &Event) {
        let arrives = matches!(event, Event::Arrive(_));
        self.0.arrived.fetch_add(arrives.into(), Ordering::Relaxed);
    }

    fn on_action(&mut self, _now: Time, action: &Action) {
        if let Action::Finish { outcome, .. } = action {
            assert_eq!(*outcome, Outcome::Cancelled);
            self.0.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn those_open_when_the_engine_is_dropped_are_cancelled_and_counted() {
    let ended = Arc::<Ended>::default();
    let builder = builder("graph:3600000").observer(Counts(ended.clone()), false);
    let engine = builder.build().unwrap();
    let model = engine.load("m", identity(), ModelOptions::default());
    let model = model.unwrap();
    let waiting: Vec<_> = (0..5)
        .map(|_| model.try_submit(x(1), Options::default()).unwrap())
        .collect();
    drop(engine);
    for handle in waiting {
        assert_eq!(handle.wait().unwrap_err(), RequestError::Closed);
    }
    let [arrived, cancelled] =
        [&ended.arrived, &ended.cancelled].map(|n| n.load(Ordering::Relaxed));
    assert_eq!([arrived, cancelled], [5, 5]);
    let counters = model.figures().counters;
    assert_eq!((counters.arrivals, counters.finished), (5, 5));
}

/// Drops the engine that it watches when a request ends.
struct Drops(Arc<Mutex<Option<Engine>>>);

impl Observer for Drops {
    fn on_action(&mut self, _now: Time, action: &Action) {
        if matches!(action, Action::Finish { .. }) {
            drop(self.0.lock().unwrap().take());
        }
    }
}

#[test]
fn an_observer_may_drop_the_engine() {
    let engine = Arc::new(Mutex::new(None));
    let built = builder("greedy").observer(Drops(engine.clone()), false);
    let handle = {
        let mut engine = engine.lock().unwrap();
        let built = engine.insert(built.build().unwrap());
        one(built)
    };
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || tx.send(handle.wait()));
    // It was answered, or the engine went before.
    let answer = rx.recv_timeout(NEVER).unwrap();
    assert!(
        answer.is_ok() || answer.as_ref().err() == Some(&RequestError::Closed),
        "{answer:?}"
    );
}

/// Panics at the first launch.
struct Breaks;

impl Observer for Breaks {
    fn on_launch(&mut self, _now: Time, _launch: &Launch) {
        panic!("told to break");
    }
}

#[test]
fn a_driver_that_panicked_is_told_from_one_that_was_drained() {
    let crashed = || RequestError::Crashed("told to break".into());
    let engine = builder("greedy").observer(Breaks, false).build().unwrap();
    assert!(engine.is_running());
    assert_eq!(one(&engine).wait().unwrap_err(), crashed());
    assert!(!engine.is_running());
    let again = engine.try_submit("id", x(1), Options::default());
    assert_eq!(again.err(), Some(crashed()));
    assert_eq!(engine.drain_blocking(), Err(crashed()));
    assert_eq!(builder("greedy").build().unwrap().drain_blocking(), Ok(()));
}

/// Most events of one turn: those with the same time, one after another.
struct Turns {
    at: Time,
    events: u32,
    most: Arc<AtomicU32>,
}

impl Observer for Turns {
    fn on_event(&mut self, now: Time, _event: &Event) {
        if std::mem::replace(&mut self.at, now) != now {
            self.events = 0;
        }
        self.events += 1;
        self.most.fetch_max(self.events, Ordering::Relaxed);
    }
}

#[test]
fn a_turn_ends_while_clients_come_and_leave() {
    let most = Arc::new(AtomicU32::new(0));
    let turns = Turns {
        at: Time::ZERO,
        events: 0,
        most: most.clone(),
    };
    let engine = builder("greedy").observer(turns, false).build().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(engine.try_submit("id", x(1), Options::default()));
                }
            });
        }
        for _ in 0..20 {
            // The queue may be full.
            let handle =
                std::iter::repeat_with(|| engine.try_submit("id", x(1), Options::default()));
            drop({ handle }.find_map(Result::ok).unwrap().wait().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Commands of one turn, and launches that were over.
    assert!(most.load(Ordering::Relaxed) <= 300, "{most:?}");
}

#[test]
fn nobody_waits_for_a_queue_without_places() {
    let engine = builder("greedy").max_queue(0).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let refused = runtime.block_on(async {
        let submitted = engine.submit("id", x(1), Options::default());
        tokio::time::timeout(NEVER, submitted).await.unwrap()
    });
    let full = RequestError::QueueFull { max_queue: 0 };
    assert_eq!(refused.unwrap_err(), full);
}

#[test]
fn an_answer_does_not_start_before_it_arrived() {
    let engine = builder("greedy").build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let answer = one(&engine).wait().unwrap();
                    let first = answer.first_launch.unwrap();
                    assert!(answer.arrival <= first && first <= answer.finish);
                }
            });
        }
    });
}

#[test]
fn data_that_do_not_fit_their_shape_are_refused() {
    let engine = builder("greedy").build().unwrap();
    let mut inputs = x(1);
    inputs[0].dims = vec![4, 4];
    let refused = engine.try_submit("id", inputs, Options::default());
    let error = refused.err().unwrap().to_string();
    assert!(
        error.contains("64 bytes") && error.contains("got 16 bytes"),
        "{error}"
    );
}

#[test]
fn ids_that_may_come_wide_count_as_they_come() {
    let engine = Engine::builder().device(CpuDevice::new(CpuOptions::default()));
    let engine = engine.model("tiny", crate::tiny::model(), ModelOptions::default());
    let engine = engine.build().unwrap();
    let memory = engine.request_memory("tiny", 16, 1).unwrap();
    assert!(memory.inputs >= 16 * 8, "{memory:?}");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let refused = |builder: Builder| match builder.build() {
        Err(error @ (BuildError::Option { .. } | BuildError::Model { .. })) => error.to_string(),
        other => panic!("{:?}", other.err()),
    };
    let depth = refused(builder("greedy").depth(0));
    assert_eq!(depth, "depth: expected 1 or more, got 0");
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let class = Class {
            weight,
            ..Class::new("gold")
        };
        let told = refused(builder("greedy").class(class.clone()));
        assert!(told.starts_with("class gold: weight"), "{told}");
        let options = ModelOptions {
            classes: vec![class],
            ..ModelOptions::default()
        };
        let told = refused(builder("greedy").model("other", identity(), options));
        assert!(told.contains("class gold: weight"), "{told}");
    }
}
