//! Makes a graph flat: constants evaluated, branches of `If` in place where the condition does not
//! depend on what a request brings, passes of `Loop` one after another where their number does not.

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_graph::onnx::{Array, Attr, Data, Error, Graph, Limits, Node};

use crate::onnx::evaluate;
use crate::tensor::Call;

/// Evaluates what it can on the way through a graph.
pub(super) struct Flattener<'a> {
    opset: i64,
    limits: &'a Limits,
    /// Values known by number: constants, and all of them where inputs are given.
    known: BTreeMap<String, Array>,
    /// Values that depend on what a request brings.
    data: BTreeSet<String>,
    nodes: Vec<Node>,
    /// Results of those nodes.
    computed: BTreeSet<String>,
    inlined: usize,
}

/// Most passes of a loop that are put one after another.
const MAX_PASSES: i128 = 64;

/// Other names of values; the other name may have another name again.
type Names = BTreeMap<String, String>;

fn resolve<'a>(names: &'a Names, mut name: &'a str) -> &'a str {
    while let Some(other) = names.get(name) {
        name = other;
    }
    name
}

/// `graph` without constants computed by nodes and without the branches that are not taken.
/// `probe` are values of inputs for which conditions that depend on sizes are evaluated.
///
/// # Errors
/// What the evaluation of a constant refuses.
pub(super) fn flatten(
    graph: &Graph,
    opset: i64,
    limits: &Limits,
    probe: BTreeMap<String, Array>,
) -> Result<Graph, Error> {
    let mut known = probe;
    for (name, array) in &graph.initializers {
        known.entry(name.clone()).or_insert_with(|| array.clone());
    }
    let data = graph
        .inputs
        .iter()
        .filter(|i| !graph.initializers.contains_key(&i.name))
        .map(|i| i.name.clone())
        .collect();
    let mut flat = Flattener {
        opset,
        limits,
        known,
        data,
        nodes: Vec::new(),
        computed: BTreeSet::new(),
        inlined: 0,
    };
    let mut names = Names::new();
    flat.walk(&graph.nodes, &mut names)?;
    for output in &graph.outputs {
        let inner = resolve(&names, &output.name);
        if inner != output.name {
            flat.nodes.push(identity(inner, &output.name));
        }
    }
    // Values that a node computes, or that a probe brought, are no constants of the model.
    let reads = flat.nodes.iter().flat_map(reads);
    let outputs = graph.outputs.iter().map(|o| &o.name);
    let mut initializers = graph.initializers.clone();
    for name in reads.chain(outputs) {
        if flat.is_constant(name)
            && let Some(array) = flat.known.get(name)
        {
            initializers
                .entry(name.clone())
                .or_insert_with(|| array.clone());
        }
    }
    Ok(Graph {
        name: graph.name.clone(),
        inputs: graph
            .inputs
            .iter()
            .filter(|i| !graph.initializers.contains_key(&i.name))
            .cloned()
            .collect(),
        outputs: graph.outputs.clone(),
        initializers,
        nodes: flat.nodes,
    })
}

/// A node that gives a value another name.
pub(super) fn identity(from: &str, to: &str) -> Node {
    Node {
        name: format!("{to}.name"),
        domain: String::new(),
        op: "Identity".into(),
        inputs: vec![from.to_owned()],
        outputs: vec![to.to_owned()],
        attrs: BTreeMap::new(),
    }
}

