//! Models that the command line can name, and devices.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lazybatch_cuda::{Context, CudaDevice, CudaOptions, probe};
use lazybatch_graph::{Repeat, SharedProgram, folder};
use lazybatch_kernels::Device;
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions, WeightType};
use lazybatch_sla::{Nanos, Profile};
use lazybatch_workloads::devices::{self, DeviceModel};
use lazybatch_workloads::experiment::inputs::{self, Item};
use lazybatch_workloads::experiment::words;
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::text::Text;
use lazybatch_workloads::zoo;

use crate::args::CpuArgs;
use crate::failure::{self, BadInput};
use crate::output;

/// Most requests of one launch where nothing else is said.
pub const DEFAULT_MAX_BATCH: u32 = 64;

/// SLA target of a model folder, in milliseconds.
const FOLDER_SLA_MS: f64 = 100.0;

/// A model by name, or from a folder.
pub struct Model {
    /// Its name.
    pub name: String,
    /// SLA target when none is asked for.
    pub sla: Nanos,
    /// Distribution of lengths when none is asked for, as [`Lengths::load`] reads it.
    pub lengths: String,
    /// Most passes of its `UntilStop` block; `None` for models without one.
    pub max_output_len: Option<u32>,
    /// Its program, optimized.
    pub program: SharedProgram,
    /// Its tokenizer, if it reads text.
    pub text: Option<Text>,
    /// The file of its program, if it is from a folder.
    pub file: Option<PathBuf>,
}

impl Model {
    /// Builds the model of the zoo called `name`, or reads that of the folder `name`.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        if let Some(entry) = zoo::find(name) {
            return Ok(Self {
                name: entry.name.into(),
                sla: entry.sla,
                lengths: entry.lengths.into(),
                max_output_len: entry.max_output_len,
                program: Arc::new(entry.program()?),
                text: None,
                file: None,
            });
        }
        if is_folder(name) {
            let program = folder::load(Path::new(name))?;
            let text = Text::of(&program, Path::new(name))?;
            return Ok(Self {
                text,
                file: Some(Path::new(name).join(folder::PROGRAM_FILE)),
                ..Self::of(Arc::new(program))
            });
        }
        let names: Vec<_> = zoo::names().collect();
        Err(BadInput(format!(
            "--model: expected one of {}, or a model folder, got {name}",
            names.join(", ")
        ))
        .into())
    }

    /// A program that is not of the zoo. Its lengths are those of sentences, if it reads a sequence.
    pub fn of(program: SharedProgram) -> Self {
        let reads_sequence = program.length_input.is_some();
        let steps = program.blocks.iter().find_map(|b| match b.repeat {
            Repeat::UntilStop { max } => Some(max),
            _ => None,
        });
        let lengths = match (reads_sequence, steps) {
            (true, Some(_)) => "translation-short",
            (true, None) => "sentence",
            (false, _) => "fixed:0:0",
        };
        Self {
            name: program.name.clone(),
            sla: Nanos::from_ms_f64(FOLDER_SLA_MS),
            lengths: lengths.into(),
            max_output_len: steps,
            program,
            text: None,
            file: None,
        }
    }

    /// An error, with the file that is at fault where a device or an engine refuses what it holds.
    pub fn blame(&self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error = error.into();
        match &self.file {
            Some(file) if failure::is_of_model(&error) => error.context(file.display().to_string()),
            _ => error,
        }
    }

    /// What experiments take of it.
    pub fn served(&self) -> zoo::Served<'_> {
        zoo::Served {
            name: &self.name,
            program: &self.program,
            sla: self.sla,
            lengths: &self.lengths,
            max_output_len: self.max_output_len,
        }
    }

    /// Whether requests are words to be spelled out.
    pub fn reads_words(&self) -> bool {
        self.name == words::MODEL
    }

    /// `num` items that requests draw from.
    pub fn pool(&self, num: usize, seed: u64) -> anyhow::Result<Vec<Item>> {
        if self.reads_words() {
            return Ok(words::pool(num, seed));
        }
        if let Some(text) = &self.text {
            return Ok(text.pool(num, seed)?);
        }
        let lengths = Lengths::load(&self.lengths)?;
        Ok(inputs::synthetic(&self.program, &lengths, num, seed))
    }
}

