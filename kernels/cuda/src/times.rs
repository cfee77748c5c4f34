//! What launches take on the device: events in front of a launch's first kernel and behind its last.
//!
//! For programs that measure; a device that serves does without.

use crate::context::{Context, Event, Stream};
use crate::error::CudaError;

/// What a launch took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchTime {
    /// From its first kernel to the end of its last, microseconds.
    pub busy_us: f64,
    /// From the end of the launch ahead to its first kernel, microseconds; 0 for the first of all.
    /// The copy of its tables is in there.
    pub idle_us: f64,
}

/// Around one launch.
struct Pair {
    begin: Event,
    end: Event,
    /// Whether it came to its first kernel.
    has_begun: bool,
}

/// Times of launches in the order in which they were issued.
pub(crate) struct Times {
    /// Used in turn: more than twice as many as there are launches in flight.
    ring: Vec<Pair>,
    issued: usize,
    completed: usize,
    taken_in: Vec<LaunchTime>,
}

impl Times {
    /// For so many launches in flight.
    pub(crate) fn new(context: &Context, depth: usize) -> Result<Self, CudaError> {
        let pair = |_| {
            Ok(Pair {
                begin: Event::timed(context)?,
                end: Event::timed(context)?,
                has_begun: false,
            })
        };
        Ok(Self {
            ring: (0..2 * depth + 2).map(pair).collect::<Result<_, _>>()?,
            issued: 0,
            completed: 0,
            taken_in: Vec::new(),
        })
    }

    fn place(&self, launch: usize) -> usize {
        launch % self.ring.len()
    }

    /// In front of the first kernel.
    pub(crate) fn begin(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let at = self.place(self.issued);
        self.ring[at].begin.record(stream)?;
        self.ring[at].has_begun = true;
        Ok(())
    }

    /// Behind a launch, whether it has begun or not.
    pub(crate) fn end(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let at = self.place(self.issued);
        self.issued += 1;
        self.ring[at].end.record(stream)
    }

    /// The oldest launch is over.
    pub(crate) fn complete(&mut self) -> Result<(), CudaError> {
        let at = self.place(self.completed);
        let is_first = self.completed == 0;
        let before = self.place(self.completed.wrapping_sub(1));
        self.completed += 1;
        if !std::mem::take(&mut self.ring[at].has_begun) {
            return Ok(());
        }
        let Pair { begin, end, .. } = &self.ring[at];
        let idle_us = match is_first {
            true => 0.0,
            false => begin.us_since(&self.ring[before].end)?,
        };
        self.taken_in.push(LaunchTime {
            busy_us: end.us_since(begin)?,
            idle_us,
        });
        Ok(())
    }

    /// Those that are over, since they were last asked for.
    pub(crate) fn take(&mut self) -> Vec<LaunchTime> {
        std::mem::take(&mut self.taken_in)
    }
}
