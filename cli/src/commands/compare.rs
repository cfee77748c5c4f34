//! `lazybatch compare`: the same arrivals under several policies, in real time.

use std::time::Duration;

use anyhow::Context;
use lazybatch_engine::ModelOptions;
use lazybatch_graph::Tensor;
use lazybatch_sla::{Nanos, Profile, Time};
use lazybatch_workloads::arrivals::{Arrival, Limit, Process, Stream, Workload, transform};
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::experiment::{Call, Served, Serving, words};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::report::{Body, Report, RunReport};
use lazybatch_workloads::results::summary::completed_latencies;
use lazybatch_workloads::results::{Results, RunResult};
use lazybatch_workloads::traces::{self, arrivals_csv};

use super::profile::{measure, measured_profile};
use super::{PolicyRun, emit, suffixed};
use crate::args::{CompareArgs, OutputArgs};
use crate::failure::BadInput;
use crate::models::{self, DEFAULT_SEGMENT_US, Model};
use crate::progress;

/// Items that arrivals draw from.
const POOL: usize = 256;
/// Share of the measured capacity that is the default rate.
const DEFAULT_LOAD: f64 = 0.6;

/// Runs the command.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    models::check_device(&args.device)?;
    for policy in &args.policies {
        lazybatch_engine::policy::find(policy)?;
    }
    for (name, value) in [("--duration", args.duration), ("--drain", args.drain)] {
        if !(value.is_finite() && value > 0.0) {
            return Err(BadInput(format!("{name}: expected seconds > 0, got {value}")).into());
        }
    }
    let model = Model::load(&args.model)?;
    let bar = progress::bar(3 + args.policies.len() as u64, "compare");
    bar.enable_steady_tick(Duration::from_millis(200));
    let (profile, options) = prepare(args, &model)?;
    bar.inc(1);
    let pool = model.pool(POOL, args.seed)?;
    let sla = args.sla_ms.map_or(model.entry.sla, Nanos::from_ms_f64);
    let device = || Ok(models::cpu(args.threads));
    let mut serving = Serving {
        model: model.entry.name,
        program: model.program.clone(),
        options,
        device: &device,
        pool: &pool,
        output_lens: None,
        sla,
        drain: Nanos::from_ms_f64(args.drain * 1e3),
        timing: args.output.timing,
        trace: false,
    };
    let alone = serving.serial_pass()?;
    let steps = alone.steps.clone();
    serving.output_lens = Some(&steps);
    bar.inc(1);
    let capacity = serving.capacity("greedy")?;
    bar.inc(1);
    let (calls, rate) = calls(args, &model, &pool, capacity)?;
    if let Some(path) = &args.arrivals_out {
        arrivals_csv::save(path, &arrivals_of(&model, &pool, &steps, &calls))?;
    }
    let mut results = Results::new("compare", args.seed, &profile.device);
    let mut runs = Vec::new();
    let mut answers = Vec::new();
    serving.trace = args.trace_out.is_some();
    for policy in &args.policies {
        bar.set_message(policy.clone());
        let served = serving
            .run(policy, &calls)
            .with_context(|| format!("policy {policy}"))?;
        results.runs.push(RunResult::summarise(
            policy.as_str(),
            model.entry.name,
            rate,
            sla,
            &served.requests,
            &served.counters,
        ));
        if let (Some(path), Some(trace)) = (&args.trace_out, &served.trace) {
            std::fs::write(suffixed(path, policy, "json"), trace)?;
        }
        answers.push(Answers::judge(&model, &pool, &calls, &alone, &served));
        runs.push(PolicyRun {
            policy: policy.clone(),
            requests: served.requests,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let settings = settings(args, &profile, rate, capacity, calls.len(), sla);
    println!(
        "{}",
        settings
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    emit(&results, &runs, &args.output)?;
    let lines: Vec<String> = args
        .policies
        .iter()
        .zip(&answers)
        .map(|(p, a)| a.line(p))
        .collect();
    println!("{}", lines.join("\n"));
    let section = ("Answers".to_string(), Body::Pre(lines.join("\n")));
    let mut output_args = OutputArgs {
        json: None,
        report: args.output.report.clone(),
        requests_csv: None,
        timing: args.output.timing,
    };
    let default = std::path::PathBuf::from("lazybatch-compare.html");
    let path = output_args.report.get_or_insert(default).clone();
    report(&results, &runs, &output_args, &settings, vec![section])?;
    println!("report: {}", path.display());
    Ok(())
}

/// The profile to schedule by, and what the engine takes of it.
fn prepare(args: &CompareArgs, model: &Model) -> anyhow::Result<(Profile, ModelOptions)> {
    let profile = match &args.profile {
        Some(path) => {
            let mut profile = Profile::read(path)?;
            profile.models.retain(|m| m.name == model.entry.name);
            if profile.models.is_empty() {
                let expected = format!("expected model {}", model.entry.name);
                return Err(BadInput(format!("{}: {expected}", path.display())).into());
            }
            profile
        }
        None => measured_profile(measure(
            model,
            args.threads,
            args.max_batch,
            DEFAULT_SEGMENT_US,
        )?),
    };
    if let Some(path) = &args.profile_out {
        std::fs::write(path, profile.to_json())
            .map_err(|e| BadInput(format!("{}: {e}", path.display())))?;
    }
    let options = ModelOptions {
        profile: profile.models.first().cloned(),
        max_batch: Some(args.max_batch),
        ..ModelOptions::default()
    };
    Ok((profile, options))
}

/// Arrivals as calls on the pool, and their rate.
fn calls(
    args: &CompareArgs,
    model: &Model,
    pool: &[Item],
    capacity: f64,
) -> anyhow::Result<(Vec<Call>, f64)> {
    let limit = Nanos::from_ms_f64(args.duration * 1e3);
    if let Some(path) = &args.trace {
        let options = traces::Options {
            model: Some(model.entry.name.into()),
            ..Default::default()
        };
        let mut arrivals = traces::read(path, &options)?;
        let rate = args.trace_rate.unwrap_or(DEFAULT_LOAD * capacity);
        transform::scale_to_rate(&mut arrivals, rate)?;
        let arrivals = transform::window(&arrivals, Time::ZERO, limit);
        if arrivals.is_empty() {
            return Err(
                BadInput(format!("{}: expected arrivals, got none", path.display())).into(),
            );
        }
        let nearest = |a: &Arrival| {
            let distance = |i: &usize| pool[*i].input_len.abs_diff(a.input_len);
            (0..pool.len())
                .min_by_key(distance)
                .expect("the pool holds items")
        };
        return Ok((
            arrivals
                .iter()
                .map(|a| Call {
                    at: a.at,
                    item: nearest(a),
                })
                .collect(),
            rate,
        ));
    }
    let rate = args.rate.unwrap_or(DEFAULT_LOAD * capacity);
    let stream = Stream::new(
        model.entry.name,
        Process::Poisson { rate_rps: rate },
        Lengths::fixed(1, 1),
    );
    let arrivals = Workload::single(stream, Limit::Duration(limit)).generate(args.seed)?;
    if arrivals.is_empty() {
        let expected = "a rate that gives arrivals within --duration";
        return Err(BadInput(format!("--rate: expected {expected}, got {rate}")).into());
    }
    // Items in seeded order, so that neighbours differ.
    Ok((
        arrivals
            .iter()
            .enumerate()
            .map(|(i, a)| Call {
                at: a.at,
                item: (i * 7919 + 13) % pool.len(),
            })
            .collect(),
        rate,
    ))
}

fn arrivals_of(model: &Model, pool: &[Item], steps: &[u32], calls: &[Call]) -> Vec<Arrival> {
    calls
        .iter()
        .map(|c| {
            Arrival::new(
                c.at,
                model.entry.name,
                pool[c.item].input_len,
                steps[c.item],
            )
        })
        .collect()
}

/// Whether the answers were right.
struct Answers {
    completed: usize,
    identical: usize,
    correct: Option<usize>,
}

impl Answers {
    /// Compares answers with those of the serial pass, bit for bit, and words with the dictionary.
    fn judge(
        model: &Model,
        pool: &[Item],
        calls: &[Call],
        alone: &Served,
        served: &Served,
    ) -> Self {
        let same = |a: &[Tensor], b: &[Tensor]| {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| a.dims == b.dims && a.data.as_slice() == b.data.as_slice())
        };
        let accepted: std::collections::HashMap<_, _> =
            words::all().into_iter().map(|w| (w.spelling, w)).collect();
        let mut answers = Self {
            completed: 0,
            identical: 0,
            correct: model.reads_words().then_some(0),
        };
        for (call, outputs) in calls.iter().zip(&served.outputs) {
            let Some(outputs) = outputs else { continue };
            answers.completed += 1;
            let reference = alone.outputs[call.item].as_deref().unwrap_or(&[]);
            answers.identical += usize::from(same(outputs, reference));
            if let (Some(correct), Some(text)) = (&mut answers.correct, &pool[call.item].text) {
                let word = accepted.get(text.as_str());
                *correct += usize::from(word.is_some_and(|w| w.accepts(&words::answer(outputs))));
            }
        }
        answers
    }

    fn line(&self, policy: &str) -> String {
        let mut line = format!(
            "{policy}: {} of {} answers bit-identical to those alone",
            self.identical, self.completed
        );
        if let Some(correct) = self.correct {
            let share = 100.0 * correct as f64 / self.completed.max(1) as f64;
            line.push_str(&format!(", {share:.2} % of words right"));
        }
        line
    }
}

fn settings(
    args: &CompareArgs,
    profile: &Profile,
    rate: f64,
    capacity: f64,
    requests: usize,
    sla: Nanos,
) -> Vec<(String, String)> {
    let load = format!(
        "{:.0} requests/s ({:.0} % of {capacity:.0}/s)",
        rate,
        100.0 * rate / capacity
    );
    vec![
        ("model".into(), args.model.clone()),
        ("device".into(), profile.device.clone()),
        ("load".into(), load),
        ("requests".into(), requests.to_string()),
        ("SLA".into(), format!("{} ms", sla.as_ms())),
        ("max batch".into(), args.max_batch.to_string()),
        ("seed".into(), args.seed.to_string()),
    ]
}

/// Writes the HTML report if one is asked for.
pub fn report(
    results: &Results,
    runs: &[PolicyRun],
    output: &OutputArgs,
    settings: &[(String, String)],
    sections: Vec<(String, Body)>,
) -> anyhow::Result<()> {
    let Some(path) = &output.report else {
        return Ok(());
    };
    let latencies = |r: &PolicyRun| {
        completed_latencies(&r.requests)
            .into_iter()
            .map(|n| n.0)
            .collect()
    };
    let report = Report {
        title: format!("lazybatch {}", results.command),
        settings: settings.to_vec(),
        runs: results
            .runs
            .iter()
            .zip(runs)
            .map(|(result, run)| RunReport {
                result: result.clone(),
                latencies_ns: latencies(run),
            })
            .collect(),
        sections,
    };
    Ok(report.write(path)?)
}
