//! Makes plans beside the driver, in time that nobody else wants, within a budget of it; on hosts of many
//! processors on several threads: what a plan takes of them is the same, and it is there sooner.
//!
//! Where the driver leaves no such time, a plan is made in short turns with pauses, so that no launch
//! waits for more than one of them, and the next one begins in turns too; and as plans cost launches
//! then, one that leaves the rule as it is makes the next come later. Beside a busy device turns take a
//! part of what the driver idles: the less that is, the more all wait for what plans take. Only the first
//! few plans, small ones, take more, and come sooner behind each other until some have left the rule as it
//! was: all wait for longer by a rule that was chosen for anyone, or by a few arrivals.
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

use super::plan::{self, Crew};
use super::threaded::Clock;
use super::virtual_time::PLAN_LAUNCH;
use crate::core::{Plan, PlanRequest};
use crate::threads::Claim;

/// Share of all available processors that plans may take: behind each plan the policy asks for none
/// until what that took is no more.
pub const BUDGET: f64 = 0.05;

/// The most while processors are busy, so that what plans take is missing elsewhere, but at the
/// beginning, while they change the rule; and the least, where plans confirm the rule that there is, each
/// of which halves the share.
const BUSY_BUDGET: f64 = 0.01;
const LEAST_BUDGET: f64 = 0.005;
/// A plan in idle time is made on one thread for each so many processors, and on so many at the most.
const PROCESSORS_PER_THREAD: usize = 4;
const MOST_THREADS: usize = 4;

/// Longest rest that follows from a smaller share than [`BUDGET`].
const LONGEST_REST: Nanos = Nanos::from_ms(10_000);
/// Processors are busy if the time that a plan took of one is at most this part of what it took, or of
/// what turns with pauses of their own may take of that.
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
/// The same for the first plan, which simulates no more than [`SOON`], and for the first behind a request to
/// a model that none was asked for before: until it is there, the rule is one that was chosen for anyone.
/// And for those behind the first until the beginning is over, as they know of few arrivals, and the sooner
/// they know of more the better; and they take [`BUDGET`] of the time.
const IN_FIRST_TURNS: f64 = 0.25;
const IN_EARLY_TURNS: f64 = 0.05;
/// The beginning is over when plans have taken so much of a processor. One that cost launches and left the
/// rule as it was counts as so much more, and the next does not come sooner than later on: the rule to
/// begin with is a good one there.
const BEGINNING: Nanos = Nanos::from_ms(300);
const CONFIRMED: Nanos = Nanos::from_ms(100);

/// A plan that one thread makes in idle time pauses behind each turn, so that turns are that share of its
/// time. One that never sleeps hides from Linux that its processor has nothing else to do: a driver and a
/// thread of the device that have come to share another one went on sharing it for 40 ms and more, while
/// launches took several times as long. Seen on Linux 6.18 with two processors.
const IN_IDLE_TURNS: f64 = 0.5;

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
    usage: Option<Usage>,
    /// The device works on processors of the process.
    is_in_place: bool,
    /// Share of the time that turns take beside a busy device.
    in_turns: f64,
    /// When the first plan was asked for.
    first: Option<Time>,
    /// No plan before knew the models of the one that is being made.
    is_first: bool,
    /// The plan that was asked for has nothing to choose.
    is_needless: bool,
    /// What is being planned, and since when.
    request: Option<(Time, Arc<PlanRequest>)>,
    /// Threads that make that plan, the first in idle time.
    attempts: Vec<Attempt>,
    /// It is made in turns, from the start or once more, or that was tried.
    is_second: bool,
    /// There was too little idle time for the last one, or there was none.
    was_late: bool,
    /// What plans may take until the beginning is over.
    beginning: Nanos,
}

impl Default for Planner {
    fn default() -> Self {
        Self {
            processors: processors(),
            share: BUDGET,
            usage: None,
            is_in_place: false,
            in_turns: IN_TURNS,
            first: None,
            is_first: true,
            is_needless: false,
            request: None,
            attempts: Vec::new(),
            is_second: false,
            was_late: true,
            beginning: BEGINNING,
        }
    }
}

/// For how long the device has worked, in place, and the driver had nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Usage {
    since: Time,
    worked: Nanos,
    idle: Nanos,
}

impl Usage {
    fn nothing(since: Time) -> Self {
        Self {
            since,
            worked: Nanos::ZERO,
            idle: Nanos::ZERO,
        }
    }

    /// What part of the time up to now that is.
    fn share(&self, now: Time, of: Nanos) -> f64 {
        of.0 as f64 / now.since(self.since).0.max(1) as f64
    }

    fn is_busy(&self, now: Time) -> bool {
        self.share(now, self.worked) > BUSY
    }

    /// The share that turns may take beside a busy device.
    fn in_turns(&self, now: Time) -> f64 {
        let idle = self.share(now, self.idle);
        (OF_IDLE * idle).clamp(LEAST_IN_TURNS, IN_TURNS)
    }
}

