//! Devices that run nodes.

pub mod device;
pub mod error;

pub use device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
pub use error::Error;
