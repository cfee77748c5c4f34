//! Several lanes, launches in flight behind one another, residency and sequences: what the types
//! allow and the real driver does not use yet, on a simulated device.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use lazybatch_engine::core::{Action, Event};
use lazybatch_sla::{LaneId, Launch, ModelId, Nanos, Outcome, RequestId, Ticket, Time};
use rand::Rng;

fn two(seed: u64) -> Options {
    Options {
        seed,
        lane_depths: vec![1, 1],
        record: true,
        ..Options::default()
    }
}

/// Random arrivals in a random world, nothing else.
fn plain_case(seed: u64) -> (World, Vec<Arrival>) {
    let mut rng = rng(seed);
    let world = random_world(&mut rng, Shape::default());
    let num = rng.random_range(1..40);
    let arrivals = random_arrivals(&mut rng, &world, num);
    (world, arrivals)
}

/// Launches in flight, by lane, as a transcript tells.
#[derive(Default)]
struct Flying(BTreeMap<LaneId, Vec<Launch>>);

impl Flying {
    fn see(&mut self, item: &Item) {
        match item {
            Item::Launch(l) => self.0.entry(l.lane).or_default().push(l.clone()),
            Item::Event(Event::Done { ticket, .. }) => {
                let lane = self.lane_of(*ticket);
                let oldest = self.0.get_mut(&lane).unwrap().remove(0).ticket;
                assert_eq!(oldest, *ticket, "{lane} completes in order");
            }
            _ => {}
        }
    }

    fn lane_of(&self, ticket: Ticket) -> LaneId {
        let holds = |ls: &[Launch]| ls.iter().any(|l| l.ticket == ticket);
        *self.0.iter().find(|(_, ls)| holds(ls)).unwrap().0
    }

    fn members(&self, lane: LaneId) -> BTreeSet<RequestId> {
        let launches = self.0.get(&lane).into_iter().flatten();
        launches
            .flat_map(|l| l.members.iter().map(|m| m.request))
            .collect()
    }

    fn num_busy(&self) -> usize {
        self.0.values().filter(|ls| !ls.is_empty()).count()
    }
}

fn makespan(run: &Run) -> u64 {
    run.finishes().into_iter().max().unwrap()
}

// --- lanes ------------------------------------------------------------------------------------

#[test]
fn nobody_is_on_two_lanes_and_lanes_complete_in_order() {
    let mut both = 0;
    for seed in 0..num_cases(100) {
        let (world, arrivals) = plain_case(seed);
        for policy in examples() {
            for depths in [[1, 1], [2, 1], [2, 2]] {
                let options = Options {
                    lane_depths: depths.to_vec(),
                    ..two(seed)
                };
                let run = simulate(&world, policy, &arrivals, &options);
                let mut flying = Flying::default();
                for (_, item) in &run.transcript {
                    flying.see(item);
                    let (a, b) = (flying.members(LaneId(0)), flying.members(LaneId(1)));
                    assert!(a.is_disjoint(&b), "seed {seed}: {policy}: {a:?} and {b:?}");
                    for (lane, launches) in &flying.0 {
                        assert!(launches.len() <= depths[lane.index()] as usize);
                    }
                    both += usize::from(!a.is_empty() && !b.is_empty());
                }
                assert_eq!(flying.num_busy(), 0, "seed {seed}: {policy}");
            }
        }
    }
    assert!(both > 1_000, "both lanes are in use");
}

#[test]
fn a_run_on_two_lanes_repeats() {
    for seed in 0..num_cases(60) {
        let (world, arrivals) = plain_case(seed);
        for policy in examples() {
            let run = || simulate(&world, policy, &arrivals, &two(seed));
            let (a, b) = (run(), run());
            assert!(a.transcript == b.transcript, "seed {seed}: {policy}");
            assert_eq!(a.ended, b.ended, "seed {seed}: {policy}");
            assert_eq!(a.counters, b.counters, "seed {seed}: {policy}");
        }
    }
}

