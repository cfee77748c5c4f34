//! Nodes of [`Op::Tensor`](lazybatch_graph::Op::Tensor): an ONNX op by its general kernel, for one
//! sample of one member at a time. Shared by the devices that compute.
//!
//! Operands and results are packed as everywhere: the rows of the sample one after another, whole
//! numbers as the bits of i32. A result that has larger ones is an error, never another number.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Data, Elem, Limits, Node};
use lazybatch_graph::{Attribute, Layout, Operand, TensorOp};

use crate::error::Fault;
use crate::tensor::{self, Call, Meter};

/// A node made ready.
#[derive(Debug)]
pub struct General {
    node: Node,
    op: TensorOp,
    limits: Limits,
    eval: fn(&Call<'_>) -> tensor::Outputs,
}

impl General {
    /// Looks up the kernel of `op` for the node called `name`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(name: &str, op: &TensorOp) -> Result<Self, String> {
        let entry = tensor::find(&op.op).ok_or_else(|| tensor::reason(&op.op).to_owned())?;
        let attrs: BTreeMap<String, Attr> = op
            .attrs
            .iter()
            .map(|(name, value)| (name.clone(), attr(value)))
            .collect();
        let node = Node {
            name: name.to_owned(),
            domain: String::new(),
            op: op.op.clone(),
            inputs: Vec::new(),
            // As many as there are, which is what an equal split goes by.
            outputs: (0..op.outputs.len())
                .map(|i| format!("{name}.{i}"))
                .collect(),
            attrs,
        };
        Ok(Self {
            node,
            op: op.clone(),
            // What an import let through may be longer here than it was there.
            limits: Limits {
                elems: 1 << 29,
                work: 1 << 42,
                ..Limits::default()
            },
            eval: entry.eval,
        })
    }

    /// Computes the results of one sample with `len` positions. `operands` are those of the node,
    /// in order; of a table, all rows.
    ///
    /// # Errors
    /// What the kernel refuses of these operands, or of their results; or a result of another size than
    /// the node states, which is not theirs.
    pub fn run(&self, operands: &[&[f32]], len: usize) -> Result<Vec<Vec<f32>>, Fault> {
        let mut next = operands.iter();
        let mut arrays = Vec::with_capacity(self.op.operands.len());
        for operand in &self.op.operands {
            arrays.push(match operand {
                Operand::Absent => None,
                Operand::Numbers {
                    dims,
                    elem,
                    base,
                    per_len,
                } => Some(numbers(dims, *elem, base, per_len, len)),
                Operand::Next { layout, elem } => {
                    let packed = next.next().ok_or("an operand too few")?;
                    Some(unpack(packed, layout, *elem, len)?)
                }
            });
        }
        let call = Call {
            node: &self.node,
            opset: self.op.opset,
            inputs: arrays.iter().map(Option::as_ref).collect(),
            meter: &Meter::new(self.limits),
        };
        let results = (self.eval)(&call).map_err(|e| Fault::of_request(e.to_string()))?;
        let mut packed = Vec::with_capacity(self.op.outputs.len());
        for (i, output) in self.op.outputs.iter().enumerate() {
            let array = results.get(i).ok_or("a result too few")?;
            let dims = output.layout.dims(len);
            if array.dims() != dims || array.elem() != output.elem {
                let expected = format!("{}{dims:?}", output.elem);
                return Err(format!("result {i}: expected {expected}, got {array}").into());
            }
            let rows = pack(array, &output.layout, len).map_err(|v| {
                let place = call.place();
                Fault::of_request(format!(
                    "{place}: result {i}: expected whole numbers of 32 bits, got {v}"
                ))
            })?;
            packed.push(rows);
        }
        Ok(packed)
    }
}

fn attr(value: &Attribute) -> Attr {
    match value {
        Attribute::Float(v) => Attr::Float(*v),
        Attribute::Int(v) => Attr::Int(*v),
        Attribute::Text(v) => Attr::Str(v.clone()),
        Attribute::Floats(v) => Attr::Floats(v.clone()),
        Attribute::Ints(v) => Attr::Ints(v.clone()),
        Attribute::Texts(v) => Attr::Strs(v.clone()),
    }
}

/// Whole numbers that grow with the length: `base + len * per_len`.
pub(crate) fn numbers(
    dims: &[usize],
    elem: Elem,
    base: &[i64],
    per_len: &[i64],
    len: usize,
) -> Array {
    let at = |i: usize| {
        let grown = per_len.get(i).map_or(0, |d| i128::from(*d) * len as i128);
        i128::from(base[i]) + grown
    };
    let values = (0..base.len()).map(at).collect();
    Array::new(dims.to_vec(), Data::from_i128(elem, values))
}

