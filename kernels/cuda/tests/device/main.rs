//! The device on the driver of the crate `emulator`: the conformance suite, and how it fails.
//! `LAZYBATCH_SOAK_CASES` says under how many seeds of its orders, 16 at most.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod aside;
mod buckets;
mod conformance;
mod depth;
mod failure;
mod injected;
mod library;
#[path = "../common/process.rs"]
mod process;
mod residency;
mod times;
mod waits;
mod warm;

use lazybatch_cuda::{CudaDevice, CudaOptions};

/// Options with little memory: the emulator's device has little.
fn options() -> CudaOptions {
    CudaOptions {
        kernel_cache: Some(process::kernel_folder()),
        arena_bytes: 4 << 20,
        state_bytes: 4 << 20,
        host_bytes: 1 << 20,
        table_bytes: 256 << 10,
        max_open: 16,
        depth: 2,
        warm_members: 0,
        ..CudaOptions::default()
    }
}

fn device(options: CudaOptions) -> CudaDevice {
    CudaDevice::new(options).unwrap()
}
