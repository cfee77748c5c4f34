//! Options of the cpu device.

use std::path::PathBuf;

use super::gemm::WeightType;
use super::level::Level;
use crate::custom::KernelRegistry;

/// How a [`CpuDevice`](super::CpuDevice) is set up.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads, the calling one included. Default: all that the system offers.
    pub threads: usize,
    /// Floating-point operations of a node from which it is spread over threads; smaller ones run
    /// on the calling thread alone.
    pub parallel_flops: usize,
    /// Instructions. Default: the best of this processor.
    pub level: Level,
    /// How the weights of linear layers and recurrent cells are stored. Default: f32, as they are.
    pub weights: WeightType,
    /// Folder in which packed weights are kept from load to load. Default: none, nothing is written.
    pub weight_cache: Option<PathBuf>,
    /// Told what goes wrong with that folder, which never fails a load. Default: nobody.
    pub warn: fn(&str),
    /// Most requests of the greatest length that the sequence states of one model hold at once.
    pub max_open: usize,
    /// Most bytes of sequence states per model; bounds `max_open` further.
    pub state_bytes: usize,
    /// Most bytes that are made ready at load for values of the first launches; larger launches find
    /// theirs when they come.
    pub warm_bytes: usize,
    /// Bytes of a node's operands and results from which members of a launch go through the head of a
    /// block one half after the other, so that values stay in the caches from node to node. It changes
    /// no result. Default: 4 MiB.
    pub part_bytes: usize,
    /// Kernels of custom nodes.
    pub registry: KernelRegistry,
    /// Fill fresh buffers with NaN, for tests.
    pub poison: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            parallel_flops: 200_000,
            level: Level::detect(),
            weights: WeightType::default(),
            weight_cache: None,
            warn: |_| {},
            max_open: 256,
            state_bytes: 2 << 30,
            warm_bytes: 64 << 20,
            part_bytes: 4 << 20,
            registry: KernelRegistry::new(),
            poison: false,
        }
    }
}
