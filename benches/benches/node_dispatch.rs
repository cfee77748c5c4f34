//! What it costs to run next to nothing: one tiny node on the CPU device, and one tiny model
//! through the threaded engine and back.
//!
//! `cargo bench -p lazybatch-benches --bench node_dispatch`

#![allow(missing_docs, reason = "criterion's macros make the public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lazybatch_benches::tiny::{self, NodeWalk};
use lazybatch_engine::{Engine, ModelOptions, Options};

fn device(c: &mut Criterion) {
    let mut group = c.benchmark_group("node_dispatch");
    let mut walk = NodeWalk::new(62).expect("a program of relus");
    group.throughput(Throughput::Elements(walk.num_launches() as u64));
    walk.open().expect("the input fits");
    group.bench_function("enqueue_and_poll", |b| b.iter(|| walk.walk()));
    walk.close();
    group.finish();
}

fn engine(c: &mut Criterion) {
    let program = tiny::chain(1).expect("a program of one relu");
    let engine = Engine::builder()
        .device(tiny::device())
        .model("tiny", program, ModelOptions::default())
        .policy("greedy")
        .build()
        .expect("the engine starts");
    let mut group = c.benchmark_group("node_dispatch");
    group.throughput(Throughput::Elements(1));
    group.bench_function("engine_round_trip", |b| {
        b.iter(|| {
            engine
                .try_submit("tiny", tiny::input(), Options::default())
                .and_then(|handle| handle.wait())
                .expect("the engine answers")
        });
    });
    group.finish();
}

criterion_group!(benches, device, engine);
criterion_main!(benches);
