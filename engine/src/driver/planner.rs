//! Makes plans beside the driver, in time that nobody else wants, within a budget of it.
//!
//! Where the driver leaves no such time, a plan is made in short turns with pauses, so that no launch
//! waits for more than one of them, and the next one begins in turns too; and as plans cost launches
//! then, one that leaves the rule as it is makes the next come later.
//!
//! Who has one processor, and a device that works on it, has turns from the start: with an idle thread
//! beside it, the driver seems to Linux to have had less than its share, and those who wake to hand in
//! requests do not get the processor before it sleeps, or for milliseconds. Seen on Linux 6.18. By the
//! same rules a driver that wakes behind an idle thread which ran alone may have to wait for it. Where
//! the device has little to do, turns are shorter and come more often, until it has more.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;

use lazybatch_sla::{Nanos, Time};

use super::plan;
use super::threaded::Clock;
use super::virtual_time::PLAN_LAUNCH;
use crate::core::{Plan, PlanRequest};

/// Share of all available processors that plans may take: behind each plan the policy asks for none
/// until what that took is no more.
pub const BUDGET: f64 = 0.05;

/// That share while plans confirm the rule that there is and processors are busy, so that what plans
/// take is missing elsewhere: each such plan halves it, down to this.
const LEAST_BUDGET: f64 = 0.005;
/// Longest rest that follows from a smaller share than [`BUDGET`].
const LONGEST_REST: Nanos = Nanos::from_ms(10_000);
/// Processors are busy if the time that a plan took of one is at most this part of what it took, or of
/// what short turns may take of that.
const MOST_IDLE: f64 = 0.5;

/// A plan simulates no more launches than are simulated within the budget in so long.
const LONGEST: Nanos = Nanos::from_ms(4000);

/// For how long a plan may be made in idle time alone. If that was less than the budget by then, it is
/// begun once more, in turns of a busy processor; what both take counts.
const PATIENCE: Nanos = Nanos::from_ms(250);

/// A device that works for more than this share of the time is busy.
const BUSY: f64 = 0.5;

/// Such a turn, and the share of time that turns take, pauses included. All processors are the
/// device's then: a launch that has threads on all of them waits for the one that has a turn to make.
const TURN: Nanos = Nanos(250_000);
const IN_TURNS: f64 = 0.025;
/// But beside a busy device no more than this part of the time for which the driver has nothing to do:
/// where that is little, all wait for as much longer as it gets less. Down to a share that is worth
/// knowing what to do.
const OF_IDLE: f64 = 0.1;
const LEAST_IN_TURNS: f64 = 0.005;

/// The same of the only processor, on which a device works that has little to do: whoever wakes waits
/// for no more than one such turn, and shares the processor with those that come behind it.
const SHORT_TURN: Nanos = Nanos(50_000);
const IN_SHORT_TURNS: f64 = 0.5;
/// That it has more to do is seen no sooner behind the begin of a plan.
const SEEN: Nanos = Nanos::from_ms(5);

/// A plan in turns simulates so many launches, or as many as turns have time for in as long as there
/// have been plans: one that takes longer than what it knows of is late.
const SOON: u64 = 8_000;

/// Turns of a simulation between two looks at the clock.
const LOOK_EVERY: u32 = 32;
/// The same in short turns.
const LOOK_OFTEN: u32 = 8;

/// Where all models take microseconds, their device works for less than this share of the time, and no
/// more are open than fit a batch, a plan would take more than all launches, and nobody waits for long
/// by any rule.
const IDLE: f64 = 0.05;

/// The share is that of so long, at the most, but for the time since the last launch.
const LOOKED_AT: Nanos = Nanos::from_ms(1000);

/// For how long no plan is asked for then.
const NEEDLESS: Nanos = Nanos::from_ms(100);