/// Elements from packed order to that of the axes, or back: `[len, pre, post]` and
/// `[pre, len, post]`.
fn moved(x: &[f32], outer: usize, inner: usize, post: usize) -> Vec<f32> {
    let mut y = Vec::with_capacity(x.len());
    for j in 0..inner {
        for i in 0..outer {
            y.extend_from_slice(&x[(i * inner + j) * post..][..post]);
        }
    }
    y
}

/// Sizes of a packed value: positions, and the parts of a row before and behind the sequence.
fn sizes(layout: &Layout, len: usize) -> (usize, usize, usize) {
    let row = layout.row_elems();
    if !layout.has_len() {
        return (1, 1, row);
    }
    let before = layout.before_len();
    (len, before, row / before.max(1))
}

/// A sample's rows as a tensor.
fn unpack(packed: &[f32], layout: &Layout, elem: Elem, len: usize) -> Result<Array, String> {
    let (positions, before, behind) = sizes(layout, len);
    let num = positions * before * behind;
    let packed = packed
        .get(..num)
        .ok_or_else(|| format!("{num} elements expected, got {}", packed.len()))?;
    let values = if before == 1 {
        packed.to_vec()
    } else {
        moved(packed, positions, before, behind)
    };
    let data = match elem {
        Elem::F32 => Data::F32(values),
        _ if elem.is_float() => Data::from_f64(elem, values.into_iter().map(f64::from).collect()),
        _ => {
            let whole = values.into_iter().map(|v| i128::from(v.to_bits() as i32));
            Data::from_i128(elem, whole.collect())
        }
    };
    Ok(Array::new(layout.dims(len), data))
}

/// A tensor as a sample's rows.
///
/// # Errors
/// A whole number that an i32 does not hold.
fn pack(array: &Array, layout: &Layout, len: usize) -> Result<Vec<f32>, i128> {
    let values: Vec<f32> = match array.data() {
        Data::F32(values) => values.clone(),
        data if data.elem().is_float() => data.to_f64().into_iter().map(|v| v as f32).collect(),
        data => {
            let bits = |v: i128| i32::try_from(v).map_err(|_| v);
            let held = data.to_i128().into_iter().map(bits);
            let held = held.map(|v| v.map(|v| f32::from_bits(v as u32)));
            held.collect::<Result<_, _>>()?
        }
    };
    let (positions, before, behind) = sizes(layout, len);
    if before == 1 {
        return Ok(values);
    }
    Ok(moved(&values, before, positions, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_graph::{Part, Produced};

    #[test]
    fn rows_are_seen_as_the_axes_say() {
        // Transpose [2, len, 3] to [len, 3, 2].
        let seen = Layout(vec![
            vec![Part::Fixed(2)],
            vec![Part::Len],
            vec![Part::Fixed(3)],
        ]);
        let turned = Layout(vec![
            vec![Part::Batch, Part::Len],
            vec![Part::Fixed(3)],
            vec![Part::Fixed(2)],
        ]);
        let op = TensorOp {
            op: "Transpose".into(),
            opset: 13,
            attrs: [("perm".to_string(), Attribute::Ints(vec![1, 2, 0]))].into(),
            operands: vec![Operand::Next {
                layout: seen,
                elem: Elem::F32,
            }],
            outputs: vec![Produced {
                layout: turned,
                elem: Elem::F32,
            }],
            flops_per_row: 0,
        };
        let general = General::new("turn", &op).unwrap();
        // A row holds [2, 3]: [a, x] at position p is 100 p + 10 a + x.
        let x: Vec<f32> = (0..2)
            .flat_map(|p| (0..6).map(move |i| (100 * p + 10 * (i / 3) + i % 3) as f32))
            .collect();
        let y = general.run(&[&x], 2).unwrap().remove(0);
        let row = |p: i32| [0, 10, 1, 11, 2, 12].map(|v| (100 * p + v) as f32);
        assert_eq!(y, [row(0), row(1)].concat());
    }

    #[test]
    fn numbers_grow_with_the_length() {
        let x = numbers(&[2], Elem::I64, &[1, -1], &[2, 0], 5);
        assert_eq!(x, Array::vector(vec![11, -1]));
    }
}
