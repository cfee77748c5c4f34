//! `lazybatch profile`.

use lazybatch_sla::Profile;
use lazybatch_sla::profile::FORMAT;
use lazybatch_workloads::experiment::measure::{self, Measured};
use lazybatch_workloads::lengths::Lengths;

use crate::args::ProfileArgs;
use crate::failure::BadInput;
use crate::models::{self, DeviceKind, Model};
use crate::output;

/// Runs the command.
pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    if DeviceKind::parse(&args.device)? == DeviceKind::Sim {
        let got = "sim, which takes its latencies from a profile";
        return Err(BadInput(format!("--device: expected cpu, got {got}")).into());
    }
    output::check([("--out", Some(args.out.as_path()))])?;
    let model = Model::load(&args.model)?;
    let measured = measure(&model, args.threads, args.max_batch, args.segment_us)?;
    let profile = measured_profile(measured);
    output::write("--out", &args.out, &profile.to_json())?;
    let nodes: usize = profile.models[0].blocks.iter().map(|b| b.nodes.len()).sum();
    output::line(format_args!(
        "{}: {} on {}, {nodes} segments",
        args.out.display(),
        args.model,
        profile.device
    ))
}

/// Measures a model on the embedded device.
pub fn measure(
    model: &Model,
    threads: Option<usize>,
    max_batch: u32,
    segment_us: f64,
) -> anyhow::Result<Measured> {
    let mut device = models::cpu(threads);
    let lengths = Lengths::load(model.entry.lengths)?;
    let pool = model.pool(64, 7)?;
    let mut measured = measure::measure(
        device.as_mut(),
        &model.program,
        &pool,
        max_batch,
        segment_us,
    )?;
    measured.profile.name = model.entry.name.to_string();
    measured.profile.sla_ms = Some(model.entry.sla.as_ms());
    measured.profile.output_len_p90 = model
        .entry
        .max_output_len
        .map(|max| lengths.output_p90().min(max));
    Ok(measured)
}

/// The profile file of one measured model.
pub fn measured_profile(measured: Measured) -> Profile {
    Profile {
        format: FORMAT.into(),
        device: measured.device,
        copy_gbps: 0.0,
        dispatch_us: 0.0,
        models: vec![measured.profile],
    }
}
