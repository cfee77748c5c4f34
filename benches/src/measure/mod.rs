//! The measurements. Each module has one `run` and writes the lines of one file.

pub mod args;
pub mod decision;
pub mod dispatch;
pub mod fetched;
pub mod first;
pub mod gemm;
pub mod instructions;
pub mod joining;
pub mod load;
pub mod mixes;
pub mod peers;
pub mod realtime;
pub mod serve;
pub mod sim_vs_real;
pub mod steady;
pub mod weights;
pub mod window;
