//! State that requests of one sequence hand on, on the embedded CPU device.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lazybatch_engine::{Engine, Handle, ModelOptions, Options, RequestError, SequenceOptions};
use lazybatch_graph::{Act, Bin, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Device, Error, Plan, Wrapper};
use lazybatch_sla::{Launch, ModelId, Nanos, Time};

const FEATURES: usize = 24;
const HIDDEN: usize = 16;

/// `h' = tanh(x W + h U)`, `y = h' V`; `h'` is the next request's `h`.
fn model() -> Program {
    let mut b = ProgramBuilder::new("stateful");
    let h_in = b.input("h", DType::F32, &[HIDDEN]);
    let x_in = b.input("x", DType::F32, &[FEATURES]);
    let y_out = b.output("y", DType::F32, &[4]);
    let h_out = b.output("h_next", DType::F32, &[HIDDEN]);
    b.carry(h_out, h_in);
    b.begin_block("step", Repeat::Once);
    let (x, h) = (b.read_input("x.read", x_in), b.read_input("h.read", h_in));
    let (wx, uh) = (b.dense("w", x, HIDDEN, None), b.dense("u", h, HIDDEN, None));
    let sum = b.binary("sum", Bin::Add, wx, uh);
    let h = b.unary("tanh", Act::Tanh, sum);
    let y = b.dense("v", h, 4, None);
    b.emit("y.emit", y_out, y);
    b.emit("h.emit", h_out, h);
    b.finish().unwrap()
}

fn engine(policy: &str, sequences: SequenceOptions) -> Engine {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    Engine::builder()
        .device(device)
        .model("stateful", model(), ModelOptions::default())
        .policy(policy)
        .sequences(sequences)
        .build()
        .unwrap()
}

/// The chunk `i` of sequence `s`.
fn chunk(s: u64, i: u64) -> Tensor {
    let value = |j: usize| ((s * 31 + i * 7 + j as u64 * 13) % 17) as f32 / 8.0 - 1.0;
    let values: Vec<f32> = (0..FEATURES).map(value).collect();
    Tensor::from_f32(&[1, FEATURES], &values)
}

fn options(sequence: u64, start: bool, end: bool) -> Options {
    Options {
        sequence: Some(sequence),
        sequence_start: start,
        sequence_end: end,
        ..Options::default()
    }
}

fn submit(engine: &Engine, s: u64, i: u64, num: u64) -> Handle {
    let options = options(s, i == 0, i + 1 == num);
    engine
        .try_submit("stateful", vec![chunk(s, i)], options)
        .unwrap()
}

/// The answers of a sequence, its state handed on by the client.
fn by_hand(engine: &Engine, s: u64, num: u64) -> Vec<Vec<f32>> {
    let mut h = Tensor::from_f32(&[1, HIDDEN], &[0.0; HIDDEN]);
    let step = |i| {
        let inputs = vec![h.clone(), chunk(s, i)];
        let handle = engine.try_submit("stateful", inputs, Options::default());
        let outputs = handle.unwrap().wait().unwrap().outputs;
        h = outputs[1].clone();
        outputs[0].to_f32()
    };
    (0..num).map(step).collect()
}

#[test]
fn the_state_goes_on_whatever_runs_between() {
    const SEQUENCES: u64 = 9;
    const CHUNKS: u64 = 6;
    let alone = engine("serial", SequenceOptions::default());
    let want: Vec<_> = (0..SEQUENCES).map(|s| by_hand(&alone, s, CHUNKS)).collect();
    assert_ne!(want[0][0], want[0][1], "the state matters");
    for policy in ["serial", "greedy", "lazy", "adaptive"] {
        let engine = engine(policy, SequenceOptions::default());
        // All at once, so that they run as batches of different sequences.
        let handles: Vec<Vec<Handle>> = (0..SEQUENCES)
            .map(|s| (0..CHUNKS).map(|i| submit(&engine, s, i, CHUNKS)).collect())
            .collect();
        let got: Vec<Vec<Vec<f32>>> = handles
            .into_iter()
            .map(|of| {
                let answers = of.into_iter().map(|h| h.wait().unwrap());
                answers.map(|a| a.outputs[0].to_f32()).collect()
            })
            .collect();
        assert_eq!(got, want, "{policy}");
    }
}

