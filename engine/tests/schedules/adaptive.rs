//! `adaptive`: it plans, it repeats exactly, it replays, it does as well as the best of its rules.

use std::collections::{BTreeSet, VecDeque};

use crate::planning::*;
use lazybatch_engine::core::{
    Action, Core, CoreConfig, Event, ModelSpec, Open, Plan, PlanRequest, Request,
};
use lazybatch_engine::driver::virtual_time::SimRequest;
use lazybatch_engine::policy;
use lazybatch_sla::{
    ClassId, Late, LatencyTable, ModelId, Nanos, Profile, RequestId, Ticket, Time,
};

/// A chain in which batching pays.
const CHAIN: &str = r#"{"format":"lazybatch-profile/1","device":"d","models":[
  {"name":"m","max_batch":8,"blocks":[{"name":"net","repeat":"once","nodes":[
    {"name":"a","latency_us":[[1,100.0],[8,120.0]]},{"name":"b","latency_us":[[1,100.0],[8,120.0]]},
    {"name":"c","latency_us":[[1,100.0],[8,120.0]]},{"name":"d","latency_us":[[1,100.0],[8,120.0]]},
    {"name":"e","latency_us":[[1,100.0],[8,120.0]]},{"name":"f","latency_us":[[1,100.0],[8,120.0]]}]}]}]}"#;

#[test]
fn plans_are_made_and_repeat_exactly() {
    let config = config(TRANSLATOR);
    let arrivals = arrivals(700, 900.0, 50, 1);
    let (a, b) = (
        run(&config, "adaptive", &arrivals),
        run(&config, "adaptive", &arrivals),
    );
    assert!(a.plans.num >= 3, "{} plans", a.plans.num);
    assert!(a.plans.last.len() >= 2, "{:?}", a.plans.last);
    assert!(a.plans.last.is_sorted_by_key(|c| c.1));
    assert_eq!(a.finishes, b.finishes);
    assert_eq!(a.plans.last, b.plans.last);
}

#[test]
fn without_loops_only_edf_is_compared_of_the_others() {
    for (model, others) in [
        (CHAIN, &["edf"][..]),
        (
            TRANSLATOR,
            &["cellular", "continuous", "edf", "lazy:passes"],
        ),
    ] {
        let ran = run(&config(model), "adaptive", &arrivals(700, 900.0, 50, 1));
        let field = [
            "cellular",
            "continuous",
            "edf",
            "lazy:passes",
            "greedy",
            "oracle",
        ];
        let compared: Vec<&str> = ran.plans.compared.iter().map(String::as_str).collect();
        let of_the_field: Vec<&str> = (compared.iter().copied())
            .filter(|name| field.contains(name))
            .collect();
        assert_eq!(of_the_field, others, "of {compared:?}");
        assert!(compared.len() > others.len(), "base rules: {compared:?}");
    }
}

#[test]
fn where_a_class_refuses_or_sheds_the_field_is_not_compared() {
    for (late, is_compared) in [
        (None, true),
        (Some(Late::Keep), true),
        (Some(Late::Demote), true),
        (Some(Late::Shed), false),
        (Some(Late::Refuse), false),
    ] {
        let mut config = config(CHAIN);
        config.classes[0].late = late;
        let ran = run(&config, "adaptive", &arrivals(700, 900.0, 50, 1));
        assert!(!ran.plans.compared.is_empty());
        let has_edf = ran.plans.compared.contains("edf");
        assert_eq!(has_edf, is_compared, "{late:?}");
    }
}

/// A core whose actions are done at once, but for launches.
struct Driven {
    core: Core,
    in_flight: Option<Ticket>,
    opened: Vec<RequestId>,
    plan: Option<PlanRequest>,
}

impl Driven {
    fn new(config: CoreConfig) -> Self {
        let policy = policy::build("adaptive").expect("a policy");
        Self {
            core: Core::new(config, policy),
            in_flight: None,
            opened: Vec::new(),
            plan: None,
        }
    }

    /// The next plan that is asked for, while requests to the first model come.
    fn plan(&mut self, id: &mut u64) -> PlanRequest {
        while self.plan.is_none() {
            self.arrive(*id, 0);
            *id += 1;
        }
        self.plan.take().expect("a plan")
    }

