//! Reductions of a row or over positions, and ops that move elements within a row.

use lazybatch_graph::onnx::{Attr, Elem, Node};
use lazybatch_graph::{Layout, Op, Part};

use super::{Lower, Native, Value, axis_of, float, floats, int, ints, one};
use crate::import::items::{Act, Arg, Kind, Out, Src};
use crate::import::layout::{permute, reshape, size};

impl Lower<'_> {
    pub(super) fn reduction(&mut self, node: &Node) -> Native {
        let Some(x) = self.act(node, 0).filter(|x| x.elem == Elem::F32) else {
            return Ok(None);
        };
        match node.op.as_str() {
            "Softmax" => self.softmax(node, &x),
            "LayerNormalization" => self.layer_norm(node, &x),
            "ArgMax" => self.arg_max(node, &x),
            "TopK" => self.top_k(node, &x),
            _ => self.mean(node, &x),
        }
    }

    /// Features of the axis, if it is the last one.
    fn is_last(&self, x: &Act, axis: i64) -> Option<usize> {
        let rank = x.layout.0.len();
        let at = axis_of(axis, rank)?;
        (at + 1 == rank).then(|| size(&x.layout.0[at]).k)
    }

    fn softmax(&mut self, node: &Node, x: &Act) -> Native {
        let default = if self.trace.opset < 13 { 1 } else { -1 };
        let Some(k) = self.is_last(x, int(node, "axis", default)) else {
            return Ok(None);
        };
        let Some(x) = self.features(x, k) else {
            return Ok(None);
        };
        let args = vec![Arg::Item(x.src)];
        one(self.emit(node, Op::Softmax, args, x))
    }

    fn layer_norm(&mut self, node: &Node, x: &Act) -> Native {
        let wanted = node.outputs.iter().filter(|o| !o.is_empty()).count();
        let Some(k) = self
            .is_last(x, int(node, "axis", -1))
            .filter(|_| wanted == 1)
        else {
            return Ok(None);
        };
        let Some(gamma) = self.constant(node, 1).filter(|g| g.len() == k) else {
            return Ok(None);
        };
        let beta = match self.absent(node, 2) {
            true => None,
            false => match self.constant(node, 2).filter(|b| b.len() == k) {
                Some(beta) => Some(beta),
                None => return Ok(None),
            },
        };
        let Some(x) = self.features(x, k) else {
            return Ok(None);
        };
        let gamma = self.weight(node, 1, "", &[k], || floats(&gamma));
        let beta = match beta {
            Some(beta) => self.weight(node, 2, "", &[k], || floats(&beta)),
            None => self.weight(node, 1, "no_shift", &[k], || vec![0.0; k]),
        };
        let args = vec![Arg::Item(x.src), gamma, beta];
        let eps = float(node, "epsilon", 1e-5);
        one(self.emit(node, Op::LayerNorm { eps }, args, x))
    }

    fn arg_max(&mut self, node: &Node, x: &Act) -> Native {
        if int(node, "select_last_index", 0) != 0 {
            return Ok(None);
        }
        let whole = |k: &usize| *k == x.layout.row_elems();
        let Some(k) = self.is_last(x, int(node, "axis", 0)).filter(whole) else {
            return Ok(None);
        };
        let Some(x) = self.features(x, k) else {
            return Ok(None);
        };
        let mut axes = x.layout.0.clone();
        axes.pop();
        if int(node, "keepdims", 1) != 0 {
            axes.push(Vec::new());
        }
        let like = Act {
            layout: Layout(axes),
            dims: Vec::new(),
            elem: Elem::I64,
            ..x.clone()
        };
        one(self.emit(node, Op::ArgMax, vec![Arg::Item(x.src)], like))
    }

    fn top_k(&mut self, node: &Node, x: &Act) -> Native {
        let k = if self.trace.opset < 10 {
            Some(int(node, "k", -1))
        } else {
            self.integers(node, 1).and_then(|k| k.first().copied())
        };
        let k = k.and_then(|k| usize::try_from(k).ok());
        let Some((k, d)) = k.zip(self.is_last(x, int(node, "axis", -1))) else {
            return Ok(None);
        };
        if !(1..=d).contains(&k) {
            return Ok(None);
        }
        let Some(x) = self.features(x, d) else {
            return Ok(None);
        };
        let largest = int(node, "largest", 1) != 0;
        let mut values = x.clone();
        values.layout.0.pop();
        let axis = if k == 1 { vec![] } else { vec![Part::Fixed(k)] };
        values.layout.0.push(axis);
        values.dims.pop();
        values.dims.push(k);
        let out = |elem| Out {
            lead: values.layout.lead(),
            dims: values.dims.clone(),
            elem,
        };
        let outs = vec![out(Elem::F32), out(Elem::I64)];
        let kind = Kind::Op(Op::TopK { k, largest });
        let item = self
            .items
            .push(&node.name, kind, vec![Arg::Item(x.src)], outs);
        let result = |out, elem| {
            let src = Src { item, out };
            Value::Act(Act {
                src,
                elem,
                ..values.clone()
            })
        };
        Ok(Some(vec![result(0, Elem::F32), result(1, Elem::I64)]))
    }

    /// Axes that a reduction names: an attribute, an operand from opset 18 on, or all.
    fn axes(&self, node: &Node, rank: usize) -> Option<Vec<usize>> {
        let axes: Vec<i64> = match ints(node, "axes") {
            Some(axes) => axes.to_vec(),
            None if self.absent(node, 1) => (0..rank as i64).collect(),
            None => self.integers(node, 1)?,
        };
        axes.into_iter().map(|a| axis_of(a, rank)).collect()
    }

    fn mean(&mut self, node: &Node, x: &Act) -> Native {
        let rank = x.layout.0.len();
        let Some(axes) = self.axes(node, rank) else {
            return Ok(None);
        };
        let keep = int(node, "keepdims", 1) != 0;
        let kept = |x: &Act| {
            let axes = x.layout.0.iter().enumerate().filter_map(|(i, axis)| {
                match (axes.contains(&i), keep) {
                    (false, _) => Some(axis.clone()),
                    (true, true) => Some(Vec::new()),
                    (true, false) => None,
                }
            });
            Layout(axes.collect())
        };
        if let [axis] = axes[..]
            && x.layout.0[axis] == [Part::Len]
        {
            let k = x.layout.row_elems();
            let layout = kept(x);
            let x = self.items.shaped(x, &[k]);
            let args = vec![Arg::Item(x.src)];
            return one(self.emit(node, Op::MeanRows, args, Act { layout, ..x }));
        }
        if let [_, [Part::Fixed(c)], [Part::Fixed(h)], [Part::Fixed(w)]] =
            x.layout.0.iter().map(Vec::as_slice).collect::<Vec<_>>()[..]
            && axes == [2, 3]
            && !x.layout.has_len()
            // A sample is one image: axes of its own do not count images beside the batch.
            && x.layout.row_elems() == c * h * w
        {
            let layout = kept(x);
            let (c, dims) = (*c, [*c, *h, *w]);
            let x = self.items.shaped(x, &dims);
            let args = vec![Arg::Item(x.src)];
            let dims = vec![c];
            let like = Act { layout, dims, ..x };
            return one(self.emit(node, Op::GlobalAveragePool, args, like));
        }
        Ok(None)
    }

    pub(super) fn movement(&mut self, node: &Node) -> Native {
        match node.op.as_str() {
            "Concat" => return self.concat(node),
            "Gather" => return self.gather(node),
            _ => {}
        }
        let Some(x) = self.act(node, 0) else {
            return Ok(None);
        };
        match node.op.as_str() {
            "Transpose" => {
                let rank = x.layout.0.len();
                let perm: Vec<usize> = match ints(node, "perm") {
                    Some(perm) => perm.iter().map(|&i| i as usize).collect(),
                    None => (0..rank).rev().collect(),
                };
                match permute(&x.layout, &perm) {
                    Some((layout, true)) => one(Act { layout, ..x }),
                    _ => Ok(None),
                }
            }
            "Slice" => self.slice(node, &x),
            "Split" => self.split(node, &x),
            _ => match reshape(&x.layout, &self.fact(node, 0)?.sizes) {
                Some(layout) => one(Act { layout, ..x }),
                None => Ok(None),
            },
        }
    }

    /// Operand `i` as constant whole numbers.
    pub(super) fn integers(&self, node: &Node, i: usize) -> Option<Vec<i64>> {
        let array = self.constant(node, i)?;
        let values = array.data().to_i128().into_iter();
        values.map(|v| i64::try_from(v).ok()).collect()
    }

    /// Features `start..start + num` of `axis`, where that is one run of a row; `kept` is the axis
    /// behind it.
    fn cut(
        &mut self,
        node: &Node,
        x: &Act,
        axis: usize,
        start: usize,
        num: usize,
        kept: Option<Vec<Part>>,
    ) -> Option<Act> {
        let fixed = |axes: &[Vec<Part>]| -> usize { axes.iter().map(|a| size(a).k).product() };
        let plain = x.layout.0[axis].iter().all(|p| matches!(p, Part::Fixed(_)));
        let (before, behind) = (fixed(&x.layout.0[..axis]), fixed(&x.layout.0[axis + 1..]));
        let own = size(&x.layout.0[axis]).k;
        if !plain || before != 1 || num == 0 || start + num > own || x.elem != Elem::F32 {
            return None;
        }
        let mut axes = x.layout.0.clone();
        match kept {
            Some(parts) => axes[axis] = parts,
            None => {
                axes.remove(axis);
            }
        }
        let layout = Layout(axes);
        if num == own {
            return Some(Act {
                layout,
                ..x.clone()
            });
        }
        let x = self.items.shaped(x, &[own * behind]);
        let op = Op::Slice {
            start: start * behind,
            len: num * behind,
        };
        let dims = vec![num * behind];
        let args = vec![Arg::Item(x.src)];
        Some(self.emit(node, op, args, Act { layout, dims, ..x }))
    }

    fn slice(&mut self, node: &Node, x: &Act) -> Native {
        let rank = x.layout.0.len();
        let is_known = |name: &String| !self.trace.is_data(name);
        if super::layout::agrees(&x.layout, &self.fact(node, 0)?.sizes)
            && self.is_forward(node)
            && node.inputs.iter().skip(1).all(is_known)
        {
            // Nothing is cut off at any size up to the longest; see `check_sizes`.
            return one(x.clone());
        }
        let list = |name: &str, i: usize| match ints(node, name) {
            Some(v) => Some(v.to_vec()),
            None => self.integers(node, i),
        };
        let (Some(starts), Some(ends)) = (list("starts", 1), list("ends", 2)) else {
            return Ok(None);
        };
        let axes = list("axes", 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
        let ([start], [end], [axis]) = (&starts[..], &ends[..], &axes[..]) else {
            return Ok(None);
        };
        let Some(axis) = axis_of(*axis, rank).filter(|_| self.is_forward(node)) else {
            return Ok(None);
        };
        let is_first = (*start, *end) == (0, 1);
        let is_last = *start == -1 && *end >= i64::from(i32::MAX);
        if x.layout.0[axis] == [Part::Len] && (is_first || is_last) {
            let mut axes = x.layout.0.clone();
            axes[axis] = Vec::new();
            return self.end_row(node, x, Layout(axes), is_first);
        }
        let own = size(&x.layout.0[axis]).k as i64;
        let bound = |v: i64| if v < 0 { v + own } else { v }.clamp(0, own);
        let (start, end) = (bound(*start), bound(*end));
        let num = (end - start).max(0) as usize;
        let kept = Some(vec![Part::Fixed(num)]);
        let done = self.cut(node, x, axis, start as usize, num, kept);
        Ok(done.map(|y| vec![Value::Act(y)]))
    }

    /// Whether a slice takes every element from first to last.
    fn is_forward(&self, node: &Node) -> bool {
        self.absent(node, 4)
            || self
                .integers(node, 4)
                .is_some_and(|steps| steps.iter().all(|s| *s == 1))
    }

    /// The first or the last row. The row that a recurrent layer computes last is its state.
    fn end_row(&mut self, node: &Node, x: &Act, layout: Layout, is_first: bool) -> Native {
        if let Kind::Layer(cell) = &self.items.items[x.src.item].kind
            && cell.reverse == is_first
            && x.src.out == 0
        {
            let src = Src { out: 1, ..x.src };
            return one(Act {
                src,
                layout,
                ..x.clone()
            });
        }
        if x.elem != Elem::F32 {
            return Ok(None);
        }
        let k = x.layout.row_elems();
        let x = self.items.shaped(x, &[k]);
        let args = vec![Arg::Item(x.src)];
        let op = if is_first { Op::FirstRow } else { Op::LastRow };
        one(self.emit(node, op, args, Act { layout, ..x }))
    }

    fn split(&mut self, node: &Node, x: &Act) -> Native {
        let rank = x.layout.0.len();
        let Some(axis) = axis_of(int(node, "axis", 0), rank) else {
            return Ok(None);
        };
        let mut start = 0;
        let mut parts = Vec::new();
        for i in 0..node.outputs.len() {
            if node.outputs[i].is_empty() {
                return Ok(None);
            }
            let num = match self.fact(node, i)?.sizes.get(axis) {
                Some(Some(s)) if (s.b, s.s) == (0, 0) => s.k,
                _ => return Ok(None),
            };
            let kept = Some(vec![Part::Fixed(num)]);
            match self.cut(node, x, axis, start, num, kept) {
                Some(part) => parts.push(Value::Act(part)),
                None => return Ok(None),
            }
            start += num;
        }
        Ok(Some(parts))
    }

    fn concat(&mut self, node: &Node) -> Native {
        let parts: Option<Vec<Act>> = (0..node.inputs.len()).map(|i| self.act(node, i)).collect();
        let Some(parts) = parts.filter(|p| !p.is_empty()) else {
            return Ok(None);
        };
        let rank = parts[0].layout.0.len();
        let Some(axis) = axis_of(int(node, "axis", 0), rank) else {
            return Ok(None);
        };
        if parts.len() == 1 {
            return one(parts[0].clone());
        }
        let lead = parts[0].layout.lead();
        let mut sum = 0;
        for part in &parts {
            let before: usize = part.layout.0[..axis].iter().map(|a| size(a).k).product();
            let plain = part.layout.0[axis]
                .iter()
                .all(|p| matches!(p, Part::Fixed(_)));
            let alike = part.elem == Elem::F32 && part.layout.lead() == lead;
            if !plain || before != 1 || !alike || part.layout.0.len() != rank {
                return Ok(None);
            }
            sum += size(&part.layout.0[axis]).k;
        }
        let mut layout = parts[0].layout.clone();
        layout.0[axis] = vec![Part::Fixed(sum)];
        let mut args = Vec::new();
        for part in &parts {
            let flat = self.items.shaped(part, &[part.layout.row_elems()]);
            args.push(Arg::Item(flat.src));
        }
        let dims = vec![layout.row_elems()];
        let like = Act {
            layout,
            dims,
            ..parts[0].clone()
        };
        one(self.emit(node, Op::Concat, args, like))
    }

    fn gather(&mut self, node: &Node) -> Native {
        let axis = match node.attrs.get("axis") {
            Some(Attr::Int(axis)) => *axis,
            _ => 0,
        };
        match (self.act(node, 0), self.act(node, 1)) {
            (None, Some(ids)) => self.embedding(node, &ids, axis),
            (Some(x), None) => {
                let rank = x.layout.0.len();
                let index = self.integers(node, 1);
                let (Some(axis), Some([at])) = (axis_of(axis, rank), index.as_deref()) else {
                    return Ok(None);
                };
                let is_scalar = self.constant(node, 1).is_some_and(|i| i.rank() == 0);
                let kept = (!is_scalar).then(Vec::new);
                if x.layout.0[axis] == [Part::Len] && matches!(*at, 0 | -1) {
                    let mut axes = x.layout.0.clone();
                    match kept {
                        Some(parts) => axes[axis] = parts,
                        None => {
                            axes.remove(axis);
                        }
                    }
                    return self.end_row(node, &x, Layout(axes), *at == 0);
                }
                let own = size(&x.layout.0[axis]).k;
                let Some(at) = axis_of(*at, own) else {
                    return Ok(None);
                };
                let done = self.cut(node, &x, axis, at, 1, kept);
                Ok(done.map(|y| vec![Value::Act(y)]))
            }
            _ => Ok(None),
        }
    }

    fn embedding(&mut self, node: &Node, ids: &Act, axis: i64) -> Native {
        let Some(table) = self.constant(node, 0) else {
            return Ok(None);
        };
        let whole = matches!(ids.elem, Elem::I64 | Elem::I32);
        // Rows of a table hold floats of 32 bits, and no other elements of its type.
        let is_native = table.rank() >= 2 && table.elem() == Elem::F32;
        if !is_native || axis != 0 || !whole || ids.layout.row_elems() != 1 {
            return Ok(None);
        }
        let rows = table.dims()[0];
        let d = table.len() / rows.max(1);
        let weight = self.weight(node, 0, "", &[rows, d], || floats(&table));
        let ids = self.items.shaped(ids, &[]);
        let mut axes = ids.layout.0.clone();
        axes.extend(table.dims()[1..].iter().map(|&n| vec![Part::Fixed(n)]));
        let like = Act {
            layout: Layout(axes),
            dims: vec![d],
            elem: Elem::F32,
            ..ids.clone()
        };
        one(self.emit(node, Op::Embedding, vec![Arg::Item(ids.src), weight], like))
    }
}
