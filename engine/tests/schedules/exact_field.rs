//! `continuous` (and `iteration`, which does the same), `cellular` and `triton` against second, naive
//! implementations, to the nanosecond.
//!
//! The first two follow the text of docs/scheduling.md for one model on one lane; `triton` keeps
//! queues as Triton does: per level the requests in time and those that are late, refused when
//! they arrive to a full queue. They share no code with the engine. Totals are asserted, so that
//! the cases are known to do what the policies are about.

use std::collections::VecDeque;

use crate::common::*;
use rand::Rng;

/// A batch: members with their completed passes of the block, and when it was launched last.
#[derive(Clone, Debug)]
struct Group {
    block: usize,
    node: usize,
    members: Vec<(usize, u32)>,
    launched: u64,
}

impl Group {
    fn oldest(&self) -> usize {
        let ids = self.members.iter().map(|m| m.0);
        ids.min().expect("members")
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Continuous,
    Cellular,
}

#[derive(Default, Debug)]
struct Totals {
    merges: u64,
    joins: u64,
    parts: u64,
    /// Launches of another batch than the one before, which goes on later.
    switches: u64,
}

struct Naive<'a> {
    model: &'a Model,
    dispatch: u64,
    arrivals: &'a [Arrival],
    rule: Rule,
    now: u64,
    groups: Vec<Group>,
    waiting: VecDeque<usize>,
    joined: bool,
    /// By block: how many cells had run when it ran last, itself included.
    ran: Vec<usize>,
    cells: usize,
    launches: u64,
    batched: u64,
    finish: Vec<u64>,
    start: Vec<Option<u64>>,
    totals: Totals,
}

