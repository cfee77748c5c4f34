//! Requests of several sizes, targets and models beside each other: one that cannot run, or is
//! predicted wrongly, takes nothing from the others.

use crate::common::*;
use lazybatch_sla::{Class, Outcome};

/// A decoder of 100 us a pass, and 5 us for each sample.
fn decoder(p90: u32) -> Model {
    Model {
        max_batch: 8,
        p90,
        blocks: vec![Block {
            rep: Rep::Until(None),
            nodes: vec![Node::linear(100_000, 5_000)],
        }],
    }
}

fn world(models: Vec<Model>) -> World {
    World {
        models,
        dispatch: 0,
    }
}

fn class(spec: &str) -> Options {
    Options {
        classes: Class::by_id([spec.parse().expect("a class")]),
        ..Options::default()
    }
}

#[test]
fn who_waits_for_more_room_keeps_out_nobody_of_a_higher_level() {
    // One runs for 300 ms, one needs the whole batch, and the others come two by two.
    let mut arrivals = vec![Arrival::new(0, 0, 1, 3000, None)];
    let mut large = Arrival::new(1_000_000, 0, 1, 10, None);
    large.samples = 8;
    arrivals.push(large);
    for i in 0..200 {
        let mut small = Arrival::new(2_000_000 + i / 2 * 2_000_000, 0, 1, 10, None);
        small.priority = 1;
        arrivals.push(small);
    }
    let world = world(vec![decoder(10)]);
    for policy in ["join:1", "balance:2", "sharing:2/6/1", "iteration"] {
        let run = simulate(&world, policy, &arrivals, &Options::default());
        let smalls = run.ended[2..].iter().zip(&arrivals[2..]);
        let waited: Vec<u64> = smalls.map(|(e, a)| e.finish.0 - a.at).collect();
        let mean_us = waited.iter().sum::<u64>() / waited.len() as u64 / 1000;
        assert!(mean_us < 20_000, "{policy}: {mean_us} us");
    }
}

#[test]
fn a_wrong_prediction_is_found_out_beside_another_models_requests() {
    // The first model is never idle. Of the second, 20 passes of 10 us are predicted to be 512.
    let quick = Model {
        max_batch: 8,
        p90: 512,
        blocks: vec![Block {
            rep: Rep::Until(None),
            nodes: vec![Node::constant(10_000)],
        }],
    };
    let world = world(vec![decoder(10), quick]);
    let mut arrivals = vec![Arrival::new(0, 0, 1, 100_000, None)];
    for i in 0..1000 {
        let mut own = Arrival::new(1_000_000 * (i + 1), 1, 1, 20, Some(4_500_000));
        own.class = 1;
        arrivals.push(own);
    }
    for late in ["refuse", "shed"] {
        let options = class(&format!("strict:late={late}"));
        let run = simulate(&world, "sharing:1/1/0.1", &arrivals, &options);
        let met = run.ended[1..].iter().filter(|e| e.outcome == Outcome::Met);
        let met = met.count();
        assert!(met > 500, "{late}: {met} of 1000");
    }
}

#[test]
fn who_can_no_longer_be_in_time_is_shed_behind_one_that_can() {
    // Twice what eight at a time can do, in 100 us; every other one has less time than the queue is
    // long.
    let world = World::chain(8, vec![Node::constant(100_000)]);
    let arrivals: Vec<Arrival> = (0..8000)
        .map(|i| {
            let sla = if i % 2 == 0 { 3_000_000 } else { 300_000 };
            let mut arrival = Arrival::new(i * 1_000_000 / 160, 0, 1, 1, Some(sla));
            arrival.class = 1;
            arrival
        })
        .collect();
    let run = simulate(&world, "front", &arrivals, &class("strict:late=shed"));
    let num = |outcome| run.ended.iter().filter(|e| e.outcome == outcome).count();
    let (met, late) = (num(Outcome::Met), num(Outcome::Violated));
    assert!(late * 20 < met, "{met} in time, {late} late");
}
