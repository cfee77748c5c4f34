//! Attention as it is exported: a product of queries and turned keys, scaled, masked, through a
//! softmax, times values.
//!
//! Scores have two axes of positions, which no packed value has; so they are followed as what they
//! will become. What is added to them must be known and depend on the distance of two positions alone, up
//! to the longest sequence: it goes away, or becomes what queries see and a bias. See [`super::distance`].

use lazybatch_graph::onnx::{Elem, Node};
use lazybatch_graph::{Heads, Layout, Op, Operand, Part, Produced, Seen, Tensor, TensorOp};

use super::distance::{self, Beside, ByDistance, HIDDEN, SURELY_HIDDEN};
use super::{Lower, Value, axis_of, int};
use crate::import::items::{Act, Arg, Cache, Kind, Out, Src};
use crate::import::layout::{self, canonical, size};
use crate::import::trace::dims_at;

/// Scores on the way to an attention.
#[derive(Clone, Debug)]
pub(in crate::import) struct Scores {
    q: Act,
    k: Rows,
    heads: usize,
    dim: usize,
    scale: f64,
    /// With one, scaled products are this times their tanh.
    cap: Option<f64>,
    /// What is added to them.
    term: Option<ByDistance>,
    phase: Phase,
    layout: Layout,
}

/// How far an attention is.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Before the softmax.
    Raw,
    /// Multiplied by zero where this hides: what is added next has to hide that too.
    Gated(ByDistance),
    /// Behind it.
    Weights,
    /// Whether the weights of that name are no numbers.
    NoNumber(String),
}

impl Scores {
    fn heads(&self) -> Heads {
        Heads {
            query: self.heads,
            kv: self.heads,
            dim: self.dim,
            // Capped scores are scaled to their cap before.
            scale: (self.scale * self.cap.unwrap_or(1.0)) as f32,
        }
    }
}

/// Keys or values.
#[derive(Clone, Debug)]
enum Rows {
    /// Of all positions.
    Act(Act),
    /// Of the steps so far.
    Cache(Cache),
}

impl Rows {
    fn layout(&self) -> &Layout {
        match self {
            Self::Act(act) => &act.layout,
            Self::Cache(cache) => &cache.layout,
        }
    }
}

type Step = Result<Option<Vec<Value>>, String>;

