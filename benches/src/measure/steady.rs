//! Time of decisions in steady state, with the plans that `adaptive` makes.

use lazybatch_benches::clock;
use lazybatch_benches::record::Recorder;
use lazybatch_benches::spread::Spread;
use lazybatch_benches::steady::{MIX, MIX_POLICIES, NETS, POLICIES, Steady, Table};
use lazybatch_engine::driver::plan::{self, Crew};
use serde_json::json;

use crate::Settings;

/// Decisions with two or more legal actions of each run.
const DECISIONS: usize = 10_000;
/// Steps of each run, at least. Under some policies a choice is rare.
const STEPS: usize = 10_000;
/// Steps of each run, at most.
const MOST_STEPS: usize = 2_000_000;

/// Times of one run, in nanoseconds.
#[derive(Default)]
struct Run {
    /// Decisions with two or more legal actions.
    real: Vec<f64>,
    /// Steps without in which nobody arrived, was demoted or admitted, or ended: completion in,
    /// decision, launch out.
    quiet: Vec<f64>,
    /// The other steps without, for each request that did one of these.
    moving: Vec<f64>,
    /// The longest time to take the launch out and then put together what a plan is made from.
    asking: f64,
    /// Plans: how many, what they took and how many launches they simulated.
    plans: u64,
    plan_ns: f64,
    plan_launches: u64,
    entries: usize,
    in_flight: usize,
    steps: usize,
}

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("steady")?;
    plans(&recorder, settings.repeats)?;
    let single = Table::ALL
        .iter()
        .flat_map(|&t| NETS.map(|n| (t, n, &POLICIES[..])));
    let mix = Table::ALL.map(|t| (t, MIX, &MIX_POLICIES[..]));
    for (filled, net, policies) in single.chain(mix) {
        let mut runs: Vec<Vec<Run>> = policies.iter().map(|_| Vec::new()).collect();
        for _ in 0..settings.repeats {
            for (policy, runs) in policies.iter().zip(&mut runs) {
                runs.push(once(net, policy, filled)?);
            }
        }
        for (policy, runs) in policies.iter().zip(&runs) {
            let real: Vec<Spread> = of(runs, |r| &r.real);
            let quiet: Vec<Spread> = of(runs, |r| &r.quiet);
            let moving: Vec<Spread> = of(runs, |r| &r.moving);
            let steps: usize = runs.iter().map(|r| r.steps).sum();
            let mean = |part: fn(&Run) -> usize| {
                let sum: usize = runs.iter().map(part).sum();
                (10.0 * sum as f64 / steps as f64).round() / 10.0
            };
            let median = |spreads: &[Spread], at: usize| match spreads {
                [] => json!(null),
                s => json!(Spread::of(s.iter().map(|s| s.percentile(at)).collect()).median()),
            };
            let decisions: usize = runs.iter().map(|r| r.real.len()).sum();
            let plans: u64 = runs.iter().map(|r| r.plans).sum();
            let plan_ns: f64 = runs.iter().map(|r| r.plan_ns).sum();
            let launches: u64 = runs.iter().map(|r| r.plan_launches).sum();
            let asking = Spread::of(runs.iter().map(|r| r.asking).collect()).median();
            let figures = json!({
                "table": filled.name(), "net": net, "policy": policy,
                "in_flight_mean": mean(|r| r.in_flight), "sub_batches_mean": mean(|r| r.entries),
                "decisions_per_run": decisions / runs.len(),
                "p50_ns": median(&real, 50), "max_ns": median(&real, 100),
                "quiet_step_p50_ns": median(&quiet, 50), "quiet_step_p99_ns": median(&quiet, 99),
                "moving_step_p50_ns_per_move": median(&moving, 50),
                "plans_per_run": plans as f64 / runs.len() as f64,
                "plan_ns_per_decision": (decisions > 0).then(|| plan_ns / decisions as f64),
                "plan_ns_per_launch": plan_ns / launches.max(1) as f64,
                "asking_for_a_plan_max_ns": asking,
            });
            // Under some policies there never is a choice.
            let (metric, spreads) = match real.is_empty() {
                true => ("quiet_step_p99_ns", &quiet),
                false => ("p99_ns", &real),
            };
            let p99 = spreads.iter().map(|s| s.percentile(99)).collect();
            recorder.line(figures, metric, &Spread::of(p99))?;
        }
    }
    Ok(())
}