#[test]
fn a_state_may_be_brought_along() {
    let engine = engine("greedy", SequenceOptions::default());
    let h = Tensor::from_f32(&[1, HIDDEN], &[0.5; HIDDEN]);
    let inputs = vec![h.clone(), chunk(1, 0)];
    let first = engine
        .try_submit("stateful", inputs.clone(), options(1, true, false))
        .unwrap();
    let second = submit(&engine, 1, 1, 3);
    let alone = engine.try_submit("stateful", inputs, Options::default());
    let alone = alone.unwrap().wait().unwrap().outputs;
    assert_eq!(first.wait().unwrap().outputs[0].to_f32(), alone[0].to_f32());
    let inputs = vec![alone[1].clone(), chunk(1, 1)];
    let next = engine.try_submit("stateful", inputs, Options::default());
    let next = next.unwrap().wait().unwrap().outputs;
    assert_eq!(second.wait().unwrap().outputs[0].to_f32(), next[0].to_f32());
}

#[test]
fn sequences_begin_with_a_start_and_end_with_an_end() {
    let engine = engine("greedy", SequenceOptions::default());
    let without_start = submit(&engine, 3, 1, 9).wait().unwrap_err();
    assert_eq!(
        without_start.to_string(),
        "sequence 3: expected the start of a sequence, for none of that id is open"
    );
    let (first, last) = (submit(&engine, 3, 0, 2), submit(&engine, 3, 1, 2));
    let behind_the_end = submit(&engine, 3, 1, 9).wait().unwrap_err();
    assert!(
        matches!(&behind_the_end, RequestError::Sequence { sequence: 3, .. }),
        "{behind_the_end}"
    );
    let (first, last) = (first.wait().unwrap(), last.wait().unwrap());
    assert_ne!(first.outputs[0].to_f32(), last.outputs[0].to_f32());
}

#[test]
fn the_number_of_open_sequences_is_bounded() {
    let bounds = SequenceOptions {
        most: 2,
        ..SequenceOptions::default()
    };
    let engine = engine("greedy", bounds);
    let kept = [submit(&engine, 1, 0, 9), submit(&engine, 2, 0, 9)];
    let refused = submit(&engine, 3, 0, 9).wait().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "sequence 3: expected at most 2 open sequences"
    );
    for handle in kept {
        handle.wait().unwrap();
    }
    submit(&engine, 1, 1, 2).wait().unwrap();
    submit(&engine, 3, 0, 9).wait().unwrap();
}

