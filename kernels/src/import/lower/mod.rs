//! Lowers the nodes of a flat graph to items, one family of ops a file.
//!
//! Values are followed as what they are: known without data, an activation in packed rows under a
//! layout, or scores of an attention that is not complete yet. An op has a native form where its
//! operands allow; what has none runs as a general node, and what cannot be seen one sample at a
//! time is refused, all nodes of it at once.

mod attention;
mod distance;
mod elementwise;
mod general;
mod image;
mod linear;
mod recurrent;
mod rows;
mod sizes;
mod stepped;

use std::collections::{BTreeMap, BTreeSet};

use lazybatch_graph::onnx::{Array, Attr, Elem, Node, Refused};
use lazybatch_graph::{Layout, Op, Part, Tensor};

use super::items::{Act, Arg, Cache, Items, Kind, Out, Src};
use super::layout;
use super::trace::{Fact, Trace};
use attention::Scores;
use distance::ByDistance;

/// What a value of the graph is.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// An activation.
    Act(Act),
    /// Scores of an attention, or their softmax.
    Scores(Box<Scores>),
    /// Keys or values that a decoder keeps.
    Cache(Cache),
    /// Not there: its node was refused.
    Failed,
}

/// What a native form gives: the results, or nothing where there is none.
type Native = Result<Option<Vec<Value>>, String>;

/// Lowers one graph.
pub(super) struct Lower<'t> {
    /// What is known of its values.
    pub trace: &'t Trace<'t>,
    /// Where items go.
    pub items: Items,
    /// Values with data.
    pub values: BTreeMap<String, Value>,
    /// Nodes that cannot be lowered.
    pub refused: Vec<Refused>,
    /// What the user should know of how the graph was taken.
    pub notes: BTreeSet<String>,
    /// Values whose last bit decides something; found by [`Lower::run`].
    pub stepped: BTreeSet<&'t str>,
    /// What known operands add to scores, by operand and by the sizes of the scores' first axes.
    pub terms: BTreeMap<(String, Vec<usize>), Option<ByDistance>>,
    /// Biases by distance, each with its elements.
    pub biases: Vec<(Vec<f32>, Arg)>,
    /// Most positions of a sequence.
    pub max_len: usize,
    /// Most steps of a decoder whose length is that of its caches: the number of steps so far.
    pub max_steps: Option<usize>,
}

/// A single activation as the results of a node.
fn one(act: Act) -> Native {
    Ok(Some(vec![Value::Act(act)]))
}

/// Most nodes of a program: as many as a model folder may have. A recurrent layer over a fixed axis has
/// some for each step.
const MAX_NODES: usize = 1 << 16;

impl<'t> Lower<'t> {
    /// Lowers all nodes, up to the one with which there are too many.
    pub fn run(&mut self) {
        self.stepped = stepped::stepped(&self.trace.graph.nodes);
        for node in &self.trace.graph.nodes {
            if !node.outputs.iter().any(|o| self.trace.is_data(o)) {
                continue;
            }
            if self.items.num_nodes() > MAX_NODES {
                let named = node.outputs.iter().filter(|o| !o.is_empty());
                self.values
                    .extend(named.map(|o| (o.clone(), Value::Failed)));
                continue;
            }
            self.node(node);
            // Each node makes a bounded number of them, so few are beyond.
            if self.items.num_nodes() > MAX_NODES {
                self.refused.push(Refused {
                    node: node.name.clone(),
                    op: node.op.clone(),
                    why: format!("with it, the program has more than {MAX_NODES} nodes"),
                });
            }
        }
    }

