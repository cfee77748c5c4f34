//! Time of the core's decisions and steps at 64 requests in flight and 64 waiting.

use lazybatch_benches::POLICIES;
use lazybatch_benches::clock;
use lazybatch_benches::core_load::{CoreLoad, IN_FLIGHT, Net, WAITING};
use lazybatch_benches::spread::Spread;
use serde_json::json;

use crate::Settings;

/// Steps per repetition.
const STEPS: usize = 2_000;

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("decision")?;
    for net in Net::ALL {
        let mut decide = vec![Vec::new(); POLICIES.len()];
        let mut p99 = vec![Vec::new(); POLICIES.len()];
        let mut step = vec![Vec::new(); POLICIES.len()];
        for _ in 0..settings.repeats {
            let reading = clock::reading_cost_ns();
            for (i, policy) in POLICIES.iter().enumerate() {
                let mut load = CoreLoad::new(net, policy)?;
                let (ns, ()) = clock::time(|| (0..STEPS).for_each(|_| load.step()));
                step[i].push(ns / STEPS as f64);
                let alone = |_| {
                    load.deliver();
                    let (ns, ()) = clock::time(|| load.decide());
                    load.take_launch();
                    ns - reading
                };
                let decisions = Spread::of((0..STEPS).map(alone).collect());
                decide[i].push(decisions.median());
                p99[i].push(decisions.percentile(99));
            }
        }
        for (i, policy) in POLICIES.iter().enumerate() {
            let (in_flight, waiting) = match *policy {
                "serial" => (1, WAITING + IN_FLIGHT - 1),
                _ => (IN_FLIGHT, WAITING),
            };
            let step = Spread::of(std::mem::take(&mut step[i]));
            let p99 = Spread::of(std::mem::take(&mut p99[i]));
            let figures = json!({
                "net": net.name(), "policy": policy, "in_flight": in_flight, "waiting": waiting,
                "decisions_per_run": STEPS,
                "p99_ns_median_of_runs": p99.median().round(),
                "step_ns_median": step.median().round(),
                "steps_per_second_median": (1e9 / step.median()).round(),
            });
            let decide = Spread::of(std::mem::take(&mut decide[i]));
            recorder.line(figures, "decision_ns", &decide)?;
        }
    }
    Ok(())
}
