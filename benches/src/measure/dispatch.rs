//! Cost of launching next to nothing.

use std::hint::black_box;

use lazybatch_benches::clock;
use lazybatch_benches::spread::Spread;
use lazybatch_benches::tiny::{self, NodeWalk};
use lazybatch_benches::turns;
use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_kernels::cpu::pool::Pool;
use serde_json::json;

use crate::Settings;

/// Walks or round trips per repetition.
const CALLS: usize = 2000;

/// Jobs behind a rest, in which workers park, per repetition.
const RESTED_CALLS: usize = 50;

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

    for threads in [1, 2] {
        let mut pool = Pool::new(threads);
        for (what, rested) in [("behind another", false), ("behind a rest", true)] {
            let mut medians = Vec::new();
            for _ in 0..settings.repeats {
                let calls = if rested { RESTED_CALLS } else { CALLS };
                let spans = (0..calls).map(|_| {
                    if rested {
                        turns::rest();
                    }
                    clock::time(|| pool.run(2, |task| _ = black_box(task))).0
                });
                medians.push(Spread::of(spans.collect()).median());
            }
            let what = format!("a job of two empty tasks, {what}");
            let figures = json!({ "what": what, "threads": threads });
            recorder.line(figures, "ns", &Spread::of(medians))?;
        }
    }

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
