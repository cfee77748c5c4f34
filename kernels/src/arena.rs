//! Where the values of a block lie: planned when a model is loaded.
//!
//! A frame holds the values of its sub-batch in one piece of memory, its arena. The plan gives every
//! value a place in it; values that are never alive together share memory. Sizes are linear in the
//! launch: a value has so many elements for each row (position) or for each sample, so places are
//! planned once, in elements per row and per sample, and hold for launches of any size. Values by
//! row lie in front, those by sample behind them.
//!
//! Invariants, checked by the tests here for random programs:
//! 1. Places of values that are alive at the same node do not overlap, but for a result that is
//!    computed in the place of an operand that dies there.
//! 2. Every place lies inside the arena and starts on a cache line.
//!
//! Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020:
//! greedy by size.

use lazybatch_graph::{Def, Dim, NodeId, Program, TensorType, ValueId};

/// Elements of a cache line.
pub const LINE: usize = 16;

/// A number of elements, linear in the size of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// For each row.
    pub per_row: usize,
    /// For each sample.
    pub per_sample: usize,
    /// In any case.
    pub fixed: usize,
}

impl Extent {
    /// Elements of a launch.
    pub fn elems(self, rows: usize, samples: usize) -> usize {
        self.per_row * rows + self.per_sample * samples + self.fixed
    }

    /// As [`Self::elems`], of launches that may be larger than any memory.
    pub fn saturating_elems(self, rows: usize, samples: usize) -> usize {
        let by_row = self.per_row.saturating_mul(rows);
        let by_sample = self.per_sample.saturating_mul(samples);
        by_row.saturating_add(by_sample).saturating_add(self.fixed)
    }

    /// One piece of `elems` elements for each row or sample, that starts on a cache line.
    pub fn piece(ty: &TensorType, elems: usize) -> Self {
        let fixed = LINE;
        if is_by_row(ty) {
            Self {
                per_row: elems,
                fixed,
                ..Self::default()
            }
        } else {
            Self {
                per_sample: elems,
                fixed,
                ..Self::default()
            }
        }
    }

    /// Enough for both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            per_row: self.per_row + other.per_row,
            per_sample: self.per_sample + other.per_sample,
            fixed: self.fixed + other.fixed,
        }
    }

    /// Enough for either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            per_row: self.per_row.max(other.per_row),
            per_sample: self.per_sample.max(other.per_sample),
            fixed: self.fixed.max(other.fixed),
        }
    }
}

fn is_by_row(ty: &TensorType) -> bool {
    ty.lead() == Some(Dim::Rows)
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Whether it has a part for each row, or else for each sample.
    pub by_row: bool,
    /// Where it starts among its kind, in elements per row or sample.
    pub at: usize,
    /// Its elements per row or sample.
    pub elems: usize,
}

/// Which values of a block are alive where, and the memory they need. Values are numbered within
/// the block.
#[derive(Debug, Default)]
pub struct BlockPlan {
    /// By node position: values whose last use it is (or that nobody uses).
    pub dead_after: Vec<Vec<usize>>,
    /// By node position, and one more: values alive before that node, with their ids.
    pub live_before: Vec<Vec<ValueId>>,
    /// By node position: the operand in whose place the result is computed.
    pub in_place: Vec<Option<usize>>,
    /// By value.
    pub places: Vec<Place>,
    /// Elements of an arena.
    pub arena: Extent,
    /// Elements of all values together, each with memory of its own.
    pub sum: Extent,
    /// Elements that any one node takes beside the arena while it runs.
    pub scratch: Extent,
}

/// What a device says of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeMemory {
    /// The operand in whose place its kernel can compute the first result, if the operand dies there.
    pub in_place: Option<usize>,
    /// Elements that it takes beside the arena while it runs.
    pub scratch: Extent,
}

/// Memory that values share one after another.
struct Storage {
    first: usize,
    last: usize,
    size: usize,
    by_row: bool,
    at: usize,
}