impl Flattener<'_> {
    fn walk(&mut self, nodes: &[Node], names: &mut Names) -> Result<(), Error> {
        for node in nodes {
            let mut node = node.clone();
            for name in node.inputs.iter_mut().chain(&mut node.outputs) {
                *name = resolve(names, name).to_owned();
            }
            for attr in node.attrs.values_mut() {
                if let Attr::Graph(body) = attr {
                    rename(body, names);
                }
            }
            let inlined = match node.op.as_str() {
                "If" => self.branch(&node, names)?,
                "Loop" => self.unroll(&node, names)?,
                _ => false,
            };
            if inlined {
                continue;
            }
            self.plain(node)?;
        }
        Ok(())
    }

    /// Puts the branch of an `If` in its place; false if the condition is not known.
    fn branch(&mut self, node: &Node, outer: &mut Names) -> Result<bool, Error> {
        let Some(condition) = node.inputs.first() else {
            return Ok(false);
        };
        let taken = match self.known.get(condition) {
            Some(c) if c.len() == 1 && !self.data.contains(condition) => c.data().to_i128()[0] != 0,
            _ => return Ok(false),
        };
        let attr = if taken { "then_branch" } else { "else_branch" };
        let Some(Attr::Graph(body)) = node.attrs.get(attr) else {
            return Ok(false);
        };
        let names = self.inline(node, body, outer.clone())?;
        for (output, info) in node.outputs.iter().zip(&body.outputs) {
            // Whatever read the result of the `If` now reads that of the branch.
            outer.insert(output.clone(), resolve(&names, &info.name).to_owned());
        }
        Ok(true)
    }

    /// Walks through a subgraph of `node` under names of its own; `names` has those of its inputs.
    fn inline(&mut self, node: &Node, body: &Graph, mut names: Names) -> Result<Names, Error> {
        self.inlined += 1;
        let prefix = format!("{}.{}", node.name, self.inlined);
        for (name, array) in &body.initializers {
            let full = format!("{prefix}/{name}");
            self.known.insert(full.clone(), array.clone());
            names.insert(name.clone(), full);
        }
        for inner in body.nodes.iter().flat_map(|n| &n.outputs) {
            if !inner.is_empty() {
                names.insert(inner.clone(), format!("{prefix}/{inner}"));
            }
        }
        let renamed: Vec<Node> = body
            .nodes
            .iter()
            .map(|n| Node {
                name: format!("{prefix}/{}", n.name),
                ..n.clone()
            })
            .collect();
        self.walk(&renamed, &mut names)?;
        Ok(names)
    }

    /// A value that is known and no request's.
    fn decided(&self, name: &str) -> Option<i128> {
        let value = self.known.get(name).filter(|_| !self.data.contains(name))?;
        (value.len() == 1).then(|| value.data().to_i128()[0])
    }

    /// Puts the passes of a `Loop` one after another; false if their number is not known.
    fn unroll(&mut self, node: &Node, outer: &mut Names) -> Result<bool, Error> {
        let Some(Attr::Graph(body)) = node.attrs.get("body") else {
            return Ok(false);
        };
        let operand = |i: usize| node.inputs.get(i).filter(|n| !n.is_empty());
        let most = operand(0).and_then(|n| self.decided(n));
        let starts = operand(1).is_none_or(|n| self.decided(n).is_some_and(|go| go != 0));
        let Some(most) = most.filter(|n| (0..=MAX_PASSES).contains(n) && starts) else {
            return Ok(false);
        };
        let mut carried: Vec<String> = node.inputs.iter().skip(2).cloned().collect();
        let num = carried.len();
        if body.inputs.len() != num + 2 || body.outputs.len() < num + 1 || most == 0 {
            return Ok(false);
        }
        let mut scanned = vec![Vec::new(); body.outputs.len() - num - 1];
        for pass in 0..most as i64 {
            let at = format!("{}.{}.pass", node.name, self.inlined);
            let go = format!("{at}.go");
            self.known
                .insert(at.clone(), Array::scalar(Data::I64(vec![pass])));
            self.known
                .insert(go.clone(), Array::scalar(Data::Bool(vec![true])));
            let mut names = outer.clone();
            let given = [at, go].into_iter().chain(carried);
            for (input, value) in body.inputs.iter().zip(given) {
                names.insert(input.name.clone(), value);
            }
            let names = self.inline(node, body, names)?;
            let mut results = body.outputs.iter().map(|o| resolve(&names, &o.name));
            match results.next().and_then(|go| self.decided(go)) {
                Some(go) if go != 0 || pass + 1 == most as i64 => {}
                _ => {
                    let place = format!("node {} (Loop)", node.name);
                    let expected = "one that is true and does not depend on the request";
                    return Err(Error::invalid(place, "condition", expected, "another"));
                }
            }
            carried = results.by_ref().take(num).map(str::to_owned).collect();
            for (list, value) in scanned.iter_mut().zip(results) {
                list.push(value.to_owned());
            }
        }
        for (output, value) in node.outputs.iter().zip(&carried) {
            outer.insert(output.clone(), value.clone());
        }
        for (output, parts) in node.outputs.iter().skip(num).zip(scanned) {
            self.stack(output, &parts)?;
        }
        Ok(true)
    }

    /// `output` as `parts` along a new first axis.
    fn stack(&mut self, output: &str, parts: &[String]) -> Result<(), Error> {
        let make = |op: &str, inputs: Vec<String>, to: String| Node {
            name: format!("{to}.{op}"),
            op: op.into(),
            inputs,
            ..identity("", &to)
        };
        let zero = format!("{output}.axis");
        self.known.insert(zero.clone(), Array::vector(vec![0]));
        let mut rows = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let to = format!("{output}.{i}");
            let mut row = make("Unsqueeze", vec![part.clone()], to.clone());
            if self.opset < 13 {
                row.attrs.insert("axes".into(), Attr::Ints(vec![0]));
            } else {
                row.inputs.push(zero.clone());
            }
            self.plain(row)?;
            rows.push(to);
        }
        let mut all = make("Concat", rows, output.to_owned());
        all.attrs.insert("axis".into(), Attr::Int(0));
        self.plain(all)
    }

    fn plain(&mut self, node: Node) -> Result<(), Error> {
        let reads = || node.inputs.iter().filter(|n| !n.is_empty());
        let sized = matches!(node.op.as_str(), "Shape" | "Size");
        let depends = !sized && reads().any(|n| self.data.contains(n));
        let plain = crate::tensor::find(&node.op).is_some() && node.domain.is_empty();
        let ready = plain && reads().all(|n| self.known.contains_key(n));
        if depends || !plain {
            self.data.extend(node.outputs.iter().cloned());
        }
        if !ready {
            self.stays(node);
            return Ok(());
        }
        let inputs = node
            .inputs
            .iter()
            .map(|n| self.known.get(n).filter(|_| !n.is_empty()));
        let call = Call {
            node: &node,
            opset: self.opset,
            inputs: inputs.collect(),
            limits: self.limits,
        };
        let results = evaluate(&call)?;
        for (name, array) in node.outputs.iter().zip(results) {
            self.known.insert(name.clone(), array);
        }
        let constant = |n: &String| n.is_empty() || self.is_constant(n);
        if !node.inputs.iter().all(constant) {
            self.stays(node);
        }
        Ok(())
    }

    fn stays(&mut self, node: Node) {
        self.computed.extend(node.outputs.iter().cloned());
        self.nodes.push(node);
    }

    /// Whether a value is the same whatever a request brings and however large it is: no node that
    /// stays computes it, and no request brings it.
    fn is_constant(&self, name: &str) -> bool {
        !self.data.contains(name) && !self.computed.contains(name)
    }
}

