//! `lazybatch profile`.

use lazybatch_sla::Profile;
use lazybatch_sla::profile::FORMAT;
use lazybatch_workloads::experiment::measure::{self, Measured};
use lazybatch_workloads::lengths::Lengths;

use crate::args::ProfileArgs;
use crate::failure::BadInput;
use crate::models::{self, Model};

/// Runs the command.
pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    models::check_device(&args.device)?;
    let model = Model::load(&args.model)?;
    let measured = measure(&model, args.threads, args.max_batch, args.segment_us)?;
    let profile = measured_profile(measured);
    std::fs::write(&args.out, profile.to_json())
        .map_err(|e| BadInput(format!("{}: {e}", args.out.display())))?;
    let nodes: usize = profile.models[0].blocks.iter().map(|b| b.nodes.len()).sum();
    println!(
        "{}: {} on {}, {nodes} segments",
        args.out.display(),
        args.model,
        profile.device
    );
    Ok(())
}

/// Measures a model on the embedded device.
pub fn measure(
    model: &Model,
    threads: Option<usize>,
    max_batch: u32,
    segment_us: f64,
) -> anyhow::Result<Measured> {
    if max_batch == 0 {
        return Err(BadInput("--max-batch: expected at least 1, got 0".into()).into());
    }
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
