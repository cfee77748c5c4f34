//! Devices that run nodes.
//!
//! [`cpu`] is the embedded device, [`mod@reference`] the oracle in double precision that every other
//! one is compared with, [`sim`] computes nothing and takes the time that a profile states.
//! [`custom`] is how a user brings a node of their own, [`conformance`] the suite that all devices
//! pass.
//!
//! ```
//! use std::sync::Arc;
//! use lazybatch_graph::{Act, DType, ProgramBuilder, Repeat, Tensor};
//! use lazybatch_kernels::conformance::{Request, Schedule, run};
//! use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
//! use lazybatch_sla::ModelId;
//!
//! let mut b = ProgramBuilder::new("relu");
//! let x = b.sequence("x", DType::F32, &[2], 4);
//! let y = b.output_sequence("y", DType::F32, &[2]);
//! b.begin_block("all", Repeat::Once);
//! let rows = b.read_input("x", x);
//! let rows = b.unary("relu", Act::Relu, rows);
//! b.emit("emit", y, rows);
//! let program = Arc::new(b.finish()?);
//!
//! let mut device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
//! device.load(ModelId(0), Arc::clone(&program))?;
//! let request = |values: &[f32]| Request {
//!     inputs: vec![Tensor::from_f32(&[values.len() / 2, 2], values)],
//!     len: values.len() / 2,
//!     samples: 1,
//! };
//! let requests = [request(&[1.0, -1.0]), request(&[-2.0, 2.0, 3.0, -3.0])];
//! let outputs = run(&mut device, &program, &requests, Schedule::Together)?;
//! let second = outputs[1][0].as_ref().map(Tensor::to_f32);
//! assert_eq!(second, Some(vec![0.0, 2.0, 3.0, 0.0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(unsafe_code, reason = "SIMD kernels and the thread pool need it")]

pub mod arena;
pub mod conformance;
pub mod cpu;
pub mod custom;
pub mod device;
pub mod error;
pub mod faulty;
pub mod frames;
mod general;
pub mod host_nodes;
pub mod import;
pub mod inputs;
pub mod memory;
pub mod onnx;
pub mod pages;
pub mod plans;
pub mod reference;
pub mod sim;
pub mod slots;
pub mod synthetic;
pub mod tensor;
pub mod validate;
pub mod wrap;

pub use cpu::{CpuDevice, CpuOptions};
pub use custom::{CustomCall, CustomKernel, CustomNode, CustomOperand, KernelRegistry};
pub use device::{Completion, Device, DeviceInfo, OpenRequest, Packed, Packer, Plan, Residency};
pub use error::{Error, Fault, Whose};
pub use faulty::{FaultPlan, Faulty};
pub use inputs::{InputShape, validate_inputs, with_sampling};
pub use memory::{MemoryBound, RequestMemory};
pub use reference::ReferenceDevice;
pub use sim::{Noise, SimDevice};
pub use validate::is_static;
pub use wrap::Wrapper;
