//! What a core schedules: models, lanes and bounds.

use std::ops::Range;
use std::sync::Arc;

use lazybatch_graph::Repeat;
use lazybatch_sla::profile::ModelProfile;
use lazybatch_sla::{Class, LatencyTable, Profile, SegmentRanges, segments_of};

/// One block as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct BlockSpec {
    /// Name, for timelines.
    pub name: String,
    /// Repeat rule.
    pub repeat: Repeat,
    /// Node positions of each segment.
    pub segments: Vec<Range<u32>>,
}

/// One model as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Name.
    pub name: String,
    /// Blocks in order.
    pub blocks: Vec<BlockSpec>,
    /// Most samples of one launch.
    pub max_batch: u32,
    /// Most requests in the batch table: what the device reserved memory for.
    pub max_in_flight: u32,
    /// Latencies by segment and batch.
    pub table: Arc<LatencyTable>,
    /// Output length that covers 90 % of training outputs.
    pub output_len_p90: u32,
    /// Whether its weights are on the device at the start.
    pub resident: bool,
}

impl ModelSpec {
    /// From a profile, with one segment per `every` nodes. `output_len_p90` stands in where the
    /// profile does not state one.
    ///
    /// # Panics
    /// If `every` is zero or the profile was not checked.
    pub fn from_profile(
        profile: &Profile,
        model: &ModelProfile,
        every: u32,
        output_len_p90: u32,
    ) -> Self {
        Self::with_segments(profile, model, segments_of(model, every), output_len_p90)
    }

    /// From a profile and given segments.
    ///
    /// # Panics
    /// If the segments are not those of the profile's blocks.
    pub fn with_segments(
        profile: &Profile,
        model: &ModelProfile,
        segments: SegmentRanges,
        output_len_p90: u32,
    ) -> Self {
        let table = LatencyTable::new(model, &segments, profile.dispatch_us, profile.copy_gbps);
        Self {
            name: model.name.clone(),
            blocks: model
                .blocks
                .iter()
                .zip(segments)
                .map(|(b, segments)| BlockSpec {
                    name: b.name.clone(),
                    repeat: b.repeat(),
                    segments,
                })
                .collect(),
            max_batch: model.max_batch,
            max_in_flight: model.max_batch.saturating_mul(BATCHES_IN_FLIGHT),
            table: Arc::new(table),
            output_len_p90: model.output_len_p90.unwrap_or(output_len_p90),
            resident: true,
        }
    }
}

/// Largest batches of a model that may be in flight together, in simulation and for real.
pub const BATCHES_IN_FLIGHT: u32 = 4;

/// Configuration of a core.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Models by id.
    pub models: Vec<ModelSpec>,
    /// SLA classes by id, at least one.
    pub classes: Vec<Class>,
    /// Per lane, how many launches may be in flight.
    pub lane_depths: Vec<u32>,
    /// Most waiting requests; one that arrives beyond is shed.
    pub max_queue: usize,
    /// Launches run on the thread of the driver: none does while it decides, answers and takes requests
    /// in.
    pub is_in_place: bool,
    /// Emit [`super::Action::Note`].
    pub notes: bool,
    /// Emit [`super::Note::Decide`] for every decision; costs far more than deciding.
    pub reasons: bool,
}

impl CoreConfig {
    /// One class, one lane of depth 1, an unbounded queue, a device beside the driver, no notes.
    pub fn new(models: Vec<ModelSpec>) -> Self {
        Self {
            models,
            classes: vec![Class::default()],
            lane_depths: vec![1],
            max_queue: usize::MAX,
            is_in_place: false,
            notes: false,
            reasons: false,
        }
    }
}
