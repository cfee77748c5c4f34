//! LSTM, GRU and RNN.
//!
//! Over the sequence a layer becomes a cell in a loop block, one for each direction; over an axis
//! of fixed size its steps stand one after another.

use lazybatch_graph::onnx::{Array, Attr, Elem, Node};
use lazybatch_graph::{Act as Function, Layout, Op, Part, Tensor};

use super::{Lower, Native, Value, floats, int, text};
use crate::import::items::{Act, Arg, Cell, CellKind, Kind, Out, Src};
use crate::import::layout::size;

/// Most steps of a layer over an axis of fixed size.
const MAX_STEPS: usize = 256;

/// The axes of a layer's operands.
struct Axes {
    batch_first: bool,
    /// Parts of the batch axis.
    batch: Vec<Part>,
    /// Parts of the axis of directions.
    directions: Vec<Part>,
}

impl Axes {
    /// `[steps, directions, batch, hidden]`, or with the batch first.
    fn all(&self, steps: Vec<Part>, hidden: usize) -> Layout {
        let (batch, directions) = (self.batch.clone(), self.directions.clone());
        let hidden = vec![Part::Fixed(hidden)];
        Layout(if self.batch_first {
            vec![batch, steps, directions, hidden]
        } else {
            vec![steps, directions, batch, hidden]
        })
    }

    /// `[directions, batch, hidden]`, or with the batch first.
    fn last(&self, hidden: usize) -> Layout {
        let (batch, directions) = (self.batch.clone(), self.directions.clone());
        let hidden = vec![Part::Fixed(hidden)];
        Layout(if self.batch_first {
            vec![batch, directions, hidden]
        } else {
            vec![directions, batch, hidden]
        })
    }
}

/// First values of one state in one direction.
enum Init {
    All(f32),
    Given(Act),
}

/// One direction of a layer: its cell, the operands behind x, and states that are given.
type Direction = (Cell, Vec<Arg>, Vec<(usize, Act)>);

/// Gates of one direction in the program's order: each `[hidden, inputs]` of `w`, `[hidden,
/// hidden]` of `r`, and biases.
struct Gates {
    order: &'static [usize],
    hidden: usize,
    inputs: usize,
    w: Vec<f32>,
    r: Vec<f32>,
    b: Vec<f32>,
}

impl Gates {
    /// `[columns, gates * hidden]` of a matrix `[gates * hidden, columns]`, gates in order.
    fn turned(&self, from: &[f32], columns: usize, gates: &[usize]) -> Tensor {
        let (h, n) = (self.hidden, gates.len());
        let mut out = Vec::with_capacity(columns * n * h);
        for c in 0..columns {
            for &g in gates {
                out.extend((0..h).map(|j| from[(g * h + j) * columns + c]));
            }
        }
        Tensor::from_f32(&[columns, n * h], &out)
    }

    fn w(&self, gates: &[usize]) -> Tensor {
        self.turned(&self.w, self.inputs, gates)
    }

    fn r(&self, gates: &[usize]) -> Tensor {
        self.turned(&self.r, self.hidden, gates)
    }

    /// Bias of the input (half 0) or of the recurrence (half 1).
    fn half(&self, half: usize, gates: &[usize]) -> Vec<f32> {
        let (h, all) = (self.hidden, self.order.len());
        let at = |g: usize| self.b[(half * all + g) * h..][..h].to_vec();
        gates.iter().flat_map(|&g| at(g)).collect()
    }

    fn bias(&self, gates: &[usize]) -> Tensor {
        let (a, b) = (self.half(0, gates), self.half(1, gates));
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        Tensor::from_f32(&[sum.len()], &sum)
    }
}

