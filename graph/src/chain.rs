//! Steps of an elementwise node.
//!
//! A chain starts with its first operand and takes one step behind another, element by element,
//! each rounded as the op of its own would be: it has the bits of those ops, without writing what
//! lies between them to memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::op::{Act, Bin};

/// Most steps of one node, so that devices may keep a chain in a small table.
pub const MOST_STEPS: usize = 16;

/// The other side of a binary step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum With {
    /// What the chain has come to: `v + v`, `v * v`.
    Itself,
    /// An operand of the node: of operand 0's type, or a weight that spans one row or its last
    /// dimension.
    Operand(usize),
}

/// One step on `v`, what the chain has come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// `act(v)`.
    Unary(Act),
    /// `v * factor`.
    Scale(#[serde(with = "crate::floats")] f32),
    /// `v (op) with`.
    Binary(Bin, With),
    /// `with - v`: sums and products are the same either way.
    SubFrom(With),
}

impl Step {
    /// The operand that it reads beside `v`.
    pub fn operand(self) -> Option<usize> {
        match self {
            Self::Binary(_, With::Operand(i)) | Self::SubFrom(With::Operand(i)) => Some(i),
            _ => None,
        }
    }

    /// The same step with another operand in the place of the one that it reads.
    #[must_use]
    pub fn reading(self, operand: impl Fn(usize) -> With) -> Self {
        match self {
            Self::Binary(op, With::Operand(i)) => Self::Binary(op, operand(i)),
            Self::SubFrom(With::Operand(i)) => Self::SubFrom(operand(i)),
            step => step,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |f: &mut fmt::Formatter<'_>, with: &With| match with {
            With::Itself => f.write_str(":v"),
            With::Operand(i) => write!(f, ":{i}"),
        };
        match self {
            Self::Unary(act) => write!(f, "{act}"),
            Self::Scale(factor) => write!(f, "scale:{factor}"),
            Self::Binary(op, w) => {
                write!(f, "{op}")?;
                with(f, w)
            }
            Self::SubFrom(w) => {
                f.write_str("sub_from")?;
                with(f, w)
            }
        }
    }
}
