//! Sequences beyond the candidates of their model wait in its backlog until others end.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Mutex};

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::driver::Judge;
use lazybatch_engine::{
    Answer, Builder, Engine, Handle, ModelHandle, ModelOptions, Options, RequestError,
    SequenceOptions,
};
use lazybatch_graph::{Bin, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_sla::Nanos;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `y` is the sum of all `x` of the sequence.
fn sums() -> Program {
    let mut b = ProgramBuilder::new("sums");
    let x = b.input("x", DType::F32, &[1]);
    let h = b.input("h", DType::F32, &[1]);
    let y_out = b.output("y", DType::F32, &[1]);
    let h_out = b.output("h_next", DType::F32, &[1]);
    b.carry(h_out, h);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("x.read", x);
    let h = b.read_input("h.read", h);
    let sum = b.binary("sum", Bin::Add, x, h);
    b.emit("y.emit", y_out, sum);
    b.emit("h.emit", h_out, sum);
    b.finish().unwrap()
}

/// `y` is `x + x`, whatever came before.
fn doubles() -> Program {
    let mut b = ProgramBuilder::new("doubles");
    let x = b.input("x", DType::F32, &[1]);
    let y_out = b.output("y", DType::F32, &[1]);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("x.read", x);
    let sum = b.binary("sum", Bin::Add, x, x);
    b.emit("y.emit", y_out, sum);
    b.finish().unwrap()
}

struct Running {
    engine: Engine,
    model: ModelHandle,
    judge: Arc<Mutex<Judge>>,
}

fn builder(policy: &str) -> Builder {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    Engine::builder().device(device).policy(policy)
}

fn bounds(candidates: usize, idle_ms: u64) -> ModelOptions {
    ModelOptions {
        sequences: Some(SequenceOptions {
            idle: Nanos::from_ms(idle_ms),
            candidates,
            ..SequenceOptions::default()
        }),
        ..ModelOptions::default()
    }
}

fn run(policy: &str, program: Program, candidates: usize, idle_ms: u64) -> Running {
    let options = ModelOptions {
        max_queue: Some(2000),
        ..bounds(candidates, idle_ms)
    };
    run_within(builder(policy), program, options)
}

fn run_within(builder: Builder, program: Program, options: ModelOptions) -> Running {
    let checker = Checker::new(&builder.core_config(1).unwrap(), false);
    let judge = Arc::new(Mutex::new(Judge::new(checker)));
    let engine = builder.observer(judge.clone(), false).build().unwrap();
    let model = engine.load("m", program, options).unwrap();
    Running {
        engine,
        model,
        judge,
    }
}

const LONG: u64 = 3_600_000;

fn submit(model: &ModelHandle, sequence: u64, start: bool, end: bool) -> Handle {
    let options = Options {
        sequence: Some(sequence),
        sequence_start: start,
        sequence_end: end,
        ..Options::default()
    };
    let x = Tensor::from_f32(&[1, 1], &[1.0]);
    model.try_submit(vec![x], options).unwrap()
}

impl Running {
    fn submit(&self, sequence: u64, start: bool, end: bool) -> Handle {
        submit(&self.model, sequence, start, end)
    }

    /// Ends when all that was accepted has, and no rule was broken.
    fn end(self) {
        self.engine.drain_blocking().unwrap();
        drop(self.model);
        let judge = Arc::into_inner(self.judge).unwrap().into_inner().unwrap();
        judge.finish().unwrap();
    }
}

fn y(answer: Result<Answer, RequestError>) -> f32 {
    answer.unwrap().outputs[0].to_f32()[0]
}

fn needs_start(handle: Handle) {
    let told = handle.wait().unwrap_err().to_string();
    assert!(told.contains("expected the start of a sequence"), "{told}");
}

#[test]
fn they_follow_in_the_order_of_their_starts_as_others_end() {
    for policy in ["serial", "greedy", "lazy", "adaptive"] {
        let running = run(policy, sums(), 2, LONG);
        // Requests of all sequences in turn.
        let mut of: Vec<Vec<Handle>> = (0..7).map(|_| Vec::new()).collect();
        for i in 0..3 {
            for (s, handles) in of.iter_mut().enumerate() {
                handles.push(running.submit(s as u64, i == 0, i == 2));
            }
        }
        let mut spans = Vec::new();
        for handles in of {
            let all: Vec<Answer> = handles.into_iter().map(|h| h.wait().unwrap()).collect();
            let sums: Vec<f32> = all.iter().map(|a| a.outputs[0].to_f32()[0]).collect();
            assert_eq!(sums, [1.0, 2.0, 3.0], "{policy}");
            spans.push((all[0].first_launch.unwrap(), all[2].finish));
        }
        for (s, (begins, _)) in spans.iter().enumerate() {
            let open = spans[..s].iter().filter(|(_, ends)| ends > begins).count();
            assert!(open < 2, "{policy}: {open} were open beside {s}: {spans:?}");
        }
        running.end();
    }
}

#[test]
fn one_that_is_idle_for_too_long_makes_room() {
    let running = run("adaptive", sums(), 1, 30);
    y(running.submit(1, true, false).wait());
    // Both wait, the first one for an end that does not come.
    let second = running.submit(2, true, true);
    let third = running.submit(3, true, false);
    assert_eq!(y(second.wait()), 1.0);
    assert_eq!(y(third.wait()), 1.0);
    needs_start(running.submit(1, false, false));
    running.end();
}

#[test]
fn who_leaves_the_backlog_leaves_nothing_in_it() {
    let running = run("adaptive", sums(), 1, LONG);
    y(running.submit(1, true, false).wait());
    let second = running.submit(2, true, false);
    let last_of_second = running.submit(2, false, false);
    let third = running.submit(3, true, false);
    drop((second, last_of_second));
    // The engine hears of it before this.
    assert_eq!(y(running.submit(1, false, false).wait()), 2.0);
    needs_start(running.submit(2, false, false));
    // Behind a request that was cancelled before its turn the sequence is broken.
    let lost = running.submit(3, false, false);
    let next = running.submit(3, false, false);
    drop(lost);
    assert_eq!(y(running.submit(1, false, true).wait()), 3.0);
    assert_eq!(y(third.wait()), 1.0);
    let told = next.wait().unwrap_err();
    assert!(matches!(told, RequestError::Broken(_)), "{told}");
    running.end();
}

#[test]
fn an_engine_that_is_drained_does_not_wait_for_those_that_are_idle() {
    let start = || {
        let running = run("adaptive", sums(), 1, LONG);
        y(running.submit(1, true, false).wait());
        let waiting: Vec<Handle> = (2..6).map(|s| running.submit(s, true, false)).collect();
        (running, waiting)
    };
    let (running, waiting) = start();
    let (engine, model) = (running.engine, running.model);
    // The handle keeps it there.
    engine.drain_blocking().unwrap();
    drop(model);
    assert!(waiting.into_iter().all(|h| y(h.wait()) == 1.0));
    let (running, waiting) = start();
    // A model that is unloaded.
    drop(running.model);
    assert!(waiting.into_iter().all(|h| y(h.wait()) == 1.0));
    running.engine.drain_blocking().unwrap();
}

#[test]
fn half_of_the_queue_is_left_to_those_that_are_open() {
    let running = run("adaptive", sums(), 1, LONG);
    y(running.submit(1, true, false).wait());
    let mut waiting: Vec<Handle> = (2..1002).map(|s| running.submit(s, true, true)).collect();
    let told = running.submit(1002, true, true).wait().unwrap_err();
    assert_eq!(told.to_string(), "the queue of 1000 requests is full");
    assert_eq!(y(running.submit(1, false, false).wait()), 2.0);
    // What a sequence in the backlog cannot have breaks it.
    let last = waiting.pop().unwrap();
    drop(last);
    assert_eq!(y(running.submit(1, false, false).wait()), 3.0);
    let open = running.submit(1002, true, false);
    let told = running.submit(1002, false, false).wait().unwrap_err();
    assert_eq!(told.to_string(), "the queue of 1000 requests is full");
    assert_eq!(y(running.submit(1, false, true).wait()), 4.0);
    for handle in waiting {
        assert_eq!(y(handle.wait()), 1.0);
    }
    assert_eq!(y(open.wait()), 1.0);
    let told = running.submit(1002, false, true).wait().unwrap_err();
    assert!(matches!(told, RequestError::Broken(_)), "{told}");
    running.end();
}

#[test]
fn half_of_all_that_is_bounded_is_left_to_those_that_are_open() {
    const PLACES: usize = 8;
    let bytes = {
        let running = run("serial", sums(), 1, LONG);
        let one = running.model.request_memory(0, 1).unwrap().total();
        running.end();
        // Shares are of whole KiB.
        one.next_multiple_of(1024) * PLACES as u64
    };
    let own = bounds(1, LONG);
    let queue = "the queue of 4 requests is full";
    let level = "the queue of 4 requests of priority level 0 is full";
    let memory = "expected at most 0 bytes, what is left of the limit";
    let of_all = || builder("adaptive");
    let with_queue = ModelOptions {
        max_queue: Some(PLACES),
        ..own.clone()
    };
    let with_level = ModelOptions {
        max_queue_by_level: [(0, PLACES)].into(),
        ..own.clone()
    };
    let with_limit = ModelOptions {
        memory: Some(bytes),
        ..own.clone()
    };
    for (builder, options, told) in [
        (of_all().max_queue(PLACES), own.clone(), queue),
        (of_all().memory(bytes), own, memory),
        (of_all(), with_queue, queue),
        (of_all(), with_level, level),
        (of_all(), with_limit, memory),
    ] {
        let running = run_within(builder, sums(), options);
        y(running.submit(1, true, false).wait());
        let mut waiting: Vec<Handle> = (2..6).map(|s| running.submit(s, true, true)).collect();
        let refused = |s| {
            let error = running.submit(s, true, true).wait().unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        };
        refused(6);
        assert_eq!(y(running.submit(1, false, false).wait()), 2.0);
        // Who leaves makes room, for one.
        drop(waiting.pop());
        assert_eq!(y(running.submit(1, false, false).wait()), 3.0);
        waiting.push(running.submit(7, true, true));
        refused(8);
        // As does a sequence whose turn comes.
        assert_eq!(y(running.submit(1, false, true).wait()), 4.0);
        for handle in waiting {
            assert_eq!(y(handle.wait()), 1.0);
        }
        y(running.submit(1, true, false).wait());
        let waiting = (2..6).map(|s| running.submit(s, true, true));
        let waiting: Vec<Handle> = waiting.collect();
        refused(6);
        assert_eq!(y(running.submit(1, false, true).wait()), 2.0);
        assert!(waiting.into_iter().all(|h| y(h.wait()) == 1.0));
        running.end();
    }
}

#[test]
fn who_waits_for_a_sequence_is_told_as_waiting() {
    let running = run("adaptive", sums(), 1, LONG);
    y(running.submit(1, true, false).wait());
    let waits = running.submit(2, true, true);
    // The engine hears of it before this.
    assert_eq!(y(running.submit(1, false, false).wait()), 2.0);
    let figures = || running.model.figures();
    // Figures are told a moment behind answers.
    while figures().oldest.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(figures().waiting, 1);
    assert_eq!(y(running.submit(1, false, true).wait()), 3.0);
    assert_eq!(y(waits.wait()), 1.0);
    while figures().oldest.is_some() {
        std::thread::yield_now();
    }
    running.end();
}

#[test]
fn the_half_that_all_models_share_is_one() {
    let engine = builder("adaptive").max_queue(8).build().unwrap();
    let load = |name| engine.load(name, sums(), bounds(1, LONG)).unwrap();
    let (a, b) = (load("a"), load("b"));
    for model in [&a, &b] {
        y(submit(model, 1, true, false).wait());
    }
    let mut waiting: Vec<Handle> = (2..5).map(|s| submit(&a, s, true, true)).collect();
    waiting.push(submit(&b, 2, true, true));
    for model in [&a, &b] {
        let error = submit(model, 9, true, true).wait().unwrap_err();
        assert_eq!(error.to_string(), "the queue of 4 requests is full");
        assert_eq!(y(submit(model, 1, false, false).wait()), 2.0);
    }
    for model in [&a, &b] {
        assert_eq!(y(submit(model, 1, false, true).wait()), 3.0);
    }
    assert!(waiting.into_iter().all(|h| y(h.wait()) == 1.0));
    engine.drain_blocking().unwrap();
}

#[test]
fn sequences_without_state_keep_to_bounds_and_break_for_nothing() {
    let running = run("adaptive", doubles(), 1, LONG);
    needs_start(running.submit(1, false, false));
    let first = running.submit(1, true, false);
    let other = running.submit(2, true, false);
    let lost = running.submit(2, false, false);
    let behind = running.submit(2, false, true);
    drop(lost);
    assert_eq!(y(first.wait()), 2.0);
    // Requests that are refused before they come to the engine are none.
    let wrong = Tensor::from_f32(&[1, 3], &[0.0; 3]);
    let options = Options {
        sequence: Some(1),
        ..Options::default()
    };
    assert!(running.model.try_submit(vec![wrong], options).is_err());
    assert_eq!(y(running.submit(1, false, true).wait()), 2.0);
    needs_start(running.submit(1, false, false));
    assert_eq!(y(other.wait()), 2.0);
    assert_eq!(y(behind.wait()), 2.0);
    running.end();
}

#[test]
fn all_that_is_accepted_ends_whatever_is_cancelled() {
    for seed in 0..24 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let program = if rng.random() { sums() } else { doubles() };
        let policy = ["serial", "greedy", "adaptive"][rng.random_range(0..3)];
        let ends_soon = rng.random();
        let candidates = rng.random_range(1..4);
        let running = run(
            policy,
            program,
            candidates,
            if ends_soon { 1 } else { LONG },
        );
        let mut open = Vec::new();
        for _ in 0..rng.random_range(1..120) {
            match rng.random_range(0..8) {
                0 if !open.is_empty() => drop(open.swap_remove(rng.random_range(0..open.len()))),
                // One in the backlog may wait for an end that is not here.
                1 if ends_soon && !open.is_empty() => {
                    let one: Handle = open.swap_remove(rng.random_range(0..open.len()));
                    drop(one.wait());
                }
                _ => {
                    let sequence = rng.random_range(0..6);
                    open.push(running.submit(sequence, rng.random(), rng.random_bool(0.3)));
                }
            }
        }
        running.end();
        for handle in open {
            match handle.wait() {
                Ok(answer) => assert!(answer.outputs[0].to_f32()[0] >= 1.0),
                Err(RequestError::Sequence { .. } | RequestError::Broken(_)) => {}
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
    }
}
