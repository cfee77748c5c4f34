//! The embedding API on the embedded CPU device: answers, streams, cancellation, refusals, drain,
//! and failures that stay with their launch.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::{Arc, Mutex};

use crate::tiny::model;
use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::driver::Judge;
use lazybatch_engine::{Builder, Engine, ModelOptions, Options, RequestError, Step};
use lazybatch_graph::Tensor;
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_sla::{Nanos, Outcome, Profile};

fn word(seed: i32, len: i32) -> Vec<Tensor> {
    let ids: Vec<i32> = (0..len).map(|i| (seed * 5 + i * 7) % 12).collect();
    vec![Tensor::from_i32(&[ids.len()], &ids)]
}

fn device() -> CpuDevice {
    CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    })
}

fn builder(policy: &str) -> Builder {
    Engine::builder()
        .device(device())
        .model("tiny", model(), ModelOptions::default())
        .policy(policy)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// A judge that can be read while the engine holds it.
fn judge(builder: &Builder) -> Arc<Mutex<Option<Judge>>> {
    let config = builder.core_config(1).unwrap();
    Arc::new(Mutex::new(Some(Judge::new(Checker::new(&config, false)))))
}

struct Watch(Arc<Mutex<Option<Judge>>>);

impl lazybatch_engine::driver::Observer for Watch {
    fn on_event(&mut self, now: lazybatch_sla::Time, event: &lazybatch_engine::core::Event) {
        self.0
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .on_event(now, event);
    }

    fn on_launch(&mut self, now: lazybatch_sla::Time, launch: &lazybatch_sla::Launch) {
        self.0
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .on_launch(now, launch);
    }

    fn on_action(&mut self, now: lazybatch_sla::Time, action: &lazybatch_engine::core::Action) {
        self.0
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .on_action(now, action);
    }
}

#[test]
fn answers_do_not_depend_on_policy_or_company() {
    let mut reference: Vec<Vec<i32>> = Vec::new();
    for policy in ["serial", "graph:1", "greedy", "lazy", "lazy:late-admits"] {
        let builder = builder(policy);
        let verdict = judge(&builder);
        let engine = builder
            .observer(Watch(verdict.clone()), false)
            .build()
            .unwrap();
        let handles: Vec<_> = (0..40)
            .map(|i| {
                engine
                    .try_submit("tiny", word(i, 1 + i % 9), Options::default())
                    .unwrap()
            })
            .collect();
        let answers: Vec<Vec<i32>> = handles
            .into_iter()
            .map(|h| h.wait().unwrap().outputs[0].to_i32())
            .collect();
        assert_eq!(engine.stats().counters.arrivals, 40);
        engine.drain_blocking().unwrap();
        verdict.lock().unwrap().take().unwrap().finish().unwrap();
        if reference.is_empty() {
            assert!(answers.iter().any(|a| a != &answers[0]), "inputs matter");
            reference = answers;
        } else {
            assert_eq!(answers, reference, "{policy}");
        }
    }
}

#[test]
fn a_stream_gives_the_rows_of_the_answer_one_by_one() {
    runtime().block_on(async {
        let engine = builder("lazy").build().unwrap();
        let whole = engine
            .submit("tiny", word(3, 5), Options::default())
            .await
            .unwrap();
        let mut stream = engine
            .submit_stream("tiny", word(3, 5), Options::default())
            .await
            .unwrap();
        let mut rows = Vec::new();
        let mut ended = false;
        while let Some(step) = stream.next().await {
            match step.unwrap() {
                Step::Rows { output, rows: new } => {
                    assert!(!ended);
                    assert_eq!((output, new.dims.len()), (0, 1));
                    rows.extend(new.to_i32());
                }
                Step::End(answer) => {
                    ended = true;
                    assert_eq!(answer.outputs[0].to_i32(), rows);
                }
            }
        }
        assert!(ended);
        assert_eq!(rows, whole.outputs[0].to_i32());
        engine.drain().await.unwrap();
    });
}

#[test]
fn step_limits_and_sla_targets_are_those_of_the_request() {
    let engine = builder("lazy").build().unwrap();
    let options = Options {
        max_steps: Some(1),
        sla: Some(Nanos(1)),
        ..Options::default()
    };
    let answer = engine
        .try_submit("tiny", word(0, 4), options)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(answer.outputs[0].num_elems(), 1);
    assert_eq!(
        answer.outcome,
        Outcome::Violated,
        "a nanosecond is not enough"
    );
    let free = engine
        .try_submit("tiny", word(0, 4), Options::default())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(free.outcome, Outcome::Met, "no target is always met");
    assert!(
        free.first_launch
            .is_some_and(|t| t >= free.arrival && t <= free.finish)
    );
}

#[test]
fn bad_requests_are_refused_at_the_edge_and_disturb_nobody() {
    let engine = builder("lazy").build().unwrap();
    let good = engine
        .try_submit("tiny", word(1, 6), Options::default())
        .unwrap();
    let refuse = |model: &str, inputs: Vec<Tensor>, needle: &str| {
        let Err(error) = engine.try_submit(model, inputs, Options::default()) else {
            panic!("accepted what should be refused with {needle:?}")
        };
        assert!(
            error.to_string().contains(needle),
            "{error} lacks {needle:?}"
        );
    };
    refuse(
        "huge",
        word(1, 1),
        "unknown model \"huge\": expected one of tiny",
    );
    refuse(
        "tiny",
        vec![],
        "expected 1 tensors (letters), got 0 tensors",
    );
    refuse(
        "tiny",
        vec![Tensor::from_f32(&[1], &[1.0])],
        "expected dtype i32, got dtype f32",
    );
    refuse(
        "tiny",
        vec![Tensor::from_i32(&[1, 1], &[1])],
        "expected shape [len], got shape [1, 1]",
    );
    refuse("tiny", vec![Tensor::from_i32(&[0], &[])], "an empty tensor");
    refuse(
        "tiny",
        vec![Tensor::from_i32(&[17], &[1; 17])],
        "a length of at most 16, got length 17",
    );
    refuse(
        "tiny",
        vec![Tensor::from_i32(&[1], &[12])],
        "ids in 0..12, got id 12",
    );
    assert!(good.wait().is_ok());
    assert_eq!(engine.stats().counters.arrivals, 1);
}

#[test]
fn a_full_queue_refuses_at_once_and_submit_waits() {
    // A window longer than the test keeps everyone waiting.
    let engine = builder("graph:3600000").max_queue(3).build().unwrap();
    let held: Vec<_> = (0..3)
        .map(|i| {
            engine
                .try_submit("tiny", word(i, 2), Options::default())
                .unwrap()
        })
        .collect();
    let refused = engine.try_submit("tiny", word(9, 2), Options::default());
    assert!(matches!(
        refused,
        Err(RequestError::QueueFull { max_queue: 3 })
    ));
    let refused = engine.try_submit_stream("tiny", word(9, 2), Options::default());
    assert!(matches!(
        refused.err(),
        Some(RequestError::QueueFull { max_queue: 3 })
    ));
    assert!(held.iter().all(|h| !h.is_admitted()), "their turn is far");
    runtime().block_on(async {
        let waiting = engine.submit("tiny", word(9, 2), Options::default());
        let late = tokio::time::timeout(std::time::Duration::from_millis(20), waiting).await;
        assert!(late.is_err(), "it waits for room");
    });
    drop(held);
}

#[test]
fn a_full_level_refuses_its_own_and_names_itself() {
    let options = ModelOptions {
        max_queue: Some(4),
        max_queue_by_level: [(1, 2), (2, 3)].into(),
        ..ModelOptions::default()
    };
    // A window longer than the test keeps everyone waiting.
    let engine = Engine::builder()
        .device(device())
        .model("tiny", model(), options)
        .policy("graph:3600000")
        .build()
        .unwrap();
    let submit = |priority| {
        let options = Options {
            priority,
            ..Options::default()
        };
        engine.try_submit("tiny", word(1, 2), options)
    };
    let full = |level, max_queue| RequestError::LevelFull { level, max_queue };
    let mut held = vec![submit(1).unwrap(), submit(1).unwrap()];
    let refused = submit(1).err().unwrap();
    assert_eq!(refused, full(1, 2));
    assert_eq!(
        refused.to_string(),
        "the queue of 2 requests of priority level 1 is full"
    );
    held.push(submit(2).unwrap());
    held.push(submit(2).unwrap());
    // Its level has room, its model has none; a level without a bound has the model's.
    for level in [2, 0] {
        let refused = submit(level).err();
        assert_eq!(refused, Some(RequestError::QueueFull { max_queue: 4 }));
    }
    // Both are full: the level is named.
    assert_eq!(submit(1).err(), Some(full(1, 2)));
    // A place that nobody had use for was given back.
    drop(held.remove(0));
    let again = loop {
        match submit(1) {
            Ok(handle) => break handle,
            Err(error) => assert!(matches!(
                error,
                RequestError::LevelFull { .. } | RequestError::QueueFull { .. }
            )),
        }
        std::thread::yield_now();
    };
    assert_eq!(submit(1).err(), Some(full(1, 2)));
    drop((again, held));
}

#[test]
fn who_has_an_answer_was_admitted() {
    let engine = builder("lazy").build().unwrap();
    runtime().block_on(async {
        let mut handle = engine
            .try_submit("tiny", word(1, 4), Options::default())
            .unwrap();
        (&mut handle).await.unwrap();
        assert!(handle.is_admitted());
        let mut steps = engine
            .try_submit_stream("tiny", word(1, 4), Options::default())
            .unwrap();
        assert!(matches!(steps.next().await, Some(Ok(Step::Rows { .. }))));
        assert!(steps.is_admitted());
    });
}

#[test]
fn dropping_a_handle_cancels_and_the_rest_goes_on() {
    let builder = builder("lazy");
    let verdict = judge(&builder);
    let engine = builder
        .observer(Watch(verdict.clone()), false)
        .build()
        .unwrap();
    let mut kept = Vec::new();
    for i in 0..60 {
        let handle = engine
            .try_submit("tiny", word(i, 8), Options::default())
            .unwrap();
        if i % 3 != 0 {
            kept.push(handle);
        }
    }
    let num_kept = kept.len();
    let completed = kept
        .into_iter()
        .filter(|_| true)
        .map(|h| h.wait())
        .filter(Result::is_ok)
        .count();
    assert_eq!(completed, num_kept);
    let stats = engine.stats();
    engine.drain_blocking().unwrap();
    verdict.lock().unwrap().take().unwrap().finish().unwrap();
    assert!(stats.accounts[0].total() >= num_kept as u64);
}

#[test]
fn drain_finishes_what_was_accepted_and_dropping_the_engine_closes_it() {
    let engine = builder("lazy").build().unwrap();
    let handles: Vec<_> = (0..20)
        .map(|i| {
            engine
                .try_submit("tiny", word(i, 5), Options::default())
                .unwrap()
        })
        .collect();
    engine.drain_blocking().unwrap();
    assert!(handles.into_iter().all(|h| h.wait().is_ok()));

    let engine = builder("graph:3600000").build().unwrap();
    let waiting = engine
        .try_submit("tiny", word(1, 5), Options::default())
        .unwrap();
    drop(engine);
    assert_eq!(waiting.wait().unwrap_err(), RequestError::Closed);
}

#[test]
fn an_injected_failure_takes_its_launch_and_nobody_else() {
    let mut broken = device();
    broken.fail_next_launches(1);
    let engine = Engine::builder()
        .device(broken)
        .model("tiny", model(), ModelOptions::default())
        .policy("serial")
        .build()
        .unwrap();
    let handles: Vec<_> = (0..5)
        .map(|i| {
            engine
                .try_submit("tiny", word(i, 3), Options::default())
                .unwrap()
        })
        .collect();
    let results: Vec<_> = handles.into_iter().map(|h| h.wait()).collect();
    assert!(matches!(&results[0], Err(RequestError::Failed(cause)) if !cause.is_empty()));
    assert!(results[1..].iter().all(Result::is_ok));
    let account = &engine.stats().accounts[0];
    assert_eq!((account.count(Outcome::Failed), account.total()), (1, 5));
}

#[test]
fn options_that_do_not_fit_the_program_are_refused_when_building() {
    let segments = Some(vec![vec![0..1]]);
    let options = ModelOptions {
        segments,
        ..ModelOptions::default()
    };
    let built = Engine::builder()
        .device(device())
        .model("tiny", model(), options)
        .build();
    let Err(error) = built else {
        panic!("accepted")
    };
    assert!(
        error.to_string().contains("expected segments of 2 blocks"),
        "{error}"
    );
    // Of a name that no profile and no journal has, whatever the options' own profile calls the model.
    let text = r#"{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
        "models":[{"name":"named","max_batch":4,"blocks":[
        {"name":"a","repeat":"per_input_step","nodes":[{"name":"n","num_nodes":3,"latency_us":[[1,1.0]]}]},
        {"name":"b","repeat":"until_stop","nodes":[{"name":"n","num_nodes":8,"latency_us":[[1,1.0]]}]}]}]}"#;
    let profile = Profile::parse("test", text).unwrap();
    let measured = ModelOptions {
        profile: profile.models.into_iter().next(),
        ..ModelOptions::default()
    };
    let unnamed = Engine::builder()
        .device(device())
        .model("", model(), measured);
    let error = unnamed.core_config(1).unwrap_err();
    assert!(
        error.to_string().contains("a name, not empty, without"),
        "{error}"
    );
    let Err(error) = builder("best").build() else {
        panic!("accepted")
    };
    assert!(
        error
            .to_string()
            .contains("policy \"best\": expected one of serial"),
        "{error}"
    );
}

