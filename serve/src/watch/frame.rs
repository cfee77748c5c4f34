//! What the page of the dashboard is told at once: the batch tables, what was launched since the frame
//! before, and running figures, from which the page computes rates.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lazybatch_engine::core::Event;
use lazybatch_engine::watch::{Entry, Passed, Seen};
use lazybatch_engine::{Look, Monitor, Watch};
use lazybatch_sla::{Launch, ModelId, Outcome, Time};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::model::Served;
use crate::state::{SERVER_NAME, State};

/// How long an engine may take to tell what it does; then the frame goes without it.
const PATIENCE: Duration = Duration::from_millis(100);
/// Most slices of launches in a frame; of more, several become one.
const MOST_SLICES: usize = 400;

/// Makes frames one after another.
#[derive(Default)]
pub struct Frames {
    engines: Vec<Watched>,
}

/// An engine that is watched.
struct Watched {
    name: String,
    monitor: Monitor,
    watch: Watch,
    /// Launches that have not ended.
    open: VecDeque<(Time, Launch)>,
    /// What was asked for and has not come.
    asked: Option<oneshot::Receiver<Arc<Look>>>,
}

#[derive(Serialize)]
struct Frame {
    server: &'static str,
    version: &'static str,
    is_ready: bool,
    calls: usize,
    engines: Vec<EngineFrame>,
    models: Vec<ModelFrame>,
}

#[derive(Serialize)]
struct EngineFrame {
    name: String,
    /// The engine's clock, milliseconds.
    now: f64,
    /// When the table was so.
    at: Option<f64>,
    table: Vec<Row>,
    more: usize,
    /// The rule that the policy decides by, if it changes between several.
    rule: Option<String>,
    slices: Vec<Slice>,
    /// Launches that were not told.
    lost: u64,
}

/// A sub-batch.
#[derive(Serialize)]
struct Row {
    id: u64,
    model: String,
    at: String,
    samples: u32,
    num_members: usize,
    members: Vec<(u64, u32)>,
    is_running: bool,
    has_started: bool,
}

/// A launch that has ended, or several behind each other.
#[derive(Serialize)]
struct Slice {
    from: f64,
    to: f64,
    model: String,
    at: String,
    samples: u32,
    /// Members that came by merges.
    merged: u32,
    launches: usize,
    #[serde(skip)]
    id: ModelId,
}

#[derive(Serialize)]
struct ModelFrame {
    name: String,
    version: u64,
    engine: String,
    /// Another one when the model was loaded anew.
    generation: u64,
    waiting: usize,
    in_flight: u32,
    oldest_ms: f64,
    answered: u64,
    failed: u64,
    launches: u64,
    samples: u64,
    merges: u64,
    preemptions: u64,
    met: u64,
    violated: u64,
    shed: u64,
    /// Upper bounds in milliseconds, each with the number of answers at or below it.
    latencies: Vec<(f64, u64)>,
}

fn ms(at: Time) -> f64 {
    at.0 as f64 / 1e6
}

impl Frames {
    /// The next frame as JSON.
    pub async fn next(&mut self, state: &State) -> String {
        let engines = state.repository.engines();
        self.engines
            .retain(|w| engines.iter().any(|(_, m)| w.monitor.is_same(m)));
        for (name, monitor) in engines {
            if !self.engines.iter().any(|w| w.monitor.is_same(&monitor)) {
                self.engines.push(Watched::new(name, monitor));
            }
        }
        for watched in &mut self.engines {
            let monitor = &watched.monitor;
            watched.asked.get_or_insert_with(|| monitor.look());
        }
        // All of them together; one that is busy with a launch keeps what was asked.
        drop(timeout(PATIENCE, self.look()).await);
        let frame = Frame {
            server: SERVER_NAME,
            version: env!("CARGO_PKG_VERSION"),
            is_ready: state.is_ready(),
            calls: state.in_flight(),
            engines: self.engines.iter_mut().map(Watched::frame).collect(),
            models: state.repository.served().iter().map(|s| model(s)).collect(),
        };
        serde_json::to_string(&frame).unwrap_or_default()
    }

    async fn look(&mut self) {
        let looks = self.engines.iter_mut().map(|watched| async move {
            if let Some(asked) = &mut watched.asked {
                // Whether it is gone or has told: there is nothing to wait for.
                drop(asked.await);
                watched.asked = None;
            }
        });
        join_all(looks).await;
    }
}

impl Watched {
    fn new(name: String, monitor: Monitor) -> Self {
        Self {
            name,
            watch: monitor.watch(),
            monitor,
            open: VecDeque::new(),
            asked: None,
        }
    }

