//! Scheduling steps of the core under load: completion in, decision, launch out.
//!
//! `cargo bench -p lazybatch-benches --bench core_steps`

#![allow(missing_docs, reason = "criterion's macros make the public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lazybatch_benches::POLICIES;
use lazybatch_benches::core_load::{CoreLoad, Net};

fn steps(c: &mut Criterion) {
    for net in Net::ALL {
        let mut group = c.benchmark_group(format!("core_steps/{}", net.name()));
        group.throughput(Throughput::Elements(1));
        for policy in POLICIES {
            let mut load = CoreLoad::new(net, policy).expect("the policies are registered");
            group.bench_function(policy, |b| b.iter(|| load.step()));
        }
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