impl Naive<'_> {
    fn max_batch(&self) -> usize {
        self.model.max_batch as usize
    }

    fn in_flight(&self) -> usize {
        self.groups.iter().map(|g| g.members.len()).sum()
    }

    /// The two smallest at a cursor merge as long as they fit.
    fn merge(&mut self) {
        let cursors: Vec<_> = self.groups.iter().map(|g| (g.block, g.node)).collect();
        for cursor in cursors {
            loop {
                let mut here: Vec<usize> = (0..self.groups.len())
                    .filter(|&i| (self.groups[i].block, self.groups[i].node) == cursor)
                    .collect();
                here.sort_by_key(|&i| (self.groups[i].members.len(), self.groups[i].oldest()));
                let &[a, b, ..] = &here[..] else { break };
                let both = self.groups[a].members.len() + self.groups[b].members.len();
                if both > self.max_batch() {
                    break;
                }
                let gone = self.groups[b].clone();
                self.groups[a].members.extend(gone.members);
                self.groups[a].launched = self.groups[a].launched.max(gone.launched);
                self.groups.remove(b);
                self.totals.merges += 1;
            }
        }
    }

    /// Puts members where they go on; who has no pass left has ended.
    fn place(&mut self, members: Vec<(usize, usize, u32)>, launched: u64) {
        let mut by_block: Vec<Vec<(usize, u32)>> = vec![Vec::new(); self.model.blocks.len()];
        for (r, mut block, mut step) in members {
            let a = &self.arrivals[r];
            let passes = |b: usize| self.model.blocks[b].passes(a.input_len, a.output_len);
            while block < by_block.len() && passes(block) <= step {
                block += 1;
                step = 0;
            }
            match by_block.get_mut(block) {
                Some(group) => group.push((r, step)),
                None => self.finish[r] = self.now,
            }
        }
        let groups = by_block.into_iter().enumerate();
        let before = self.groups.len();
        for (block, members) in groups.filter(|g| !g.1.is_empty()) {
            self.groups.push(Group {
                block,
                node: 0,
                members,
                launched,
            });
        }
        self.totals.parts += (self.groups.len() - before).saturating_sub(1) as u64;
    }

    fn admit(&mut self, num: usize) {
        self.totals.joins += u64::from(!self.groups.is_empty());
        let members = self.waiting.drain(..num).map(|r| (r, 0, 0)).collect();
        self.place(members, 0);
    }

    fn run_node(&mut self, i: usize) {
        let mut group = self.groups.remove(i);
        let block = &self.model.blocks[group.block];
        for m in &group.members {
            self.start[m.0].get_or_insert(self.now);
        }
        let size = group.members.len() as u64;
        let lens = group.members.iter().map(|m| self.arrivals[m.0].input_len);
        let rows = lens.map(u64::from).sum();
        self.now += block.nodes[group.node].latency(size, rows) + self.dispatch;
        let last = self.groups.iter().map(|g| g.launched).max().unwrap_or(0);
        self.totals.switches += u64::from(last > group.launched && last == self.launches);
        self.launches += 1;
        self.batched += size;
        group.launched = self.launches;
        group.node += 1;
        if group.node < block.nodes.len() {
            self.groups.push(group);
        } else {
            let on = group.members.iter().map(|&(r, s)| (r, group.block, s + 1));
            self.place(on.collect(), group.launched);
        }
    }

    /// One step at `now`; false if there is nothing to do.
    fn continuous(&mut self) -> bool {
        let last = self
            .model
            .blocks
            .iter()
            .rposition(|b| matches!(b.rep, Rep::Until(_)));
        let key = |g: &Group| match last {
            Some(last) if g.block > last => (0, g.block, g.node),
            Some(last) if g.block == last && g.node > 0 => (1, g.block, g.node),
            Some(last) if g.block == last => (3, 0, 0),
            _ => (2, g.block, g.node),
        };
        let next = (0..self.groups.len()).min_by_key(|&i| key(&self.groups[i]));
        if let Some(i) = next.filter(|&i| key(&self.groups[i]).0 < 3) {
            self.run_node(i);
            return true;
        }
        let room = self.max_batch() - self.in_flight();
        let num = room.min(self.waiting.len());
        if num > 0 && !(self.joined && next.is_some()) {
            self.joined = last.is_some();
            self.admit(num);
            return true;
        }
        let Some(i) = next else { return false };
        self.joined = false;
        self.run_node(i);
        true
    }

    /// One step at `now`; false if there is nothing to do.
    fn cellular(&mut self) -> bool {
        if let Some(i) = self.groups.iter().position(|g| g.node > 0) {
            self.run_node(i);
            return true;
        }
        let sizes = |b: usize| self.groups.iter().filter(move |g| g.block == b);
        let smallest = sizes(0).map(|g| g.members.len()).min().unwrap_or(0);
        let room = (self.max_batch() - smallest).min(4 * self.max_batch() - self.in_flight());
        let joining = room.min(self.waiting.len());
        let ready = |b: usize| {
            let there: usize = sizes(b).map(|g| g.members.len()).sum();
            there + if b == 0 { joining } else { 0 }
        };
        let blocks = 0..self.model.blocks.len();
        let full = blocks.clone().rev().find(|&b| ready(b) >= self.max_batch());
        let some = blocks.rev().filter(|&b| ready(b) > 0);
        let Some(block) = full.or_else(|| some.min_by_key(|&b| self.ran[b])) else {
            return false;
        };
        if block == 0 && joining > 0 {
            self.admit(joining);
            return true;
        }
        self.cells += 1;
        self.ran[block] = self.cells;
        let longest = (0..self.groups.len())
            .filter(|&i| self.groups[i].block == block)
            .min_by_key(|&i| (self.groups[i].launched, self.groups[i].oldest()));
        self.run_node(longest.expect("who is ready"));
        true
    }

    fn run(mut self) -> Self {
        let mut next = 0;
        loop {
            while next < self.arrivals.len() && self.arrivals[next].at <= self.now {
                self.waiting.push_back(next);
                next += 1;
            }
            self.merge();
            let went_on = match self.rule {
                Rule::Continuous => self.continuous(),
                Rule::Cellular => self.cellular(),
            };
            if !went_on {
                let Some(arrival) = self.arrivals.get(next) else {
                    return self;
                };
                self.now = self.now.max(arrival.at);
            }
        }
    }
}

