//! Streams whose models have outputs of fixed size beside those that grow, on the embedded CPU device.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use lazybatch_engine::{Engine, ModelOptions, Options, Step};
use lazybatch_graph::{Act, At, DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};

/// `head` is set before the loop, `rows` grow in it, `last` is set in each of its passes, `tail` behind
/// it; more nodes follow.
fn model() -> Program {
    let mut b = ProgramBuilder::new("kinds");
    let x = b.sequence_ids("x", 16, 12);
    let head = b.output("head", DType::F32, &[4]);
    let rows = b.output_sequence("rows", DType::F32, &[4]);
    let last = b.output("last", DType::F32, &[4]);
    let tail = b.output("tail", DType::F32, &[4]);
    let after = b.output("after", DType::F32, &[4]);
    let state = b.vector_state("state", DType::F32, &[4], 0.5);
    b.begin_block("start", Repeat::Once);
    let v = b.vec_read("start.read", state);
    b.emit("head.emit", head, v);
    b.begin_block("loop", Repeat::PerInputStep { stride: 1 });
    let v = b.read_input_at("letter", x, At::Step);
    let v = b.embed("embed", v, 12, 4);
    let v = b.unary("tanh", Act::Tanh, v);
    b.vec_write("remember", state, v);
    b.emit("rows.emit", rows, v);
    b.emit("last.emit", last, v);
    b.begin_block("end", Repeat::Once);
    let v = b.vec_read("end.read", state);
    b.emit("tail.emit", tail, v);
    let v = b.dense("more", v, 4, None);
    b.emit("after.emit", after, v);
    b.finish().unwrap()
}

#[test]
fn outputs_of_fixed_size_are_sent_once_as_the_answer_has_them() {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let engine = Engine::builder().device(device);
    let engine = engine.model("kinds", model(), ModelOptions::default());
    let engine = engine.policy("lazy").build().unwrap();
    let letters: Vec<i32> = (0..9).map(|i| (i * 7) % 12).collect();
    let inputs = || vec![Tensor::from_i32(&[letters.len()], &letters)];
    let whole = engine.try_submit("kinds", inputs(), Options::default());
    let whole = whole.unwrap().wait().unwrap().outputs;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.build().unwrap();
    runtime.block_on(async {
        let streams = (0..4).map(|_| {
            let stream = engine.try_submit_stream("kinds", inputs(), Options::default());
            stream.unwrap()
        });
        // Side by side, so that the ends of others are among their steps.
        for mut stream in streams.collect::<Vec<_>>() {
            let mut sent = vec![Vec::new(); whole.len()];
            let mut ended = None;
            while let Some(step) = stream.next().await {
                match step.unwrap() {
                    Step::Rows { output, rows } => sent[output].push(rows),
                    Step::End(answer) => ended = Some(answer.outputs),
                }
            }
            let ended = ended.unwrap();
            for (o, whole) in whole.iter().enumerate() {
                let num = sent[o].len();
                match o {
                    1 => assert!(num > 1, "rows come one by one"),
                    _ => assert_eq!(num, 1, "output {o}"),
                }
                let all: Vec<f32> = sent[o].iter().flat_map(Tensor::to_f32).collect();
                assert_eq!(all, whole.to_f32(), "output {o}");
                assert_eq!(ended[o].to_f32(), whole.to_f32());
            }
        }
    });
    engine.drain_blocking().unwrap();
}