/// Gives values of the graphs around `body` the names that they have in the flat graph.
fn rename(body: &mut Graph, names: &Names) {
    for output in &mut body.outputs {
        output.name = resolve(names, &output.name).to_owned();
    }
    for node in &mut body.nodes {
        for input in &mut node.inputs {
            *input = resolve(names, input).to_owned();
        }
        for attr in node.attrs.values_mut() {
            if let Attr::Graph(inner) = attr {
                rename(inner, names);
            }
        }
    }
}

/// Names that a node reads, its subgraphs included.
fn reads(node: &Node) -> Vec<&String> {
    let mut names: Vec<&String> = node.inputs.iter().collect();
    for attr in node.attrs.values() {
        if let Attr::Graph(body) = attr {
            names.extend(body.outputs.iter().map(|o| &o.name));
            names.extend(body.nodes.iter().flat_map(reads));
        }
    }
    names
}

/// Drops nodes whose results nobody reads.
pub(super) fn prune(graph: &mut Graph) {
    let mut wanted: BTreeSet<String> = graph.outputs.iter().map(|o| o.name.clone()).collect();
    let mut kept = Vec::new();
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.outputs.iter().any(|o| wanted.contains(o)) {
            wanted.extend(reads(&node).into_iter().cloned());
            kept.push(node);
        }
    }
    kept.reverse();
    graph.nodes = kept;
    graph.initializers.retain(|name, _| wanted.contains(name));
}