    fn handle(&mut self, now: Time, event: Event) {
        self.core.handle(now, event);
        while let Some(action) = self.core.poll_action(now) {
            match action {
                Action::Launch { ticket, .. } => self.in_flight = Some(ticket),
                Action::Open { request, .. } => self.opened.push(request),
                Action::Plan => self.plan = self.core.take_plan(),
                _ => {}
            }
        }
    }

    /// A request to the first model comes, of that level, and with every second one a launch ends.
    fn arrive(&mut self, id: u64, priority: u8) {
        self.arrive_at(ModelId(0), id, priority);
    }

    fn arrive_at(&mut self, model: ModelId, id: u64, priority: u8) {
        self.arrive_as(id, |request| {
            request.model = model;
            request.priority = priority;
        });
    }

    fn arrive_as(&mut self, id: u64, set: impl FnOnce(&mut Request)) {
        let now = Time(id * 1_000_000);
        let mut sim = SimRequest::new(id, ModelId(0), now, None, 6, 6);
        set(&mut sim.request);
        self.handle(now, Event::Arrive(sim.request));
        let ended = |ticket| Event::Done {
            ticket,
            stopped: Default::default(),
            faults: Vec::new(),
            failed: None,
            took: None,
        };
        if let Some(ticket) = self.in_flight.take_if(|_| id.is_multiple_of(2)) {
            self.handle(now, ended(ticket));
        }
    }
}

#[test]
fn models_that_nobody_asks_for_do_not_matter() {
    let arrivals = arrivals(700, 900.0, 50, 1);
    let alone = run(&config(TRANSLATOR), "adaptive", &arrivals);
    let beside = run(&config_of(&[TRANSLATOR, CHAIN]), "adaptive", &arrivals);
    assert_eq!(beside.finishes, alone.finishes);
    assert_eq!(beside.plans.compared, alone.plans.compared);
    assert!(alone.plans.compared.contains("cellular"));
    // Nor do their classes.
    let mut classes = config(TRANSLATOR);
    classes
        .classes
        .push("gold:late=refuse,weight=3".parse().expect("a class"));
    let beside = run(&classes, "adaptive", &arrivals);
    assert_eq!(beside.finishes, alone.finishes);
    assert_eq!(beside.plans.compared, alone.plans.compared);
    // One without loops beside one that has some.
    let beside = run(&config_of(&[CHAIN, TRANSLATOR]), "adaptive", &arrivals);
    let alone = run(&config(CHAIN), "adaptive", &arrivals);
    assert_eq!(beside.finishes, alone.finishes);
}

#[test]
fn a_rule_for_one_model_goes_when_another_is_asked_for() {
    for plan_first in [false, true] {
        let (mut driven, mut id) = (Driven::new(config_of(&[TRANSLATOR, CHAIN])), 0);
        let first = driven.plan(&mut id);
        assert!(first.candidates.contains(&"cellular".to_string()));
        let planned = Event::Planned(Plan {
            costs: vec![("cellular".into(), 1)],
            launches: 1,
            ..Plan::default()
        });
        // The plan for one model comes before the other's first request, or behind it.
        if plan_first {
            driven.handle(Time(id * 1_000_000), planned.clone());
        }
        driven.arrive_at(ModelId(1), id, 0);
        if !plan_first {
            driven.handle(Time(id * 1_000_000), planned);
        }
        id += 1;
        // The incumbent is the first.
        let rules = driven.plan(&mut id).candidates;
        assert!(rules[0].contains("/cost"), "{rules:?}");
    }
}

#[test]
fn a_plan_is_kept_where_one_more_model_asks_for_the_same_rules() {
    let models = [TRANSLATOR, CHAIN, TRANSLATOR];
    let (mut driven, mut id) = (Driven::new(config_of(&models)), 1);
    driven.arrive_at(ModelId(1), 0, 0);
    let best = driven.plan(&mut id).candidates[3].clone();
    // It comes while the plan is made.
    driven.arrive_at(ModelId(2), id, 0);
    driven.arrive(id + 1, 0);
    let planned = Plan {
        costs: vec![(best.clone(), 1)],
        launches: 1,
        ..Plan::default()
    };
    driven.handle(Time((id + 1) * 1_000_000), Event::Planned(planned));
    id += 2;
    // The incumbent is the first.
    assert_eq!(driven.plan(&mut id).candidates[0], best);
}

