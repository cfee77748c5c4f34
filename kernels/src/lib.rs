//! Devices that run nodes.

pub mod device;
pub mod error;
pub mod sim;

pub use device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
pub use error::Error;
pub use sim::{Noise, SimDevice};