impl Lower<'_> {
    /// Operand `i` as scores.
    fn scores_of(&self, node: &Node, i: usize) -> Option<Scores> {
        match self.values.get(node.inputs.get(i)?)? {
            Value::Scores(scores) => Some((**scores).clone()),
            _ => None,
        }
    }

    /// Operand `i` as keys or values.
    fn rows_of(&self, node: &Node, i: usize) -> Option<Rows> {
        match self.values.get(node.inputs.get(i)?)? {
            Value::Act(act) if act.elem == Elem::F32 => Some(Rows::Act(act.clone())),
            Value::Cache(cache) => Some(Rows::Cache(cache.clone())),
            _ => None,
        }
    }

    /// The cache that a node passes on or puts this step's row behind; none for other nodes.
    pub(super) fn cached(&mut self, node: &Node) -> Result<Option<Cache>, String> {
        let found = (0..node.inputs.len()).find_map(|i| match self.rows_of(node, i)? {
            Rows::Cache(cache) => Some((i, cache)),
            Rows::Act(_) => None,
        });
        let Some((i, cache)) = found else {
            return Ok(None);
        };
        match node.op.as_str() {
            "Identity" | "Cast" | "Dropout" => return Ok(Some(cache)),
            "MatMul" if i == 1 => return Ok(None),
            "Transpose" => {
                let rank = cache.layout.0.len();
                let perm: Vec<usize> = match super::ints(node, "perm") {
                    Some(perm) => perm.iter().map(|&i| i as usize).collect(),
                    None => (0..rank).rev().collect(),
                };
                if let Some((layout, true)) = layout::permute(&cache.layout, &perm) {
                    return Ok(Some(Cache { layout, ..cache }));
                }
            }
            "Concat" if i == 0 && node.inputs.len() == 2 && cache.new.is_none() => {
                let axis = axis_of(int(node, "axis", 0), cache.layout.0.len());
                if let (Some(axis), Some(new)) = (axis, self.act(node, 1)) {
                    let mut one = cache.layout.clone();
                    let on_steps = one.0[axis] == [Part::Len];
                    one.0[axis] = Vec::new();
                    if on_steps && canonical(&one) == canonical(&new.layout) {
                        let new = Some(new);
                        return Ok(Some(Cache { new, ..cache }));
                    }
                }
            }
            _ => {}
        }
        Err("reads a cache other than to append a row or by attention".into())
    }

    /// The native form of a node that makes, passes on or completes scores.
    pub(super) fn scores(&mut self, node: &Node) -> Step {
        let found = (0..node.inputs.len()).find_map(|i| Some((i, self.scores_of(node, i)?)));
        let Some((i, scores)) = found else {
            if node.op == "MatMul"
                && let (Some(q), Some(k)) = (self.act(node, 0), self.rows_of(node, 1))
            {
                return Ok(self.begin(&q, &k));
            }
            return Ok(None);
        };
        let raw = scores.phase == Phase::Raw;
        let is_score = raw || matches!(scores.phase, Phase::Gated(_));
        let is_number = !matches!(scores.phase, Phase::NoNumber(_));
        let next = match node.op.as_str() {
            "Identity" => Some(scores),
            "Dropout" | "Cast" if is_number => Some(scores),
            "Mul" | "Div" if raw => match self.scaled(node, 1 - i, &scores)? {
                None if node.op == "Mul" => Some(self.gated(node, 1 - i, scores)?),
                scaled => scaled,
            },
            "Add" | "Sub" if is_score && (node.op == "Add" || i == 0) => {
                let term = match node.op.as_str() {
                    "Add" => self.term(node, 1 - i, &scores, "", |v| v)?,
                    _ => self.term(node, 1 - i, &scores, "-", |v| -v)?,
                };
                self.with_term(scores, term)
            }
            "Tanh" if raw && scores.cap.is_none() && scores.term.is_none() => Some(Scores {
                cap: Some(1.0),
                ..scores
            }),
            "Where" if raw => self.hidden(node, i, scores)?,
            "Where" => self.without_no_numbers(node, &scores)?,
            "IsNaN" if scores.phase == Phase::Weights => Some(Scores {
                phase: Phase::NoNumber(node.inputs[0].clone()),
                ..scores
            }),
            "Softmax" if raw => {
                let rank = scores.layout.0.len();
                let default = if self.trace.opset < 13 { 1 } else { -1 };
                let last = axis_of(int(node, "axis", default), rank) == Some(rank - 1);
                last.then_some(Scores {
                    phase: Phase::Weights,
                    ..scores
                })
            }
            "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" if is_number => {
                let sizes = &self.fact(node, 0)?.sizes;
                let at_end = |l: &Layout| {
                    let n = l.0.len();
                    n >= 2 && l.0[n - 1] == [Part::Len]
                };
                let layout = layout::reshape(&scores.layout, sizes).filter(at_end);
                layout.map(|layout| Scores { layout, ..scores })
            }
            "MatMul" if i == 0 && scores.phase == Phase::Weights => {
                return self.complete(node, &scores);
            }
            _ => None,
        };
        match next {
            Some(scores) => Ok(Some(vec![Value::Scores(Box::new(scores))])),
            None => Err("is a step of an attention whose form is not recognised".into()),
        }
    }

    /// Scores of `q [.., len, d]` and `k [.., d, len]`; `q` may be of samples alone.
    fn begin(&self, q: &Act, k: &Rows) -> Option<Vec<Value>> {
        let (q_axes, k_axes) = (&q.layout.0, &k.layout().0);
        let (n, m) = (q_axes.len(), k_axes.len());
        if n != m || n < 2 || q.elem != Elem::F32 {
            return None;
        }
        let plain = |axis: &[Part]| axis.iter().all(|p| matches!(p, Part::Fixed(_)));
        let dim = size(&q_axes[n - 1]).k;
        let over_len = k_axes[n - 1] == [Part::Len] && size(&k_axes[n - 2]).k == dim;
        let steps = q_axes[n - 2] == [Part::Len] || size(&q_axes[n - 2]) == size(&[]);
        let (before_q, before_k) = (&q_axes[..n - 2], &k_axes[..n - 2]);
        let same = canonical(&Layout(before_q.to_vec())) == canonical(&Layout(before_k.to_vec()));
        if !over_len || !steps || !same || !plain(&q_axes[n - 1]) || !plain(&k_axes[n - 2]) {
            return None;
        }
        let heads = before_q.iter().map(|a| size(a).k).product();
        let mut axes = q_axes.clone();
        axes[n - 1] = vec![Part::Len];
        let scores = Scores {
            q: q.clone(),
            k: k.clone(),
            heads,
            dim,
            scale: 1.0,
            cap: None,
            term: None,
            phase: Phase::Raw,
            layout: Layout(axes),
        };
        Some(vec![Value::Scores(Box::new(scores))])
    }

    fn scaled(&self, node: &Node, other: usize, scores: &Scores) -> Result<Option<Scores>, String> {
        if node.op == "Div" && other == 0 {
            return Ok(None);
        }
        let value = match self.scalar(node, other) {
            Some(v) => v,
            // A factor that depends on the length is one only where it is the same for all.
            None => match self.uniform(self.beside_scores(node, other)?)? {
                Some(v) => v,
                None => return Ok(None),
            },
        };
        let factor = if node.op == "Div" { 1.0 / value } else { value };
        let term = match &scores.term {
            None => None,
            Some(term) => match term.times(factor) {
                None => return Ok(None),
                scaled => scaled,
            },
        };
        let (scale, cap) = match scores.cap {
            None => (scores.scale * factor, None),
            Some(_) if factor <= 0.0 => return Ok(None),
            Some(cap) => (scores.scale, Some(cap * factor)),
        };
        Ok(Some(Scores {
            scale,
            cap,
            term,
            ..scores.clone()
        }))
    }

    /// Scores times ones where positions are seen and zeros where they are hidden.
    fn gated(&mut self, node: &Node, other: usize, scores: Scores) -> Result<Scores, String> {
        let to = |v: f64| match v {
            1.0 => 0.0,
            0.0 => f64::NEG_INFINITY,
            _ => f64::NAN,
        };
        let gate = self.term(node, other, &scores, "gate ", to);
        let gate = gate.map_err(|_| {
            "multiplies scores of an attention by what is neither one number nor a mask of ones and zeros \
             that depends on how far a key is behind its query"
        })?;
        Ok(match gate {
            None => scores,
            Some(gate) => Scores {
                phase: Phase::Gated(gate),
                ..scores
            },
        })
    }

    /// Scores with a term; none where that shows what was multiplied by zero. Notes what hides by a number
    /// to which scores might come near.
    fn with_term(&mut self, scores: Scores, term: Option<ByDistance>) -> Option<Scores> {
        if let Phase::Gated(gate) = &scores.phase
            && !term.as_ref().is_some_and(|term| term.hides_all_of(gate))
        {
            return None;
        }
        if let Some(by) = term.as_ref().map(|term| term.least_hidden)
            && by > SURELY_HIDDEN
        {
            self.notes.insert(format!(
                "a mask adds {by} to scores that it hides: they count as hidden, however large they are"
            ));
        }
        let term = match (&scores.term, term) {
            (Some(a), Some(b)) => Some(a.plus(&b)),
            (a, b) => b.or_else(|| a.clone()),
        };
        Some(Scores {
            phase: Phase::Raw,
            term,
            ..scores
        })
    }

    /// The name of operand `i`, which must be known.
    fn beside_scores<'n>(&self, node: &'n Node, i: usize) -> Result<&'n str, String> {
        let name = node.inputs.get(i).ok_or("an operand too few")?;
        if self.trace.is_data(name) {
            return Err(format!(
                "its mask {name} comes with the request; --mask INPUT names an input that only tells \
                 padding"
            ));
        }
        Ok(name)
    }

    /// What adding `to(operand i)` to the scores adds by distance; none where that is nothing. `form` tells
    /// apart what is made of one operand.
    fn term(
        &mut self,
        node: &Node,
        i: usize,
        scores: &Scores,
        form: &str,
        to: impl Fn(f64) -> f64,
    ) -> Result<Option<ByDistance>, String> {
        let name = self.beside_scores(node, i)?;
        let lengths = self.trace.lengths();
        if !scores.q.layout.has_len() {
            for &len in lengths {
                let values = self.known_at(name, len)?.data().to_f64();
                if values.into_iter().map(&to).any(|v| v != 0.0) {
                    return Err(format!(
                        "its mask {name} is not empty at length {len}, and its queries have no positions"
                    ));
                }
            }
            return Ok(None);
        }
        let mut lead = dims_at(&scores.layout, 1, 1);
        lead.truncate(lead.len() - 2);
        let key = (format!("{form}{name}"), lead);
        if let Some(term) = self.terms.get(&key) {
            return Ok(term.clone());
        }
        let found = distance::table(&key.0, lengths, |len, is_relative| {
            let array = self.known_at(name, len)?;
            let beside = Beside {
                array: &array,
                to: &to,
                lead: &key.1,
                len,
            };
            Ok(beside.table(is_relative))
        })?;
        let term = (!found.is_nothing()).then_some(found);
        self.terms.insert(key, term.clone());
        Ok(term)
    }

    /// `Where(condition, a, b)` with scores at operand `i` and hidden elsewhere.
    fn hidden(&mut self, node: &Node, i: usize, scores: Scores) -> Result<Option<Scores>, String> {
        if i == 0 {
            return Ok(None);
        }
        let other = self.beside_scores(node, 3 - i)?;
        let mut least_hidden = f64::NEG_INFINITY;
        for &len in self.trace.lengths() {
            let array = self.known_at(other, len)?;
            for v in array.data().to_f64() {
                if v.is_nan() || v > HIDDEN {
                    return Ok(None);
                }
                least_hidden = least_hidden.max(v);
            }
        }
        let keep = if i == 1 { 1.0 } else { 0.0 };
        let to = |v: f64| if v == keep { 0.0 } else { least_hidden };
        let form = if i == 1 { "seen " } else { "hidden " };
        let term = self.term(node, 0, &scores, form, to)?;
        Ok(self.with_term(scores, term))
    }

    /// `Where(IsNaN(weights), 0, weights)`. Only a row that hides all of its positions has weights that
    /// are no numbers, and no known mask leaves such a row: every position sees itself.
    fn without_no_numbers(&self, node: &Node, found: &Scores) -> Result<Option<Scores>, String> {
        let Phase::NoNumber(of) = &found.phase else {
            return Ok(None);
        };
        let weights = self.scores_of(node, 2);
        let Some(weights) = weights.filter(|_| node.inputs.get(2) == Some(of)) else {
            return Ok(None);
        };
        let zero = self.uniform(self.beside_scores(node, 1)?)? == Some(0.0);
        Ok(zero.then_some(weights))
    }

    /// The attention, once its values are there.
    fn complete(&mut self, node: &Node, scores: &Scores) -> Step {
        let Some(v) = self.rows_of(node, 1) else {
            return Err("multiplies scores of an attention by what is no activation".into());
        };
        let axes = &v.layout().0;
        let n = axes.len();
        let s_axes = &scores.layout.0;
        let fits = n >= 2
            && s_axes.len() == n
            && axes[n - 2] == [Part::Len]
            && axes[n - 1].iter().all(|p| matches!(p, Part::Fixed(_)))
            && canonical(&Layout(axes[..n - 2].to_vec()))
                == canonical(&Layout(s_axes[..n - 2].to_vec()));
        if !fits {
            return Err("has values of other heads than its keys".into());
        }
        if scores.cap.is_some() && !scores.q.layout.has_len() {
            return Err("caps scores of queries that have no positions".into());
        }
        let of_values = size(&axes[n - 1]).k;
        if of_values != scores.dim {
            return self.of_two_widths(node, scores, &v, of_values);
        }
        match (&scores.k, &v) {
            (Rows::Act(k), Rows::Act(v)) => {
                let made = self.over_rows(node, scores, [k, v]);
                Ok(Some(vec![Value::Act(made)]))
            }
            (Rows::Cache(k), Rows::Cache(v)) => {
                let mut layout = Layout(s_axes.clone());
                layout.0[n - 1] = axes[n - 1].clone();
                self.over_caches(node, &scores.q, [k, v], scores.heads(), layout)
            }
            _ => Err("has keys in a cache and values outside, or the reverse".into()),
        }
    }

    /// Attention over all positions.
    fn over_rows(&mut self, node: &Node, scores: &Scores, [k, v]: [&Act; 2]) -> Act {
        let heads = scores.heads();
        let width = scores.heads * scores.dim;
        let operands = [&scores.q, k, v].map(|a| self.items.shaped(a, &[width]));
        let mut args: Vec<Arg> = operands.iter().map(|a| Arg::Item(a.src)).collect();
        let mut layout = scores.layout.clone();
        let last = v.layout.0.len() - 1;
        layout.0[last] = v.layout.0[last].clone();
        let like = Act {
            layout,
            dims: vec![width],
            ..operands[0].clone()
        };
        if scores.q.layout.has_len() {
            let cap = scores.cap.map(|cap| cap as f32);
            let (mut seen, mut bias) = (Seen::ALL, None);
            if let Some(term) = &scores.term {
                let values;
                (seen, values) = term.split(heads.query, self.max_len);
                bias = values.map(|values| self.bias(node, heads.query, values));
            }
            args.extend(bias);
            let op = Op::Attention {
                heads,
                seen,
                cap,
                bias: bias.is_some(),
            };
            return self.emit(node, op, args, like);
        }
        let out = Out {
            lead: like.layout.lead(),
            dims: like.dims.clone(),
            elem: like.elem,
        };
        let item = self
            .items
            .push(&node.name, Kind::Lookup(heads), args, vec![out]);
        let src = Src { item, out: 0 };
        Act { src, ..like }
    }
}