#[test]
fn plans_rest_no_longer_when_a_model_is_met() {
    let models = [TRANSLATOR, CHAIN];
    let (mut driven, mut id) = (Driven::new(config_of(&models)), 0);
    for i in 0..3 {
        assert_eq!(driven.plan(&mut id).is_first, i == 0);
        driven.handle(Time(id * 1_000_000), Event::Planned(Plan::default()));
    }
    driven.plan(&mut id);
    let rests = Plan {
        rest: Nanos::from_ms(10_000),
        ..Plan::default()
    };
    driven.handle(Time(id * 1_000_000), Event::Planned(rests));
    let before = id;
    driven.arrive_at(ModelId(1), id, 0);
    id += 1;
    assert!(driven.plan(&mut id).is_first);
    assert!((16..20).contains(&(id - before)), "{}", id - before);
}

#[test]
fn the_field_is_compared_where_several_models_leave_time() {
    for (first, leaves_time) in [(CHAIN, true), (TRANSLATOR, false)] {
        let (mut driven, mut id) = (Driven::new(config_of(&[first, CHAIN])), 1);
        driven.arrive_at(ModelId(1), 0, 0);
        let rules = driven.plan(&mut id).candidates;
        for policy in ["edf", "continuous", "cellular", "lazy:passes"] {
            assert_eq!(
                rules.contains(&policy.to_string()),
                leaves_time,
                "{rules:?}"
            );
        }
    }
}

#[test]
fn a_rule_that_knows_no_levels_goes_when_they_come() {
    for plan_first in [false, true] {
        let (mut driven, mut id) = (Driven::new(config(CHAIN)), 0);
        let first = driven.plan(&mut id);
        assert!(first.candidates.contains(&"edf".to_string()));
        let planned = Event::Planned(Plan {
            costs: vec![("edf".into(), 1)],
            launches: 1,
            ..Plan::default()
        });
        // The plan that knows no levels comes before the request that has one, or behind it.
        let urgent = RequestId(id + u64::from(plan_first));
        if plan_first {
            driven.handle(Time(id * 1_000_000), planned.clone());
            driven.arrive(id, 0);
        }
        driven.arrive(urgent.0, 1);
        id = urgent.0 + 1;
        if !plan_first {
            driven.handle(Time(id * 1_000_000), planned);
        }
        let num = driven.opened.len();
        assert!(driven.core.num_waiting() > 8, "others wait");
        let rules = driven.plan(&mut id).candidates;
        let soon = &driven.opened[num..];
        assert!(soon.iter().take(8).any(|&r| r == urgent), "{soon:?}");
        assert!(!rules.contains(&"edf".to_string()), "{rules:?}");
    }
}

#[test]
fn a_rule_that_knows_no_classes_goes_when_they_come() {
    let mut config = config(CHAIN);
    config
        .classes
        .push("gold:weight=3".parse().expect("a class"));
    let (mut driven, mut id) = (Driven::new(config), 0);
    let first = driven.plan(&mut id);
    assert!(first.candidates.contains(&"edf".to_string()));
    let planned = Event::Planned(Plan {
        costs: vec![("edf".into(), 1)],
        launches: 1,
        ..Plan::default()
    });
    driven.handle(Time(id * 1_000_000), planned);
    driven.arrive_as(id, |request| request.class = ClassId(1));
    id += 1;
    // The incumbent is the first.
    let rules = driven.plan(&mut id).candidates;
    assert!(rules[0].starts_with("front"), "{rules:?}");
    assert!(!rules.contains(&"edf".to_string()), "{rules:?}");
}

#[test]
fn another_rule_must_gain_more_than_by_chance() {
    // Whether another rule takes over that costs so much less than the incumbent, with such an error.
    let changes = |models: &[&str], gain: f64, error: f64| {
        let (mut driven, mut id) = (Driven::new(config_of(models)), 0);
        if models.len() > 1 {
            driven.arrive_at(ModelId(1), id, 0);
            id += 1;
        }
        let asked = driven.plan(&mut id);
        let [own, other] = [0, 1].map(|i| asked.candidates[i].clone());
        let costs = [1.0 - gain, 1.0].map(|cost| (cost * 1e6) as u64);
        let planned = Plan {
            costs: [other, own.clone()].into_iter().zip(costs).collect(),
            errors: vec![(error * 1e6) as u64, 0],
            launches: 1,
            ..Plan::default()
        };
        driven.handle(Time(id * 1_000_000), Event::Planned(planned));
        driven.plan(&mut id).candidates[0] != own
    };
    let by_error = |models: &[&str]| [0.0, 0.02, 0.05].map(|error| changes(models, 0.05, error));
    assert_eq!(by_error(&[TRANSLATOR]), [true, true, false]);
    assert_eq!(by_error(&[CHAIN]), [true; 3], "without loops");
    let two = [TRANSLATOR, TRANSLATOR];
    assert_eq!(by_error(&two), [true; 3], "of several models");
    assert!(
        !changes(&[CHAIN], 0.015, 0.0),
        "2 % are asked for in any case"
    );
    let little = [0.004, 0.01].map(|gain| changes(&[TRANSLATOR], gain, 0.0));
    assert_eq!(little, [false, true], "half a percent of one with loops");
}

