//! Runs a core against a simulated device in virtual time.
//!
//! Jumps from event to event. At one timestamp: all completions, then all arrivals in order of id,
//! then cancellations, then wake-ups, then one decision per free lane.

use std::collections::VecDeque;

use lazybatch_kernels::{Device, OpenRequest, Plan as Prepared};
use lazybatch_sla::{ClassId, ModelId, Nanos, Outcome, RequestId, Time};

use super::plan::{self, Crew};
use super::{Observer, planner};
use crate::core::{Action, Core, Event, Plan, Request};

/// Virtual time that a plan takes for each launch that it simulates, the arrivals and endings around
/// it included: processor time, measured (`lazybatch-measure steady`: 930 to 960 ns on a calm
/// machine, up to 1850 ns on a busy one).
pub const PLAN_LAUNCH: Nanos = Nanos(1_000);
/// Plans in virtual time are those of a host with so many processors: made on as many threads, with as
/// much rest behind them.
const HOST: usize = 16;

/// A request and what only the simulated device knows of it.
#[derive(Clone, Debug)]
pub struct SimRequest {
    /// The request; its id is its position in the list of arrivals.
    pub request: Request,
    /// True output length. 0 makes `max_steps` 0.
    pub output_len: u32,
}

impl SimRequest {
    /// A request of one sample, with `UntilStop` blocks of `output_len` passes.
    pub fn new(
        id: u64,
        model: ModelId,
        arrival: Time,
        sla: Option<Nanos>,
        input_len: u32,
        output_len: u32,
    ) -> Self {
        Self {
            request: Request {
                id: RequestId(id),
                model,
                arrival,
                sla,
                class: ClassId::default(),
                priority: 0,
                delay_after: None,
                samples: 1,
                input_len,
                sequence: None,
                max_steps: (output_len == 0).then_some(0),
                known_output_len: None,
            },
            output_len,
        }
    }
}

/// How one request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The request.
    pub id: RequestId,
    /// When it was launched first.
    pub first_launch: Option<Time>,
    /// When it ended.
    pub finish: Time,
    /// How.
    pub outcome: Outcome,
}

/// What happens beside arrivals and completions.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Cancellations, sorted by time.
    pub cancels: Vec<(Time, RequestId)>,
    /// Evictions, sorted by time.
    pub evicts: Vec<(Time, ModelId)>,
    /// Time from `Load` to `Loaded`.
    pub load: Nanos,
    /// No event at or after this time is handled; what is open then stays open.
    pub stop_at: Option<Time>,
    /// So many of the first arrivals are in the batch table at the start, at time zero
    /// ([`Core::place`]).
    pub num_placed: usize,
}

/// Runs all arrivals to their end; how each request ended, in order of ending. `observer` sees
/// every event, launch and action; requests that were placed have no arrival. `timer` is called once at
/// each turn, before the core's actions are taken: who times decisions calls [`Core::decide`] in it.
///
/// # Panics
/// If ids are not positions, arrivals are not sorted, or the core waits for ever with requests
/// open (a bug of its policy).
pub fn run(
    core: &mut Core,
    device: &mut dyn Device,
    arrivals: &[SimRequest],
    script: &Script,
    observer: &mut dyn Observer,
    timer: &mut dyn FnMut(&mut Core, Time),
) -> Vec<Ended> {
    let mut at_turn = |core: &mut Core, now: Time| {
        timer(core, now);
        false
    };
    run_unless(core, device, arrivals, script, observer, &mut at_turn).unwrap_or_default()
}

