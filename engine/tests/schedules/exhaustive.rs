//! No policy beats the best schedule, found by trying them all.
//!
//! Tiny cases: three requests of one model whose nodes take `fixed + each x members`. The search
//! tries, whenever the device is idle, every set of requests that stand at the same node, and to
//! idle until the next arrival. Idling for any other time or carrying idle members never helps
//! where latencies grow with the batch, so the least sum of latencies it finds bounds every policy
//! from below. It shares no code with the engine.

use std::collections::BTreeMap;

use crate::common::*;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// All but those that wait longer than these cases take, and windows that do not.
fn policies() -> impl Iterator<Item = &'static str> {
    let is_short = |spec: &&str| !spec.starts_with("graph:") && !spec.contains("delay=");
    let windows = ["graph:0.000005", "graph:0.00002"];
    examples().filter(is_short).chain(windows)
}

/// All schedules of a world of one model.
struct Search {
    max_batch: u32,
    dispatch: u64,
    /// Nodes in order of their block, then of their place in it.
    nodes: Vec<Node>,
    at: Vec<u64>,
    /// Per request, the nodes it passes.
    paths: Vec<Vec<usize>>,
    /// Least sum of the finish times to come, by time and progress.
    known: BTreeMap<(u64, Vec<usize>), u64>,
}

impl Search {
    fn new(world: &World, arrivals: &[Arrival]) -> Self {
        let model = &world.models[0];
        let path = |a: &Arrival| {
            let mut path = Vec::new();
            let mut first = 0;
            for block in &model.blocks {
                for _ in 0..block.passes(a.input_len, a.output_len) {
                    path.extend(first..first + block.nodes.len());
                }
                first += block.nodes.len();
            }
            path
        };
        Self {
            max_batch: model.max_batch,
            dispatch: world.dispatch,
            nodes: model.blocks.iter().flat_map(|b| b.nodes.clone()).collect(),
            at: arrivals.iter().map(|a| a.at).collect(),
            paths: arrivals.iter().map(path).collect(),
            known: BTreeMap::new(),
        }
    }

    /// The least sum of latencies.
    fn best(&mut self) -> u64 {
        let arrived: u64 = self.at.iter().sum();
        let start = self.at[0];
        self.least(start, &vec![0; self.at.len()]) - arrived
    }

    /// The least sum of finish times of those who have not ended, from an idle device at `now`.
    fn least(&mut self, now: u64, progress: &[usize]) -> u64 {
        let ended = |i: usize| progress[i] == self.paths[i].len();
        if (0..progress.len()).all(ended) {
            return 0;
        }
        let key = (now, progress.to_vec());
        if let Some(&least) = self.known.get(&key) {
            return least;
        }
        let mut least = u64::MAX;
        if let Some(next) = self.at.iter().copied().filter(|&at| at > now).min() {
            least = self.least(next, progress);
        }
        for set in 1u32..1 << progress.len() {
            let members: Vec<usize> = (0..progress.len()).filter(|i| set >> i & 1 == 1).collect();
            let node = |i: usize| self.paths[i].get(progress[i]).copied();
            let Some(first) = node(members[0]) else {
                continue;
            };
            let same = |&i: &usize| self.at[i] <= now && node(i) == Some(first);
            if set.count_ones() > self.max_batch || !members.iter().all(same) {
                continue;
            }
            let size = u64::from(set.count_ones());
            let end = now + self.nodes[first].latency(size, size) + self.dispatch;
            let mut then = progress.to_vec();
            let mut finished = 0;
            for i in members {
                then[i] += 1;
                finished += u64::from(then[i] == self.paths[i].len());
            }
            least = least.min(finished * end + self.least(end, &then));
        }
        self.known.insert(key, least);
        least
    }
}

/// Sum of the latencies of a policy's run.
fn sum_of(world: &World, policy: &str, arrivals: &[Arrival], seed: u64) -> u64 {
    let options = Options {
        seed,
        ..Options::default()
    };
    let run = simulate(world, policy, arrivals, &options);
    let late = |(finish, a): (u64, &Arrival)| finish - a.at;
    run.finishes().into_iter().zip(arrivals).map(late).sum()
}

fn nodes(rng: &mut ChaCha8Rng, num: usize) -> Vec<Node> {
    (0..num)
        .map(|_| Node::linear(rng.random_range(2..20), rng.random_range(1..8)))
        .collect()
}

/// Three arrivals over about `span`; half of the cases without targets.
fn arrivals(rng: &mut ChaCha8Rng, span: u64, max_steps: u32) -> Vec<Arrival> {
    let target = rng.random_bool(0.5);
    let mut at = 0;
    (0..3)
        .map(|_| {
            at += if rng.random_bool(0.2) {
                0
            } else {
                rng.random_range(0..=span)
            };
            let sla = target.then(|| rng.random_range(span..6 * span));
            Arrival::new(at, 0, 1, rng.random_range(1..=max_steps), sla)
        })
        .collect()
}

