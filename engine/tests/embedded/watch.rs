//! What a running engine tells of itself: figures, traces, explanations on request.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Mutex};

use lazybatch_engine::core::{Action, Event};
use lazybatch_engine::driver::Observer;
use lazybatch_engine::timeline::{ChromeTrace, document};
use lazybatch_engine::watch::Seen;
use lazybatch_engine::{Builder, Engine, ModelHandle, ModelOptions, Options, Planning, Sizes};
use lazybatch_graph::{Bin, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_sla::{Nanos, Time};

/// `y = x + x + x`, in two nodes.
fn program() -> Program {
    let mut b = ProgramBuilder::new("triple");
    let x = b.input("x", DType::F32, &[4]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("x.read", x);
    let two = b.binary("two", Bin::Add, x, x);
    let three = b.binary("three", Bin::Add, two, x);
    b.emit("y.emit", y, three);
    b.finish().unwrap()
}

fn builder() -> Builder {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let builder = Engine::builder().device(device).measure_decisions(true);
    builder.explain_on_request(16)
}

fn engine() -> Engine {
    builder().build().unwrap()
}

fn load(engine: &Engine, name: &str) -> ModelHandle {
    let options = ModelOptions {
        max_queue: Some(100),
        ..ModelOptions::default()
    };
    engine.load(name, program(), options).unwrap()
}

fn call(model: &ModelHandle, samples: usize, explain: bool) -> lazybatch_sla::RequestId {
    let x = Tensor::from_f32(&[samples, 4], &vec![1.0; samples * 4]);
    let options = Options {
        explain,
        ..Options::default()
    };
    let handle = model.try_submit(vec![x], options).unwrap();
    let id = handle.id();
    assert_eq!(handle.wait().unwrap().outputs[0].to_f32()[0], 3.0);
    id
}

/// Figures are told a moment behind answers.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

#[test]
fn the_rule_is_told_that_plans_choose_and_none_of_policies_that_choose_none() {
    let engine = engine();
    let model = load(&engine, "a");
    let monitor = engine.monitor();
    until(|| {
        call(&model, 1, false);
        monitor.planning().plans > 0
    });
    let (planning, now) = (monitor.planning(), monitor.now());
    assert!(planning.launches > 0, "{planning:?}");
    let held = planning.held(now);
    let rule = planning.rule.unwrap();
    assert!(held[&rule] > Nanos(0) && held.len() as u64 <= planning.changes + 1);
    assert!(held.values().all(|&ns| ns <= Nanos(now.0)), "{held:?}");
    let other = builder().policy("continuous").build().unwrap();
    call(&load(&other, "a"), 1, false);
    assert_eq!(other.stats().planning, Planning::default());
}

#[test]
fn batches_are_counted_by_node_and_begin_anew_with_a_model() {
    let engine = engine();
    let model = load(&engine, "a");
    for samples in [1, 3, 3, 64] {
        call(&model, samples, false);
    }
    until(|| model.figures().counters.finished == 4);
    let figures = model.figures();
    let nodes = figures.counters.launches / 4;
    let batches = figures.sizes.histogram();
    assert_eq!(batches.count(), figures.counters.launches);
    assert_eq!(batches.sum(), figures.counters.batched);
    assert_eq!(batches.sum(), nodes * (1 + 3 + 3 + 64));
    let at_most: Vec<_> = batches.at_most().map(|(_, n)| n / nodes).collect();
    assert_eq!(at_most, [1, 1, 3, 3, 3, 3, 4, 4, 4]);
    let by_size = figures.sizes.iter().map(|(of, at)| (of, at.nodes / nodes));
    assert_eq!(by_size.collect::<Vec<_>>(), [(1, 1), (3, 2), (64, 1)]);
    assert!(figures.sizes.iter().all(|(_, at)| at.ns > 0), "{figures:?}");
    assert_eq!(
        (figures.in_flight, figures.waiting, figures.oldest),
        (0, 0, None)
    );
    drop(model);
    let again = load(&engine, "a");
    assert_eq!(again.figures().sizes, Sizes::default());
    engine.drain_blocking().unwrap();
    assert_eq!(
        again.figures().sizes,
        Sizes::default(),
        "an engine that is gone still tells"
    );
}

#[test]
fn a_watch_sees_what_passes_while_it_watches() {
    let engine = engine();
    let model = load(&engine, "a");
    call(&model, 1, false);
    let monitor = engine.monitor();
    assert_eq!(monitor.num_watchers(), 0);
    let mut watch = monitor.watch();
    assert!(watch.take().seen.is_empty(), "nothing was kept before");
    let second = load(&engine, "b <i>");
    call(&second, 2, false);
    until(|| second.figures().counters.finished == 1);
    let passed = watch.take();
    let is = |seen: &Seen, event: fn(&Event) -> bool| matches!(seen, Seen::Event(e) if event(e));
    let arrivals = passed
        .seen
        .iter()
        .filter(|e| is(&e.1, |e| matches!(e, Event::Arrive(_))));
    assert_eq!(arrivals.count(), 1);
    let mut trace = ChromeTrace::of(passed.names.clone(), 0);
    trace.name("one");
    passed.replay(&mut trace);
    let text = document(trace.into_events());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let phase = |p: &str| events.iter().filter(|e| e["ph"] == p).count();
    assert_eq!((phase("M"), phase("b"), phase("e")), (2, 1, 1));
    let launches: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert!(!launches.is_empty());
    for launch in launches {
        assert_eq!(launch["args"]["model"], "b <i>");
        assert!(launch["name"].as_str().unwrap().starts_with("net."));
        assert!(launch["dur"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(monitor.num_watchers(), 1);
    drop(watch);
    assert_eq!(monitor.num_watchers(), 0);
    let looked = monitor.look().blocking_recv().unwrap();
    assert!(looked.table.is_empty() && looked.running.is_empty());
    engine.drain_blocking().unwrap();
    assert!(monitor.look().blocking_recv().is_err(), "it is gone");
}

#[test]
fn only_requests_that_ask_for_it_are_explained() {
    let engine = engine();
    let model = load(&engine, "a");
    let silent = call(&model, 1, false);
    let asked = call(&model, 1, true);
    let after = call(&model, 1, false);
    assert_eq!(engine.explain(silent), None);
    assert_eq!(engine.explain(after), None);
    let why = engine.explain(asked).unwrap();
    assert!(why.launches > 0 && why.ended.is_some(), "{why}");
    assert!(why.to_string().ends_with("met"), "{why}");
    // The last ones are kept.
    let later: Vec<_> = (0..16).map(|_| call(&model, 1, true)).collect();
    assert_eq!(engine.explain(asked), None);
    assert!(later.iter().all(|&id| engine.explain(id).is_some()));
    engine.drain_blocking().unwrap();
}

/// Counts notes, and other actions.
#[derive(Default)]
struct Notes([usize; 2]);

impl Observer for Notes {
    fn on_action(&mut self, _now: Time, action: &Action) {
        self.0[usize::from(!matches!(action, Action::Note(_)))] += 1;
    }
}

#[test]
fn what_is_noted_for_an_explanation_is_told_to_nobody_else() {
    for wants in [false, true] {
        let seen = Arc::new(Mutex::new(Notes::default()));
        let engine = builder().observer(seen.clone(), wants).build().unwrap();
        let model = load(&engine, "a");
        let id = call(&model, 2, true);
        assert!(engine.explain(id).is_some());
        engine.drain_blocking().unwrap();
        let [notes, others] = seen.lock().unwrap().0;
        assert_eq!(notes > 0, wants);
        assert!(others > 0);
    }
}
