//! Models as programs of nodes.
//!
//! A model is compiled to a [`Program`]: blocks of nodes with a repeat rule each. The scheduler
//! sees blocks and nodes with their costs, devices see ops and operands. This crate neither
//! schedules nor computes.

pub mod builder;
pub mod cost;
pub mod dtype;
pub mod error;
pub mod ids;
pub mod infer;
pub mod liveness;
pub mod op;
pub mod program;
pub mod segment;
pub mod shape;
pub mod tensor;
pub mod verify;

pub use builder::{Fused, LstmState, Memory, MultiHead, ProgramBuilder};
pub use cost::NodeCost;

pub use dtype::DType;
pub use error::Error;
pub use ids::{BlockId, InputId, NodeId, OutputId, StateId, ValueId, WeightId};
pub use liveness::{Boundary, Liveness};
pub use op::{Act, At, Bin, CustomOp, Heads, Op, Pool, Window};
pub use program::{
    Block, Def, InputDecl, Node, OutputDecl, Program, Repeat, SharedProgram, StateDecl, StateKind,
    Value, WeightDecl,
};
pub use segment::Segments;
pub use shape::{Dim, TensorType};
pub use tensor::{Bytes, Tensor, WeightSource};
pub use verify::verify;
