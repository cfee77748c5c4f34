//! `serial`, `greedy` and `graph:W` against a pencil-and-paper simulation, to the nanosecond.
//!
//! The reference is written from the text of the format alone: one device, one batch at a time,
//! latencies from [`crate::common::Node::latency`]. It shares no code with the engine.

use crate::common::*;
use rand::Rng;

/// What the pencil says.
struct Expected {
    finish: Vec<u64>,
    start: Vec<Option<u64>>,
    launches: u64,
    batched: u64,
}

/// Whole batches under a time-window; at most `cap` members.
fn by_hand(world: &World, arrivals: &[Arrival], window: u64, cap: usize) -> Expected {
    let mut expected = Expected {
        finish: vec![0; arrivals.len()],
        start: vec![None; arrivals.len()],
        launches: 0,
        batched: 0,
    };
    let mut left: Vec<usize> = (0..arrivals.len()).collect();
    let mut now = 0;
    while !left.is_empty() {
        // Per model: who waits at `now`, oldest first.
        let waiting = |m: usize| -> Vec<usize> {
            let here = |&i: &usize| arrivals[i].at <= now && arrivals[i].model == m;
            left.iter().copied().filter(here).collect()
        };
        let mut chosen: Option<(u64, usize)> = None;
        let mut soonest: Option<u64> = None;
        for (m, model) in world.models.iter().enumerate() {
            let queue = waiting(m);
            let Some(&head) = queue.first() else { continue };
            let head_at = arrivals[head].at;
            let samples: u32 = queue.iter().map(|&i| arrivals[i].samples).sum();
            let full = queue.len() >= cap || samples >= model.max_batch;
            if full || head_at + window <= now {
                if chosen.is_none_or(|(at, _)| head_at < at) {
                    chosen = Some((head_at, m));
                }
            } else {
                soonest = Some(soonest.map_or(head_at + window, |s| s.min(head_at + window)));
            }
        }
        let Some((_, m)) = chosen else {
            let next = left.iter().map(|&i| arrivals[i].at).find(|&at| at > now);
            now = [soonest, next]
                .into_iter()
                .flatten()
                .min()
                .expect("someone is left");
            continue;
        };
        let model = &world.models[m];
        let mut batch = waiting(m);
        batch.truncate(cap);
        let mut size = 0;
        let fits = batch.iter().take_while(|&&i| {
            size += arrivals[i].samples;
            size <= model.max_batch
        });
        batch.truncate(fits.count());
        left.retain(|i| !batch.contains(i));
        let size: u32 = batch.iter().map(|&i| arrivals[i].samples).sum();
        let size = u64::from(size);
        let longest = batch
            .iter()
            .map(|&i| arrivals[i].input_len)
            .max()
            .expect("members");
        let begin = now;
        let mut executions = 0;
        for block in &model.blocks {
            let passes = batch
                .iter()
                .map(|&i| block.passes(arrivals[i].input_len, arrivals[i].output_len))
                .max()
                .expect("members");
            for _ in 0..passes {
                for node in &block.nodes {
                    now += node.latency(size, size * u64::from(longest)) + world.dispatch;
                    executions += 1;
                }
            }
        }
        for i in batch {
            expected.finish[i] = now;
            expected.start[i] = (executions > 0).then_some(begin);
        }
        expected.launches += executions;
        expected.batched += executions * size;
    }
    expected
}

fn compare(seed: u64, policy: &str, window: u64, cap: usize) {
    let mut rng = rng(seed);
    let world = random_world(&mut rng, Shape::default());
    let num = rng.random_range(1..40);
    let mut arrivals = random_arrivals(&mut rng, &world, num);
    if rng.random_bool(0.3) {
        for a in &mut arrivals {
            a.samples = rng.random_range(1..=world.models[a.model].max_batch.min(5));
        }
    }
    let options = Options {
        seed,
        ..Options::default()
    };
    let run = simulate(&world, policy, &arrivals, &options);
    let expected = by_hand(&world, &arrivals, window, cap);
    assert_eq!(run.finishes(), expected.finish, "seed {seed}: {policy}");
    assert_eq!(run.starts(), expected.start, "seed {seed}: {policy}");
    assert_eq!(run.counters.launches, expected.launches, "seed {seed}");
    assert_eq!(run.counters.batched, expected.batched, "seed {seed}");
}

#[test]
fn serial_is_first_come_first_served() {
    for seed in 0..num_cases(400) {
        compare(seed, "serial", 0, 1);
    }
}

#[test]
fn greedy_takes_whatever_waits() {
    for seed in 0..num_cases(400) {
        compare(seed, "greedy", 0, usize::MAX);
    }
}

#[test]
fn graph_waits_for_its_window_or_a_full_batch() {
    for seed in 0..num_cases(600) {
        // Milliseconds that are whole nanoseconds, around the time that a batch takes.
        let window_us = [0, 1, 5, 20, 100, 1_000][seed as usize % 6];
        let policy = format!("graph:{}", window_us as f64 / 1000.0);
        compare(seed, &policy, window_us * 1000, usize::MAX);
    }
}

#[test]
fn the_pencil_agrees_with_a_worked_example() {
    // One node of 10 + 2 per member, in nanoseconds; three arrive together at 0, one at 5.
    let world = World::chain(2, vec![Node::linear(10, 2)]);
    let arrivals: Vec<_> = [0, 0, 0, 5]
        .map(|at| Arrival::new(at, 0, 1, 1, None))
        .to_vec();
    assert_eq!(by_hand(&world, &arrivals, 0, 1).finish, [12, 24, 36, 48]);
    // Pairs of 14 each.
    assert_eq!(by_hand(&world, &arrivals, 0, 9).finish, [14, 14, 28, 28]);
    // The first pair is full at once; the third is alone until the fourth fills its batch.
    assert_eq!(by_hand(&world, &arrivals, 99, 9).finish, [14, 14, 28, 28]);
    assert_eq!(by_hand(&world, &arrivals[..3], 99, 9).finish, [14, 14, 111]);
}