/// A chain of two or three nodes.
fn chain_case(seed: u64) -> (World, Vec<Arrival>) {
    let mut rng = rng(seed);
    let num = rng.random_range(2..=3);
    let mut world = World::chain(rng.random_range(2..=4), nodes(&mut rng, num));
    world.dispatch = rng.random_range(0..3);
    let arrivals = arrivals(&mut rng, 40, 1);
    (world, arrivals)
}

/// An optional node before a decoder of one or two nodes, of at most two steps.
fn decoder_case(seed: u64) -> (World, Vec<Arrival>) {
    let mut rng = rng(10_000 + seed);
    let mut world = World::chain(rng.random_range(2..=4), nodes(&mut rng, 1));
    if rng.random_bool(0.3) {
        world.models[0].blocks.clear();
    }
    let num = rng.random_range(1..=2);
    world.models[0].blocks.push(Block {
        rep: Rep::Until(None),
        nodes: nodes(&mut rng, num),
    });
    world.models[0].p90 = 2;
    let arrivals = arrivals(&mut rng, 30, 2);
    (world, arrivals)
}

/// Of how many cases a policy's sum is the bound, by policy; and the number of cases in which
/// some policy attains it.
fn count_attained(
    num: u64,
    case: impl Fn(u64) -> (World, Vec<Arrival>),
) -> (BTreeMap<&'static str, u64>, u64) {
    let mut attained: BTreeMap<_, _> = policies().map(|p| (p, 0)).collect();
    let mut by_some = 0;
    for seed in 0..num {
        let (world, arrivals) = case(seed);
        let bound = Search::new(&world, &arrivals).best();
        let mut least = u64::MAX;
        for policy in policies() {
            let sum = sum_of(&world, policy, &arrivals, seed);
            assert!(sum >= bound, "seed {seed}: {policy}: {sum} beats {bound}");
            *attained.get_mut(policy).expect("listed") += u64::from(sum == bound);
            least = least.min(sum);
        }
        by_some += u64::from(least == bound);
    }
    println!("of {num}: {by_some} by some policy, {attained:?}");
    (attained, by_some)
}

/// The bound is neither out of reach nor what everyone gets anyway.
fn is_telling(num: u64, by_some: u64, attained: &BTreeMap<&'static str, u64>) {
    assert!(3 * by_some > num, "{by_some} of {num} attained");
    for (policy, &count) in attained {
        assert!(count > 0, "{policy} is never best");
        assert!(10 * count < 9 * num, "{policy} is nearly always best");
    }
}

#[test]
fn no_policy_beats_the_best_schedule_of_a_chain() {
    let num = num_cases(150);
    let (attained, by_some) = count_attained(num, chain_case);
    is_telling(num, by_some, &attained);
}

#[test]
fn no_policy_beats_the_best_schedule_of_a_decoder() {
    let num = num_cases(150);
    let (attained, by_some) = count_attained(num, decoder_case);
    is_telling(num, by_some, &attained);
}

#[test]
fn it_may_pay_to_wait() {
    // One node of 10 whatever the batch, arrivals at 0 and 1: to start at once gives 10 and 19,
    // to wait for the second gives 11 and 10.
    let world = World::chain(4, vec![Node::constant(10)]);
    let arrivals = [0, 1].map(|at| Arrival::new(at, 0, 1, 1, None));
    assert_eq!(Search::new(&world, &arrivals).best(), 11 + 10);
    for policy in ["serial", "greedy", "lazy", "oracle"] {
        assert_eq!(
            sum_of(&world, policy, &arrivals, 0),
            10 + 19,
            "{policy} never waits"
        );
    }
    assert_eq!(sum_of(&world, "graph:0.000001", &arrivals, 0), 11 + 10);
}

#[test]
fn it_may_pay_to_catch_up() {
    // A cheap node, then a dear one that costs the same for two; the second arrives when the
    // first has just begun. Alone: 102, then 204. Caught up: the second runs its cheap node from
    // 2 to 4, and both the dear one from 4 to 104.
    let world = World::chain(4, vec![Node::constant(2), Node::constant(100)]);
    let arrivals = [0, 1].map(|at| Arrival::new(at, 0, 1, 1, None));
    assert_eq!(sum_of(&world, "greedy", &arrivals, 0), 102 + 203);
    assert_eq!(sum_of(&world, "lazy", &arrivals, 0), 104 + 103);
    // The best is to wait for the second, here too.
    assert_eq!(Search::new(&world, &arrivals).best(), 103 + 102);
    // Unless batches of the cheap node are dear.
    let world = World::chain(4, vec![Node::linear(0, 2), Node::constant(100)]);
    assert_eq!(sum_of(&world, "lazy", &arrivals, 0), 104 + 103);
    assert_eq!(Search::new(&world, &arrivals).best(), 104 + 103);
}