impl BlockPlan {
    /// Plans a block by what the device says of its nodes; writes the number of each of its values to
    /// `local`, by value id.
    pub fn of(
        program: &Program,
        block: usize,
        local: &mut [usize],
        memory: &dyn Fn(NodeId) -> NodeMemory,
    ) -> Self {
        let nodes: &[NodeId] = &program.blocks[block].nodes;
        let spans = spans(program, nodes, local);
        let mut plan = Self {
            dead_after: vec![Vec::new(); nodes.len()],
            live_before: vec![Vec::new(); nodes.len() + 1],
            in_place: vec![None; nodes.len()],
            ..Self::default()
        };
        for (i, &(value, def, last)) in spans.iter().enumerate() {
            plan.dead_after[last].push(i);
            for pos in def + 1..=last {
                plan.live_before[pos].push(value);
            }
        }
        let mut storages: Vec<Storage> = Vec::new();
        let mut storage_of = vec![0; spans.len()];
        for (pos, &id) in nodes.iter().enumerate() {
            let node = program.node(id);
            let memory = memory(id);
            plan.in_place[pos] = memory
                .in_place
                .filter(|&operand| is_free(program, id, operand, &plan.dead_after[pos], local));
            plan.scratch = plan.scratch.or(memory.scratch);
            for &value in &node.outputs {
                let (ty, number) = (&program.value(value).ty, local[value.index()]);
                let last = spans[number].2;
                let size = ty.row_elems().next_multiple_of(LINE);
                storage_of[number] = match plan.in_place[pos] {
                    Some(operand) => storage_of[local[node.inputs[operand].index()]],
                    None => {
                        storages.push(Storage {
                            first: pos,
                            last,
                            size,
                            by_row: is_by_row(ty),
                            at: 0,
                        });
                        storages.len() - 1
                    }
                };
                let storage = &mut storages[storage_of[number]];
                storage.last = storage.last.max(last);
                plan.sum = plan.sum.and(Extent {
                    fixed: 0,
                    ..Extent::piece(ty, size)
                });
            }
        }
        plan.arena = Extent {
            per_row: pack(&mut storages, true),
            per_sample: pack(&mut storages, false),
            fixed: 0,
        };
        let place = |(number, &(value, ..)): (usize, &Span)| {
            let storage = &storages[storage_of[number]];
            Place {
                by_row: storage.by_row,
                at: storage.at,
                elems: program.value(value).ty.row_elems(),
            }
        };
        plan.places = spans.iter().enumerate().map(place).collect();
        plan
    }

    /// The elements `start..start + len` of an arena that are a value's.
    pub fn range(&self, value: usize, rows: usize, samples: usize) -> (usize, usize) {
        let place = &self.places[value];
        if place.by_row {
            (place.at * rows, place.elems * rows)
        } else {
            let start = self.arena.per_row * rows + place.at * samples;
            (start, place.elems * samples)
        }
    }
}

/// A value with the positions of its definition and of its last use.
type Span = (ValueId, usize, usize);

fn spans(program: &Program, nodes: &[NodeId], local: &mut [usize]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (pos, &node) in nodes.iter().enumerate() {
        let node = program.node(node);
        for &value in &node.inputs {
            if matches!(program.value(value).def, Def::Node { .. }) {
                spans[local[value.index()]].2 = pos;
            }
        }
        for &value in &node.outputs {
            local[value.index()] = spans.len();
            spans.push((value, pos, pos));
        }
    }
    spans
}

/// Whether an operand dies at a node, has the form of its result, and is read by the node once.
fn is_free(program: &Program, id: NodeId, operand: usize, dead: &[usize], local: &[usize]) -> bool {
    let node = program.node(id);
    let (value, Some(&result)) = (node.inputs[operand], node.outputs.first()) else {
        return false;
    };
    let (ty, result) = (&program.value(value).ty, &program.value(result).ty);
    let is_own = node.inputs.iter().filter(|v| **v == value).count() == 1;
    let is_alike = is_by_row(ty) == is_by_row(result) && ty.row_elems() == result.row_elems();
    dead.contains(&local[value.index()]) && is_own && is_alike
}

