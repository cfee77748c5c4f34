//! Options of the CUDA device.

use std::path::PathBuf;

use lazybatch_kernels::KernelRegistry;
use lazybatch_kernels::cpu::WeightType;

use crate::jit;
use crate::kernels::Stored;

/// How a [`CudaDevice`](crate::CudaDevice) is set up. All memory is taken when the device is made or
/// a model is loaded; what has no room is refused.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Which GPU, in the driver's order.
    pub ordinal: u32,
    /// How the weights of products are stored; arithmetic is in f32. Default: f32, as they are.
    pub weights: WeightType,
    /// Products by this crate's own kernels, whose results do not depend on the batch. Else by
    /// cuBLASLt. Default: true.
    pub deterministic: bool,
    /// Own products with weights of `f16` or `bf16`, and attention within members and convolutions
    /// beside them, by matrix instructions: activations are rounded to the type of the weights, and
    /// results do not depend on the batch either. Default: false.
    pub tensor_cores: bool,
    /// Folder in which compiled kernels are kept. Default: in the user's cache folder.
    pub kernel_cache: Option<PathBuf>,
    /// Bytes of device memory for the values of sub-batches. Default: 0, which stands for an
    /// eighth of what is free, at most 1 GiB.
    pub arena_bytes: usize,
    /// Most bytes of device memory for states, per model. Default: 0, which stands for a
    /// quarter of what is free, at most 2 GiB.
    pub state_bytes: usize,
    /// Bytes of page-locked memory for the inputs and outputs of open requests.
    pub host_bytes: usize,
    /// Bytes of tables (rows, positions, pages) of one launch.
    pub table_bytes: usize,
    /// Most open requests of one model; memory bounds them further.
    pub max_open: usize,
    /// Most launches in flight.
    pub depth: usize,
    /// Run launches that come again as CUDA graphs; results have the same bits. Default: true.
    pub graphs: bool,
    /// Most graphs that are kept, and most records of launches without one. Default: 4096.
    pub max_graphs: usize,
    /// How often a launch is run kernel by kernel before it is captured. Default: once, so that what
    /// never comes again is not captured.
    pub eager_first: u32,
    /// Most members of launches that are captured when their segment is prepared, ahead of the first
    /// of them. Default: 16; 0 for none.
    pub warm_members: usize,
    /// Kernels of custom nodes; they run on the host.
    pub registry: KernelRegistry,
    /// Fill memory with NaN before a node writes it, for tests.
    pub poison: bool,
    /// Keep what each launch took on the device, for
    /// [`CudaDevice::take_times`](crate::CudaDevice::take_times). Default: false.
    pub times: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            ordinal: 0,
            weights: WeightType::default(),
            deterministic: true,
            tensor_cores: false,
            kernel_cache: jit::default_folder(),
            arena_bytes: 0,
            state_bytes: 0,
            host_bytes: 256 << 20,
            table_bytes: 4 << 20,
            max_open: 256,
            depth: 4,
            graphs: true,
            max_graphs: 4096,
            eager_first: 1,
            warm_members: 16,
            registry: KernelRegistry::new(),
            poison: false,
            times: false,
        }
    }
}

impl CudaOptions {
    /// The type to which matrix instructions have their operands rounded, where they are used.
    pub(crate) fn matrix(&self) -> Option<Stored> {
        let used = self.deterministic && self.tensor_cores;
        match self.weights {
            WeightType::F16 if used => Some(Stored::F16),
            WeightType::Bf16 if used => Some(Stored::Bf16),
            _ => None,
        }
    }
}