    fn node(&mut self, node: &'t Node) {
        let failed = |v: Option<&Value>| matches!(v, Some(Value::Failed));
        let results = if node.inputs.iter().any(|n| failed(self.values.get(n))) {
            Ok(vec![Value::Failed; node.outputs.len()])
        } else if let Some(name) = self.sized_by_data(node) {
            Err(format!(
                "its result has as many elements as the values of {name} say, which a request brings"
            ))
        } else if let Some(name) = node.outputs.iter().find(|o| self.is_empty(o)) {
            Err(format!("result {name} has no elements"))
        } else if self.mixes_samples(node) {
            Err(
                "takes its scale from all samples of a batch, so that a sample's answer depends on its \
                 company: quantize by constant scales (QuantizeLinear)"
                    .into(),
            )
        } else if let Err(why) = self.check_sizes(node) {
            Err(why)
        } else {
            match self.native(node) {
                Ok(Some(results)) => self.checked(node, results),
                Ok(None) => self.general(node),
                Err(why) => Err(why),
            }
        };
        let results = results.unwrap_or_else(|why| {
            self.refused.push(Refused {
                node: node.name.clone(),
                op: node.op.clone(),
                why,
            });
            vec![Value::Failed; node.outputs.len()]
        });
        for (name, value) in node.outputs.iter().zip(results) {
            if !name.is_empty() {
                self.values.insert(name.clone(), value);
            }
        }
    }

    /// The operand with a request's data whose values decide how large the result is. Random data may
    /// show one size only.
    fn sized_by_data(&self, node: &'t Node) -> Option<&'t String> {
        let operands: &[usize] = match node.op.as_str() {
            "NonZero" | "Unique" | "ConstantOfShape" => &[0],
            "BlackmanWindow" | "HammingWindow" | "HannWindow" => &[0],
            "Compress" | "Expand" | "OneHot" | "Tile" | "TopK" => &[1],
            "NonMaxSuppression" => &[0, 1],
            "Range" => &[0, 1, 2],
            _ => &[],
        };
        let mut names = operands.iter().filter_map(|&i| node.inputs.get(i));
        names.find(|name| self.trace.is_data(name))
    }

    /// Whether a node computes one thing of all samples.
    fn mixes_samples(&self, node: &Node) -> bool {
        let x = self.act(node, 0);
        let has_batch = x.is_some_and(|x| x.layout.parts().any(|p| p == Part::Batch));
        node.op == "DynamicQuantizeLinear" && has_batch
    }

    /// Whether a value was seen without elements.
    fn is_empty(&self, name: &str) -> bool {
        let fact = self.trace.fact(name);
        fact.is_some_and(|f| f.sizes.iter().flatten().any(|s| s.k == 0))
    }

    /// Results of a native form, whose layouts must have the sizes that were observed.
    fn checked(&self, node: &Node, results: Vec<Value>) -> Result<Vec<Value>, String> {
        for (name, value) in node.outputs.iter().zip(&results) {
            if let (Value::Act(act), Some(fact)) = (value, self.trace.fact(name))
                && !layout::agrees(&act.layout, &fact.sizes)
            {
                return Err(format!(
                    "result {name}: expected the axes {:?}, got the sizes {:?}",
                    act.layout.0, fact.sizes
                ));
            }
        }
        Ok(results)
    }

    fn native(&mut self, node: &'t Node) -> Native {
        if let Some(cache) = self.cached(node)? {
            return Ok(Some(vec![Value::Cache(cache)]));
        }
        if let Some(done) = self.scores(node)? {
            return Ok(Some(done));
        }
        match node.op.as_str() {
            "Identity" | "Dropout" | "Cast" | "Relu" | "Tanh" | "Sigmoid" | "Gelu" | "Clip"
            | "Neg" | "Pow" | "Add" | "Sub" | "Mul" | "Div" | "Expand" => self.elementwise(node),
            "MatMul" | "Gemm" => self.linear(node),
            "Softmax" | "LayerNormalization" | "ArgMax" | "TopK" | "ReduceMean" => {
                self.reduction(node)
            }
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose" | "Gather" | "Slice"
            | "Split" | "Concat" => self.movement(node),
            "Conv" | "BatchNormalization" | "MaxPool" | "AveragePool" | "GlobalAveragePool"
            | "GlobalMaxPool" => self.image(node),
            "LSTM" | "GRU" | "RNN" => self.recurrent(node),
            _ => Ok(None),
        }
    }

    /// Operand `i` as an activation.
    fn act(&self, node: &Node, i: usize) -> Option<Act> {
        match self.values.get(node.inputs.get(i)?)? {
            Value::Act(act) => Some(act.clone()),
            _ => None,
        }
    }

    /// Operand `i` as a constant.
    fn constant(&self, node: &Node, i: usize) -> Option<Array> {
        let name = node.inputs.get(i).filter(|n| !n.is_empty())?;
        if self.trace.is_data(name) {
            return None;
        }
        self.trace.constant(name)
    }

    /// Operand `i` as a constant of one element.
    fn scalar(&self, node: &Node, i: usize) -> Option<f64> {
        let array = self.constant(node, i)?;
        (array.len() == 1).then(|| array.data().to_f64()[0])
    }

    /// What the operand `name`, which holds no data, is at one length.
    fn known_at(&self, name: &str, len: usize) -> Result<Array, String> {
        let value = self.trace.known(name, 1, len).map_err(|e| e.to_string())?;
        value.ok_or_else(|| format!("operand {name} is not known"))
    }

    /// The one number that all elements of a known operand are, at all sizes that are checked.
    fn uniform(&self, name: &str) -> Result<Option<f64>, String> {
        let mut all = None;
        for (batch, len) in self.trace.sizes() {
            let value = self.trace.known(name, batch, len);
            let Some(value) = value.map_err(|e| e.to_string())? else {
                return Ok(None);
            };
            for v in value.data().to_f64() {
                if all.get_or_insert(v).to_bits() != v.to_bits() {
                    return Ok(None);
                }
            }
        }
        Ok(all)
    }

    /// Whether operand `i` is left out.
    fn absent(&self, node: &Node, i: usize) -> bool {
        node.inputs.get(i).is_none_or(String::is_empty)
    }

    /// What was observed of result `i`.
    fn fact(&self, node: &Node, i: usize) -> Result<&'t Fact, String> {
        let name = node.outputs.get(i).ok_or("a result too few")?;
        let fact = self.trace.fact(name);
        fact.ok_or_else(|| format!("result {name} was never computed"))
    }

