//! Shapes with a symbolic leading dimension.
//!
//! Every activation is a row-major matrix or tensor whose leading dimension counts *rows*:
//! either one per sample of each member of the sub-batch (`Batch`), or one per position of each
//! member's sequence (`Rows`), packed one member after another without padding.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::dtype::DType;

/// One dimension of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dim {
    /// A number known at compile time.
    Fixed(usize),
    /// One row per sample of each member.
    Batch,
    /// One row per position of each member's sequence, packed.
    Rows,
    /// The sequence length of one request; legal in inputs, outputs and states only.
    Len,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Batch => f.write_str("batch"),
            Self::Rows => f.write_str("rows"),
            Self::Len => f.write_str("len"),
        }
    }
}

/// A tensor's dtype and dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub dims: SmallVec<[Dim; 4]>,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Self {
        Self {
            dtype,
            dims: dims.into_iter().collect(),
        }
    }

    /// `[lead, fixed...]`.
    pub fn activation(dtype: DType, lead: Dim, fixed: &[usize]) -> Self {
        Self::new(
            dtype,
            std::iter::once(lead).chain(fixed.iter().map(|&n| Dim::Fixed(n))),
        )
    }

    /// `[fixed...]`, as weights are.
    pub fn fixed(dtype: DType, fixed: &[usize]) -> Self {
        Self::new(dtype, fixed.iter().map(|&n| Dim::Fixed(n)))
    }

    /// The symbolic leading dimension, if there is one.
    pub fn lead(&self) -> Option<Dim> {
        self.dims
            .first()
            .copied()
            .filter(|d| !matches!(d, Dim::Fixed(_)))
    }

    /// The fixed dimensions behind the leading one (all of them for a weight).
    pub fn fixed_dims(&self) -> SmallVec<[usize; 4]> {
        self.dims
            .iter()
            .filter_map(|d| {
                if let Dim::Fixed(n) = d {
                    Some(*n)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Elements of one row (of the whole tensor for a weight).
    pub fn row_elems(&self) -> usize {
        let fixed = self.dims.iter().map(|d| match d {
            Dim::Fixed(n) => *n,
            Dim::Batch | Dim::Rows | Dim::Len => 1,
        });
        fixed.product()
    }

    /// Bytes of one row (of the whole tensor for a weight).
    pub fn row_bytes(&self) -> usize {
        self.row_elems() * self.dtype.size()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.dims.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}
