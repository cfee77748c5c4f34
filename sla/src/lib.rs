//! Time, latency profiles, predictors and outcomes.
//!
//! What the scheduler needs to know about time, without a clock and without a device.

pub mod class;
pub mod histogram;
pub mod ids;
pub mod latency;
pub mod launch;
pub mod outcome;
pub mod predict;
pub mod profile;
pub mod time;

pub use class::{Class, ClassError, Late};
pub use histogram::Histogram;
pub use ids::{ClassId, LaneId, ModelId, RequestId, Slot, SubBatchId, Ticket};
pub use latency::{LatencyTable, Progress, SegmentRanges, segments_of};
pub use launch::{Launch, Member};
pub use outcome::{Account, Outcome};
pub use predict::{BatchedSlack, OutputLen, SerialisedSlack};
pub use profile::{Profile, ProfileError};
pub use time::{Nanos, SlackNs, Time};