    /// A weight of `dims` from the elements of operand `i`; `form` tells apart several of them.
    fn weight(
        &mut self,
        node: &Node,
        i: usize,
        form: &str,
        dims: &[usize],
        make: impl FnOnce() -> Vec<f32>,
    ) -> Arg {
        let name = if form.is_empty() {
            node.inputs[i].clone()
        } else {
            format!("{}.{form}", node.inputs[i])
        };
        self.items.weight(&name, || Tensor::from_f32(dims, &make()))
    }

    /// A node whose result is `like` another activation.
    fn emit(&mut self, node: &Node, op: Op, args: Vec<Arg>, like: Act) -> Act {
        self.items.node(&node.name, op, args, like)
    }

    /// An input of a request.
    pub fn input(&mut self, name: &str, id: lazybatch_graph::InputId, layout: Layout, elem: Elem) {
        let out = Out {
            lead: layout.lead(),
            dims: layout.fixed(),
            elem,
        };
        let dims = out.dims.clone();
        let item = self
            .items
            .push(name, Kind::Input(id), Vec::new(), vec![out]);
        let act = Act {
            src: Src { item, out: 0 },
            dims,
            layout,
            elem,
        };
        self.values.insert(name.to_owned(), Value::Act(act));
    }
}

/// The integer attribute `name`.
fn int(node: &Node, name: &str, default: i64) -> i64 {
    match node.attrs.get(name) {
        Some(Attr::Int(v)) => *v,
        _ => default,
    }
}

/// The float attribute `name`.
fn float(node: &Node, name: &str, default: f32) -> f32 {
    match node.attrs.get(name) {
        Some(Attr::Float(v)) => *v,
        _ => default,
    }
}

/// The integers of attribute `name`.
fn ints<'n>(node: &'n Node, name: &str) -> Option<&'n [i64]> {
    match node.attrs.get(name) {
        Some(Attr::Ints(v)) => Some(v),
        _ => None,
    }
}

/// The text attribute `name`.
fn text<'n>(node: &'n Node, name: &str) -> &'n str {
    match node.attrs.get(name) {
        Some(Attr::Str(v)) => v,
        _ => "",
    }
}

/// `axis` counted from the front.
fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(at).ok().filter(|&a| a < rank)
}

/// Elements of a constant as the program computes with them.
fn floats(array: &Array) -> Vec<f32> {
    array
        .data()
        .to_f64()
        .into_iter()
        .map(|v| v as f32)
        .collect()
}
