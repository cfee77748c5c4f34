//! Devices that run nodes.

pub mod device;
pub mod error;
pub mod inputs;
pub mod sim;

pub use device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
pub use error::Error;
pub use inputs::{InputShape, validate_inputs};
pub use sim::{Noise, SimDevice};
