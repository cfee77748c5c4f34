//! `lazy`, `lazy:late-admits`, `lazy:passes` and `oracle` against a second, naive implementation, to the
//! nanosecond.
//!
//! The reference follows docs of the policy literally and recomputes everything at every boundary:
//! members leave, the two top entries merge while they can, the longest prefix that passes the
//! slack test is pushed, the top runs one node. It shares no code with the engine. Totals are
//! asserted at the end, so that the cases are known to merge, preempt and refuse.

use crate::common::*;
use rand::Rng;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Lazy,
    LateAdmits,
    Passes,
    Oracle,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Lazy => "lazy",
            Self::LateAdmits => "lazy:late-admits",
            Self::Passes => "lazy:passes",
            Self::Oracle => "oracle",
        }
    }
}

/// A sub-batch: members with their completed passes of the current block.
#[derive(Clone, Debug)]
struct Sub {
    model: usize,
    block: usize,
    node: usize,
    members: Vec<(usize, u32)>,
}

/// What the reference counts.
#[derive(Default, Debug, PartialEq)]
struct Totals {
    launches: u64,
    batched: u64,
    merges: u64,
    pushes: u64,
    refusals: u64,
    splits: u64,
    late_pushes: u64,
    stays: u64,
}

struct Naive<'a> {
    world: &'a World,
    arrivals: &'a [Arrival],
    variant: Variant,
    now: u64,
    stack: Vec<Sub>,
    waiting: Vec<usize>,
    finish: Vec<u64>,
    start: Vec<Option<u64>>,
    totals: Totals,
}

