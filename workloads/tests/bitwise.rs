//! Batched equals alone, bit for bit: random schedules of every policy on the embedded device.
//!
//! The core runs in virtual time, so that schedules are random but repeat; every launch is really
//! computed on the CPU device. Outputs of completed requests must have the bits that each request
//! gets alone. Cancellations and exits at different steps are part of it. The number of cases
//! comes from `LAZYBATCH_SOAK_CASES`.

mod shadow;

use std::sync::Arc;

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Core, CoreConfig};
use lazybatch_engine::driver::virtual_time::{self, Script, SimRequest, untimed};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::policy;
use lazybatch_graph::{SharedProgram, Tensor};
use lazybatch_sla::{ModelId, Nanos, Time};
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::experiment::{inputs, words};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::zoo;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use shadow::{Shadow, spec};

/// All policies, and windows as long as the runs here take.
fn policies() -> Vec<&'static str> {
    let windows = ["graph:2", "graph:20", "triton:pad,delay=2"];
    policy::examples().chain(windows).collect()
}

struct Subject {
    name: &'static str,
    program: SharedProgram,
    pool: Vec<Item>,
    alone: Vec<(Vec<Option<Tensor>>, u32)>,
}

fn cases() -> u64 {
    std::env::var("LAZYBATCH_SOAK_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(72)
}

impl Subject {
    fn new(name: &'static str, program: SharedProgram, pool: Vec<Item>) -> Self {
        let alone = pool
            .iter()
            .map(|item| {
                let (outputs, mut steps) = serve(&program, "serial", &[(0, item)], &[], 1, 1);
                (
                    outputs.into_iter().next().flatten().expect("it completes"),
                    steps.remove(0),
                )
            })
            .collect();
        Self {
            name,
            program,
            pool,
            alone,
        }
    }
}

type Outputs = Vec<Option<Vec<Option<Tensor>>>>;

/// Serves `calls` (arrival in nanoseconds, item); outputs of completed requests, and decoder steps.
fn serve(
    program: &SharedProgram,
    name: &str,
    calls: &[(u64, &Item)],
    cancels: &[(Time, u64)],
    max_batch: u32,
    every: usize,
) -> (Outputs, Vec<u32>) {
    serve_known(program, name, calls, cancels, max_batch, every, None)
}

fn serve_known(
    program: &SharedProgram,
    name: &str,
    calls: &[(u64, &Item)],
    cancels: &[(Time, u64)],
    max_batch: u32,
    every: usize,
    known: Option<&[u32]>,
) -> (Outputs, Vec<u32>) {
    let config = CoreConfig::new(vec![spec(program, max_batch, every)]);
    let mut judge = Judge::new(Checker::new(&config, false));
    let needs = policy::find(name).expect("registered").needs_output_len;
    let requests: Vec<SimRequest> = calls
        .iter()
        .enumerate()
        .map(|(i, (at, item))| {
            let sla = Some(Nanos::from_ms(1 + (i as u64 * 37) % 60));
            let mut r = SimRequest::new(i as u64, ModelId(0), Time(*at), sla, item.input_len, 1);
            if needs {
                r.request.known_output_len = known.map(|k| k[i]);
            }
            r
        })
        .collect();
    let items: Vec<&Item> = calls.iter().map(|c| c.1).collect();
    let mut device = Shadow::new(program.clone(), &config, &items);
    let mut core = Core::new(config, policy::build(name).expect("registered"));
    let script = Script {
        cancels: cancels
            .iter()
            .map(|&(t, id)| (t, lazybatch_sla::RequestId(id)))
            .collect(),
        ..Script::default()
    };
    let ended = virtual_time::run(
        &mut core,
        &mut device,
        &requests,
        &script,
        &mut judge as &mut dyn Observer,
        &mut untimed,
    );
    judge.finish().unwrap_or_else(|v| panic!("{name}: {v}"));
    assert_eq!(ended.len(), calls.len(), "every request ends once");
    let mut outputs: Outputs = vec![None; calls.len()];
    for end in ended.iter().filter(|e| e.outcome.is_completed()) {
        outputs[end.id.index()] = device.outputs.remove(&end.id);
    }
    let steps = (0..calls.len() as u64)
        .map(|i| {
            device
                .steps
                .get(&lazybatch_sla::RequestId(i))
                .copied()
                .unwrap_or(0)
        })
        .collect();
    (outputs, steps)
}

fn same(a: &[Option<Tensor>], b: &[Option<Tensor>]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| match (a, b) {
            (Some(a), Some(b)) => a.dims == b.dims && a.data.as_slice() == b.data.as_slice(),
            (None, None) => true,
            _ => false,
        })
}

