//! Memory of requests: a stated bound, a limit that refuses beyond it, and nothing lost within.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use lazybatch_engine::{BuildError, Builder, Engine, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, Program, ProgramBuilder, Repeat, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::{LatencyTable, Nanos, Profile, segments_of};

const MAX_LEN: usize = 32;

/// Attention over what came so far, for each position.
fn model() -> Program {
    let mut b = ProgramBuilder::new("cache").with_seed(7);
    let x = b.sequence("x", DType::F32, &[8], MAX_LEN);
    let y = b.output_sequence("y", DType::F32, &[8]);
    b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
    let v = b.read_input("x", x);
    let v = b.cached_self_attention("self", v, 2, MAX_LEN, Some(v));
    b.emit("emit", y, v);
    b.finish().unwrap()
}

fn input(seed: usize, len: usize) -> Vec<Tensor> {
    let data: Vec<f32> = (0..len * 8)
        .map(|i| ((i * 7 + seed * 3) % 11) as f32 / 11.0)
        .collect();
    vec![Tensor::from_f32(&[len, 8], &data)]
}

fn builder(policy: &str, max_open: usize) -> Builder {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        max_open,
        ..CpuOptions::default()
    });
    Engine::builder()
        .device(device)
        .model("m", model(), ModelOptions::default())
        .policy(policy)
}

fn answers(engine: &Engine, num: usize) -> Vec<Vec<f32>> {
    let handles: Vec<_> = (0..num)
        .map(|i| {
            let inputs = input(i, 1 + i * 5 % MAX_LEN);
            engine.try_submit("m", inputs, Options::default()).unwrap()
        })
        .collect();
    let answer = |h: lazybatch_engine::Handle| h.wait().unwrap().outputs[0].to_f32();
    handles.into_iter().map(answer).collect()
}

/// Pools for three requests, and room for 128 in the batch table: those beyond wait, none fails.
#[test]
fn requests_beyond_the_pools_wait() {
    let expected = answers(&builder("serial", 64).build().unwrap(), 40);
    for policy in [
        "serial",
        "greedy",
        "continuous",
        "lazy",
        "adaptive",
        "edf",
        "triton",
    ] {
        let engine = builder(policy, 3).build().unwrap();
        assert!(answers(&engine, 40) == expected, "{policy}");
    }
}

#[test]
fn a_request_that_no_limit_allows_is_refused_with_the_numbers() {
    let engine = builder("greedy", 64).build().unwrap();
    let holds = |len| engine.request_memory("m", len, 1).unwrap().total();
    assert!(holds(1) < holds(20) && holds(20) < holds(32));
    assert_eq!(engine.request_memory("unknown", 1, 1), None);
    // Padding makes every member as long as the longest.
    let lazy = builder("lazy", 64).build().unwrap();
    let own = lazy.request_memory("m", 1, 1).unwrap();
    assert_eq!(engine.request_memory("m", 1, 1).unwrap().states, own.states);

    let limit = lazy
        .request_memory("m", 20, 1)
        .unwrap()
        .total()
        .next_multiple_of(1024);
    let engine = builder("lazy", 64).memory(limit).build().unwrap();
    let refused = engine.try_submit("m", input(0, 32), Options::default());
    let error = refused.err().unwrap();
    let got = lazy.request_memory("m", 32, 1).unwrap().total();
    assert_eq!(
        error,
        RequestError::Memory {
            model: "m".into(),
            input_len: 32,
            samples: 1,
            got,
            left: limit,
            limit,
        }
    );
    let text = error.to_string();
    for part in [
        "model m",
        "32 positions",
        &limit.to_string(),
        &got.to_string(),
    ] {
        assert!(text.contains(part), "{text}");
    }
    // It took nothing: one that fits the whole limit still does.
    let answer = engine.try_submit("m", input(0, 20), Options::default());
    answer.unwrap().wait().unwrap();
}

#[test]
fn what_is_accepted_keeps_its_memory_and_ends() {
    let one = builder("lazy", 64).build().unwrap();
    let one = one
        .request_memory("m", 16, 1)
        .unwrap()
        .total()
        .next_multiple_of(1024);
    let expected = answers(&builder("serial", 64).build().unwrap(), 1);
    // The window of an hour keeps everything waiting: three fit, the fourth does not.
    let engine = builder("graph:3600000", 64);
    let padded = engine.build().unwrap().request_memory("m", 16, 1).unwrap();
    let share = padded.total().next_multiple_of(1024);
    assert!(share >= one);
    let limit = 3 * share + 512;
    let engine = builder("graph:3600000", 64).memory(limit).build().unwrap();
    let submit = |i| engine.try_submit("m", input(i, 16), Options::default());
    let held: Vec<_> = (0..3).map(|i| submit(i).unwrap()).collect();
    let Err(RequestError::Memory { left, got, .. }) = submit(3) else {
        panic!("a fourth request was taken");
    };
    assert_eq!((left, got), (0, padded.total()));
    // One goes, the next one comes: cancelled or answered, memory comes back.
    let mut held = held.into_iter();
    drop(held.next());
    while submit(4).is_err() {
        std::thread::yield_now();
    }
    drop(held);
    drop(engine);

    // With waiting instead of refusal everything is answered, however little fits at once.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let limit = 2 * builder("lazy", 64)
        .build()
        .unwrap()
        .request_memory("m", MAX_LEN as u32, 1)
        .unwrap()
        .total()
        .next_multiple_of(1024);
    let engine = std::sync::Arc::new(builder("lazy", 64).memory(limit).build().unwrap());
    let all = answers(&builder("serial", 64).build().unwrap(), 30);
    let tasks: Vec<_> = (0..30)
        .map(|i| {
            let engine = engine.clone();
            runtime.spawn(async move {
                let inputs = input(i, 1 + i * 5 % MAX_LEN);
                engine.submit("m", inputs, Options::default()).await
            })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        let answer = runtime.block_on(task).unwrap().unwrap();
        assert!(answer.outputs[0].to_f32() == all[i], "request {i}");
    }
    assert_eq!(all[0], expected[0]);
    // Everything came back.
    engine
        .try_submit("m", input(0, MAX_LEN), Options::default())
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn limits_that_can_hold_nothing_are_refused() {
    let error = builder("lazy", 64).memory(100).build().err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, BuildError::Model { .. }), "{text}");
    assert!(
        text.contains("memory limit") && text.contains("got 100 bytes"),
        "{text}"
    );
    let text = r#"{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
        "models":[{"name":"m","max_batch":1,"blocks":[{"name":"steps","repeat":"per_input_step",
        "nodes":[{"name":"n","latency_us":[[1,1]]}]}]}]}"#;
    let profile = Profile::parse("test", text).unwrap();
    let of = &profile.models[0];
    let table = LatencyTable::new(of, &segments_of(of, 1), 0.0, 1.0).into();
    let device = SimDevice::new("sim", 1, vec![table], Nanos::ZERO, Noise::default());
    let sim = Engine::builder()
        .device(device)
        .model("m", model(), ModelOptions::default())
        .memory(1 << 30);
    let text = sim.build().err().unwrap().to_string();
    assert!(
        text.contains("a device that states what requests hold"),
        "{text}"
    );
}
