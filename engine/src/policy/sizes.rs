//! Batch sizes that are large enough.
//!
//! Where a launch takes a time in proportion to its batch, a full batch brings no throughput and
//! makes everyone wait for all. The *knee* at a share `S` is the smallest batch that reaches `S` of
//! the highest throughput of any batch, by the latency tables, over a whole request of typical
//! lengths.

use lazybatch_sla::ModelId;

use crate::core::{RequestState, View};

/// Knees of the models so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes(Vec<Option<Vec<f64>>>);

impl Sizes {
    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId) {
        if let Some(of_model) = self.0.get_mut(model.index()) {
            *of_model = None;
        }
    }

    /// The knee of a model; `typical` stands for its requests the first time that it is asked.
    pub fn knee(
        &mut self,
        view: &View<'_>,
        model: ModelId,
        typical: &RequestState,
        share: f64,
    ) -> u32 {
        self.0.resize(view.models().len(), None);
        let of_model = self.0[model.index()].get_or_insert_with(|| shares(view, model, typical));
        1 + of_model.iter().position(|&s| s >= share).unwrap_or(0) as u32
    }
}

/// Throughput at each batch size from 1 up, as a share of the highest.
fn shares(view: &View<'_>, model: ModelId, typical: &RequestState) -> Vec<f64> {
    let spec = view.model(model);
    let progress = view.progress(typical, None, spec.output_len_p90);
    let input_len = u64::from(typical.request.input_len);
    let throughput = |n: u32| {
        let took = spec.table.remaining(&progress, n, u64::from(n) * input_len);
        f64::from(n) / took.0.max(1) as f64
    };
    let all: Vec<f64> = (1..=spec.max_batch).map(throughput).collect();
    let most = all.iter().copied().fold(0.0, f64::max);
    all.into_iter().map(|t| t / most).collect()
}
