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
    let others: SmallVec<[&[f32]; 4]> = (0..v.node.inputs.len()).map(|i| v.arg(i)).collect();
    let row = v.ty(0).row_elems().max(1);
    // Weights of the last dimension come again and again within a row: pieces of several of them, or
    // parts of one.
    let lasts = others.iter().map(|other| other.len());
    let last = lasts.filter(|&len| len < row).min().unwrap_or(row).max(1);
    let (run, piece) = match PIECE / last {
        0 => (last, PIECE),
        several => (row, several * last),
    };
    let (level, pieces) = (env.level, run.div_ceil(piece));
    let items = x.len() / run * pieces;
    let shards = Shards::new(&mut out);
    env.split(items, x.len() * steps.len() * STEP_COST, |range| {
        for item in range {
            let within = item % pieces * piece;
            let at = item / pieces * run + within;
            let len = piece.min(run - within);
            // SAFETY: pieces are disjoint.
            let to = unsafe { shards.slice(at, len) };
            to.copy_from_slice(&x[at..][..len]);
            let beside = |i: usize| {
                let other = others[i];
                let rest = &other[at % other.len()..];
                // Else it comes again, and pieces begin where it does.
                &rest[..len.min(rest.len())]
            };
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
