//! A CPU, from measured profiles.
//!
//! Measured by `lazybatch profile --model M --device cpu`, one file per model under
//! `workloads/profiles`; its README says which CPU and how calm it was. Entries are segments of at
//! least 50 microseconds at batch 1. The cost of launches and merge copies is in the measured times,
//! so the variant without overheads has the same tables.

use lazybatch_sla::Profile;
use lazybatch_sla::profile::ModelProfile;

use super::{DeviceModel, Machine};
use crate::error::{Error, Result};

/// The measured profiles.
const PROFILES: &[&str] = &[
    include_str!("../../profiles/cpu-phonemes.json"),
    include_str!("../../profiles/cpu-transformer.json"),
    include_str!("../../profiles/cpu-gnmt-small.json"),
    include_str!("../../profiles/cpu-resnet50.json"),
    include_str!("../../profiles/cpu-mobilenet-v1.json"),
    include_str!("../../profiles/cpu-bert-base.json"),
    include_str!("../../profiles/cpu-transformer-tiny.json"),
    include_str!("../../profiles/cpu-bert-tiny.json"),
    include_str!("../../profiles/cpu-cnn-tiny.json"),
];

/// The device.
pub(super) const DEVICE: DeviceModel = DeviceModel {
    name: "cpu",
    device: "cpu-avx512-2t",
    about: "a CPU, measured: see workloads/profiles",
    machine: Machine::Measured(PROFILES),
    dispatch_us: 0.0,
    copy_gbps: 0.0,
};

/// The measured profile of `model`.
pub(super) fn measured(documents: &[&str], model: &str) -> Result<ModelProfile> {
    let mut names = Vec::new();
    for document in documents {
        let profile = Profile::parse("measured profile", document)
            .map_err(|e| Error::parameter(e.place, e.expected, e.got))?;
        for measured in profile.models {
            if measured.name == model {
                return Ok(measured);
            }
            names.push(measured.name);
        }
    }
    let expected = format!("one that was measured: {}", names.join(", "));
    Err(Error::parameter("model", expected, model))
}
