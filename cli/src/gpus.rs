//! Figures of NVIDIA GPUs by NVML, the management library that comes with their driver. It is loaded
//! when the program runs; where it is not there, there are no figures.

use std::ffi::OsStr;

use lazybatch_serve::{Gpu, Gpus};
use nvml_wrapper::{Device, Nvml};

/// The library as drivers install it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// All GPUs that NVML knows.
struct ByNvml(Nvml);

/// The machine's GPUs; `None` where nobody tells of them, which is logged.
pub fn open() -> Option<Box<dyn Gpus>> {
    match Nvml::builder().lib_path(OsStr::new(LIBRARY)).init() {
        Ok(nvml) => Some(Box::new(ByNvml(nvml))),
        Err(error) => {
            tracing::info!(%error, "there are no figures of GPUs");
            None
        }
    }
}

impl Gpus for ByNvml {
    fn look(&self) -> Vec<Gpu> {
        let num = self.0.device_count().unwrap_or(0);
        let devices = (0..num).filter_map(|at| self.0.device_by_index(at).ok());
        devices.filter_map(|device| told(&device)).collect()
    }
}

/// What a GPU tells; a figure that it does not have is an error of its own.
fn told(device: &Device<'_>) -> Option<Gpu> {
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let memory = device.memory_info().ok();
    Some(Gpu {
        uuid: device.uuid().ok()?,
        utilization: device
            .utilization_rates()
            .ok()
            .map(|u| f64::from(u.gpu) / 100.0),
        memory_total: memory.as_ref().map(|m| m.total),
        memory_used: memory.as_ref().map(|m| m.used),
        power_usage: device.power_usage().ok().map(watts),
        power_limit: device.enforced_power_limit().ok().map(watts),
        energy: device
            .total_energy_consumption()
            .ok()
            .map(|mj| mj as f64 / 1e3),
    })
}
