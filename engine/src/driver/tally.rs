//! What launches did, told to whoever reads figures some launches at a time.

use lazybatch_sla::{Histogram, Launch, ModelId, Nanos};

use super::figures::Stats;

/// Launches of one number of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtSize {
    /// Node executions.
    pub nodes: u64,
    /// Nanoseconds for which those that have ended held their lane.
    pub ns: u64,
}

/// Launches by how many samples they had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(Vec<AtSize>);

impl Sizes {
    /// Those that there were: how many samples, and what was launched with so many. From the least.
    pub fn iter(&self) -> impl Iterator<Item = (u32, AtSize)> + '_ {
        let each = (0..).zip(self.0.iter().copied());
        each.filter(|(_, at)| *at != AtSize::default())
    }

    /// How many samples node executions had.
    pub fn histogram(&self) -> Histogram {
        let mut all = Histogram::new(&BATCH_BOUNDS);
        for (samples, at) in self.iter() {
            all.record_many(samples.into(), at.nodes);
        }
        all
    }

    /// Counts launches of so many samples.
    pub fn add(&mut self, samples: u32, more: AtSize) {
        let at = samples as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, AtSize::default());
        }
        self.0[at].nodes += more.nodes;
        self.0[at].ns += more.ns;
    }
}

/// Bounds of samples of a node execution.
const BATCH_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// What launches did since figures were told.
#[derive(Debug, Default)]
pub(crate) struct Tally(Vec<(ModelId, u32, AtSize)>);

impl Tally {
    /// One is issued.
    pub fn launched(&mut self, launch: &Launch) {
        let nodes = u64::from(launch.end_node - launch.first_node);
        self.push(launch, AtSize { nodes, ns: 0 });
    }

    /// One has ended; it held its lane for that long.
    pub fn ended(&mut self, launch: &Launch, held: Nanos) {
        let ns = held.0;
        self.push(launch, AtSize { nodes: 0, ns });
    }

    fn push(&mut self, launch: &Launch, more: AtSize) {
        self.0.push((launch.model, launch.num_samples(), more));
    }

    /// Tells it.
    pub fn tell(&mut self, stats: &mut Stats) {
        for (model, samples, more) in self.0.drain(..) {
            stats.sizes[model.index()].add(samples, more);
        }
    }
}
