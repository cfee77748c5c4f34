//! `lazybatch profile`.

use lazybatch_engine::measure::{self, Measured, SegmentLength};
use lazybatch_sla::Profile;
use lazybatch_workloads::devices;
use lazybatch_workloads::lengths::Lengths;
use serde_json::Value;

use super::dry;
use crate::args::{CpuArgs, ProfileArgs};
use crate::failure::BadInput;
use crate::models::{self, DeviceKind, Model};
use crate::output::{self, Files};
use crate::progress;

/// Runs the command.
pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    Files::default().writes("--out", Some(&args.out)).check()?;
    let kind = match args.device.as_str() {
        "cpu" => Some(DeviceKind::Cpu),
        name => DeviceKind::cuda(name),
    };
    let Some(kind) = kind else {
        return run_computed(args);
    };
    kind.check(&args.cpu)?;
    let emulator = kind.is_emulated(args.dry, "--dry")?;
    let model = Model::load(&args.model)?;
    let length = args
        .segment_us
        .map_or(SegmentLength::ByDevice, SegmentLength::Us);
    let bar = progress::spinner(&format!("profile {}", model.name));
    let measured = measure(
        &model,
        (kind, &args.cpu),
        args.max_batch,
        length,
        args.seed,
        args.dry,
    );
    bar.finish_and_clear();
    let measured = measured?;
    let dispatch = measured.dispatch;
    let profile = measured.into_profile();
    if args.dry {
        let blocks = &profile.models[0].blocks;
        let segments = blocks
            .iter()
            .map(|b| (b.name.clone(), b.nodes.len().into()));
        let mut file = dry::file("profile", &profile.device, emulator, &args.model);
        file.insert("segments".into(), Value::Object(segments.collect()));
        if let DeviceKind::Cuda(_) = kind {
            let products = args.cpu.products.unwrap_or_default();
            file.insert("products".into(), products.to_string().into());
        }
        return dry::write("--out", &args.out, file);
    }
    output::write("--out", &args.out, &profile.to_json())?;
    summary(args, &profile, "segments")?;
    let Some(dispatch) = dispatch else {
        return Ok(());
    };
    output::line(format_args!(
        "issuing a launch takes {:.1} us, at most {:.1} % of a segment where a block has several",
        dispatch.launch_us,
        100.0 * dispatch.largest_share
    ))
}

/// Writes the profile of a device model.
fn run_computed(args: &ProfileArgs) -> anyhow::Result<()> {
    args.cpu.expect_none("is computed")?;
    if args.max_batch != devices::MAX_BATCH {
        let what = format!("--max-batch: expected {} for a device", devices::MAX_BATCH);
        let got = args.max_batch;
        return Err(BadInput(format!("{what} that is computed, got {got}")).into());
    }
    if let Some(us) = args.segment_us {
        let expected = "--segment-us: expected none for a device that is computed";
        return Err(BadInput(format!("{expected}, got {us}")).into());
    }
    if args.dry {
        let expected = "--dry: expected a device that is measured";
        return Err(BadInput(format!("{expected}, got {}", args.device)).into());
    }
    let profile = computed(&args.device, &args.model)?;
    output::write("--out", &args.out, &profile.to_json())?;
    summary(args, &profile, "nodes")
}

fn summary(args: &ProfileArgs, profile: &Profile, entries: &str) -> anyhow::Result<()> {
    let nodes: usize = profile.models[0].blocks.iter().map(|b| b.nodes.len()).sum();
    output::line(format_args!(
        "{}: {} on {}, {nodes} {entries}",
        args.out.display(),
        args.model,
        profile.device
    ))
}

/// The profile of a device model: nothing is measured.
pub fn computed(device: &str, model: &str) -> anyhow::Result<Profile> {
    let names: Vec<_> = devices::names().filter(|n| *n != "cpu").collect();
    let (device, overheads) = devices::parse(device).map_err(|_| {
        let names = names.join(", ");
        let got = match device {
            "sim" => "sim, which takes its latencies from a profile".to_string(),
            _ => device.to_string(),
        };
        BadInput(format!(
            "--device: expected cpu, cuda, cuda:N, {names}, or one of the computed ones with :free, got {got}"
        ))
    })?;
    models::device_profile(device, model, overheads)
}

/// Requests that a model is measured with, and in a dry run.
const POOL: (usize, usize) = (64, 2);

/// Seed of those where none is stated.
pub const SEED: u64 = 7;

/// Measures a model on a device that computes, with inputs of that seed; a dry run does it with few
/// requests.
pub fn measure(
    model: &Model,
    (kind, cpu): (DeviceKind, &CpuArgs),
    max_batch: u32,
    length: SegmentLength,
    seed: u64,
    is_dry: bool,
) -> anyhow::Result<Measured> {
    let mut device = models::device(kind, cpu)?;
    let lengths = Lengths::load(&model.lengths)?;
    let pool = model.pool(if is_dry { POOL.1 } else { POOL.0 }, seed)?;
    let measured = measure::measure(device.as_mut(), &model.program, &pool, max_batch, length);
    let mut measured = measured.map_err(|e| model.blame(e))?;
    for remark in device.remarks() {
        output::aside(format_args!("lazybatch: {}: {remark}", model.name));
    }
    measured.profile.name = model.name.clone();
    measured.profile.sla_ms = Some(model.sla.as_ms());
    measured.profile.output_len_p90 = model
        .max_output_len
        .map(|max| lengths.output_p90().min(max));
    Ok(measured)
}