/// Makes one plan at a time. Threads are told to stop on drop, and end by themselves.
pub(crate) struct Planner {
    /// That the process may use, when a plan was begun last: to ask the system takes a while.
    processors: usize,
    /// Share of all of them that plans take now.
    share: f64,
    /// What the device and the driver have done; `None` before the first launch.
    done: Option<Done>,
    /// The device works on processors of the process.
    is_in_place: bool,
    /// Share of the time that turns take beside a busy device.
    in_turns: f64,
    /// When the first plan was asked for.
    first: Option<Time>,
    /// The plan that was asked for has nothing to choose.
    is_needless: bool,
    /// What is being planned, and since when.
    request: Option<(Time, Arc<PlanRequest>)>,
    /// Threads that make that plan, the first in idle time.
    attempts: Vec<Attempt>,
    /// It is made in turns, from the start or once more, or that was tried.
    is_second: bool,
    /// There was too little idle time for the last one.
    was_late: bool,
}

impl Default for Planner {
    fn default() -> Self {
        Self {
            processors: processors(),
            share: BUDGET,
            done: None,
            is_in_place: false,
            in_turns: IN_TURNS,
            first: None,
            is_needless: false,
            request: None,
            attempts: Vec::new(),
            is_second: false,
            was_late: false,
        }
    }
}

/// For how long the device has worked, in place, and the driver had nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    since: Time,
    worked: Nanos,
    idle: Nanos,
}

impl Done {
    fn nothing(since: Time) -> Self {
        Self {
            since,
            worked: Nanos::ZERO,
            idle: Nanos::ZERO,
        }
    }

    /// Parts of the time up to now.
    fn share(&self, now: Time, of: Nanos) -> f64 {
        of.0 as f64 / now.since(self.since).0.max(1) as f64
    }

    fn is_busy(&self, now: Time) -> bool {
        self.share(now, self.worked) > BUSY
    }

    fn in_turns(&self, now: Time) -> f64 {
        let idle = self.share(now, self.idle);
        (OF_IDLE * idle).clamp(LEAST_IN_TURNS, IN_TURNS)
    }
}

impl Planner {
    /// The device has worked for so long, in place, up to now.
    pub fn works(&mut self, now: Time, busy: Nanos) {
        let done = self.done.filter(|d| now.since(d.since) <= LOOKED_AT);
        let begin = Time(now.0.saturating_sub(busy.0));
        let mut done = done.unwrap_or_else(|| Done::nothing(begin));
        done.worked += busy;
        self.done = Some(done);
        self.is_in_place = true;
    }

    /// The driver had nothing to do for so long. Others may have had: who hands requests in, and plans.
    pub fn idles(&mut self, idle: Nanos) {
        if let Some(done) = &mut self.done {
            done.idle += idle;
        }
    }

    /// Begins a plan. Where there can be no thread for it, the incumbent stays, and where none is
    /// needed, which may be if all models `are_quick`.
    pub fn start(&mut self, now: Time, mut request: PlanRequest, are_quick: bool) {
        let done = self.done.replace(Done::nothing(now));
        let done = done.unwrap_or(Done::nothing(Time::ZERO));
        self.attempts.clear();
        let models = request.config.models.iter().filter(|m| !m.is_vacant());
        let batches = models.map(|m| m.max_batch as usize);
        let are_few = batches.min().is_some_and(|most| request.open.len() <= most);
        self.is_needless = are_quick && are_few && done.share(now, done.worked) < IDLE;
        if self.is_needless {
            self.request = None;
            return;
        }
        self.processors = processors();
        self.first.get_or_insert(now);
        let affordable = of_time(LONGEST, BUDGET, self.processors).0 / PLAN_LAUNCH.0;
        request.budget = request.budget.min(affordable);
        let request = Arc::new(request);
        let is_busy = done.is_busy(now);
        self.in_turns = match is_busy && now.since(done.since) >= SEEN {
            true => done.in_turns(now),
            false => IN_TURNS,
        };
        self.is_second = false;
        let begins = match self.is_in_place {
            true => Urgency::of(self.processors, is_busy, self.was_late),
            false => &[Urgency::Idle],
        };
        for &urgency in begins {
            self.attempt(now, &request, urgency);
        }
        self.request = Some((now, request));
    }

