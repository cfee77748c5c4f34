//! Models that come and go while the engine runs: the checker judges, journals replay, ids and memory
//! are used again.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Action, Attach, Core, CoreConfig, Event, ModelSpec, Request};
use lazybatch_engine::driver::plan::{self, Crew};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::journal::{self, Header, Writer};
use lazybatch_engine::policy;
use lazybatch_engine::{BuildError, Engine, ModelHandle, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_sla::profile::{BlockProfile, By, FORMAT, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{Class, ClassId, ModelId, Nanos, Profile, RequestId, Ticket, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smallvec::SmallVec;

fn block(name: &str, repeat: RepeatRule, max_steps: Option<u32>, nodes: usize) -> BlockProfile {
    let node = |n: usize| NodeProfile {
        name: format!("{name}{n}"),
        by: By::Members,
        latency_us: vec![(1, 2.0), (4, 3.0)],
        num_nodes: None,
        merge_bytes_per_member: 0.0,
        weight_bytes: None,
        load_us: None,
        host_access_us: None,
    };
    BlockProfile {
        name: name.into(),
        repeat,
        stride: None,
        max_steps,
        nodes: (0..nodes).map(node).collect(),
    }
}

/// A chain of nodes, with a loop behind it or without.
fn attach(model: u32, has_loop: bool) -> Event {
    let mut blocks = vec![block("net", RepeatRule::Once, None, 3)];
    if has_loop {
        blocks.push(block("loop", RepeatRule::UntilStop, Some(4), 2));
    }
    let profile = ModelProfile {
        name: format!("model{model}"),
        max_batch: 4,
        sla_ms: None,
        output_len_p90: Some(3),
        blocks,
    };
    let segments = profile.blocks.iter().map(|b| b.nodes.len() as u32);
    let segments = segments.map(|n| (0..n).map(|i| i..i + 1).collect());
    let spec = ModelSpec::of_segments(&profile, segments.collect(), 3);
    let classes = vec![Class::default()];
    let attach = Attach::new(ModelId(model), spec, Arc::new(profile), classes);
    Event::Attach(Box::new(attach))
}

/// A core, with the checker behind it, and launches that end when they are told to.
struct World {
    core: Core,
    judge: Judge,
    now: Time,
    flying: VecDeque<Ticket>,
    free: Vec<u32>,
    num_vacated: usize,
}

impl World {
    fn new(spec: &str) -> Self {
        let config = CoreConfig::new(Vec::new());
        Self {
            judge: Judge::new(Checker::new(&config, false)),
            core: Core::new(config, policy::build(spec).unwrap()),
            now: Time(0),
            flying: VecDeque::new(),
            free: Vec::new(),
            num_vacated: 0,
        }
    }

    fn event(&mut self, event: Event) {
        self.now = self.now + Nanos(700);
        self.judge.on_event(self.now, &event);
        self.core.handle(self.now, event);
        while let Some(action) = self.core.poll_action(self.now) {
            match &action {
                Action::Launch { ticket, lane } => {
                    let launch = self.core.launch(*lane, *ticket);
                    self.judge.on_launch(self.now, launch);
                    self.flying.push_back(*ticket);
                    continue;
                }
                Action::Vacate(model) => {
                    self.free.push(model.0);
                    self.num_vacated += 1;
                }
                _ => {}
            }
            self.judge.on_action(self.now, &action);
            if action == Action::Plan {
                let plan = self.core.take_plan().unwrap();
                let plan = plan::make(&plan, plan.budget, &Crew::ALONE).plan;
                self.event(Event::Planned(plan));
            }
        }
    }

    /// Ends the oldest launch, or wakes the policy.
    fn go_on(&mut self) {
        if let Some(ticket) = self.flying.pop_front() {
            let (stopped, failed) = (SmallVec::new(), None);
            self.event(Event::Done {
                ticket,
                stopped,
                faults: Vec::new(),
                failed,
                took: None,
            });
        } else if let Some(at) = self.core.next_wakeup() {
            self.now = self.now.max(at);
            self.event(Event::Wake);
        }
    }
}

#[test]
fn every_policy_takes_models_that_come_and_go() {
    for spec in policy::examples().chain(policy::refusing_examples()) {
        for seed in 0..2 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut world = World::new(spec);
            let (mut live, mut next_id, mut num_ids) = (Vec::new(), 0, 0);
            let (mut num_attached, mut num_detached) = (0, 0);
            for _ in 0..400 {
                match rng.random_range(0..12) {
                    0 if live.len() < 4 => {
                        let id = world.free.pop().unwrap_or_else(|| {
                            num_ids += 1;
                            num_ids - 1
                        });
                        world.event(attach(id, rng.random_bool(0.5)));
                        live.push(id);
                        num_attached += 1;
                    }
                    1 if live.len() > 1 => {
                        let gone = live.swap_remove(rng.random_range(0..live.len()));
                        num_detached += 1;
                        world.event(Event::Detach(ModelId(gone)));
                    }
                    2 if next_id > 0 => {
                        let id = RequestId(rng.random_range(0..next_id));
                        world.event(Event::Cancel(id));
                    }
                    3..=6 if !live.is_empty() => {
                        let request = Request {
                            id: RequestId(next_id),
                            model: ModelId(live[rng.random_range(0..live.len())]),
                            arrival: world.now,
                            sla: rng.random_bool(0.5).then_some(Nanos(40_000)),
                            class: ClassId(0),
                            priority: rng.random_range(0..3),
                            delay_after: (next_id % 3 == 0).then_some(Nanos(20_000)),
                            samples: 1,
                            input_len: 1,
                            sequence: rng.random_bool(0.3).then_some(next_id % 3),
                            max_steps: None,
                            known_output_len: Some(4),
                        };
                        next_id += 1;
                        world.event(Event::Arrive(request));
                    }
                    _ => world.go_on(),
                }
            }
            for _ in 0..20_000 {
                if world.core.num_open() == 0 && world.flying.is_empty() {
                    break;
                }
                world.go_on();
            }
            assert_eq!(world.core.num_open(), 0, "{spec} {seed}: requests wait");
            assert!(num_detached > 5, "{spec} {seed}: few came and went");
            assert_eq!(world.num_vacated, num_detached, "{spec} {seed}");
            assert!(num_ids < num_attached, "{spec} {seed}: no id is used again");
            let verdict = world.judge.finish();
            assert_eq!(verdict, Ok(()), "{spec} {seed}");
        }
    }
}

fn arrival(id: u64, model: u32, at: Time) -> Event {
    Event::Arrive(Request {
        id: RequestId(id),
        model: ModelId(model),
        arrival: at,
        sla: None,
        class: ClassId(0),
        priority: 0,
        delay_after: None,
        samples: 1,
        input_len: 1,
        sequence: None,
        max_steps: None,
        known_output_len: None,
    })
}

#[test]
fn the_checker_finds_models_that_are_not_there() {
    let config = CoreConfig::new(Vec::new());
    let broken = |events: &[Event], action: Option<Action>| {
        let mut checker = Checker::new(&config, false);
        let mut verdict = Ok(());
        for event in events {
            verdict = verdict.and_then(|()| checker.on_event(Time(0), event));
        }
        if let Some(action) = action {
            verdict = verdict.and_then(|()| checker.on_action(Time(0), &action));
        }
        verdict.map_err(|v| v.rule)
    };
    let detach = || Event::Detach(ModelId(0));
    let vacate = || Some(Action::Vacate(ModelId(0)));
    assert_eq!(broken(&[attach(0, false), detach()], vacate()), Ok(()));
    assert_eq!(broken(&[arrival(0, 0, Time(0))], None), Err(9));
    assert_eq!(broken(&[attach(0, true), attach(0, true)], None), Err(9));
    assert_eq!(broken(&[attach(1, true)], None), Err(9));
    assert_eq!(broken(&[attach(0, true)], vacate()), Err(9));
    let late = [attach(0, false), detach(), arrival(0, 0, Time(0))];
    assert_eq!(broken(&late, None), Err(9));
    let open = [attach(0, false), arrival(0, 0, Time(0)), detach()];
    assert_eq!(broken(&open, vacate()), Err(9));
}

/// An LSTM over letters that gives its last state.
fn reader(hidden: usize) -> Program {
    let mut b = ProgramBuilder::new("reader");
    let letters = b.sequence_ids("letters", 16, 12);
    let y_out = b.output("y", DType::F32, &[3]);
    b.begin_block("reader", Repeat::PerInputStep { stride: 1 });
    let x = b.read_input_at("letter", letters, lazybatch_graph::At::Step);
    let x = b.embed("embed", x, 12, hidden);
    let (memory, w) = (
        b.lstm_state("memory", hidden),
        b.lstm_weights("read", hidden, hidden),
    );
    let _ = b.lstm_cell("lstm", x, w, None, memory.h, memory.c);
    b.begin_block("head", Repeat::Once);
    let h = b.vec_read("last", memory.h);
    let y = b.dense("y.dense", h, 3, None);
    b.emit("y.emit", y_out, y);
    b.finish().unwrap()
}

/// Two layers.
fn layers(hidden: usize) -> Program {
    let mut b = ProgramBuilder::new("layers");
    let x_in = b.input("x", DType::F32, &[8]);
    let y_out = b.output("y", DType::F32, &[3]);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("x.read", x_in);
    let h = b.dense("hidden", x, hidden, None);
    let y = b.dense("y.dense", h, 3, None);
    b.emit("y.emit", y_out, y);
    b.finish().unwrap()
}

fn inputs(is_reader: bool, seed: i32) -> Vec<Tensor> {
    if is_reader {
        let ids: Vec<i32> = (0..1 + seed % 7).map(|i| (seed * 5 + i * 7) % 12).collect();
        return vec![Tensor::from_i32(&[ids.len()], &ids)];
    }
    let values: Vec<f32> = (0..8).map(|i| ((seed + i) % 5) as f32 - 2.0).collect();
    vec![Tensor::from_f32(&[1, 8], &values)]
}

fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    })
}