/// Name of the program of a model folder, or `name` itself.
pub fn name_of(name: &str) -> anyhow::Result<String> {
    if is_folder(name) {
        return Ok(folder::load(Path::new(name))?.name);
    }
    Ok(name.to_string())
}

/// The profile of a model of the zoo or of a folder on a device model.
pub fn device_profile(
    device: &DeviceModel,
    name: &str,
    overheads: bool,
) -> anyhow::Result<Profile> {
    if is_folder(name) {
        let model = Model::load(name)?;
        return Ok(device.profile_of(&model.served(), overheads)?);
    }
    Ok(device.profile(&[name], overheads)?)
}

/// The profile of a file, or that of a device model and the model `name` where no file has that name.
///
/// # Errors
/// What is neither, a file that is no profile, and no model for a device model.
pub fn profile(path: &Path, name: Option<&str>) -> anyhow::Result<Profile> {
    let of_device = path.to_str().unwrap_or_default();
    match devices::parse(of_device) {
        Ok((device, overheads)) if !path.exists() => {
            let Some(name) = name else {
                let got = format!("none for --profile {of_device}");
                return Err(BadInput(format!("--model: expected a model, got {got}")).into());
            };
            device_profile(device, name, overheads)
        }
        Err(_) if !path.exists() => {
            let names: Vec<_> = devices::names().collect();
            let names = names.join(", ");
            let why = match std::fs::metadata(path) {
                Err(e) => e.to_string(),
                Ok(_) => "no file".into(),
            };
            Err(BadInput(format!(
                "--profile: expected a file, or one of {names} or the same with {}, got {}: {why}",
                devices::FREE,
                path.display()
            ))
            .into())
        }
        _ => Ok(Profile::read(path)?),
    }
}

/// Whether `name` stands for a folder: models of the zoo come first.
fn is_folder(name: &str) -> bool {
    zoo::find(name).is_none() && Path::new(name).is_dir()
}

/// How a GPU multiplies matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Products {
    /// By own kernels: an answer has the same bits in any batch
    #[default]
    Own,
    /// By own kernels with matrix instructions, for weights of f16 or bf16: other bits, and the same
    /// in any batch
    Matrix,
    /// By cuBLASLt: an answer depends on the batch within rounding
    Cublaslt,
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Matrix => "matrix",
            Self::Cublaslt => "cublaslt",
        })
    }
}

impl Products {
    /// Refuses weights that these products do not take.
    fn check(self, weights: WeightType) -> Result<(), BadInput> {
        let is_half = matches!(weights, WeightType::F16 | WeightType::Bf16);
        let expected = match self {
            Self::Matrix if !is_half => "f16 or bf16",
            Self::Cublaslt if !is_half && weights != WeightType::F32 => "f32, f16 or bf16",
            _ => return Ok(()),
        };
        Err(BadInput(format!(
            "--products {self}: expected --weights {expected}, got {weights}"
        )))
    }
}

/// Devices of this binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The embedded CPU device.
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
    /// A simulated one: computes nothing, takes the time that a profile says.
    Sim,
}

