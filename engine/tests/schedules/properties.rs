//! What must hold for every policy, whatever the models, the arrivals and what goes wrong.
//!
//! Seeded loops; `LAZYBATCH_SOAK_CASES` sets the number of cases of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::switching::Switching;
use crate::common::*;
use lazybatch_engine::core::{Action, Event, Note};
use lazybatch_sla::Outcome;
use rand::Rng;

#[test]
fn chaos_keeps_every_rule() {
    for seed in 0..num_cases(300) {
        let chaos = Chaos::new(seed);
        for policy in examples().chain(refusing_examples()) {
            println!("seed {seed}: {policy}");
            let run = simulate(&chaos.world, policy, &chaos.arrivals, &chaos.options);
            check_run(&chaos.world, &chaos.arrivals, &chaos.options, &run);
        }
    }
}

#[test]
fn chaos_is_chaotic() {
    // The cases above are worth nothing if nothing happens in them.
    let mut outcomes = [0u64; 5];
    let (mut discarded, mut merges, mut preemptions, mut alone) = (0, 0, 0, 0);
    for seed in 0..100 {
        let chaos = Chaos::new(seed);
        let run = simulate(&chaos.world, "lazy", &chaos.arrivals, &chaos.options);
        for ended in &run.ended {
            outcomes[ended.outcome as usize] += 1;
        }
        for (_, item) in &run.transcript {
            if let Item::Event(Event::Done { faults, .. }) = item {
                alone += faults.len() as u64;
            }
        }
        discarded += run.counters.discarded;
        merges += run.counters.merges;
        preemptions += run.counters.preemptions;
    }
    for outcome in [
        Outcome::Met,
        Outcome::Violated,
        Outcome::Shed,
        Outcome::Cancelled,
        Outcome::Failed,
    ] {
        assert!(outcomes[outcome as usize] >= 20, "{outcome}: {outcomes:?}");
    }
    let seen = [discarded, merges, preemptions, alone];
    assert!(
        seen.iter()
            .zip([50, 100, 100, 20])
            .all(|(n, least)| *n > least),
        "{seen:?}"
    );
}

#[test]
fn same_seed_same_run() {
    for seed in 0..num_cases(60) {
        let chaos = Chaos::new(seed);
        for policy in examples() {
            let run = || simulate(&chaos.world, policy, &chaos.arrivals, &chaos.options);
            let (a, b) = (run(), run());
            assert!(a.transcript == b.transcript, "seed {seed}: {policy}");
            assert_eq!(a.ended, b.ended, "seed {seed}: {policy}");
            assert_eq!(a.counters, b.counters, "seed {seed}: {policy}");
        }
    }
}

/// Tables whose points are one apart, so that nothing is ever rounded, and positive at any size.
fn exact_tables(world: &mut World) {
    for node in world
        .models
        .iter_mut()
        .flat_map(|m| &mut m.blocks)
        .flat_map(|b| &mut b.nodes)
    {
        let mut ys: Vec<u64> = node.points.iter().map(|p| p.1.max(1)).collect();
        ys.sort_unstable();
        let first = node.points[0].0;
        node.points = (first..).zip(ys).collect();
    }
}

fn scaled(world: &World, k: u64) -> World {
    let mut world = world.clone();
    world.dispatch *= k;
    for model in &mut world.models {
        for node in model.blocks.iter_mut().flat_map(|b| &mut b.nodes) {
            node.points.iter_mut().for_each(|p| p.1 *= k);
        }
    }
    world
}

#[test]
fn time_scales() {
    for seed in 0..num_cases(150) {
        let mut rng = rng(seed);
        let mut world = random_world(&mut rng, Shape::default());
        exact_tables(&mut world);
        let arrivals = random_arrivals(&mut rng, &world, 25);
        let k = rng.random_range(2..9);
        let slow_world = scaled(&world, k);
        let mut slow_arrivals = arrivals.clone();
        for a in &mut slow_arrivals {
            a.at *= k;
            a.sla = a.sla.map(|sla| sla * k);
        }
        let options = Options {
            seed,
            lane_depths: vec![rng.random_range(1..=2); rng.random_range(1..=2)],
            ..Options::default()
        };
        let pair = [
            (
                "graph:0.02".to_string(),
                format!("graph:{}", 0.02 * k as f64),
            ),
            ("serial".into(), "serial".into()),
            ("greedy".into(), "greedy".into()),
            ("lazy".into(), "lazy".into()),
            ("lazy:late-admits".into(), "lazy:late-admits".into()),
            ("oracle".into(), "oracle".into()),
            ("continuous".into(), "continuous".into()),
            ("cellular".into(), "cellular".into()),
            (
                "edf:patience=0.05".into(),
                format!("edf:patience={}", 0.05 * k as f64),
            ),
        ];
        for (policy, slow_policy) in pair {
            let fast = simulate(&world, &policy, &arrivals, &options);
            let slow = simulate(&slow_world, &slow_policy, &slow_arrivals, &options);
            let expected: Vec<u64> = fast.finishes().iter().map(|t| t * k).collect();
            assert_eq!(slow.finishes(), expected, "seed {seed}: {policy} x {k}");
            assert_eq!(slow.counters, fast.counters, "seed {seed}: {policy} x {k}");
        }
    }
}

