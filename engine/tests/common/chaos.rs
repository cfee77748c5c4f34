//! Everything at once, and what must hold whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_sla::{Class, LaneId, Late, Nanos, Outcome, RequestId, Slot, Ticket};

use super::*;

/// A random world with random arrivals and everything that can go wrong.
pub struct Chaos {
    pub world: World,
    pub arrivals: Vec<Arrival>,
    pub options: Options,
}

impl Chaos {
    /// The chaos of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = rng(seed);
        let world = random_world(&mut rng, Shape::default());
        let num = rng.random_range(1..40);
        let mut arrivals = random_arrivals(&mut rng, &world, num);
        if rng.random_bool(0.3) {
            for a in &mut arrivals {
                a.samples = rng.random_range(1..=world.models[a.model].max_batch.min(5));
            }
        }
        if rng.random_bool(0.4) {
            for a in &mut arrivals {
                a.sequence = rng.random_bool(0.6).then(|| rng.random_range(0..3));
            }
        }
        let mut priorities = super::rng(!seed);
        if priorities.random() {
            for a in &mut arrivals {
                a.priority = priorities.random_range(0..4);
            }
        }
        let classes = match priorities.random_range(0..3) {
            0 => random_classes(&mut priorities),
            _ => vec![Class::default()],
        };
        for a in &mut arrivals {
            a.class = priorities.random_range(0..classes.len() as u32);
        }
        let alone = mean_alone(&world);
        let lanes = rng.random_range(1..=2);
        let mut options = Options {
            seed,
            classes,
            lane_depths: (0..lanes).map(|_| rng.random_range(1..=3)).collect(),
            notes: rng.random(),
            record: true,
            ..Options::default()
        };
        if rng.random_bool(0.3) {
            options.max_queue = rng.random_range(1..10);
        }
        if rng.random_bool(0.5) {
            options.noise = Noise {
                seed,
                jitter: rng.random_range(0.0..0.5),
                straggler_rate: 0.05,
                straggler_factor: 20.0,
                failure_rate: if rng.random() { 0.03 } else { 0.0 },
                fault_rate: if priorities.random() { 0.02 } else { 0.0 },
                failing: Vec::new(),
            };
        }
        let script = &mut options.script;
        if rng.random_bool(0.5) {
            for (i, a) in arrivals.iter().enumerate() {
                if rng.random_bool(0.3) {
                    let at = a.at + rng.random_range(0..=alone * 6);
                    script.cancels.push((Time(at), RequestId(i as u64)));
                }
            }
            script.cancels.sort();
        }
        if rng.random_bool(0.4) {
            script.load = Nanos(rng.random_range(0..alone * 3 + 1));
            let end = arrivals.last().map_or(0, |a| a.at);
            for m in 0..world.models.len() {
                if rng.random() {
                    options.absent.push(m);
                }
                for _ in 0..rng.random_range(0..3) {
                    let at = Time(rng.random_range(0..=end + alone));
                    script.evicts.push((at, ModelId(m as u32)));
                }
            }
            script.evicts.sort();
        }
        Self {
            world,
            arrivals,
            options,
        }
    }
}

/// Up to four classes of which none refuses a request.
fn random_classes(rng: &mut ChaCha8Rng) -> Vec<Class> {
    let class = |i: u32, rng: &mut ChaCha8Rng| Class {
        weight: rng.random_range(0.1..5.0),
        late: [None, Some(Late::Keep), Some(Late::Demote)][rng.random_range(0..3)],
        patience: rng
            .random_bool(0.3)
            .then(|| Nanos(rng.random_range(1..2_000_000))),
        ..Class::new(format!("class {i}"))
    };
    (0..rng.random_range(1..5)).map(|i| class(i, rng)).collect()
}

/// Everything that must hold of a recorded run beside the checker's rules.
pub fn check_run(world: &World, arrivals: &[Arrival], options: &Options, run: &Run) {
    let ids: Vec<_> = run.ended.iter().map(|e| e.id.index()).collect();
    let all: Vec<_> = (0..arrivals.len()).collect();
    assert_eq!(ids, all, "everyone ends once");
    check_failures(run);
    check_sequences(arrivals, run);
    check_slots(run);
    check_residency(world, options, run);
    check_work(world, arrivals, options, run);
}

