//! Models that the command line can name, and devices.

use std::sync::Arc;

use lazybatch_graph::SharedProgram;
use lazybatch_kernels::Device;
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_workloads::experiment::inputs::{self, Item};
use lazybatch_workloads::experiment::words;
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::zoo;

use crate::args::CpuArgs;
use crate::failure::BadInput;

/// Shortest segment, in microseconds at batch 1: dispatch and a decision are a few percent of it.
pub const DEFAULT_SEGMENT_US: f64 = 50.0;

/// Most requests of one launch where nothing else is said.
pub const DEFAULT_MAX_BATCH: u32 = 64;

/// A model by name.
pub struct Model {
    /// Its line in the zoo.
    pub entry: &'static zoo::Entry,
    /// Its program, optimized.
    pub program: SharedProgram,
}

impl Model {
    /// Builds the model called `name`.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        let entry = zoo::find(name).ok_or_else(|| {
            let names: Vec<_> = zoo::names().collect();
            BadInput(format!(
                "--model: expected one of {}, got {name}",
                names.join(", ")
            ))
        })?;
        Ok(Self {
            entry,
            program: Arc::new(entry.program()?),
        })
    }

    /// Whether requests are words to be spelled out.
    pub fn reads_words(&self) -> bool {
        self.entry.name == words::MODEL
    }

    /// `num` items that requests draw from.
    pub fn pool(&self, num: usize, seed: u64) -> anyhow::Result<Vec<Item>> {
        if self.reads_words() {
            return Ok(words::pool(num, seed));
        }
        let lengths = Lengths::load(self.entry.lengths)?;
        Ok(inputs::synthetic(&self.program, &lengths, num, seed))
    }
}

/// Devices of this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The embedded CPU device.
    Cpu,
    /// A simulated one: computes nothing, takes the time that a profile says.
    Sim,
}

impl DeviceKind {
    /// The device that `--device` names.
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        let got = match name {
            "cpu" => return Ok(Self::Cpu),
            "sim" => return Ok(Self::Sim),
            _ if name == "cuda" || name.starts_with("cuda:") => {
                format!("{name}: this build has no CUDA device")
            }
            _ => name.to_string(),
        };
        Err(BadInput(format!("--device: expected cpu or sim, got {got}")).into())
    }
}

/// The embedded device.
pub fn cpu(args: CpuArgs) -> Box<dyn Device> {
    let defaults = CpuOptions::default();
    let threads = args.threads.unwrap_or(defaults.threads).max(1);
    Box::new(CpuDevice::new(CpuOptions {
        threads,
        weights: args.weights.unwrap_or_default(),
        ..defaults
    }))
}
