//! How late the batching time-window of `graph:5` fires under the threaded driver.
//!
//! Lone requests on an idle engine: each must start 5 ms behind its arrival. Beside it, how late a
//! wait of 5 ms on a channel of the standard library ends in the same process, which is what the
//! system gives and the driver cannot better.

use std::sync::mpsc;
use std::time::Duration;

use lazybatch_benches::clock;
use lazybatch_benches::record::rounded;
use lazybatch_benches::spread::Spread;
use lazybatch_benches::tiny;
use lazybatch_engine::{Engine, ModelOptions, Options};
use serde_json::json;

use crate::Settings;

/// Lone requests.
const REQUESTS: u64 = 300;
/// The window.
const WINDOW: Duration = Duration::from_millis(5);

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("window")?;
    let engine = Engine::builder()
        .device(tiny::device())
        .model("tiny", tiny::chain(1)?, ModelOptions::default())
        .policy("graph:5")
        .build()?;
    let mut window = Vec::new();
    let mut system = Vec::new();
    let (_sender, channel) = mpsc::channel::<()>();
    for i in 0..REQUESTS {
        // Gaps of 1 to 4 ms, so that requests do not fall into step with the system's ticks.
        clock::pause(Duration::from_micros(1000 + i * 7919 % 3000));
        let answer = engine
            .try_submit("tiny", tiny::input(), Options::default())?
            .wait()?;
        let first = answer.first_launch.unwrap_or(answer.finish);
        let waited = first.since(answer.arrival).0 as f64;
        window.push((waited - WINDOW.as_nanos() as f64) / 1e6);
        let (ns, _) = clock::time(|| channel.recv_timeout(WINDOW));
        system.push((ns - WINDOW.as_nanos() as f64) / 1e6);
    }
    for (what, late) in [
        ("first launch behind the window of graph:5", window),
        ("end of a wait on a channel", system),
    ] {
        let late = Spread::of(late);
        let figures = json!({
            "what": what, "window_ms": 5, "target_ms": 0.3,
            "p90": rounded(late.percentile(90)), "p99": rounded(late.percentile(99)),
        });
        recorder.line(figures, "late_ms", &late)?;
    }
    Ok(())
}
