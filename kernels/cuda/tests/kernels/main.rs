//! The kernels against their definitions in double precision, on the driver of the crate
//! `emulator`: random shapes, outputs that nobody has written, and every row alone with the bits it
//! has among others. `LAZYBATCH_SOAK_CASES` says under how many seeds of its orders, 16 at most.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(unsafe_code, reason = "copies to and from the device")]

#[path = "../common/process.rs"]
mod process;

mod harness;

mod attention;
mod attention_matrix;
mod buckets;
mod cache;
mod conv_matrix;
mod elementwise;
mod gemm;
mod images;
mod library;
mod matrix;
mod mutations;
mod norms;
mod positions;
mod recurrent;
mod rows;
mod sample;
mod softmax;
mod top_k;
