//! Where the weights of nodes are: the hook for those who load models while others run.

use lazybatch_graph::NodeId;
use lazybatch_sla::ModelId;

use super::CudaDevice;

/// Where the weights of a node are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// In device memory, as are those of nodes without weights.
    Resident,
    /// On their way there. Launches of the node may be asked for: they run behind the copies.
    InFlight,
    /// On the host alone: the model is not loaded, or the node runs on the host.
    Host,
}

impl CudaDevice {
    /// Where the weights of a node of a model are just now.
    pub fn residency(&self, model: ModelId, node: NodeId) -> Residency {
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
}