/// What the first plan is to begin with, after so many launches have ended, and the core then.
fn planned(text: &str, num_done: usize) -> (Vec<Open>, Core) {
    let policy = policy::build("adaptive").expect("a policy");
    let mut core = Core::new(config(text), policy);
    let mut in_flight = None;
    let mut done = 0;
    for i in 0..100 {
        let now = Time(i * 10_000_000);
        let sim = SimRequest::new(i, ModelId(0), now, None, 6, 6);
        core.handle(now, Event::Arrive(sim.request));
        loop {
            while let Some(action) = core.poll_action(now) {
                match action {
                    Action::Launch { ticket, .. } => in_flight = Some(ticket),
                    Action::Plan => return (core.take_plan().expect("a plan").open, core),
                    _ => {}
                }
            }
            // Some wait behind those in flight.
            let Some(ticket) = in_flight.take_if(|_| i > 3 && done < num_done) else {
                break;
            };
            done += 1;
            let ended = Event::Done {
                ticket,
                stopped: Default::default(),
                faults: Vec::new(),
                failed: None,
                took: None,
            };
            core.handle(now, ended);
        }
    }
    panic!("it asks for no plan");
}

#[test]
fn plans_count_what_requests_take_of_the_host_where_the_device_waits_for_it() {
    let per_request = |is_in_place| {
        let policy = policy::build("adaptive").expect("a policy");
        let config = CoreConfig {
            is_in_place,
            ..config(TRANSLATOR)
        };
        let mut core = Core::new(config, policy);
        let us = |n: u64| Nanos(n * 1000);
        let mut now = Time::ZERO;
        for i in 0..200 {
            let sim = SimRequest::new(i, ModelId(0), now, None, 2, 2);
            core.handle(now, Event::Arrive(sim.request));
            // The device works for all but 2 us of a turn, and 5 more for each arrival or end: the first
            // turn of a request takes it in, and answers the one before.
            for launch in 0..4 {
                let mut ticket = None;
                while let Some(action) = core.poll_action(now) {
                    match action {
                        Action::Launch { ticket: t, .. } => ticket = Some(t),
                        Action::Plan if i > 100 => {
                            return core.take_plan().expect("a plan").per_request;
                        }
                        Action::Plan => {
                            core.handle(now, Event::Planned(Plan::default()));
                        }
                        _ => {}
                    }
                }
                let edges = u64::from(launch == 0) * 2;
                let took = us(100);
                now = now + took + us(2 + 5 * edges);
                let stopped = match launch {
                    3 => [RequestId(i)].into_iter().collect(),
                    _ => Default::default(),
                };
                let ended = Event::Done {
                    ticket: ticket.expect("somebody runs"),
                    stopped,
                    faults: Vec::new(),
                    failed: None,
                    took: Some(took),
                };
                core.handle(now, ended);
            }
        }
        panic!("it asks for no plan");
    };
    assert_eq!(per_request(false), Nanos::ZERO);
    let found = per_request(true).0;
    assert!((8_000..=12_000).contains(&found), "{found}");
}