fn check(rule: Rule, policy: &str) {
    let cases = num_cases(800);
    let mut sum = Totals::default();
    for seed in 0..cases {
        let mut rng = rng(seed);
        let shape = Shape {
            max_models: 1,
            caps_anywhere: false,
        };
        let world = random_world(&mut rng, shape);
        let num = rng.random_range(1..60);
        let arrivals = random_arrivals(&mut rng, &world, num);
        let options = Options {
            seed,
            ..Options::default()
        };
        let run = simulate(&world, policy, &arrivals, &options);
        let expected = Naive {
            model: &world.models[0],
            dispatch: world.dispatch,
            arrivals: &arrivals,
            rule,
            now: 0,
            groups: Vec::new(),
            waiting: VecDeque::new(),
            joined: false,
            ran: vec![0; world.models[0].blocks.len()],
            cells: 0,
            launches: 0,
            batched: 0,
            finish: vec![0; arrivals.len()],
            start: vec![None; arrivals.len()],
            totals: Totals::default(),
        }
        .run();
        assert_eq!(run.finishes(), expected.finish, "seed {seed}: {policy}");
        assert_eq!(run.starts(), expected.start, "seed {seed}: {policy}");
        assert_eq!(run.counters.launches, expected.launches, "seed {seed}");
        assert_eq!(run.counters.batched, expected.batched, "seed {seed}");
        sum.merges += expected.totals.merges;
        sum.joins += expected.totals.joins;
        sum.parts += expected.totals.parts;
        sum.switches += expected.totals.switches;
    }
    println!("{policy}: {sum:?}");
    for (what, count) in [
        ("merges", sum.merges),
        ("joins", sum.joins),
        ("parts", sum.parts),
        ("switches", sum.switches),
    ] {
        assert!(count >= cases, "only {count} {what} in {cases} cases");
    }
}

#[test]
fn continuous_agrees() {
    check(Rule::Continuous, "continuous");
}

/// Where nobody has a class, a level or anything to lose by being late.
#[test]
fn iteration_agrees_with_continuous() {
    check(Rule::Continuous, "iteration");
}

#[test]
fn cellular_agrees() {
    check(Rule::Cellular, "cellular");
}

/// Settings of Triton's batcher, in samples and nanoseconds; 0 is none.
#[derive(Clone, Debug)]
struct Batcher {
    preferred: Vec<u32>,
    delay: u64,
    levels: usize,
    default_level: usize,
    timeout: u64,
    rejects: bool,
    max_queue: usize,
    pads: bool,
}

/// One priority level: who is in time, and who is not.
#[derive(Default)]
struct Level {
    queue: VecDeque<usize>,
    late: VecDeque<usize>,
}

impl Batcher {
    fn random(rng: &mut rand_chacha::ChaCha8Rng) -> Self {
        let us = |rng: &mut rand_chacha::ChaCha8Rng| 1000 * rng.random_range(1..60);
        let levels = if rng.random() {
            rng.random_range(1..4)
        } else {
            0
        };
        let mut preferred: Vec<u32> = (0..rng.random_range(0..3))
            .map(|_| rng.random_range(1..6))
            .collect();
        preferred.sort_unstable();
        Self {
            preferred,
            delay: if rng.random() { us(rng) } else { 0 },
            levels,
            default_level: rng.random_range(levels.min(1)..=levels),
            timeout: if rng.random() { us(rng) } else { 0 },
            rejects: rng.random(),
            max_queue: if rng.random() {
                rng.random_range(1..8)
            } else {
                0
            },
            pads: rng.random(),
        }
    }

    fn spec(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut parts = vec![
            format!("delay={}", ms(self.delay)),
            format!("levels={}", self.levels),
            format!("default-level={}", self.default_level),
            format!("timeout={}", ms(self.timeout)),
            format!("action={}", if self.rejects { "reject" } else { "delay" }),
            format!("max-queue={}", self.max_queue),
        ];
        if !self.preferred.is_empty() {
            let sizes: Vec<_> = self.preferred.iter().map(u32::to_string).collect();
            parts.push(format!("preferred={}", sizes.join("+")));
        }
        if self.pads {
            parts.push("pad".into());
        }
        format!("triton:{}", parts.join(","))
    }
}

