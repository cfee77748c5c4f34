//! Makes plans: simulates candidate rules over the arrivals of the past.
//!
//! Each candidate runs in a core of its own over a [`SimDevice`]. It begins with the requests that are
//! open now, those in flight in the batch table where they stand and the others in the queue, and
//! then the past arrives once more: what a rule is worth depends on the backlog that it finds. The
//! launch that is in flight costs nothing there. A request counts by the weight of its class, and where the
//! plan request says so, those behind the last count that would wait for its backlog (`trial.rs`). Short
//! pasts are repeated, others as often as the plan request says. Where the budget does not allow all
//! candidates the whole, they see the first part, and only those near the best of it go on, one of those
//! that did the same: rules differ by what a load, or models of this kind, may not ask for.
//!
//! Candidates are simulated side by side on as many threads as there are for it. What comes of a plan
//! does not depend on their number.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::{Launch, Nanos, RequestId, Time};

use super::Observer;
use super::trial::Trial;
use super::virtual_time::{self, Script, SimRequest};
use crate::core::{Core, Open, Past, Place, Plan, PlanRequest, Request};
use crate::policy;

/// Arrivals of a simulation; a shorter past is repeated.
const MIN_ARRIVALS: usize = 1536;
/// Most requests that wait at the start; of more, each n-th does.
const MOST_OPEN: usize = 384;
/// Most arrivals of the part that all candidates see.
const SHORT: usize = 768;
/// Most arrivals that measure what an arrival takes, and that a candidate is judged by at the
/// least; a past of less than half is taken twice.
const PROBE: usize = 128;
/// Percent of the budget that the part for all candidates takes.
const SHORT_SHARE: u64 = 40;
/// Gaps of a past that is repeated are scaled by 1, 1 less this and 1 more, at most, in turn.
const PACE: f64 = 0.15;
/// Candidates dearer than this times the best of the short part are dropped.
const NEAR: f64 = 1.4;
/// The same where the budget allows less than [`SHORT`] for all: the fewer go on, the further those see.
const NEARER: f64 = 1.1;

/// What a thread that simulates asks at each turn: whether to stop. It may pause in it.
pub type AtTurn = Box<dyn Fn() -> bool>;

/// Threads that simulate candidates side by side.
pub struct Crew<'a> {
    /// So many, the one that calls included.
    pub threads: usize,
    /// Called by each of them when it begins; what it gives is dropped when it ends.
    pub begin: &'a (dyn Fn() -> AtTurn + Sync),
}

impl Crew<'_> {
    /// The calling thread, to the end.
    pub const ALONE: Crew<'static> = Crew {
        threads: 1,
        begin: &|| Box::new(|| false),
    };
}

/// A plan, and how it was made.
#[derive(Debug, Default)]
pub struct Made {
    /// The plan.
    pub plan: Plan,
    /// Launches of each simulation, in the order in which they begin, stage by stage: a stage waits for
    /// all of the one before.
    pub stages: Vec<Vec<u64>>,
}

impl Made {
    /// Launches that are simulated one behind the other where so many threads take turns, each of them
    /// the next simulation as soon as it is done with its last.
    pub fn in_line(&self, threads: usize) -> u64 {
        let stage = |simulations: &Vec<u64>| {
            let mut ends = vec![0; threads.max(1)];
            for launches in simulations {
                if let Some(first) = ends.iter_mut().min() {
                    *first += launches;
                }
            }
            ends.into_iter().max().unwrap_or(0)
        };
        self.stages.iter().map(stage).sum()
    }
}

