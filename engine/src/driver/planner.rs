//! Makes plans beside the driver, in time that nobody else wants, within a budget of it.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};

use lazybatch_sla::{Nanos, Time};

use super::plan;
use crate::core::{Plan, PlanRequest};

/// Share of all available processors that plans may take: behind each plan the policy asks for none
/// until what that took is no more.
pub const BUDGET: f64 = 0.05;

/// For how long a plan may be made in idle time alone, before it is begun once more with a small
/// share of a busy processor; what both take counts.
const PATIENCE: Nanos = Nanos::from_ms(1000);

/// Where all models take microseconds, their device works for less than this share of the time, and no
/// more are open than fit a batch, a plan would take more than all launches, and nobody waits for long
/// by any rule.
const IDLE: f64 = 0.05;

/// The share is that of so long, at the most, but for the time since the last launch.
const LOOKED_AT: Nanos = Nanos::from_ms(1000);

/// For how long no plan is asked for then.
const NEEDLESS: Nanos = Nanos::from_ms(100);

/// Makes one plan at a time. Threads are told to stop on drop, and end by themselves.
#[derive(Default)]
pub(crate) struct Planner {
    /// Since when the device has worked for how long.
    worked: (Time, Nanos),
    /// The plan that was asked for has nothing to choose.
    is_needless: bool,
    /// What is being planned, and since when.
    request: Option<(Time, Arc<PlanRequest>)>,
    /// Threads that make that plan, the first in idle time.
    attempts: Vec<Attempt>,
    /// It was begun once more, or that was tried.
    is_second: bool,
}

impl Planner {
    /// The device has worked for so long, in place, up to now.
    pub fn works(&mut self, now: Time, busy: Nanos) {
        if now.since(self.worked.0) > LOOKED_AT {
            self.worked = (Time(now.0.saturating_sub(busy.0)), Nanos::ZERO);
        }
        self.worked.1 += busy;
    }

    /// Begins a plan. Where there can be no thread for it, the incumbent stays, and where none is
    /// needed, which may be if all models `are_quick`.
    pub fn start(&mut self, now: Time, request: PlanRequest, are_quick: bool) {
        let (since, worked) = std::mem::replace(&mut self.worked, (now, Nanos::ZERO));
        let least = IDLE * now.since(since).0 as f64;
        self.attempts.clear();
        let batches = request.config.models.iter().map(|m| m.max_batch as usize);
        let are_few = batches.min().is_some_and(|most| request.open.len() <= most);
        self.is_needless = are_quick && are_few && (worked.0 as f64) < least;
        if self.is_needless {
            self.request = None;
            return;
        }
        let request = Arc::new(request);
        self.attempts
            .extend(Attempt::start(request.clone(), Urgency::Idle));
        self.is_second = false;
        self.request = Some((now, request));
    }

    /// A plan that is done; one without rules if none is needed.
    pub fn poll(&mut self, now: Time) -> Option<Plan> {
        if std::mem::take(&mut self.is_needless) {
            return Some(Plan {
                costs: Vec::new(),
                launches: 0,
                rest: NEEDLESS,
            });
        }
        let (since, request) = self.request.as_ref()?;
        let plan = self.attempts.iter().find_map(|a| a.plan.try_recv().ok());
        if let Some(mut plan) = plan {
            let spent = |a: &Attempt| a.spent.load(Ordering::Relaxed);
            plan.rest = rest(Nanos(self.attempts.iter().map(spent).sum()));
            self.request = None;
            self.attempts.clear();
            return Some(plan);
        }
        if !self.is_second && now.since(*since) > PATIENCE {
            self.is_second = true;
            self.attempts
                .extend(Attempt::start(request.clone(), Urgency::Low));
        }
        None
    }
}

/// When a plan is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    /// When a processor has nothing else to do.
    Idle,
    /// As the least urgent, but some.
    Low,
}

