//! Figures of the machine's GPUs, under the names that Triton's metrics have for them.

/// What a GPU tells of itself; what it does not is left out of the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Its name among all GPUs, `GPU-...`.
    pub uuid: String,
    /// Part of the time in which it worked, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of its memory.
    pub memory_total: Option<u64>,
    /// Bytes of it that are in use, by whomever.
    pub memory_used: Option<u64>,
    /// Watts that it draws.
    pub power_usage: Option<f64>,
    /// Watts that it may draw.
    pub power_limit: Option<f64>,
    /// Joules that it has taken since its driver was loaded.
    pub energy: Option<f64>,
}

/// Who asks them.
pub trait Gpus: Send + Sync {
    /// All of them, as they are now.
    fn look(&self) -> Vec<Gpu>;
}

/// A figure: its name, what it is, whether it only grows, and its value.
pub(crate) type Figure = (&'static str, &'static str, bool, fn(&Gpu) -> Option<f64>);

/// All figures.
pub(crate) const FIGURES: [Figure; 6] = [
    (
        "nv_gpu_utilization",
        "Part of the time in which the GPU worked, 0 to 1",
        false,
        |gpu| gpu.utilization,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "Memory of the GPU",
        false,
        |gpu| gpu.memory_total.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_memory_used_bytes",
        "Memory of the GPU that is in use",
        false,
        |gpu| gpu.memory_used.map(|bytes| bytes as f64),
    ),
    (
        "nv_gpu_power_usage",
        "Power that the GPU draws, in watts",
        false,
        |gpu| gpu.power_usage,
    ),
    (
        "nv_gpu_power_limit",
        "Power that the GPU may draw, in watts",
        false,
        |gpu| gpu.power_limit,
    ),
    (
        "nv_energy_consumption",
        "Energy that the GPU has taken since its driver was loaded, in joules",
        true,
        |gpu| gpu.energy,
    ),
];