/// An engine's model with examples to measure it by.
fn with_examples(examples: Vec<Vec<Tensor>>, options: ModelOptions) -> Builder {
    let options = ModelOptions {
        examples,
        max_batch: Some(4),
        ..options
    };
    Engine::builder()
        .device(device())
        .model("tiny", model(), options)
}

#[test]
fn latencies_are_measured_by_examples() {
    let examples = || (1..6).map(|len| word(len, len)).collect();
    let alone = |builder: &Builder| {
        let spec = builder.core_config(1).unwrap().models.remove(0);
        let num_segments: Vec<usize> = spec.blocks.iter().map(|b| b.segments.len()).collect();
        let took = |batch| spec.table.pass(1, 0, batch, u64::from(batch));
        (num_segments, took(1), took(4))
    };
    // A microsecond for each node, in any batch.
    let told = with_examples(Vec::new(), ModelOptions::default());
    let (num_nodes, one, four) = alone(&told.measure().unwrap());
    assert_eq!((one, four), (Nanos(1_000 * num_nodes[1] as u64), one));

    let measured = with_examples(examples(), ModelOptions::default());
    let measured = measured.measure().unwrap();
    let (num_segments, one, four) = alone(&measured);
    // Nodes of some microseconds make one segment of a block.
    assert!(num_segments.iter().sum::<usize>() < num_nodes.iter().sum());
    assert!(one > Nanos::ZERO && four >= one);

    let segments = Some(vec![vec![0..2, 2..3], vec![0..8]]);
    let options = ModelOptions {
        segments,
        ..ModelOptions::default()
    };
    let cut = with_examples(examples(), options).measure().unwrap();
    assert_eq!(alone(&cut).0, [2, 1]);

    let answer = |builder: Builder| {
        let engine = builder.build().unwrap();
        let handle = engine.try_submit("tiny", word(3, 5), Options::default());
        handle.unwrap().wait().unwrap().outputs[0].to_i32()
    };
    let plain = with_examples(Vec::new(), ModelOptions::default());
    assert_eq!(answer(measured), answer(plain));
}

