//! Time, latency profiles, predictors and outcomes.
//!
//! What the scheduler needs to know about time, without a clock and without a device.

pub mod ids;
pub mod launch;
pub mod time;

pub use ids::{LaneId, ModelId, RequestId, Slot, SubBatchId, Ticket};
pub use launch::{Launch, Member};
pub use time::{Nanos, SlackNs, Time};