/// Gives the storages of one kind their places, the largest first, each in the lowest gap between
/// those that are alive with it. Returns the size of all.
fn pack(storages: &mut [Storage], by_row: bool) -> usize {
    let mut order: Vec<usize> = (0..storages.len())
        .filter(|&i| storages[i].by_row == by_row)
        .collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(storages[i].size), storages[i].first));
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let (first, last, size) = (storages[i].first, storages[i].last, storages[i].size);
        let mut at = 0;
        // In order of their places.
        for other in placed.iter().map(|&j| &storages[j]) {
            if other.first > last || first > other.last {
                continue;
            }
            if other.at >= at + size {
                break;
            }
            at = at.max(other.at + other.size);
        }
        storages[i].at = at;
        total = total.max(at + size);
        let behind = placed.partition_point(|&j| storages[j].at <= at);
        placed.insert(behind, i);
    }
    total
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::{Act, BlockId, DType, Liveness, ProgramBuilder, Repeat};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::conformance::problems;
    use crate::cpu::{Needs, WeightType};

    /// Dense layers and skips that go back any distance, over rows and samples.
    fn random_program(seed: u64) -> Program {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut b = ProgramBuilder::new("random");
        let x = b.sequence("x", DType::F32, &[8], 16);
        let y = b.output("y", DType::F32, &[8]);
        b.begin_block("main", Repeat::Once);
        let mut rows = vec![b.read_input("x", x)];
        let mut samples = vec![b.mean_rows("mean", rows[0])];
        for i in 0..rng.random_range(1..40) {
            let name = format!("n{i}");
            let all = if rng.random_bool(0.5) {
                &mut rows
            } else {
                &mut samples
            };
            let pick = all[rng.random_range(0..all.len())];
            let width = b.features(pick);
            let like: Vec<_> = all
                .iter()
                .copied()
                .filter(|v| b.features(*v) == width)
                .collect();
            let value = match rng.random_range(0..4) {
                0 => b.add(&name, pick, like[rng.random_range(0..like.len())]),
                1 => b.reshape(&name, pick, &[1, width]),
                2 => b.unary(&name, Act::Relu, pick),
                _ => b.dense(&name, pick, rng.random_range(1..60), None),
            };
            let value = if b.ty(value).fixed_dims().len() > 1 {
                b.reshape(&format!("{name}.back"), value, &[width])
            } else {
                value
            };
            all.push(value);
        }
        let last = samples[samples.len() - 1];
        let last = b.dense("last", last, 8, None);
        b.emit("emit", y, last);
        b.finish().expect("a valid program")
    }

    /// Checks the places of a program's values against its liveness, and returns the elements of
    /// all arenas and those of all values, for a launch of ten rows and three samples.
    fn check(program: &Program) -> (usize, usize) {
        let liveness = Liveness::of(program);
        let needs = Needs::of(program, WeightType::F32);
        let mut local = vec![usize::MAX; program.values.len()];
        let mut sizes = (0, 0);
        for block in 0..program.blocks.len() {
            let plan = BlockPlan::of(program, block, &mut local, &|id| needs.node(id));
            sizes.0 += plan.arena.elems(10, 3);
            sizes.1 += plan.sum.elems(10, 3);
            let nodes = &program.blocks[block].nodes;
            for ((pos, &id), (rows, samples)) in nodes
                .iter()
                .enumerate()
                .flat_map(|n| [(1, 1), (10, 3), (7, 64)].map(|size| (n, size)))
            {
                let node = program.node(id);
                let at = |pos| &liveness.at(BlockId::new(block), pos).values;
                let results = node.outputs.iter();
                let alive: Vec<_> = at(pos).iter().chain(results).copied().collect();
                let range = |v: ValueId| plan.range(local[v.index()], rows, samples);
                for (i, &a) in alive.iter().enumerate() {
                    let (start, len) = range(a);
                    assert!(start + len <= plan.arena.elems(rows, samples));
                    assert_eq!(start % LINE, 0);
                    for &b in &alive[..i] {
                        let (other, other_len) = range(b);
                        let apart = start + len <= other || other + other_len <= start;
                        let in_place = plan.in_place[pos].is_some_and(|operand| {
                            node.inputs[operand] == b
                                && node.outputs.contains(&a)
                                && !at(pos + 1).contains(&b)
                                && range(a) == range(b)
                        });
                        let name = &node.name;
                        assert!(apart || in_place, "{} {name}: {a} and {b}", program.name);
                    }
                }
            }
        }
        sizes
    }

    #[test]
    fn values_that_live_together_lie_apart() {
        for problem in problems() {
            check(&(problem.build)());
        }
        let (mut arenas, mut sums) = (0, 0);
        for seed in 0..200 {
            let (arena, sum) = check(&random_program(seed));
            assert!(arena <= sum);
            arenas += arena;
            sums += sum;
        }
        assert!(2 * arenas < sums, "{arenas} of {sums} elements");
    }

    #[test]
    fn a_chain_takes_two_places_and_a_skip_one_more() {
        let build = |skip: bool| {
            let mut b = ProgramBuilder::new("chain");
            let x = b.input("x", DType::F32, &[64]);
            let y = b.output("y", DType::F32, &[64]);
            b.begin_block("main", Repeat::Once);
            let first = b.read_input("x", x);
            let mut x = first;
            for i in 0..6 {
                x = b.dense(&format!("d{i}"), x, 64, None);
            }
            if skip {
                x = b.add("skip", x, first);
            }
            b.emit("y", y, x);
            let program = b.finish().expect("a valid program");
            let mut local = vec![usize::MAX; program.values.len()];
            let needs = Needs::of(&program, WeightType::F32);
            BlockPlan::of(&program, 0, &mut local, &|id| needs.node(id))
        };
        let places = |plan: &BlockPlan| (plan.arena.per_sample / 64, plan.sum.per_sample / 64);
        assert_eq!(places(&build(false)), (2, 7));
        assert_eq!(places(&build(true)), (3, 8));
    }
}
