//! When launches are over and what they take on the device: an event in front of a launch's first
//! kernel and one behind its last.

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

/// Events of launches in the order in which they were issued.
pub(crate) struct Times {
    /// Used in turn: more than twice as many as there are launches in flight.
    ring: Vec<Pair>,
    issued: usize,
    completed: usize,
    /// Whether times are kept for [`Self::take`].
    keeps: bool,
    taken_in: Vec<LaunchTime>,
}

impl Times {
    /// For so many launches in flight.
    pub(crate) fn new(context: &Context, depth: usize, keeps: bool) -> Result<Self, CudaError> {
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
            keeps,
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

    /// Whether the oldest launch in flight is over.
    ///
    /// # Errors
    /// The failure of its work.
    pub(crate) fn front_is_over(&self) -> Result<bool, CudaError> {
        self.ring[self.place(self.completed)].end.is_over()
    }

    /// The oldest launch is over: what it took, unless it did not come to its first kernel.
    pub(crate) fn complete(&mut self) -> Result<Option<LaunchTime>, CudaError> {
        let at = self.place(self.completed);
        let is_first = self.completed == 0;
        let before = self.place(self.completed.wrapping_sub(1));
        self.completed += 1;
        if !std::mem::take(&mut self.ring[at].has_begun) {
            return Ok(None);
        }
        let Pair { begin, end, .. } = &self.ring[at];
        let idle_us = match is_first || !self.keeps {
            true => 0.0,
            false => begin.us_since(&self.ring[before].end)?,
        };
        let time = LaunchTime {
            busy_us: end.us_since(begin)?,
            idle_us,
        };
        if self.keeps {
            self.taken_in.push(time);
        }
        Ok(Some(time))
    }

    /// Those that are over, since they were last asked for.
    pub(crate) fn take(&mut self) -> Vec<LaunchTime> {
        std::mem::take(&mut self.taken_in)
    }
}