#[test]
fn what_is_issued_while_another_launch_runs_does_not_make_it_longer() {
    // Two launches in flight, each of which takes the device as long as its table says, and the host
    // 40 us to issue.
    let issue = Nanos(40_000);
    let pass = |table: &LatencyTable| -> f64 {
        let segments = 0..table.num_segments(0);
        segments.map(|s| table.segment(0, s, 2, 2).0 as f64).sum()
    };
    let foretold = |depth: u32| {
        let config = CoreConfig {
            lane_depths: vec![depth],
            ..config(CHAIN)
        };
        let told = config.models[0].table.clone();
        let policy = policy::build("adaptive").expect("a policy");
        let mut core = Core::new(config, policy);
        let mut flights = VecDeque::new();
        let (mut now, mut free) = (Time::ZERO, Time::ZERO);
        for i in 0..400 {
            for id in 2 * i..2 * i + 2 {
                let sim = SimRequest::new(id, ModelId(0), now, None, 1, 1);
                core.handle(now, Event::Arrive(sim.request));
            }
            loop {
                while let Some(action) = core.poll_action(now) {
                    match action {
                        Action::Launch { lane, ticket } => {
                            let launch = core.launch(lane, ticket);
                            let (samples, rows) = (launch.num_samples(), launch.num_rows());
                            let busy = told.segment(launch.block, launch.segment, samples, rows);
                            free = free.max(now + issue) + busy;
                            flights.push_back((ticket, free, busy));
                        }
                        Action::Plan if i > 100 => {
                            let plan = core.take_plan().expect("a plan");
                            return pass(&plan.config.models[0].table) / pass(&told);
                        }
                        Action::Plan => {
                            core.handle(now, Event::Planned(Plan::default()));
                        }
                        _ => {}
                    }
                }
                let Some((ticket, end, busy)) = flights.pop_front() else {
                    break;
                };
                now = end;
                let ended = Event::Done {
                    ticket,
                    stopped: Default::default(),
                    faults: Vec::new(),
                    failed: None,
                    took: Some(busy + issue),
                };
                core.handle(now, ended);
            }
        }
        panic!("it asks for no plan");
    };
    // Of two in flight the first of a request alone waits for its issue.
    let (one, two) = (foretold(1), foretold(2));
    assert!((1.35..1.45).contains(&one), "{one}");
    assert!((1.0..1.12).contains(&two), "{two}");
}

#[test]
fn plans_begin_with_those_in_flight_where_they_stand() {
    let mut num_finishing = 0;
    for (text, num_done) in [(CHAIN, 3), (CHAIN, 5), (TRANSLATOR, 2), (TRANSLATOR, 9)] {
        let (open, core) = planned(text, num_done);
        let view = core.view();
        let mut expected = BTreeSet::new();
        for (sub_batch, entry) in (0..).zip(view.table().iter()) {
            for member in view.members(entry) {
                let (block, segment) = (entry.block, entry.segment);
                expected.insert((member.request.id, sub_batch, block, segment, member.step));
            }
        }
        let placed = open.iter().filter_map(|o| {
            let p = o.place?;
            Some((o.past.id, p.sub_batch, p.block, p.segment, p.step))
        });
        assert_eq!(placed.collect::<BTreeSet<_>>(), expected, "{num_done} done");
        assert_eq!(open.len(), expected.len() + core.num_waiting());
        assert!(core.num_waiting() > 0);
        num_finishing += core.num_open() - open.len();
    }
    assert!(num_finishing > 0, "who is in the last pass is left out");
}

#[test]
fn turns_do_not_depend_on_how_passes_are_cut_into_launches() {
    // Plans see a pass as one launch: a rule must do there as it does where each node is one.
    let nodes = |num: usize| {
        let node = |i| format!(r#"{{"name":"n{i}","latency_us":[[1,100.0],[8,107.0]]}}"#);
        (0..num).map(node).collect::<Vec<_>>().join(",")
    };
    let text = format!(
        r#"{{"format":"lazybatch-profile/1","device":"d","models":[
          {{"name":"m","max_batch":8,"output_len_p90":14,"blocks":[
            {{"name":"enc","repeat":"per_input_step","nodes":[{}]}},
            {{"name":"dec","repeat":"until_stop","nodes":[{}]}}]}}]}}"#,
        nodes(2),
        nodes(7)
    );
    let profile = Profile::parse("-", &text).expect("a valid profile");
    let cut = |num_nodes| {
        let model = ModelSpec::from_profile(&profile, &profile.models[0], num_nodes, 1);
        CoreConfig::new(vec![model])
    };
    let arrivals = arrivals(500, 300.0, 100, 5);
    for spec in ["sharing:2/6/1", "sharing:0/1/4", "sharing:1/1/0.1/demote"] {
        let [fine, coarse] = [1, 7].map(|n| run(&cut(n), spec, &arrivals));
        assert!(fine.finishes == coarse.finishes, "{spec}");
    }
}