/// When a moment's decisions are made and a lane is idle, everyone open runs on the other.
#[test]
fn serial_and_greedy_leave_no_lane_idle_while_work_waits() {
    let mut idle = 0;
    for seed in 0..num_cases(150) {
        let (world, arrivals) = plain_case(seed);
        for policy in ["serial", "greedy"] {
            let run = simulate(&world, policy, &arrivals, &two(seed));
            let mut flying = Flying::default();
            let mut open = BTreeSet::new();
            for (i, (now, item)) in run.transcript.iter().enumerate() {
                flying.see(item);
                match item {
                    Item::Event(Event::Arrive(r)) => {
                        open.insert(r.id);
                    }
                    Item::Action(Action::Finish { request, .. }) => {
                        open.remove(request);
                    }
                    _ => {}
                }
                let last = run.transcript.get(i + 1).is_none_or(|n| n.0 > *now);
                if last && flying.num_busy() < 2 {
                    idle += 1;
                    let mut running = flying.members(LaneId(0));
                    running.extend(flying.members(LaneId(1)));
                    assert_eq!(open, running, "seed {seed}: {policy} at {now}");
                }
            }
        }
    }
    assert!(idle > 100, "there are moments to look at");
}

#[test]
fn two_lanes_halve_the_time_of_equal_requests() {
    // Two nodes, 30 alone and 40 in pairs; everyone arrives at once.
    let world = World::chain(2, vec![Node::linear(15, 5), Node::linear(5, 5)]);
    for num in [1u64, 2, 3, 4, 9, 40, 101] {
        let arrivals: Vec<_> = (0..num).map(|_| Arrival::new(0, 0, 1, 1, None)).collect();
        let time = |policy, lanes| {
            let options = Options {
                lane_depths: vec![1; lanes],
                ..two(num)
            };
            makespan(&simulate(&world, policy, &arrivals, &options))
        };
        for lanes in [1, 2, 3] {
            let rounds = num.div_ceil(lanes as u64);
            assert_eq!(time("serial", lanes), 30 * rounds, "{num} on {lanes}");
        }
        // Pairs; one who is left over runs alone in 30.
        let whole = (num / 2).div_ceil(2) * 40;
        let odd = (num / 2) / 2 * 40 + 30;
        let expected = if num % 2 == 1 { whole.max(odd) } else { whole };
        assert_eq!(time("greedy", 2), expected, "{num}");
        if num >= 4 {
            for policy in ["serial", "greedy"] {
                assert!(4 * time(policy, 2) < 3 * time(policy, 1), "{num}: {policy}");
            }
        }
    }
}

#[test]
fn lazy_runs_newcomers_on_the_other_lane() {
    // One node of 100; the second arrives at 10 and has room beside the first.
    let world = World::chain(4, vec![Node::constant(100)]);
    let arrivals = [0, 10].map(|at| Arrival::new(at, 0, 1, 1, None));
    for policy in ["lazy", "lazy:late-admits", "oracle"] {
        let run = simulate(&world, policy, &arrivals, &two(0));
        assert_eq!(run.starts(), [Some(0), Some(10)], "{policy}");
        assert_eq!(run.finishes(), [100, 110], "{policy}");
    }
}

#[test]
fn serial_on_two_lanes_by_hand() {
    // Two nodes, 10 and 5.
    //   lane 0: r0 0-15        r2 15-30
    //   lane 1: r1 0-15             r3 20-35  r4 35-50
    // and r5 takes lane 0 at 30; which lane an entry continues on does not matter.
    let world = World::chain(1, vec![Node::constant(10), Node::constant(5)]);
    let arrivals = [0, 0, 3, 20, 21, 22].map(|at| Arrival::new(at, 0, 1, 1, None));
    let run = simulate(&world, "serial", &arrivals, &two(0));
    assert_eq!(run.starts(), [0, 0, 15, 20, 30, 35].map(Some));
    assert_eq!(run.finishes(), [15, 15, 30, 35, 45, 50]);
    assert_eq!(run.counters.launches, 12);
    let first: Vec<_> = run.launches().take(2).map(|(t, l)| (t.0, l.lane)).collect();
    assert_eq!(first, [(0, LaneId(0)), (0, LaneId(1))]);
}

#[test]
fn greedy_on_two_lanes_by_hand() {
    // Nodes of 10 + 2 and 5 + 1 per member, at most 2 in a batch.
    //   lane 0: {r0, r1} 0-14-21               {r5} 30-42-48
    //   lane 1: {r2} 0-12-18  {r3, r4} 18-32-39
    let world = World::chain(2, vec![Node::linear(10, 2), Node::linear(5, 1)]);
    let arrivals = [0, 0, 0, 4, 4, 30].map(|at| Arrival::new(at, 0, 1, 1, None));
    let run = simulate(&world, "greedy", &arrivals, &two(0));
    assert_eq!(run.starts(), [0, 0, 0, 18, 18, 30].map(Some));
    assert_eq!(run.finishes(), [21, 21, 18, 39, 39, 48]);
    assert_eq!(run.counters.launches, 8);
    assert_eq!(run.counters.batched, 12);
}

