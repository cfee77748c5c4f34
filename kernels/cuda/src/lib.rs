//! The CUDA device.
//!
//! It runs every program that the cpu device runs, on an NVIDIA GPU, through cudarc. Libraries are
//! loaded when a device is made, so this crate builds and tests without CUDA; its tests run on the
//! driver of the crate `emulator`.
#![allow(
    unsafe_code,
    reason = "calls into the CUDA driver and launches of kernels"
)]

pub mod context;
mod device;
pub mod error;
mod exec;
#[doc(hidden)]
pub mod gemm;
mod graphs;
mod host;
pub mod jit;
pub mod kernels;
mod memory;
mod model;
mod open;
mod ops;
mod options;
mod pieces;
pub mod probe;
mod record;
pub mod resources;
mod states;
mod stream;
mod tables;
mod times;
mod weights;

pub use context::{Context, DevicePtr, Stream};
pub use device::CudaDevice;
pub use error::CudaError;
pub use graphs::GraphCounts;
pub use kernels::Kernels;
pub use options::CudaOptions;
pub use times::LaunchTime;