impl Planner {
    /// The device has worked for so long, in place, up to now.
    pub fn works(&mut self, now: Time, busy: Nanos) {
        let done = self.usage.filter(|d| now.since(d.since) <= LOOKED_AT);
        let begin = Time(now.0.saturating_sub(busy.0));
        let mut done = done.unwrap_or_else(|| Usage::nothing(begin));
        done.worked += busy;
        self.usage = Some(done);
        self.is_in_place = true;
    }

    /// The driver had nothing to do for so long. Others may have had: who hands requests in, and plans.
    pub fn idles(&mut self, idle: Nanos) {
        if let Some(done) = &mut self.usage {
            done.idle += idle;
        }
    }

    /// Begins a plan. Where there can be no thread for it, the incumbent stays, and where none is
    /// needed, which may be if all models `are_quick`.
    pub fn start(&mut self, now: Time, mut request: PlanRequest, are_quick: bool) {
        let done = self.usage.replace(Usage::nothing(now));
        let done = done.unwrap_or(Usage::nothing(Time::ZERO));
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
        self.is_first = request.is_first;
        let affordable = of_time(LONGEST, BUDGET, self.processors).0 / PLAN_LAUNCH.0;
        request.budget = request.budget.min(affordable);
        let request = Arc::new(request);
        let is_busy = done.is_busy(now);
        let is_seen = now.since(done.since) >= SEEN;
        self.in_turns = self.share_of_turns(now, is_seen.then_some(done));
        self.is_second = false;
        let begins = match self.is_in_place {
            true => Urgency::of(self.processors, is_busy, self.was_late || self.is_first),
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
            Urgency::InTurns => pause(TURN, self.in_turns),
            Urgency::Idle if threads(self.processors) == 1 => pause(TURN, IN_IDLE_TURNS),
            Urgency::Idle | Urgency::InShortTurns => Nanos::ZERO,
        };
        let threads = match urgency {
            Urgency::Idle => threads(self.processors),
            Urgency::InTurns | Urgency::InShortTurns => 1,
        };
        let attempt = Attempt::start(request.clone(), (budget, threads), urgency, pause);
        self.attempts.extend(attempt);
    }

    /// Share of the time that turns take beside a device that has worked so much.
    fn share_of_turns(&self, now: Time, done: Option<Usage>) -> f64 {
        match done.filter(|d| d.is_busy(now)) {
            _ if self.is_first || self.beginning == BEGINNING => IN_FIRST_TURNS,
            _ if self.begins() => IN_EARLY_TURNS,
            Some(done) => done.in_turns(now),
            None => IN_TURNS,
        }
    }

    /// Whether plans have taken so little so far that they may take more than their share.
    fn begins(&self) -> bool {
        self.beginning > Nanos::ZERO
    }

    /// Launches that an attempt simulates.
    fn budget(&self, now: Time, request: &PlanRequest, urgency: Urgency) -> u64 {
        let known = now.since(self.first.unwrap_or(now)).min(LONGEST);
        let soon = of_time(known, self.in_turns, 1).0 / PLAN_LAUNCH.0;
        match urgency {
            Urgency::Idle | Urgency::InShortTurns => request.budget,
            Urgency::InTurns if self.is_first || self.begins() => request.budget.min(SOON),
            Urgency::InTurns => request.budget.min(soon.max(SOON)),
        }
    }

    /// A plan that is done; one without rules if none is needed, or all who were to make it are gone.
    pub fn poll(&mut self, now: Time) -> Option<Plan> {
        if std::mem::take(&mut self.is_needless) {
            return Some(none(NEEDLESS));
        }
        let (since, request) = self.request.as_ref()?;
        if let Some(done) = self.usage.filter(|d| now.since(d.since) >= SEEN) {
            let is_busy = done.is_busy(now);
            self.in_turns = self.share_of_turns(now, Some(done));
            let pause = pause(TURN, self.in_turns);
            let in_turns = |a: &&Attempt| a.urgency != Urgency::Idle;
            for attempt in self.attempts.iter().filter(in_turns) {
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
                    plan = Some((done, attempt.urgency, attempt.threads));
                }
                Ok(_) => {}
                Err(TryRecvError::Empty) => goes_on = true,
                // Its thread is gone.
                Err(TryRecvError::Disconnected) => {}
            }
        }
        if let Some(((mut plan, took), urgency, threads)) = plan {
            let spent = self.spent();
            let most_idle = match urgency {
                Urgency::Idle if threads == 1 => MOST_IDLE * IN_IDLE_TURNS,
                Urgency::Idle | Urgency::InTurns => MOST_IDLE,
                Urgency::InShortTurns => MOST_IDLE * IN_SHORT_TURNS,
            };
            let is_busy = spent.0 as f64 <= most_idle * took.0 as f64;
            self.beginning = Nanos(self.beginning.0.saturating_sub(spent.0));
            self.share = match (is_busy, confirms(&plan, request)) {
                (false, _) => BUDGET,
                (true, true) if self.begins() => {
                    self.beginning = Nanos(self.beginning.0.saturating_sub(CONFIRMED.0));
                    BUSY_BUDGET
                }
                (true, false) if self.begins() => BUDGET,
                (true, false) => BUSY_BUDGET,
                (true, true) => (self.share / 2.0).clamp(LEAST_BUDGET, BUSY_BUDGET),
            };
            // It took this at the least, and longer only where others had the processors.
            let took = Nanos(spent.0 / threads as u64);
            let rest = |share| rest(spent, share, self.processors, took);
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
        rest,
        ..Plan::default()
    }
}

