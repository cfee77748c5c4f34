//! Evaluates ONNX models node by node with the general kernels of [`tensor`].
//!
//! The oracle for imported programs, and what folds their constants: right, not fast.
//!
//! Invariants:
//! 1. [`Interpreter::new`] refuses a model with all the nodes that it cannot run; what then fails
//!    in a run does so because of its values.
//! 2. A run ends: no more than [`Limits::node_runs`] nodes are evaluated, all together within
//!    [`Limits::work`], and it holds no more than [`Limits::held`] elements.

mod control;
mod scope;

use lazybatch_graph::onnx::{Array, Attr, Error, Graph, Limits, Model, Node, Refused, ValueType};

use crate::tensor::{self, Call, Meter};
use scope::Scope;

/// Evaluates one model.
pub struct Interpreter<'m> {
    model: &'m Model,
    limits: Limits,
}

/// What is left of a run's limits.
struct Run<'l> {
    meter: &'l Meter,
    node_runs: usize,
    /// Elements of the values in all scopes.
    held: usize,
}

impl<'m> Interpreter<'m> {
    /// An interpreter of `model`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with all nodes, inputs and outputs that it cannot handle.
    pub fn new(model: &'m Model, limits: Limits) -> Result<Self, Error> {
        let mut nodes = Vec::new();
        collect(model, &model.graph, &mut nodes);
        if !nodes.is_empty() {
            return Err(Error::Unsupported { nodes }.in_file(&model.file));
        }
        Ok(Self { model, limits })
    }

    /// Evaluates the model on `inputs`, one per graph input in order; `None` takes the default
    /// that the model has. Returns the graph's outputs in order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for inputs of other types or sizes than the model states, and whatever
    /// the values make impossible.
    pub fn run(&self, inputs: Vec<Option<Array>>) -> Result<Vec<Array>, Error> {
        self.run_metered(inputs, &Meter::new(self.limits))
    }

    /// As [`Interpreter::run`], within what `meter` has left.
    pub(crate) fn run_metered(
        &self,
        inputs: Vec<Option<Array>>,
        meter: &Meter,
    ) -> Result<Vec<Array>, Error> {
        self.try_run(inputs, meter)
            .map_err(|e| e.in_file(&self.model.file))
    }

    fn try_run(&self, inputs: Vec<Option<Array>>, meter: &Meter) -> Result<Vec<Array>, Error> {
        let graph = &self.model.graph;
        if inputs.len() > graph.inputs.len() {
            let expected = format!("at most {}", graph.inputs.len());
            return Err(Error::invalid("inputs", "number", expected, inputs.len()));
        }
        let mut scope = Scope::new(graph, None);
        for (info, value) in graph.inputs.iter().zip(inputs) {
            if let Some(value) = value {
                check_type(&info.name, &info.ty, &value)?;
                scope.set(&info.name, value);
            }
        }
        let mut run = Run {
            meter,
            node_runs: 0,
            held: 0,
        };
        self.graph(graph, scope, &mut run)
    }

    /// Evaluates `graph` in `scope`, which has its inputs.
    fn graph(&self, graph: &Graph, mut scope: Scope, run: &mut Run) -> Result<Vec<Array>, Error> {
        let before = run.held;
        for node in &graph.nodes {
            run.node_runs += 1;
            let meter = run.meter;
            let limits = &meter.limits;
            if run.node_runs > limits.node_runs {
                let expected = format!("at most {}", limits.node_runs);
                let place = format!("node {}", node.name);
                return Err(Error::invalid(place, "nodes evaluated", expected, "more"));
            }
            let outputs = self.node(node, &scope, run)?;
            if node.outputs.len() > outputs.len()
                && node.outputs[outputs.len()..]
                    .iter()
                    .any(|name| !name.is_empty())
            {
                let place = format!("node {} ({})", node.name, node.op);
                let expected = format!("at most {}", outputs.len());
                return Err(Error::invalid(
                    place,
                    "outputs",
                    expected,
                    node.outputs.len(),
                ));
            }
            for (name, value) in node.outputs.iter().zip(outputs) {
                if name.is_empty() {
                    continue;
                }
                run.held = run.held.saturating_add(value.len());
                if run.held > limits.held {
                    let place = format!("node {} ({})", node.name, node.op);
                    let expected = format!("at most {}", limits.held);
                    return Err(Error::invalid(
                        place,
                        "elements held by the run",
                        expected,
                        run.held,
                    ));
                }
                scope.set(name, value);
            }
        }
        run.held = before;
        let outputs = graph.outputs.iter();
        outputs.map(|info| scope.get(&info.name).cloned()).collect()
    }

