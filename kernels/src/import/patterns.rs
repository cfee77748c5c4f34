//! Finds ops that exporters write out as several nodes: layer normalisation and Gelu.
//!
//! The last node of a pattern becomes the op; the others go when nobody else reads them.

use std::collections::BTreeMap;

use lazybatch_graph::onnx::{Array, Attr, Graph, Node};

/// Nodes by the values that they compute.
struct Makers<'a> {
    graph: &'a Graph,
    by_output: BTreeMap<&'a str, &'a Node>,
}

/// Operand `i`, where the node has that many.
fn operand(node: &Node, i: usize) -> Option<&str> {
    node.inputs.get(i).map(String::as_str)
}

impl<'a> Makers<'a> {
    fn of(graph: &'a Graph) -> Self {
        let outputs = graph
            .nodes
            .iter()
            .flat_map(|n| n.outputs.iter().map(move |o| (o.as_str(), n)));
        Self {
            graph,
            by_output: outputs.collect(),
        }
    }

    /// The node of op `op` that computes `name`.
    fn node(&self, name: &str, op: &str) -> Option<&'a Node> {
        self.by_output
            .get(name)
            .copied()
            .filter(|n| n.op == op && n.domain.is_empty())
    }

    fn constant(&self, name: &str) -> Option<&'a Array> {
        self.graph.initializers.get(name)
    }

    fn number(&self, name: &str) -> Option<f64> {
        let array = self.constant(name)?;
        (array.len() == 1).then(|| array.data().to_f64()[0])
    }

    /// The other operand of a node one of whose two operands is a number.
    fn beside_number(&self, node: &'a Node) -> Option<(&'a str, f64)> {
        let [a, b] = &node.inputs[..] else {
            return None;
        };
        match (self.number(a), self.number(b)) {
            (None, Some(v)) => Some((a, v)),
            (Some(v), None) => Some((b, v)),
            _ => None,
        }
    }

    /// What the mean over the last axis that `name` is is taken of.
    fn row_mean(&self, name: &str) -> Option<&'a str> {
        let node = self.node(name, "ReduceMean")?;
        let axes: Vec<i64> = match (node.attrs.get("axes"), node.inputs.get(1)) {
            (Some(Attr::Ints(axes)), _) => axes.clone(),
            (None, Some(axes)) => {
                let axes = self.constant(axes)?.data().to_i128();
                axes.into_iter().map(|a| a as i64).collect()
            }
            _ => return None,
        };
        let keeps = !matches!(node.attrs.get("keepdims"), Some(Attr::Int(0)));
        (axes == [-1] && keeps).then(|| operand(node, 0)).flatten()
    }

    /// `x` and eps where `name` is `(x - mean) / sqrt(var + eps)`.
    fn normed(&self, name: &str) -> Option<(&'a str, f64)> {
        let quotient = self.node(name, "Div")?;
        let centred = self.node(operand(quotient, 0)?, "Sub")?;
        let x = operand(centred, 0)?;
        let root = self.node(operand(quotient, 1)?, "Sqrt")?;
        let (variance, eps) = self.beside_number(self.node(operand(root, 0)?, "Add")?)?;
        let square = self.row_mean(variance)?;
        let same = |name: &str| {
            // Some exporters subtract the mean twice.
            let other = self.node(name, "Sub");
            other.is_some_and(|o| o.inputs == centred.inputs)
        };
        let is_square = match (self.node(square, "Pow"), self.node(square, "Mul")) {
            (Some(pow), _) => same(operand(pow, 0)?) && self.number(operand(pow, 1)?) == Some(2.0),
            (_, Some(mul)) => same(operand(mul, 0)?) && same(operand(mul, 1)?),
            _ => false,
        };
        let centred_at_mean = self.row_mean(operand(centred, 1)?) == Some(x);
        (is_square && centred_at_mean).then_some((x, eps))
    }

    /// Whether `name` is a constant of one element, or of the last axis alone.
    fn on_last_axis(&self, name: &str) -> bool {
        let constant = self.constant(name);
        constant.is_some_and(|c| c.len() == 1 || c.dims().last() == Some(&c.len()))
    }

    /// Whether a value has the name.
    fn is_taken(&self, name: &str) -> bool {
        let mut inputs = self.graph.inputs.iter();
        self.by_output.contains_key(name)
            || self.constant(name).is_some()
            || inputs.any(|i| i.name == name)
    }

    /// A layer normalisation whose last node is `node`.
    fn layer_norm(&self, node: &'a Node) -> Option<Node> {
        let times = |node: &'a Node| {
            let [a, b] = &node.inputs[..] else {
                return None;
            };
            [(a, b), (b, a)].into_iter().find_map(|(x, gamma)| {
                let (x, eps) = self.normed(x)?;
                self.on_last_axis(gamma).then_some((x, eps, gamma.as_str()))
            })
        };
        let (x, eps, gamma, beta) = match node.op.as_str() {
            "Mul" => {
                let (x, eps, gamma) = times(node)?;
                (x, eps, gamma, None)
            }
            "Add" => {
                let [a, b] = &node.inputs[..] else {
                    return None;
                };
                [(a, b), (b, a)].into_iter().find_map(|(scaled, beta)| {
                    let (x, eps, gamma) = times(self.node(scaled, "Mul")?)?;
                    self.on_last_axis(beta)
                        .then_some((x, eps, gamma, Some(beta)))
                })?
            }
            _ => return None,
        };
        let mut inputs = vec![x.to_owned(), gamma.to_owned()];
        inputs.extend(beta.cloned());
        let attrs = [
            ("axis".to_owned(), Attr::Int(-1)),
            ("epsilon".to_owned(), Attr::Float(eps as f32)),
        ];
        Some(Node {
            name: node.name.clone(),
            domain: String::new(),
            op: "LayerNormalization".into(),
            inputs,
            outputs: node.outputs.clone(),
            attrs: attrs.into(),
        })
    }

    /// Factors of a product, two levels deep.
    fn factors(&self, node: &'a Node) -> Vec<&'a str> {
        let inner = |name: &'a String| match self.node(name, "Mul") {
            Some(mul) => mul.inputs.iter().map(String::as_str).collect(),
            None => vec![name.as_str()],
        };
        node.inputs.iter().flat_map(inner).collect()
    }

    /// A Gelu by the error function whose last node is `node`: `x * 0.5 * (1 + erf(x / sqrt 2))`.
    fn gelu(&self, node: &'a Node) -> Option<Node> {
        let factors = self.factors(node);
        if node.op != "Mul" || factors.len() != 3 {
            return None;
        }
        let half = factors.iter().position(|f| self.number(f) == Some(0.5))?;
        let rest: Vec<&str> = (0..3).filter(|i| *i != half).map(|i| factors[i]).collect();
        let x = [(rest[0], rest[1]), (rest[1], rest[0])]
            .into_iter()
            .find_map(|(x, gate)| {
                let (erf, one) = self.beside_number(self.node(gate, "Add")?)?;
                let scaled = operand(self.node(erf, "Erf")?, 0)?;
                let root = std::f64::consts::SQRT_2;
                let (from, factor) = match self.node(scaled, "Div") {
                    Some(div) => (operand(div, 0)?, self.number(operand(div, 1)?)? / root),
                    None => {
                        let mul = self.node(scaled, "Mul")?;
                        let (from, v) = self.beside_number(mul)?;
                        return (from == x && one == 1.0 && (v * root - 1.0).abs() < 1e-4)
                            .then_some(x);
                    }
                };
                (from == x && one == 1.0 && (factor - 1.0).abs() < 1e-4).then_some(x)
            })?;
        Some(Node {
            name: node.name.clone(),
            domain: String::new(),
            op: "Gelu".into(),
            inputs: vec![x.to_owned()],
            outputs: node.outputs.clone(),
            attrs: BTreeMap::new(),
        })
    }
}

/// Replaces the patterns in `graph`.
pub(super) fn replace(graph: &mut Graph) {
    let makers = Makers::of(graph);
    let found: Vec<(usize, Node)> = graph
        .nodes
        .iter()
        .enumerate()
        .filter_map(|(i, node)| {
            let op = makers.layer_norm(node).or_else(|| makers.gelu(node))?;
            Some((i, op))
        })
        .collect();
    // The op takes a scale and a shift of one axis.
    let mut flat = BTreeMap::new();
    for name in found.iter().flat_map(|(_, node)| &node.inputs[1..]) {
        let Some(constant) = makers.constant(name).filter(|c| c.rank() > 1) else {
            continue;
        };
        let mut flat_name = format!("{name}.last");
        while makers.is_taken(&flat_name) {
            flat_name.push('~');
        }
        let array = Array::new(vec![constant.len()], constant.data().clone());
        flat.insert(name.clone(), (flat_name, array));
    }
    for (i, mut node) in found {
        for name in node.inputs.iter_mut().skip(1) {
            if let Some((flat_name, _)) = flat.get(name) {
                name.clone_from(flat_name);
            }
        }
        graph.nodes[i] = node;
    }
    graph.initializers.extend(flat.into_values());
}