/// Simulates some `budget` launches. Each thread asks at each turn whether to stop; a plan that was stopped is
/// empty.
pub fn make(request: &PlanRequest, budget: u64, crew: &Crew<'_>) -> Made {
    let offered = Offered::new(request);
    let (num_arrivals, num_open) = (offered.arrivals.len(), offered.waited.len());
    let Some(incumbent) = request.candidates.first() else {
        return Made::default();
    };
    let at_turn = (crew.begin)();
    // How many launches an arrival takes says how many arrivals the budget allows.
    let probe = num_open + PROBE.min(2 * request.arrivals.len());
    let probe = probe.min(num_arrivals);
    let probed = run(request, incumbent, &offered, probe, &*at_turn);
    let each = probed.map_or(1, |r| r.launches.max(1));
    let mut stages = vec![vec![each]];
    let affordable = |share: u64, num_candidates: usize| {
        let budget = share * budget / 100 / num_candidates.max(1) as u64;
        let num = budget * probe as u64 / each;
        (num as usize).clamp(probe, num_arrivals)
    };
    let mut trials = |names: &[&String], num: usize| -> Vec<Trial> {
        let one = |name: &str, at_turn: &dyn Fn() -> bool| {
            let ran = run(request, name, &offered, num, at_turn)?;
            Some(Trial::new(request, name, &offered, &ran))
        };
        let mut trials = side_by_side(names, (crew, &*at_turn), &one);
        Trial::add_backlogs(&mut trials, request.backlog, num_arrivals - num);
        stages.push(trials.iter().map(|t| t.launches).collect());
        trials
    };
    let mut names: Vec<&String> = request.candidates.iter().collect();
    let mut kept;
    if affordable(100, names.len()) == num_arrivals {
        kept = trials(&names, num_arrivals);
    } else {
        let short = affordable(SHORT_SHARE, names.len());
        let near = match short < SHORT + num_open {
            true => NEARER,
            false => NEAR,
        };
        let short = short.min(SHORT + num_open);
        kept = trials(&names, short);
        let least = kept.iter().map(|t| t.cost).fold(f64::INFINITY, f64::min);
        kept.retain(|t| t.cost <= near * least || t.name == *incumbent);
        // Of those that did the same, the incumbent or the first stands for the others.
        let mut seen: Vec<(u64, u64)> = Vec::new();
        kept.retain(|t| {
            let did = (t.cost.to_bits(), t.launches);
            let is_new = !seen.contains(&did);
            seen.push(did);
            is_new
        });
        // Those that take longest begin first, so that threads end together.
        let launches = |n: &&String| kept.iter().find(|t| t.name == **n).map(|t| t.launches);
        names.retain(|n| launches(n).is_some());
        names.sort_by_key(|n| Reverse(launches(n)));
        let whole = affordable(100 - SHORT_SHARE, names.len());
        if short < whole {
            kept = trials(&names, whole);
        }
    }
    if at_turn() {
        kept.clear();
    }
    // Of equals, the one that is named first.
    let place = |t: &Trial| request.candidates.iter().position(|c| *c == t.name);
    kept.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(place(a).cmp(&place(b))));
    let own = kept.iter().find(|t| t.name == *incumbent);
    let errors = kept.iter().map(|t| own.map_or(0, |own| t.error(own)));
    let plan = Plan {
        errors: errors.collect(),
        costs: kept.into_iter().map(|t| (t.name, t.cost as u64)).collect(),
        launches: stages.iter().flatten().sum(),
        rest: Nanos::ZERO,
    };
    Made { plan, stages }
}

