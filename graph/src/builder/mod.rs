//! Builds programs.
//!
//! Methods come in three groups: declarations (here), one method per op ([`ops`](self), named as
//! the op), and layers that declare their own weights and states (`dense`, `norm`, `conv`, `lstm`,
//! `self_attention`, ...). Every method derives its result's type by [`crate::infer`].
//!
//! Errors stick: the first one is kept, later calls do nothing, and [`ProgramBuilder::finish`]
//! returns it. Model code thus reads as a list of layers.
//!
//! Names are paths: inside [`ProgramBuilder::scope`] every node, weight and state is named
//! `scope.name`.

mod attention;
mod greedy;
mod layers;
mod ops;

use indexmap::IndexMap;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::Error;
use crate::ids::{BlockId, InputId, NodeId, OutputId, StateId, ValueId, WeightId};
use crate::infer::{Context, infer};
use crate::op::Op;
use crate::program::{
    Block, Carry, Def, InputDecl, Node, OutputDecl, Program, Repeat, StateDecl, StateKind, Value,
    WeightDecl,
};
use crate::sampling::{SAMPLING_INPUT, Sampling};
use crate::shape::{Dim, TensorType};
use crate::tensor::{Tensor, WeightSource};
use crate::verify::verify;

pub use attention::{Memory, MultiHead};
pub use greedy::Greedy;
pub use layers::LstmState;
pub use ops::Fused;

/// Stands for the result of a call after an error. No program has so many values.
const NOWHERE: usize = u32::MAX as usize;

/// Builds a [`Program`]. See the module.
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    program: Program,
    seed: u64,
    scope: Vec<String>,
    error: Option<Error>,
}

impl ProgramBuilder {
    /// An empty program; the seed of its synthetic weights is 0.
    pub fn new(name: impl Into<String>) -> Self {
        let program = Program {
            name: name.into(),
            ..Program::default()
        };
        Self {
            program,
            seed: 0,
            scope: Vec::new(),
            error: None,
        }
    }

    /// Sets the seed from which the seeds of synthetic weights derive (with their names).
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Prefixes the names of all that `body` declares with `name` and a dot.
    pub fn scope<R>(&mut self, name: &str, body: impl FnOnce(&mut Self) -> R) -> R {
        self.scope.push(name.to_owned());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// `name` as a path from the current scope.
    fn path(&self, name: &str) -> String {
        let mut path = String::new();
        for part in &self.scope {
            path.push_str(part);
            path.push('.');
        }
        path.push_str(name);
        path
    }

    /// Keeps the first error.
    pub(crate) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    fn broken(&mut self, what: String) {
        let program = self.program.name.clone();
        self.fail(Error::Structure { program, what });
    }

    // Inputs and outputs.

    /// Declares an input of fixed dims, one such tensor per sample.
    pub fn input(&mut self, name: &str, dtype: DType, dims: &[usize]) -> InputId {
        self.declare_input(name, TensorType::fixed(dtype, dims), None, None)
    }

    /// Declares an input of token ids `0..bound` per sample: a bag of `dims` ids.
    pub fn input_ids(&mut self, name: &str, dims: &[usize], bound: usize) -> InputId {
        self.declare_input(name, TensorType::fixed(DType::I32, dims), None, Some(bound))
    }

    /// Declares a sequence input `[len, dims...]` of at most `max_len` positions. The first one
    /// drives the lengths of the program.
    pub fn sequence(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        max_len: usize,
    ) -> InputId {
        self.declare_input(
            name,
            TensorType::activation(dtype, Dim::Len, dims),
            Some(max_len),
            None,
        )
    }

    /// Declares a sequence of token ids `[len]` in `0..bound`.
    pub fn sequence_ids(&mut self, name: &str, max_len: usize, bound: usize) -> InputId {
        let ty = TensorType::activation(DType::I32, Dim::Len, &[]);
        self.declare_input(name, ty, Some(max_len), Some(bound))
    }

    /// Declares how tokens are chosen: `sampling [4] i32`, which requests may leave out. It has to
    /// be the last input.
    pub fn sampling(&mut self) -> InputId {
        let ty = TensorType::fixed(DType::I32, &[Sampling::WORDS]);
        let id = self.declare_input(SAMPLING_INPUT, ty, None, None);
        self.program.inputs[id.index()].is_sampling = true;
        id
    }

    fn declare_input(
        &mut self,
        name: &str,
        ty: TensorType,
        max_len: Option<usize>,
        id_bound: Option<usize>,
    ) -> InputId {
        let id = InputId::new(self.program.inputs.len());
        self.program.inputs.push(InputDecl {
            name: name.to_owned(),
            ty,
            max_len,
            id_bound,
            is_sampling: false,
        });
        if max_len.is_some() {
            self.program.length_input.get_or_insert(id);
        }
        id
    }

    /// Declares an output of fixed dims, one per sample.
    pub fn output(&mut self, name: &str, dtype: DType, dims: &[usize]) -> OutputId {
        self.declare_output(name, TensorType::fixed(dtype, dims))
    }

    /// Declares an output `[len, dims...]` that grows with rows or passes.
    pub fn output_sequence(&mut self, name: &str, dtype: DType, dims: &[usize]) -> OutputId {
        self.declare_output(name, TensorType::activation(dtype, Dim::Len, dims))
    }

    fn declare_output(&mut self, name: &str, ty: TensorType) -> OutputId {
        let id = OutputId::new(self.program.outputs.len());
        self.program.outputs.push(OutputDecl {
            name: name.to_owned(),
            ty,
        });
        id
    }

    /// Hands `output` on to `input` of the next request of a sequence.
    pub fn carry(&mut self, output: OutputId, input: InputId) {
        self.program.carries.push(Carry { output, input });
    }

    // States.

    /// Declares a per-request tensor with every element `init` at the start.
    pub fn vector_state(&mut self, name: &str, dtype: DType, dims: &[usize], init: f32) -> StateId {
        self.declare_state(
            name,
            dtype,
            StateKind::Vector {
                dims: dims.to_vec(),
                init,
            },
        )
    }

    /// Declares a per-request f32 sequence, empty at the start.
    pub fn sequence_state(&mut self, name: &str, features: usize, max_len: usize) -> StateId {
        self.declare_state(name, DType::F32, StateKind::Sequence { features, max_len })
    }

    fn declare_state(&mut self, name: &str, dtype: DType, kind: StateKind) -> StateId {
        let id = StateId::new(self.program.states.len());
        let name = self.path(name);
        self.program.states.push(StateDecl { name, dtype, kind });
        id
    }

    // Weights.

    /// Declares an f32 weight.
    pub fn weight(&mut self, name: &str, dims: &[usize], source: WeightSource) -> ValueId {
        let ty = TensorType::fixed(DType::F32, dims);
        let weight = WeightId::new(self.program.weights.len());
        let name = self.path(name);
        self.program.weights.push(WeightDecl {
            name,
            ty: ty.clone(),
            source,
        });
        self.program.values.push(Value {
            ty,
            def: Def::Weight(weight),
        });
        ValueId::new(self.program.values.len() - 1)
    }

    /// Declares a weight whose elements are given; the program computes with them as f32.
    pub fn data(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let dims = tensor.dims.clone();
        self.weight(name, &dims, WeightSource::Data(tensor))
    }

    /// Declares a weight with all elements equal.
    pub fn constant(&mut self, name: &str, dims: &[usize], value: f32) -> ValueId {
        self.weight(name, dims, WeightSource::Constant(value))
    }

    /// Declares a synthetic weight, uniform with variance `1 / fan_in`, so that a sum of `fan_in`
    /// products keeps the variance of its inputs. Its seed derives from the builder's seed and the
    /// weight's name, so it does not depend on the order of declarations.
    pub fn seeded(&mut self, name: &str, dims: &[usize], fan_in: usize) -> ValueId {
        let bound = (3.0 / fan_in.max(1) as f32).sqrt();
        self.seeded_within(name, dims, bound)
    }

    /// Declares a synthetic weight, uniform in `[-bound, bound]`.
    pub fn seeded_within(&mut self, name: &str, dims: &[usize], bound: f32) -> ValueId {
        let seed = fnv1a(self.path(name).as_bytes()) ^ self.seed;
        self.weight(name, dims, WeightSource::Seeded { seed, bound })
    }

    // Blocks and nodes.

    /// Starts a block; nodes go to it until the next one starts.
    pub fn begin_block(&mut self, name: &str, repeat: Repeat) -> BlockId {
        let id = BlockId::new(self.program.blocks.len());
        self.program.blocks.push(Block {
            name: name.to_owned(),
            repeat,
            nodes: Vec::new(),
        });
        id
    }

    /// Adds a node to the current block and returns its results. After an error the results are
    /// placeholders.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> SmallVec<[ValueId; 2]> {
        let most = match &op {
            Op::Tensor(op) => op.outputs.len().max(2),
            _ => 2,
        };
        match self.try_node(name, op, inputs) {
            Ok(outputs) => outputs,
            Err(error) => {
                self.fail(error);
                smallvec::smallvec![ValueId::new(NOWHERE); most]
            }
        }
    }

