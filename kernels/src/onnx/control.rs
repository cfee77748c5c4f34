//! Ops that run subgraphs: If, Loop, Scan.

use lazybatch_graph::onnx::{Array, Attr, Data, Error, Graph};

use super::scope::Scope;
use super::{Interpreter, Run};
use crate::tensor::{Call, Outputs};

/// Their names.
pub const OPS: [&str; 3] = ["If", "Loop", "Scan"];

fn body<'a>(call: &Call<'a>, name: &str) -> Result<&'a Graph, Error> {
    match call.attr(name) {
        Some(Attr::Graph(graph)) => Ok(graph),
        Some(other) => Err(call.bad(format!("attribute {name:?}"), "a graph", other.kind())),
        None => Err(call.bad(format!("attribute {name:?}"), "a graph", "none")),
    }
}

/// Arrays of equal dimensions stacked along a new axis `axis`.
fn stack(call: &Call, parts: &[Array], axis: i64) -> Result<Array, Error> {
    let Some(first) = parts.first() else {
        // No step: the element type and sizes are unknown; an empty list of numbers stands in.
        return Ok(Array::new(vec![0], Data::F32(Vec::new())));
    };
    let axis = call.axis_of(axis, first.rank() + 1)?;
    let mut all = first.data().take(&[]);
    let mut dims = first.dims().to_vec();
    dims.insert(0, parts.len());
    call.num(&dims)?;
    for part in parts {
        if part.dims() != first.dims() || part.elem() != first.elem() {
            return Err(call.bad("outputs of the steps", first, part));
        }
        all.append(part.data());
    }
    let mut perm: Vec<usize> = (1..dims.len()).collect();
    perm.insert(axis, 0);
    Ok(crate::tensor::transpose(&Array::new(dims, all), &perm))
}

