//! Requests to models of a few microseconds: who lets them go runs the driver while its thread waits,
//! and whatever else comes is that thread's. Answers and outcomes are the same.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::driver::{Judge, Observer};
use lazybatch_engine::{Engine, ModelHandle, ModelOptions, Options, RequestError};
use lazybatch_graph::{DType, OutputId, Program, ProgramBuilder, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Completion, Device, DeviceInfo, Error, OpenRequest, Plan};
use lazybatch_sla::profile::{BlockProfile, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{Launch, ModelId, Slot, Time};

const FEATURES: usize = 4;

/// Hands its input on.
fn program() -> Program {
    let mut b = ProgramBuilder::new("identity");
    let input = b.input("x", DType::F32, &[FEATURES]);
    let output = b.output("y", DType::F32, &[FEATURES]);
    b.begin_block("net", Repeat::Once);
    let x = b.read_input("read", input);
    b.emit("emit", output, x);
    b.finish().unwrap()
}

/// As if that took so long a launch.
fn taking(us: f64) -> ModelOptions {
    let program = program();
    let node = |name: &str, us: f64| NodeProfile {
        name: name.into(),
        by: Default::default(),
        latency_us: vec![(1, us)],
        num_nodes: None,
        merge_bytes_per_member: 0.0,
        weight_bytes: None,
        load_us: None,
        host_access_us: None,
    };
    let nodes = program.blocks[0].nodes.iter();
    let each = us / nodes.len() as f64;
    let block = BlockProfile {
        name: "net".into(),
        repeat: RepeatRule::Once,
        stride: None,
        max_steps: None,
        nodes: nodes
            .map(|&id| node(&program.node(id).name, each))
            .collect(),
    };
    let profile = ModelProfile {
        name: "identity".into(),
        max_batch: 8,
        sla_ms: None,
        output_len_p90: None,
        blocks: vec![block],
    };
    ModelOptions {
        profile: Some(profile),
        ..ModelOptions::default()
    }
}

fn input(i: usize) -> Vec<Tensor> {
    let values: Vec<f32> = (0..FEATURES).map(|j| (i * FEATURES + j) as f32).collect();
    vec![Tensor::from_f32(&[1, FEATURES], &values)]
}

/// Threads that issued launches, in order; the next one panics where it is told to.
#[derive(Clone, Default)]
struct Threads {
    seen: Arc<Mutex<Vec<ThreadId>>>,
    breaks: Arc<AtomicBool>,
}

impl Observer for Threads {
    fn on_launch(&mut self, _now: Time, _launch: &Launch) {
        self.seen.lock().unwrap().push(thread::current().id());
        assert!(!self.breaks.load(Ordering::SeqCst), "told to break");
    }
}

fn engine(threads: &Threads) -> Engine {
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let builder = Engine::builder().device(device).policy("adaptive");
    builder.observer(threads.clone(), false).build().unwrap()
}

/// Hands in requests one by one until the driver's thread waits for one: it goes with what is given
/// back.
fn until_it_waits(model: &ModelHandle) -> (lazybatch_engine::Handle, lazybatch_engine::Held) {
    loop {
        let (handle, held) = model.try_submit_held(input(1), Options::default()).unwrap();
        match held {
            Some(held) => return (handle, held),
            None => drop(handle.wait().unwrap()),
        }
    }
}

/// Lets some requests go one by one, each when the driver's thread waits; how many launches this
/// thread issued.
fn num_here(us: f64) -> usize {
    let threads = Threads::default();
    let engine = engine(&threads);
    let model = engine.load("m", program(), taking(us)).unwrap();
    for _ in 0..20 {
        let (handle, held) = until_it_waits(&model);
        drop(held);
        let answer = handle.wait().unwrap();
        assert_eq!(answer.outputs[0].to_f32(), input(1)[0].to_f32());
    }
    drop(model);
    engine.drain_blocking().unwrap();
    let seen = threads.seen.lock().unwrap();
    let here = thread::current().id();
    seen.iter().filter(|&&id| id == here).count()
}

#[test]
fn who_lets_quick_requests_go_runs_them() {
    // The driver's thread may wake early by itself, and is then the one that runs a request.
    assert!(num_here(1.0) > 0);
}

#[test]
fn what_takes_longer_is_left_to_the_drivers_thread() {
    assert_eq!(num_here(200.0), 0);
}

#[test]
fn without_a_profile_nothing_is_known_to_be_quick() {
    let threads = Threads::default();
    let engine = engine(&threads);
    let options = ModelOptions::default();
    let model = engine.load("m", program(), options).unwrap();
    let (handle, held) = until_it_waits(&model);
    drop(held);
    handle.wait().unwrap();
    let here = thread::current().id();
    assert!(!threads.seen.lock().unwrap().contains(&here));
}

#[test]
fn quick_and_slow_requests_of_many_threads_are_all_answered() {
    // The last of each is waited for, so that all have come when they are counted.
    const EACH: usize = 300;
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let builder = Engine::builder().device(device).policy("adaptive");
    let checker = Checker::new(&builder.core_config(1).unwrap(), false);
    let judge = Arc::new(Mutex::new(Judge::new(checker)));
    let engine = builder.observer(judge.clone(), false).build().unwrap();
    let quick = engine.load("quick", program(), taking(1.0)).unwrap();
    let slow = engine.load("slow", program(), taking(200.0)).unwrap();
    thread::scope(|scope| {
        for t in 0..3 {
            let (quick, slow, engine) = (&quick, &slow, &engine);
            scope.spawn(move || {
                for i in 0..EACH {
                    let model = if (i + t) % 5 == 0 { slow } else { quick };
                    let submit = || model.try_submit_held(input(i), Options::default()).unwrap();
                    let (one, first) = submit();
                    let (other, second) = submit();
                    let other = (i % 7 != 0).then_some(other);
                    drop((first, second));
                    let answer = one.wait().unwrap();
                    if let Some(other) = other {
                        other.wait().unwrap();
                    }
                    assert_eq!(answer.outputs[0].to_f32(), input(i)[0].to_f32());
                    // Loads are the driver's thread's, whatever comes with them.
                    if i % 100 == 0 {
                        engine.load("other", program(), taking(1.0)).unwrap();
                    }
                }
            });
        }
    });
    let counters = engine.stats().counters;
    assert_eq!(counters.arrivals as usize, 3 * 2 * EACH);
    drop((quick, slow));
    engine.drain_blocking().unwrap();
    let judge = Arc::into_inner(judge).expect("the driver is gone");
    judge.into_inner().unwrap().finish().unwrap();
}

#[test]
fn an_engine_that_breaks_where_a_client_runs_it_tells_everybody() {
    let threads = Threads::default();
    let engine = engine(&threads);
    let model = engine.load("m", program(), taking(1.0)).unwrap();
    let (handle, held) = until_it_waits(&model);
    let other = model.try_submit(input(2), Options::default());
    drop(other.unwrap().wait().unwrap());
    drop(handle.wait().unwrap());
    drop(held);
    let (handle, held) = until_it_waits(&model);
    threads.breaks.store(true, Ordering::SeqCst);
    drop(thread::spawn(move || drop(held)).join());
    let crashed = RequestError::Crashed("told to break".into());
    assert_eq!(handle.wait().err(), Some(crashed));
    // Behind the end of its driver it takes nothing.
    while model.try_submit(input(2), Options::default()).is_ok() {
        thread::yield_now();
    }
    drop(engine);
}

/// The embedded device, whose next launch panics where it is told to.
struct Fragile(CpuDevice, Arc<AtomicBool>);

impl Device for Fragile {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        self.0.load(model, program)
    }
    fn unload(&mut self, model: ModelId) {
        self.0.unload(model);
    }
    fn buckets(&self) -> &[u32] {
        self.0.buckets()
    }
    fn prepare(&mut self, m: ModelId, b: u32, i: u32, j: u32, n: u32) -> Result<Plan, Error> {
        self.0.prepare(m, b, i, j, n)
    }
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.0.open(request)
    }
    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        assert!(!self.1.load(Ordering::SeqCst), "told to break");
        self.0.enqueue(now, plan, launch)
    }
    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.0.poll(now)
    }
    fn next_completion(&self) -> Option<Time> {
        self.0.next_completion()
    }
    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        self.0.emitted(slot, output, from)
    }
    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.0.close(slot)
    }
}

#[test]
fn a_device_that_breaks_where_a_client_runs_it_harms_no_client() {
    let breaks = Arc::new(AtomicBool::new(false));
    let device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    let device = Fragile(device, breaks.clone());
    let builder = Engine::builder().device(device).policy("adaptive");
    let engine = builder.build().unwrap();
    let model = engine.load("m", program(), taking(1.0)).unwrap();
    let (handle, held) = until_it_waits(&model);
    breaks.store(true, Ordering::SeqCst);
    // Handing it in lets both go: that runs the driver here, and does not panic.
    let stream = engine.try_submit_stream("m", input(1), Options::default());
    drop(held);
    let told = |error: Option<RequestError>| {
        let text = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(
            text.ends_with("-1t is lost: panic: told to break"),
            "{text}"
        );
    };
    told(handle.wait().err());
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    runtime.block_on(async {
        let mut stream = stream.unwrap();
        told(stream.next().await.and_then(Result::err));
        assert!(stream.next().await.is_none());
    });
    while let Ok(handle) = model.try_submit(input(2), Options::default()) {
        told(handle.wait().err());
        thread::yield_now();
    }
    assert!(!engine.is_running());
    drop(model);
    assert!(engine.drain_blocking().is_err());
}
