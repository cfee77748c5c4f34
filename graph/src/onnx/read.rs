//! Messages of a file to the checked [`ir`](super::ir).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use prost::Message;

use super::external::Beside;
use super::ir::{Attr, Dim, Graph, Model, Node, ValueInfo, ValueType};
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
};
use super::{Array, Elem, Error, Limits, order, scan, tensor};

/// Opsets of the default domain that are read. Which of them an op is known from, its kernel says:
/// most from 7 on.
pub const OPSETS: std::ops::RangeInclusive<i64> = 1..=25;

impl Model {
    /// Reads the model file at `path`, and the data that it keeps in files beside it.
    ///
    /// # Errors
    /// Whatever is wrong with the file, named with its place.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, Error> {
        let file = path.display().to_string();
        let map = crate::mmap::map(path)
            .map_err(|e| Error::invalid("file", "content", "an ONNX file", e).in_file(&file))?;
        model(&file, &map, limits, &Beside::of(path)).map_err(|e| e.in_file(file))
    }

    /// Reads a model from the bytes of its file, named `file` in messages. There is nothing beside it.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn decode(file: &str, bytes: &[u8], limits: &Limits) -> Result<Self, Error> {
        model(file, bytes, limits, &Beside::default()).map_err(|e| e.in_file(file))
    }
}

/// Reads a tensor from the bytes of its file (`.pb`), named `file` in messages.
///
/// # Errors
/// As [`Model::decode`].
pub fn decode_tensor(file: &str, bytes: &[u8], limits: &Limits) -> Result<Array, Error> {
    let read = || {
        check_size(bytes, limits)?;
        let proto = TensorProto::decode(bytes).map_err(not_protobuf)?;
        tensor::read("file", &proto, limits, &Beside::default())
    };
    read().map_err(|e| e.in_file(file))
}

fn not_protobuf(e: prost::DecodeError) -> Error {
    Error::invalid("file", "content", "an ONNX protobuf", e)
}

fn check_size(bytes: &[u8], limits: &Limits) -> Result<(), Error> {
    if bytes.len() > limits.file_bytes {
        let expected = format!("at most {} bytes", limits.file_bytes);
        return Err(Error::invalid("file", "size", expected, bytes.len()));
    }
    Ok(())
}

fn model(file: &str, bytes: &[u8], limits: &Limits, beside: &Beside) -> Result<Model, Error> {
    check_size(bytes, limits)?;
    scan::check(bytes, limits)?;
    let proto = ModelProto::decode(bytes).map_err(not_protobuf)?;
    let opsets: BTreeMap<String, i64> = proto
        .opset_import
        .into_iter()
        .map(|set| (domain(set.domain), set.version))
        .collect();
    if let Some(version) = opsets.get("").filter(|v| !OPSETS.contains(v)) {
        let expected = format!("{} to {}", OPSETS.start(), OPSETS.end());
        return Err(Error::invalid("model", "opset version", expected, version));
    }
    let Some(graph) = proto.graph else {
        return Err(Error::invalid("model", "graph", "one", "none"));
    };
    let reader = Reader {
        limits,
        beside,
        has_default_opset: opsets.contains_key(""),
    };
    Ok(Model {
        file: file.to_owned(),
        graph: reader.graph(graph, &mut Vec::new())?,
        opsets,
    })
}

/// `ai.onnx` is another name of the default domain.
fn domain(name: String) -> String {
    if name == "ai.onnx" {
        String::new()
    } else {
        name
    }
}

struct Reader<'a> {
    limits: &'a Limits,
    beside: &'a Beside,
    has_default_opset: bool,
}

