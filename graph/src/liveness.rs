//! What lives across each boundary between nodes.
//!
//! A merge, a preemption or an exit at a cursor copies or keeps the activations that were computed
//! before it and are still read behind it. Weights and per-request states do not count: they do
//! not move. By construction nothing lives across the start or the end of a block, loop heads
//! included.

use crate::ids::{BlockId, ValueId};
use crate::program::{Def, Program};
use crate::shape::Dim;

/// What lives at one position of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boundary {
    /// The live values, by id.
    pub values: Vec<ValueId>,
    /// Live bytes per sequence position (values `[rows, ...]`).
    pub bytes_per_row: u64,
    /// Live bytes per sample (values `[batch, ...]`).
    pub bytes_per_sample: u64,
}

impl Boundary {
    /// Live bytes of members with so many samples and sequence positions together.
    pub fn bytes(&self, samples: u64, rows: u64) -> u64 {
        self.bytes_per_sample * samples + self.bytes_per_row * rows
    }
}

/// Live values at every boundary of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    blocks: Vec<Vec<Boundary>>,
}

impl Liveness {
    /// Computes it.
    pub fn of(program: &Program) -> Self {
        let blocks = (0..program.blocks.len()).map(|b| boundaries(program, BlockId::new(b)));
        Self {
            blocks: blocks.collect(),
        }
    }

    /// The boundary before the node at `position` of `block`; `position` may be the number of
    /// nodes, the block's end.
    ///
    /// # Panics
    /// If the program has no such place.
    pub fn at(&self, block: BlockId, position: usize) -> &Boundary {
        &self.blocks[block.index()][position]
    }

    /// All boundaries of `block`, one more than it has nodes.
    pub fn block(&self, block: BlockId) -> &[Boundary] {
        &self.blocks[block.index()]
    }

    /// Most bytes that a request parked at any cursor holds, with so many samples and positions.
    pub fn max_bytes(&self, samples: u64, rows: u64) -> u64 {
        self.blocks
            .iter()
            .flatten()
            .map(|b| b.bytes(samples, rows))
            .max()
            .unwrap_or(0)
    }
}

fn boundaries(program: &Program, block: BlockId) -> Vec<Boundary> {
    let nodes = &program.block(block).nodes;
    let mut boundaries = vec![Boundary::default(); nodes.len() + 1];
    for (defined, &id) in nodes.iter().enumerate() {
        for &value in &program.node(id).outputs {
            let reads = |n: &crate::ids::NodeId| program.node(*n).inputs.contains(&value);
            let Some(last_use) = nodes.iter().rposition(reads) else {
                continue;
            };
            for boundary in &mut boundaries[defined + 1..=last_use] {
                hold(program, boundary, value);
            }
        }
    }
    for boundary in &mut boundaries {
        boundary.values.sort_unstable();
    }
    boundaries
}

fn hold(program: &Program, boundary: &mut Boundary, value: ValueId) {
    let ty = &program.value(value).ty;
    debug_assert!(matches!(program.value(value).def, Def::Node { .. }));
    match ty.lead() {
        Some(Dim::Rows) => boundary.bytes_per_row += ty.row_bytes() as u64,
        Some(_) => boundary.bytes_per_sample += ty.row_bytes() as u64,
        // A constant that folding has not removed yet belongs to no member.
        None => return,
    }
    boundary.values.push(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::ProgramBuilder;
    use crate::dtype::DType;
    use crate::op::Act;
    use crate::program::Repeat;

    #[test]
    fn a_skip_lives_until_its_last_use() {
        let mut b = ProgramBuilder::new("skip");
        let x = b.input("x", DType::F32, &[8]);
        let y = b.output("y", DType::F32, &[8]);
        let k = b.begin_block("main", Repeat::Once);
        let x = b.read_input("x", x);
        let h = b.dense("up", x, 32, Some(Act::Relu));
        let d = b.dense("down", h, 8, None);
        let s = b.add("sum", d, x);
        b.emit("y", y, s);
        let program = b.finish().unwrap();
        let live = Liveness::of(&program);
        let bytes: Vec<u64> = live.block(k).iter().map(|at| at.bytes_per_sample).collect();
        // before x; x; x and h; x and d; s; the end
        assert_eq!(bytes, [0, 32, 32 + 128, 32 + 32, 32, 0]);
        assert!(live.block(k).iter().all(|at| at.bytes_per_row == 0));
        assert_eq!(live.at(k, 2).values, [x, h]);
        assert_eq!(live.max_bytes(3, 0), 3 * 160);
    }

    #[test]
    fn rows_and_samples_count_apart_and_loop_heads_hold_nothing() {
        let mut b = ProgramBuilder::new("mixed");
        let ids = b.sequence_ids("ids", 16, 10);
        let y = b.output("y", DType::F32, &[4]);
        let steps = b.output_sequence("steps", DType::F32, &[4]);
        let once = b.begin_block("once", Repeat::Once);
        let i = b.read_input("ids", ids);
        let e = b.embed("embed", i, 10, 4);
        let first = b.first_row("first", e);
        let mean = b.mean_rows("mean", e);
        let s = b.add("sum", first, mean);
        b.emit("y", y, s);
        let each = b.begin_block("each", Repeat::PerInputStep { stride: 1 });
        let i = b.read_input("id", ids);
        let e = b.embed("each", i, 10, 4);
        b.emit("step", steps, e);
        let program = b.finish().unwrap();
        let live = Liveness::of(&program);
        let pairs = |k| -> Vec<(u64, u64)> {
            live.block(k)
                .iter()
                .map(|at| (at.bytes_per_row, at.bytes_per_sample))
                .collect()
        };
        assert_eq!(
            pairs(once),
            [(0, 0), (4, 0), (16, 0), (16, 16), (0, 32), (0, 16), (0, 0)]
        );
        assert_eq!(pairs(each), [(0, 0), (0, 4), (0, 16), (0, 0)]);
        assert_eq!(live.at(once, 3).bytes(2, 7), 7 * 16 + 2 * 16);
    }
}
