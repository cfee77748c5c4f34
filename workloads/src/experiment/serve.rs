//! One policy over one list of arrivals in real time, on a device.
//!
//! Open loop: a generator hands each request in at its scheduled time, whatever the engine does,
//! and latency counts from that time. The checker judges every run that does not do without. Reads a
//! clock through the engine only.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Action, CoreConfig, Event};
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::timeline::ChromeTrace;
use lazybatch_engine::{Engine, Handle, ModelOptions, Options, Planning};
use lazybatch_graph::{Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{Device, Wrapper};
use lazybatch_sla::{Class, Launch, Nanos, Outcome, RequestId, Time};
use rustc_hash::FxHashMap;

use super::inputs::Item;
use crate::error::{Error, Result};
use crate::results::{Counters, FinishedRequest};

/// One arrival of a real-time run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// When, from the start of the run.
    pub at: Time,
    /// Which item of the pool.
    pub item: usize,
    /// Its own SLA target; that of its class or of the run if `None`.
    pub sla: Option<Nanos>,
    /// Its SLA class, by position in [`Serving::classes`]; none if `None`.
    pub class: Option<usize>,
    /// Its priority level; that of its class if 0.
    pub priority: u8,
}

/// A model that is served.
#[derive(Clone)]
pub struct Hosted<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its program.
    pub program: SharedProgram,
    /// How it is scheduled.
    pub options: ModelOptions,
}

/// What all policies of an experiment share.
pub struct Serving<'a> {
    /// Models, one at the least.
    pub models: Vec<Hosted<'a>>,
    /// Makes a fresh device for every run.
    pub device: &'a dyn Fn() -> Result<Box<dyn Device>>,
    /// Inputs, each for one of the models.
    pub pool: &'a [Item],
    /// Passes of each item's decoder, where they are known.
    pub output_lens: Option<&'a [u32]>,
    /// SLA target.
    pub sla: Nanos,
    /// SLA classes.
    pub classes: Vec<Class>,
    /// Most time behind the last arrival; what is open then is dropped and counts as shed.
    pub drain: Nanos,
    /// Time decisions with a real choice.
    pub timing: bool,
    /// Record a Chrome trace.
    pub trace: bool,
    /// Keep the outputs until the end; else they are dropped soon after they came, as clients do, and
    /// take no memory that has to be found while requests run.
    pub keeps_outputs: bool,
    /// The checker judges every event, launch and action, on the thread that issues launches.
    pub is_checked: bool,
    /// Launches in flight; as many as the device needs if `None`.
    pub depth: Option<u32>,
    /// Called once the engine and its threads are there, on the thread that sends requests, such as to
    /// move that to a core of its own.
    pub client: Option<&'a dyn Fn() -> Result<()>>,
}

/// What came of a run.
pub struct Served {
    /// Every request, by id (position in the arrivals).
    pub requests: Vec<FinishedRequest>,
    /// Counts of the core.
    pub counters: Counters,
    /// Outputs of completed requests, by id, where they are kept.
    pub outputs: Vec<Option<Vec<Tensor>>>,
    /// Decoder passes of each request, as launched.
    pub steps: Vec<u32>,
    /// The Chrome trace, if recorded.
    pub trace: Option<String>,
    /// What the device says of how launches ran ([`Device::remarks`]), in the end.
    pub remarks: Vec<String>,
    /// What the policy's plans came to.
    pub planning: Planning,
    /// For how long each rule decided that it chose from.
    pub held: BTreeMap<String, Nanos>,
}

/// Leaves what a device says in the end.
struct Remarking {
    device: Box<dyn Device>,
    remarks: Arc<Mutex<Vec<String>>>,
}

impl Wrapper for Remarking {
    fn inner(&self) -> &dyn Device {
        &*self.device
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut *self.device
    }
}

impl Drop for Remarking {
    fn drop(&mut self) {
        *self.remarks.lock().expect("no holder panics") = self.device.remarks();
    }
}

