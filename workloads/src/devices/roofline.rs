//! Rooflines of GPUs: a kernel takes the longer of its arithmetic and its traffic.
//!
//! Arithmetic is matrix products on tensor cores plus all other operations on the plain cores;
//! both, and memory, at a stated share of their peak. A constant share flatters small products,
//! which cannot fill all cores: tables below a few thousand rows are lower bounds.
//! The fixed cost of a kernel is the device's `dispatch_us`.
//!
//! Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for
//! multicore architectures", CACM 2009.

use super::work::{NodeWork, Product};

/// Peaks of a GPU and what is reached of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Dense half-precision tensor-core peak in TFLOP/s.
    pub tensor_tflops: f64,
    /// Single-precision peak of the plain cores in TFLOP/s.
    pub vector_tflops: f64,
    /// Peak memory bandwidth in GB/s.
    pub memory_gbps: f64,
    /// Share of the tensor-core and plain-core peaks that layers reach.
    pub compute_share: f64,
    /// Share of the peak bandwidth that kernels reach.
    pub memory_share: f64,
}

/// Share of the arithmetic peak in all GPU models. An assumption: large square half-precision
/// products reach about 0.8, layers of real models less.
pub const COMPUTE_SHARE: f64 = 0.7;
/// Share of the peak bandwidth in all GPU models. An assumption: plain device-to-device copies
/// reach about 0.9.
pub const MEMORY_SHARE: f64 = 0.85;
/// Cost of a launch in all GPU models, microseconds: the host launches a kernel and waits for it.
/// Source: Gray, "Getting started with CUDA graphs", NVIDIA technical blog, 2019: 9.6 us per kernel
/// of 2.9 us on a V100 when the host waits for each. The host sets this cost, not the GPU's
/// generation, so newer ones get the same.
pub const DISPATCH_US: f64 = 6.7;

impl Roofline {
    /// Time of a node in nanoseconds.
    pub fn node_ns(&self, work: &NodeWork) -> f64 {
        let of_products: u64 = work.products.iter().map(Product::flops).sum();
        // TFLOP/s are thousands of operations per nanosecond.
        let tensor = of_products as f64 / (1e3 * self.tensor_tflops);
        let vector = work.other_flops as f64 / (1e3 * self.vector_tflops);
        let compute = (tensor + vector) / self.compute_share;
        compute.max(work.bytes() as f64 / (self.memory_gbps * self.memory_share))
    }
}
