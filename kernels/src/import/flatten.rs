//! Makes a graph flat: constants evaluated, branches of `If` in place where the condition does not
//! depend on what a request brings, passes of `Loop` and `Scan` one after another (`unroll`) where
//! their number does not.
//!
//! What depends on sizes is decided where values of the inputs are given. [`Decisions`] tells what
//! was decided, so that what falls otherwise at other sizes can be left undecided; [`Asked`], what was
//! looked at, so that it can be looked at again at sizes beyond those of the given values.

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_graph::onnx::{Array, Attr, Error, Graph, Node};

use crate::onnx::evaluate;
use crate::tensor::{Call, Meter};

/// Evaluates what it can on the way through a graph.
pub(super) struct Flattener<'a> {
    pub(super) opset: i64,
    meter: &'a Meter,
    /// Values known by number: constants, and all of them where inputs are given.
    pub(super) known: BTreeMap<String, Array>,
    /// Elements of these.
    held: usize,
    /// Values that depend on what a request brings.
    pub(super) data: BTreeSet<String>,
    nodes: Vec<Node>,
    /// Results of those nodes.
    computed: BTreeSet<String>,
    pub(super) inlined: usize,
    /// Nodes walked over.
    walked: usize,
    decided: Decisions,
    pub(super) asked: Vec<Asked>,
    open: &'a BTreeSet<String>,
}

/// A value without data that a decision was made from.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The node that was decided, as messages name it.
    pub place: String,
    /// The value.
    pub value: String,
    /// What of it counts.
    pub what: Looked,
    /// What that was.
    pub was: i128,
}

/// What of a value a decision was made from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Looked {
    /// Whether its only number is another than 0.
    Truth,
    /// Its only number.
    Number,
    /// The size of an axis.
    Size(usize),
}

impl Looked {
    /// What it is of `array`; none if it has no such thing.
    pub fn of(self, array: &Array) -> Option<i128> {
        let number = || (array.len() == 1).then(|| array.data().to_i128()[0]);
        match self {
            Self::Truth => number().map(|n| i128::from(n != 0)),
            Self::Number => number(),
            Self::Size(axis) => array.dims().get(axis).map(|&n| n as i128),
        }
    }
}

/// Which branch was taken, and how many passes there are, by the first result of the node.
pub(super) type Decisions = BTreeMap<String, i128>;

/// Other names of values; the other name may have another name again.
pub(super) type Names = BTreeMap<String, String>;

/// Most names in a row that stand for one value. Sound graphs have a few.
const MOST_NAMES: usize = 32;

pub(super) fn resolve<'a>(names: &'a Names, mut name: &'a str) -> &'a str {
    for _ in 0..MOST_NAMES {
        match names.get(name).filter(|_| !name.is_empty()) {
            Some(other) => name = other,
            None => break,
        }
    }
    name
}

/// `graph` without constants computed by nodes and without the branches that are not taken, what was
/// decided on the way, and from what. `probe` are values of inputs for which conditions that depend on
/// sizes are evaluated; nodes whose first result is in `open` are left as they are.
///
/// # Errors
/// What the evaluation of a constant refuses; a graph that becomes too large.
pub(super) fn flatten(
    graph: &Graph,
    opset: i64,
    meter: &Meter,
    probe: BTreeMap<String, Array>,
    open: &BTreeSet<String>,
) -> Result<(Graph, Decisions, Vec<Asked>), Error> {
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
        meter,
        held: 0,
        known,
        data,
        nodes: Vec::new(),
        computed: BTreeSet::new(),
        inlined: 0,
        walked: 0,
        decided: Decisions::new(),
        asked: Vec::new(),
        open,
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
    let flat_graph = Graph {
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
    };
    Ok((flat_graph, flat.decided, flat.asked))
}