impl Lower<'_> {
    pub(super) fn recurrent(&mut self, node: &Node) -> Native {
        let Some(x) = self.act(node, 0).filter(|x| x.elem == Elem::F32) else {
            return Err("reads a sequence that is no activation".into());
        };
        let backward = match text(node, "direction") {
            "" | "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => return Err(format!("has the direction {other}")),
        };
        let (kind, order) = self.cell_kind(node, backward.len())?;
        let (Some(w), Some(r)) = (self.constant(node, 1), self.constant(node, 2)) else {
            return Err("has weights that are not constant".into());
        };
        let bias = match self.absent(node, 3) {
            true => None,
            false => Some(
                self.constant(node, 3)
                    .ok_or("has a bias that is not constant")?,
            ),
        };
        let (&[d, gates, inputs], &[d2, _, hidden]) = (w.dims(), r.dims()) else {
            return Err("has weights of an unknown form".into());
        };
        let sound = d == backward.len() && d2 == d && gates == order.len() * hidden && hidden > 0;
        if !sound || x.layout.0.len() != 3 || size(&x.layout.0[2]).k != inputs {
            return Err(format!("has weights {w} and {r} for {:?}", x.layout.0));
        }
        let batch_first = int(node, "layout", 0) != 0;
        let (step_axis, batch_axis) = if batch_first { (1, 0) } else { (0, 1) };
        let axes = Axes {
            batch_first,
            batch: x.layout.0[batch_axis].clone(),
            directions: if d == 1 {
                Vec::new()
            } else {
                vec![Part::Fixed(d)]
            },
        };
        let steps = x.layout.0[step_axis].clone();
        let over_len = steps == [Part::Len];
        let plain = steps.iter().all(|p| matches!(p, Part::Fixed(_)));
        if steps == [Part::Batch] {
            return Err(
                "runs over the batch: for [length, batch, ..] say --batch-axis INPUT:1 and \
                 --sequence-axis INPUT:0"
                    .into(),
            );
        }
        if !over_len && (!plain || size(&steps).k > MAX_STEPS) {
            return Err(format!("runs over the axis {steps:?}"));
        }
        self.check_lengths(node, (!over_len).then(|| size(&steps).k))?;
        let mut layers = Vec::new();
        for (at, &reverse) in backward.iter().enumerate() {
            let part = |a: &Array| {
                let num = a.len() / d;
                floats(a)[at * num..(at + 1) * num].to_vec()
            };
            let gates = Gates {
                order,
                hidden,
                inputs,
                w: part(&w),
                r: part(&r),
                b: bias.as_ref().map_or_else(|| vec![0.0; 2 * gates], &part),
            };
            let weights = self.cell_weights(node, kind, &gates, at);
            let mut init = [0.0; 2];
            let mut given = Vec::new();
            for which in 0..if kind == CellKind::Lstm { 2 } else { 1 } {
                match self.initial(node, 5 + which, &axes, at, hidden)? {
                    Init::All(value) => init[which] = value,
                    Init::Given(act) => given.push((which, act)),
                }
            }
            let cell = Cell {
                kind,
                hidden,
                reverse,
                init,
            };
            layers.push((cell, weights, given));
        }
        if over_len {
            Ok(Some(self.layers(node, &x, &axes, layers, hidden)))
        } else {
            let num = size(&steps).k;
            self.steps(node, &x, &axes, layers, hidden, num).map(Some)
        }
    }

    /// The cell, and its gates in the program's order by their place in the graph's.
    fn cell_kind(
        &self,
        node: &Node,
        directions: usize,
    ) -> Result<(CellKind, &'static [usize]), String> {
        let names: Vec<String> = match node.attrs.get("activations") {
            Some(Attr::Strs(names)) => names.clone(),
            _ => Vec::new(),
        };
        let default = |each: &[&str]| {
            names.is_empty() || names.chunks(each.len()).all(|c| c.iter().eq(each.iter()))
        };
        if node.attrs.contains_key("clip") || int(node, "input_forget", 0) != 0 {
            return Err("clips its gates or couples them".into());
        }
        let other = || Err(format!("has the activations {}", names.join(", ")));
        match node.op.as_str() {
            "LSTM" => {
                let peephole = self.constant(node, 7);
                let none = peephole.is_none_or(|p| floats(&p).iter().all(|v| *v == 0.0));
                if !none {
                    return Err("has peepholes".into());
                }
                match default(&["Sigmoid", "Tanh", "Tanh"]) {
                    true => Ok((CellKind::Lstm, &[0, 2, 3, 1])),
                    false => other(),
                }
            }
            "GRU" => match default(&["Sigmoid", "Tanh"]) {
                true if int(node, "linear_before_reset", 0) != 0 => Ok((CellKind::Gru, &[1, 0, 2])),
                true => Ok((CellKind::GruBefore, &[1, 0, 2])),
                false => other(),
            },
            _ => {
                let same = names.iter().all(|n| Some(n) == names.first());
                let function = match names.first().map(String::as_str) {
                    None | Some("Tanh") => Function::Tanh,
                    Some("Relu") => Function::Relu,
                    Some("Sigmoid") => Function::Sigmoid,
                    _ => return other(),
                };
                match same && names.len() <= directions {
                    true => Ok((CellKind::Rnn(function), &[0])),
                    false => other(),
                }
            }
        }
    }

    /// Operands of a cell behind x.
    fn cell_weights(&mut self, node: &Node, kind: CellKind, gates: &Gates, at: usize) -> Vec<Arg> {
        let name = |what: &str| format!("{}.{what}.{at}", node.inputs[1]);
        let bias_name = |what: &str| match self.absent(node, 3) {
            true => name(&format!("no_bias.{what}")),
            false => format!("{}.{what}.{at}", node.inputs[3]),
        };
        let order = gates.order;
        let mut made: Vec<(String, Tensor)> = Vec::new();
        match kind {
            CellKind::GruBefore => {
                for (gate, what) in order.iter().zip(["r", "z", "n"]) {
                    let gate = &[*gate][..];
                    made.push((name(&format!("ih_{what}")), gates.w(gate)));
                    let of_r = format!("{}.hh_{what}.{at}", node.inputs[2]);
                    made.push((of_r, gates.r(gate)));
                    made.push((bias_name(what), gates.bias(gate)));
                }
            }
            _ => {
                made.push((name("ih"), gates.w(order)));
                made.push((format!("{}.hh.{at}", node.inputs[2]), gates.r(order)));
                if kind == CellKind::Gru {
                    for (half, what) in [(0, "ih"), (1, "hh")] {
                        let values = gates.half(half, order);
                        let tensor = Tensor::from_f32(&[values.len()], &values);
                        made.push((bias_name(what), tensor));
                    }
                } else {
                    made.push((bias_name("sum"), gates.bias(order)));
                }
            }
        }
        made.into_iter()
            .map(|(name, tensor)| self.items.weight(&name, || tensor))
            .collect()
    }

    /// Refuses lengths that are not those of the whole sequence.
    fn check_lengths(&self, node: &Node, fixed: Option<usize>) -> Result<(), String> {
        if self.absent(node, 4) {
            return Ok(());
        }
        let name = &node.inputs[4];
        for &len in self.trace.lengths() {
            let known = self.trace.known(name, 1, len).map_err(|e| e.to_string())?;
            let Some(lengths) = known else {
                return Err(format!("takes lengths {name} that a request computes"));
            };
            let wanted = fixed.unwrap_or(len) as i128;
            if lengths.data().to_i128().iter().any(|n| *n != wanted) {
                return Err(format!("takes lengths {name} other than the sequence's"));
            }
        }
        Ok(())
    }

    fn initial(
        &mut self,
        node: &Node,
        i: usize,
        axes: &Axes,
        at: usize,
        hidden: usize,
    ) -> Result<Init, String> {
        if self.absent(node, i) {
            return Ok(Init::All(0.0));
        }
        if let Some(x) = self.act(node, i) {
            let num = if axes.directions.is_empty() { 1 } else { 2 };
            if x.layout.row_elems() != num * hidden || x.layout.has_len() {
                return Err(format!("starts from the state {:?}", x.layout.0));
            }
            let flat = self.items.shaped(&x, &[num * hidden]);
            if num == 1 {
                return Ok(Init::Given(flat));
            }
            let op = Op::Slice {
                start: at * hidden,
                len: hidden,
            };
            let like = Act {
                dims: vec![hidden],
                ..flat.clone()
            };
            let args = vec![Arg::Item(flat.src)];
            let name = format!("{}.start", node.name);
            return Ok(Init::Given(self.items.node(&name, op, args, like)));
        }
        let name = &node.inputs[i];
        if self.trace.is_data(name) {
            return Err("starts from an unknown state".into());
        }
        match self.uniform(name)? {
            Some(value) => Ok(Init::All(value as f32)),
            None => Err("starts from a state of different numbers".into()),
        }
    }

    /// One loop item for each direction.
    fn layers(
        &mut self,
        node: &Node,
        x: &Act,
        axes: &Axes,
        layers: Vec<Direction>,
        hidden: usize,
    ) -> Vec<Value> {
        let x = self.items.shaped(x, &[x.layout.row_elems()]);
        let mut made = Vec::new();
        for (cell, weights, given) in layers {
            let of = self.items.items.len() + given.len();
            for (which, act) in given {
                let name = format!("{}.start", node.name);
                let kind = Kind::Start { of, which };
                self.items
                    .push(&name, kind, vec![Arg::Item(act.src)], Vec::new());
            }
            let state = |lead| Out {
                lead,
                dims: vec![hidden],
                elem: Elem::F32,
            };
            let mut outs = vec![
                state(lazybatch_graph::Dim::Rows),
                state(lazybatch_graph::Dim::Batch),
            ];
            if cell.kind == CellKind::Lstm {
                outs.push(state(lazybatch_graph::Dim::Batch));
            }
            let mut args = vec![Arg::Item(x.src)];
            args.extend(weights);
            made.push(self.items.push(&node.name, Kind::Layer(cell), args, outs));
        }
        let last = axes.last(hidden);
        let layouts = [axes.all(vec![Part::Len], hidden), last.clone(), last];
        let mut results = Vec::new();
        for (out, layout) in layouts.into_iter().enumerate().take(node.outputs.len()) {
            let parts: Vec<Src> = made.iter().map(|&item| Src { item, out }).collect();
            results.push(self.joined(node, &parts, layout, hidden));
        }
        results
    }

    /// Values of `hidden` features each, one after another in a row.
    fn joined(&mut self, node: &Node, parts: &[Src], layout: Layout, hidden: usize) -> Value {
        let act = Act {
            src: parts[0],
            dims: vec![hidden],
            layout,
            elem: Elem::F32,
        };
        if parts.len() == 1 {
            return Value::Act(act);
        }
        let args = parts.iter().map(|&src| Arg::Item(src)).collect();
        let dims = vec![hidden * parts.len()];
        let name = format!("{}.join", node.name);
        Value::Act(
            self.items
                .node(&name, Op::Concat, args, Act { dims, ..act }),
        )
    }

    /// One item for each step and direction.
    fn steps(
        &mut self,
        node: &Node,
        x: &Act,
        axes: &Axes,
        layers: Vec<Direction>,
        hidden: usize,
        num: usize,
    ) -> Result<Vec<Value>, String> {
        let inputs = x.layout.row_elems() / num;
        let flat = self.items.shaped(x, &[num * inputs]);
        let mut at_step = Vec::new();
        for t in 0..num {
            let op = Op::Slice {
                start: t * inputs,
                len: inputs,
            };
            let like = Act {
                dims: vec![inputs],
                ..flat.clone()
            };
            let name = format!("{}.step", node.name);
            let args = vec![Arg::Item(flat.src)];
            at_step.push(match num {
                1 => flat.clone(),
                _ => self.items.node(&name, op, args, like),
            });
        }
        let looped = self.items.items[flat.src.item].looped;
        let d = layers.len();
        let mut by_step = vec![Src { item: 0, out: 0 }; num * d];
        let mut ends = Vec::new();
        for (at, (cell, weights, given)) in layers.into_iter().enumerate() {
            let states = if cell.kind == CellKind::Lstm { 2 } else { 1 };
            if looped && given.len() < states {
                return Err("starts from a constant state at each step of a decoder".into());
            }
            let of = self.items.items.len() + given.len();
            for (which, act) in given {
                let name = format!("{}.start", node.name);
                let kind = Kind::Start { of, which };
                self.items
                    .push(&name, kind, vec![Arg::Item(act.src)], Vec::new());
            }
            let reverse = cell.reverse;
            let mut end = of;
            for i in 0..num {
                let t = if reverse { num - 1 - i } else { i };
                let state = Out {
                    lead: lazybatch_graph::Dim::Batch,
                    dims: vec![hidden],
                    elem: Elem::F32,
                };
                let mut args = vec![Arg::Item(at_step[t].src)];
                args.extend(&weights);
                let kind = Kind::Step {
                    of,
                    cell: cell.clone(),
                };
                end = self
                    .items
                    .push(&node.name, kind, args, vec![state; states + 1]);
                by_step[t * d + at] = Src { item: end, out: 0 };
            }
            ends.push(end);
        }
        let last = axes.last(hidden);
        let steps = vec![Part::Fixed(num)];
        let steps = if num == 1 { Vec::new() } else { steps };
        let mut results = vec![self.joined(node, &by_step, axes.all(steps, hidden), hidden)];
        for out in 1..node.outputs.len() {
            let parts: Vec<Src> = ends.iter().map(|&item| Src { item, out }).collect();
            results.push(self.joined(node, &parts, last.clone(), hidden));
        }
        Ok(results)
    }
}
