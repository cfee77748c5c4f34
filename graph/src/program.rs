//! Programs: what a model is compiled to.
//!
//! A [`Program`] is a list of [`Block`]s, each a list of [`Node`]s in topological order with a
//! repeat rule. A request walks the blocks in order; its *cursor* is (block, step, node). Values
//! live within one block; what crosses a block or a pass goes through per-request [`StateDecl`]s.
//! It does not run anything: devices do.
//!
//! Invariants (checked by [`mod@crate::verify`]):
//! 1. An operand is a weight, or the output of an earlier node of the same block.
//! 2. Types are those that the op's rule derives from its operands.
//! 3. `Stop` stands in `UntilStop` blocks only; each such block has at least one.
//! 4. Names of nodes are unique within a program.
//! 5. Behind a `Stop` nothing in its block emits or writes a state that a later block reads.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ids::{BlockId, InputId, NodeId, OutputId, StateId, ValueId, WeightId};
use crate::onnx::Elem;
use crate::op::Op;
use crate::shape::TensorType;
use crate::tensor::WeightSource;

/// How often a request passes through a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeat {
    /// Once; rows of all members' sequences are packed.
    Once,
    /// Once per `stride` positions of the request's input, `ceil(length / stride)` passes: an
    /// encoder over steps. `stride` is 1 but for time-pooling encoders.
    PerInputStep {
        /// Input positions per pass.
        stride: u32,
    },
    /// Until a `Stop` node says so, at most `max` passes: a decoder.
    UntilStop {
        /// Most passes.
        max: u32,
    },
}

impl Repeat {
    /// Whether the block is a loop.
    pub const fn is_loop(self) -> bool {
        !matches!(self, Self::Once)
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Def {
    /// A weight of the program.
    Weight(WeightId),
    /// The `output`-th result of a node.
    Node {
        /// Producer.
        node: NodeId,
        /// Which of its outputs.
        output: usize,
    },
}

/// An operand or result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    /// Dtype and dimensions.
    pub ty: TensorType,
    /// Producer.
    pub def: Def,
}

/// A schedulable step: one op with its operands and results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Unique name, path-like (`decoder.2.ffn.up`).
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Operands in the op's order.
    pub inputs: SmallVec<[ValueId; 4]>,
    /// Results in the op's order.
    pub outputs: SmallVec<[ValueId; 2]>,
}

/// A run of nodes under one repeat rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Name (`encoder`).
    pub name: String,
    /// Repeat rule.
    pub repeat: Repeat,
    /// Nodes in topological order.
    pub nodes: Vec<NodeId>,
}

/// What a per-request state holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateKind {
    /// A tensor `[dims...]`, set to `init` in every element when a request starts.
    Vector {
        /// Dimensions.
        dims: Vec<usize>,
        /// Initial value of every element.
        #[serde(with = "crate::floats")]
        init: f32,
    },
    /// Up to `max_len` rows of `features`, empty when a request starts; stored in pages.
    Sequence {
        /// Features of a row.
        features: usize,
        /// Most rows.
        max_len: usize,
    },
}

/// State that outlives a node and belongs to one request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StateDecl {
    /// Name.
    pub name: String,
    /// Element type: f32, or i32 for token ids.
    pub dtype: crate::dtype::DType,
    /// Kind and size.
    pub kind: StateKind,
}

/// A weight.
#[derive(Clone, Debug)]
pub struct WeightDecl {
    /// Name (`decoder.2.ffn.up.weight`).
    pub name: String,
    /// Dtype as the program computes with it, and dimensions.
    pub ty: TensorType,
    /// Where its elements come from.
    pub source: WeightSource,
}

/// An input of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InputDecl {
    /// Name.
    pub name: String,
    /// `[len, ...]` for a sequence, else fixed dims of one sample.
    pub ty: TensorType,
    /// Most positions of a sequence; `None` for inputs without `len`.
    pub max_len: Option<usize>,
    /// Ids must lie in `0..bound`, for inputs that an embedding reads.
    pub id_bound: Option<usize>,
    /// It says how tokens are chosen, by the words of a [`Sampling`](crate::Sampling); a request that
    /// leaves it out gets the likeliest ones. Such an input is the last one, and `[4] i32`.
    #[serde(default)]
    pub is_sampling: bool,
}

/// An output of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutputDecl {
    /// Name.
    pub name: String,
    /// `[len, ...]` for what grows with steps or rows, else fixed dims of one sample.
    pub ty: TensorType,
}

