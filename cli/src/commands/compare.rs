//! `lazybatch compare`: the same arrivals under several policies, in real time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use lazybatch_engine::measure::SegmentLength;
use lazybatch_engine::{Engine, ModelOptions};
use lazybatch_kernels::{Device, Noise, SimDevice};
use lazybatch_sla::{LatencyTable, Nanos, Profile, segments_of};
use lazybatch_workloads::devices;
use lazybatch_workloads::experiment::inputs;
use lazybatch_workloads::experiment::{Hosted, Serving};
use lazybatch_workloads::report::Body;
use lazybatch_workloads::results::{Results, RunResult, common, rounds};
use lazybatch_workloads::traces::arrivals_csv;
use serde_json::Value;

use super::answers::{Answers, Rounding};
use super::profile::{SEED, measure};
use super::{PolicyRun, dry, offer, outputs, report, save, show, suffixed};
use crate::args::CompareArgs;
use crate::failure::BadInput;
use crate::models::{self, DEFAULT_MAX_BATCH, DeviceKind, Model};
use crate::output::Growing;
use crate::{output, progress};

/// Items that arrivals draw from.
const POOL: usize = 512;
/// The same in a dry run.
const DRY_POOL: usize = 6;
/// Seconds behind the last arrival of a dry run, which may take what it takes.
const DRY_DRAIN_S: f64 = 600.0;
/// Device model that `sim` stands for where no profile says another.
const SIMULATED: &str = "npu";
/// Where the report goes when nothing else is said.
const DEFAULT_REPORT: &str = "lazybatch-compare.html";
/// Stands over the table of rounds.
const ROUNDS: &str = "Over all rounds, median (least to most); ratios are of runs of one round:";