    fn attempt(&mut self, now: Time, request: &Arc<PlanRequest>, urgency: Urgency) {
        self.is_second |= urgency == Urgency::InTurns;
        let budget = self.budget(now, request, urgency);
        let pause = match urgency {
            Urgency::InTurns => rest(TURN, self.in_turns, 1),
            Urgency::Idle | Urgency::InShortTurns => Nanos::ZERO,
        };
        let attempt = Attempt::start(request.clone(), budget, urgency, pause);
        self.attempts.extend(attempt);
    }

    /// Launches that an attempt simulates.
    fn budget(&self, now: Time, request: &PlanRequest, urgency: Urgency) -> u64 {
        let known = now.since(self.first.unwrap_or(now)).min(LONGEST);
        let soon = of_time(known, self.in_turns, 1).0 / PLAN_LAUNCH.0;
        match urgency {
            Urgency::Idle | Urgency::InShortTurns => request.budget,
            Urgency::InTurns => request.budget.min(soon.max(SOON)),
        }
    }

    /// A plan that is done; one without rules if none is needed, or all who were to make it are gone.
    pub fn poll(&mut self, now: Time) -> Option<Plan> {
        if std::mem::take(&mut self.is_needless) {
            return Some(none(NEEDLESS));
        }
        let (since, request) = self.request.as_ref()?;
        if let Some(done) = self.done.filter(|d| now.since(d.since) >= SEEN) {
            let is_busy = done.is_busy(now);
            self.in_turns = match is_busy {
                true => done.in_turns(now),
                false => IN_TURNS,
            };
            let pause = rest(TURN, self.in_turns, 1);
            for attempt in &self.attempts {
                // Short turns stay short as long as it has little to do.
                if is_busy || attempt.pause.load(Ordering::Relaxed) > 0 {
                    attempt.pause.store(pause.0, Ordering::Relaxed);
                }
            }
        }
        let (mut plan, mut goes_on) = (None, false);
        for attempt in &self.attempts {
            match attempt.plan.try_recv() {
                Ok(done) if plan.is_none() => {
                    self.was_late &= attempt.urgency == Urgency::InTurns;
                    plan = Some((done, attempt.urgency));
                }
                Ok(_) => {}
                Err(TryRecvError::Empty) => goes_on = true,
                // Its thread is gone.
                Err(TryRecvError::Disconnected) => {}
            }
        }
        if let Some(((mut plan, took), urgency)) = plan {
            let spent = self.spent();
            let most_idle = match urgency {
                Urgency::Idle | Urgency::InTurns => MOST_IDLE,
                Urgency::InShortTurns => MOST_IDLE * IN_SHORT_TURNS,
            };
            let is_busy = spent.0 as f64 <= most_idle * took.0 as f64;
            self.share = match is_busy && confirms(&plan, request) {
                true => (self.share / 2.0).max(LEAST_BUDGET),
                false => BUDGET,
            };
            let rest = |share| rest(spent, share, self.processors);
            plan.rest = rest(self.share).min(rest(BUDGET).max(LONGEST_REST));
            self.request = None;
            self.attempts.clear();
            return Some(plan);
        }
        let waited = now.since(*since);
        let own = of_time(waited, BUDGET, self.processors);
        if !goes_on && self.is_second {
            self.request = None;
            return Some(none(LONGEST_REST));
        }
        if !self.is_second && waited > PATIENCE && (!goes_on || self.spent() < own) {
            self.was_late = true;
            let request = request.clone();
            self.attempt(now, &request, Urgency::InTurns);
        }
        None
    }

    /// What all attempts took.
    fn spent(&self) -> Nanos {
        let spent = |a: &Attempt| a.spent.load(Ordering::Relaxed);
        Nanos(self.attempts.iter().map(spent).sum())
    }
}

/// A plan without rules: the incumbent stays.
fn none(rest: Nanos) -> Plan {
    Plan {
        costs: Vec::new(),
        launches: 0,
        rest,
    }
}

/// Whether a plan leaves the rule that was there when it was asked for.
fn confirms(plan: &Plan, request: &PlanRequest) -> bool {
    let incumbent = request.candidates.first();
    let cost = |name| plan.costs.iter().find(|c| Some(&c.0) == name).map(|c| c.1);
    let least = plan.costs.first().map(|c| c.1 as f64);
    let own = cost(incumbent).map(|c| c as f64 * (1.0 - request.hysteresis));
    own.zip(least).is_some_and(|(own, least)| own <= least)
}

