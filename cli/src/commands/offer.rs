//! What `compare` offers to every policy: items, when each is called, and at which rate.

use std::collections::BTreeSet;
use std::path::Path;

use lazybatch_sla::{Class, Nanos, Profile, Time};
use lazybatch_workloads::Error;
use lazybatch_workloads::arrivals::{
    Arrival, Limit, Process, Stream, Workload, mean_rate, transform,
};
use lazybatch_workloads::experiment::inputs::{self, Item};
use lazybatch_workloads::experiment::{Call, Detail, Simulation};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::traces;

use crate::args::CompareArgs;
use crate::failure::BadInput;
use crate::models::Model;
use crate::output;

/// Share of the measured capacity that is the default rate.
pub const DEFAULT_LOAD: f64 = 0.6;
/// Most arrivals of one run.
const MAX_ARRIVALS: f64 = 1e7;
/// Seconds of arrivals where nothing else is said: of drawn ones and of a trace whose times are scaled, and
/// of one that arrives as it says.
const SECONDS: f64 = 3.0;
const OWN_SECONDS: f64 = 60.0;

/// Seconds of arrivals under each policy.
fn seconds(args: &CompareArgs) -> f64 {
    let has_own_times = args.trace.is_some() && args.trace_rate.is_none();
    args.duration.unwrap_or(match has_own_times {
        true => OWN_SECONDS,
        false => SECONDS,
    })
}

/// Reads a trace and checks that this model can serve it.
///
/// # Errors
/// A file that is no trace, too few arrivals to scale their rate, or such as cannot be served: of another
/// model, of several samples, of a sequence, of an unknown class.
pub fn read_trace(args: &CompareArgs, path: &Path, model: &Model) -> anyhow::Result<Vec<Arrival>> {
    let name = model.name.as_str();
    let options = traces::Options {
        model: Some(name.into()),
        ..Default::default()
    };
    let arrivals = traces::read(path, &options)?;
    let bad = |row: usize, column, expected: &str, got: &str| {
        let (expected, got) = (expected.into(), format!("`{got}`"));
        let error = Error::Arrival {
            row,
            column,
            expected,
            got,
        };
        traces::at_line(path, error)
    };
    for (i, arrival) in arrivals.iter().enumerate() {
        if *arrival.model != *name {
            return Err(bad(i, "model", name, &arrival.model).into());
        }
        if arrival.samples != 1 {
            return Err(bad(i, "samples", "1", &arrival.samples.to_string()).into());
        }
        class_of(args, arrival).map_err(|(expected, got)| bad(i, "class", &expected, got))?;
        if let Some(id) = arrival.sequence_id {
            let expected = "none, as all requests are served apart";
            return Err(bad(i, "sequence_id", expected, &id.to_string()).into());
        }
    }
    if args.trace_rate.is_some() && mean_rate(&arrivals).is_none() {
        let expected = "at least two arrivals at different times";
        let (path, got) = (path.display(), arrivals.len());
        return Err(BadInput(format!("{path}: expected {expected}, got {got} arrivals")).into());
    }
    tell_unnamed(path, &arrivals, &args.classes);
    Ok(arrivals)
}

/// Says which classes (`--class`) no arrival of a file is of.
pub fn tell_unnamed(path: &Path, arrivals: &[Arrival], classes: &[Class]) {
    let is_of = |a: &Arrival, name: &str| a.class.as_deref().unwrap_or("default") == name;
    let unnamed = classes.iter().map(|c| &*c.name);
    let unnamed = unnamed.filter(|name| !arrivals.iter().any(|a| is_of(a, name)));
    for name in unnamed {
        output::aside(format_args!(
            "lazybatch: --class {name}: {} has no arrival of it",
            path.display()
        ));
    }
}

/// Which of a trace arrive when, which no seed changes, and the rate that it comes to.
///
/// # Errors
/// None of them arrives within `--duration`.
pub fn of_trace(args: &CompareArgs, all: &[Arrival]) -> anyhow::Result<(Vec<Arrival>, f64)> {
    let mut arrivals = all.to_vec();
    if let Some(rate) = args.trace_rate {
        transform::scale_to_rate(&mut arrivals, rate)?;
    }
    let limit = Nanos::from_ms_f64(seconds(args) * 1e3);
    let mut arrivals = transform::window(&arrivals, Time::ZERO, limit);
    arrivals.truncate(args.requests.unwrap_or(usize::MAX));
    if arrivals.is_empty() {
        let got = format!("none within {} s", seconds(args));
        return Err(BadInput(format!("--duration: expected arrivals, got {got}")).into());
    }
    // A burst or a lull at the start of a trace is not its mean.
    let offered = mean_rate(&arrivals).or(args.trace_rate).unwrap_or(0.0);
    Ok((arrivals, offered))
}

/// Who arrives at a mean rate, by the seed.
///
/// # Errors
/// A rate that gives no arrivals or far too many.
pub fn arrivals(args: &CompareArgs, rate: f64, seed: u64) -> anyhow::Result<Vec<Arrival>> {
    let seconds = seconds(args);
    if rate * seconds > MAX_ARRIVALS {
        let most = format!("at most {MAX_ARRIVALS:e} arrivals (--rate x --duration)");
        let got = rate * seconds;
        return Err(BadInput(format!("--rate: expected {most}, got {got:e}")).into());
    }
    let process = Process::Poisson { rate_rps: rate };
    let stream = Stream::new(args.model.as_str(), process, Lengths::fixed(1, 1));
    let limit = Limit::Duration(Nanos::from_ms_f64(seconds * 1e3));
    let mut arrivals = Workload::single(stream, limit).generate(seed)?;
    arrivals.truncate(args.requests.unwrap_or(usize::MAX));
    if arrivals.is_empty() {
        let got = format!("none at {rate}/s within {seconds} s");
        return Err(BadInput(format!("--rate: expected arrivals, got {got}")).into());
    }
    Ok(arrivals)
}