#[test]
fn examples_that_cannot_be_measured_are_refused() {
    let wrong = vec![word(1, 2), vec![Tensor::from_f32(&[1], &[0.5])]];
    let refused = with_examples(wrong, ModelOptions::default()).build();
    let refused = refused.err().unwrap().to_string();
    assert!(
        refused.starts_with("model tiny: input letters: "),
        "{refused}"
    );

    let engine = builder("greedy").build().unwrap();
    let options = ModelOptions {
        examples: vec![word(1, 2)],
        ..ModelOptions::default()
    };
    let refused = engine.load("late", model(), options).err().unwrap();
    let refused = refused.to_string();
    assert!(
        refused.starts_with("model late: examples: expected a profile (")
            && refused.ends_with("got 1 examples and no profile"),
        "{refused}"
    );
}

#[test]
fn what_cannot_be_opened_while_models_are_measured_is_an_error() {
    use lazybatch_graph::{DType, ProgramBuilder, Repeat};
    let mut b = ProgramBuilder::new("pair");
    let (x, y) = (
        b.input("x", DType::F32, &[2]),
        b.input("y", DType::F32, &[2]),
    );
    let sum = b.output("sum", DType::F32, &[2]);
    b.begin_block("all", Repeat::Once);
    let (x, y) = (b.read_input("x.read", x), b.read_input("y.read", y));
    let added = b.add("add", x, y);
    b.emit("emit", sum, added);
    let program = b.finish().unwrap();
    let of = |samples: usize| Tensor::from_f32(&[samples, 2], &vec![0.5; 2 * samples]);
    // The second cannot be opened, beside others that are.
    let examples = vec![vec![of(1), of(1)], vec![of(1), of(2)]];
    let options = ModelOptions {
        examples,
        ..ModelOptions::default()
    };
    let builder = Engine::builder().device(device());
    let refused = builder.model("pair", program, options).build();
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("input y: "), "{refused}");
}