// --- residency --------------------------------------------------------------------------------

/// Loads and evictions as the transcript has them.
fn residency(run: &Run) -> Vec<(u64, &'static str)> {
    run.transcript
        .iter()
        .filter_map(|(t, item)| match item {
            Item::Action(Action::Load(_)) => Some((t.0, "load")),
            Item::Event(Event::Loaded(_)) => Some((t.0, "loaded")),
            Item::Event(Event::Evict(_)) => Some((t.0, "asked")),
            Item::Action(Action::Evict(_)) => Some((t.0, "evict")),
            _ => None,
        })
        .collect()
}

#[test]
fn a_model_loads_at_its_first_arrival_and_again_behind_an_eviction() {
    // Two nodes of 10 each, 100 to load.
    let world = World::chain(1, vec![Node::constant(10), Node::constant(10)]);
    let mut options = two(0);
    options.absent = vec![0];
    options.script.load = Nanos(100);
    options.script.evicts = [1, 110, 300, 310].map(|t| (Time(t), ModelId(0))).to_vec();
    let arrivals = [5, 7, 115, 400].map(|at| Arrival::new(at, 0, 1, 1, None));
    for policy in examples() {
        let run = simulate(&world, policy, &arrivals, &options);
        check_run(&world, &arrivals, &options, &run);
        if policy != "serial" {
            // Others need not use both lanes at max batch 1, or wait for their window.
            continue;
        }
        assert_eq!(
            residency(&run),
            [
                // Not there: nothing to evict.
                (1, "asked"),
                (5, "load"),
                (105, "loaded"),
                // Both run until 125; the third waits, and asks for it again.
                (110, "asked"),
                (125, "evict"),
                (125, "load"),
                (225, "loaded"),
                // Idle: at once, and only once.
                (300, "asked"),
                (300, "evict"),
                (310, "asked"),
                (400, "load"),
                (500, "loaded"),
            ]
        );
        assert_eq!(run.starts(), [105, 105, 225, 500].map(Some));
        assert_eq!(run.finishes(), [125, 125, 245, 520]);
    }
}

#[test]
fn an_absent_model_holds_nobody_else_up() {
    // Model 1 is there; model 0 takes 1000 to load.
    let mut world = World::chain(1, vec![Node::constant(10)]);
    world.models.push(world.models[0].clone());
    let mut options = two(0);
    options.absent = vec![0];
    options.script.load = Nanos(1_000);
    let of = |at, model| Arrival::new(at, model, 1, 1, None);
    let arrivals = [of(0, 0), of(0, 1), of(0, 0), of(0, 1), of(1, 1)];
    let run = simulate(&world, "serial", &arrivals, &options);
    assert_eq!(run.finishes(), [1_010, 10, 1_010, 10, 20]);
    assert_eq!(residency(&run), [(0, "load"), (1_000, "loaded")]);
}

#[test]
fn residency_holds_under_random_evictions() {
    let mut evicted = 0;
    for seed in 0..num_cases(80) {
        let (world, arrivals) = plain_case(seed);
        let mut rng = rng(seed);
        let mut options = two(seed);
        options.script.load = Nanos(rng.random_range(0..2 * mean_alone(&world)));
        let end = arrivals.last().unwrap().at;
        for m in 0..world.models.len() {
            options.absent.push(m);
            for _ in 0..3 {
                let at = Time(rng.random_range(0..=end));
                options.script.evicts.push((at, ModelId(m as u32)));
            }
        }
        options.script.evicts.sort();
        for policy in examples() {
            let run = simulate(&world, policy, &arrivals, &options);
            check_run(&world, &arrivals, &options, &run);
            let residency = residency(&run);
            let num = |what| residency.iter().filter(|r| r.1 == what).count();
            assert_eq!(num("load"), num("loaded"), "seed {seed}: {policy}");
            assert!(num("evict") <= num("loaded"), "seed {seed}: {policy}");
            evicted += num("evict");
        }
    }
    assert!(evicted > 100);
}

// --- sequences --------------------------------------------------------------------------------