impl Urgency {
    /// Lets other threads go before the calling one: a plan may come late, the device's threads may
    /// not. Where the system cannot do it, the thread keeps its priority.
    #[cfg(target_os = "linux")]
    fn apply(self) {
        /// Of 19, the least urgent.
        const NICE: i32 = 15;
        // On Linux a nice value and a policy belong to a thread; without a process it is the
        // calling one's.
        let _ = rustix::process::setpriority_process(None, NICE);
        if self == Self::Idle {
            // A thread with a nice value keeps its processor for a slice of milliseconds when the
            // driver wakes; an idle one is preempted at once.
            let none = libc::sched_param { sched_priority: 0 };
            #[allow(unsafe_code, reason = "no library has this call")]
            // SAFETY: the parameters outlive the call, which keeps nothing of them.
            let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &none) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn apply(self) {}
}

/// A thread that makes one plan.
struct Attempt {
    plan: Receiver<Plan>,
    stop: Arc<AtomicBool>,
    /// Nanoseconds of a processor that it took, but for the rule that it simulates just now.
    spent: Arc<AtomicU64>,
}

impl Attempt {
    fn start(request: Arc<PlanRequest>, urgency: Urgency) -> Option<Self> {
        let (outbox, plan) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let spent = Arc::new(AtomicU64::new(0));
        let (stopped, told) = (stop.clone(), spent.clone());
        let thread = std::thread::Builder::new().name("lazybatch-plan".into());
        let work = move || {
            urgency.apply();
            let start = Spent::start();
            let is_stopped = || {
                told.store(start.so_far().0, Ordering::Relaxed);
                stopped.load(Ordering::Relaxed)
            };
            let plan = plan::make(&request, &is_stopped);
            told.store(start.so_far().0, Ordering::Relaxed);
            // Another attempt may have been faster.
            drop(outbox.send(plan));
        };
        // Nobody waits for it: a stopped one ends with the rule that it simulates.
        let started = thread.spawn(work);
        started.ok().map(|_| Self { plan, stop, spent })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// For how long there is no plan behind one that took so much of a processor.
fn rest(spent: Nanos) -> Nanos {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let share = (BUDGET * processors as f64).min(1.0);
    Nanos((spent.0 as f64 * (1.0 / share - 1.0)) as u64)
}

/// Processor time of the calling thread; where the system does not tell it, time.
#[cfg(target_os = "linux")]
struct Spent(Nanos);

#[cfg(target_os = "linux")]
impl Spent {
    fn start() -> Self {
        Self(Self::now())
    }

    fn so_far(&self) -> Nanos {
        Self::now() - self.0
    }

    fn now() -> Nanos {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Nanos(spent.tv_sec.unsigned_abs() * 1_000_000_000 + spent.tv_nsec.unsigned_abs())
    }
}

#[cfg(not(target_os = "linux"))]
struct Spent(super::threaded::Clock);

#[cfg(not(target_os = "linux"))]
impl Spent {
    fn start() -> Self {
        Self(super::threaded::Clock::start())
    }

    fn so_far(&self) -> Nanos {
        self.0.now().since(Time::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{CoreConfig, ModelSpec, Open, Past};
    use lazybatch_sla::{ClassId, ModelId, Profile, RequestId};

    /// Takes each rule some thousand launches.
    fn request() -> PlanRequest {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
            "models":[{"name":"m","max_batch":4,"output_len_p90":8,"blocks":[{"name":"decode",
            "repeat":"until_stop","nodes":[{"name":"n","by":"members","latency_us":[[1,5],[4,6]]}]}]}]}"#;
        let profile = Profile::parse("test", text).expect("a profile");
        let model = ModelSpec::from_profile(&profile, &profile.models[0], 1, 8);
        let past = |i| Past {
            id: RequestId(i),
            gap: Nanos(20_000),
            model: ModelId(0),
            sla: None,
            class: ClassId::default(),
            priority: 0,
            delay_after: None,
            samples: 1,
            input_len: 1,
            output_len: 8,
        };
        PlanRequest {
            config: CoreConfig::new(vec![model]),
            arrivals: (0..4096).map(past).collect(),
            open: Vec::new(),
            candidates: ["front", "join:0", "cellular"].map(String::from).to_vec(),
            miss_weight: 3.0,
            budget: 1_000_000,
        }
    }

    fn wait(planner: &mut Planner, now: Time) -> Plan {
        loop {
            if let Some(plan) = planner.poll(now) {
                return plan;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_plan_comes_and_says_for_how_long_to_rest() {
        let mut planner = Planner::default();
        assert!(planner.poll(Time::ZERO).is_none());
        for _ in 0..2 {
            planner.start(Time::ZERO, request(), false);
            let plan = wait(&mut planner, Time::ZERO);
            assert_eq!(plan.costs.len(), 3);
            assert!(plan.rest > Nanos::ZERO);
            assert!(planner.attempts.is_empty());
        }
    }

    #[test]
    fn a_plan_that_finds_no_idle_time_is_begun_once_more() {
        let mut planner = Planner::default();
        planner.start(Time::ZERO, request(), false);
        let late = Time::ZERO + PATIENCE + Nanos(1);
        assert!(planner.poll(Time::ZERO + PATIENCE).is_none());
        assert_eq!(planner.attempts.len(), 1);
        for _ in 0..2 {
            assert!(planner.poll(late).is_none());
            assert_eq!(planner.attempts.len(), 2);
        }
        assert_eq!(wait(&mut planner, late).costs.len(), 3);
        assert!(planner.attempts.is_empty());
        assert!(planner.poll(late).is_none());
    }

    #[test]
    fn no_plan_is_made_for_quick_models_whose_device_idles() {
        let second = Nanos::from_ms(1000);
        for (are_quick, busy_ms, is_needless) in
            [(true, 49, true), (true, 51, false), (false, 49, false)]
        {
            let mut planner = Planner::default();
            // What was before the last plan does not count.
            planner.works(Time::ZERO, second);
            planner.start(Time::ZERO, request(), are_quick);
            assert_eq!(wait(&mut planner, Time::ZERO).costs.len(), 3);
            let now = Time::ZERO + second;
            planner.works(now, Nanos::from_ms(busy_ms));
            planner.start(now, request(), are_quick);
            let plan = wait(&mut planner, now);
            assert_eq!(plan.costs.is_empty(), is_needless, "{busy_ms} ms");
            assert!(plan.rest > Nanos::ZERO);
            assert!(planner.poll(now).is_none(), "once");
        }
    }

    #[test]
    fn a_burst_has_its_plan_however_long_the_rest_before_it_was() {
        let hour = Time::ZERO + Nanos::from_ms(3_600_000);
        let burst = Nanos::from_ms(1);
        // More are open than fit a batch of four; or the device is busy since it has work again.
        for (num_open, busy, is_needless) in [
            (5, Nanos::ZERO, false),
            (4, Nanos::ZERO, true),
            (4, burst, false),
        ] {
            let mut planner = Planner::default();
            if busy > Nanos::ZERO {
                planner.works(hour, busy);
            }
            let mut request = request();
            let open = Open {
                left: request.arrivals[0],
                since: Nanos::ZERO,
            };
            request.open = vec![open; num_open];
            planner.start(hour, request, true);
            let plan = wait(&mut planner, hour);
            assert_eq!(plan.costs.is_empty(), is_needless, "{num_open}, {busy:?}");
        }
    }
}