    fn frame(&mut self) -> EngineFrame {
        let latest = self.watch.latest();
        let look = latest.as_deref();
        let passed = self.watch.take();
        let row = |entry: &Entry, look: &Look| Row {
            id: entry.id.0,
            model: entry.name.clone(),
            at: entry.nodes.clone(),
            samples: entry.samples,
            num_members: entry.num_members,
            members: entry
                .members
                .iter()
                .map(|(id, step)| (id.0, *step))
                .collect(),
            is_running: look.running.iter().any(|(id, _)| *id == entry.id),
            has_started: entry.has_started,
        };
        EngineFrame {
            name: self.name.clone(),
            now: ms(self.monitor.now()),
            at: look.map(|l| ms(l.at)),
            table: look.map_or_else(Vec::new, |l| l.table.iter().map(|e| row(e, l)).collect()),
            more: look.map_or(0, |l| l.more),
            rule: self.monitor.planning().rule,
            slices: thinned(slices(&mut self.open, &passed)),
            lost: passed.lost,
        }
    }
}

/// Launches that have ended.
fn slices(open: &mut VecDeque<(Time, Launch)>, passed: &Passed) -> Vec<Slice> {
    let mut names = passed.names.clone();
    let mut slices = Vec::new();
    if passed.lost > 0 {
        open.clear();
    }
    for entry in &passed.seen {
        match &entry.1 {
            Seen::Launch(launch) => open.push_back((entry.0, launch.clone())),
            Seen::Event(Event::Attach(attach)) => names.attach(attach),
            Seen::Event(Event::Done { ticket, .. }) => {
                let Some(i) = open.iter().position(|(_, l)| l.ticket == *ticket) else {
                    continue;
                };
                let Some((from, launch)) = open.remove(i) else {
                    continue;
                };
                slices.push(Slice {
                    from: ms(from),
                    to: ms(entry.0),
                    model: names.model(launch.model).to_owned(),
                    at: names.nodes(&launch),
                    samples: launch.num_samples(),
                    merged: launch.merged_members,
                    launches: 1,
                    id: launch.model,
                });
            }
            Seen::Event(_) | Seen::Action(_) => {}
        }
    }
    slices
}

/// At most [`MOST_SLICES`]: neighbours become one, which has the model of the first and the mean of
/// their samples.
fn thinned(slices: Vec<Slice>) -> Vec<Slice> {
    let each = slices.len().div_ceil(MOST_SLICES).max(1);
    let mut thin: Vec<Slice> = Vec::with_capacity(slices.len().min(MOST_SLICES));
    let mut sum = 0;
    for (i, slice) in slices.into_iter().enumerate() {
        match thin.last_mut() {
            Some(last) if i % each != 0 => {
                sum += slice.samples;
                last.launches += 1;
                last.to = slice.to;
                last.merged += slice.merged;
                last.samples = sum / last.launches as u32;
                if last.id != slice.id || last.at != slice.at {
                    last.at = String::new();
                }
            }
            _ => {
                sum = slice.samples;
                thin.push(slice);
            }
        }
    }
    thin
}

fn model(served: &Served) -> ModelFrame {
    let figures = served.figures();
    let stats = &served.stats;
    let outcomes = stats.outcomes();
    let count = |wanted: Outcome| {
        let own = outcomes.iter().filter(|((_, o), _)| *o == wanted);
        own.map(|(_, num)| num).sum()
    };
    let mut latencies: Vec<(f64, u64)> = Vec::new();
    for of_class in stats.latencies().values() {
        for (i, (bound, num)) in of_class.at_most().enumerate() {
            match latencies.get_mut(i) {
                Some(sum) => sum.1 += num,
                None => latencies.push((bound as f64 / 1e6, num)),
            }
        }
    }
    ModelFrame {
        name: served.name.clone(),
        version: served.version,
        engine: served.engine_name(),
        generation: served.generation,
        waiting: figures.waiting,
        in_flight: figures.in_flight,
        oldest_ms: figures.oldest.unwrap_or_default().0 as f64 / 1e6,
        answered: stats.success.count(),
        failed: stats.failures().iter().sum(),
        launches: figures.counters.launches,
        samples: figures.counters.batched,
        merges: figures.counters.merges,
        preemptions: figures.counters.preemptions,
        met: count(Outcome::Met),
        violated: count(Outcome::Violated),
        shed: count(Outcome::Shed),
        latencies,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(n: u32, model: u32) -> Slice {
        Slice {
            from: f64::from(n),
            to: f64::from(n + 1),
            model: model.to_string(),
            at: "net.0".into(),
            samples: n % 4,
            merged: 1,
            launches: 1,
            id: ModelId(model),
        }
    }

    #[test]
    fn many_launches_become_few_slices_of_the_same_time() {
        let few = thinned((0..10).map(|n| slice(n, n)).collect());
        assert_eq!(few.len(), 10);
        let many = thinned((0..1200).map(|n| slice(n, n / 600)).collect());
        assert_eq!(many.len(), MOST_SLICES);
        assert_eq!(many.iter().map(|s| s.launches).sum::<usize>(), 1200);
        assert_eq!(many.iter().map(|s| s.merged).sum::<u32>(), 1200);
        assert_eq!((many[0].from, many[0].to, many[399].to), (0.0, 3.0, 1200.0));
        assert_eq!((many[0].samples, many[0].at.as_str()), (1, "net.0"));
        assert!(thinned(Vec::new()).is_empty());
    }
}
