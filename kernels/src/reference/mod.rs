//! The oracle.

pub mod math;