impl Naive<'_> {
    /// The nodes that a request is predicted to pass from a cursor on.
    fn path(&self, r: usize, block: usize, node: usize, done: u32) -> Vec<(usize, usize)> {
        let (a, model) = (
            &self.arrivals[r],
            &self.world.models[self.arrivals[r].model],
        );
        let mut path = Vec::new();
        for (b, spec) in model.blocks.iter().enumerate().skip(block) {
            let done = if b == block { done } else { 0 };
            let passes = match spec.rep {
                Rep::Until(cap) if self.variant != Variant::Oracle => {
                    let left = model.p90.min(cap.unwrap_or(u32::MAX)).saturating_sub(done);
                    left.max(1)
                }
                _ => spec.passes(a.input_len, a.output_len) - done,
            };
            for pass in 0..passes {
                let from = if b == block && pass == 0 { node } else { 0 };
                path.extend((from..spec.nodes.len()).map(|n| (b, n)));
            }
        }
        path
    }

    fn cost(&self, r: usize, path: &[(usize, usize)], members: u64, rows: u64) -> u64 {
        let model = &self.world.models[self.arrivals[r].model];
        path.iter()
            .map(|&(b, n)| model.blocks[b].nodes[n].latency(members, rows) + self.world.dispatch)
            .sum()
    }

    fn deadline(&self, r: usize) -> u64 {
        self.arrivals[r]
            .sla
            .map_or(u64::MAX, |sla| self.arrivals[r].at + sla)
    }

    /// Everyone in flight and `candidates`, with their predicted paths.
    fn everyone(&self, candidates: &[usize]) -> Vec<(usize, Vec<(usize, usize)>)> {
        let mut all = Vec::new();
        for sub in &self.stack {
            for &(r, done) in &sub.members {
                all.push((r, self.path(r, sub.block, sub.node, done)));
            }
        }
        for &r in candidates {
            all.push((r, self.path(r, 0, 0, 0)));
        }
        all
    }

    fn passes_slack(&self, candidates: &[usize]) -> bool {
        let all = self.everyone(candidates);
        let predicted: u64 = if self.variant == Variant::Oracle {
            let mut total = 0;
            for m in 0..self.world.models.len() {
                let of_model: Vec<_> = all
                    .iter()
                    .filter(|(r, _)| self.arrivals[*r].model == m)
                    .collect();
                let size = of_model.len() as u64;
                let rows = of_model
                    .iter()
                    .map(|(r, _)| u64::from(self.arrivals[*r].input_len))
                    .sum();
                total += of_model
                    .iter()
                    .map(|(r, path)| self.cost(*r, path, size, rows))
                    .max()
                    .unwrap_or(0);
            }
            total
        } else {
            all.iter()
                .map(|(r, path)| self.cost(*r, path, 1, u64::from(self.arrivals[*r].input_len)))
                .sum()
        };
        all.iter()
            .all(|(r, _)| self.now + predicted <= self.deadline(*r))
    }

    /// The model whose oldest request has waited longest, and its queue.
    fn queue(&self) -> Option<Vec<usize>> {
        let head = *self
            .waiting
            .iter()
            .min_by_key(|&&r| (self.arrivals[r].at, self.arrivals[r].model))?;
        let model = self.arrivals[head].model;
        let of_model = |&r: &usize| self.arrivals[r].model == model;
        Some(self.waiting.iter().copied().filter(of_model).collect())
    }

    /// Who is pushed at this boundary.
    fn candidates(&mut self) -> Vec<usize> {
        let Some(queue) = self.queue() else {
            return Vec::new();
        };
        let model = self.arrivals[queue[0]].model;
        let max_batch = self.world.models[model].max_batch as usize;
        if self.stack.is_empty() {
            return queue.into_iter().take(max_batch).collect();
        }
        let top = self.stack.last().expect("an entry");
        let rep = &self.world.models[top.model].blocks[top.block].rep;
        if self.variant == Variant::Passes && top.node > 0 && !matches!(rep, Rep::Once) {
            self.totals.stays += 1;
            return Vec::new();
        }
        let in_flight: usize = self
            .stack
            .iter()
            .filter(|s| s.model == model)
            .map(|s| s.members.len())
            .sum();
        let room = max_batch.saturating_sub(in_flight).min(queue.len());
        if self.variant == Variant::LateAdmits {
            let oldest = self
                .stack
                .iter()
                .flat_map(|s| s.members.iter().map(|m| m.0))
                .chain([queue[0]])
                .min_by_key(|&r| (self.arrivals[r].at, r))
                .expect("someone");
            if self.deadline(oldest) < self.now {
                self.totals.late_pushes += u64::from(room > 0);
                return queue[..room].to_vec();
            }
        }
        let longest = (1..=room).rev().find(|&n| self.passes_slack(&queue[..n]));
        self.totals.refusals += u64::from(room > 0 && longest.is_none());
        queue[..longest.unwrap_or(0)].to_vec()
    }

    /// Puts members at the blocks where they go on, the least progressed on top.
    fn place(&mut self, model: usize, members: Vec<(usize, usize, u32)>) {
        let blocks = &self.world.models[model].blocks;
        // Blocks without a pass are skipped; who has none left has ended.
        let mut groups: Vec<Vec<(usize, u32)>> = vec![Vec::new(); blocks.len()];
        for (r, mut block, mut step) in members {
            let a = &self.arrivals[r];
            while block < blocks.len() && blocks[block].passes(a.input_len, a.output_len) <= step {
                block += 1;
                step = 0;
            }
            if block == blocks.len() {
                self.finish[r] = self.now;
            } else {
                groups[block].push((r, step));
            }
        }
        let alive = groups.iter().filter(|g| !g.is_empty()).count();
        self.totals.splits += alive.saturating_sub(1) as u64;
        for (block, members) in groups.into_iter().enumerate().rev() {
            if !members.is_empty() {
                self.stack.push(Sub {
                    model,
                    block,
                    node: 0,
                    members,
                });
            }
        }
    }

    fn merge_tops(&mut self) {
        while self.stack.len() >= 2 {
            let (a, b) = (
                &self.stack[self.stack.len() - 2],
                &self.stack[self.stack.len() - 1],
            );
            let together = a.members.len() + b.members.len();
            if (a.model, a.block, a.node) != (b.model, b.block, b.node)
                || together > self.world.models[a.model].max_batch as usize
            {
                return;
            }
            let top = self.stack.pop().expect("two entries");
            self.stack
                .last_mut()
                .expect("one entry")
                .members
                .extend(top.members);
            self.totals.merges += 1;
        }
    }

    fn run_top(&mut self) {
        let mut top = self.stack.pop().expect("a top");
        let block = &self.world.models[top.model].blocks[top.block];
        for &(r, _) in &top.members {
            self.start[r].get_or_insert(self.now);
        }
        let size = top.members.len() as u64;
        let rows = top
            .members
            .iter()
            .map(|&(r, _)| u64::from(self.arrivals[r].input_len))
            .sum();
        self.now += block.nodes[top.node].latency(size, rows) + self.world.dispatch;
        self.totals.launches += 1;
        self.totals.batched += size;
        top.node += 1;
        if top.node < block.nodes.len() {
            self.stack.push(top);
        } else {
            let stepped = top
                .members
                .iter()
                .map(|&(r, s)| (r, top.block, s + 1))
                .collect();
            self.place(top.model, stepped);
        }
    }

    fn run(mut self) -> Self {
        let mut next = 0;
        loop {
            while next < self.arrivals.len() && self.arrivals[next].at <= self.now {
                self.waiting.push(next);
                next += 1;
            }
            self.merge_tops();
            let pushed = self.candidates();
            if !pushed.is_empty() {
                self.totals.pushes += u64::from(!self.stack.is_empty());
                self.waiting.retain(|r| !pushed.contains(r));
                let model = self.arrivals[pushed[0]].model;
                self.place(model, pushed.into_iter().map(|r| (r, 0, 0)).collect());
            }
            if !self.stack.is_empty() {
                self.run_top();
            } else if self.waiting.is_empty() {
                let Some(arrival) = self.arrivals.get(next) else {
                    return self;
                };
                self.now = self.now.max(arrival.at);
            }
        }
    }
}

