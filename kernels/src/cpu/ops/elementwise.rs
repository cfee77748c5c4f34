//! Elementwise ops one behind another, in one pass over memory.
//!
//! Pieces of a row go through all steps while they are in the first-level cache. A step's bits are
//! those of its op alone.

use lazybatch_graph::chain::{Step, With};
use smallvec::SmallVec;

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::cpu::math;
use crate::cpu::pool::Shards;

/// Elements of a piece.
const PIECE: usize = 1024;

/// Floating-point operations that an element's step is worth.
const STEP_COST: usize = 4;

/// `x`, then `steps`.
pub fn elementwise(env: &mut Env<'_>, v: NodeView<'_>, steps: &[Step]) -> Buf {
    let mut out = v.alloc(env, 0);
    let x = v.arg(0);
    // Weights come again behind as many elements as they have.
    let others: SmallVec<[&[f32]; 4]> = (0..v.node.inputs.len()).map(|i| v.arg(i)).collect();
    let mut run = v.ty(0).row_elems();
    for other in &others {
        run = if other.len() < x.len() {
            run.min(other.len())
        } else {
            run
        };
    }
    let run = run.max(1);
    let (level, pieces) = (env.level, run.div_ceil(PIECE));
    let items = x.len() / run * pieces;
    let shards = Shards::new(&mut out);
    env.split(items, x.len() * steps.len() * STEP_COST, |range| {
        for item in range {
            let within = item % pieces * PIECE;
            let at = item / pieces * run + within;
            let len = PIECE.min(run - within);
            // SAFETY: pieces are disjoint.
            let to = unsafe { shards.slice(at, len) };
            to.copy_from_slice(&x[at..][..len]);
            let beside = |i: usize| &others[i][at % others[i].len()..][..len];
            for step in steps {
                match *step {
                    Step::Unary(act) => math::act_inplace(level, act, to),
                    Step::Scale(factor) => math::scale(level, factor, to),
                    Step::Binary(op, With::Itself) => math::binary_itself(level, op, to),
                    Step::Binary(op, With::Operand(i)) => {
                        math::binary_inplace(level, op, beside(i), to);
                    }
                    Step::SubFrom(With::Itself) => {
                        math::binary_itself(level, lazybatch_graph::Bin::Sub, to);
                    }
                    Step::SubFrom(With::Operand(i)) => math::sub_from(level, beside(i), to),
                }
            }
        }
    });
    out
}
