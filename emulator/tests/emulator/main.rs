//! Kernels and library calls on the emulated device.

#[path = "../common/mod.rs"]
mod common;

mod blas;
mod driver;
mod generated;
mod samples;
