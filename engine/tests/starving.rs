//! Nobody starves under `adaptive`: the checker's rule 8 over long overloads with tight targets,
//! levels, classes and several models, in which somebody does starve without the rescue.

mod common;

use common::*;
use lazybatch_sla::Class;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Requests that end for each that is rescued.
const EACH: u64 = 64;

/// Later requests that may end before one that finds nobody: 16 times those in flight and those that
/// pay for it before its rescue begins, and those in flight then.
fn bound(world: &World) -> u64 {
    let models = config(world, &Options::default()).models;
    let in_flight = models.iter().map(|m| u64::from(m.max_in_flight));
    17 * in_flight.sum::<u64>() + EACH
}

/// A model in which batching pays, and its throughput with full batches, per second.
fn model(rng: &mut ChaCha8Rng) -> (Model, f64) {
    let max_batch = rng.random_range(2..=8);
    let node = |rng: &mut ChaCha8Rng| {
        let alone = rng.random_range(50_000..200_000);
        Node::linear(alone, alone / rng.random_range(8..40))
    };
    let nodes = |rng: &mut ChaCha8Rng, most| {
        let num = rng.random_range(1..=most);
        (0..num).map(|_| node(rng)).collect::<Vec<_>>()
    };
    let block = |rep, nodes| Block { rep, nodes };
    let blocks = match rng.random_range(0..3) {
        0 => vec![block(Rep::Once, nodes(rng, 6))],
        1 => vec![
            block(Rep::Once, nodes(rng, 3)),
            block(Rep::Until(None), nodes(rng, 2)),
        ],
        _ => vec![
            block(Rep::PerStep(1), nodes(rng, 2)),
            block(Rep::Until(None), nodes(rng, 2)),
        ],
    };
    let full = |b: &Block| {
        let passes = u64::from(b.passes(4, 4));
        let pass = b.nodes.iter().map(|n| n.latency(u64::from(max_batch), 4));
        passes * pass.sum::<u64>()
    };
    let ns: u64 = blocks.iter().map(full).sum();
    let model = Model {
        max_batch,
        p90: 6,
        blocks,
    };
    (model, f64::from(max_batch) * 1e9 / ns as f64)
}

/// One or two models.
fn world(rng: &mut ChaCha8Rng) -> (World, f64) {
    let num = if rng.random_bool(0.3) { 2 } else { 1 };
    let models: Vec<_> = (0..num).map(|_| model(rng)).collect();
    // Equal numbers of requests take the sum of what each takes.
    let capacity = f64::from(num) / models.iter().map(|m| 1.0 / m.1).sum::<f64>();
    let models = models.into_iter().map(|m| m.0).collect();
    let dispatch = 0;
    (World { models, dispatch }, capacity)
}

/// Poisson arrivals at `rate_rps`, with targets about what a request takes alone and more.
fn arrivals(rng: &mut ChaCha8Rng, world: &World, num: usize, rate_rps: f64) -> Vec<Arrival> {
    let target = mean_alone(world) as f64 * rng.random_range(1.2..6.0);
    let levels: u8 = rng.random_range(1..=3);
    let mut now = 0.0;
    let one = |_| {
        now += -(1.0 - rng.random::<f64>()).ln() * 1e9 / rate_rps;
        let model = rng.random_range(0..world.models.len());
        let (input, output) = (rng.random_range(1..=7), rng.random_range(1..=7));
        let sla = target * rng.random_range(0.7..1.5);
        let mut arrival = Arrival::new(now as u64, model, input, output, Some(sla as u64));
        arrival.priority = rng.random_range(0..levels);
        arrival.class = u32::from(rng.random_bool(0.3));
        arrival
    };
    (0..num).map(one).collect()
}

/// A policy, the same without rescue, and what classes say of those that are too late.
fn kind(seed: u64) -> (&'static str, &'static str, &'static str) {
    match seed % 8 {
        0..3 => ("adaptive", "adaptive:without=rescue", "weight=2"),
        3 => ("adaptive", "adaptive:without=rescue", "late=shed"),
        4 => ("adaptive", "adaptive:without=rescue", "late=keep,weight=3"),
        5 => ("adaptive:front:demote", "front:demote", "weight=2"),
        6 => ("adaptive:join:1/demote", "join:1/demote", "weight=4"),
        _ => (
            "adaptive:sharing:2/6/2/cap95/demote",
            "sharing:2/6/2/cap95/demote",
            "late=refuse",
        ),
    }
}

/// Whether somebody is passed over too often, with rescue and without.
fn case(seed: u64, num: usize) -> [Result<(), String>; 2] {
    let mut rng = rng(seed);
    let (world, capacity) = world(&mut rng);
    let rate = capacity * rng.random_range(1.0..3.0);
    let arrivals = arrivals(&mut rng, &world, num, rate);
    let (with, without, class) = kind(seed);
    let class: Class = format!("other:{class}").parse().expect("a class");
    let options = Options {
        seed,
        classes: Class::by_id([class]),
        passing: Some((bound(&world), EACH)),
        ..Options::default()
    };
    [with, without].map(|policy| {
        let verdict = judge(&world, policy, &arrivals, &options).verdict;
        verdict.map_err(|v| format!("{policy}: {v}"))
    })
}