/// The same, but for a run that stops as soon as `at_turn`, in the place of the timer, says so: then there
/// is nothing to tell of it.
pub(super) fn run_unless(
    core: &mut Core,
    device: &mut dyn Device,
    arrivals: &[SimRequest],
    script: &Script,
    observer: &mut dyn Observer,
    at_turn: &mut dyn FnMut(&mut Core, Time) -> bool,
) -> Option<Vec<Ended>> {
    let mut ended = Vec::with_capacity(arrivals.len());
    let mut next = script.num_placed;
    let mut is_placed = next > 0;
    let mut cancels = script.cancels.iter().peekable();
    let mut evicts = script.evicts.iter().peekable();
    let mut loads: Vec<(Time, ModelId)> = Vec::new();
    let mut plans: VecDeque<(Time, Plan)> = VecDeque::new();
    loop {
        let now = [
            std::mem::take(&mut is_placed).then_some(Time::ZERO),
            device.next_completion(),
            arrivals.get(next).map(|a| a.request.arrival),
            cancels.peek().map(|c| c.0),
            evicts.peek().map(|e| e.0),
            loads.first().map(|l| l.0),
            // A plan alone keeps no run going.
            plans
                .front()
                .map(|p| p.0)
                .filter(|_| next < arrivals.len() || core.num_open() > 0),
            core.next_wakeup(),
        ]
        .into_iter()
        .flatten()
        .min();
        let Some(now) = now.filter(|&now| script.stop_at.is_none_or(|end| now < end)) else {
            break;
        };
        let mut take = |core: &mut Core, event: Event| {
            observer.on_event(now, &event);
            core.handle(now, event);
        };
        while let Some(done) = device.poll(now) {
            let took = done.busy;
            take(core, super::done(done, took));
        }
        while let Some(arrival) = arrivals.get(next).filter(|a| a.request.arrival <= now) {
            assert_eq!(
                arrival.request.id,
                RequestId(next as u64),
                "ids are positions"
            );
            take(core, Event::Arrive(arrival.request.clone()));
            next += 1;
        }
        while let Some(&(_, id)) = cancels.next_if(|c| c.0 <= now) {
            take(core, Event::Cancel(id));
        }
        while let Some(&(_, model)) = evicts.next_if(|e| e.0 <= now) {
            take(core, Event::Evict(model));
        }
        while loads.first().is_some_and(|l| l.0 <= now) {
            take(core, Event::Loaded(loads.remove(0).1));
        }
        while plans.front().is_some_and(|p| p.0 <= now)
            && let Some((_, plan)) = plans.pop_front()
        {
            take(core, Event::Planned(plan));
        }
        if core.next_wakeup() == Some(now) {
            take(core, Event::Wake);
        }
        if at_turn(core, now) {
            return None;
        }
        while let Some(action) = core.poll_action(now) {
            match &action {
                Action::Launch { ticket, lane } => {
                    let launch = core.launch(*lane, *ticket);
                    observer.on_launch(now, launch);
                    device
                        .enqueue(now, Prepared(0), launch)
                        .expect("simulated launches are accepted");
                    continue;
                }
                Action::Open { request, slot } => {
                    open(device, &arrivals[request.index()], *slot);
                }
                Action::Finish {
                    request,
                    outcome,
                    first_launch,
                    ..
                } => ended.push(Ended {
                    id: *request,
                    first_launch: *first_launch,
                    finish: now,
                    outcome: *outcome,
                }),
                Action::Release { slot, .. } => {
                    device.close(*slot);
                }
                Action::Load(model) => loads.push((now + script.load, *model)),
                Action::Plan => {
                    let plan = core.take_plan().expect("asked for together");
                    let made = plan::make(&plan, plan.budget, &Crew::ALONE);
                    let took = Nanos(PLAN_LAUNCH.0 * made.in_line(planner::threads(HOST)));
                    let mut plan = made.plan;
                    let spent = Nanos(PLAN_LAUNCH.0 * plan.launches);
                    plan.rest = planner::rest(spent, planner::BUDGET, HOST, took);
                    plans.push_back((now + took, plan));
                }
                Action::Evict(_) | Action::Vacate(_) | Action::Note(_) => {}
            }
            observer.on_action(now, &action);
        }
    }
    assert!(
        script.stop_at.is_some() || core.num_open() == 0,
        "{} requests wait for ever",
        core.num_open()
    );
    Some(ended)
}

fn open(device: &mut dyn Device, sim: &SimRequest, slot: lazybatch_sla::Slot) {
    let request = OpenRequest {
        slot,
        request: sim.request.id,
        model: sim.request.model,
        inputs: &[],
        input_len: sim.request.input_len,
        samples: sim.request.samples,
        output_len: Some(sim.output_len),
    };
    device
        .open(&request)
        .expect("simulated requests always open");
}

/// A timer that does not time.
pub fn untimed(_: &mut Core, _: Time) {}
