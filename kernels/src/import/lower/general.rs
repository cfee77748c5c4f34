//! Nodes without a native form: evaluated sample by sample by their general kernel.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Node};
use lazybatch_graph::{Attribute, Layout, Op, Operand, Part, Produced, TensorOp};

use super::{Lower, Value, floats, ints};
use crate::general::numbers;
use crate::import::items::{Act, Arg, Kind, Out, Src};
use crate::import::layout;
use crate::import::trace::{LENGTHS, Size};

/// Most whole numbers that stand in the program's text.
const MAX_NUMBERS: usize = 1 << 14;

/// A table by position: its axis of positions, its rows, position first, and its dimensions.
type Table = (usize, Vec<f32>, Vec<usize>);
/// Whole numbers at length 0, and what each grows by with each position; empty if none does.
type Line = (Vec<i64>, Vec<i64>);

impl Lower<'_> {
    /// The node as it is, over one sample.
    pub(super) fn general(&mut self, node: &Node) -> Result<Vec<Value>, String> {
        if crate::tensor::find(&node.op).is_none() {
            return Err(crate::tensor::reason(&node.op).to_owned());
        }
        let mut operands = Vec::with_capacity(node.inputs.len());
        let mut args = Vec::new();
        let mut weight_elems = 0;
        for (i, name) in node.inputs.iter().enumerate() {
            let (operand, arg) = if name.is_empty() {
                (Operand::Absent, None)
            } else {
                match self.values.get(name) {
                    Some(Value::Act(act)) => {
                        let operand = Operand::Next {
                            layout: act.layout.clone(),
                            elem: act.elem,
                        };
                        (operand, Some(Arg::Item(act.src)))
                    }
                    Some(Value::Scores(_)) => {
                        let why = "reads scores of an attention whose form is not recognised";
                        return Err(why.into());
                    }
                    Some(Value::Cache(_)) => {
                        return Err("reads a cache other than by attention".into());
                    }
                    Some(Value::Failed) | None => self.known_operand(node, i)?,
                }
            };
            if let (Some(Arg::Weight(at)), false) = (&arg, matches!(node.op.as_str(), "Gather")) {
                weight_elems += self.items.weights[*at].1.num_elems() as u64;
            }
            operands.push(operand);
            args.extend(arg);
        }
        let mut outputs = Vec::new();
        let mut outs = Vec::new();
        let mut dims = Vec::new();
        let num = node
            .outputs
            .iter()
            .rposition(|o| !o.is_empty())
            .map_or(0, |i| i + 1);
        for i in 0..num {
            let fact = self.fact(node, i)?;
            let layout = self.axes_of(node, &fact.sizes).ok_or_else(|| {
                format!(
                    "result {}: expected axes that are a number, the batch or the sequence, got \
                     {}",
                    node.outputs[i],
                    shown(&fact.sizes)
                )
            })?;
            let count = |part| layout.parts().filter(|p| *p == part).count();
            if count(Part::Batch) > 1 || count(Part::Len) > 1 {
                return Err("has a result with two batch or sequence axes".into());
            }
            outs.push(Out {
                lead: layout.lead(),
                dims: layout.fixed(),
                elem: fact.elem,
            });
            dims.push(layout.fixed());
            outputs.push(Produced {
                layout,
                elem: fact.elem,
            });
        }
        let row = outputs.first().map_or(0, |o| o.layout.row_elems() as u64);
        let op = TensorOp {
            op: node.op.clone(),
            opset: self.trace.opset,
            attrs: attributes(node)?,
            operands,
            outputs: outputs.clone(),
            flops_per_row: row.max(2 * weight_elems).min(1 << 31),
        };
        let item = self
            .items
            .push(&node.name, Kind::Op(Op::Tensor(Box::new(op))), args, outs);
        let values = outputs.into_iter().zip(dims).enumerate();
        Ok(values
            .map(|(out, (produced, dims))| {
                Value::Act(Act {
                    src: Src { item, out },
                    dims,
                    layout: produced.layout,
                    elem: produced.elem,
                })
            })
            .collect())
    }

    /// Axes of a result: a number, the batch or the sequence alone where that says it, else as an
    /// operand has them in the same place.
    fn axes_of(&self, node: &Node, sizes: &[Option<Size>]) -> Option<Layout> {
        let rank = sizes.len();
        let perm: Vec<usize> = match (node.op.as_str(), ints(node, "perm")) {
            ("Transpose", Some(perm)) => perm.iter().map(|&i| i as usize).collect(),
            ("Transpose", None) => (0..rank).rev().collect(),
            _ => (0..rank).collect(),
        };
        let axes = sizes.iter().enumerate().map(|(i, size)| {
            if let Some(plain) = layout::plain(&[*size]) {
                return plain.0.into_iter().next();
            }
            (0..node.inputs.len()).find_map(|operand| {
                let x = self
                    .act(node, operand)
                    .filter(|x| x.layout.0.len() == rank)?;
                let axis = x.layout.0.get(*perm.get(i)?)?;
                (Some(layout::size(axis)) == *size).then(|| axis.clone())
            })
        });
        axes.collect::<Option<_>>().map(Layout)
    }

    /// Operand `i`, which is known: a weight, a table by position, or numbers.
    fn known_operand(&mut self, node: &Node, i: usize) -> Result<(Operand, Option<Arg>), String> {
        let name = &node.inputs[i];
        let first = self.known_at(name, self.trace.lengths()[0])?;
        let elem = first.elem();
        let dims = first.dims().to_vec();
        if elem.is_float() && !first.is_empty() && self.is_all(name, |_| Some(first.clone()))? {
            let layout = Layout(dims.iter().map(|&n| vec![Part::Fixed(n)]).collect());
            let arg = self.weight(node, i, "", &dims, || floats(&first));
            return Ok((Operand::Next { layout, elem }, Some(arg)));
        }
        if let Some((base, per_len)) = self.affine(name)? {
            if base.len() > MAX_NUMBERS {
                return Err(format!("operand {name} holds {} whole numbers", base.len()));
            }
            let numbers = Operand::Numbers {
                dims,
                elem,
                base,
                per_len,
            };
            return Ok((numbers, None));
        }
        let Some((axis, rows, dims)) = self.table(name)? else {
            return Err(format!(
                "operand {name} depends on the length in an unknown way"
            ));
        };
        if !elem.is_float() {
            return Err(format!(
                "operand {name} is a table of whole numbers by position"
            ));
        }
        let mut shape = vec![self.max_len];
        shape.push(rows.len() / self.max_len);
        let axes = dims
            .iter()
            .enumerate()
            .map(|(i, &n)| vec![if i == axis { Part::Len } else { Part::Fixed(n) }]);
        let layout = Layout(axes.collect());
        let arg = self.weight(node, i, "positions", &shape, || rows);
        Ok((Operand::Next { layout, elem }, Some(arg)))
    }

    /// Whether a known value is what `at` gives for each length that is checked.
    fn is_all(&self, name: &str, at: impl Fn(usize) -> Option<Array>) -> Result<bool, String> {
        for &len in self.trace.lengths() {
            let value = self.known_at(name, len)?;
            if !at(len).is_some_and(|wanted| wanted.is_same(&value)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `base + len * per_len` for a value of whole numbers that are this at all lengths that are
    /// checked.
    fn affine(&self, name: &str) -> Result<Option<Line>, String> {
        let lengths = match self.trace.has_len() {
            true => LENGTHS,
            false => [1, 1],
        };
        let [a, b] = [
            self.known_at(name, lengths[0])?,
            self.known_at(name, lengths[1])?,
        ];
        let Some((base, per_len)) = line([&a, &b], lengths) else {
            return Ok(None);
        };
        let at = |len| numbers(a.dims(), a.elem(), &base, &per_len, len);
        let fits = self.is_all(name, |len| Some(at(len)))?;
        Ok(fits.then_some((base, per_len)))
    }

    /// The table of which a known value has the first rows, at each length that is checked.
    pub(super) fn table(&self, name: &str) -> Result<Option<Table>, String> {
        let longest = self.known_at(name, self.max_len)?;
        let mut found = None;
        for &len in self.trace.lengths() {
            if len < self.max_len {
                let short = self.known_at(name, len)?;
                found = by_position(&short, len, &longest, self.max_len);
                if found.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(found.map(|(axis, rows)| (axis, rows, longest.dims().to_vec())))
    }
}

fn shown(sizes: &[Option<Size>]) -> String {
    let one = |s: &Option<Size>| match s {
        None => "?".to_owned(),
        Some(s) => {
            let mut factors = Vec::new();
            if s.k != 1 || (s.b == 0 && s.s == 0) {
                factors.push(s.k.to_string());
            }
            factors.extend((0..s.b).map(|_| "batch".to_owned()));
            factors.extend((0..s.s).map(|_| "len".to_owned()));
            factors.join("*")
        }
    };
    format!("[{}]", sizes.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Attributes as a program holds them.
fn attributes(node: &Node) -> Result<BTreeMap<String, Attribute>, String> {
    let mut attrs = BTreeMap::new();
    for (name, value) in &node.attrs {
        let value = match value {
            Attr::Float(v) => Attribute::Float(*v),
            Attr::Int(v) => Attribute::Int(*v),
            Attr::Str(v) => Attribute::Text(v.clone()),
            Attr::Floats(v) => Attribute::Floats(v.clone()),
            Attr::Ints(v) => Attribute::Ints(v.clone()),
            Attr::Strs(v) => Attribute::Texts(v.clone()),
            other => return Err(format!("attribute {name} is {}", other.kind())),
        };
        attrs.insert(name.clone(), value);
    }
    Ok(attrs)
}

/// `base + len * per_len` for values of whole numbers at two lengths.
fn line(seen: [&Array; 2], [p, q]: [usize; 2]) -> Option<Line> {
    if seen[1].dims() != seen[0].dims() {
        return None;
    }
    let whole = |a: &Array| -> Option<Vec<i64>> {
        if a.elem().is_float() {
            let values = a.data().to_f64().into_iter();
            return values
                .map(|v| (v.fract() == 0.0 && v.abs() < 1e9).then_some(v as i64))
                .collect();
        }
        let values = a.data().to_i128().into_iter();
        values.map(|v| i64::try_from(v).ok()).collect()
    };
    let [a, b] = [whole(seen[0])?, whole(seen[1])?];
    if a == b {
        return Some((a, Vec::new()));
    }
    let (p, apart) = (p as i64, q.checked_sub(p)? as i64);
    let mut base = Vec::with_capacity(a.len());
    let mut slope = Vec::with_capacity(a.len());
    for i in 0..a.len() {
        let rise = b[i].checked_sub(a[i])?;
        let step = rise.checked_div(apart)?;
        if step * apart != rise {
            return None;
        }
        base.push(a[i].checked_sub(step.checked_mul(p)?)?);
        slope.push(step);
    }
    Some((base, slope))
}

/// The axis along which a value has a row for each position, and all rows, position first, where
/// the rows of `short` (`len` positions) begin those of `table` (`max_len`).
fn by_position(
    short: &Array,
    len: usize,
    table: &Array,
    max_len: usize,
) -> Option<(usize, Vec<f32>)> {
    if short.rank() != table.rank() {
        return None;
    }
    let mut axes = (0..short.rank()).filter(|&i| short.dims()[i] != table.dims()[i]);
    let axis = axes.next()?;
    if axes.next().is_some() || short.dims()[axis] != len || table.dims()[axis] != max_len {
        return None;
    }
    let perm: Vec<usize> = std::iter::once(axis)
        .chain((0..short.rank()).filter(|&i| i != axis))
        .collect();
    let first = |a: &Array| floats(&crate::tensor::transpose(a, &perm));
    let (few, all) = (first(short), first(table));
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    let begins = few.len() <= all.len() && few.iter().zip(&all).all(same);
    begins.then_some((axis, all))
}
