//! The GPU under the engine and its scheduler: how long it has nothing to do while there is always
//! more, and how long one that preempts waits for its first launch.
//!
//! Launches are timed by the device's events, and seen from the thread that polls: when one began
//! is when it was found to be over less what it took, so waits are at most one poll too long.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lazybatch_cuda::{CudaDevice, CudaOptions, LaunchTime};
use lazybatch_engine::{Engine, Handle, ModelOptions, Options};
use lazybatch_graph::Tensor;
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::{Completion, Device, Error, Plan, Wrapper};
use lazybatch_sla::{Launch, Nanos, RequestId, Time};

use crate::launches::Amount;
use crate::stack::{LOOP, program, segments};
use crate::{Failure, Report, now, percentile};

const NAME: &str = "stack";
/// Most launches in flight.
const DEPTH: u32 = 2;

/// A launch that is over.
struct Seen {
    block: u32,
    requests: Vec<RequestId>,
    /// When it began.
    began: Instant,
    time: LaunchTime,
}

/// What a device has done, for the thread that measures.
#[derive(Clone, Default)]
struct Sight(Arc<Mutex<Vec<Seen>>>);

impl Sight {
    fn all(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device, whose launches are noted.
struct Watched {
    device: CudaDevice,
    /// Block and members of launches in flight.
    in_flight: VecDeque<(u32, Vec<RequestId>)>,
    sight: Sight,
}

impl Wrapper for Watched {
    fn inner(&self) -> &dyn Device {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn enqueue(&mut self, at: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.device.enqueue(at, plan, launch)?;
        let requests = launch.members.iter().map(|m| m.request).collect();
        self.in_flight.push_back((launch.block, requests));
        Ok(())
    }

    fn poll(&mut self, at: Time) -> Option<Completion> {
        let done = self.device.poll(at)?;
        let over = now();
        let times = self.device.take_times();
        if let (Some((block, requests)), Some(time)) = (self.in_flight.pop_front(), times.last()) {
            let busy = Duration::from_secs_f64(time.busy_us.max(0.0) * 1e-6);
            self.sight.all().push(Seen {
                block,
                requests,
                began: over.checked_sub(busy).unwrap_or(over),
                time: *time,
            });
        }
        Some(done)
    }
}

/// An engine on the stack, and what its device does.
struct Served {
    engine: Engine,
    sight: Sight,
    width: usize,
}

impl Served {
    fn new(amount: &Amount, policy: &str, in_flight: u32) -> Result<Self, Failure> {
        let sight = Sight::default();
        let device = Watched {
            device: CudaDevice::new(CudaOptions {
                weights: WeightType::Bf16,
                depth: DEPTH as usize,
                times: true,
                ..CudaOptions::default()
            })?,
            in_flight: VecDeque::new(),
            sight: sight.clone(),
        };
        let program = Arc::new(program(amount.sizes)?);
        let first = 0..program.blocks[0].nodes.len() as u32;
        let of_model = ModelOptions {
            max_batch: Some(amount.large as u32 + 1),
            segments: Some(vec![vec![first], segments(&program, amount.sizes)]),
            ..ModelOptions::default()
        };
        let engine = Engine::builder()
            .device(device)
            .model(NAME, program, of_model)
            .policy(policy)
            .depth(in_flight)
            .build()?;
        Ok(Self {
            engine,
            sight,
            width: amount.sizes.d,
        })
    }

    /// Hands in a request of so many passes, in no hurry.
    fn submit(&self, i: usize, passes: u32) -> Result<Handle, Failure> {
        let x = vec![0.01 * (i % 100) as f32; self.width];
        let options = Options {
            max_steps: Some(passes),
            sla: Some(Nanos::from_ms(1_000_000)),
            ..Options::default()
        };
        let inputs = vec![Tensor::from_f32(&[1, self.width], &x)];
        Ok(self.engine.try_submit(NAME, inputs, options)?)
    }
}

/// All of it.
pub fn run(report: Report) -> Result<(), Failure> {
    let amount = Amount::of(report);
    for in_flight in 1..=DEPTH {
        for rows in [1, amount.large] {
            idle(report, &amount, rows, in_flight)?;
        }
    }
    for in_flight in 1..=DEPTH {
        preempting(report, &amount, in_flight)?;
    }
    Ok(())
}

/// Share of time in which the GPU has nothing to do while requests go through the loop together.
fn idle(report: Report, amount: &Amount, rows: usize, in_flight: u32) -> Result<(), Failure> {
    let served = Served::new(amount, "adaptive", in_flight)?;
    let passes = (amount.launches / amount.sizes.segments) as u32;
    let handles = (0..rows).map(|i| served.submit(i, passes));
    let handles: Vec<Handle> = handles.collect::<Result<_, _>>()?;
    for handle in handles {
        handle.wait()?;
    }
    let seen = served.sight.all();
    // Once they are together; the first quarter is there to capture graphs and to warm up.
    let together = seen.iter().filter(|s| s.requests.len() * 10 >= rows * 9);
    let looped: Vec<&Seen> = together.filter(|s| s.block == LOOP).collect();
    let looped = looped.get(looped.len() / 4..).unwrap_or_default();
    let busy: f64 = looped.iter().map(|s| s.time.busy_us).sum();
    let idle: f64 = looped.iter().map(|s| s.time.idle_us).sum();
    let mut gaps: Vec<f64> = looped.iter().map(|s| s.time.idle_us).collect();
    let sizes = [
        ("rows", rows.into()),
        ("in_flight", in_flight.into()),
        ("policy", "adaptive".into()),
    ];
    let figures = [
        ("idle_share", idle / (busy + idle)),
        ("gap_us", percentile(&mut gaps, 50)),
        ("gap_us_p99", percentile(&mut gaps, 99)),
        ("segment_us", busy / looped.len() as f64),
    ];
    report.line("idle between segments, served", &sizes, &figures)
}

/// How long one that comes while a large sub-batch runs waits for its first launch, in segments of
/// that sub-batch.
fn preempting(report: Report, amount: &Amount, in_flight: u32) -> Result<(), Failure> {
    let served = Served::new(amount, "lazy", in_flight)?;
    let load = (0..amount.large).map(|i| served.submit(i, amount.sizes.passes));
    let load: Vec<Handle> = load.collect::<Result<_, _>>()?;
    let is_large = |s: &Seen| s.block == LOOP && s.requests.len() >= amount.large;
    // Until all of it is together, and what comes again was captured.
    while served.sight.all().iter().filter(|s| is_large(s)).count() < amount.launches / 8 {
        std::thread::yield_now();
    }
    let (mut waits, mut state) = (Vec::new(), 7u64);
    for i in 0..amount.events {
        // At some part of a segment.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let from = now();
        let pause = Duration::from_nanos((state >> 33) % 1_000_000);
        while from.elapsed() < pause {
            std::hint::spin_loop();
        }
        let arrives = now();
        let handle = served.submit(i, 1)?;
        let id = handle.id();
        handle.wait()?;
        let seen = served.sight.all();
        let first = seen.iter().find(|s| s.requests.contains(&id));
        let first = first.ok_or("a request was answered without a launch")?;
        let waited = first.began.saturating_duration_since(arrives);
        waits.push(waited.as_secs_f64() * 1e6);
    }
    let seen = served.sight.all();
    if !seen.iter().rev().take(8).any(is_large) {
        return Err("the load ended before the last request that preempts".into());
    }
    let of_load = seen.iter().filter(|s| is_large(s));
    let mut segments: Vec<f64> = of_load.map(|s| s.time.busy_us).collect();
    drop(seen);
    // Nobody waits for the load's end: it is taken back.
    drop(load);
    let segment = percentile(&mut segments, 50);
    let mut in_segments: Vec<f64> = waits.iter().map(|w| w / segment).collect();
    let sizes = [
        ("rows", amount.large.into()),
        ("in_flight", in_flight.into()),
        ("policy", "lazy".into()),
    ];
    let figures = [
        ("segments_p50", percentile(&mut in_segments, 50)),
        ("segments_p99", percentile(&mut in_segments, 99)),
        ("segment_us", segment),
    ];
    report.line("wait of one that preempts, served", &sizes, &figures)
}