impl Lower<'_> {
    /// A bias by distance `[heads, 2 max_len - 1]`. Layers that have the same elements share one, whatever
    /// the graph calls them.
    fn bias(&mut self, node: &Node, heads: usize, values: Vec<f32>) -> Arg {
        let same = self.biases.iter().find(|(of, _)| *of == values);
        if let Some((_, bias)) = same {
            return *bias;
        }
        let dims = [heads, values.len() / heads];
        let make = || Tensor::from_f32(&dims, &values);
        let bias = self
            .items
            .weight(&format!("{}.by distance", node.outputs[0]), make);
        self.biases.push((values, bias));
        bias
    }

    /// Attention of this step's query over caches that its row is behind.
    fn over_caches(
        &mut self,
        node: &Node,
        q: &Act,
        [k, v]: [&Cache; 2],
        heads: Heads,
        layout: Layout,
    ) -> Step {
        let width = heads.query * heads.dim;
        if q.layout.has_len() {
            return Err("attends from more than one step to a cache".into());
        }
        for cache in [k, v] {
            let Some(new) = &cache.new else {
                return Err("attends to a cache before this step's row is behind it".into());
            };
            if self.items.caches[cache.at].appended {
                continue;
            }
            self.items.caches[cache.at].appended = true;
            let new = self.items.shaped(new, &[width]);
            let name = format!("{}.append", self.items.caches[cache.at].name);
            let args = vec![Arg::Item(new.src)];
            self.items
                .push(&name, Kind::Append(cache.at), args, Vec::new());
        }
        let q = self.items.shaped(q, &[width]);
        let out = Out {
            lead: layout.lead(),
            dims: vec![width],
            elem: Elem::F32,
        };
        let kind = Kind::LookupCache(heads, k.at, v.at);
        let args = vec![Arg::Item(q.src)];
        let item = self.items.push(&node.name, kind, args, vec![out]);
        Ok(Some(vec![Value::Act(Act {
            src: Src { item, out: 0 },
            dims: vec![width],
            layout,
            elem: Elem::F32,
        })]))
    }
}