#[test]
fn models_of_which_few_can_be_open_are_measured() {
    for max_open in [1, 2, 3] {
        let device = CpuDevice::new(CpuOptions {
            threads: 1,
            max_open,
            ..CpuOptions::default()
        });
        let options = ModelOptions {
            examples: (1..6).map(|len| word(len, len)).collect(),
            max_batch: Some(4),
            ..ModelOptions::default()
        };
        let model = cached_model();
        let engine = Engine::builder().device(device);
        let engine = engine.model("cached", model, options).build().unwrap();
        let handles = (0..6).map(|i| {
            let handle = engine.try_submit("cached", word(i, 3), Options::default());
            handle.unwrap()
        });
        for handle in handles.collect::<Vec<_>>() {
            handle.wait().unwrap();
        }
    }
}

/// Whose requests hold pages of a pool.
fn cached_model() -> lazybatch_graph::Program {
    use lazybatch_graph::{DType, ProgramBuilder, Repeat};
    let mut b = ProgramBuilder::new("cached");
    let letters = b.sequence_ids("letters", 16, 12);
    let ids = b.output_sequence("ids", DType::I32, &[]);
    let token = b.vector_state("token", DType::I32, &[], 1.0);
    b.begin_block("encoder", Repeat::Once);
    let x = b.read_input("letter", letters);
    let x = b.embed("embed", x, 12, 8);
    let memory = b.cross_memory("cross", x, 8, 16);
    b.begin_block("decoder", Repeat::UntilStop { max: 4 });
    let last = b.vec_read("last", token);
    let x = b.embed("embed_out", last, 12, 8);
    let x = b.cross_attention("attention", x, 2, memory, None);
    let logits = b.dense("logits", x, 12, None);
    let next = b.arg_max("next", logits);
    b.vec_write("remember", token, next);
    b.emit("emit", ids, next);
    b.stop("stop", next, 2);
    b.finish().unwrap()
}

