//! A device that panics is lost, not its clients' requests: each of them ends, and hears why.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::tiny::model;
use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::driver::Judge;
use lazybatch_engine::{BuildError, Engine, ModelOptions, Options, RequestError};
use lazybatch_graph::{OutputId, SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Completion, Device, DeviceInfo, Error, OpenRequest, Plan};
use lazybatch_sla::{Launch, ModelId, Slot, Time};

const LOST: &str = "device fragile is lost: panic: told to break";

/// The embedded device, which panics once in a call, and must not hear of anything behind that.
struct Fragile {
    inner: CpuDevice,
    breaks_in: &'static str,
    is_whole: AtomicBool,
    heard: Arc<AtomicU32>,
}

impl Fragile {
    fn new(breaks_in: &'static str, heard: &Arc<AtomicU32>) -> Self {
        Self {
            inner: CpuDevice::new(CpuOptions {
                threads: 1,
                ..CpuOptions::default()
            }),
            breaks_in,
            is_whole: AtomicBool::new(true),
            heard: heard.clone(),
        }
    }

    fn call(&self, name: &str) {
        if !self.is_whole.load(Ordering::SeqCst) {
            self.heard.fetch_add(1, Ordering::SeqCst);
        }
        if name == self.breaks_in {
            self.is_whole.store(false, Ordering::SeqCst);
            panic!("told to break");
        }
    }
}

impl Device for Fragile {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "fragile".into(),
            ..self.inner.info()
        }
    }
    fn load(&mut self, model: ModelId, program: SharedProgram) -> Result<(), Error> {
        if model != ModelId(0) {
            self.call("load");
        }
        self.inner.load(model, program)
    }
    fn unload(&mut self, model: ModelId) {
        self.call("unload");
        self.inner.unload(model);
    }
    fn buckets(&self) -> &[u32] {
        self.inner.buckets()
    }
    fn prepare(
        &mut self,
        m: ModelId,
        b: u32,
        from: u32,
        to: u32,
        rows: u32,
    ) -> Result<Plan, Error> {
        self.inner.prepare(m, b, from, to, rows)
    }
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.call("open");
        self.inner.open(request)
    }
    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.call("enqueue");
        self.inner.enqueue(now, plan, launch)
    }
    fn poll(&mut self, now: Time) -> Option<Completion> {
        let done = self.inner.poll(now);
        if done.is_some() {
            self.call("poll");
        }
        done
    }
    fn next_completion(&self) -> Option<Time> {
        self.call("next_completion");
        self.inner.next_completion()
    }
    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        self.call("emitted");
        self.inner.emitted(slot, output, from)
    }
    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        self.call("close");
        self.inner.close(slot)
    }
}

fn word() -> Vec<Tensor> {
    vec![Tensor::from_i32(&[3], &[1, 6, 2])]
}

/// An engine on such a device, and who judges it.
fn engine(device: Fragile) -> (Engine, Arc<Mutex<Judge>>) {
    let builder = Engine::builder().device(device).policy("lazy");
    let builder = builder.model("tiny", model(), ModelOptions::default());
    let checker = Checker::new(&builder.core_config(1).unwrap(), false);
    let judge = Arc::new(Mutex::new(Judge::new(checker)));
    (
        builder.observer(judge.clone(), false).build().unwrap(),
        judge,
    )
}

#[test]
fn every_request_on_a_device_that_panics_ends_and_hears_why() {
    for breaks_in in [
        "open",
        "enqueue",
        "poll",
        "next_completion",
        "emitted",
        "close",
    ] {
        let heard = Arc::default();
        let (engine, judge) = engine(Fragile::new(breaks_in, &heard));
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let mut ends = Vec::new();
        let stream = engine.try_submit_stream("tiny", word(), Options::default());
        let handles: Vec<_> = (0..20)
            .map(|_| engine.try_submit("tiny", word(), Options::default()))
            .collect();
        let told = |error: RequestError| match error {
            RequestError::Failed(why) | RequestError::Crashed(why) => assert_eq!(why, LOST),
            other => panic!("{breaks_in}: {other:?}"),
        };
        runtime.block_on(async {
            let mut stream = stream.unwrap();
            while let Some(step) = stream.next().await {
                ends.extend(step.err());
            }
        });
        assert_eq!(ends.len(), 1, "{breaks_in}: the stream ends with an error");
        ends.into_iter().for_each(told);
        for handle in handles {
            // Those that came later were refused.
            match handle.map(lazybatch_engine::Handle::wait) {
                Ok(answer) => told(answer.unwrap_err()),
                Err(refused) => told(refused),
            }
        }
        assert!(!engine.is_running(), "{breaks_in}");
        let refused = engine.try_submit("tiny", word(), Options::default());
        let refused = refused.and_then(lazybatch_engine::Handle::wait).err();
        assert_eq!(refused, Some(RequestError::Crashed(LOST.into())));
        let crashed = Err(RequestError::Crashed(LOST.into()));
        assert_eq!(engine.drain_blocking(), crashed);
        assert_eq!(
            heard.load(Ordering::SeqCst),
            0,
            "{breaks_in}: it was asked again"
        );
        // Each has ended once, for observers too.
        let judge = Arc::into_inner(judge).expect("the driver is gone");
        judge.into_inner().unwrap().finish().unwrap();
    }
}

#[test]
fn a_load_that_panics_fails_with_the_cause() {
    let heard = Arc::default();
    let (engine, _judge) = engine(Fragile::new("load", &heard));
    let answer = engine.try_submit("tiny", word(), Options::default());
    answer.unwrap().wait().unwrap();
    let error = engine.load("more", model(), ModelOptions::default());
    let error = error.map(drop).unwrap_err();
    assert!(matches!(error, BuildError::Device(_)), "{error}");
    assert!(error.to_string().contains(LOST), "{error}");
    let crashed = Err(RequestError::Crashed(LOST.into()));
    assert_eq!(engine.drain_blocking(), crashed);
    assert_eq!(heard.load(Ordering::SeqCst), 0);
}
