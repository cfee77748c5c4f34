//! NVIDIA H200 SXM 141 GB.
//!
//! Source: NVIDIA, "H200 tensor core GPU" datasheet (SXM): arithmetic as the H100 SXM, 4.8 TB/s HBM3e.

use super::roofline::{COMPUTE_SHARE, DISPATCH_US, MEMORY_SHARE, Roofline};
use super::{DeviceModel, Machine};

/// Memory bandwidth, GB/s.
const MEMORY_GBPS: f64 = 4800.0;

/// The device.
pub(super) const DEVICE: DeviceModel = DeviceModel {
    name: "h200",
    device: "nvidia-h200-sxm-141gb",
    about: "NVIDIA H200 SXM 141 GB, roofline",
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
