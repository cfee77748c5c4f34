//! Ops element by element.

use lazybatch_graph::onnx::{Array, Attr, Elem, Node};
use lazybatch_graph::{Act as Function, Bin, Op, Part};

use super::{Lower, Native, floats, one, text};
use crate::import::items::{Act, Arg, Kind};
use crate::import::layout::{agrees, canonical};

/// A known operand beside an activation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Beside {
    /// One number for all elements.
    Scalar(f64),
    /// A number for each element of the last dimension.
    Last(Vec<f32>),
    /// A number for each element of a row.
    Row(Vec<f32>),
    /// A row for each position.
    Table(Vec<f32>),
}

impl Lower<'_> {
    pub(super) fn elementwise(&mut self, node: &Node) -> Native {
        match node.op.as_str() {
            "Add" => self.binary(node, Bin::Add),
            "Sub" => self.binary(node, Bin::Sub),
            "Mul" => self.binary(node, Bin::Mul),
            "Div" => self.quotient(node),
            op => {
                let Some(x) = self.act(node, 0) else {
                    return Ok(None);
                };
                self.unary(node, op, x)
            }
        }
    }

    fn unary(&mut self, node: &Node, op: &str, x: Act) -> Native {
        let sizes = &self.fact(node, 0)?.sizes;
        let function = match op {
            "Identity" => return one(x),
            "Dropout" => {
                // The mask of a dropout that drops nothing is read by nobody.
                let unread = self.absent_output(node, 1);
                return Ok(unread.then(|| vec![super::Value::Act(x)]));
            }
            "Cast" => return Ok(self.cast(node, x)),
            "Expand" => {
                return Ok(agrees(&x.layout, sizes).then(|| vec![super::Value::Act(x)]));
            }
            "Relu" => Function::Relu,
            "Tanh" => Function::Tanh,
            "Sigmoid" => Function::Sigmoid,
            "Gelu" if matches!(text(node, "approximate"), "" | "none") => Function::Gelu,
            "Clip" => match self.bounds(node) {
                Some((0.0, 6.0)) => Function::Relu6,
                Some((0.0, f64::INFINITY)) => Function::Relu,
                _ => return Ok(None),
            },
            "Neg" if x.elem == Elem::F32 => {
                let args = vec![Arg::Item(x.src)];
                return one(self.emit(node, Op::Scale(-1.0), args, x));
            }
            "Pow" => return self.power(node, x),
            _ => return Ok(None),
        };
        if x.elem != Elem::F32 {
            return Ok(None);
        }
        let args = vec![Arg::Item(x.src)];
        one(self.emit(node, Op::Unary(function), args, x))
    }

    /// Whether nobody wants result `i`.
    fn absent_output(&self, node: &Node, i: usize) -> bool {
        let Some(name) = node.outputs.get(i).filter(|n| !n.is_empty()) else {
            return true;
        };
        !self.trace.is_read(name)
    }

    /// A cast under which a program holds the same bits.
    fn cast(&mut self, node: &Node, x: Act) -> Option<Vec<super::Value>> {
        let to = self.fact(node, 0).ok()?.elem;
        let whole = |e: Elem| matches!(e, Elem::I64 | Elem::I32);
        let wide = |e: Elem| matches!(e, Elem::F32 | Elem::F64);
        let small = matches!(
            x.elem,
            Elem::Bool | Elem::I8 | Elem::I16 | Elem::U8 | Elem::U16
        );
        let same =
            x.elem == to || (wide(x.elem) && wide(to)) || ((whole(x.elem) || small) && whole(to));
        same.then(|| vec![super::Value::Act(Act { elem: to, ..x })])
    }

    /// Bounds of a clip.
    fn bounds(&self, node: &Node) -> Option<(f64, f64)> {
        let bound = |name: &str, i: usize, open: f64| match node.attrs.get(name) {
            Some(Attr::Float(v)) => Some(f64::from(*v)),
            _ if self.absent(node, i) => Some(open),
            _ => self.scalar(node, i),
        };
        let low = bound("min", 1, f64::NEG_INFINITY)?;
        let high = bound("max", 2, f64::INFINITY)?;
        // The largest float stands for none in older exports.
        let high = if high >= f64::from(f32::MAX) {
            f64::INFINITY
        } else {
            high
        };
        Some((low, high))
    }

    fn power(&mut self, node: &Node, x: Act) -> Native {
        let exponent = self.scalar(node, 1);
        if x.elem != Elem::F32 || !agrees(&x.layout, &self.fact(node, 0)?.sizes) {
            return Ok(None);
        }
        let times = |l: &mut Self, a: Act, b: &Act| {
            let args = vec![Arg::Item(a.src), Arg::Item(b.src)];
            l.emit(node, Op::Binary(Bin::Mul), args, a)
        };
        match exponent {
            Some(1.0) => one(x),
            Some(2.0) => one(times(self, x.clone(), &x)),
            Some(3.0) => {
                let square = times(self, x.clone(), &x);
                one(times(self, square, &x))
            }
            _ => Ok(None),
        }
    }

    fn binary(&mut self, node: &Node, op: Bin) -> Native {
        let acts = [self.act(node, 0), self.act(node, 1)];
        if acts.iter().flatten().any(|x| x.elem != Elem::F32) {
            return Ok(None);
        }
        match acts.into() {
            (Some(a), Some(b)) => self.both(node, op, a, b),
            (Some(a), None) => {
                let Some(beside) = self.beside(node, 1, &a)? else {
                    return Ok(None);
                };
                self.with_known(node, op, a, beside, 1)
            }
            (None, Some(b)) => {
                let Some(beside) = self.beside(node, 0, &b)? else {
                    return Ok(None);
                };
                if op == Bin::Sub {
                    let args = vec![Arg::Item(b.src)];
                    let turned = self.emit(node, Op::Scale(-1.0), args, b);
                    return self.with_known(node, Bin::Add, turned, beside, 0);
                }
                self.with_known(node, op, b, beside, 0)
            }
            (None, None) => Ok(None),
        }
    }

    fn both(&mut self, node: &Node, op: Bin, a: Act, b: Act) -> Native {
        let same = canonical(&a.layout) == canonical(&b.layout);
        if !same {
            return Ok(None);
        }
        if op == Bin::Mul {
            for (x, gate) in [(&a, &b), (&b, &a)] {
                let item = &self.items.items[gate.src.item];
                let is_gate = matches!(item.kind, Kind::Op(Op::Unary(Function::Sigmoid)));
                if is_gate && matches!(item.args[..], [Arg::Item(src)] if src == x.src) {
                    let args = vec![Arg::Item(x.src)];
                    return one(self.emit(node, Op::Unary(Function::Silu), args, x.clone()));
                }
            }
        }
        let b = self.items.shaped(&b, &a.dims);
        let args = vec![Arg::Item(a.src), Arg::Item(b.src)];
        one(self.emit(node, Op::Binary(op), args, a))
    }

    fn quotient(&mut self, node: &Node) -> Native {
        let Some(x) = self.act(node, 0) else {
            return Ok(None);
        };
        if x.elem != Elem::F32 {
            return Ok(None);
        }
        // A product with a rounded number is not the quotient, but within a bit of it.
        let is_stepped = self.stepped.contains(node.outputs[0].as_str());
        let inverse = |v: f32| match is_stepped {
            true => exact_inverse(v),
            false => Some(1.0 / v),
        };
        let inverses = |v: &[f32]| v.iter().map(|&v| inverse(v)).collect::<Option<_>>();
        let inverse = match self.beside(node, 1, &x)? {
            Some(Beside::Scalar(v)) if is_stepped => {
                exact_inverse(v as f32).map(|v| Beside::Scalar(f64::from(v)))
            }
            Some(Beside::Scalar(v)) => Some(Beside::Scalar(1.0 / v)),
            Some(Beside::Last(v)) => inverses(&v).map(Beside::Last),
            Some(Beside::Row(v)) => inverses(&v).map(Beside::Row),
            _ => None,
        };
        match inverse {
            Some(inverse) => self.with_known(node, Bin::Mul, x, inverse, 1),
            None => Ok(None),
        }
    }

    /// `x op beside`, where `beside` comes from operand `i`.
    fn with_known(&mut self, node: &Node, op: Bin, x: Act, beside: Beside, i: usize) -> Native {
        if x.elem != Elem::F32 {
            return Ok(None);
        }
        let form = |what: &str| format!("{what}.{}", node.op.to_lowercase());
        let weight = match beside {
            Beside::Scalar(v) => match op {
                Bin::Mul if v == 1.0 => return one(x),
                Bin::Mul => {
                    let args = vec![Arg::Item(x.src)];
                    return one(self.emit(node, Op::Scale(v as f32), args, x));
                }
                _ if v == 0.0 => return one(x),
                _ => {
                    let num = x.dims.last().copied();
                    let dims: Vec<usize> = num.into_iter().collect();
                    let form = format!("{}.{}", form("all"), num.unwrap_or(1));
                    let values = || vec![v as f32; num.unwrap_or(1)];
                    self.weight(node, i, &form, &dims, values)
                }
            },
            Beside::Last(values) => {
                let dims = [values.len()];
                self.weight(node, i, &form("last"), &dims, || values)
            }
            Beside::Row(values) => {
                let dims = x.dims.clone();
                let form = format!("{}.{dims:?}", form("row"));
                self.weight(node, i, &form, &dims, || values)
            }
            Beside::Table(values) if op == Bin::Add => {
                let most = self.max_steps.unwrap_or(self.max_len);
                let row = values.len() / most;
                let x = self.items.shaped(&x, &[row]);
                let table = self.weight(node, i, "positions", &[most, row], || values);
                let args = vec![Arg::Item(x.src), table];
                return one(self.emit(node, Op::AddPosition, args, x));
            }
            Beside::Table(_) => return Ok(None),
        };
        let args = vec![Arg::Item(x.src), weight];
        one(self.emit(node, Op::Binary(op), args, x))
    }

    /// Operand `i`, known, as it stands beside `x`; none if it makes the result larger than `x` or
    /// depends on the length in another way than by position.
    pub(super) fn beside(&self, node: &Node, i: usize, x: &Act) -> Result<Option<Beside>, String> {
        if !agrees(&x.layout, &self.fact(node, 0)?.sizes) {
            return Ok(None);
        }
        let name = &node.inputs[i];
        if let Some(array) = self.constant(node, i) {
            return Ok(spread(&array, x));
        }
        if self.trace.is_data(name) {
            return Ok(None);
        }
        if let Some(v) = self.uniform(name)? {
            return Ok(Some(Beside::Scalar(v)));
        }
        if let Some(steps) = self.max_steps {
            return self.by_step(name, steps, x);
        }
        let Some((axis, rows, mut dims)) = self.table(name)? else {
            return Ok(None);
        };
        let from_end = dims.len() - axis;
        let on_len = x
            .layout
            .0
            .len()
            .checked_sub(from_end)
            .map(|a| &x.layout.0[a]);
        if on_len.map(Vec::as_slice) != Some(&[Part::Len]) {
            return Ok(None);
        }
        dims[axis] = 1;
        let each = rows.len() / self.max_len;
        let mut all = Vec::new();
        for row in rows.chunks_exact(each.max(1)) {
            let data = lazybatch_graph::onnx::Data::F32(row.to_vec());
            let Some(row) = over_row(&Array::new(dims.clone(), data), x) else {
                return Ok(None);
            };
            all.extend(row);
        }
        Ok(Some(Beside::Table(all)))
    }
}