/// Runs the command.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let kind = DeviceKind::parse(&args.device)?;
    let depth = kind.depth(args.depth)?;
    kind.check(&args.cpu)?;
    let emulator = kind.is_emulated(args.dry, "--dry")?;
    let (pool_size, drain_s) = match args.dry {
        true => (DRY_POOL, args.drain.max(DRY_DRAIN_S)),
        false => (POOL, args.drain),
    };
    let pool_size = args.pool.unwrap_or(pool_size);
    for policy in &args.policies {
        lazybatch_engine::policy::find(policy)?;
    }
    let report_path = report_path(args);
    check_outputs(args, report_path.as_deref())?;
    let model = Model::load(&args.model)?;
    let trace = match &args.trace {
        Some(path) => Some(offer::read_trace(args, path, &model)?),
        None => None,
    };
    let trace = trace.as_deref();
    let offered = match (trace, args.rate) {
        (Some(all), _) => Some(offer::of_trace(args, all)?),
        (None, Some(rate)) => Some((offer::arrivals(args, rate, args.seed)?, rate)),
        (None, None) => None,
    };
    let num_rounds = args.rounds.unwrap_or(1);
    let num_runs = u64::from(num_rounds) * args.policies.len() as u64;
    let bar = progress::bar(3 + num_runs, "compare");
    bar.enable_steady_tick(Duration::from_millis(200));
    let (profile, options) = prepare(args, kind, &model)?;
    bar.inc(1);
    let ran_on = match (kind, &args.profile) {
        (DeviceKind::Cpu | DeviceKind::Cuda(_), Some(_)) => {
            models::device(kind, &args.cpu)?.info().name
        }
        _ => profile.device.clone(),
    };
    // Lengths that inputs are made for.
    let made = match (kind, trace, &offered) {
        (DeviceKind::Sim, Some(_), Some((arrivals, _))) => offer::lens_of(arrivals),
        _ => Vec::new(),
    };
    let (pool, simulated) = match kind {
        DeviceKind::Cpu | DeviceKind::Cuda(_) => (model.pool(pool_size, args.seed)?, None),
        DeviceKind::Sim => {
            let (pool, steps) = match made.is_empty() {
                true => inputs::drawn(&model.served(), pool_size, args.seed)?,
                false => inputs::of_lens(&model.served(), &made, args.seed),
            };
            (pool, Some(steps))
        }
    };
    let of_profile = profile.models[0].sla().unwrap_or(model.sla);
    let sla = args.sla_ms.map_or(of_profile, Nanos::from_ms_f64);
    let device = || match kind {
        DeviceKind::Sim => Ok(simulated_device(&profile)),
        kind => models::device(kind, &args.cpu).map_err(|e| lazybatch_workloads::Error::Run {
            what: "--device".into(),
            why: e.to_string(),
        }),
    };
    let mut serving = Serving {
        models: vec![Hosted {
            name: &model.name,
            program: model.program.clone(),
            options,
        }],
        device: &device,
        pool: &pool,
        output_lens: None,
        sla,
        classes: args.classes.clone(),
        drain: Nanos::from_ms_f64(drain_s * 1e3),
        timing: args.output.timing,
        trace: false,
        keeps_outputs: true,
        is_checked: true,
        depth: Some(depth),
        client: None,
    };
    let alone = match simulated {
        None => Some(serving.serial_pass().map_err(|e| model.blame(e))?),
        Some(_) => None,
    };
    let served_steps = alone.as_ref().map(|a| a.steps.clone());
    let steps = simulated.or(served_steps).unwrap_or_default();
    bar.inc(1);
    let capacity = match alone {
        Some(_) => serving.capacity("greedy")?,
        // What inputs there are is the trace's affair: they may take long.
        None if !made.is_empty() => offer::simulated_capacity(&profile, &model, &pool, &steps)?,
        None => {
            serving.output_lens = Some(&steps);
            serving.capacity("greedy")?
        }
    };
    serving.output_lens = Some(&steps);
    bar.inc(1);
    let (arrivals, rate) = match offered {
        Some(offered) => offered,
        None => {
            let rate = offer::DEFAULT_LOAD * capacity;
            (offer::arrivals(args, rate, args.seed)?, rate)
        }
    };
    let mut calls = offer::calls(args, &arrivals, &pool, &made);
    let num_requests = calls.len();
    if let (Some(path), Some(trace)) = (&args.trace, trace) {
        offer::tell_served(args, path, trace, &arrivals);
        offer::tell_replaced(path, &arrivals, &calls, &pool, &steps);
    }
    if let Some(path) = &args.arrivals_out {
        let offered = offer::arrivals_of(&model, &pool, &steps, &calls, &arrivals);
        arrivals_csv::save(path, &offered).context("--arrivals-out")?;
    }
    let mut targets: Vec<_> = calls.iter().map(|call| serving.target(call)).collect();
    // What all are judged by; else what those go by who state none.
    let told_sla = common(targets.iter().copied()).unwrap_or(sla);
    let mut results = Results::new("compare", args.seed, &ran_on);
    let mut runs = Vec::new();
    let mut judged: Vec<Option<Answers>> = args.policies.iter().map(|_| None).collect();
    let mut remarks = Vec::new();
    let rounding = Rounding::of(&args.cpu);
    serving.trace = args.trace_out.is_some();
    for round in 0..num_rounds {
        if round > 0 && trace.is_none() {
            let seed = args.seed.wrapping_add(u64::from(round));
            let arrivals = offer::arrivals(args, rate, seed)?;
            calls = offer::calls(args, &arrivals, &pool, &made);
            targets = calls.iter().map(|call| serving.target(call)).collect();
        }
        for k in rounds::order(args.policies.len(), round) {
            let policy = &args.policies[k];
            bar.set_message(policy.clone());
            let mut served = serving
                .run(policy, &calls)
                .map_err(|e| model.blame(e))
                .with_context(|| format!("policy {policy}"))?;
            if trace.is_some() {
                // The names of classes that nothing is promised to group the results too.
                for (request, arrival) in served.requests.iter_mut().zip(&arrivals) {
                    request.class.clone_from(&arrival.class);
                }
            }
            let mut run = RunResult::summarise(
                policy.as_str(),
                &model.name,
                rate,
                told_sla,
                &served.requests,
                &served.counters,
            );
            run.round = args.rounds.map(|_| round + 1);
            results.push(run, &served.requests, &targets);
            if let (Some(path), false) = (&args.output.json, args.dry) {
                // What is measured stays, should a later policy not come to its end.
                Growing::new("--json", path).put(&results.to_json())?;
            }
            if let (Some(path), Some(trace)) = (&args.trace_out, &served.trace) {
                output::write("--trace-out", &suffixed(path, policy, "json"), trace)?;
            }
            if let Some(alone) = &alone {
                let of_run = Answers::judge(&model, &pool, &calls, alone, &served, rounding);
                match &mut judged[k] {
                    Some(of_policy) => of_policy.add(&of_run),
                    none => *none = Some(of_run),
                }
            }
            let of_round = args.rounds.map(|_| format!(", round {}", round + 1));
            let of_round = of_round.unwrap_or_default();
            let said = served.remarks.iter();
            remarks.extend(said.map(|said| format!("{policy}{of_round}: {said}")));
            if round == 0 {
                runs.push(PolicyRun {
                    policy: policy.clone(),
                    requests: served.requests,
                });
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let judged: Vec<Answers> = judged.into_iter().flatten().collect();
    let lines = args.policies.iter().zip(&judged);
    let mut answers: Vec<String> = lines.map(|(policy, of)| of.line(policy)).collect();
    if answers.is_empty() {
        answers.push("a simulated device computes no answers".into());
    }
    if args.dry {
        return end_dry(args, &ran_on, emulator, &results, &judged, &answers);
    }
    let max_batch = serving.models[0]
        .options
        .max_batch
        .unwrap_or(DEFAULT_MAX_BATCH);
    let mut settings = settings(
        args,
        &ran_on,
        rate,
        capacity,
        num_requests,
        told_sla,
        max_batch,
    );
    if args.profile.is_some() && kind != DeviceKind::Sim {
        settings.push(("scheduled by a profile of".into(), profile.device.clone()));
    }
    if let DeviceKind::Cuda(_) = kind {
        let products = args.cpu.products.unwrap_or_default();
        settings.push(("products".into(), products.to_string()));
        settings.push(("launches in flight".into(), depth.to_string()));
    }
    if let Some(num) = args.rounds {
        settings.push(("rounds".into(), num.to_string()));
    }
    let pairs: Vec<_> = settings.iter().map(|(k, v)| format!("{k} {v}")).collect();
    let pairs = pairs.join(", ");
    save(&results, &runs, &args.output)?;
    let by_round = args.rounds.and_then(|_| rounds::render(&results.runs));
    let mut written = None;
    if let Some(path) = report_path {
        let mut sections = vec![("Answers".to_string(), Body::Pre(answers.join("\n")))];
        if let Some(table) = &by_round {
            sections.insert(0, (ROUNDS.to_string(), Body::Pre(table.clone())));
        }
        match report::write(&path, &results.first_round(), &runs, settings, sections) {
            Ok(()) => written = Some(path),
            Err(e) if args.output.report.is_none() => no_report(&e),
            Err(e) => return Err(e),
        }
    }
    output::line(pairs)?;
    if let Some(table) = by_round {
        output::line(ROUNDS)?;
        output::text(table)?;
        output::line("Of the first round:")?;
    }
    show(&results.first_round())?;
    output::line(answers.join("\n"))?;
    if !remarks.is_empty() {
        output::line(remarks.join("\n"))?;
    }
    match written {
        Some(path) => output::line(format_args!("report: {}", path.display())),
        None => Ok(()),
    }
}

fn no_report(why: &dyn std::fmt::Display) {
    output::aside(format_args!(
        "lazybatch: no report (--report): {DEFAULT_REPORT}: {why}"
    ));
}

/// Where the report goes. One that nobody has asked for is left out, with a word, where it cannot be
/// written.
fn report_path(args: &CompareArgs) -> Option<PathBuf> {
    if args.dry || args.output.report.is_some() {
        return args.output.report.clone();
    }
    let default = PathBuf::from(DEFAULT_REPORT);
    match output::try_file(&default) {
        Ok(()) => Some(default),
        Err(e) => {
            no_report(&e);
            None
        }
    }
}

/// What a dry run leaves: counts, and whether all answers were right.
fn end_dry(
    args: &CompareArgs,
    device: &str,
    emulator: bool,
    results: &Results,
    judged: &[Answers],
    lines: &[String],
) -> anyhow::Result<()> {
    let of_policy = |(k, run): (usize, &RunResult)| {
        let mut entry = serde_json::json!({
            "policy": run.policy,
            "requests": run.requests,
            "failed": run.failed,
        });
        if let Some(judged) = judged.get(k) {
            entry["completed"] = judged.completed.into();
            entry["identical"] = judged.identical.into();
            if let Some(close) = judged.close {
                entry["close"] = close.into();
            }
        }
        entry
    };
    let runs: Vec<Value> = results.runs.iter().enumerate().map(of_policy).collect();
    let mut file = dry::file("compare", device, emulator, &args.model);
    file.insert("seed".into(), args.seed.into());
    let kind = DeviceKind::parse(&args.device)?;
    if let DeviceKind::Cuda(_) = kind {
        file.insert("depth".into(), kind.depth(args.depth)?.into());
        let products = args.cpu.products.unwrap_or_default();
        file.insert("products".into(), products.to_string().into());
    }
    file.insert("runs".into(), runs.into());
    output::line(lines.join("\n"))?;
    if let Some(path) = &args.output.json {
        dry::write("--json", path, file)?;
    }
    let failed: u64 = results.runs.iter().map(|run| run.failed).sum();
    let answered = |run: &RunResult, a: &Answers| a.right() as u64 == run.requests;
    let pairs = results.runs.iter().zip(judged);
    let wrong = pairs.filter(|(run, a)| !answered(run, a)).count();
    ensure!(
        failed == 0 && wrong == 0,
        "{device}: expected right answers to all, got {failed} failed requests and {wrong} \
         policies with answers that are wrong or missing"
    );
    Ok(())
}

/// Refuses outputs that cannot be written or take another file's place, before minutes of work.
fn check_outputs(args: &CompareArgs, report: Option<&Path>) -> anyhow::Result<()> {
    let mut files = outputs(&args.output);
    files
        .reads("--profile", args.profile.as_deref())
        .reads("--trace", args.trace.as_deref())
        .writes("--profile-out", args.profile_out.as_deref())
        .writes("--arrivals-out", args.arrivals_out.as_deref());
    if args.output.report.is_none() {
        files.writes("--report", report);
    }
    for policy in &args.policies {
        let trace = args.trace_out.as_deref();
        let file = trace.map(|path| suffixed(path, policy, "json"));
        files.writes("--trace-out", file);
    }
    files.check()
}

/// The profile to schedule by, and what the engine takes of it.
fn prepare(
    args: &CompareArgs,
    kind: DeviceKind,
    model: &Model,
) -> anyhow::Result<(Profile, ModelOptions)> {
    let mut profile = match &args.profile {
        Some(path) => {
            let mut profile = models::profile(path, Some(&args.model))?;
            let names: Vec<_> = profile.models.iter().map(|m| m.name.clone()).collect();
            profile.models.retain(|m| m.name == model.name);
            if profile.models.is_empty() {
                let (path, expected) = (path.display(), &model.name);
                let got = names.join(", ");
                return Err(
                    BadInput(format!("{path}: expected the model {expected}, got {got}")).into(),
                );
            }
            profile
        }
        None if kind == DeviceKind::Sim => {
            models::device_profile(devices::find(SIMULATED)?, &args.model, true)?
        }
        None => {
            let max_batch = args.max_batch.unwrap_or(DEFAULT_MAX_BATCH);
            let length = SegmentLength::ByDevice;
            measure(model, (kind, &args.cpu), max_batch, length, SEED, args.dry)?.into_profile()
        }
    };
    let scheduled = &mut profile.models[0];
    scheduled.max_batch = args.max_batch.unwrap_or(scheduled.max_batch);
    let options = ModelOptions {
        max_batch: Some(scheduled.max_batch),
        profile: Some(scheduled.clone()),
        ..ModelOptions::default()
    };
    if let Some(path) = &args.profile {
        // A profile of another program than this model's is the file's fault.
        let name = model.name.as_str();
        let builder = Engine::builder().model(name, model.program.clone(), options.clone());
        builder
            .core_config(1)
            .map_err(|e| BadInput(format!("{}: {e}", path.display())))?;
    }
    if let Some(path) = &args.profile_out {
        output::write("--profile-out", path, &profile.to_json())?;
    }
    Ok((profile, options))
}

/// A device that takes the time that the profile's only model says.
fn simulated_device(profile: &Profile) -> Box<dyn Device> {
    let model = &profile.models[0];
    let segments = segments_of(model, 1);
    let table = LatencyTable::new(model, &segments, profile.dispatch_us, profile.copy_gbps);
    let tables = vec![table.into()];
    Box::new(SimDevice::new(
        &profile.device,
        1,
        tables,
        Nanos::ZERO,
        Noise::default(),
    ))
}

fn settings(
    args: &CompareArgs,
    device: &str,
    rate: f64,
    capacity: f64,
    requests: usize,
    sla: Nanos,
    max_batch: u32,
) -> Vec<(String, String)> {
    let load = format!(
        "{:.0} requests/s ({:.0} % of {capacity:.0}/s)",
        rate,
        100.0 * rate / capacity
    );
    vec![
        ("model".into(), args.model.clone()),
        ("device".into(), device.into()),
        ("load".into(), load),
        ("requests".into(), requests.to_string()),
        ("SLA".into(), format!("{} ms", sla.as_ms())),
        ("max batch".into(), max_batch.to_string()),
        ("seed".into(), args.seed.to_string()),
    ]
}