/// Remembers how requests end and how many decoder passes they took.
struct Recorder {
    judge: Option<Judge>,
    trace: Option<ChromeTrace>,
    /// Blocks of each model.
    decoders: Vec<Vec<bool>>,
    ended: FxHashMap<RequestId, (Outcome, Option<Time>, Time)>,
    steps: FxHashMap<RequestId, u32>,
}

impl Recorder {
    fn new(config: &CoreConfig, is_checked: bool, trace: bool) -> Self {
        let is_decoder = |r: Repeat| matches!(r, Repeat::UntilStop { .. });
        Self {
            judge: is_checked.then(|| Judge::new(Checker::new(config, false))),
            trace: trace.then(|| ChromeTrace::new(config)),
            decoders: config
                .models
                .iter()
                .map(|m| m.blocks.iter().map(|b| is_decoder(b.repeat)).collect())
                .collect(),
            ended: FxHashMap::default(),
            steps: FxHashMap::default(),
        }
    }
}

impl Observer for Recorder {
    fn on_event(&mut self, now: Time, event: &Event) {
        if let Some(judge) = &mut self.judge {
            judge.on_event(now, event);
        }
        if let Some(trace) = &mut self.trace {
            trace.on_event(now, event);
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        if let Some(judge) = &mut self.judge {
            judge.on_launch(now, launch);
        }
        if let Some(trace) = &mut self.trace {
            trace.on_launch(now, launch);
        }
        let decoders = &self.decoders[launch.model.index()];
        if decoders[launch.block as usize] && launch.first_node == 0 {
            for member in launch.members.iter().filter(|m| !m.idle) {
                self.steps.insert(member.request, member.step + 1);
            }
        }
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        if let Some(judge) = &mut self.judge {
            judge.on_action(now, action);
        }
        if let Some(trace) = &mut self.trace {
            trace.on_action(now, action);
        }
        if let Action::Finish {
            request,
            outcome,
            first_launch,
            ..
        } = action
        {
            self.ended.insert(*request, (*outcome, *first_launch, now));
        }
    }
}

/// Handles that are looked at for each that is added.
const LOOKS: usize = 4;
/// In which a pool has to be served, all of it waiting at once.
const PATIENCE: Nanos = Nanos::from_ms(600_000);
/// Most times that a pool is drained for a capacity.
const CAPACITY_PASSES: usize = 5;
/// Time behind which it is not drained again.
const CAPACITY_TIME: Nanos = Nanos::from_ms(500);

/// Drops handles whose requests are over, some at a time from the one at `next` on: in overload some
/// wait for long, and what came of those behind them would be kept meanwhile.
fn drop_ended(handles: &mut Vec<Handle>, next: &mut usize) {
    for _ in 0..LOOKS {
        if *next >= handles.len() {
            *next = 0;
        }
        match handles.get_mut(*next).map(has_ended) {
            Some(true) => drop(handles.swap_remove(*next)),
            Some(false) => *next += 1,
            None => return,
        }
    }
}

/// Whether a request is over; what came of it is dropped.
fn has_ended(handle: &mut Handle) -> bool {
    Pin::new(handle)
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

impl Serving<'_> {
    /// The SLA target of a call.
    pub fn target(&self, call: &Call) -> Nanos {
        let class = call.class.map(|c| &self.classes[c]);
        let promised = call.sla.or(class.and_then(|c| c.sla));
        promised.unwrap_or(self.sla)
    }

    /// Serves `calls`, sorted by time, under `policy`.
    ///
    /// # Errors
    /// An unknown policy, a model that the device refuses, inputs that do not fit, or a rule that
    /// the checker finds broken.
    pub fn run(&self, policy: &str, calls: &[Call]) -> Result<Served> {
        let bad = |e: &dyn std::fmt::Display| Error::run("engine", e);
        let device = (self.device)()?;
        let lanes = device.info().num_lanes;
        let remarks = Arc::new(Mutex::new(Vec::new()));
        let remarking = Remarking {
            device,
            remarks: remarks.clone(),
        };
        let builder = Engine::builder()
            .device(remarking)
            .policy(policy)
            .max_queue(usize::MAX)
            .time_decisions(self.timing);
        let builder = match self.depth {
            Some(depth) => builder.depth(depth),
            None => builder,
        };
        let builder = self.models.iter().fold(builder, |b, m| {
            b.model(m.name, m.program.clone(), m.options.clone())
        });
        let classes = self.classes.iter().cloned();
        let builder = classes.fold(builder, |b, class| b.class(class));
        let config = builder.core_config(lanes).map_err(Error::Engine)?;
        let recorder = Arc::new(Mutex::new(Recorder::new(
            &config,
            self.is_checked,
            self.trace,
        )));
        let engine = builder
            .observer(recorder.clone(), false)
            .build()
            .map_err(Error::Engine)?;

        if let Some(client) = self.client {
            client()?;
        }
        // The driver thread is up and the first arrivals are not late.
        let start = engine.now() + Nanos::from_ms(20);
        let (mut handles, mut next) = (Vec::new(), 0);
        for call in calls {
            let at = Time(start.0 + call.at.0);
            wait_until(&engine, at);
            let class = call.class.map(|c| &self.classes[c]);
            let options = Options {
                class: class.map(|c| c.name.clone()),
                priority: call.priority,
                sla: Some(self.target(call)),
                arrival: Some(at),
                known_output_len: self.output_lens.map(|lens| lens[call.item]),
                ..Options::default()
            };
            let item = &self.pool[call.item];
            let (model, inputs) = (self.models[item.model].name, item.inputs.clone());
            let handle = engine.try_submit(model, inputs, options);
            handles.push(handle.map_err(|e| bad(&e))?);
            if !self.keeps_outputs {
                drop_ended(&mut handles, &mut next);
            }
        }
        let num_ended = || recorder.lock().expect("no holder panics").ended.len();
        let cap = engine.now() + self.drain;
        while num_ended() < calls.len() && engine.now() < cap {
            let until = engine.now() + Nanos::from_ms(2);
            wait_until(&engine, until);
        }
        let mut outputs = vec![None; calls.len()];
        for handle in handles {
            let i = handle.id().0 as usize;
            let completed = {
                let recorder = recorder.lock().expect("no holder panics");
                recorder
                    .ended
                    .get(&handle.id())
                    .is_some_and(|e| e.0.is_completed())
            };
            if completed {
                let answer = handle.wait().ok().map(|a| a.outputs);
                outputs[i] = answer.filter(|_| self.keeps_outputs);
            }
            // Dropping an open handle withdraws its request.
        }
        let (stats_before, stopped_at) = (engine.stats(), engine.now());
        engine.drain_blocking().map_err(|e| bad(&e))?;
        let recorder = std::mem::replace(
            &mut *recorder.lock().expect("no holder panics"),
            Recorder::new(&config, false, false),
        );
        if let Some(judge) = recorder.judge {
            judge.finish().map_err(|v| bad(&v))?;
        }
        let decisions = self.timing.then(|| {
            stats_before
                .decision_ns
                .iter()
                .map(|&ns| Nanos(ns))
                .collect()
        });
        let counters = stats_before.counters;
        let names: Vec<Arc<str>> = self.models.iter().map(|m| m.name.into()).collect();
        let requests = calls
            .iter()
            .enumerate()
            .map(|(i, call)| {
                let (outcome, first, finish) = recorder.ended[&RequestId(i as u64)];
                FinishedRequest {
                    id: i as u64,
                    model: names[self.pool[call.item].model].clone(),
                    arrival: call.at,
                    first_launch: first.map(|at| since_start(at, start, call)),
                    finish: since_start(finish, start, call),
                    outcome: if outcome == Outcome::Cancelled {
                        Outcome::Shed
                    } else {
                        outcome
                    },
                    input_len: self.pool[call.item].input_len,
                    output_len: self.output_lens.map_or(0, |lens| lens[call.item]),
                    class: call.class.map(|c| self.classes[c].name.as_str().into()),
                }
            })
            .collect();
        Ok(Served {
            requests,
            counters: Counters {
                launches: counters.launches,
                members: counters.batched,
                merges: counters.merges,
                preemptions: counters.preemptions,
                demoted: counters.demoted,
                decisions,
            },
            outputs,
            steps: (0..calls.len())
                .map(|i| {
                    recorder
                        .steps
                        .get(&RequestId(i as u64))
                        .copied()
                        .unwrap_or(0)
                })
                .collect(),
            trace: recorder.trace.map(ChromeTrace::into_json),
            remarks: std::mem::take(&mut *remarks.lock().expect("no holder panics")),
            held: stats_before.planning.held(stopped_at),
            planning: stats_before.planning,
        })
    }

    /// Serves the whole pool, all items waiting from the start, one after another under `serial`:
    /// outputs and decoder passes of each item.
    ///
    /// # Errors
    /// As [`Serving::run`].
    pub fn serial_pass(&self) -> Result<Served> {
        self.backlog("serial")
    }

    /// Requests per second at which `policy` drains the whole pool, all items waiting from the
    /// start: the best of at most five times, as many as begin within half a second, for the first
    /// time of a fast device is that of warming up.
    ///
    /// # Errors
    /// As [`Serving::run`].
    pub fn capacity(&self, policy: &str) -> Result<f64> {
        let (mut best, mut spent) = (0.0f64, Nanos::ZERO);
        for _ in 0..CAPACITY_PASSES {
            let served = self.backlog(policy)?;
            let starts = served.requests.iter().filter_map(|r| r.first_launch);
            let first = starts.min().unwrap_or_default();
            let ends = served.requests.iter().map(|r| r.finish);
            let took = ends.max().unwrap_or_default().since(first);
            best = best.max(self.pool.len() as f64 * 1e9 / took.0.max(1) as f64);
            spent = Nanos(spent.0 + took.0);
            if spent >= CAPACITY_TIME {
                break;
            }
        }
        Ok(best)
    }

    fn backlog(&self, policy: &str) -> Result<Served> {
        let calls: Vec<_> = (0..self.pool.len())
            .map(|item| Call {
                at: Time::ZERO,
                item,
                sla: None,
                ..Call::default()
            })
            .collect();
        let patient = Serving {
            models: self.models.clone(),
            device: self.device,
            pool: self.pool,
            output_lens: self.output_lens,
            sla: Nanos::from_ms(3_600_000),
            classes: Vec::new(),
            drain: PATIENCE,
            timing: false,
            trace: false,
            keeps_outputs: true,
            is_checked: self.is_checked,
            depth: self.depth,
            client: None,
        };
        let served = patient.run(policy, &calls)?;
        let ended = |r: &&FinishedRequest| r.outcome.is_completed();
        let num = served.requests.iter().filter(ended).count();
        if num < calls.len() {
            let names: Vec<&str> = self.models.iter().map(|m| m.name).collect();
            let what = format!(
                "inputs of the pool of {} within {} s",
                names.join(", "),
                PATIENCE.as_ms() / 1e3
            );
            let expected = format!("{} served by {policy}", calls.len());
            return Err(Error::parameter(what, expected, num.to_string()));
        }
        Ok(served)
    }
}

/// A time on the engine's clock as one of the run. What happens to a call happens behind its arrival:
/// one that is due while the driver has its turn has that turn's time, which may be earlier.
fn since_start(at: Time, start: Time, call: &Call) -> Time {
    Time(at.0.saturating_sub(start.0)).max(call.at)
}

/// Sleeps until a time on the engine's clock.
#[allow(
    clippy::disallowed_methods,
    reason = "an open-loop generator waits for the next arrival"
)]
fn wait_until(engine: &Engine, at: Time) {
    let left = at.since(engine.now());
    if left > Nanos::ZERO {
        std::thread::sleep(Duration::from_nanos(left.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_happens_to_a_call_before_it_arrives() {
        let call = Call {
            at: Time(50),
            ..Call::default()
        };
        // The turn in which it was launched had begun at 140, ten before it was due.
        for (at, told) in [(140, 50), (150, 50), (170, 70), (20, 50)] {
            assert_eq!(since_start(Time(at), Time(100), &call), Time(told));
        }
    }
}
