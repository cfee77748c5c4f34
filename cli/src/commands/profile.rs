//! `lazybatch profile`.

use lazybatch_sla::Profile;
use lazybatch_workloads::devices;
use lazybatch_workloads::experiment::measure::{self, Measured};
use lazybatch_workloads::lengths::Lengths;

use crate::args::{CpuArgs, ProfileArgs};
use crate::failure::BadInput;
use crate::models::{self, DeviceKind, Model};
use crate::output;

/// Runs the command.
pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    output::check([("--out", Some(args.out.as_path()))])?;
    let kind = match args.device.as_str() {
        "cpu" => Some(DeviceKind::Cpu),
        name => DeviceKind::cuda(name),
    };
    let profile = if let Some(kind) = kind {
        kind.check(&args.cpu)?;
        let model = Model::load(&args.model)?;
        measure(&model, kind, &args.cpu, args.max_batch, args.segment_us)?.into_profile()
    } else {
        args.cpu.expect_none("is computed")?;
        if args.max_batch != devices::MAX_BATCH {
            let what = format!("--max-batch: expected {} for a device", devices::MAX_BATCH);
            let got = args.max_batch;
            return Err(BadInput(format!("{what} that is computed, got {got}")).into());
        }
        computed(&args.device, &args.model)?
    };
    output::write("--out", &args.out, &profile.to_json())?;
    let nodes: usize = profile.models[0].blocks.iter().map(|b| b.nodes.len()).sum();
    let entries = if kind.is_some() { "segments" } else { "nodes" };
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

/// Measures a model on a device that computes.
pub fn measure(
    model: &Model,
    kind: DeviceKind,
    cpu: &CpuArgs,
    max_batch: u32,
    segment_us: f64,
) -> anyhow::Result<Measured> {
    let mut device = models::device(kind, cpu)?;
    let lengths = Lengths::load(&model.lengths)?;
    let pool = model.pool(64, 7)?;
    let mut measured = measure::measure(
        device.as_mut(),
        &model.program,
        &pool,
        max_batch,
        segment_us,
    )?;
    measured.profile.name = model.name.clone();
    measured.profile.sla_ms = Some(model.sla.as_ms());
    measured.profile.output_len_p90 = model
        .max_output_len
        .map(|max| lengths.output_p90().min(max));
    Ok(measured)
}