#[test]
fn batches_are_bounded() {
    for most in [65_537, u32::MAX] {
        let options = ModelOptions {
            max_batch: Some(most),
            ..ModelOptions::default()
        };
        let builder = Engine::builder().device(device());
        let refused = builder.model("tiny", model(), options).build();
        let refused = refused.err().unwrap().to_string();
        let expected = format!("model tiny: max_batch: expected at most 65536, got {most}");
        assert_eq!(refused, expected);
    }
}

#[test]
fn an_engine_explains_its_requests() {
    let engine = builder("adaptive").explain(8).build().unwrap();
    let handles: Vec<_> = (0..6)
        .map(|i| {
            engine
                .try_submit("tiny", word(i, 4), Options::default())
                .unwrap()
        })
        .collect();
    let ids: Vec<_> = handles.iter().map(|h| h.id()).collect();
    for handle in handles {
        handle.wait().unwrap();
    }
    for id in ids {
        let why = engine.explain(id).unwrap();
        assert!(why.ended.is_some() && why.launches > 0, "{why}");
    }
    engine.drain_blocking().unwrap();
    let silent = builder("adaptive").build().unwrap();
    let handle = silent
        .try_submit("tiny", word(1, 4), Options::default())
        .unwrap();
    let id = handle.id();
    handle.wait().unwrap();
    assert_eq!(silent.explain(id), None);
}

#[test]
fn held_requests_go_together_with_the_next_or_when_let_go() {
    let engine = builder("greedy").build().unwrap();
    let model = engine
        .load("held", model(), ModelOptions::default())
        .unwrap();
    let hold = |seed| {
        let held = model.try_submit_held(word(seed, 3), Options::default());
        held.unwrap()
    };
    // A driver that works takes them in by itself: they are held back from one that waits.
    let (first, held) = loop {
        let (first, held) = hold(1);
        if held.is_some() {
            break (first, held);
        }
        first.wait().unwrap();
    };
    let arrived = || model.stats().counters.launches;
    let before = arrived();
    let (second, none) = hold(2);
    assert!(none.is_none(), "the first one's caller lets them go");
    assert!(!first.is_admitted() && !second.is_admitted() && arrived() == before);
    drop(held);
    let alone = |seed| {
        model
            .try_submit(word(seed, 3), Options::default())
            .unwrap()
            .wait()
    };
    let ids = |answer: Result<lazybatch_engine::Answer, RequestError>| {
        answer.unwrap().outputs[0].to_i32()
    };
    assert_eq!(ids(first.wait()), ids(alone(1)));
    assert_eq!(ids(second.wait()), ids(alone(2)));
    // One that is not held takes along those before it.
    let (third, held) = hold(3);
    assert!(alone(4).is_ok() && third.wait().is_ok());
    drop(held);
    // A client that leaves a held request takes it back.
    let (left, held) = hold(5);
    drop(left);
    drop(held);
    // Nobody is forgotten when the engine ends.
    let (last, held) = hold(6);
    drop(engine);
    assert_eq!(last.wait().unwrap_err(), RequestError::Closed);
    drop(held);
    assert_eq!(
        model.try_submit_held(word(7, 3), Options::default()).err(),
        Some(RequestError::Closed)
    );
}
