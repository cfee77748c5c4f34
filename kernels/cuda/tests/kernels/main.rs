//! The kernels against their definitions in double precision, on the driver of the crate
//! `emulator`: random shapes, outputs that nobody has written, and every row alone with the bits it
//! has among others.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod harness;

mod cache;
mod elementwise;
mod norms;
mod rows;
