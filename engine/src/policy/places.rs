//! Where the requests in flight stand, for plans: these begin with the batch table as it is.

use lazybatch_graph::Repeat;
use lazybatch_sla::RequestId;
use rustc_hash::FxHashMap;

use crate::core::{Place, View};

/// Places of all requests in the batch table.
pub(super) struct Places(FxHashMap<RequestId, (Place, u32)>);

impl Places {
    pub fn new(view: &View<'_>) -> Self {
        let mut places = FxHashMap::default();
        for (sub_batch, entry) in (0..).zip(view.table().iter()) {
            let block = &view.model(entry.model).blocks[entry.block as usize];
            let is_decoder = matches!(block.repeat, Repeat::UntilStop { .. });
            for member in view.members(entry) {
                let step = entry.padded.map_or(member.step, |p| p.step);
                let place = Place {
                    sub_batch,
                    block: entry.block,
                    segment: entry.segment,
                    step,
                };
                let ran = if is_decoder { step } else { 0 };
                places.insert(member.request.id, (place, ran));
            }
        }
        Self(places)
    }

    /// Of a request; `None` where it is not in the batch table.
    pub fn of(&self, id: RequestId) -> Option<Place> {
        self.0.get(&id).map(|p| p.0)
    }

    /// Passes that a request has run of the loop until the output stops that it is in.
    pub fn ran(&self, id: RequestId) -> u32 {
        self.0.get(&id).map_or(0, |p| p.1)
    }
}
