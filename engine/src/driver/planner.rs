//! Makes plans on a thread of its own, within a budget of processor time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use lazybatch_sla::Nanos;

use super::plan;
use super::threaded::Clock;
use crate::core::{Plan, PlanRequest};

/// Share of all available processors that plans may take: behind each plan, which keeps one busy,
/// the policy asks for none for so long.
pub const BUDGET: f64 = 0.05;

/// The planning thread, started with the first plan; stopped and joined on drop.
#[derive(Default)]
pub(crate) struct Planner {
    thread: Option<Thread>,
}

struct Thread {
    requests: Option<Sender<PlanRequest>>,
    plans: Receiver<Plan>,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Planner {
    /// Makes a plan as soon as the budget allows.
    pub fn start(&mut self, request: PlanRequest) {
        let thread = self.thread.get_or_insert_with(Thread::start);
        if let Some(requests) = &thread.requests {
            // A thread that has died leaves the incumbent in place.
            drop(requests.send(request));
        }
    }

    /// A plan that is done.
    pub fn poll(&mut self) -> Option<Plan> {
        self.thread.as_ref()?.plans.try_recv().ok()
    }
}

impl Thread {
    fn start() -> Self {
        let (requests, inbox) = mpsc::channel::<PlanRequest>();
        let (outbox, plans) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let handle = std::thread::Builder::new()
            .name("lazybatch-plan".into())
            .spawn(move || work(&inbox, &outbox, &stopped))
            .ok();
        Self {
            requests: Some(requests),
            plans,
            stop,
            handle,
        }
    }
}

/// Lets every other thread go first: a plan may come late, the device's threads may not. Where the
/// system cannot do it, the thread keeps its priority.
fn step_back() {
    /// Of 19, the least urgent.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 15;
    // On Linux a nice value belongs to a thread; without a process it is the calling one's.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

fn work(inbox: &Receiver<PlanRequest>, outbox: &Sender<Plan>, stop: &AtomicBool) {
    step_back();
    let clock = Clock::start();
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = (BUDGET * processors as f64).min(1.0);
    while let Ok(request) = inbox.recv() {
        let start = clock.now();
        let mut plan = plan::make(&request, &|| stop.load(Ordering::Relaxed));
        let spent = clock.now().since(start).0 as f64;
        plan.rest = Nanos((spent * (1.0 / share - 1.0)) as u64);
        if outbox.send(plan).is_err() {
            return;
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.requests = None;
        if let Some(handle) = self.handle.take() {
            // A plan that panicked has been reported on its thread.
            drop(handle.join());
        }
    }
}
