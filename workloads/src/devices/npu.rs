//! A systolic array of 128 x 128 cells at 700 MHz with 360 GB/s, in the manner of the accelerator
//! of the LazyBatching paper (Choi, Kim, Rhu, HPCA 2021, arXiv 2010.13103) as we reconstruct it.
//!
//! The paper's full text was not at hand, so all figures are settings of this project: array, clock
//! and bandwidth, the buffers (8 MiB for activations, 4 MiB for weights) and the two-byte elements.
//! So is the cost of a launch, one microsecond: a local command processor, not a host behind a bus,
//! starts the next node.

use super::systolic::Systolic;
use super::{DeviceModel, Machine};

/// Memory bandwidth, GB/s.
const MEMORY_GBPS: f64 = 360.0;

/// The device.
pub(super) const DEVICE: DeviceModel = DeviceModel {
    name: "npu",
    device: "npu-128x128-700mhz",
    about: "128 x 128 systolic array, 700 MHz, 360 GB/s",
    machine: Machine::Systolic(Systolic {
        size: 128,
        mhz: 700.0,
        memory_gbps: MEMORY_GBPS,
        activation_buffer: 8 << 20,
        weight_buffer: 4 << 20,
    }),
    dispatch_us: 1.0,
    copy_gbps: MEMORY_GBPS / 2.0,
};
