//! Devices that run nodes.
//!
//! [`cpu`] is the embedded device, [`reference`] the oracle in double precision that every other
//! one is compared with, [`sim`] computes nothing and takes the time that a profile states.
//! [`custom`] is how a user brings a node of their own.
#![allow(unsafe_code, reason = "SIMD kernels and the thread pool need it")]

pub mod conformance;
pub mod cpu;
pub mod custom;
pub mod device;
pub mod error;
pub mod faulty;
pub mod inputs;
pub mod profiler;
pub mod reference;
pub mod sim;
pub mod synthetic;
mod validate;

pub use cpu::{CpuDevice, CpuOptions};
pub use custom::{CustomCall, CustomKernel, CustomNode, CustomOperand, KernelRegistry};
pub use device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
pub use error::Error;
pub use faulty::{FaultPlan, Faulty};
pub use inputs::{InputShape, validate_inputs};
pub use reference::ReferenceDevice;
pub use sim::{Noise, SimDevice};