fn launches_by_ticket(run: &Run) -> BTreeMap<Ticket, Launch> {
    run.launches().map(|(_, l)| (l.ticket, l.clone())).collect()
}

/// Who failed are the members of failed launches that had not ended before, those who failed alone, and
/// nobody else. Who
/// ended by another event of that very timestamp may precede the failure.
fn check_failures(run: &Run) {
    let launches = launches_by_ticket(run);
    let mut ended = BTreeSet::new();
    let mut expected = BTreeSet::new();
    for (now, item) in &run.transcript {
        match item {
            Item::Event(Event::Done {
                ticket,
                failed: Some(_),
                ..
            }) => {
                let members = launches[ticket].members.iter().map(|m| m.request);
                let tied = |r: &RequestId| {
                    let e = &run.ended[r.index()];
                    e.finish == *now && e.outcome != Outcome::Failed
                };
                expected.extend(members.filter(|r| !ended.contains(r) && !tied(r)));
            }
            Item::Event(Event::Done { faults, .. }) => {
                let faults = faults.iter().map(|(id, _)| *id);
                expected.extend(faults.filter(|r| !ended.contains(r)));
            }
            Item::Action(Action::Finish { request, .. }) => {
                ended.insert(*request);
            }
            _ => {}
        }
    }
    let failed: BTreeSet<_> = run
        .ended
        .iter()
        .filter(|e| e.outcome == Outcome::Failed)
        .map(|e| e.id)
        .collect();
    assert_eq!(
        failed, expected,
        "failed are the members of failed launches"
    );
}

/// Requests of one sequence hold their slots one after another, in order of arrival.
fn check_sequences(arrivals: &[Arrival], run: &Run) {
    let mut holds: BTreeMap<(usize, u64), RequestId> = BTreeMap::new();
    let mut last: BTreeMap<(usize, u64), RequestId> = BTreeMap::new();
    let key = |r: &RequestId| {
        let a = &arrivals[r.index()];
        a.sequence.map(|s| (a.model, s))
    };
    for (_, item) in &run.transcript {
        match item {
            Item::Action(Action::Open { request, .. }) => {
                let Some(key) = key(request) else { continue };
                let other = holds.insert(key, *request);
                assert_eq!(other, None, "{request} overlaps its sequence");
                assert!(last.insert(key, *request) < Some(*request), "in order");
            }
            Item::Action(Action::Release { request, .. }) => {
                if let Some(key) = key(request) {
                    holds.remove(&key);
                }
            }
            _ => {}
        }
    }
}

/// A slot has one holder, is used by it alone, and is released when nothing in flight uses it.
fn check_slots(run: &Run) {
    let mut holder: BTreeMap<Slot, RequestId> = BTreeMap::new();
    let mut flying: BTreeMap<Ticket, Launch> = BTreeMap::new();
    let mut lanes: BTreeMap<RequestId, LaneId> = BTreeMap::new();
    for (_, item) in &run.transcript {
        match item {
            Item::Action(Action::Open { request, slot }) => {
                assert_eq!(holder.insert(*slot, *request), None, "{slot} is taken");
            }
            Item::Action(Action::Release { request, slot }) => {
                assert_eq!(holder.remove(slot), Some(*request));
                let used = flying
                    .values()
                    .any(|l| l.members.iter().any(|m| m.slot == *slot));
                assert!(!used, "{slot} is released but in flight");
            }
            Item::Launch(launch) => {
                lanes.clear();
                for l in flying.values().chain([launch]) {
                    for m in &l.members {
                        let lane = *lanes.entry(m.request).or_insert(l.lane);
                        assert_eq!(lane, l.lane, "{} is on two lanes", m.request);
                    }
                }
                for m in &launch.members {
                    assert_eq!(holder.get(&m.slot), Some(&m.request));
                }
                flying.insert(launch.ticket, launch.clone());
            }
            Item::Event(Event::Done { ticket, .. }) => {
                flying.remove(ticket);
            }
            _ => {}
        }
    }
    assert!(holder.is_empty(), "{holder:?} are never released");
}