impl DeviceKind {
    /// The device that `--device` names.
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        match name {
            "cpu" => return Ok(Self::Cpu),
            "sim" => return Ok(Self::Sim),
            _ => {}
        }
        match Self::cuda(name) {
            Some(cuda) => Ok(cuda),
            None => {
                let expected = "--device: expected cpu, cuda, cuda:N or sim";
                Err(BadInput(format!("{expected}, got {name}")).into())
            }
        }
    }

    /// The GPU that `cuda` or `cuda:N` names.
    pub fn cuda(name: &str) -> Option<Self> {
        let ordinal = match name.strip_prefix("cuda")? {
            "" => 0,
            number => number.strip_prefix(':')?.parse().ok()?,
        };
        Some(Self::Cuda(ordinal))
    }

    /// Whether the device is an emulated GPU, which is not measured: `flag` is that of a run without
    /// measurements, which this one is if `is_dry`.
    pub fn is_emulated(self, is_dry: bool, flag: &str) -> anyhow::Result<bool> {
        let Self::Cuda(ordinal) = self else {
            return Ok(false);
        };
        let found = Context::new(ordinal).and_then(|gpu| Ok((gpu.is_emulator()?, gpu.name()?)));
        let found = found.map_err(|e| BadInput(format!("--device cuda:{ordinal}: {e}")))?;
        match found {
            (true, name) if !is_dry => {
                let expected = format!("expected a GPU to measure, or {flag}");
                Err(BadInput(format!("--device cuda:{ordinal}: {expected}, got {name}")).into())
            }
            (is_emulator, _) => Ok(is_emulator),
        }
    }

    /// Launches in flight: what is asked for, or what the device needs.
    pub fn depth(self, asked: Option<u32>) -> anyhow::Result<u32> {
        match (self, asked) {
            (Self::Cuda(_), asked) => Ok(asked.unwrap_or(2)),
            (Self::Cpu | Self::Sim, None | Some(1)) => Ok(1),
            (Self::Cpu | Self::Sim, Some(depth)) => {
                let expected = "--depth: expected 1 for a device that is no GPU";
                Err(BadInput(format!("{expected}, got {depth}")).into())
            }
        }
    }

    /// Refuses options that the device does not have, and a device that this machine does not have.
    pub fn check(self, args: &CpuArgs) -> anyhow::Result<()> {
        let cache = args.weight_cache.as_ref();
        if let Some(file) = cache.filter(|path| path.exists() && !path.is_dir()) {
            let got = file.display();
            return Err(BadInput(format!("--weight-cache: expected a folder, got {got}")).into());
        }
        match self {
            Self::Cpu => args.expect_no_products("is no GPU")?,
            Self::Sim => args.expect_none("is simulated")?,
            Self::Cuda(_) => {
                let rest = CpuArgs {
                    weights: None,
                    products: None,
                    ..args.clone()
                };
                rest.expect_none("is a GPU")?;
                if args.weights == Some(WeightType::Int8Dynamic) {
                    let expected = "--weights: expected f32, f16, bf16 or int8 for a GPU";
                    return Err(BadInput(format!("{expected}, got int8-dynamic")).into());
                }
                let products = args.products.unwrap_or_default();
                products.check(args.weights.unwrap_or_default())?;
                let found = probe::driver().and_then(|()| probe::nvrtc());
                let found = found.and_then(|()| match products {
                    Products::Cublaslt => probe::cublaslt(),
                    Products::Own | Products::Matrix => Ok(()),
                });
                found.map_err(|e| BadInput(format!("--device: {e}")))?;
            }
        }
        Ok(())
    }
}

/// A device that computes.
pub fn device(kind: DeviceKind, args: &CpuArgs) -> anyhow::Result<Box<dyn Device>> {
    let DeviceKind::Cuda(ordinal) = kind else {
        return Ok(cpu(args));
    };
    let products = args.products.unwrap_or_default();
    let options = CudaOptions {
        ordinal,
        weights: args.weights.unwrap_or_default(),
        deterministic: products != Products::Cublaslt,
        tensor_cores: products == Products::Matrix,
        ..CudaOptions::default()
    };
    let device = CudaDevice::new(options);
    let device = device.map_err(|e| BadInput(format!("--device cuda:{ordinal}: {e}")))?;
    Ok(Box::new(device))
}

/// The embedded device.
pub fn cpu(args: &CpuArgs) -> Box<dyn Device> {
    let defaults = CpuOptions::default();
    let threads = args.threads.unwrap_or(defaults.threads).max(1);
    Box::new(CpuDevice::new(CpuOptions {
        threads,
        weights: args.weights.unwrap_or_default(),
        weight_cache: args.weight_cache.clone(),
        warn: |text| output::aside(format_args!("lazybatch: {text}")),
        ..defaults
    }))
}
