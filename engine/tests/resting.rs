//! What a device has put off is done where there is nothing else to do, and no launch is in flight.
#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

#[path = "common/tiny.rs"]
mod tiny;

use std::sync::{Arc, Mutex};

use lazybatch_engine::{Engine, ModelOptions, Options};
use lazybatch_graph::Tensor;
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Completion, Device, Error, Plan, Wrapper};
use lazybatch_sla::{Launch, Time};

/// Questions that find a launch still in flight.
const QUESTIONS: u32 = 5;
/// What each launch puts off.
const EACH: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    in_flight: u32,
    put_off: u32,
    done: u32,
    /// Done while a launch was in flight.
    too_soon: u32,
}

/// Puts something off with each launch, which takes a while.
struct Resting {
    device: CpuDevice,
    questions: u32,
    seen: Arc<Mutex<Seen>>,
}

impl Wrapper for Resting {
    fn inner(&self) -> &dyn Device {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.device.enqueue(now, plan, launch)?;
        self.questions = QUESTIONS;
        let mut seen = self.seen.lock().unwrap();
        seen.in_flight += 1;
        seen.put_off += EACH;
        Ok(())
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        if let Some(left) = self.questions.checked_sub(1) {
            self.questions = left;
            return None;
        }
        let done = self.device.poll(now)?;
        self.seen.lock().unwrap().in_flight -= 1;
        Some(done)
    }

    fn rest(&mut self) -> bool {
        let mut seen = self.seen.lock().unwrap();
        let Some(left) = seen.put_off.checked_sub(1) else {
            return false;
        };
        seen.put_off = left;
        seen.done += 1;
        seen.too_soon += u32::from(seen.in_flight > 0);
        true
    }
}

#[test]
fn what_was_put_off_is_done_where_nothing_is_in_flight() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let device = Resting {
        device: CpuDevice::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        }),
        questions: 0,
        seen: seen.clone(),
    };
    let engine = Engine::builder()
        .device(device)
        .model("tiny", tiny::model(), ModelOptions::default())
        .policy("greedy")
        .depth(1)
        .build()
        .unwrap();
    let ask = || {
        let letters = Tensor::from_i32(&[3], &[3, 4, 5]);
        let handle = engine.try_submit("tiny", vec![letters], Options::default());
        handle.unwrap().wait().unwrap().outputs[0].to_i32()
    };
    let first = ask();
    // The driver has nothing else to do now.
    while seen.lock().unwrap().put_off > 0 {
        std::thread::yield_now();
    }
    let rested = *seen.lock().unwrap();
    assert!(rested.done >= EACH && rested.done % EACH == 0, "{rested:?}");
    assert_eq!(ask(), first);
    engine.drain_blocking().unwrap();
    assert_eq!(seen.lock().unwrap().too_soon, 0);
}