#[test]
fn where_nothing_changes_plans_are_rare() {
    // Evenly, for eight seconds: 46 arrivals, which take 30 ms, 69, .. some 2,600 ask for a plan, if the
    // one before is done and has rested; 4,600, 6,600, .. do not.
    let config = config(CHAIN);
    let mut arrivals = arrivals(12_000, 1500.0, 50, 1);
    for (i, a) in arrivals.iter_mut().enumerate() {
        a.request.arrival = Time(i as u64 * 666_667);
    }
    let ran = run(&config, "adaptive", &arrivals);
    assert!((8..=12).contains(&ran.plans.num), "{} plans", ran.plans.num);
}

#[test]
fn it_is_about_as_good_as_the_best_rule_and_no_rule_is_always() {
    let num = 2000;
    let cases = [
        (CHAIN, 1500.0, 10),
        (CHAIN, 8000.0, 10),
        (TRANSLATOR, 300.0, 50),
        (TRANSLATOR, 1500.0, 50),
    ];
    let rules = [
        "front",
        "join:0",
        "join:4",
        "balance:0",
        "balance:1",
        "balance:4",
        "sharing:1/0.5/0.25",
    ];
    let mut worst = [1.0f64; 7];
    for (profile, rate, sla_ms) in cases {
        let config = config(profile);
        let arrivals = arrivals(num, rate, sla_ms, 7);
        let cost = |spec: &str| cost(&run(&config, spec, &arrivals), sla_ms, num);
        let costs: Vec<f64> = rules.iter().map(|r| cost(r)).collect();
        let least = costs.iter().copied().fold(f64::MAX, f64::min);
        let adaptive = cost("adaptive");
        println!("{rate}/s: adaptive {adaptive:.3}, rules {costs:.3?}");
        assert!(
            adaptive <= 1.05 * least,
            "{rate}/s: {adaptive} against {least}"
        );
        for (worst, cost) in worst.iter_mut().zip(&costs) {
            *worst = worst.max(cost / least);
        }
    }
    assert!(worst.iter().all(|&w| w > 1.05), "{rules:?}: {worst:?}");
}

/// A chain in which batching pays little: 8,205 a second in full batches, 4,167 alone.
fn proportional() -> CoreConfig {
    let node = |name: &str| format!(r#"{{"name":"{name}","latency_us":[[1,60.0],[64,1950.0]]}}"#);
    let nodes = ["a", "b", "c", "d"].map(node).join(",");
    config(&format!(
        r#"{{"format":"lazybatch-profile/1","device":"d","models":[{{"name":"m","max_batch":64,
            "blocks":[{{"name":"net","repeat":"once","nodes":[{nodes}]}}]}}]}}"#
    ))
}

#[test]
fn near_capacity_it_sees_which_backlog_stays() {
    // 64 at once take 4 x 1.95 ms: 8,205 a second at the most, and 0.97 of that arrive. Who serves
    // those in time first, in small batches, seems best over the 4,096 arrivals that a plan knows,
    // and leaves a backlog. (Plans that look no further: 55 % behind `edf`.)
    let config = proportional();
    let (num, sla_ms) = (40_000, 5);
    let arrivals = arrivals(num, 0.97 * 8205.0, sla_ms, 4);
    let cost = |spec: &str| cost(&run(&config, spec, &arrivals), sla_ms, num);
    let [adaptive, edf, small] = ["adaptive", "edf", "adaptive:front:demote"].map(cost);
    println!("adaptive {adaptive:.2}, edf {edf:.2}, front:demote {small:.2}");
    assert!(small > 2.0 * edf, "{small} against {edf}");
    assert!(adaptive < 0.9 * edf, "{adaptive} against {edf}");
}

#[test]
fn at_capacity_it_counts_whom_a_backlog_delays_behind_the_plan() {
    // As many arrive as are served at the most: what a rule leaves of a backlog delays others for long.
    // Within four times the arrivals that a plan knows a rule looks better that leaves more of it.
    let config = proportional();
    let (num, sla_ms) = (40_000, 20);
    let arrivals = arrivals(num, 8205.0, sla_ms, 5);
    let cost = |spec: &str| cost(&run(&config, spec, &arrivals), sla_ms, num);
    let [adaptive, without] = ["adaptive", "adaptive:without=backlog"].map(cost);
    println!("adaptive {adaptive:.2}, without {without:.2}");
    assert!(adaptive < 0.8 * without, "{adaptive} against {without}");
}

