//! Nodes that have no op of their own: an ONNX op, evaluated for one sample or member at a time.
//!
//! A value of a program is packed rows, one of an ONNX graph a tensor whose axes may hold the batch
//! and the sequence anywhere. A [`Layout`] says how the one is seen as the other. Evaluation sees
//! one sample, so the batch axis has size 1; its bits cannot depend on other requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::Error;
use crate::infer::Context;
use crate::onnx::Elem;
use crate::shape::{Dim, TensorType};

/// A factor of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The samples.
    Batch,
    /// The positions of a member's sequence.
    Len,
    /// A number.
    Fixed(usize),
}

/// Axes of a tensor, each the product of its parts, outermost first.
///
/// A row of the packed value holds the fixed parts in the order in which they stand here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layout(pub Vec<Vec<Part>>);

impl Layout {
    /// All parts in order.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.0.iter().flatten().copied()
    }

    /// Whether the sequence is in it.
    pub fn has_len(&self) -> bool {
        self.parts().any(|p| p == Part::Len)
    }

    /// The fixed parts.
    pub fn fixed(&self) -> Vec<usize> {
        self.parts().filter_map(fixed).collect()
    }

    /// Elements of a row.
    pub fn row_elems(&self) -> usize {
        self.fixed().iter().product()
    }

    /// Sizes of the axes for one sample of `len` positions.
    pub fn dims(&self, len: usize) -> Vec<usize> {
        let size = |p: &Part| match p {
            Part::Batch => 1,
            Part::Len => len,
            Part::Fixed(n) => *n,
        };
        self.0
            .iter()
            .map(|axis| axis.iter().map(size).product())
            .collect()
    }

    /// Product of the fixed parts in front of the sequence.
    pub fn before_len(&self) -> usize {
        let before = self.parts().take_while(|p| *p != Part::Len);
        before.filter_map(fixed).product()
    }

    /// `rows`, or `batch` without a sequence.
    pub fn lead(&self) -> Dim {
        if self.has_len() {
            Dim::Rows
        } else {
            Dim::Batch
        }
    }
}

fn fixed(part: Part) -> Option<usize> {
    match part {
        Part::Fixed(n) => Some(n),
        Part::Batch | Part::Len => None,
    }
}

/// Type with which a program holds elements of type `elem`.
pub fn held_as(elem: Elem) -> DType {
    if elem.is_float() {
        DType::F32
    } else {
        DType::I32
    }
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// A number.
    Float(#[serde(with = "crate::floats")] f32),
    /// A number.
    Int(i64),
    /// Text.
    Text(String),
    /// Numbers.
    Floats(#[serde(with = "crate::floats::list")] Vec<f32>),
    /// Numbers.
    Ints(Vec<i64>),
    /// Texts.
    Texts(Vec<String>),
}

/// Where an operand comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operand {
    /// The node's next operand. A weight under a layout with a sequence is a table, of which a
    /// member sees as many rows as it has positions.
    Next {
        /// How it is seen.
        layout: Layout,
        /// Element type.
        elem: Elem,
    },
    /// Whole numbers, `base + len * per_len`.
    Numbers {
        /// Dimensions.
        dims: Vec<usize>,
        /// Element type.
        elem: Elem,
        /// For a sequence of no positions.
        base: Vec<i64>,
        /// More for each position; none where nothing depends on the length.
        per_len: Vec<i64>,
    },
    /// Left out.
    Absent,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Produced {
    /// How it is packed.
    pub layout: Layout,
    /// Element type.
    pub elem: Elem,
}

/// An ONNX op with its attributes. See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorOp {
    /// Name in the default domain.
    pub op: String,
    /// Opset whose definition it follows.
    pub opset: i64,
    /// Attributes by name.
    pub attrs: BTreeMap<String, Attribute>,
    /// Operands in the op's order.
    pub operands: Vec<Operand>,
    /// Results in the op's order.
    pub outputs: Vec<Produced>,
    /// Floating-point operations per row, for the cost model.
    pub flops_per_row: u64,
}

impl TensorOp {
    /// Types of its results.
    pub(crate) fn infer(
        &self,
        operands: &[&TensorType],
        cx: &Context<'_>,
    ) -> Result<Vec<TensorType>, Error> {
        let mut next = operands.iter();
        let mut has_activation = false;
        for (i, operand) in self.operands.iter().enumerate() {
            let what = format!("operand {i} of {}", self.op);
            match operand {
                Operand::Absent => {}
                Operand::Numbers {
                    dims,
                    base,
                    per_len,
                    ..
                } => {
                    let num = dims.iter().try_fold(1_usize, |p, &n| p.checked_mul(n));
                    let fits = |n: usize| num == Some(n);
                    if !fits(base.len()) || !(per_len.is_empty() || fits(per_len.len())) {
                        let got = format!("{} and {}", base.len(), per_len.len());
                        return cx.fail(what, format!("numbers {dims:?}"), got);
                    }
                }
                Operand::Next { layout, elem } => {
                    let Some(ty) = next.next() else {
                        return cx.fail("number of operands", "more", operands.len());
                    };
                    has_activation |= ty.lead().is_some();
                    check_layout(layout, cx)?;
                    if ty.dtype != held_as(*elem) || !fits(layout, ty, cx) {
                        let expected = format!("{} under {:?}", held_as(*elem), layout.0);
                        return cx.fail(what, expected, ty);
                    }
                }
            }
        }
        if next.next().is_some() || !has_activation {
            let expected = "those that are named, an activation among them";
            return cx.fail("operands", expected, operands.len());
        }
        let mut types = Vec::new();
        for output in &self.outputs {
            check_layout(&output.layout, cx)?;
            let dtype = held_as(output.elem);
            let (lead, fixed) = (output.layout.lead(), output.layout.fixed());
            types.push(TensorType::activation(dtype, lead, &fixed));
        }
        Ok(types)
    }
}

fn check_layout(layout: &Layout, cx: &Context<'_>) -> Result<(), Error> {
    let count = |part| layout.parts().filter(|p| *p == part).count();
    let most = usize::from(!cx.repeat.is_loop());
    if count(Part::Batch) > 1 || count(Part::Len) > most || layout.fixed().contains(&0) {
        let expected = "at most one batch, and one sequence in blocks that run once";
        return cx.fail("layout", expected, format!("{:?}", layout.0));
    }
    Ok(())
}

/// Whether a value of type `ty` can be seen under `layout`.
fn fits(layout: &Layout, ty: &TensorType, cx: &Context<'_>) -> bool {
    let fixed = ty.fixed_dims();
    let row = layout.row_elems();
    match ty.lead() {
        Some(lead) => lead == layout.lead() && fixed.iter().product::<usize>() == row,
        None if layout.has_len() => {
            let enough = cx
                .max_positions()
                .is_some_and(|n| fixed.first() >= Some(&n));
            enough && fixed[1..].iter().product::<usize>() == row
        }
        None => fixed.iter().product::<usize>() == row,
    }
}
