//! Arrivals: when requests enter the system, and what they ask for.
//!
//! An [`Arrival`] is one row of a workload, whether read from a trace ([`crate::traces`]) or drawn
//! from a seeded process ([`process`], [`generate`]). Nothing here reads a clock: times are
//! integer nanoseconds since the start of the run. The same seed gives the same arrivals.

pub mod generate;
pub mod process;
pub mod transform;

use std::sync::Arc;

use lazybatch_sla::{Nanos, Time};

pub use generate::{Limit, Stream, Workload};
pub use process::{Piece, Process};

/// The latest arrival: 2^62 ns, some 146 years. What follows it has as long again before times end.
pub const LATEST: Time = Time(1 << 62);

/// One request entering the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the start of the run.
    pub at: Time,
    /// Which model it asks for.
    pub model: Arc<str>,
    /// Length of its input sequence; 0 skips blocks that run per input step.
    pub input_len: u32,
    /// Steps its output takes; hidden from every policy except `oracle`.
    pub output_len: u32,
    /// Its own latency target, where it has one.
    pub sla: Option<Nanos>,
    /// Priority level; 0 is the default level.
    pub priority: u8,
    /// Samples of the client's own batch, at least 1.
    pub samples: u32,
    /// The sequence it belongs to, for stateful models.
    pub sequence_id: Option<u64>,
    /// SLA class, a name that results can be grouped by.
    pub class: Option<Arc<str>>,
}

impl Arrival {
    /// A request of one sample without a target, class or sequence of its own.
    pub fn new(at: Time, model: impl Into<Arc<str>>, input_len: u32, output_len: u32) -> Self {
        Self {
            at,
            model: model.into(),
            input_len,
            output_len,
            sla: None,
            priority: 0,
            samples: 1,
            sequence_id: None,
            class: None,
        }
    }
}

/// Mean arrival rate per second: gaps over the time from the first arrival to the last. `None`
/// with fewer than two arrivals or when all arrive at once.
pub fn mean_rate(arrivals: &[Arrival]) -> Option<f64> {
    let (first, last) = (arrivals.first()?, arrivals.last()?);
    let span = last.at.since(first.at).0;
    (span > 0).then(|| (arrivals.len() - 1) as f64 * 1e9 / span as f64)
}
