//! Where the weights of nodes are, and what they are copied from: for those who load models while
//! others run.

use lazybatch_graph::NodeId;
use lazybatch_kernels::Residency;
use lazybatch_sla::ModelId;

use super::CudaDevice;

impl CudaDevice {
    /// Where the weights of a node of a model are just now.
    pub(super) fn whereabouts(&self, model: ModelId, node: NodeId) -> Residency {
        let Some(resident) = self.models.get(&model) else {
            return Residency::Host;
        };
        match resident.model.host_nodes.get(node.index()) {
            Some(None) => {}
            Some(Some(_)) | None => return Residency::Host,
        }
        let bound = self.context.bind();
        // What is not known to be there counts as on its way.
        match bound.and_then(|()| resident.model.has_arrived(node)) {
            Ok(true) => Residency::Resident,
            Ok(false) | Err(_) => Residency::InFlight,
        }
    }

    /// Bytes of page-locked memory that weights are copied from: given back when the first launch of
    /// their model is over, or the model is unloaded.
    pub fn staging_bytes(&self) -> usize {
        let models = self.models.values();
        models.map(|r| r.model.arrival.staging_bytes()).sum()
    }

    /// Gives that of a model back: a launch of it is over, which came behind all copies.
    pub(super) fn has_launched(&mut self, model: ModelId) {
        if let Some(resident) = self.models.get_mut(&model) {
            resident.model.arrival.give_back();
        }
    }
}
