//! NVIDIA A100 SXM4 40 GB.
//!
//! Source: NVIDIA, "A100 tensor core GPU" datasheet (SXM4, 40 GB): 312 TFLOP/s dense half precision,
//! 19.5 TFLOP/s single precision, 1,555 GB/s HBM2.

use super::roofline::{COMPUTE_SHARE, DISPATCH_US, MEMORY_SHARE, Roofline};
use super::{DeviceModel, Machine};

/// Memory bandwidth, GB/s.
const MEMORY_GBPS: f64 = 1555.0;

/// The device.
pub(super) const DEVICE: DeviceModel = DeviceModel {
    name: "a100",
    device: "nvidia-a100-sxm4-40gb",
    about: "NVIDIA A100 SXM4 40 GB, roofline",
    machine: Machine::Roofline(Roofline {
        tensor_tflops: 312.0,
        vector_tflops: 19.5,
        memory_gbps: MEMORY_GBPS,
        compute_share: COMPUTE_SHARE,
        memory_share: MEMORY_SHARE,
    }),
    dispatch_us: DISPATCH_US,
    copy_gbps: MEMORY_GBPS * MEMORY_SHARE / 2.0,
};