fn naive<'a>(world: &'a World, arrivals: &'a [Arrival], variant: Variant) -> Naive<'a> {
    Naive {
        world,
        arrivals,
        variant,
        now: 0,
        stack: Vec::new(),
        waiting: Vec::new(),
        finish: vec![0; arrivals.len()],
        start: vec![None; arrivals.len()],
        totals: Totals::default(),
    }
    .run()
}

fn compare(seed: u64, variant: Variant, sum: &mut Totals) {
    let mut rng = rng(seed);
    let shape = Shape {
        caps_anywhere: false,
        ..Shape::default()
    };
    let world = random_world(&mut rng, shape);
    let num = rng.random_range(1..40);
    let arrivals = random_arrivals(&mut rng, &world, num);
    let options = Options {
        seed,
        notes: true,
        stack: true,
        ..Options::default()
    };
    let run = simulate(&world, variant.name(), &arrivals, &options);
    let expected = naive(&world, &arrivals, variant);
    let name = variant.name();
    assert_eq!(run.finishes(), expected.finish, "seed {seed}: {name}");
    assert_eq!(run.starts(), expected.start, "seed {seed}: {name}");
    let t = &expected.totals;
    assert_eq!(run.counters.launches, t.launches, "seed {seed}: {name}");
    assert_eq!(run.counters.batched, t.batched, "seed {seed}: {name}");
    sum.merges += t.merges;
    sum.pushes += t.pushes;
    sum.refusals += t.refusals;
    sum.splits += t.splits;
    sum.late_pushes += t.late_pushes;
    sum.stays += t.stays;
    sum.launches += t.launches;
}

fn check(variant: Variant) -> Totals {
    let cases = num_cases(500);
    let mut sum = Totals::default();
    for seed in 0..cases {
        compare(seed, variant, &mut sum);
    }
    println!("{}: {sum:?}", variant.name());
    for (what, count) in [
        ("merges", sum.merges),
        ("pushes", sum.pushes),
        ("refusals", sum.refusals),
        ("splits", sum.splits),
    ] {
        assert!(count >= cases, "only {count} {what} in {cases} cases");
    }
    sum
}

#[test]
fn lazy_agrees() {
    check(Variant::Lazy);
}

#[test]
fn late_admits_agrees() {
    let sum = check(Variant::LateAdmits);
    assert!(sum.late_pushes > 100, "{sum:?}");
}

#[test]
fn passes_agrees() {
    let sum = check(Variant::Passes);
    assert!(sum.stays > 100, "{sum:?}");
}

#[test]
fn oracle_agrees() {
    check(Variant::Oracle);
}