/// Finish time of each request, or `None` if it was refused.
fn triton(world: &World, arrivals: &[Arrival], b: &Batcher) -> Vec<Option<u64>> {
    let model = &world.models[0];
    let max_batch = model.max_batch;
    let preferred = if b.preferred.is_empty() {
        vec![max_batch]
    } else {
        b.preferred.clone()
    };
    let largest = *preferred.last().expect("one size");
    let mut levels: Vec<Level> = (0..=b.levels).map(|_| Level::default()).collect();
    let mut finish = vec![None; arrivals.len()];
    let (mut now, mut next) = (0, 0);
    loop {
        while next < arrivals.len() && arrivals[next].at <= now {
            let level = match usize::from(arrivals[next].priority) {
                p if p == 0 || p > b.levels => b.default_level,
                p => p,
            };
            let level = &mut levels[level];
            if b.max_queue == 0 || level.queue.len() + level.late.len() < b.max_queue {
                level.queue.push_back(next);
            }
            next += 1;
        }
        // Who is late moves or goes.
        for level in &mut levels {
            let is_late = |&r: &usize| b.timeout > 0 && now > arrivals[r].at + b.timeout;
            while level.queue.front().is_some_and(is_late) {
                let r = level.queue.pop_front().expect("a front");
                if !b.rejects {
                    level.late.push_back(r);
                }
            }
        }
        let mut batch: Vec<usize> = Vec::new();
        let (mut samples, mut marked, mut closed) = (0, 0, false);
        let mut first_timeout = u64::MAX;
        'queue: for level in &levels {
            let in_time = level.queue.iter().map(|&r| (r, true));
            for (r, in_time) in in_time.chain(level.late.iter().map(|&r| (r, false))) {
                let a = &arrivals[r];
                if !batch.is_empty() {
                    if samples + a.samples > largest && marked == 0 {
                        marked = batch.len();
                    }
                    let same = b.pads || arrivals[batch[0]].input_len == a.input_len;
                    if samples + a.samples > max_batch || !same {
                        closed = true;
                        break 'queue;
                    }
                }
                batch.push(r);
                samples += a.samples;
                if in_time && b.timeout > 0 {
                    first_timeout = first_timeout.min(a.at + b.timeout);
                }
                if preferred.contains(&samples) {
                    marked = batch.len();
                }
            }
        }
        if batch.is_empty() {
            let Some(arrival) = arrivals.get(next) else {
                return finish;
            };
            now = now.max(arrival.at);
            continue;
        }
        let oldest = batch.iter().map(|&r| arrivals[r].at).min().expect("one");
        let exceeded = b.delay > 0 && now - oldest >= b.delay;
        if marked > 0 && !exceeded {
            batch.truncate(marked);
        } else if !closed && samples < largest && !exceeded && b.delay > 0 {
            let us = (oldest + b.delay).min(first_timeout).saturating_sub(now) / 1000;
            if us > 0 {
                let wake = now + 1000 * us;
                now = arrivals.get(next).map_or(wake, |a| a.at.min(wake));
                continue;
            }
        }
        for level in &mut levels {
            level.queue.retain(|r| !batch.contains(r));
            level.late.retain(|r| !batch.contains(r));
        }
        let members = batch.iter().map(|&r| &arrivals[r]);
        let longest = members.clone().map(|a| a.input_len).max().expect("one");
        let size: u32 = members.clone().map(|a| a.samples).sum();
        for block in &model.blocks {
            let passes = members
                .clone()
                .map(|a| block.passes(a.input_len, a.output_len));
            for _ in 0..passes.max().expect("one") {
                for node in &block.nodes {
                    let rows = u64::from(size) * u64::from(longest);
                    now += node.latency(u64::from(size), rows) + world.dispatch;
                }
            }
        }
        for r in batch {
            finish[r] = Some(now);
        }
    }
}

#[test]
fn triton_agrees() {
    let (mut refused, mut completed) = (0, 0);
    for seed in 0..num_cases(3000) {
        let mut rng = rng(seed);
        let shape = Shape {
            max_models: 1,
            ..Shape::default()
        };
        let world = random_world(&mut rng, shape);
        let num = rng.random_range(1..60);
        let mut arrivals = random_arrivals(&mut rng, &world, num);
        for a in &mut arrivals {
            a.priority = rng.random_range(0..5);
            a.samples = rng.random_range(1..=world.models[0].max_batch.min(3));
        }
        let batcher = Batcher::random(&mut rng);
        let options = Options {
            seed,
            ..Options::default()
        };
        let run = simulate(&world, &batcher.spec(), &arrivals, &options);
        let finished = run.ended.iter().map(|e| {
            let done = e.outcome.is_completed();
            done.then_some(e.finish.0)
        });
        let expected = triton(&world, &arrivals, &batcher);
        let finished: Vec<_> = finished.collect();
        assert_eq!(finished, expected, "seed {seed}: {}", batcher.spec());
        refused += expected.iter().filter(|f| f.is_none()).count();
        completed += expected.iter().flatten().count();
    }
    println!("{completed} completed, {refused} refused");
    assert!(refused > 1000 && completed > 2 * refused);
}
