//! `lazybatch simulate`.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use lazybatch_engine::driver::Observer;
use lazybatch_engine::explain::Log;
use lazybatch_engine::timeline::Timeline;
use lazybatch_kernels::Noise;
use lazybatch_sla::profile::{ModelProfile, micros_to_nanos};
use lazybatch_sla::{Nanos, Profile};
use lazybatch_workloads::Error;
use lazybatch_workloads::arrivals::{Arrival, Limit, Process, Stream, Workload, mean_rate};
use lazybatch_workloads::bound::LowerBound;
use lazybatch_workloads::experiment::simulate::DEFAULT_SLA_MS;
use lazybatch_workloads::experiment::{Detail, Simulation};
use lazybatch_workloads::lengths::{self, Lengths};
use lazybatch_workloads::results::{Results, RunResult, common};
use lazybatch_workloads::traces;

use super::{PolicyRun, offer, outputs, report, save, show, suffixed};
use crate::args::SimulateArgs;
use crate::failure::BadInput;
use crate::output::Growing;
use crate::{models, output, progress};

/// Most arrivals that are drawn.
const MAX_ARRIVALS: f64 = 1e7;

/// Runs the command.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let mut profile = models::profile(&args.profile, args.model.as_deref())?;
    if let Some(name) = &args.model {
        let name = &models::name_of(name)?;
        let names: Vec<_> = profile.models.iter().map(|m| m.name.clone()).collect();
        profile.models.retain(|m| m.name == *name);
        if profile.models.is_empty() {
            let expected = names.join(", ");
            return Err(
                BadInput(format!("--model: expected one of {expected}, got {name}")).into(),
            );
        }
    }
    for policy in &args.policies {
        lazybatch_engine::policy::find(policy)?;
    }
    check_outputs(args)?;
    let arrivals = arrivals(args, &profile)?;
    let simulation = Simulation {
        profile: &profile,
        arrivals: &arrivals,
        sla: args.sla_ms.map(Nanos::from_ms_f64),
        classes: &args.classes,
        segment: args.segment,
        decide: Nanos(micros_to_nanos(args.decide_us).expect("arguments are checked")),
        max_queue: usize::MAX,
        noise: Noise {
            seed: args.seed,
            jitter: args.jitter,
            ..Noise::default()
        },
        timing: args.output.timing,
    };
    // Arrivals that do not fit the profile are found before anything is written.
    let fits = simulation.requests(false);
    match &args.arrivals {
        Some(path) => {
            fits.map_err(|e| traces::at_line(path, e))?;
            offer::tell_unnamed(path, &arrivals, &args.classes);
        }
        None => drop(fits.map_err(of_lengths)?),
    }
    let used: Vec<_> = profile
        .models
        .iter()
        .filter(|m| arrivals.iter().any(|a| *a.model == *m.name))
        .collect();
    let names: Vec<_> = used.iter().map(|m| m.name.as_str()).collect();
    let stated = simulation.targets()?;
    let target = |m: &ModelProfile| {
        let own = arrivals.iter().zip(&stated);
        let own = own.filter(|(a, _)| *a.model == *m.name);
        // What all are judged by; else what those go by who state none.
        let one = common(own.map(|(_, sla)| *sla));
        one.unwrap_or_else(|| simulation.sla.or(m.sla()).unwrap_or(default_sla()))
    };
    let sla = used.first().map_or(default_sla(), |m| target(m));
    let mut targets = BTreeMap::new();
    if used.iter().any(|m| target(m) != sla) {
        targets.extend(used.iter().map(|m| (m.name.clone(), target(m).as_ms())));
    }
    let rate = args.rate.or_else(|| mean_rate(&arrivals)).unwrap_or(0.0);
    let mut results = Results::new("simulate", args.seed, &profile.device);
    let mut runs = Vec::new();
    let bar = progress::bar(args.policies.len() as u64, "simulate");
    for policy in &args.policies {
        let of_policy = |path: &PathBuf| suffixed(path, policy, "jsonl");
        let journal_path = args.journal.as_ref().map(of_policy);
        let grown = journal_path
            .as_ref()
            .map(|path| Growing::new("--journal", path));
        let journal = match &grown {
            Some(grown) => Some(Box::new(BufWriter::new(grown.create()?)) as Box<dyn Write>),
            None => None,
        };
        let run = |journal, observer: &mut dyn Observer, detail| {
            let done = simulation.run(policy, journal, observer, detail);
            match (done, &journal_path) {
                // What is written on the way is the journal.
                (Err(error @ Error::Write { .. }), Some(path)) => {
                    Err(error).with_context(|| output::place("--journal", path))
                }
                (done, _) => Ok(done?),
            }
        };
        let mut timeline = Timeline::new(&simulation.config(Detail::Table));
        let done = match &args.explain {
            Some(path) => {
                let path = of_policy(path);
                let explained = Growing::new("--explain", &path);
                let mut log = Log::new(BufWriter::new(explained.create()?));
                let done = run(journal, &mut (&mut log, &mut timeline), Detail::Reasons)?;
                log.finish()
                    .with_context(|| output::place("--explain", &path))?;
                explained.done()?;
                done
            }
            None if args.timeline => run(journal, &mut timeline, Detail::Table)?,
            None => run(journal, &mut (), Detail::Launches)?,
        };
        if let Some(grown) = grown {
            grown.done()?;
        }
        if args.timeline {
            output::line(format_args!("{policy}\n{}", timeline.into_text()))?;
        }
        let mut run = RunResult::summarise(
            policy.as_str(),
            names.join("+"),
            rate,
            sla,
            &done.requests,
            &done.counters,
        );
        run.sla_ms_by_model.clone_from(&targets);
        results.push(run, &done.requests, &stated);
        runs.push(PolicyRun {
            policy: policy.clone(),
            requests: done.requests,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    save(&results, &runs, &args.output)?;
    if let Some(path) = &args.output.report {
        report::write(path, &results, &runs, settings(args), Vec::new())?;
    }
    show(&results)?;
    if args.bound {
        let bound = LowerBound::of(&simulation)?;
        output::line(format_args!(
            "any schedule: mean at least {:.3} ms (alone {:.3} ms), at least {} of {} violated",
            rounded_down(bound.mean_ms),
            rounded_down(bound.alone_ms),
            bound.violations,
            bound.requests
        ))?;
    }
    Ok(())
}

/// What is wrong with a drawn arrival, as a fault of the option that says its length.
fn of_lengths(error: Error) -> anyhow::Error {
    match error {
        Error::Arrival { expected, got, .. } => {
            BadInput(format!("--lengths: expected {expected}, got {got}")).into()
        }
        other => other.into(),
    }
}

/// Whole microseconds, so that three decimals of a bound on milliseconds are no more than it.
fn rounded_down(ms: f64) -> f64 {
    // Nanoseconds, in which bounds are made; those that are whole but for the margin for errors of
    // floating point, 1e-9, are meant.
    let ns = (ms * 1e6 * (1.0 + 1.01e-9)).floor();
    (ns / 1e3).floor() / 1e3
}

fn default_sla() -> Nanos {
    Nanos::from_ms_f64(DEFAULT_SLA_MS)
}

/// Refuses outputs that cannot be written or take another file's place.
fn check_outputs(args: &SimulateArgs) -> anyhow::Result<()> {
    let mut files = outputs(&args.output);
    files
        .reads("--profile", Some(&args.profile))
        .reads("--arrivals", args.arrivals.as_deref())
        .reads("--lengths", args.lengths.as_deref());
    for policy in &args.policies {
        let of_policy = |path: &PathBuf| suffixed(path, policy, "jsonl");
        for (option, path) in [("--journal", &args.journal), ("--explain", &args.explain)] {
            let path = path.as_ref().map(of_policy);
            let partial = path.as_deref().and_then(output::partial);
            files.writes(option, path).writes(option, partial);
        }
    }
    files.check()
}

fn settings(args: &SimulateArgs) -> Vec<(String, String)> {
    let mut settings = vec![("profile".to_string(), args.profile.display().to_string())];
    match (&args.arrivals, args.rate) {
        (Some(path), _) => settings.push(("arrivals".into(), path.display().to_string())),
        (None, rate) => {
            settings.push(("rate".into(), format!("{} requests/s", rate.unwrap_or(0.0))));
            settings.push(("duration".into(), format!("{} s", args.duration)));
        }
    }
    settings.push(("seed".into(), args.seed.to_string()));
    settings
}

fn arrivals(args: &SimulateArgs, profile: &Profile) -> anyhow::Result<Vec<Arrival>> {
    let first = &profile.models[0].name;
    if let Some(path) = &args.arrivals {
        let options = traces::Options {
            model: Some(first.as_str().into()),
            ..Default::default()
        };
        let arrivals = traces::read(path, &options)?;
        if arrivals.is_empty() {
            return Err(
                BadInput(format!("{}: expected arrivals, got none", path.display())).into(),
            );
        }
        return Ok(arrivals);
    }
    let spec = args
        .lengths
        .clone()
        .unwrap_or_else(|| lengths::of_model(first).into());
    let rate_rps = args.rate.unwrap_or_default();
    let stream = Stream::new(
        first.as_str(),
        Process::Poisson { rate_rps },
        Lengths::load(&spec)?,
    );
    let duration = args.duration;
    let expected = rate_rps * duration;
    if expected > MAX_ARRIVALS {
        let most = format!("at most {MAX_ARRIVALS:e} arrivals (--rate x --duration)");
        return Err(BadInput(format!("--rate: expected {most}, got {expected:e}")).into());
    }
    let limit = Limit::Duration(Nanos::from_ms_f64(duration * 1e3));
    let arrivals = Workload::single(stream, limit).generate(args.seed)?;
    if arrivals.is_empty() {
        let got = format!("none at {rate_rps}/s within {duration} s");
        return Err(BadInput(format!("--rate: expected arrivals, got {got}")).into());
    }
    Ok(arrivals)
}

#[cfg(test)]
mod tests {
    use super::rounded_down;

    #[test]
    fn bounds_are_rounded_down_at_the_digits_shown() {
        for (ms, shown) in [
            (0.0, "0.000"),
            (1.001, "1.001"),
            (0.0009996, "0.000"),
            (2.0006, "2.000"),
            (2.000_999_9, "2.000"),
            (0.03 * (1.0 - 1e-9), "0.030"),
            (1234.5678, "1234.567"),
            (90.21, "90.210"),
        ] {
            assert_eq!(format!("{:.3}", rounded_down(ms)), shown, "{ms}");
        }
    }
}
