//! NVIDIA V100 SXM2.
//!
//! Source: NVIDIA, "Tesla V100 GPU accelerator" datasheet (SXM2): 125 TFLOP/s tensor, 15.7 TFLOP/s
//! single precision, 900 GB/s HBM2.

use super::roofline::{COMPUTE_SHARE, DISPATCH_US, MEMORY_SHARE, Roofline};
use super::{DeviceModel, Machine};

/// Memory bandwidth, GB/s.
const MEMORY_GBPS: f64 = 900.0;

/// The device.
pub(super) const DEVICE: DeviceModel = DeviceModel {
    name: "v100",
    device: "nvidia-v100-sxm2-16gb",
    about: "NVIDIA V100 SXM2, roofline",
    machine: Machine::Roofline(Roofline {
        tensor_tflops: 125.0,
        vector_tflops: 15.7,
        memory_gbps: MEMORY_GBPS,
        compute_share: COMPUTE_SHARE,
        memory_share: MEMORY_SHARE,
    }),
    dispatch_us: DISPATCH_US,
    copy_gbps: MEMORY_GBPS * MEMORY_SHARE / 2.0,
};