    fn try_node(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
    ) -> Result<SmallVec<[ValueId; 2]>, Error> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let name = self.path(name);
        let Some(block) = self.program.blocks.last() else {
            return Err(Error::Structure {
                program: self.program.name.clone(),
                what: format!("node {name} comes before the first block"),
            });
        };
        let operands: Vec<&TensorType> =
            inputs.iter().map(|&v| &self.program.value(v).ty).collect();
        let cx = Context {
            program: &self.program,
            repeat: block.repeat,
            node: &name,
        };
        let types = infer(&op, &operands, &cx)?;
        let node = NodeId::new(self.program.nodes.len());
        let first = self.program.values.len();
        let outputs: SmallVec<[ValueId; 2]> =
            (first..first + types.len()).map(ValueId::new).collect();
        for (output, ty) in types.into_iter().enumerate() {
            self.program.values.push(Value {
                ty,
                def: Def::Node { node, output },
            });
        }
        let inputs = SmallVec::from_slice(inputs);
        self.program.nodes.push(Node {
            name,
            op,
            inputs,
            outputs: outputs.clone(),
        });
        if let Some(block) = self.program.blocks.last_mut() {
            block.nodes.push(node);
        }
        Ok(outputs)
    }

    /// Type of a value; a scalar weight's after an error.
    pub fn ty(&self, value: ValueId) -> TensorType {
        match self.program.values.get(value.index()) {
            Some(value) => value.ty.clone(),
            None => TensorType::fixed(DType::F32, &[]),
        }
    }

    /// Size of a value's last dimension; 1 if it has none.
    pub fn features(&self, value: ValueId) -> usize {
        self.ty(value).fixed_dims().last().copied().unwrap_or(1)
    }

    // The end.

    /// Notes a fact about the model.
    pub fn metadata(&mut self, key: &str, value: impl Into<String>) {
        self.program.metadata.insert(key.to_owned(), value.into());
    }

    /// All facts noted so far.
    pub fn all_metadata(&self) -> &IndexMap<String, String> {
        &self.program.metadata
    }

    /// The finished program.
    ///
    /// # Errors
    /// The first error of any call, or what [`verify`] finds.
    pub fn finish(self) -> Result<Program, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        verify(&self.program)?;
        Ok(self.program)
    }
}

/// FNV-1a, 64 bit.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