impl Interpreter<'_> {
    /// Evaluates a node of [`OPS`].
    pub(super) fn control(&self, call: &Call, scope: &Scope, run: &mut Run) -> Outputs {
        match call.node.op.as_str() {
            "If" => {
                let branch = if call.int_scalar(0)? != 0 {
                    "then_branch"
                } else {
                    "else_branch"
                };
                let graph = body(call, branch)?;
                self.graph(graph, Scope::new(graph, Some(scope)), run)
            }
            "Loop" => self.repeat(call, scope, run),
            _ => self.scan(call, scope, run),
        }
    }

    /// Runs `graph` on `inputs`.
    fn step(
        &self,
        call: &Call,
        graph: &Graph,
        inputs: Vec<Array>,
        scope: &Scope,
        run: &mut Run,
    ) -> Outputs {
        run.node_runs += 1;
        let most = run.meter.limits.node_runs;
        if run.node_runs > most {
            let expected = format!("at most {most}");
            return Err(call.bad("steps and nodes evaluated", expected, "more"));
        }
        if graph.inputs.len() != inputs.len() {
            return Err(call.bad("inputs of the body", inputs.len(), graph.inputs.len()));
        }
        let mut inner = Scope::new(graph, Some(scope));
        for (info, value) in graph.inputs.iter().zip(inputs) {
            inner.set(&info.name, value);
        }
        self.graph(graph, inner, run)
    }

    /// Loop: operands are the most steps, whether to start, and the carried values.
    fn repeat(&self, call: &Call, scope: &Scope, run: &mut Run) -> Outputs {
        let graph = body(call, "body")?;
        let most = match call.opt(0) {
            Some(_) => Some(call.int_scalar(0)?),
            None => None,
        };
        let mut go = match call.opt(1) {
            Some(_) => call.int_scalar(1)? != 0,
            None => true,
        };
        let num_carried = call.inputs.len().saturating_sub(2);
        let mut carried = Vec::with_capacity(num_carried);
        for i in 2..call.inputs.len() {
            carried.push(call.x(i)?.clone());
        }
        let num_outputs = graph.outputs.len();
        let Some(num_scanned) = num_outputs.checked_sub(1 + num_carried) else {
            let expected = format!("at least {}", 1 + num_carried);
            return Err(call.bad("outputs of the body", expected, num_outputs));
        };
        let mut scanned = vec![Vec::new(); num_scanned];
        let (mut i, mut kept) = (0_i64, 0);
        while go && most.is_none_or(|most| i < most) {
            let mut inputs = vec![
                Array::scalar(Data::I64(vec![i])),
                Array::scalar(Data::Bool(vec![go])),
            ];
            inputs.append(&mut carried);
            let mut outputs = self.step(call, graph, inputs, scope, run)?.into_iter();
            go = match outputs.next() {
                Some(cond) if cond.len() == 1 => cond.data().to_i128() != [0],
                _ => return Err(call.bad("condition of the body", "one element", "another")),
            };
            carried.extend(outputs.by_ref().take(num_carried));
            for (list, value) in scanned.iter_mut().zip(outputs) {
                kept += value.len();
                call.num(&[kept])?;
                list.push(value);
            }
            i += 1;
        }
        for list in &scanned {
            carried.push(stack(call, list, 0)?);
        }
        Ok(carried)
    }

    /// Scan: operands are the carried values and the scanned sequences.
    fn scan(&self, call: &Call, scope: &Scope, run: &mut Run) -> Outputs {
        let graph = body(call, "body")?;
        let num_scanned = call.size("num_scan_inputs", 0, 1)?;
        let Some(num_carried) = call.inputs.len().checked_sub(num_scanned) else {
            let expected = format!("at most {}", call.inputs.len());
            return Err(call.bad("attribute \"num_scan_inputs\"", expected, num_scanned));
        };
        let Some(num_out) = graph.outputs.len().checked_sub(num_carried) else {
            let expected = format!("at least {num_carried}");
            return Err(call.bad("outputs of the body", expected, graph.outputs.len()));
        };
        let list = |name: &str, num: usize| -> Result<Vec<i64>, Error> {
            let v = call.ints(name)?.unwrap_or_else(|| vec![0; num]);
            if v.len() != num {
                let what = format!("attribute {name:?}");
                return Err(call.bad(what, format!("{num} numbers"), v.len()));
            }
            Ok(v)
        };
        let in_axes = list("scan_input_axes", num_scanned)?;
        let in_back = list("scan_input_directions", num_scanned)?;
        let out_axes = list("scan_output_axes", num_out)?;
        let out_back = list("scan_output_directions", num_out)?;
        let mut carried = Vec::with_capacity(num_carried);
        for i in 0..num_carried {
            carried.push(call.x(i)?.clone());
        }
        // The scanned axis first, so that a step's part is one run of elements.
        let mut sequences = Vec::with_capacity(num_scanned);
        for (k, &axis) in in_axes.iter().enumerate() {
            let x = call.x(num_carried + k)?;
            let axis = call.axis_of(axis, x.rank())?;
            let mut perm: Vec<usize> = (0..x.rank()).filter(|&i| i != axis).collect();
            perm.insert(0, axis);
            sequences.push(crate::tensor::transpose(x, &perm));
        }
        let num_steps = sequences.first().map_or(0, |x| x.dims()[0]);
        if let Some(other) = sequences.iter().find(|x| x.dims()[0] != num_steps) {
            return Err(call.bad("scanned inputs", format!("{num_steps} steps"), other));
        }
        let mut scanned = vec![Vec::new(); num_out];
        let mut kept = 0;
        for step in 0..num_steps {
            let mut inputs = std::mem::take(&mut carried);
            for (x, &back) in sequences.iter().zip(&in_back) {
                let at = if back != 0 {
                    num_steps - 1 - step
                } else {
                    step
                };
                let size = x.len() / num_steps;
                let from: Vec<usize> = (at * size..(at + 1) * size).collect();
                inputs.push(Array::new(x.dims()[1..].to_vec(), x.data().take(&from)));
            }
            let mut outputs = self.step(call, graph, inputs, scope, run)?.into_iter();
            carried.extend(outputs.by_ref().take(num_carried));
            for (list, value) in scanned.iter_mut().zip(outputs) {
                kept += value.len();
                call.num(&[kept])?;
                list.push(value);
            }
        }
        for ((mut parts, axis), back) in scanned.into_iter().zip(out_axes).zip(out_back) {
            if back != 0 {
                parts.reverse();
            }
            carried.push(stack(call, &parts, axis)?);
        }
        Ok(carried)
    }
}
