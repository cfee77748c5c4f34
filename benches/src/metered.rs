//! A device that measures what happens between its launches.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use lazybatch_graph::Tensor;
use lazybatch_kernels::{Device, Error, OpenRequest, Plan, Wrapper};
use lazybatch_sla::{LatencyTable, Launch, ModelId, Slot, Time};

use crate::clock;

/// One launch and the nanoseconds it took.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// The model.
    pub model: ModelId,
    /// Block of the model.
    pub block: u32,
    /// Segment of the block.
    pub segment: u32,
    /// Samples of all members.
    pub samples: u32,
    /// Rows of all members.
    pub rows: u64,
    /// From issue to completion.
    pub ns: f64,
    /// From the end of the launch before to the issue of this one, if somebody was open all the
    /// while.
    pub busy_gap_ns: Option<f64>,
}

/// Launches of one run.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Each launch.
    pub launches: Vec<Timed>,
}

/// Runs launches in place on `inner` and notes when.
pub struct Metered {
    inner: Box<dyn Device>,
    meter: Arc<Mutex<Meter>>,
    num_open: usize,
    /// End of the last launch, unless nobody was open since.
    last_end: Option<Instant>,
}

impl Metered {
    /// Measures `inner`, which must complete launches in place, into `meter`.
    pub fn new(inner: Box<dyn Device>, meter: Arc<Mutex<Meter>>) -> Self {
        Self {
            inner,
            meter,
            num_open: 0,
            last_end: None,
        }
    }
}

/// What launches of one model took over what its table says; none where there were none.
pub fn took_over_table<'a>(
    launches: impl IntoIterator<Item = &'a Timed>,
    table: &LatencyTable,
) -> Option<f64> {
    let sums = launches.into_iter().fold((0.0, 0.0), |(took, says), l| {
        let predicted = table.segment(l.block, l.segment, l.samples, l.rows);
        (took + l.ns, says + predicted.0 as f64)
    });
    (sums.1 > 0.0).then(|| sums.0 / sums.1)
}

/// Mean time between launches in microseconds, where somebody was open all the while.
pub fn gap_us(launches: &[Timed]) -> Option<f64> {
    let gaps: Vec<f64> = launches.iter().filter_map(|l| l.busy_gap_ns).collect();
    (!gaps.is_empty()).then(|| gaps.iter().sum::<f64>() / gaps.len() as f64 / 1e3)
}

impl Wrapper for Metered {
    fn inner(&self) -> &dyn Device {
        self.inner.as_ref()
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        self.inner.as_mut()
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.num_open += 1;
        self.inner.open(request)
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        let start = clock::now();
        let result = self.inner.enqueue(now, plan, launch);
        let end = clock::now();
        let last = self.last_end.replace(end);
        let busy_gap_ns = last.map(|last| (start - last).as_nanos() as f64);
        let mut meter = self.meter.lock().expect("no holder panics");
        meter.launches.push(Timed {
            model: launch.model,
            block: launch.block,
            segment: launch.segment,
            samples: launch.num_samples(),
            rows: launch.num_rows(),
            ns: (end - start).as_nanos() as f64,
            busy_gap_ns,
        });
        result
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.num_open -= 1;
        if self.num_open == 0 {
            self.last_end = None;
        }
        self.inner.close(slot)
    }
}