    fn node(&self, node: &Node, scope: &Scope, run: &mut Run) -> Result<Vec<Array>, Error> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            inputs.push(if name.is_empty() {
                None
            } else {
                Some(scope.get(name)?)
            });
        }
        let call = Call {
            node,
            opset: self.model.opsets.get("").copied().unwrap_or(1),
            inputs,
            meter: run.meter,
        };
        if control::OPS.contains(&node.op.as_str()) {
            return self.control(&call, scope, run);
        }
        evaluate(&call)
    }
}

/// Evaluates a node that runs no subgraph.
///
/// # Errors
/// An op without a kernel, and what the kernel refuses.
pub(crate) fn evaluate(call: &Call<'_>) -> tensor::Outputs {
    let Some(entry) = tensor::find(&call.node.op) else {
        return Err(call.bad("op", "a known one", tensor::reason(&call.node.op)));
    };
    if let Some(x) = call.opt(0)
        && !entry.types.has(x.elem())
    {
        return Err(call.bad("input 0", format!("elements: {}", entry.types), x));
    }
    let results = (entry.eval)(call)?;
    let elems = results
        .iter()
        .map(Array::len)
        .fold(0, usize::saturating_add);
    call.meter.take_node(&call.place(), elems)?;
    Ok(results)
}

/// All nodes, inputs and outputs of `graph` that cannot be evaluated.
pub(crate) fn refused(model: &Model, graph: &Graph) -> Vec<Refused> {
    let mut nodes = Vec::new();
    collect(model, graph, &mut nodes);
    nodes
}

/// Adds what of `graph` cannot run.
fn collect(model: &Model, graph: &Graph, refused: &mut Vec<Refused>) {
    for (kind, infos) in [("input", &graph.inputs), ("output", &graph.outputs)] {
        for info in infos {
            if let ValueType::Other(what) = info.ty {
                refused.push(Refused {
                    node: format!("graph {}", graph.name),
                    op: format!("{kind} {}", info.name),
                    why: format!("it is {what}"),
                });
            }
        }
    }
    for node in &graph.nodes {
        if let Some(why) = why_not(model, node) {
            refused.push(Refused {
                node: node.name.clone(),
                op: node.op.clone(),
                why,
            });
        }
        for attr in node.attrs.values() {
            match attr {
                Attr::Graph(body) => collect(model, body, refused),
                Attr::Other(what) if node.op != "Optional" => refused.push(Refused {
                    node: node.name.clone(),
                    op: node.op.clone(),
                    why: format!("an attribute is {what}"),
                }),
                _ => {}
            }
        }
    }
}

/// Why `node` cannot run, whatever its values.
fn why_not(model: &Model, node: &Node) -> Option<String> {
    if !node.domain.is_empty() {
        return Some(format!("of the domain {}", node.domain));
    }
    let opset = model.opsets.get("").copied().unwrap_or(1);
    if control::OPS.contains(&node.op.as_str()) {
        let too_old = node.op == "Scan" && opset < 9;
        let why = too_old.then(|| "before opset 9".to_owned());
        return why.or_else(|| tensor::undefined(node, opset));
    }
    let Some(entry) = tensor::find(&node.op) else {
        return Some(tensor::reason(&node.op).to_owned());
    };
    let first = entry.versions.first().copied().unwrap_or(1);
    if opset < first {
        return Some(format!("from opset {first} on, the model has {opset}"));
    }
    let undefined = tensor::undefined(node, opset);
    if undefined.is_some() {
        return undefined;
    }
    NOT_FOLLOWED.iter().find_map(|(op, attr, default)| {
        let set = node.attrs.get(*attr).filter(|_| node.op == *op)?;
        match set {
            Attr::Int(v) if v == default => None,
            Attr::Int(v) => Some(format!("attribute {attr} is {v}, {default} alone is known")),
            _ => None,
        }
    })
}

/// Attributes that definitions from opset 22 on added, and the value with which these are the older
/// ones.
const NOT_FOLLOWED: [(&str, &str, i64); 2] = [
    ("QuantizeLinear", "precision", 0),
    ("DequantizeLinear", "output_dtype", 0),
];

/// Checks a graph input against what the model states.
fn check_type(name: &str, ty: &ValueType, value: &Array) -> Result<(), Error> {
    use lazybatch_graph::onnx::Dim;
    let ValueType::Tensor { elem, dims } = ty else {
        return Ok(());
    };
    let fits = dims.as_ref().is_none_or(|dims| {
        dims.len() == value.rank()
            && dims.iter().zip(value.dims()).all(|(d, n)| match d {
                Dim::Fixed(want) => want == n,
                Dim::Named(_) | Dim::Unknown => true,
            })
    });
    if *elem != value.elem() || !fits {
        let expected = format!("{elem} {dims:?}");
        return Err(Error::invalid(
            format!("input {name}"),
            "tensor",
            expected,
            value,
        ));
    }
    Ok(())
}
