//! Cost of launching next to nothing.

use lazybatch_benches::clock;
use lazybatch_benches::spread::Spread;
use lazybatch_benches::tiny::{self, NodeWalk};
use lazybatch_engine::{Engine, ModelOptions, Options};
use serde_json::json;

use crate::Settings;

/// Walks or round trips per repetition.
const CALLS: usize = 2000;

/// Runs the measurement.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let recorder = settings.recorder("dispatch")?;
    let mut walk = NodeWalk::new(62)?;
    walk.open()?;
    let per_launch = |walk: &mut NodeWalk| {
        let walks = (0..CALLS).map(|_| clock::time(|| walk.walk()).0).collect();
        Spread::of(walks).median() / walk.num_launches() as f64
    };
    per_launch(&mut walk);
    let launches = (0..settings.repeats).map(|_| per_launch(&mut walk));
    let figures = json!({ "what": "enqueue and poll of one elementwise node of 8 floats" });
    recorder.line(figures, "ns", &Spread::of(launches.collect()))?;

    let engine = Engine::builder()
        .device(tiny::device())
        .model("tiny", tiny::chain(1)?, ModelOptions::default())
        .policy("greedy")
        .build()?;
    let mut medians = Vec::new();
    let mut p99 = Vec::new();
    for _ in 0..settings.repeats {
        let mut spans = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let inputs = tiny::input();
            let (ns, answer) = clock::time(|| {
                engine
                    .try_submit("tiny", inputs, Options::default())
                    .and_then(|handle| handle.wait())
            });
            answer?;
            spans.push(ns);
        }
        let spans = Spread::of(spans);
        medians.push(spans.median());
        p99.push(spans.percentile(99));
    }
    let figures = json!({
        "what": "submit and wait through the threaded engine, a model of three tiny nodes",
        "p99_ns_median_of_runs": Spread::of(p99).median().round(),
    });
    recorder.line(figures, "ns", &Spread::of(medians))
}