/// Whether the chunk failed for what was before it in its sequence; else it must be `want`.
fn is_broken(handle: Handle, sequence: u64, want: &[f32]) -> bool {
    match handle.wait() {
        Err(RequestError::Broken(cause)) => {
            let named = format!("before it in sequence {sequence}, did not complete");
            assert!(cause.contains(&named), "{cause}");
            true
        }
        // What was before it had ended before it could be cancelled.
        Ok(answer) => {
            assert_eq!(answer.outputs[0].to_f32(), want);
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_gap_breaks_the_sequence_and_nothing_else() {
    for policy in ["serial", "greedy", "lazy", "adaptive"] {
        let engine = engine(policy, SequenceOptions::default());
        let want: Vec<_> = (0..9).map(|s| by_hand(&engine, s, 4)).collect();
        let mut broken = 0;
        for lost in [0, 1, 2] {
            // Something to wait behind, so that the lost chunk has not begun when it is cancelled.
            let busy: Vec<Handle> = (100..700).map(|s| submit(&engine, s, 0, 1)).collect();
            let mut chunks: Vec<(u64, u64, Handle)> = Vec::new();
            // Chunks of all sequences side by side, so that they run as batches.
            for i in 0..4 {
                chunks.extend((0..9).map(|s| (s, i, submit(&engine, s, i, 4))));
                if i == lost {
                    chunks.retain(|c| (c.0, c.1) != (1, lost));
                }
            }
            for (s, i, handle) in chunks {
                let want = &want[s as usize][i as usize];
                let is_broken = is_broken(handle, s, want);
                assert!(!is_broken || s == 1 && i > lost, "{policy}: {i} of {s}");
                broken += u32::from(is_broken);
            }
            for handle in busy {
                handle.wait().unwrap();
            }
        }
        assert!(broken > 0, "{policy}: all were over before they were lost");
        // Started again, it goes on.
        let again = (0..4).map(|i| submit(&engine, 1, i, 4).wait().unwrap().outputs[0].to_f32());
        assert_eq!(again.collect::<Vec<_>>(), want[1], "{policy}");
    }
}

#[test]
fn chunks_have_as_many_samples_as_the_start() {
    let engine = engine("greedy", SequenceOptions::default());
    let two = Tensor::from_f32(&[2, FEATURES], &[0.25; 2 * FEATURES]);
    let first = engine.try_submit("stateful", vec![two.clone()], options(1, true, false));
    let other = submit(&engine, 2, 0, 9);
    first.unwrap().wait().unwrap();
    let refused = submit(&engine, 1, 1, 9).wait().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "sequence 1: expected 2 samples, as at its start, got 1"
    );
    other.wait().unwrap();
    let of_two = |start| {
        let options = options(1, start, false);
        let handle = engine.try_submit("stateful", vec![two.clone()], options);
        handle.unwrap().wait()
    };
    let behind = of_two(false).unwrap_err().to_string();
    assert!(behind.contains(&refused.to_string()), "{behind}");
    assert_eq!(of_two(true).unwrap().outputs[0].dims, [2, 4]);
    assert_eq!(of_two(false).unwrap().outputs[0].dims, [2, 4]);
}

/// Hands in a request of sequence 1 that is refused, whoever refuses it; the cause.
type Refuses<'a> = &'a dyn Fn(Options) -> String;

#[test]
fn a_request_that_is_refused_breaks_its_sequence_and_nothing_else() {
    let engine = engine("greedy", SequenceOptions::default());
    let model = engine
        .load("own", model(), ModelOptions::default())
        .unwrap();
    let submit = |s, i, start, end| {
        let handle = model.try_submit(vec![chunk(s, i)], options(s, start, end));
        handle.unwrap().wait().map(|a| a.outputs[0].to_f32())
    };
    let want = by_hand(&engine, 1, 2);
    let wrong = |o: Options| {
        let inputs = vec![Tensor::from_f32(&[1, 3], &[0.0; 3])];
        model.try_submit(inputs, o).err().unwrap().to_string()
    };
    let class = |o: Options| {
        let class = Some("nobody's".into());
        let options = Options { class, ..o };
        let refused = model.try_submit_stream(vec![chunk(1, 1)], options);
        refused.err().unwrap().to_string()
    };
    let held = |o: Options| {
        let refused = model.try_submit_held(Vec::new(), o);
        refused.err().unwrap().to_string()
    };
    let outside = |o: Options| {
        model.refused(&o, "no room for it");
        "no room for it".to_owned()
    };
    let ways: [Refuses<'_>; 4] = [&wrong, &class, &held, &outside];
    for refuses in ways {
        for starts in [false, true] {
            submit(1, 0, true, false).unwrap();
            submit(2, 0, true, false).unwrap();
            let cause = refuses(options(1, starts, false));
            for i in 1..4 {
                let told = submit(1, i, false, false).unwrap_err();
                let expected = format!("a request before it in sequence 1 was refused ({cause})");
                assert!(matches!(told, RequestError::Broken(_)), "{told}");
                assert!(told.to_string().contains(&expected), "{told}");
            }
            submit(2, 1, false, true).unwrap();
            // Anew, and without a place in a sequence, it is as if nothing had been.
            assert_eq!(submit(1, 0, true, false).unwrap(), want[0]);
            refuses(Options::default());
            assert_eq!(submit(1, 1, false, true).unwrap(), want[1]);
        }
    }
    // Behind the start of one that is not open there is none.
    wrong(options(1, true, false));
    let told = submit(1, 1, false, false).unwrap_err().to_string();
    assert!(told.contains("for none of that id is open"), "{told}");
}

#[test]
fn a_request_that_finds_no_room_breaks_its_sequence() {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let engine = Engine::builder().device(device);
    let engine = engine.model("stateful", model(), ModelOptions::default());
    let engine = engine.policy("serial").max_queue(1).build().unwrap();
    let mut refused = None;
    // Chunks of one sequence wait for one another: soon there is no room.
    let mut taken = Vec::new();
    for i in 0..100_000 {
        let handle = engine.try_submit("stateful", vec![chunk(1, i)], options(1, i == 0, false));
        match handle {
            Ok(handle) => taken.push(handle),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert!(matches!(refused, Some(RequestError::QueueFull { .. })));
    for handle in taken {
        handle.wait().unwrap();
    }
    let told = submit(&engine, 1, 1, 9).wait().unwrap_err().to_string();
    assert!(told.contains("the queue of 1 requests is full"), "{told}");
    submit(&engine, 1, 0, 9).wait().unwrap();
    submit(&engine, 1, 1, 9).wait().unwrap();
}

#[test]
fn an_input_without_dimensions_is_refused() {
    let engine = engine("greedy", SequenceOptions::default());
    let scalar = Tensor::from_f32(&[], &[1.0]);
    let refused = engine.try_submit("stateful", vec![scalar], options(1, true, true));
    let refused = refused.err().unwrap();
    assert!(matches!(refused, RequestError::Input(_)), "{refused}");
}

/// `h' = tanh(h U)`, three times at the most; `h'` is the next request's `h`.
fn looping() -> Program {
    let mut b = ProgramBuilder::new("looping");
    let h_in = b.input("h", DType::F32, &[HIDDEN]);
    let h_out = b.output("h_next", DType::F32, &[HIDDEN]);
    b.carry(h_out, h_in);
    b.begin_block("step", Repeat::UntilStop { max: 3 });
    let h = b.read_input("h.read", h_in);
    let uh = b.dense("u", h, HIDDEN, None);
    let h = b.unary("tanh", Act::Tanh, uh);
    let logits = b.dense("v", h, 4, None);
    let next = b.arg_max("next", logits);
    b.emit("h.emit", h_out, h);
    b.stop("stop", next, 9);
    b.finish().unwrap()
}

#[test]
fn a_request_that_leaves_no_state_breaks_its_sequence_alone() {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let engine = Engine::builder()
        .device(device)
        .model("looping", looping(), ModelOptions::default())
        .policy("greedy")
        .build()
        .unwrap();
    let submit = |sequence, start, max_steps| {
        let options = Options {
            max_steps,
            ..options(sequence, start, false)
        };
        engine.try_submit("looping", Vec::new(), options).unwrap()
    };
    let handles = [
        submit(7, true, Some(0)),
        submit(8, true, None),
        submit(7, false, None),
        submit(8, false, None),
    ];
    let [empty, other, behind, next] = handles.map(Handle::wait);
    assert_eq!(empty.unwrap().outputs[0].num_elems(), 0);
    assert!(other.is_ok() && next.is_ok());
    match behind {
        Err(RequestError::Broken(cause)) => {
            assert!(cause.contains("ended without output h_next"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_leaves_while_it_waits_for_room_breaks_its_sequence() {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let engine = Engine::builder().device(device);
    let engine = engine.model("stateful", model(), ModelOptions::default());
    let engine = engine.policy("serial").max_queue(1).build().unwrap();
    let mut waited = 0;
    for s in 100..1100 {
        let step = |i| engine.submit("stateful", vec![chunk(s, i)], options(s, i == 0, false));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            step(0).await.unwrap();
            // Those of another sequence are in its way.
            let mut others = Vec::new();
            while let Ok(handle) = engine.try_submit(
                "stateful",
                vec![chunk(1, 0)],
                options(1, others.is_empty(), false),
            ) {
                others.push(handle);
            }
            let mut leaves = Box::pin(step(1));
            let is_there = std::future::poll_fn(|cx| {
                let polled = leaves.as_mut().poll(cx);
                std::task::Poll::Ready(polled.is_ready())
            });
            let is_there = is_there.await;
            drop(leaves);
            let next = step(2).await;
            if !is_there {
                let told = next.unwrap_err().to_string();
                waited += u32::from(told.contains("cancelled before it was taken in"));
            }
        });
        if waited > 3 {
            break;
        }
    }
    assert!(waited > 0, "nobody had to wait");
}

/// Holds launches of the second model until it is told of each.
struct Held {
    inner: CpuDevice,
    is_held: Sender<()>,
    goes_on: Receiver<()>,
}

impl Wrapper for Held {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.inner
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        if launch.model == ModelId(1) {
            let _ = self.is_held.send(());
            let _ = self.goes_on.recv();
        }
        self.inner.enqueue(now, plan, launch)
    }
}

/// Idle is who hands nothing in, not whose request the driver has no time for.
#[test]
fn a_launch_of_another_model_ends_no_sequence_whose_next_request_came_in_time() {
    const IDLE: Nanos = Nanos::from_ms(1000);
    let (is_held, held) = channel();
    let (go_on, goes_on) = channel();
    let device = Held {
        inner: CpuDevice::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        }),
        is_held,
        goes_on,
    };
    let engine = Engine::builder()
        .device(device)
        .model("stateful", model(), ModelOptions::default())
        .model("other", model(), ModelOptions::default())
        .sequences(SequenceOptions {
            idle: IDLE,
            ..SequenceOptions::default()
        })
        .build()
        .unwrap();
    submit(&engine, 1, 0, 3).wait().unwrap();
    let h = Tensor::from_f32(&[1, HIDDEN], &[0.0; HIDDEN]);
    let other = engine.try_submit("other", vec![h, chunk(2, 0)], Options::default());
    held.recv().unwrap();
    let next = submit(&engine, 1, 1, 3);
    // Longer than it may be idle.
    let (_nobody, never) = channel::<()>();
    let waited = never.recv_timeout(Duration::from_nanos(IDLE.0) * 5 / 4);
    assert!(waited.is_err());
    // Its other launches are not held.
    drop(held);
    drop(go_on);
    next.wait().unwrap();
    other.unwrap().wait().unwrap();
    submit(&engine, 1, 2, 3).wait().unwrap();
}