fn load(engine: &Engine, is_reader: bool) -> ModelHandle {
    let (name, program) = match is_reader {
        true => ("reader", reader(16)),
        false => ("layers", layers(16)),
    };
    let options = ModelOptions::default();
    engine.load(name, program, options).unwrap()
}

#[test]
fn models_come_and_go_under_traffic_and_the_journal_replays() {
    let alone = Engine::builder().device(device()).build().unwrap();
    let references = [load(&alone, false), load(&alone, true)];
    for spec in ["adaptive", "lazy", "cellular", "graph:0"] {
        let config = CoreConfig {
            is_in_place: true,
            ..CoreConfig::new(Vec::new())
        };
        let nothing = Profile {
            format: FORMAT.into(),
            device: "engine".into(),
            copy_gbps: 0.0,
            dispatch_us: 0.0,
            issue_us: 0.0,
            models: Vec::new(),
        };
        let header = Header::new(spec, &nothing, &config);
        let checker = Checker::new(&config, false).with_delays();
        let judge = Arc::new(Mutex::new(Judge::new(checker)));
        let writer = Arc::new(Mutex::new(Writer::new(Vec::new(), &header)));
        let engine = Engine::builder()
            .device(device())
            .policy(spec)
            .observer((judge.clone(), writer.clone()), false)
            .build()
            .unwrap();
        let mut held = VecDeque::new();
        let mut answers = Vec::new();
        for round in 0..40 {
            let is_reader = round % 3 > 0;
            let handle = load(&engine, is_reader);
            for i in 0..4 {
                let seed = round * 4 + i;
                let inputs = inputs(is_reader, seed);
                let options = Options {
                    delay_after: (i % 2 == 0).then_some(Nanos(1)),
                    ..Options::default()
                };
                let answer = handle.try_submit(inputs, options).unwrap();
                answers.push((is_reader, seed, answer));
            }
            held.push_back(handle);
            if held.len() > 3 {
                // With its requests open, as like as not.
                held.pop_front();
            }
        }
        for (is_reader, seed, answer) in answers {
            let got = answer.wait().unwrap().outputs[0].to_f32();
            let reference = &references[usize::from(is_reader)];
            let alone = reference.try_submit(inputs(is_reader, seed), Options::default());
            let alone = alone.unwrap().wait().unwrap().outputs[0].to_f32();
            assert_eq!(got, alone, "{spec} {seed}");
        }
        assert_eq!(held[0].stats().counters.arrivals, 4);
        assert_eq!(engine.models().len(), 3);
        drop(held);
        engine.drain_blocking().unwrap();
        let judge = Arc::into_inner(judge).unwrap().into_inner().unwrap();
        assert_eq!(judge.finish(), Ok(()), "{spec}");
        let writer = Arc::into_inner(writer).unwrap().into_inner().unwrap();
        let journal = writer.finish().unwrap();
        let replayed = journal::replay(&journal[..], &mut ()).unwrap();
        assert_eq!(replayed.finished, 160, "{spec}");
    }
}