#[test]
fn a_backlog_near_capacity_is_served_and_not_kept() {
    // Small batches of those that can be in time leave the others behind, and what these wait is more than
    // the misses that are saved; batches of all that wait are late for many. Those that reach 99 % of the
    // highest throughput and no more (`fill99`) leave nobody behind and are late for few.
    let config = proportional();
    let (num, sla_ms) = (40_000, 10);
    let arrivals = arrivals(num, 0.98 * 8205.0, sla_ms, 4);
    let cost = |spec: &str| cost(&run(&config, spec, &arrivals), sla_ms, num);
    let [adaptive, edf] = ["adaptive", "edf"].map(cost);
    let rules = ["front:demote", "join:1/demote", "front:fill99/demote"];
    let [small, all, filled] = rules.map(|rule| cost(&format!("adaptive:{rule}")));
    println!("adaptive {adaptive:.2}, edf {edf:.2}, {small:.2}, {all:.2}, {filled:.2}");
    assert!(small > 2.0 * all, "{small} against {all}");
    assert!(filled < 0.9 * all, "{filled} against {all}");
    assert!(adaptive < 1.1 * filled, "{adaptive} against {filled}");
    assert!(adaptive < 0.7 * edf, "{adaptive} against {edf}");
}

#[test]
fn the_incumbent_follows_the_load() {
    // Calm, then busy: one rule is best for the one, another for the other.
    let config = config(TRANSLATOR);
    let mut calm = arrivals(400, 100.0, 50, 3);
    let start = calm.last().map_or(Time::ZERO, |a| a.request.arrival);
    for (i, mut a) in arrivals(2000, 2500.0, 50, 4).into_iter().enumerate() {
        a.request.id = lazybatch_sla::RequestId(400 + i as u64);
        a.request.arrival = Time(start.0 + a.request.arrival.0);
        calm.push(a);
    }
    let ran = run(&config, "adaptive", &calm);
    assert!(ran.plans.num >= 4, "{} plans", ran.plans.num);
    let stuck = run(&config, "adaptive:balance:0/demote", &calm);
    assert_eq!(stuck.plans.num, 0, "a fixed rule asks for no plan");
    assert!(
        ran.mean_ms < 0.9 * stuck.mean_ms,
        "{} against {}",
        ran.mean_ms,
        stuck.mean_ms
    );
}

#[test]
fn overload_leaves_most_of_capacity_as_goodput() {
    // Eight take six nodes of 120 us: 11,111 a second at the most; twice that arrive.
    let config = config(CHAIN);
    let capacity = 8.0 / (6.0 * 120e-6);
    let arrivals = arrivals(6000, 2.0 * capacity, 10, 6);
    let span_s = arrivals
        .last()
        .map_or(0.0, |a| a.request.arrival.0 as f64 / 1e9);
    let goodput = |spec: &str| {
        let ran = run(&config, spec, &arrivals);
        (ran.met as f64 / span_s, ran.shed, ran.answered_ms)
    };
    let (greedy, ..) = goodput("greedy");
    let (demoting, none, _) = goodput("adaptive");
    let (shedding, shed, bounded_ms) = goodput("adaptive:shed");
    let (unbounded, _, unbounded_ms) = goodput("adaptive:shed/without=within");
    println!("greedy {greedy:.0}/s, demoting {demoting:.0}/s, shedding {shedding:.0}/s");
    println!(
        "{bounded_ms:.2} ms, without bounds of waiting {unbounded:.0}/s, {unbounded_ms:.2} ms"
    );
    assert!(greedy < 0.3 * capacity, "greedy {greedy}");
    assert!(demoting > 0.85 * capacity, "demoting {demoting}");
    assert!(shedding > 0.9 * capacity, "shedding {shedding}");
    // A queue that is kept short is worked off as fast, and those in it are answered sooner.
    assert!(shedding > 0.98 * unbounded, "{shedding} and {unbounded}");
    assert!(bounded_ms < 0.6 * unbounded_ms, "{bounded_ms}");
    assert!(none == 0 && shed > 2000, "{none} and {shed} shed");
}
