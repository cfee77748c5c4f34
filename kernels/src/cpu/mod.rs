//! The embedded device.

pub mod buffers;
pub mod gemm;
pub mod level;
pub mod math;
pub mod pool;