/// Bytes of names and elements that a node and its subgraphs hold: what a copy of it takes.
fn size(node: &Node) -> usize {
    let attrs = node.attrs.values().map(|attr| match attr {
        Attr::Tensor(t) => t.len(),
        Attr::Graph(g) => {
            let tensors = g.initializers.values().map(Array::len).sum::<usize>();
            tensors + g.nodes.iter().map(size).sum::<usize>()
        }
        Attr::Floats(v) => v.len(),
        Attr::Ints(v) => v.len(),
        _ => 1,
    });
    let names = node.inputs.iter().chain(&node.outputs).chain([&node.name]);
    names.map(|n| n.len() + 1).sum::<usize>() + attrs.sum::<usize>()
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
            self.walked += 1;
            let most = self.meter.limits.nodes;
            if self.walked > most {
                let place = format!("node {} ({})", node.name, node.op);
                let expected = format!("at most {most}");
                let what = "nodes with branches and loops in place";
                return Err(Error::invalid(place, what, expected, "more"));
            }
            let size = size(node);
            self.meter.take_node(&node.name, size.saturating_mul(16))?;
            self.hold(&node.name, size)?;
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
                "Loop" => self.unroll_loop(&node, names)?,
                "Scan" => self.unroll_scan(&node, names)?,
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
        let Some(taken) = self.number(condition).map(|c| i128::from(c != 0)) else {
            return Ok(false);
        };
        let attr = ["else_branch", "then_branch"][usize::from(taken != 0)];
        let Some(Attr::Graph(body)) = node.attrs.get(attr) else {
            return Ok(false);
        };
        if !self.decide(node, taken) {
            return Ok(false);
        }
        self.ask(node, condition, Looked::Truth);
        let names = self.inline(node, body, outer.clone())?;
        for (output, info) in node.outputs.iter().zip(&body.outputs) {
            // Whatever read the result of the `If` now reads that of the branch.
            outer.insert(output.clone(), resolve(&names, &info.name).to_owned());
        }
        Ok(true)
    }

    /// Notes what was decided of a node; false if it is to be left as it is.
    pub(super) fn decide(&mut self, node: &Node, how: i128) -> bool {
        let Some(key) = node.outputs.iter().find(|o| !o.is_empty()) else {
            return false;
        };
        self.decided.insert(key.clone(), how);
        !self.open.contains(key)
    }

    /// Notes that `node` was decided from `value`, if that is computed from sizes.
    pub(super) fn ask(&mut self, node: &Node, value: &str, what: Looked) {
        if self.data.contains(value) || self.is_constant(value) {
            return;
        }
        if let Some(was) = self.known.get(value).and_then(|array| what.of(array)) {
            self.asked.push(Asked {
                place: format!("node {} ({})", node.name, node.op),
                value: value.to_owned(),
                what,
                was,
            });
        }
    }

    /// How many nodes and questions there are, to go back to.
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.nodes.len(), self.asked.len())
    }

    /// Drops the nodes and questions since `mark`; values keep what they are, but nobody reads them.
    pub(super) fn back_to(&mut self, (nodes, asked): (usize, usize)) {
        self.nodes.truncate(nodes);
        self.asked.truncate(asked);
    }

    /// A value that is known and no request's.
    pub(super) fn number(&self, name: &str) -> Option<i128> {
        let value = self.known.get(name).filter(|_| !self.data.contains(name))?;
        (value.len() == 1).then(|| value.data().to_i128()[0])
    }

    /// Makes a value known.
    pub(super) fn know(&mut self, name: &str, array: Array) -> Result<(), Error> {
        self.hold(name, array.len())?;
        self.known.insert(name.to_owned(), array);
        Ok(())
    }

    /// Counts elements that are kept.
    fn hold(&mut self, name: &str, elems: usize) -> Result<(), Error> {
        self.held = self.held.saturating_add(elems);
        let most = self.meter.limits.held;
        if self.held > most {
            let expected = format!("at most {most}");
            return Err(Error::invalid(
                name,
                "elements of constants",
                expected,
                self.held,
            ));
        }
        Ok(())
    }

    /// Walks through a subgraph of `node` under names of its own; `names` has those of its inputs.
    pub(super) fn inline(
        &mut self,
        node: &Node,
        body: &Graph,
        mut names: Names,
    ) -> Result<Names, Error> {
        self.inlined += 1;
        self.meter.take(&node.name, &[names.len() + 1, 64])?;
        let prefix = format!("{}.{}", node.name, self.inlined);
        for (name, array) in &body.initializers {
            let full = format!("{prefix}/{name}");
            self.know(&full, array.clone())?;
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

    /// A node that stands for itself: evaluated if all that it reads is known.
    pub(super) fn plain(&mut self, node: Node) -> Result<(), Error> {
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
            meter: self.meter,
        };
        let results = evaluate(&call)?;
        for (name, array) in node.outputs.iter().zip(results) {
            self.know(name, array)?;
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