/// Megabytes that the process holds.
fn resident_mb() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4096) >> 20
}

#[test]
fn a_thousand_reloads_leave_nothing_behind() {
    let engine = Engine::builder().device(device()).build().unwrap();
    let program = Arc::new(layers(4096));
    let mut last = None;
    let mut before = 0;
    for round in 0..1000 {
        let options = ModelOptions {
            classes: vec![Class {
                priority: (round % 7) as u8,
                ..Class::new("gold")
            }],
            ..ModelOptions::default()
        };
        let handle = engine.load("layers", program.clone(), options).unwrap();
        let class = Some("gold".to_owned());
        let options = Options {
            class,
            ..Options::default()
        };
        let answer = handle.try_submit(inputs(false, round), options).unwrap();
        // The one before goes meanwhile.
        last = Some(handle);
        answer.wait().unwrap();
        if round == 100 {
            before = resident_mb();
        }
    }
    assert!(engine.stats().models.len() <= 3);
    // Each holds 180 kB of weights.
    let grown = resident_mb().saturating_sub(before);
    assert!(grown < 40, "{grown} MB more");
    assert_eq!(last.unwrap().stats().counters.arrivals, 1);
}

#[test]
fn what_is_unloaded_is_not_found_and_what_cannot_be_loaded_leaves_the_others() {
    let engine = Engine::builder().device(device()).build().unwrap();
    let first = load(&engine, false);
    let second = load(&engine, false);
    let (a, b) = (first.stats(), second.stats());
    assert_eq!((a.counters.arrivals, b.counters.arrivals), (0, 0));
    // By name the last one is meant.
    let submit = || engine.try_submit("layers", inputs(false, 1), Options::default());
    submit().unwrap().wait().unwrap();
    assert_eq!(second.stats().counters.arrivals, 1);
    drop(second);
    submit().unwrap().wait().unwrap();
    assert_eq!(first.stats().counters.arrivals, 1);
    drop(first);
    assert!(matches!(submit(), Err(RequestError::UnknownModel { .. })));
    let options = ModelOptions {
        memory: Some(1),
        ..ModelOptions::default()
    };
    let refused = engine.load("layers", layers(16), options);
    let Err(BuildError::Model { what, .. }) = refused else {
        panic!("it was loaded");
    };
    assert_eq!(what, "memory limit");
    let again = load(&engine, true);
    let answer = again.try_submit(inputs(true, 1), Options::default());
    answer.unwrap().wait().unwrap();
    engine.drain_blocking().unwrap();
    let closed = again.try_submit(inputs(true, 1), Options::default());
    assert!(matches!(closed, Err(RequestError::Closed)));
}