/// Arrivals before the plans that count: the history is full by then.
const FULL: usize = 4_096;
/// Plans that count in a run.
const PLANS: usize = 4;

/// What plans take once the history is full, beside the decisions from one to the next.
fn plans(recorder: &Recorder, repeats: usize) -> anyhow::Result<()> {
    for net in NETS {
        let mut per_launch = Vec::new();
        let mut per_decision = Vec::new();
        let mut whole = Vec::new();
        let mut launches = 0;
        for _ in 0..repeats {
            let mut load = Steady::new(net, "adaptive", Table::Own)?;
            let (mut made, mut ns, mut all, mut since) = (0, 0.0, 0, 0);
            while made < PLANS {
                load.deliver();
                since += u64::from(load.decide());
                load.take_launch();
                let Some(request) = load.take_plan() else {
                    continue;
                };
                let before = clock::thread_ns();
                let plan = plan::make(&request, request.budget, &Crew::ALONE).plan;
                let took = clock::thread_ns() - before;
                if load.num_arrivals() < FULL {
                    since = 0;
                } else {
                    made += 1;
                    ns += took;
                    all += plan.launches;
                    whole.push(took);
                }
                load.planned(plan);
            }
            launches += all;
            per_launch.push(ns / all as f64);
            per_decision.push(ns / since as f64);
        }
        let figures = json!({
            "net": net, "policy": "adaptive", "plans_per_run": PLANS,
            "plan_ms_median": Spread::of(whole).median() / 1e6,
            "launches_per_plan": launches / (repeats * PLANS) as u64,
        });
        recorder.line(
            figures.clone(),
            "plan_ns_per_launch",
            &Spread::of(per_launch),
        )?;
        recorder.line(figures, "plan_ns_per_decision", &Spread::of(per_decision))?;
    }
    Ok(())
}

fn of(runs: &[Run], part: fn(&Run) -> &Vec<f64>) -> Vec<Spread> {
    let times = runs.iter().map(part).filter(|t| !t.is_empty());
    times.map(|t| Spread::of(t.clone())).collect()
}

fn once(net: &str, policy: &str, filled: Table) -> anyhow::Result<Run> {
    let mut load = Steady::new(net, policy, filled)?;
    let reading = clock::reading_cost_ns();
    let mut run = Run::default();
    let most = match filled {
        // Without choices, or nearly.
        Table::Alone => STEPS,
        Table::Own | Table::Held => MOST_STEPS,
    };
    while run.steps < STEPS || (run.real.len() < DECISIONS && run.steps < most) {
        if run.steps == MOST_STEPS / 10 && run.real.is_empty() {
            break;
        }
        let moves = load.num_moves();
        let (before, ()) = clock::time(|| load.deliver());
        let (in_flight, entries, _) = load.levels();
        run.in_flight += in_flight;
        run.entries += entries;
        run.steps += 1;
        let (decision, real) = clock::time(|| load.decide());
        let (behind, ()) = clock::time(|| load.take_launch());
        if real {
            run.real.push(decision - reading);
        } else {
            let step = before + decision + behind - 3.0 * reading;
            match load.num_moves() - moves {
                0 => run.quiet.push(step),
                moves => run.moving.push(step / moves as f64),
            }
        }
        if let Some(request) = load.take_plan() {
            run.asking = run.asking.max(behind - reading);
            let (ns, made) =
                clock::time(|| plan::make(&request, request.budget, &Crew::ALONE).plan);
            run.plans += 1;
            run.plan_ns += ns;
            run.plan_launches += made.launches;
            load.planned(made);
        }
    }
    Ok(run)
}
