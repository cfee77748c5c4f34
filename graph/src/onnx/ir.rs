//! A model as read and checked: what the interpreter runs and what programs are made of.

use std::collections::BTreeMap;

use super::{Array, Elem};

/// A model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Path or other name of the file, for messages.
    pub file: String,
    /// Version of the operator set per domain; the default domain is `""`.
    pub opsets: BTreeMap<String, i64>,
    /// The main graph.
    pub graph: Graph,
}

/// A graph: nodes in an order in which every value is defined before it is read.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// What is handed in. An input that is also an initializer has that as default.
    pub inputs: Vec<ValueInfo>,
    /// What is handed out.
    pub outputs: Vec<ValueInfo>,
    /// Constant values by name.
    pub initializers: BTreeMap<String, Array>,
    /// Nodes.
    pub nodes: Vec<Node>,
}

/// A named value and what the file says of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: ValueType,
}

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A tensor; no dimensions where the rank is not stated.
    Tensor {
        /// Element type.
        elem: Elem,
        /// Dimensions, outermost first.
        dims: Option<Vec<Dim>>,
    },
    /// Something that is no numeric tensor: a sequence, an optional, a map, a string tensor.
    Other(&'static str),
    /// Not stated.
    Unknown,
}

/// One dimension of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A number.
    Fixed(usize),
    /// A name; equal names within a model are equal sizes.
    Named(String),
    /// Not stated.
    Unknown,
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name, or `op#position` where the file gives none.
    pub name: String,
    /// Operator set that its op belongs to.
    pub domain: String,
    /// Its op.
    pub op: String,
    /// Values read; an empty name is an optional one left out.
    pub inputs: Vec<String>,
    /// Values defined; an empty name is an optional one not wanted.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attrs: BTreeMap<String, Attr>,
}

/// Value of an attribute.
#[derive(Clone, Debug)]
pub enum Attr {
    /// A number.
    Float(f32),
    /// A number.
    Int(i64),
    /// Text; bytes that are no UTF-8 are replaced.
    Str(String),
    /// A tensor.
    Tensor(Array),
    /// A subgraph.
    Graph(Box<Graph>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Numbers.
    Ints(Vec<i64>),
    /// Texts.
    Strs(Vec<String>),
    /// Something that is not read: what it is.
    Other(&'static str),
}

impl Attr {
    /// Its kind, as messages say it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Float(_) => "a float",
            Self::Int(_) => "an int",
            Self::Str(_) => "a string",
            Self::Tensor(_) => "a tensor",
            Self::Graph(_) => "a graph",
            Self::Floats(_) => "floats",
            Self::Ints(_) => "ints",
            Self::Strs(_) => "strings",
            Self::Other(what) => what,
        }
    }
}