impl Lower<'_> {
    /// A known value that depends on the number of steps so far, as a row for each of them.
    fn by_step(&self, name: &str, steps: usize, x: &Act) -> Result<Option<Beside>, String> {
        let row = x.layout.row_elems();
        self.trace.check_elems(name, &[steps, row])?;
        let mut all = Vec::new();
        for step in 0..steps {
            let value = self.trace.known(name, 1, step);
            let Some(value) = value.map_err(|e| format!("at step {step}: {e}"))? else {
                return Ok(None);
            };
            let Some(row) = over_row(&value, x) else {
                return Ok(None);
            };
            all.extend(row);
        }
        Ok(Some(Beside::Table(all)))
    }
}

/// One over `v`, of a power of two alone: a product with it has the bits of the quotient.
fn exact_inverse(v: f32) -> Option<f32> {
    let inverse = 1.0 / v;
    let is_power = v.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    (is_power && v.is_normal() && inverse.is_normal()).then_some(inverse)
}

/// Elements of `array` broadcast over a row of `x`; none if it has more than one element along
/// batch or sequence.
fn over_row(array: &Array, x: &Act) -> Option<Vec<f32>> {
    let rank = x.layout.0.len();
    let extra = rank.checked_sub(array.rank())?;
    let sizes: Vec<usize> = x
        .layout
        .0
        .iter()
        .map(|axis| {
            let fixed = axis.iter().filter_map(|p| match p {
                Part::Fixed(n) => Some(*n),
                _ => None,
            });
            fixed.product()
        })
        .collect();
    let mut strides = vec![0; rank];
    let mut stride = 1;
    for (axis, &n) in array.dims().iter().enumerate().rev() {
        let at = axis + extra;
        let whole = x.layout.0[at].iter().all(|p| matches!(p, Part::Fixed(_)));
        if n != 1 {
            if n != sizes[at] || !whole {
                return None;
            }
            strides[at] = stride;
        }
        stride *= n;
    }
    let values = floats(array);
    let num: usize = sizes.iter().product();
    let mut row = Vec::with_capacity(num);
    for mut at in 0..num {
        let mut from = 0;
        for axis in (0..rank).rev() {
            from += at % sizes[axis] * strides[axis];
            at /= sizes[axis];
        }
        row.push(values[from]);
    }
    Some(row)
}

/// A constant beside `x`.
fn spread(array: &Array, x: &Act) -> Option<Beside> {
    if array.len() == 1 && array.rank() <= x.layout.0.len() {
        return Some(Beside::Scalar(array.data().to_f64()[0]));
    }
    let row = over_row(array, x)?;
    let last = x.dims.last().copied()?;
    let on_last = array.dims().last() == Some(&last) && array.len() == last;
    if on_last {
        return Some(Beside::Last(floats(array)));
    }
    Some(Beside::Row(row))
}
