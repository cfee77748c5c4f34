//! Attention within members: what queries see, what is added to their scores, and caps on these.

use lazybatch_graph::{Heads, Op, Seen};

use super::problems::Arg::{W, X};
use super::problems::Place::Rows;
use super::problems::{LONGEST, Problem, heads, op};

fn attention(heads: Heads, seen: Seen, bias: bool) -> Op {
    Op::Attention {
        heads,
        seen,
        cap: None,
        bias,
    }
}

/// The same with a cap that scores come near.
fn capped(op: Op) -> Op {
    match op {
        Op::Attention {
            heads, seen, bias, ..
        } => Op::Attention {
            heads,
            seen,
            cap: Some(0.5),
            bias,
        },
        other => other,
    }
}

fn within(causal: bool, most: usize) -> Seen {
    Seen {
        causal,
        window: Some(most),
    }
}

/// The problems.
pub(super) fn problems() -> Vec<Problem> {
    vec![
        op(
            Rows,
            attention(heads(2, 2, 8), Seen::ALL, false),
            &[X(&[16]), X(&[16]), X(&[16])],
        ),
        op(
            Rows,
            attention(heads(4, 2, 5), Seen::CAUSAL, false),
            &[X(&[20]), X(&[10]), X(&[10])],
        ),
        op(
            Rows,
            attention(heads(1, 1, 7), within(false, 6), false),
            &[X(&[7]), X(&[7]), X(&[7])],
        ),
        op(
            Rows,
            attention(heads(2, 1, 9), within(true, 3), false),
            &[X(&[18]), X(&[9]), X(&[9])],
        ),
        op(
            Rows,
            attention(heads(4, 2, 6), Seen::ALL, true),
            &[X(&[24]), X(&[12]), X(&[12]), W(&[4, 2 * LONGEST - 1])],
        ),
        op(
            Rows,
            attention(heads(2, 2, 33), Seen::CAUSAL, true),
            &[X(&[66]), X(&[66]), X(&[66]), W(&[2, 2 * LONGEST + 9])],
        ),
        op(
            Rows,
            capped(attention(heads(2, 1, 10), Seen::CAUSAL, false)),
            &[X(&[20]), X(&[10]), X(&[10])],
        ),
        op(
            Rows,
            capped(attention(heads(1, 1, 12), within(true, 6), true)),
            &[X(&[12]), X(&[12]), X(&[12]), W(&[1, 2 * LONGEST - 1])],
        ),
        op(
            Rows,
            attention(heads(3, 1, 4), within(false, 5), true),
            &[X(&[12]), X(&[4]), X(&[4]), W(&[3, 2 * LONGEST - 1])],
        ),
    ]
}
