//! Experiments: the same arrivals under several policies.
//!
//! [`simulate`] runs the scheduler in virtual time over a latency profile; [`serve`] runs it in
//! real time on a device.

pub mod inputs;
pub mod serve;
pub mod simulate;
pub mod words;

pub use serve::{Call, Hosted, Served, Serving};
pub use simulate::{Detail, Simulated, Simulation};