/// Whether a plan leaves the rule that was there when it was asked for.
fn confirms(plan: &Plan, request: &PlanRequest) -> bool {
    let Some(incumbent) = request.candidates.first() else {
        return false;
    };
    let has_cost = plan.costs.iter().any(|c| c.0 == *incumbent);
    has_cost && plan.better(incumbent, &request.weighing).is_none()
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
            Self::Idle if busy == Nanos::ZERO => None,
            Self::InShortTurns if busy == Nanos::ZERO => {
                let pause = pause(SHORT_TURN, IN_SHORT_TURNS);
                Some((SHORT_TURN, pause, LOOK_OFTEN))
            }
            Self::Idle | Self::InShortTurns | Self::InTurns => Some((TURN, busy, LOOK_EVERY)),
        }
    }

    /// Lets other threads go before the calling one: a plan may come late, the device's threads may
    /// not. Where the system cannot do it, the thread keeps its claim.
    fn apply(self) {
        if self == Self::Idle {
            Claim::Idle.take();
        }
    }
}

/// A thread that makes one plan, with others that help.
struct Attempt {
    urgency: Urgency,
    threads: usize,
    /// With the time that it took.
    plan: Receiver<(Plan, Nanos)>,
    stop: Arc<AtomicBool>,
    /// Nanoseconds between turns while the device has work, or in idle time; zero where short turns do, or
    /// none are made.
    pause: Arc<AtomicU64>,
    /// Nanoseconds of processors that it took, but for the last few turns of its simulations.
    spent: Arc<AtomicU64>,
}

impl Attempt {
    fn start(
        request: Arc<PlanRequest>,
        (budget, threads): (u64, usize),
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
            // Threads that it starts have its claim.
            urgency.apply();
            let begin = || -> plan::AtTurn {
                let pace = Pace::start(urgency, Arc::clone(&told), Arc::clone(&paused));
                let stopped = Arc::clone(&stopped);
                Box::new(move || {
                    let is_stopped = || stopped.load(Ordering::Relaxed);
                    is_stopped() || {
                        pace.step();
                        is_stopped()
                    }
                })
            };
            let crew = Crew {
                threads,
                begin: &begin,
            };
            let plan = plan::make(&request, budget, &crew).plan;
            // Another attempt may have been faster.
            drop(outbox.send((plan, clock.now().since(Time::ZERO))));
        };
        // Nobody waits for it: a stopped one ends with the turn of a simulation that it makes.
        let started = thread.spawn(work);
        started.ok().map(|_| Self {
            urgency,
            threads,
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

/// Tells what a thread of an attempt takes, and makes its pauses.
struct Pace {
    start: Spent,
    /// What all threads of the attempt have taken, and what of it this one has told.
    all: Arc<AtomicU64>,
    told: Cell<Nanos>,
    urgency: Urgency,
    /// See [`Attempt::pause`].
    pause: Arc<AtomicU64>,
    /// What it may have taken at the end of this one.
    until: Cell<Nanos>,
    steps: Cell<u32>,
}

impl Pace {
    fn start(urgency: Urgency, all: Arc<AtomicU64>, pause: Arc<AtomicU64>) -> Self {
        let pace = Self {
            start: Spent::start(),
            all,
            told: Cell::default(),
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
        let before = self.told.replace(spent);
        let more = spent.0.saturating_sub(before.0);
        self.all.fetch_add(more, Ordering::Relaxed);
        spent
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.tell();
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

/// For how long there is no plan behind one that `took` so long and that much of processors: so that it
/// is a share of all of them, but no more than one.
pub(super) fn rest(spent: Nanos, share: f64, processors: usize, took: Nanos) -> Nanos {
    let share = (share * processors as f64).min(1.0);
    Nanos(((spent.0 as f64 / share) as u64).saturating_sub(took.0))
}

/// For how long a thread pauses behind such a turn, so that turns are that share of its time.
fn pause(turn: Nanos, share: f64) -> Nanos {
    rest(turn, share, 1, turn)
}

/// Threads that make a plan in idle time.
pub(super) fn threads(processors: usize) -> usize {
    (processors / PROCESSORS_PER_THREAD).clamp(1, MOST_THREADS)
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
mod tests;