fn check(subject: &Subject, seeds: std::ops::Range<u64>) {
    let mut completed = 0;
    for seed in seeds {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let policies = policies();
        let name = policies[seed as usize % policies.len()];
        let max_batch = [1, 3, 8, 16][rng.random_range(0..4)];
        let every = [1, 2, 5, 100][rng.random_range(0..4)];
        let spread = 10u64.pow(rng.random_range(3..7));
        let num = rng.random_range(2..14);
        let mut ats: Vec<u64> = (0..num).map(|_| rng.random_range(0..spread)).collect();
        ats.sort_unstable();
        let picks: Vec<usize> = (0..num)
            .map(|_| rng.random_range(0..subject.pool.len()))
            .collect();
        let calls: Vec<(u64, &Item)> = ats
            .iter()
            .zip(&picks)
            .map(|(&at, &p)| (at, &subject.pool[p]))
            .collect();
        let mut cancels: Vec<(Time, u64)> = (0..rng.random_range(0..3))
            .map(|_| {
                (
                    Time(rng.random_range(0..2 * spread)),
                    rng.random_range(0..num),
                )
            })
            .collect();
        cancels.sort_unstable();
        let known: Vec<u32> = picks.iter().map(|&p| subject.alone[p].1).collect();
        let (outputs, _) = serve_known(
            &subject.program,
            name,
            &calls,
            &cancels,
            max_batch,
            every,
            Some(&known),
        );
        for (i, outputs) in outputs.iter().enumerate() {
            let Some(outputs) = outputs else { continue };
            completed += 1;
            assert!(
                same(outputs, &subject.alone[picks[i]].0),
                "seed {seed}, {}, {name}, max batch {max_batch}, segments of {every}: request {i} \
                 differs from itself alone",
                subject.name
            );
        }
    }
    assert!(completed > 0, "nothing was compared");
}

#[test]
fn trained_model_under_any_schedule() {
    let program = Arc::new(
        zoo::find("phonemes")
            .expect("in the zoo")
            .program()
            .expect("valid"),
    );
    let pool = words::sample(24, 5)
        .iter()
        .map(|w| words::item(w.spelling).expect("a word"))
        .collect();
    check(&Subject::new("phonemes", program, pool), 0..cases());
}

#[test]
fn recurrent_model_under_any_schedule() {
    let program = zoo::gnmt::Config {
        ..zoo::gnmt::Config::TINY
    }
    .build()
    .expect("valid");
    let program = Arc::new(lazybatch_graph::optimize(program).expect("valid"));
    let lengths = Lengths::load("spelling").expect("embedded");
    let pool = inputs::synthetic(&program, &lengths, 16, 3);
    check(&Subject::new("gnmt", program, pool), 1000..1000 + cases());
}

#[test]
fn convolutional_model_under_any_schedule() {
    let program = Arc::new(
        zoo::find("cnn-tiny")
            .expect("in the zoo")
            .program()
            .expect("valid"),
    );
    let lengths = Lengths::fixed(0, 0);
    let pool = inputs::synthetic(&program, &lengths, 16, 3);
    check(
        &Subject::new("cnn-tiny", program, pool),
        2000..2000 + cases(),
    );
}
