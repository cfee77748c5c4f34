//! Models as programs of nodes.
//!
//! A model is compiled to a [`Program`]: blocks of nodes with a repeat rule each. The scheduler
//! sees blocks and nodes with their costs, devices see ops and operands. This crate neither
//! schedules nor computes.

pub mod dtype;
pub mod error;
pub mod ids;
pub mod op;
pub mod program;
pub mod shape;
pub mod tensor;

pub use dtype::DType;
pub use error::Error;
pub use ids::{BlockId, InputId, NodeId, OutputId, StateId, ValueId, WeightId};
pub use op::{Act, At, Bin, CustomOp, Heads, Op, Pool, Window};
pub use program::{
    Block, Def, InputDecl, Node, OutputDecl, Program, Repeat, SharedProgram, StateDecl, StateKind,
    Value, WeightDecl,
};
pub use shape::{Dim, TensorType};
pub use tensor::{Bytes, Tensor, WeightSource};