/// The lengths that a trace asks for, each once, in order.
pub fn lens_of(arrivals: &[Arrival]) -> Vec<(u32, u32)> {
    let lens: BTreeSet<_> = arrivals.iter().map(inputs::lens).collect();
    lens.into_iter().collect()
}

/// Arrivals as calls on the pool; those of a trace on the inputs whose lengths are the nearest, or on those
/// that were made for them, `made`.
pub fn calls(
    args: &CompareArgs,
    arrivals: &[Arrival],
    pool: &[Item],
    made: &[(u32, u32)],
) -> Vec<Call> {
    let nearest = |a: &Arrival| {
        let distance = |i: &usize| pool[*i].input_len.abs_diff(a.input_len);
        (0..pool.len())
            .min_by_key(distance)
            .expect("the pool holds items")
    };
    let is_trace = args.trace.is_some();
    let call = |(i, a): (usize, &Arrival)| Call {
        at: a.at,
        item: match made.binary_search(&inputs::lens(a)) {
            Ok(item) => item,
            Err(_) if is_trace => nearest(a),
            // In seeded order, so that neighbours differ.
            Err(_) => (i * 7919 + 13) % pool.len(),
        },
        sla: a.sla,
        class: class_of(args, a).expect("the trace has been checked"),
        priority: a.priority,
    };
    arrivals.iter().enumerate().map(call).collect()
}

/// Says how many arrivals of a trace are served, and at which rate, unless its times are served as they are.
pub fn tell_served(args: &CompareArgs, path: &Path, trace: &[Arrival], served: &[Arrival]) {
    let times = |of: &[Arrival]| -> Vec<Time> { of.iter().map(|a| a.at).collect() };
    if times(trace) == times(served) {
        return;
    }
    let (path, num, all) = (path.display(), served.len(), trace.len());
    let which = match args.requests {
        Some(most) if most == num => format!("the first {most} (--requests)"),
        _ => format!("those within {} s (--duration)", seconds(args)),
    };
    let scaled = args.trace_rate.and(mean_rate(trace)).zip(mean_rate(served));
    let scaled = scaled.map_or(String::new(), |(own, rate)| {
        format!(", from time 0 on at {rate:.4} requests/s, its own {own:.4} (--trace-rate)")
    });
    output::aside(format_args!(
        "lazybatch: {path}: {num} of {all} arrivals are served, {which}{scaled}"
    ));
}

/// Says how many arrivals of a trace are served with other lengths than it states.
pub fn tell_replaced(
    path: &Path,
    arrivals: &[Arrival],
    calls: &[Call],
    pool: &[Item],
    steps: &[u32],
) {
    let differs = |(a, c): &(&Arrival, &Call)| {
        (a.input_len, a.output_len) != (pool[c.item].input_len, steps[c.item])
    };
    let num = arrivals.iter().zip(calls).filter(differs).count();
    if num > 0 {
        let (path, all) = (path.display(), arrivals.len());
        let of = format!("of the nearest of {} inputs", pool.len());
        output::aside(format_args!(
            "lazybatch: {path}: {num} of {all} arrivals are served with the lengths {of}"
        ));
    }
}

/// The class that an arrival names, by its position; else what was expected and what came. Without classes
/// their names only group the results.
fn class_of<'a>(
    args: &CompareArgs,
    arrival: &'a Arrival,
) -> Result<Option<usize>, (String, &'a str)> {
    let Some(name) = arrival
        .class
        .as_deref()
        .filter(|_| !args.classes.is_empty())
    else {
        return Ok(None);
    };
    let class = args.classes.iter().position(|c| c.name == name);
    if class.is_none() && name != "default" {
        let stated = args.classes.iter().map(|c| c.name.as_str());
        let names: Vec<_> = std::iter::once("default").chain(stated).collect();
        return Err((format!("one of {}", names.join(", ")), name));
    }
    Ok(class)
}

/// The calls as an arrivals file has them; `arrivals` are those that they were made of, if they were, and
/// name their classes.
pub fn arrivals_of(
    model: &Model,
    pool: &[Item],
    steps: &[u32],
    calls: &[Call],
    arrivals: &[Arrival],
) -> Vec<Arrival> {
    let arrival = |(i, c): (usize, &Call)| Arrival {
        sla: c.sla,
        priority: c.priority,
        class: arrivals.get(i).and_then(|a| a.class.clone()),
        ..Arrival::new(
            c.at,
            model.name.as_str(),
            pool[c.item].input_len,
            steps[c.item],
        )
    };
    calls.iter().enumerate().map(arrival).collect()
}

/// Requests per second at which `greedy` drains the pool, in virtual time.
///
/// # Errors
/// As [`Simulation::run`].
pub fn simulated_capacity(
    profile: &Profile,
    model: &Model,
    pool: &[Item],
    steps: &[u32],
) -> anyhow::Result<f64> {
    let calls: Vec<Call> = (0..pool.len())
        .map(|item| Call {
            at: Time::ZERO,
            item,
            sla: None,
            ..Call::default()
        })
        .collect();
    let simulation = Simulation {
        profile,
        arrivals: &arrivals_of(model, pool, steps, &calls, &[]),
        sla: None,
        classes: &[],
        segment: 1,
        decide: Nanos::ZERO,
        max_queue: usize::MAX,
        noise: Default::default(),
        timing: false,
    };
    let done = simulation.run("greedy", None, &mut (), Detail::Launches)?;
    let last = done.requests.iter().map(|r| r.finish.0).max().unwrap_or(0);
    Ok(pool.len() as f64 * 1e9 / last.max(1) as f64)
}
