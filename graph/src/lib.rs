//! Models as programs of nodes.
//!
//! A model is compiled to a [`Program`]: blocks of nodes with a repeat rule each. The scheduler
//! sees blocks and nodes with their costs, devices see ops and operands. This crate neither
//! schedules nor computes.
//!
//! Entry points: [`ProgramBuilder`] makes programs and [`WeightFile`] fills their weights,
//! [`Manifest`] builds models from published weight files,
//! [`verify()`] checks them, [`optimize`] fuses nodes, [`Liveness`] and [`cost`] say what a merge
//! copies and what a node costs, [`Segments`] groups nodes for launching, [`join()`] makes one
//! program of several, and [`dump()`] prints it all:
//!
//! ```
//! use lazybatch_graph::{Act, DType, ProgramBuilder, Repeat, dump};
//!
//! let mut b = ProgramBuilder::new("two-layers");
//! let x = b.input("x", DType::F32, &[4]);
//! b.begin_block("main", Repeat::Once);
//! let x = b.read_input("x", x);
//! let y = b.dense("fc", x, 2, Some(Act::Relu));
//! assert_eq!(b.ty(y).to_string(), "f32[batch, 2]");
//! let program = b.finish()?;
//! assert_eq!(
//!     dump(&program, None),
//!     "\
//! program two-layers: 2 nodes, 1 block, 10 parameters
//! input in0 x: f32[4]
//! block k0 main: once
//!   n0 x = input in0 all () -> f32[batch, 4] | moves 16 B/sample
//!   n1 fc = linear bias relu (n0 f32[batch, 4], fc.weight f32[4, 2], fc.bias f32[2]) -> \
//! f32[batch, 2] | flops 20/sample, weights 40 B, moves 24 B/sample, live 16 B/sample
//! "
//! );
//! # Ok::<(), lazybatch_graph::Error>(())
//! ```

pub mod builder;
pub mod chain;
pub mod cost;
pub mod dtype;
pub mod dump;
pub mod error;
mod floats;
pub mod folder;
pub mod ids;
pub mod infer;
pub mod join;
pub mod liveness;
pub mod manifest;
pub mod math;
mod mmap;
pub mod onnx;
pub mod op;
pub mod passes;
pub mod program;
pub mod sampling;
pub mod segment;
pub mod shape;
pub mod tensor;
pub mod tensor_op;
pub mod verify;
pub mod weights;

pub use builder::{Fused, Greedy, LstmState, Memory, MultiHead, ProgramBuilder};
pub use cost::NodeCost;

pub use dtype::DType;
pub use dump::dump;
pub use error::Error;
pub use ids::{BlockId, InputId, NodeId, OutputId, StateId, ValueId, WeightId};
pub use join::{Ports, Source, Step, Wires, join};
pub use liveness::{Boundary, Liveness};
pub use manifest::Manifest;
pub use op::{Act, At, Bin, CustomOp, Heads, Op, Pool, Seen, Window};
pub use passes::optimize;
pub use program::{
    Block, Carry, Def, InputDecl, Node, OutputDecl, Program, Repeat, SharedProgram, StateDecl,
    StateKind, Value, WeightDecl,
};
pub use sampling::{SAMPLING_INPUT, Sampling};
pub use segment::Segments;
pub use shape::{Dim, TensorType};
pub use tensor::{Bytes, Tensor, WeightSource};
pub use tensor_op::{Attribute, Layout, Operand, Part, Produced, TensorOp};
pub use verify::{verify, verify_rows};
pub use weights::WeightFile;