impl Reader<'_> {
    /// Reads a graph; `scopes` are the values that the graphs around it define.
    fn graph(&self, g: GraphProto, scopes: &mut Vec<BTreeSet<String>>) -> Result<Graph, Error> {
        let place = format!("graph {:?}", g.name);
        if scopes.len() >= self.limits.depth {
            let expected = format!("at most {}", self.limits.depth);
            return Err(Error::invalid(&place, "nested graphs", expected, "more"));
        }
        if !g.sparse_initializer.is_empty() {
            return Err(Error::invalid(
                &place,
                "initializers",
                "dense ones",
                "sparse ones",
            ));
        }
        let mut initializers = BTreeMap::new();
        for t in &g.initializer {
            let array = tensor::read(&place, t, self.limits, self.beside)?;
            if initializers.insert(t.name.clone(), array).is_some() {
                let what = format!("initializer {:?}", t.name);
                return Err(Error::invalid(&place, what, "one of this name", "two"));
            }
        }
        let inputs = g
            .input
            .iter()
            .map(|v| value_info(v, self.limits))
            .collect::<Result<Vec<_>, _>>()?;
        let mut defined: BTreeSet<String> = initializers.keys().cloned().collect();
        let mut names = BTreeSet::new();
        for input in &inputs {
            if !names.insert(&input.name) {
                let what = format!("input {:?}", input.name);
                return Err(Error::invalid(&place, what, "one of this name", "two"));
            }
            defined.insert(input.name.clone());
        }
        scopes.push(defined);
        let order = order::of(&place, &g.node, |name| is_defined(scopes, name))?;
        let mut nodes = Vec::with_capacity(g.node.len());
        let mut protos: Vec<Option<NodeProto>> = g.node.into_iter().map(Some).collect();
        for i in order {
            if let Some(node) = protos[i].take() {
                nodes.push(self.node(i, node, scopes)?);
            }
        }
        let outputs = g
            .output
            .iter()
            .map(|v| value_info(v, self.limits))
            .collect::<Result<Vec<_>, _>>()?;
        for output in &outputs {
            if !is_defined(scopes, &output.name) {
                let what = format!("output {:?}", output.name);
                return Err(Error::invalid(
                    &place,
                    what,
                    "a value defined in it",
                    "none",
                ));
            }
        }
        scopes.pop();
        Ok(Graph {
            name: g.name,
            inputs,
            outputs,
            initializers,
            nodes,
        })
    }

    fn node(
        &self,
        i: usize,
        n: NodeProto,
        scopes: &mut Vec<BTreeSet<String>>,
    ) -> Result<Node, Error> {
        let name = order::name_of(i, &n);
        let place = format!("node {name}");
        let domain = domain(n.domain);
        if domain.is_empty() && !self.has_default_opset {
            let expected = "one for the default domain";
            return Err(Error::invalid(&place, "opset import", expected, "none"));
        }
        for input in n.input.iter().filter(|name| !name.is_empty()) {
            if !is_defined(scopes, input) {
                let what = format!("input {input:?}");
                return Err(Error::invalid(
                    &place,
                    what,
                    "a value defined before",
                    "none",
                ));
            }
        }
        let mut attrs = BTreeMap::new();
        for a in n.attribute {
            let name = a.name.clone();
            let value = self.attr(&place, a, scopes)?;
            if attrs.insert(name.clone(), value).is_some() {
                let what = format!("attribute {name:?}");
                return Err(Error::invalid(&place, what, "one of this name", "two"));
            }
        }
        for output in n.output.iter().filter(|name| !name.is_empty()) {
            let fresh = scopes
                .last_mut()
                .is_some_and(|own| own.insert(output.clone()));
            if !fresh {
                let what = format!("output {output:?}");
                return Err(Error::invalid(
                    &place,
                    what,
                    "a new name",
                    "a value defined before",
                ));
            }
        }
        Ok(Node {
            name,
            domain,
            op: n.op_type,
            inputs: n.input,
            outputs: n.output,
            attrs,
        })
    }

    fn attr(
        &self,
        place: &str,
        a: AttributeProto,
        scopes: &mut Vec<BTreeSet<String>>,
    ) -> Result<Attr, Error> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let missing =
            |what: &str| Error::invalid(place, format!("attribute {:?}", a.name), what, "none");
        if !a.ref_attr_name.is_empty() {
            let what = format!("attribute {:?}", a.name);
            let got = "a reference to an attribute of a function";
            return Err(Error::invalid(place, what, "a value", got));
        }
        Ok(match a.kind {
            1 => Attr::Float(a.f),
            2 => Attr::Int(a.i),
            3 => Attr::Str(text(&a.s)),
            4 => match &a.t {
                Some(t) if Elem::from_code(t.data_type.into()).is_none() => {
                    Attr::Other("a tensor of strings or complex numbers")
                }
                Some(t) => Attr::Tensor(tensor::read(place, t, self.limits, self.beside)?),
                None => return Err(missing("a tensor")),
            },
            5 => match a.g {
                Some(g) => Attr::Graph(Box::new(self.graph(*g, scopes)?)),
                None => return Err(missing("a graph")),
            },
            6 => Attr::Floats(a.floats),
            7 => Attr::Ints(a.ints),
            8 => Attr::Strs(a.strings.iter().map(|s| text(s)).collect()),
            9 => Attr::Other("tensors"),
            10 => Attr::Other("graphs"),
            11 | 12 => Attr::Other("sparse tensors"),
            13 | 14 => Attr::Other("a type"),
            kind => {
                let what = format!("attribute {:?}", a.name);
                return Err(Error::invalid(place, what, "a type from 1 to 14", kind));
            }
        })
    }
}

fn is_defined(scopes: &[BTreeSet<String>], name: &str) -> bool {
    scopes.iter().any(|scope| scope.contains(name))
}

fn value_info(v: &ValueInfoProto, limits: &Limits) -> Result<ValueInfo, Error> {
    let ty = match &v.r#type {
        None => ValueType::Unknown,
        Some(t) => match &t.tensor_type {
            Some(t) if t.elem_type == 0 => ValueType::Unknown,
            Some(t) => match Elem::from_code(t.elem_type.into()) {
                None => ValueType::Other("a tensor of strings or complex numbers"),
                Some(elem) => {
                    let rank = t.shape.as_ref().map_or(0, |shape| shape.dim.len());
                    limits.check_rank(&format!("value {:?}", v.name), rank)?;
                    let dims = t.shape.as_ref().map(|shape| {
                        let dim = |value: Option<i64>, name: &String| match value {
                            Some(n) if n >= 0 => Ok(Dim::Fixed(n as usize)),
                            Some(n) => {
                                let place = format!("value {:?}", v.name);
                                Err(Error::invalid(place, "dimension", "none below zero", n))
                            }
                            None if name.is_empty() => Ok(Dim::Unknown),
                            None => Ok(Dim::Named(name.clone())),
                        };
                        shape
                            .dim
                            .iter()
                            .map(|d| dim(d.dim_value, &d.dim_param))
                            .collect()
                    });
                    ValueType::Tensor {
                        elem,
                        dims: dims.transpose()?,
                    }
                }
            },
            None if t.sequence_type.is_some() => ValueType::Other("a sequence"),
            None if t.optional_type.is_some() => ValueType::Other("an optional"),
            None if t.map_type.is_some() => ValueType::Other("a map"),
            None if t.sparse_tensor_type.is_some() => ValueType::Other("a sparse tensor"),
            None => ValueType::Unknown,
        },
    };
    Ok(ValueInfo {
        name: v.name.clone(),
        ty,
    })
}