#[test]
fn nobody_starves_in_random_overloads_and_somebody_does_without_rescue() {
    let seeds = soak_seeds(300);
    let (first, num_cases) = (seeds.start, seeds.end - seeds.start);
    // Two threads, a seed in two each.
    let num_starving: u64 = std::thread::scope(|scope| {
        let halves = [0, 1].map(|skip| {
            let half = seeds.clone().skip(skip).step_by(2);
            scope.spawn(|| starving(half))
        });
        halves.map(|h| h.join().expect("no panic")).iter().sum()
    });
    println!(
        "soak: {{\"first\":{first},\"cases\":{num_cases},\"starving_without_rescue\":{num_starving}}}"
    );
    assert!(
        4 * num_starving >= num_cases,
        "{num_starving} of {num_cases}"
    );
}

/// How many of the cases starve somebody without rescue; with it nobody does.
fn starving(seeds: impl Iterator<Item = u64>) -> u64 {
    let mut num_starving = 0;
    for seed in seeds {
        let [with, without] = case(seed, 1500);
        assert_eq!(with, Ok(()), "seed {seed}");
        if let Err(violation) = without {
            assert!(violation.contains("rule 8"), "seed {seed}: {violation}");
            num_starving += 1;
        }
    }
    num_starving
}

/// Mean time from arrival to end of all but the first, in nanoseconds.
fn mean_of_others(world: &World, policy: &str, arrivals: &[Arrival]) -> f64 {
    let run = judge(world, policy, arrivals, &Options::default());
    assert_eq!(run.verdict.map_err(|v| v.to_string()), Ok(()), "{policy}");
    let times = run.ended.iter().zip(arrivals).skip(1);
    let sum: u64 = times.map(|(e, a)| e.finish.0 - a.at).sum();
    sum as f64 / (arrivals.len() - 1) as f64
}

/// Passes of 100 us, and 5 us for each of up to eight.
fn decoder() -> Model {
    Model {
        max_batch: 8,
        p90: 10,
        blocks: vec![Block {
            rep: Rep::Until(None),
            nodes: vec![Node::linear(100_000, 5_000)],
        }],
    }
}

#[test]
fn a_long_answer_that_advances_with_the_others_is_not_rescued_from_them() {
    let decoder = decoder();
    let quick = Model {
        max_batch: 8,
        p90: 1,
        blocks: vec![Block {
            rep: Rep::Once,
            nodes: vec![Node::linear(50_000, 5_000)],
        }],
    };
    // The same short answers, or requests of another model beside it.
    for (models, model) in [(vec![decoder.clone()], 0), (vec![decoder, quick], 1)] {
        let dispatch = 0;
        let world = World { models, dispatch };
        let mut rng = rng(1);
        let mut now = 0.0;
        let mut arrivals = vec![Arrival::new(0, 0, 1, 3000, None)];
        while now < 4e8 {
            now += -(1.0 - rng.random::<f64>()).ln() * 1e9 / 3000.0;
            let output = rng.random_range(5..=15);
            arrivals.push(Arrival::new(now as u64, model, 1, output, None));
        }
        for rule in ["adaptive:sharing:2/6/1/demote", "adaptive:join:1/demote"] {
            let without = rule.strip_prefix("adaptive:").expect("a base rule");
            let [with, without] = [rule, without].map(|p| mean_of_others(&world, p, &arrivals));
            assert!(with < 1.1 * without, "{rule}: {with} ns, {without} without");
        }
    }
}

#[test]
fn who_starves_behind_a_long_answer_that_advances_is_rescued() {
    let world = World {
        models: vec![decoder()],
        dispatch: 0,
    };
    let mut rng = rng(1);
    // The first takes until the end, more than can be served come behind it, all in time for a while,
    // and among them one that is late from the start.
    let sla = Some(50_000_000);
    let mut arrivals = vec![Arrival::new(0, 0, 1, 3000, None)];
    let (mut now, mut late) = (0.0, None);
    while now < 4e8 {
        now += -(1.0 - rng.random::<f64>()).ln() * 1e9 / 9000.0;
        if now > 2e7 && late.is_none() {
            late = Some(arrivals.len());
            arrivals.push(Arrival::new(now as u64, 0, 1, 10, Some(1)));
        }
        let output = rng.random_range(5..=15);
        arrivals.push(Arrival::new(now as u64, 0, 1, output, sla));
    }
    let rule = "adaptive:sharing:2/6/1/demote";
    let run = judge(&world, rule, &arrivals, &Options::default());
    assert_eq!(run.verdict.map_err(|v| v.to_string()), Ok(()));
    let late = late.expect("some come later than that");
    let finish = run.ended[late].finish;
    assert!(run.ended[0].finish > finish, "the first is still at it");
}
