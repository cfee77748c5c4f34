//! A CUDA driver that runs on the CPU.
//!
//! PTX text is read ([`ptx`]), its kernels run warp by warp ([`exec`]) over memory that knows its
//! bounds, what was written and who touched it, and what is wrong is reported with its place
//! ([`report`]).

#![allow(
    unsafe_code,
    reason = "the driver's functions take pointers from C, and page-locked memory is shared with it"
)]

#[allow(non_snake_case, reason = "the names are those of the interface")]
pub mod blas;
#[allow(non_snake_case, reason = "the names are those of the interface")]
pub mod driver;
pub mod exec;
pub mod module;
pub mod num;
pub mod ptx;
pub mod report;
