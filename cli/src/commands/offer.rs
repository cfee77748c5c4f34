//! What `compare` offers to every policy: items, when each is called, and at which rate.

use std::path::Path;

use lazybatch_sla::{Class, Nanos, Profile, Time};
use lazybatch_workloads::arrivals::{
    Arrival, Limit, Process, Stream, Workload, mean_rate, transform,
};
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::experiment::{Call, Detail, Simulation};
use lazybatch_workloads::lengths::Lengths;
use lazybatch_workloads::traces;

use crate::args::CompareArgs;
use crate::failure::BadInput;
use crate::models::Model;

/// Share of the measured capacity that is the default rate.
const DEFAULT_LOAD: f64 = 0.6;
/// Most arrivals of one run.
const MAX_ARRIVALS: f64 = 1e7;

/// Reads a trace and checks that this model can serve it.
///
/// # Errors
/// A file that is no trace, or arrivals of another model or of several samples.
pub fn read_trace(path: &Path, model: &Model) -> anyhow::Result<Vec<Arrival>> {
    let name = model.name.as_str();
    let options = traces::Options {
        model: Some(name.into()),
        ..Default::default()
    };
    let arrivals = traces::read(path, &options)?;
    let bad = |i: usize, what: &str, expected: &str, got: &str| {
        let path = path.display();
        BadInput(format!(
            "{path}: arrival {i} ({what}): expected {expected}, got {got}"
        ))
    };
    for (i, arrival) in arrivals.iter().enumerate() {
        if *arrival.model != *name {
            return Err(bad(i, "model", name, &arrival.model).into());
        }
        if arrival.samples != 1 {
            return Err(bad(i, "samples", "1", &arrival.samples.to_string()).into());
        }
    }
    Ok(arrivals)
}

/// Arrivals as calls on the pool, and their rate. `trace` are those of a file.
///
/// # Errors
/// A rate that gives no arrivals or far too many.
pub fn calls(
    args: &CompareArgs,
    trace: Option<Vec<Arrival>>,
    pool: &[Item],
    capacity: f64,
) -> anyhow::Result<(Vec<Call>, f64)> {
    let limit = Nanos::from_ms_f64(args.duration * 1e3);
    if let (Some(mut arrivals), Some(path)) = (trace, &args.trace) {
        let rate = args.trace_rate.unwrap_or(DEFAULT_LOAD * capacity);
        transform::scale_to_rate(&mut arrivals, rate)?;
        let mut arrivals = transform::window(&arrivals, Time::ZERO, limit);
        arrivals.truncate(args.requests.unwrap_or(usize::MAX));
        if arrivals.is_empty() {
            let path = path.display();
            return Err(BadInput(format!("{path}: expected arrivals, got none")).into());
        }
        let nearest = |a: &Arrival| {
            let distance = |i: &usize| pool[*i].input_len.abs_diff(a.input_len);
            (0..pool.len())
                .min_by_key(distance)
                .expect("the pool holds items")
        };
        // A burst or a lull at the start of a trace is not its mean.
        let offered = mean_rate(&arrivals).unwrap_or(rate);
        let call = |a: &Arrival| {
            Ok(Call {
                at: a.at,
                item: nearest(a),
                sla: a.sla,
                class: class_of(args, a)?,
                priority: u8::try_from(a.priority).unwrap_or(u8::MAX),
            })
        };
        let calls: anyhow::Result<_> = arrivals.iter().map(call).collect();
        return Ok((calls?, offered));
    }
    let rate = args.rate.unwrap_or(DEFAULT_LOAD * capacity);
    if rate * args.duration > MAX_ARRIVALS {
        let most = format!("at most {MAX_ARRIVALS:e} arrivals (--rate x --duration)");
        let got = rate * args.duration;
        return Err(BadInput(format!("--rate: expected {most}, got {got:e}")).into());
    }
    let process = Process::Poisson { rate_rps: rate };
    let stream = Stream::new(args.model.as_str(), process, Lengths::fixed(1, 1));
    let mut arrivals = Workload::single(stream, Limit::Duration(limit)).generate(args.seed)?;
    arrivals.truncate(args.requests.unwrap_or(usize::MAX));
    if arrivals.is_empty() {
        let got = format!("none at {rate}/s within {} s", args.duration);
        return Err(BadInput(format!("--rate: expected arrivals, got {got}")).into());
    }
    // Items in seeded order, so that neighbours differ.
    let call = |(i, a): (usize, &Arrival)| Call {
        at: a.at,
        item: (i * 7919 + 13) % pool.len(),
        sla: None,
        ..Call::default()
    };
    Ok((arrivals.iter().enumerate().map(call).collect(), rate))
}

fn class_of(args: &CompareArgs, arrival: &Arrival) -> anyhow::Result<Option<usize>> {
    let Some(name) = arrival
        .class
        .as_deref()
        .filter(|_| !args.classes.is_empty())
    else {
        return Ok(None);
    };
    let class = args.classes.iter().position(|c| c.name == name);
    if class.is_none() && name != "default" {
        let names: Vec<_> = args.classes.iter().map(|c| c.name.as_str()).collect();
        let expected = names.join(", ");
        return Err(BadInput(format!("class: expected one of {expected}, got {name}")).into());
    }
    Ok(class)
}

/// The calls as an arrivals file has them.
pub fn arrivals_of(
    model: &Model,
    pool: &[Item],
    steps: &[u32],
    calls: &[Call],
    classes: &[Class],
) -> Vec<Arrival> {
    let arrival = |c: &Call| Arrival {
        sla: c.sla,
        priority: u32::from(c.priority),
        class: c.class.map(|i| classes[i].name.as_str().into()),
        ..Arrival::new(
            c.at,
            model.name.as_str(),
            pool[c.item].input_len,
            steps[c.item],
        )
    };
    calls.iter().map(arrival).collect()
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