#[test]
fn a_sequence_runs_in_order_although_a_lane_is_free() {
    let world = World::chain(1, vec![Node::constant(10)]);
    let of = |sequence| {
        let mut a = Arrival::new(0, 0, 1, 1, None);
        a.sequence = sequence;
        a
    };
    // Alone, the sequence leaves the second lane idle.
    let arrivals = [7, 7, 7, 7].map(|s| of(Some(s)));
    let run = simulate(&world, "serial", &arrivals, &two(0));
    assert_eq!(run.finishes(), [10, 20, 30, 40]);
    // Others and other sequences fill it.
    let arrivals = [Some(7), Some(7), None, Some(7), Some(8)].map(of);
    let run = simulate(&world, "serial", &arrivals, &two(0));
    assert_eq!(run.finishes(), [10, 20, 10, 30, 20]);
}

#[test]
fn requests_of_a_sequence_never_overlap() {
    for seed in 0..num_cases(80) {
        let (world, mut arrivals) = plain_case(seed);
        let mut rng = rng(seed);
        for a in &mut arrivals {
            a.sequence = rng.random_bool(0.7).then(|| rng.random_range(0..3));
        }
        for policy in examples() {
            let run = simulate(&world, policy, &arrivals, &two(seed));
            check_run(&world, &arrivals, &two(seed), &run);
            let mut flying = Flying::default();
            for (_, item) in &run.transcript {
                flying.see(item);
                let mut seen = BTreeSet::new();
                let on = |lane| flying.members(LaneId(lane));
                for id in on(0).into_iter().chain(on(1)) {
                    let a = &arrivals[id.index()];
                    let first = a.sequence.is_none_or(|s| seen.insert((a.model, s)));
                    assert!(first, "seed {seed}: {policy}: {id} overlaps its sequence");
                }
            }
        }
    }
}

// --- depth ------------------------------------------------------------------------------------

fn decoder() -> World {
    let mut world = World::chain(4, vec![]);
    world.models[0].blocks = vec![Block {
        rep: Rep::Until(None),
        nodes: vec![Node::constant(10)],
    }];
    world
}

#[test]
fn a_late_exit_costs_one_step_by_hand() {
    // Depth 2: r0 is launched for steps 0, 1 and, before it is known to have stopped at 20, 2.
    // r1 starts behind that at 30, and stops with its first step at 40; its second is in vain.
    let arrivals = [2, 1].map(|steps| Arrival::new(0, 0, 0, steps, None));
    let deep = Options {
        lane_depths: vec![2],
        record: true,
        ..Options::default()
    };
    let run = simulate(&decoder(), "serial", &arrivals, &deep);
    check_run(&decoder(), &arrivals, &deep, &run);
    assert_eq!(run.finishes(), [20, 40]);
    assert_eq!(run.counters.discarded, 2);
    let run = simulate(&decoder(), "serial", &arrivals, &Options::default());
    assert_eq!(run.finishes(), [20, 30]);
    assert_eq!(run.counters.discarded, 0);
}

#[test]
fn late_exits_change_no_outcome() {
    let mut discarded = BTreeMap::new();
    for seed in 0..num_cases(60) {
        let mut rng = rng(seed);
        let arrivals: Vec<_> = (0..20)
            .map(|i| Arrival::new(i * 15, 0, 0, rng.random_range(0..6), None))
            .collect();
        for policy in examples() {
            let at_depth = |depth| {
                let options = Options {
                    lane_depths: vec![depth],
                    ..two(seed)
                };
                let run = simulate(&decoder(), policy, &arrivals, &options);
                check_run(&decoder(), &arrivals, &options, &run);
                run
            };
            let (shallow, deep) = (at_depth(1), at_depth(2));
            let outcomes =
                |run: &Run| -> Vec<_> { run.ended.iter().map(|e| (e.id, e.outcome)).collect() };
            assert_eq!(outcomes(&deep), outcomes(&shallow), "seed {seed}: {policy}");
            assert!(deep.ended.iter().all(|e| e.outcome == Outcome::Met));
            assert_eq!(shallow.counters.discarded, 0);
            *discarded.entry(policy).or_insert(0) += deep.counters.discarded;
        }
    }
    for policy in ["serial", "lazy", "lazy:late-admits", "oracle"] {
        assert!(discarded[policy] > 0, "{policy}: {discarded:?}");
    }
}
