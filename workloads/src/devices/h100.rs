//! NVIDIA H100 SXM5 80 GB.
//!
//! Source: NVIDIA, "H100 tensor core GPU" datasheet and architecture paper (SXM5): 989.4 TFLOP/s
//! dense half precision, 66.9 TFLOP/s single precision, 3.35 TB/s HBM3.

use super::roofline::{COMPUTE_SHARE, DISPATCH_US, MEMORY_SHARE, Roofline};
use super::{DeviceModel, Machine};

/// Memory bandwidth, GB/s.
const MEMORY_GBPS: f64 = 3350.0;

/// The device.
pub(super) const DEVICE: DeviceModel = DeviceModel {
    name: "h100",
    device: "nvidia-h100-sxm5-80gb",
    about: "NVIDIA H100 SXM5 80 GB, roofline",
    machine: Machine::Roofline(Roofline {
        tensor_tflops: 989.4,
        vector_tflops: 66.9,
        memory_gbps: MEMORY_GBPS,
        compute_share: COMPUTE_SHARE,
        memory_share: MEMORY_SHARE,
    }),
    dispatch_us: DISPATCH_US,
    copy_gbps: MEMORY_GBPS * MEMORY_SHARE / 2.0,
};