/// Cuts and zeros for a last axis that is wider or narrower.
impl Lower<'_> {
    /// Attention whose values have another width than its keys: the narrower ones get zeros, of which
    /// scores are the same, and results are cut.
    fn of_two_widths(&mut self, node: &Node, scores: &Scores, v: &Rows, of_values: usize) -> Step {
        let (Rows::Act(k), Rows::Act(v)) = (&scores.k, v) else {
            return Err("has values of other heads than its keys".into());
        };
        let (of_q, of_v) = (scores.q.layout.0.len(), v.layout.0.len());
        let dim = scores.dim.max(of_values);
        let wide = |lower: &mut Self, act: &Act, axis: usize, what: &str| {
            lower.resized(&format!("{}.{what}", node.name), act, axis, dim)
        };
        let q = wide(self, &scores.q, of_q - 1, "queries");
        let k = wide(self, k, of_q - 2, "keys");
        let v = wide(self, v, of_v - 1, "values");
        let scores = Scores {
            q,
            dim,
            ..scores.clone()
        };
        let made = self.over_rows(node, &scores, [&k, &v]);
        let name = format!("{}.cut", node.name);
        let made = self.resized(&name, &made, of_v - 1, of_values);
        Ok(Some(vec![Value::Act(made)]))
    }

    /// `act` with `to` elements along `axis`, which is a number: zeros behind those that are there, or
    /// the first of them.
    fn resized(&mut self, name: &str, act: &Act, axis: usize, to: usize) -> Act {
        let from = size(&act.layout.0[axis]).k;
        if from == to {
            return act.clone();
        }
        let rank = act.layout.0.len();
        let numbers = |values: Vec<i64>| Operand::Numbers {
            dims: vec![values.len()],
            elem: Elem::I64,
            base: values,
            per_len: Vec::new(),
        };
        let (op, mut more) = if to > from {
            let mut pads = vec![0; 2 * rank];
            pads[rank + axis] = (to - from) as i64;
            ("Pad", vec![numbers(pads)])
        } else {
            let [start, end, axis] = [0, to as i64, axis as i64].map(|v| numbers(vec![v]));
            ("Slice", vec![start, end, axis])
        };
        let mut layout = act.layout.clone();
        layout.0[axis] = vec![Part::Fixed(to)];
        let mut operands = vec![Operand::Next {
            layout: act.layout.clone(),
            elem: act.elem,
        }];
        operands.append(&mut more);
        let op = TensorOp {
            op: op.into(),
            opset: 13,
            attrs: Default::default(),
            operands,
            outputs: vec![Produced {
                layout: layout.clone(),
                elem: act.elem,
            }],
            flops_per_row: layout.row_elems() as u64,
        };
        let like = Act {
            dims: layout.fixed(),
            layout,
            ..act.clone()
        };
        let args = vec![Arg::Item(act.src)];
        self.items.node(name, Op::Tensor(Box::new(op)), args, like)
    }
}