/// Loads once when needed, launches only what is loaded, evicts only what nobody uses.
fn check_residency(world: &World, options: &Options, run: &Run) {
    let mut resident: Vec<bool> = (0..world.models.len())
        .map(|m| !options.absent.contains(&m))
        .collect();
    let mut loading = vec![false; world.models.len()];
    let mut open: BTreeMap<RequestId, usize> = BTreeMap::new();
    let mut opened = Vec::new();
    for (_, item) in &run.transcript {
        match item {
            Item::Event(Event::Arrive(r)) => {
                open.insert(r.id, r.model.index());
            }
            Item::Action(Action::Open { request, .. }) => opened.push(*request),
            Item::Action(Action::Release { request, .. }) => opened.retain(|r| r != request),
            Item::Action(Action::Load(m)) => {
                assert!(
                    !resident[m.index()] && !loading[m.index()],
                    "{m} loads twice"
                );
                loading[m.index()] = true;
            }
            Item::Event(Event::Loaded(m)) => {
                loading[m.index()] = false;
                resident[m.index()] = true;
            }
            Item::Action(Action::Evict(m)) => {
                assert!(resident[m.index()], "{m} is evicted but not resident");
                let used = opened.iter().find(|r| open[r] == m.index());
                assert_eq!(used, None, "{m} is evicted in use");
                resident[m.index()] = false;
            }
            Item::Launch(l) => assert!(resident[l.model.index()], "{} is not there", l.model),
            _ => {}
        }
    }
}

/// Counters are those of the transcript; completed requests did their path and nothing else but
/// discarded passes, which are counted.
fn check_work(world: &World, arrivals: &[Arrival], options: &Options, run: &Run) {
    let launches = launches_by_ticket(run);
    let nodes: u32 = launches.values().map(|l| l.end_node - l.first_node).sum();
    assert_eq!(run.counters.launches, u64::from(nodes));
    assert_eq!(run.counters.finished, arrivals.len() as u64);
    // Per request and block: the steps launched so far, and nodes launched in all.
    let mut steps: BTreeMap<(RequestId, u32), BTreeSet<u32>> = BTreeMap::new();
    let mut work: BTreeMap<RequestId, Vec<(u32, u32, u32)>> = BTreeMap::new();
    let mut ended: BTreeMap<RequestId, Outcome> = BTreeMap::new();
    let mut discarded = 0;
    for (_, item) in &run.transcript {
        match item {
            Item::Launch(l) => {
                for m in l.members.iter().filter(|m| !m.idle) {
                    steps
                        .entry((m.request, l.block))
                        .or_default()
                        .insert(m.step);
                    let nodes = (l.first_node..l.end_node).map(|n| (l.block, m.step, n));
                    work.entry(m.request).or_default().extend(nodes);
                }
            }
            Item::Event(Event::Done {
                ticket,
                stopped,
                failed: None,
                ..
            }) => {
                let l = &launches[ticket];
                for r in stopped.iter().filter(|r| !ended.contains_key(r)) {
                    let m = l
                        .members
                        .iter()
                        .find(|m| m.request == *r)
                        .expect("a member");
                    let later = steps[&(*r, l.block)].range(m.step + 1..).count();
                    discarded += later as u64;
                }
            }
            Item::Action(Action::Finish {
                request, outcome, ..
            }) => {
                ended.insert(*request, *outcome);
            }
            _ => {}
        }
    }
    assert_eq!(
        run.counters.discarded, discarded,
        "discarded passes are counted"
    );
    if options.lane_depths.iter().all(|&d| d == 1) {
        assert_eq!(discarded, 0);
    }
    for (r, _) in ended.iter().filter(|e| e.1.is_completed()) {
        let a = &arrivals[r.index()];
        let mut path = Vec::new();
        for (b, block) in world.models[a.model].blocks.iter().enumerate() {
            for step in 0..block.passes(a.input_len, a.output_len) {
                path.extend((0..block.nodes.len()).map(|n| (b as u32, step, n as u32)));
            }
        }
        let mut done = work.remove(r).unwrap_or_default();
        let needed = |&(b, step, _): &(u32, u32, u32)| {
            let block = &world.models[a.model].blocks[b as usize];
            step < block.passes(a.input_len, a.output_len)
        };
        done.retain(needed);
        assert_eq!(done, path, "{r} passes its path");
    }
}
