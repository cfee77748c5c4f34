//! Experiments: the same arrivals under several policies.
//!
//! [`simulate`] runs the scheduler in virtual time over a latency profile.

pub mod simulate;

pub use simulate::{Simulated, Simulation};
