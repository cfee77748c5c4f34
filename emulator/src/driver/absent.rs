//! Functions that the emulator does not have: they say so, instead of missing.

use super::{Code, api};

api! {
    /// Managed memory.
    fn cuMemAllocManaged() |_driver| { Err(Code::NotSupported) }
    /// Managed memory.
    fn cuMemAdvise_v2() |_driver| { Err(Code::NotSupported) }
    /// Managed memory.
    fn cuMemPrefetchAsync_v2() |_driver| { Err(Code::NotSupported) }
    /// Memory of other interfaces.
    fn cuImportExternalMemory() |_driver| { Err(Code::NotSupported) }
    /// Memory of other interfaces.
    fn cuDestroyExternalMemory() |_driver| { Err(Code::NotSupported) }
    /// Memory of other interfaces.
    fn cuExternalMemoryGetMappedBuffer() |_driver| { Err(Code::NotSupported) }
    /// Clusters of blocks.
    fn cuOccupancyMaxActiveClusters() |_driver| { Err(Code::NotSupported) }
    /// Clusters of blocks.
    fn cuOccupancyMaxPotentialClusterSize() |_driver| { Err(Code::NotSupported) }
}