/// What a request leaves to the next one of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carry {
    /// This output of one request,
    pub output: OutputId,
    /// is this input of the next; zero in the first one.
    pub input: InputId,
}

/// A compiled model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name of the model.
    pub name: String,
    /// Inputs by id.
    pub inputs: Vec<InputDecl>,
    /// Outputs by id.
    pub outputs: Vec<OutputDecl>,
    /// Weights by id. Their text is that of [`crate::folder`].
    #[serde(skip)]
    pub weights: Vec<WeightDecl>,
    /// States by id.
    pub states: Vec<StateDecl>,
    /// Values by id.
    pub values: Vec<Value>,
    /// Nodes by id; blocks order them.
    pub nodes: Vec<Node>,
    /// Blocks in the order in which a request passes them.
    pub blocks: Vec<Block>,
    /// The input whose length drives `PerInputStep` and `Rows`; `None` for static models.
    pub length_input: Option<InputId>,
    /// State that requests of one sequence hand on; empty for models without.
    #[serde(default)]
    pub carries: Vec<Carry>,
    /// Free facts about the model (token ids, vocabulary, card), by key.
    pub metadata: IndexMap<String, String>,
}

/// What keys of [`Program::metadata`] begin with that say the element type of an input or output.
const TYPE: &str = "type.";
/// What those begin with that say how an importer took the model.
const NOTE: &str = "note.";
/// The key of the least number of positions.
const LEAST_LEN: &str = "least_length";

/// A shared, immutable program.
pub type SharedProgram = Arc<Program>;

impl Program {
    /// Says that the model itself states `elem` for the input or output `name`, however the program
    /// holds it.
    pub fn state_type(&mut self, name: &str, elem: Elem) {
        let key = format!("{TYPE}{name}");
        self.metadata.insert(key, elem.name().to_owned());
    }

    /// The element type that the model states for the input or output `name`, if that was said.
    pub fn stated_type(&self, name: &str) -> Option<Elem> {
        let said = self.metadata.get(&format!("{TYPE}{name}"))?;
        Elem::ALL.iter().copied().find(|e| e.name() == said)
    }

    /// Adds what a user should know of how the model was taken.
    pub fn add_note(&mut self, note: String) {
        let key = format!("{NOTE}{}", self.notes().count());
        self.metadata.insert(key, note);
    }

    /// What a user should know of how the model was taken.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        let notes = self
            .metadata
            .iter()
            .filter(|(key, _)| key.starts_with(NOTE));
        notes.map(|(_, note)| note.as_str())
    }

    /// Says that sequences have at least so many positions.
    pub fn state_least_len(&mut self, len: usize) {
        self.metadata.insert(LEAST_LEN.to_owned(), len.to_string());
    }

    /// The least number of positions of a sequence, if it is more than 1.
    pub fn least_len(&self) -> Option<usize> {
        let least = self.metadata.get(LEAST_LEN)?.parse().ok();
        least.filter(|&len| len > 1)
    }

    /// The block at `id`.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// The node at `id`.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The value at `id`.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The weight at `id`.
    pub fn weight(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.index()]
    }

    /// The weight that `value` stands for, if it is one.
    pub fn as_weight(&self, value: ValueId) -> Option<WeightId> {
        match self.value(value).def {
            Def::Weight(w) => Some(w),
            Def::Node { .. } => None,
        }
    }

    /// The state at `id`.
    pub fn state(&self, id: StateId) -> &StateDecl {
        &self.states[id.index()]
    }

    /// The input at `id`.
    pub fn input(&self, id: InputId) -> &InputDecl {
        &self.inputs[id.index()]
    }

    /// The output at `id`.
    pub fn output(&self, id: OutputId) -> &OutputDecl {
        &self.outputs[id.index()]
    }

    /// The input that says how tokens are chosen, if the model samples.
    pub fn sampling(&self) -> Option<InputId> {
        let at = self.inputs.iter().position(|d| d.is_sampling);
        at.map(InputId::new)
    }

    /// Whether `input` is handed on from request to request of a sequence.
    pub fn is_carried(&self, input: InputId) -> bool {
        self.carries.iter().any(|c| c.input == input)
    }

    /// Number of elements of all weights.
    pub fn num_parameters(&self) -> usize {
        self.weights.iter().map(|w| w.ty.row_elems()).sum()
    }
}