/// What `one` gives for each of these, in their order, on the threads of a crew, of which the calling one
/// asks `at_turn`.
fn side_by_side<T: Send, F>(
    names: &[&String],
    (crew, at_turn): (&Crew<'_>, &dyn Fn() -> bool),
    one: &F,
) -> Vec<T>
where
    F: Fn(&str, &dyn Fn() -> bool) -> Option<T> + Sync,
{
    let next = AtomicUsize::new(0);
    let work = |at_turn: &dyn Fn() -> bool| {
        let mut done = Vec::new();
        while let Some((i, name)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            names.get(i).map(|name| (i, name))
        } {
            if at_turn() {
                break;
            }
            done.extend(one(name, at_turn).map(|it| (i, it)));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let help = || work(&*(crew.begin)());
        let helpers = 1..crew.threads.min(names.len());
        // Where there can be no thread, the others do it.
        let start = |_| {
            let thread = std::thread::Builder::new().name("lazybatch-plan".into());
            thread.spawn_scoped(scope, help).ok()
        };
        let helpers: Vec<_> = helpers.filter_map(start).collect();
        let mut done = work(at_turn);
        for helper in helpers {
            match helper.join() {
                Ok(others) => done.extend(others),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, it)| it).collect()
}

/// Requests to simulate.
pub(super) struct Offered {
    /// Those that are open, at the start, with what is left of their targets, by sub-batch where they
    /// are in flight, which come first; then the past.
    pub arrivals: Vec<SimRequest>,
    /// Where those in flight stand.
    places: Vec<Place>,
    /// For how long each of those that are open has been; of one that is late, its target.
    pub waited: Vec<Nanos>,
}

impl Offered {
    pub fn new(request: &PlanRequest) -> Self {
        let past = &request.arrivals;
        let num = MIN_ARRIVALS.max(past.len() * request.repeats);
        let mut arrivals = Vec::with_capacity(MOST_OPEN + num);
        let mut waited = Vec::new();
        let in_flight = request.open.iter().filter_map(|o| Some((o.place?, o)));
        let mut in_flight: Vec<(Place, &Open)> = in_flight.collect();
        // Stable: members stay in order of age.
        in_flight.sort_by_key(|o| o.0.sub_batch);
        let waiting = || request.open.iter().filter(|o| o.place.is_none());
        let every = waiting().count().div_ceil(MOST_OPEN).max(1);
        let open = in_flight.iter().map(|o| o.1);
        for &Open { past, since, .. } in open.chain(waiting().step_by(every)) {
            let mut open = past;
            open.delay_after = open.delay_after.map(|d| Nanos(d.0.saturating_sub(since.0)));
            let mut since = since;
            if let Some(sla) = &mut open.sla {
                // A target of nothing is none.
                since = since.min(Nanos(sla.0.saturating_sub(1)));
                *sla = *sla - since;
            }
            arrivals.push(sim_request(arrivals.len(), Time::ZERO, &open));
            waited.push(since);
        }
        let paces = paces(past);
        let mut now = Time::ZERO;
        for (i, p) in past.iter().cycle().take(num).enumerate() {
            if i > 0 {
                let pace = paces[(i / past.len()) % paces.len()];
                now = now + Nanos((p.gap.0 as f64 * pace) as u64);
            }
            arrivals.push(sim_request(arrivals.len(), now, p));
        }
        Self {
            arrivals,
            places: in_flight.into_iter().map(|o| o.0).collect(),
            waited,
        }
    }

    /// Puts those in flight where they stand.
    fn place(&self, core: &mut Core) {
        let mut arrivals = self.arrivals.iter();
        for places in self.places.chunk_by(|a, b| a.sub_batch == b.sub_batch) {
            let members = places.iter().zip(arrivals.by_ref());
            let members = members.map(|(p, a)| (a.request.clone(), p.step)).collect();
            core.place(Time::ZERO, places[0].block, places[0].segment, members);
        }
    }
}

/// Factors for the gaps of a past, each time that it is repeated: a rate that is known from few
/// arrivals may as well be a little higher or lower. As factors of equal chance they have the
/// standard error of the mean gap, up to [`PACE`].
fn paces(past: &[Past]) -> [f64; 3] {
    let num = past.len() as f64;
    let gaps = || past.iter().map(|p| p.gap.0 as f64);
    let mean = gaps().sum::<f64>() / num;
    let variance = gaps().map(|g| (g - mean).powi(2)).sum::<f64>() / num;
    let error = (1.5 * variance / num).sqrt() / mean.max(1.0);
    let off = error.min(PACE);
    [1.0, 1.0 - off, 1.0 + off]
}

fn sim_request(i: usize, arrival: Time, p: &Past) -> SimRequest {
    SimRequest {
        request: Request {
            id: RequestId(i as u64),
            model: p.model,
            arrival,
            sla: p.sla,
            class: p.class,
            priority: p.priority,
            delay_after: p.delay_after,
            samples: p.samples,
            input_len: p.input_len,
            sequence: None,
            max_steps: match p.output_len {
                0 => Some(0),
                _ => p.max_steps,
            },
            known_output_len: None,
        },
        output_len: p.output_len,
    }
}

/// Counts launches.
#[derive(Default)]
struct Launches(u64);

impl Observer for Launches {
    fn on_launch(&mut self, _now: Time, _launch: &Launch) {
        self.0 += 1;
    }
}

/// A simulation of one candidate.
pub(super) struct Ran {
    pub ended: Vec<virtual_time::Ended>,
    pub launches: u64,
}

/// Simulates a candidate over the first `num` of those offered, asking `at_turn` at each turn whether to
/// stop; `None` if so, and for one that is not registered.
fn run(
    plan: &PlanRequest,
    spec: &str,
    offered: &Offered,
    num: usize,
    at_turn: &dyn Fn() -> bool,
) -> Option<Ran> {
    let rule = policy::build(spec).ok()?;
    let tables = plan.config.models.iter().map(|m| m.table.clone()).collect();
    let device = SimDevice::new("plan", 1, tables, Nanos::ZERO, Noise::default());
    let mut device = device.with_host(plan.per_request);
    let mut core = Core::new(plan.config.clone(), rule);
    let mut launches = Launches::default();
    offered.place(&mut core);
    let script = Script {
        num_placed: offered.places.len(),
        ..Script::default()
    };
    let ended = virtual_time::run_unless(
        &mut core,
        &mut device,
        &offered.arrivals[..num],
        &script,
        &mut launches,
        &mut |_, _| at_turn(),
    )?;
    Some(Ran {
        ended,
        launches: launches.0,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::{Backlog, ModelSpec, Weighing};
    use lazybatch_sla::{ClassId, ModelId, Profile};
    use std::sync::Arc;

    pub fn request(num: u64, open: Vec<(u64, Nanos)>) -> PlanRequest {
        let past = |i| Past {
            id: RequestId(100 + i),
            gap: Nanos(10),
            model: ModelId(0),
            sla: Some(Nanos(100)),
            class: ClassId::default(),
            priority: 0,
            delay_after: (i == 7).then_some(Nanos(40)),
            samples: 1,
            input_len: i as u32,
            output_len: 1,
            max_steps: None,
        };
        PlanRequest {
            config: crate::core::CoreConfig::new(Vec::new()),
            arrivals: (0..num).map(past).collect(),
            open: (open.into_iter())
                .map(|(i, since)| Open {
                    past: past(i),
                    since,
                    place: None,
                })
                .collect(),
            candidates: Vec::new(),
            miss_weight: 3.0,
            weighing: Weighing::default(),
            backlog: Backlog::Ends,
            repeats: 1,
            per_request: Nanos::ZERO,
            budget: 0,
            is_first: false,
        }
    }

    fn model(blocks: &str) -> ModelSpec {
        let text = format!(
            r#"{{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
            "models":[{{"name":"m","max_batch":4,"blocks":{blocks}}}]}}"#
        );
        let profile = Profile::parse("test", &text).expect("a profile");
        ModelSpec::from_profile(&profile, &profile.models[0], 1, 100)
    }

    #[test]
    fn open_requests_wait_at_the_start_with_what_is_left_of_their_targets() {
        let offered = Offered::new(&request(1000, vec![(3, Nanos(30)), (7, Nanos(500))]));
        assert_eq!(offered.waited, [Nanos(30), Nanos(99)]);
        assert_eq!(offered.arrivals.len(), MIN_ARRIVALS + 2);
        let of = |i: usize| {
            let r = &offered.arrivals[i].request;
            (r.id.0, r.arrival.0, r.sla.unwrap().0, r.input_len)
        };
        assert_eq!(of(0), (0, 0, 70, 3));
        assert_eq!(of(1), (1, 0, 1, 7));
        assert_eq!(of(2), (2, 0, 100, 0));
        assert_eq!(of(1001), (1001, 9990, 100, 999));
        // What is left of the time to wait, too.
        let delay_after = |i: usize| offered.arrivals[i].request.delay_after;
        assert_eq!(delay_after(0), None);
        assert_eq!(delay_after(1), Some(Nanos(0)));
        assert_eq!(delay_after(9), Some(Nanos(40)));
    }

    #[test]
    fn those_in_flight_begin_where_they_stand() {
        let model = model(
            r#"[{"name":"once","repeat":"once","nodes":[{"name":"n",
            "latency_us":[[1,5]]}]},{"name":"decode","repeat":"until_stop","nodes":[{"name":"n",
            "latency_us":[[1,5]]}]}]"#,
        );
        let mut plan = request(100, [3, 5, 7, 8].map(|i| (i, Nanos(i))).to_vec());
        plan.config = crate::core::CoreConfig::new(vec![model]);
        for (open, sub_batch, step) in [(0, 1, 2), (2, 0, 0), (3, 1, 1)] {
            plan.open[open].place = Some(Place {
                sub_batch,
                block: sub_batch,
                segment: 0,
                step,
            });
        }
        let offered = Offered::new(&plan);
        let inputs = offered.arrivals.iter().map(|a| a.request.input_len);
        assert_eq!(inputs.take(5).collect::<Vec<_>>(), [7, 3, 8, 5, 0]);
        assert_eq!(offered.waited, [7, 3, 8, 5].map(Nanos));
        let mut core = Core::new(plan.config, policy::build("front").expect("a policy"));
        offered.place(&mut core);
        let view = core.view();
        let entry = |e| {
            let members = view.members(e).map(|m| (m.request.id.0, m.step));
            (e.block, members.collect::<Vec<_>>())
        };
        let entries: Vec<_> = view.table().iter().map(entry).collect();
        assert_eq!(entries, [(0, vec![(0, 0)]), (1, vec![(1, 2), (2, 1)])]);
        assert_eq!(core.num_waiting(), 0, "who waits arrives");
    }

    /// Nobody waits for a plan that is stopped, and what it takes is missing elsewhere.
    #[test]
    fn a_stopped_plan_ends_within_a_turn_of_its_simulation() {
        let model = model(
            r#"[{"name":"once","repeat":"once","nodes":[{"name":"n","latency_us":[[1,5]]}]}]"#,
        );
        let mut plan = request(1000, Vec::new());
        plan.config = crate::core::CoreConfig::new(vec![model]);
        plan.candidates = ["front", "join:1", "edf"].map(String::from).to_vec();
        for stop_at in [0, 1, 10, 2000] {
            let turns = Arc::new(AtomicUsize::new(0));
            let begin = || -> AtTurn {
                let turns = turns.clone();
                Box::new(move || turns.fetch_add(1, Ordering::Relaxed) >= stop_at)
            };
            let crew = Crew {
                threads: 1,
                begin: &begin,
            };
            let made = make(&plan, 100_000, &crew);
            assert!(made.plan.costs.is_empty());
            // Once more for each part of a plan that would follow.
            let asked = turns.load(Ordering::Relaxed);
            assert!(
                (stop_at + 1..stop_at + 6).contains(&asked),
                "{stop_at}: {asked}"
            );
        }
    }

    #[test]
    fn of_many_open_requests_some_wait() {
        let open = (0..1000).map(|i| (i, Nanos(5))).collect();
        let offered = Offered::new(&request(1000, open));
        assert_eq!(offered.waited.len(), 334);
        assert_eq!(offered.arrivals[333].request.input_len, 999);
    }

    #[test]
    fn a_short_past_is_repeated_at_other_paces() {
        let gaps = |plan: &PlanRequest| {
            let offered = Offered::new(plan);
            assert_eq!(offered.arrivals.len(), MIN_ARRIVALS);
            move |i: usize| {
                let [a, b] = [i - 1, i].map(|i| offered.arrivals[i].request.arrival);
                b.since(a).0
            }
        };
        let mut plan = request(300, Vec::new());
        let even = gaps(&plan);
        assert_eq!([1, 300, 600].map(&even), [10; 3], "a rate without doubt");
        // Every third gap is 300 long: 100 in the mean, with a standard error of 8.2.
        for (i, past) in plan.arrivals.iter_mut().enumerate() {
            past.gap = Nanos(if i % 3 == 0 { 300 } else { 0 });
        }
        let off = 300.0 * (1.5_f64 * 20_000.0 / 300.0).sqrt() / 100.0;
        let [less, more] = [300.0 - off, 300.0 + off].map(|gap| gap as u64);
        let uneven = gaps(&plan);
        assert_eq!([3, 300, 600, 900].map(uneven), [300, less, more, 300]);
        // Of few arrivals little is known.
        plan.arrivals.truncate(48);
        let few = gaps(&plan);
        assert_eq!([3, 48, 96].map(few), [300, 255, 345]);
    }

    #[test]
    fn a_past_comes_as_often_as_is_asked_for() {
        let mut plan = request(1000, Vec::new());
        plan.repeats = 4;
        let offered = Offered::new(&plan);
        assert_eq!(offered.arrivals.len(), 4000);
        // Gaps of 10, all alike: of their mean there is no doubt.
        assert_eq!(offered.arrivals[3999].request.arrival, Time(39_990));
        assert_eq!(offered.arrivals[3999].request.input_len, 999);
    }

    #[test]
    fn what_requests_take_of_the_host_fills_the_device() {
        // A launch of one takes 6 of the 10 between arrivals, of four 9.
        let model = model(
            r#"[{"name":"b","repeat":"once",
            "nodes":[{"name":"n","by":"members","latency_us":[[1,0.006],[4,0.009]]}]}]"#,
        );
        let cost = |rule: &str, per_request| {
            let plan = PlanRequest {
                config: crate::core::CoreConfig::new(vec![model.clone()]),
                candidates: vec![rule.to_string()],
                per_request,
                ..request(400, Vec::new())
            };
            make(&plan, 1_000_000, &Crew::ALONE).plan.costs[0].1
        };
        // Means, rounded down.
        assert!((5..=6).contains(&cost("serial", Nanos::ZERO)));
        assert!(
            (9..=10).contains(&cost("serial", Nanos(4))),
            "it is always busy"
        );
        // With 6 each the device has no time for one at a time.
        assert!(cost("serial", Nanos(6)) > 10 * cost("front", Nanos(6)));
    }

    #[test]
    fn of_rules_that_do_the_same_one_goes_on() {
        let model = model(
            r#"[{"name":"b","repeat":"once",
            "nodes":[{"name":"n","by":"members","latency_us":[[1,0.012],[4,0.02]]}]}]"#,
        );
        // The first of both is the incumbent.
        for candidates in [["cellular", "continuous"], ["continuous", "cellular"]] {
            let plan = PlanRequest {
                config: crate::core::CoreConfig::new(vec![model.clone()]),
                candidates: candidates.map(str::to_string).to_vec(),
                ..request(MIN_ARRIVALS as u64, Vec::new())
            };
            let done = |budget| {
                let costs = make(&plan, budget, &Crew::ALONE).plan.costs;
                costs.into_iter().map(|c| c.0).collect::<Vec<_>>()
            };
            assert_eq!(done(1000), [candidates[0]]);
            assert_eq!(done(1_000_000), candidates, "there is time for all");
        }
    }

    #[test]
    fn the_less_all_see_the_fewer_go_on() {
        let model = model(
            r#"[{"name":"b","repeat":"once",
            "nodes":[{"name":"n","by":"members","latency_us":[[1,0.012],[4,0.02]]}]}]"#,
        );
        let mut plan = PlanRequest {
            config: crate::core::CoreConfig::new(vec![model]),
            candidates: vec!["continuous".into(), "serial".into()],
            repeats: 4,
            ..request(MIN_ARRIVALS as u64, Vec::new())
        };
        // In pairs: one behind the other they take 12 and 24 ns, together 14.7.
        for (i, past) in plan.arrivals.iter_mut().enumerate() {
            (past.gap, past.delay_after) = (Nanos(60 * (i as u64 % 2)), None);
        }
        let went_on = |budget| make(&plan, budget, &Crew::ALONE).plan.costs.len();
        assert_eq!(went_on(1_000), 1);
        assert_eq!(went_on(3_000), 2);
    }

    #[test]
    fn a_plan_is_the_same_on_any_number_of_threads() {
        let model = model(
            r#"[{"name":"decode","repeat":"until_stop",
            "nodes":[{"name":"n","by":"members","latency_us":[[1,0.004],[4,0.02]]}]}]"#,
        );
        let rules = "cellular continuous front join:0 join:1 balance:2 sharing:2/6/1 serial edf";
        let mut plan = PlanRequest {
            config: crate::core::CoreConfig::new(vec![model]),
            candidates: rules.split(' ').map(str::to_string).collect(),
            ..request(MIN_ARRIVALS as u64, vec![(3, Nanos(30))])
        };
        plan.arrivals.iter_mut().for_each(|p| p.output_len = 2);
        // Those that take part, and whether each was told when it was over.
        let (begun, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        struct Told(Arc<AtomicUsize>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let begin = || -> AtTurn {
            begun.fetch_add(1, Ordering::SeqCst);
            let told = Told(over.clone());
            Box::new(move || {
                let _ = &told;
                false
            })
        };
        // All of the candidates the whole; and some of them, of which some go on.
        for (budget, stages) in [(1_000_000, 2), (8_000, 3)] {
            let alone = make(&plan, budget, &Crew::ALONE);
            assert_eq!(alone.stages.len(), stages);
            assert_eq!(alone.plan.launches, alone.in_line(1));
            for threads in [2, 4, 50] {
                let crew = Crew {
                    threads,
                    begin: &begin,
                };
                let made = make(&plan, budget, &crew);
                assert_eq!((&made.plan, &made.stages), (&alone.plan, &alone.stages));
                assert_eq!(begun.load(Ordering::SeqCst), over.load(Ordering::SeqCst));
            }
        }
        assert!(begun.load(Ordering::SeqCst) > 6, "others helped");
        let stopped = Crew {
            threads: 4,
            begin: &|| Box::new(|| true),
        };
        assert!(make(&plan, 8_000, &stopped).plan.costs.is_empty());
    }

    #[test]
    fn threads_take_the_next_simulation_as_soon_as_they_are_done() {
        let made = Made {
            plan: Plan::default(),
            stages: vec![vec![5], vec![4, 3, 9, 1], Vec::new(), vec![2, 2, 2]],
        };
        // On two: 4 and then 9; 3, and 1 behind it.
        let in_line = [1, 2, 3, 100].map(|threads| made.in_line(threads));
        assert_eq!(in_line, [28, 5 + 12 + 4, 5 + 9 + 2, 5 + 9 + 2]);
    }
}
