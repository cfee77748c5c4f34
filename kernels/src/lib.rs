//! Devices that run nodes.
#![allow(unsafe_code, reason = "SIMD kernels and the thread pool need it")]

pub mod cpu;
pub mod device;
pub mod error;
pub mod reference;

pub use device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
pub use error::Error;
