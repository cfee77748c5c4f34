//! Device models: latency profiles of zoo models without the hardware.
//!
//! A [`DeviceModel`] turns models of the [`zoo`] into a `lazybatch-profile/1`. `npu` is
//! computed from the tiling of a systolic array ([`systolic`]), the GPUs from a roofline
//! ([`roofline`]), and `cpu` reads profiles that were measured and committed. Nothing runs and no
//! weights are made: a profile takes milliseconds.
//!
//! What the computed tables say, and what they leave out:
//!
//! - Elements are two bytes wide, token ids four. Activations go through memory between nodes.
//! - A node that only moves or scales elements is charged to the node before it, as a runtime
//!   fuses it; it is no launch of its own (`num_nodes` says how many an entry covers).
//! - Nodes of `once` blocks over a sequence have tables by rows, all others by members. Where a
//!   cost depends on how far a row looks (attention), the lengths are the model's own distribution:
//!   see [`tables`].
//! - The products and bytes of a node are those of [`lazybatch_graph::cost`].
//! - Caches across nodes, clock changes, and how a product is spread over a GPU's cores are left
//!   out.
//!
//! Two variants of each: with the cost of launches and merge copies, and `free`, where both are
//! zero.
//!
//! Adding a device is a file and a line in [`DEVICES`].
//!
//! ```
//! let npu = lazybatch_workloads::devices::find("npu")?;
//! let profile = npu.profile(&["resnet50", "gnmt"], true)?;
//! assert_eq!(profile.models[1].output_len_p90, Some(34));
//! # Ok::<(), lazybatch_workloads::Error>(())
//! ```

mod a100;
mod cpu;
mod h100;
mod h200;
mod npu;
pub mod roofline;
pub mod systolic;
pub mod tables;
mod v100;
pub mod work;

use lazybatch_sla::Profile;
use lazybatch_sla::profile::{FORMAT, ModelProfile};

use crate::error::{Error, Result};
use crate::zoo::{self, Served};
use roofline::Roofline;
use systolic::Systolic;

/// How a device's latencies come about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Machine {
    /// Computed: a systolic array with its memory.
    Systolic(Systolic),
    /// Computed: the larger of arithmetic and traffic.
    Roofline(Roofline),
    /// Measured: `lazybatch-profile/1` documents of one model each.
    Measured(&'static [&'static str]),
}

/// A device that profiles can be made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceModel {
    /// Its name on command lines.
    pub name: &'static str,
    /// Its name in profiles.
    pub device: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// How its latencies come about.
    pub machine: Machine,
    /// Cost of one launch in microseconds, as seen by a scheduler that waits for each.
    pub dispatch_us: f64,
    /// Speed of merge copies in GB/s: each byte is read and written.
    pub copy_gbps: f64,
}

/// All device models.
pub const DEVICES: &[DeviceModel] = &[
    npu::DEVICE,
    v100::DEVICE,
    a100::DEVICE,
    h100::DEVICE,
    h200::DEVICE,
    cpu::DEVICE,
];

/// What is behind a device's name where launches and merges cost nothing.
pub const FREE: &str = ":free";

/// Most samples of one launch in computed profiles. A setting of this project, as LazyBatching's evaluation is reconstructed.
pub const MAX_BATCH: u32 = 64;

/// Names of all device models.
pub fn names() -> impl Iterator<Item = &'static str> {
    DEVICES.iter().map(|d| d.name)
}

/// The device model called `name`.
///
/// # Errors
/// [`Error::Parameter`] with all names.
pub fn find(name: &str) -> Result<&'static DeviceModel> {
    DEVICES.iter().find(|d| d.name == name).ok_or_else(|| {
        let names: Vec<_> = names().collect();
        Error::parameter("device model", format!("one of {}", names.join(", ")), name)
    })
}

/// What a command line names: `npu`, or `npu:free` where overheads are zero. The second result says
/// whether there are overheads.
///
/// # Errors
/// As [`find`].
pub fn parse(spec: &str) -> Result<(&'static DeviceModel, bool)> {
    match spec.strip_suffix(FREE) {
        Some(name) => Ok((find(name)?, false)),
        None => Ok((find(spec)?, true)),
    }
}

impl DeviceModel {
    /// The profile of zoo models on this device, with the cost of launches and merges or with both
    /// zero. SLA targets and predicted output lengths are those of the zoo.
    ///
    /// # Errors
    /// [`Error::Parameter`] for no model, one that the zoo lacks, and one that was not measured on
    /// a device whose profiles are measured.
    pub fn profile(&self, models: &[&str], overheads: bool) -> Result<Profile> {
        let models: Result<Vec<_>> = models.iter().map(|m| self.model(m, overheads)).collect();
        self.with(models?, overheads)
    }

    /// The profile of one model that need not be of the zoo.
    ///
    /// # Errors
    /// [`Error::Parameter`] on a device whose profiles are measured.
    pub fn profile_of(&self, model: &Served<'_>, overheads: bool) -> Result<Profile> {
        self.with(vec![self.price(model, overheads)?], overheads)
    }

    fn with(&self, models: Vec<ModelProfile>, overheads: bool) -> Result<Profile> {
        let free = if overheads { "" } else { FREE };
        let cost = |us: f64| if overheads { us } else { 0.0 };
        let profile = Profile {
            format: FORMAT.into(),
            device: format!("{}{free}", self.device),
            copy_gbps: cost(self.copy_gbps),
            dispatch_us: cost(self.dispatch_us),
            issue_us: 0.0,
            models,
        };
        let checked = profile.check(&format!("device model {}", self.name));
        checked.map_err(|e| Error::parameter(e.place, e.expected, e.got))?;
        Ok(profile)
    }

    fn model(&self, model: &str, overheads: bool) -> Result<ModelProfile> {
        let entry = zoo::find(model).ok_or_else(|| {
            let names: Vec<_> = zoo::names().collect();
            Error::parameter("model", format!("one of {}", names.join(", ")), model)
        })?;
        if let Machine::Measured(documents) = self.machine {
            return cpu::measured(documents, model);
        }
        let program = entry
            .program()
            .map_err(|e| Error::run(format!("model {model}"), e))?;
        self.price(&entry.served(&program), overheads)
    }

    fn price(&self, model: &Served<'_>, overheads: bool) -> Result<ModelProfile> {
        let mut profile = match self.machine {
            Machine::Measured(documents) => return cpu::measured(documents, model.name),
            Machine::Systolic(array) => tables::model(model, |w| array.node_ns(w))?,
            Machine::Roofline(gpu) => tables::model(model, |w| gpu.node_ns(w))?,
        };
        if !overheads {
            let nodes = profile.blocks.iter_mut().flat_map(|b| &mut b.nodes);
            nodes.for_each(|n| n.merge_bytes_per_member = 0.0);
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests;