/// With max batch 1 the table holds one request of a model, so nobody is ever pushed on top of one
/// of the same model: over one model the stack policies serve exactly as `serial` does. Over
/// several they may preempt across models, and still launch one request at a time.
#[test]
fn max_batch_1_leaves_nothing_to_gain() {
    for seed in 0..num_cases(150) {
        let mut rng = rng(seed);
        let mut world = random_world(&mut rng, Shape::default());
        world.models.iter_mut().for_each(|m| m.max_batch = 1);
        let arrivals = random_arrivals(&mut rng, &world, 25);
        let options = Options {
            seed,
            ..Options::default()
        };
        let serial = simulate(&world, "serial", &arrivals, &options);
        for policy in [
            "lazy",
            "lazy:late-admits",
            "oracle",
            "greedy",
            "continuous",
            "cellular",
        ] {
            let run = simulate(&world, policy, &arrivals, &options);
            assert_eq!(run.counters.launches, run.counters.batched);
            assert_eq!(run.counters.merges, 0);
            assert_eq!(run.counters.launches, serial.counters.launches);
            if world.models.len() == 1 || policy == "greedy" {
                assert_eq!(run.ended, serial.ended, "seed {seed}: {policy}");
            }
        }
    }
}

/// Nobody's slack is ever positive, so nobody is pushed: batches run as they started.
#[test]
fn hopeless_targets_mean_no_preemption() {
    let mut waited = 0;
    for seed in 0..num_cases(150) {
        let mut rng = rng(seed);
        let mut world = random_world(&mut rng, Shape::default());
        exact_tables(&mut world);
        let mut arrivals = random_arrivals(&mut rng, &world, 25);
        arrivals.iter_mut().for_each(|a| a.sla = Some(0));
        let options = Options {
            seed,
            record: true,
            notes: true,
            ..Options::default()
        };
        for policy in ["lazy", "oracle"] {
            let run = simulate(&world, policy, &arrivals, &options);
            assert_eq!(run.counters.preemptions, 0, "seed {seed}: {policy}");
            // Who starts while another is in flight was started with it.
            let mut in_flight = BTreeSet::new();
            for (_, item) in &run.transcript {
                match item {
                    Item::Action(Action::Note(Note::Admit { members, .. })) => {
                        assert!(in_flight.is_empty(), "seed {seed}: {policy}: {members:?}");
                        in_flight.extend(members.iter().copied());
                    }
                    Item::Action(Action::Finish { request, .. }) => {
                        in_flight.remove(request);
                    }
                    Item::Event(Event::Arrive(_)) => waited += usize::from(!in_flight.is_empty()),
                    _ => {}
                }
            }
        }
    }
    assert!(waited > 100, "someone comes while others are in flight");
}

/// More launches in flight cost discarded passes and change who meets a target, nothing else.
#[test]
fn depth_only_discards() {
    let mut discarded = 0;
    for seed in 0..num_cases(150) {
        let mut rng = rng(seed);
        let world = random_world(&mut rng, Shape::default());
        let mut arrivals = random_arrivals(&mut rng, &world, 25);
        arrivals.iter_mut().for_each(|a| a.sla = None);
        for policy in examples() {
            let outcomes = |depth: u32| {
                let options = Options {
                    seed,
                    lane_depths: vec![depth],
                    record: true,
                    ..Options::default()
                };
                let run = simulate(&world, policy, &arrivals, &options);
                check_run(&world, &arrivals, &options, &run);
                let ends: Vec<_> = run.ended.iter().map(|e| (e.id, e.outcome)).collect();
                (ends, run.counters.discarded)
            };
            let (shallow, none) = outcomes(1);
            assert_eq!(none, 0);
            for depth in 2..=3 {
                let (deep, some) = outcomes(depth);
                assert_eq!(deep, shallow, "seed {seed}: {policy}");
                discarded += some;
            }
        }
    }
    assert!(discarded > 100);
}

/// Only the top runs, and only neighbours at the top merge, whatever goes wrong.
#[test]
fn stack_policies_keep_the_stack() {
    for seed in 0..num_cases(400) {
        let mut chaos = Chaos::new(seed);
        chaos.options.notes = true;
        chaos.options.stack = true;
        chaos.options.record = false;
        for policy in ["lazy", "lazy:late-admits", "oracle"] {
            simulate(&chaos.world, policy, &chaos.arrivals, &chaos.options);
        }
    }
}

/// Every policy takes over whatever table another one leaves, and everybody still ends.
#[test]
fn policies_take_over_from_each_other() {
    let taken_over = Arc::new(AtomicU64::new(0));
    let cases = num_cases(1500);
    for seed in 0..cases {
        let chaos = Chaos::new(seed);
        let policy = Box::new(Switching::new(seed, taken_over.clone()));
        let run = judge_policy(&chaos.world, policy, false, &chaos.arrivals, &chaos.options);
        if let Err(violation) = &run.verdict {
            panic!("seed {seed}: {violation}");
        }
        check_run(&chaos.world, &chaos.arrivals, &chaos.options, &run);
    }
    let num = taken_over.load(Ordering::Relaxed);
    assert!(
        num > 20 * cases,
        "only {num} changes with entries in the table"
    );
}

/// Under twice the load that can be served, all of it urgent, a request without a target runs when
/// its patience is over and those due before it have run.
#[test]
fn edf_starves_nobody() {
    let world = World::chain(1, vec![Node::constant(10_000)]);
    let mut arrivals = vec![Arrival::new(0, 0, 1, 1, None)];
    let urgent = |i: u64| Arrival::new(5_000 * i, 0, 1, 1, Some(20_000));
    arrivals.extend((0..400).map(urgent));
    let run = simulate(&world, "edf:patience=0.1", &arrivals, &Options::default());
    // Due at 100 us; the 16 that arrive before 80 us are due before it, one is due with it.
    assert_eq!(run.finishes()[0], 17 * 10_000);
    // With patience it is served last.
    let run = simulate(&world, "edf:patience=10000", &arrivals, &Options::default());
    assert_eq!(run.finishes()[0], 401 * 10_000);
}