/// When a plan is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    /// When a processor has nothing else to do.
    Idle,
    /// As the driver is, but for a very short while at a time, and again soon.
    InShortTurns,
    /// As the driver is, but for a short while at a time.
    InTurns,
}

impl Urgency {
    /// How a plan begins, beside a device that `is_busy` or not; `was_late` if there was too little
    /// idle time for the last one. That there is some now is only seen by who asks for it.
    fn of(processors: usize, is_busy: bool, was_late: bool) -> &'static [Self] {
        match (is_busy, processors) {
            (true, 1) => &[Self::InTurns],
            (false, 1) if cfg!(target_os = "linux") => &[Self::InShortTurns],
            (true, _) if was_late => &[Self::Idle, Self::InTurns],
            _ => &[Self::Idle],
        }
    }

    /// How long turns and the pauses between them are, and after how many steps one looks whether a turn
    /// is over, where the device has so much to do that there are pauses of this length, or zero.
    fn turns(self, busy: Nanos) -> Option<(Nanos, Nanos, u32)> {
        match self {
            Self::Idle => None,
            Self::InShortTurns if busy == Nanos::ZERO => {
                let pause = rest(SHORT_TURN, IN_SHORT_TURNS, 1);
                Some((SHORT_TURN, pause, LOOK_OFTEN))
            }
            Self::InShortTurns | Self::InTurns => Some((TURN, busy, LOOK_EVERY)),
        }
    }

    /// Lets other threads go before the calling one: a plan may come late, the device's threads may
    /// not. Where the system cannot do it, the thread keeps its priority.
    #[cfg(target_os = "linux")]
    fn apply(self) {
        /// Of 19, the least urgent.
        const NICE: i32 = 15;
        if self == Self::Idle {
            // On Linux a nice value and a policy belong to a thread; without a process it is the
            // calling one's.
            let _ = rustix::process::setpriority_process(None, NICE);
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
    urgency: Urgency,
    /// With the time that it took.
    plan: Receiver<(Plan, Nanos)>,
    stop: Arc<AtomicBool>,
    /// Nanoseconds between turns while the device has work; zero while it has little, and short turns do.
    pause: Arc<AtomicU64>,
    /// Nanoseconds of a processor that it took, but for the last few turns of its simulation.
    spent: Arc<AtomicU64>,
}

impl Attempt {
    fn start(
        request: Arc<PlanRequest>,
        budget: u64,
        urgency: Urgency,
        pause: Nanos,
    ) -> Option<Self> {
        let (outbox, plan) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (spent, pause) = (Arc::default(), Arc::new(AtomicU64::new(pause.0)));
        let (stopped, told, paused) = (stop.clone(), Arc::clone(&spent), pause.clone());
        let thread = std::thread::Builder::new().name("lazybatch-plan".into());
        let clock = Clock::start();
        let work = move || {
            urgency.apply();
            let pace = Pace::start(urgency, told, paused);
            let is_stopped = || {
                pace.step();
                stopped.load(Ordering::Relaxed)
            };
            let plan = plan::make(&request, budget, &is_stopped);
            pace.tell();
            // Another attempt may have been faster.
            drop(outbox.send((plan, clock.now().since(Time::ZERO))));
        };
        // Nobody waits for it: a stopped one ends with the rule that it simulates.
        let started = thread.spawn(work);
        started.ok().map(|_| Self {
            urgency,
            plan,
            stop,
            pause,
            spent,
        })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Tells what an attempt takes, and makes its pauses.
struct Pace {
    start: Spent,
    told: Arc<AtomicU64>,
    urgency: Urgency,
    /// See [`Attempt::pause`].
    pause: Arc<AtomicU64>,
    /// What it may have taken at the end of this one.
    until: Cell<Nanos>,
    steps: Cell<u32>,
}

impl Pace {
    fn start(urgency: Urgency, told: Arc<AtomicU64>, pause: Arc<AtomicU64>) -> Self {
        let pace = Self {
            start: Spent::start(),
            told,
            urgency,
            pause,
            until: Cell::default(),
            steps: Cell::new(0),
        };
        pace.until
            .set(pace.turns().map_or(Nanos::ZERO, |(turn, ..)| turn));
        pace
    }

    fn step(&self) {
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        let turns = self.turns();
        let look_every = turns.map_or(LOOK_EVERY, |t| t.2);
        if !steps.is_multiple_of(look_every) {
            return;
        }
        let spent = self.tell();
        if let Some((turn, pause, _)) = turns.filter(|_| spent >= self.until.get()) {
            self.until.set(spent + turn);
            std::thread::park_timeout(Duration::from_nanos(pause.0));
        }
    }

    /// The turns that it has now.
    fn turns(&self) -> Option<(Nanos, Nanos, u32)> {
        let pause = self.pause.load(Ordering::Relaxed);
        self.urgency.turns(Nanos(pause))
    }

    fn tell(&self) -> Nanos {
        let spent = self.start.so_far();
        self.told.store(spent.0, Ordering::Relaxed);
        spent
    }
}

/// Processors that the process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// How much of a processor is a share of all of them, but no more than one, in a time.
fn of_time(time: Nanos, share: f64, processors: usize) -> Nanos {
    Nanos((time.0 as f64 * (share * processors as f64).min(1.0)) as u64)
}

/// For how long there is no plan behind one that took so much of a processor.
fn rest(spent: Nanos, share: f64, processors: usize) -> Nanos {
    let share = (share * processors as f64).min(1.0);
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
struct Spent(Clock);

#[cfg(not(target_os = "linux"))]
impl Spent {
    fn start() -> Self {
        Self(Clock::start())
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
            max_steps: None,
        };
        PlanRequest {
            config: CoreConfig::new(vec![model]),
            arrivals: (0..4096).map(past).collect(),
            open: Vec::new(),
            candidates: ["front", "join:0", "cellular"].map(String::from).to_vec(),
            miss_weight: 3.0,
            hysteresis: 0.02,
            repeats: 1,
            per_request: Nanos::ZERO,
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
    fn where_its_threads_are_gone_the_next_plan_may_come() {
        for has_died in [false, true] {
            let mut planner = Planner::default();
            planner.start(Time::ZERO, request(), false);
            // It could not be started, or ended without a plan.
            planner.attempts.clear();
            if has_died {
                let gone = Attempt {
                    urgency: Urgency::Idle,
                    plan: mpsc::channel().1,
                    stop: Arc::default(),
                    pause: Arc::default(),
                    spent: Arc::new(AtomicU64::new(u64::MAX)),
                };
                planner.attempts.push(gone);
            }
            planner.is_second = false;
            assert!(planner.poll(Time::ZERO).is_none(), "it is tried once more");
            let late = Time::ZERO + PATIENCE + Nanos(1);
            assert!(planner.poll(late).is_none() && planner.is_second);
            planner
                .attempts
                .retain(|a| a.spent.load(Ordering::Relaxed) == u64::MAX);
            let plan = planner.poll(late).expect("an empty one");
            assert!(plan.costs.is_empty() && plan.rest > Nanos::ZERO);
            assert!(planner.poll(late).is_none());
            planner.start(late, request(), false);
            assert_eq!(wait(&mut planner, late).costs.len(), 3);
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
    fn a_busy_processor_that_is_the_only_one_is_shared_in_turns() {
        let ms = Nanos::from_ms;
        for was_late in [false, true] {
            assert_eq!(Urgency::of(1, true, was_late), [Urgency::InTurns]);
            let quiet = match cfg!(target_os = "linux") {
                true => Urgency::InShortTurns,
                false => Urgency::Idle,
            };
            assert_eq!(Urgency::of(1, false, was_late), [quiet]);
        }
        // What was before the first launch does not count.
        let mut planner = Planner::default();
        planner.works(Time::ZERO + ms(30), ms(4));
        planner.works(Time::ZERO + ms(35), ms(5));
        planner.idles(ms(1));
        let expected = Done {
            since: Time::ZERO + ms(26),
            worked: ms(9),
            idle: ms(1),
        };
        assert_eq!(planner.done, Some(expected));
    }

    #[test]
    fn short_turns_become_usual_ones_once_the_device_has_work() {
        let pace = |urgency, busy| {
            let busy = Arc::new(AtomicU64::new(busy));
            Pace::start(urgency, Arc::default(), busy).turns()
        };
        let usual = Urgency::InTurns.turns(Nanos(7));
        assert_eq!(usual, Some((TURN, Nanos(7), LOOK_EVERY)));
        assert_ne!(pace(Urgency::InShortTurns, 0), usual);
        assert_eq!(pace(Urgency::InShortTurns, 7), usual);
        assert_eq!(pace(Urgency::Idle, 7), None);
        for (busy_us, is_seen) in [(2_400, false), (2_600, true)] {
            let mut planner = Planner::default();
            planner.start(Time::ZERO, request(), false);
            let busy = Nanos(busy_us * 1000);
            planner.works(Time::ZERO + busy, busy);
            // The plan may be there by then.
            let pause = planner.attempts[0].pause.clone();
            let (_quiet, plan) = mpsc::channel();
            planner.attempts[0].plan = plan;
            assert!(planner.poll(Time::ZERO + SEEN).is_none());
            let pause = pause.load(Ordering::Relaxed);
            assert_eq!(pause > 0, is_seen, "{busy_us} us");
        }
    }

    #[test]
    fn behind_a_late_plan_the_next_is_made_in_turns_too_until_idle_time_is_enough() {
        let both = [Urgency::Idle, Urgency::InTurns];
        assert_eq!(Urgency::of(2, true, true), both);
        assert_eq!(Urgency::of(2, true, false), [Urgency::Idle]);
        assert_eq!(Urgency::of(2, false, true), [Urgency::Idle]);
        let mut planner = Planner::default();
        planner.start(Time::ZERO, request(), false);
        // An attempt that tells nothing finds no time.
        let quiet = || mpsc::channel();
        let (outbox, plan) = quiet();
        planner.attempts[0].plan = plan;
        planner.attempts[0].spent = Arc::default();
        assert!(!planner.was_late);
        let late = Time::ZERO + PATIENCE + Nanos(1);
        assert!(planner.poll(late).is_none() && planner.was_late);
        wait(&mut planner, late);
        drop(outbox);
        assert!(planner.was_late, "the turns were faster");
        planner.works(late, late.since(Time::ZERO));
        planner.start(late, request(), false);
        if planner.processors > 1 {
            let begun: Vec<Urgency> = planner.attempts.iter().map(|a| a.urgency).collect();
            assert_eq!(begun, both);
            assert!(planner.is_second, "there is no third");
            // The one in turns tells nothing.
            let (_outbox, plan) = quiet();
            planner.attempts[1].plan = plan;
            wait(&mut planner, late);
            assert!(!planner.was_late);
        }
    }

    #[test]
    fn plans_that_change_nothing_come_later_where_they_cost_launches() {
        let mut planner = Planner {
            processors: 1,
            ..Planner::default()
        };
        let request = Arc::new(request());
        // Rest behind a plan whose first candidate costs that, another 100, made in a tenth of a
        // processor or in all of one.
        let mut rest_of = |urgency, own: u64, spent_ms: u64, times: u64| {
            let (outbox, plan) = mpsc::channel();
            let costs = [("join:0", 100), ("front", own)].map(|(n, c)| (n.to_string(), c));
            let mut costs = costs.to_vec();
            costs.sort_by_key(|c| c.1);
            let made = Plan {
                costs,
                ..Plan::default()
            };
            let spent = Nanos::from_ms(spent_ms);
            let took = Nanos(spent.0 * times);
            outbox.send((made, took)).unwrap();
            planner.request = Some((Time::ZERO, request.clone()));
            planner.attempts = vec![Attempt {
                urgency,
                plan,
                stop: Arc::default(),
                pause: Arc::default(),
                spent: Arc::new(AtomicU64::new(spent.0)),
            }];
            let plan = planner.poll(Time::ZERO).expect("it is made");
            (plan.rest.0 as f64 / spent.0 as f64).round()
        };
        let mut rest = |own, spent_ms, is_busy: bool| {
            rest_of(Urgency::Idle, own, spent_ms, if is_busy { 10 } else { 1 })
        };
        assert_eq!(rest(100, 50, false), 19.0, "5 %");
        assert_eq!(rest(102, 50, true), 39.0, "2.5 %, as 2 % change nothing");
        assert_eq!(rest(100, 50, true), 79.0);
        assert_eq!(rest(100, 50, true), 159.0);
        assert_eq!(rest(100, 50, true), 199.0, "0.5 % at the least");
        assert_eq!(rest(100, 200, true), 50.0, "10 s at the most");
        assert_eq!(rest(100, 1000, true), 19.0, "but 5 % at the most");
        assert_eq!(rest(103, 50, true), 19.0, "another rule is better");
        assert_eq!(rest(100, 50, true), 39.0);
        assert_eq!(rest(100, 50, false), 19.0, "in idle time");
        let mut in_turns = |times| rest_of(Urgency::InShortTurns, 100, 50, times);
        assert_eq!(in_turns(3), 19.0, "pauses are its own");
        assert_eq!(in_turns(5), 39.0);
    }

    #[test]
    fn a_plan_is_no_larger_than_the_processors_have_time_for() {
        let mut planner = Planner::default();
        planner.start(Time::ZERO, request(), false);
        let budget = planner.request.as_ref().map(|r| r.1.budget);
        // 5 % of each processor for 4 s at a microsecond each, or all of one.
        let most = 200_000 * processors().min(20) as u64;
        assert_eq!(budget, Some(most.min(1_000_000)));
    }

    #[test]
    fn a_plan_in_turns_is_over_in_no_longer_than_there_were_plans_or_soon() {
        let mut planner = Planner::default();
        let begin = Time::ZERO + Nanos::from_ms(7_000);
        planner.start(begin, request(), false);
        let at = |ms: u64, urgency| {
            let now = begin + Nanos::from_ms(ms);
            planner.budget(now, &request(), urgency)
        };
        // 2.5 % of the time, at a microsecond each.
        let in_turns = [0, 100, 1_000, 4_000, 60_000].map(|ms| at(ms, Urgency::InTurns));
        assert_eq!(in_turns, [SOON, SOON, 25_000, 100_000, 100_000]);
        assert_eq!(at(100, Urgency::Idle), request().budget);
    }

    #[test]
    fn turns_take_a_part_of_what_is_idle() {
        let second = Time::ZERO + Nanos::from_ms(1000);
        for (worked_ms, idle_ms, share) in [
            (600, 400, IN_TURNS),
            (800, 200, 0.02),
            // A tenth is the host's.
            (700, 200, 0.02),
            (900, 70, 0.007),
            (990, 0, LEAST_IN_TURNS),
        ] {
            let mut planner = Planner::default();
            planner.works(second, Nanos::from_ms(worked_ms));
            planner.done = planner.done.map(|d| Done {
                since: Time::ZERO,
                ..d
            });
            planner.idles(Nanos::from_ms(idle_ms));
            planner.start(second, request(), false);
            let is_close = (planner.in_turns - share).abs() < 1e-9;
            assert!(is_close, "{idle_ms} ms: {}", planner.in_turns);
            let soon = |at: Time| planner.budget(at, &request(), Urgency::InTurns);
            assert_eq!(soon(second), SOON);
            let late = second + Nanos::from_ms(4000);
            assert_eq!(soon(late), (4e6 * share).round() as u64, "{idle_ms} ms");
        }
        // Who has little to do has the whole share, if it gets to turns.
        let mut planner = Planner::default();
        planner.works(second, Nanos::from_ms(100));
        planner.start(second + Nanos::from_ms(900), request(), false);
        assert_eq!(planner.in_turns, IN_TURNS);
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
                past: request.arrivals[0],
                since: Nanos::ZERO,
                place: None,
            };
            request.open = vec![open; num_open];
            planner.start(hour, request, true);
            let plan = wait(&mut planner, hour);
            assert_eq!(plan.costs.is_empty(), is_needless, "{num_open}, {busy:?}");
        }
    }
}
