//! A weight-stationary systolic array.
//!
//! A product `[m, k] x [k, n]` is cut into tiles of the array's size along `k` and `n`. A tile's
//! weights are loaded one array row a cycle; then `m` rows stream through, one a cycle, skewed by
//! one cycle per array row and column. The weights of the next tile are loaded while the rows of
//! this one stream (two weight registers a cell), so a tile takes the longer of both:
//!
//! ```text
//! cycles = D + sum over tiles of max(m, D), m for the last tile, + 2 D - 2        (D x D array)
//!          first load                                              fill and drain
//! ```
//!
//! With few rows the array thus loads `D` weights a cycle and no more: for 128 columns of two bytes
//! at 700 MHz, 179 GB/s, whatever memory could give.
//! Partial tiles take as long as full ones. Independent small products (groups of a convolution,
//! heads) share a tile block-diagonally, as many as fit along both `k` and `n`. Results of tiles
//! along `k` are added in accumulators at no cost. Everything that is no product runs on vector
//! units that keep up with memory.
//!
//! Traffic: each operand from memory and each result to memory once, where the weights or the
//! operand fit their buffer. Else either the weights are read again for every part of the operand
//! that fits, or the operand for every part of the weights, whichever is less. Arithmetic and
//! traffic overlap: a node takes the longer of both.
//!
//! Source: Jouppi et al., "In-datacenter performance analysis of a tensor processing unit", ISCA
//! 2017, section 2 (weight-stationary array, weight fetch behind the computation).

use super::work::{NodeWork, Product};

/// An array and its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Systolic {
    /// Rows, and columns, of the array.
    pub size: u64,
    /// Clock in MHz.
    pub mhz: f64,
    /// Memory bandwidth in GB/s.
    pub memory_gbps: f64,
    /// Bytes of the buffer for activations.
    pub activation_buffer: u64,
    /// Bytes of the buffer for weights.
    pub weight_buffer: u64,
}

impl Systolic {
    /// Peak operations per nanosecond: a multiply-add per cell and cycle.
    pub fn peak_flops_per_ns(&self) -> f64 {
        2.0 * (self.size * self.size) as f64 * self.mhz / 1e3
    }

    /// Tiles of products of one shape.
    pub fn tiles(&self, p: &Product) -> u64 {
        let d = self.size;
        let together = (d / p.k).min(d / p.n);
        if together > 0 {
            p.count.div_ceil(together)
        } else {
            p.count * p.k.div_ceil(d) * p.n.div_ceil(d)
        }
    }

    /// Cycles of products one behind the other.
    pub fn cycles(&self, products: &[Product]) -> u64 {
        let d = self.size;
        let Some(last) = products.last() else {
            return 0;
        };
        let streamed: u64 = products.iter().map(|p| self.tiles(p) * p.m.max(d)).sum();
        let behind_last = last.m.max(d) - last.m;
        d + streamed - behind_last + 2 * d - 2
    }

    /// Bytes between the array's buffers and memory.
    pub fn traffic(&self, work: &NodeWork) -> u64 {
        let input_parts = work.input_bytes.div_ceil(self.activation_buffer).max(1);
        let weight_parts = work.weight_bytes.div_ceil(self.weight_buffer).max(1);
        let weights_again = work.weight_bytes * input_parts + work.input_bytes;
        let input_again = work.weight_bytes + work.input_bytes * weight_parts;
        work.other_bytes + weights_again.min(input_again)
    }

    /// Time of a node in nanoseconds.
    pub fn node_ns(&self, work: &NodeWork) -> f64 {
        let compute = self.cycles(&work.products) as f64 * 1e3 / self.mhz;
        compute.max(self.traffic(work) as f64 / self.memory_gbps)
    }
}
