//! The planner on clocks of its own.

use super::*;
use crate::core::{Backlog, CoreConfig, ModelSpec, Open, Past, Weighing};
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
        weighing: Weighing {
            hysteresis: 0.02,
            doubt: 1.0,
            edges: Vec::new(),
        },
        backlog: Backlog::Ends,
        repeats: 1,
        per_request: Nanos::ZERO,
        is_first: false,
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
fn on_many_processors_a_plan_is_made_on_several_threads() {
    let of = [1, 2, 7, 8, 15, 16, 64].map(threads);
    assert_eq!(of, [1, 1, 1, 2, 3, 4, 4]);
    // 5 % of 16 processors are 80 % of one, and so are 80 ms in 100, however many of them at once.
    let rests = [80, 40, 20].map(|took| rest(Nanos::from_ms(80), BUDGET, 16, Nanos::from_ms(took)));
    assert_eq!(rests.map(|r| r.0 / 1_000_000), [20, 60, 80]);
    let request = Arc::new(request());
    let made = [1, 4].map(|threads| {
        let of = (1_000_000, threads);
        let attempt = Attempt::start(request.clone(), of, Urgency::Idle, Nanos::ZERO);
        let attempt = attempt.expect("a thread");
        let (plan, _) = attempt.plan.recv().expect("a plan");
        assert!(attempt.spent.load(Ordering::Relaxed) > 0);
        plan
    });
    assert_eq!(made[0], made[1]);
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
                threads: 1,
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
    // Whichever is done first: the one in turns does not see all that the other does.
    assert!(!wait(&mut planner, late).costs.is_empty());
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
    let expected = Usage {
        since: Time::ZERO + ms(26),
        worked: ms(9),
        idle: ms(1),
    };
    assert_eq!(planner.usage, Some(expected));
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
    assert_eq!(pace(Urgency::Idle, 7), usual);
    assert_eq!(pace(Urgency::Idle, 0), None);
    for (busy_us, is_seen) in [(2_400, false), (2_600, true)] {
        let mut planner = Planner::default();
        planner.start(Time::ZERO, request(), false);
        let busy = Nanos(busy_us * 1000);
        planner.works(Time::ZERO + busy, busy);
        planner.attempts[0].urgency = Urgency::InShortTurns;
        planner.attempts[0].pause = Arc::default();
        // The plan may be there by then.
        let pause = planner.attempts[0].pause.clone();
        let (_quiet, plan) = mpsc::channel();
        planner.attempts[0].plan = plan;
        assert!(planner.poll(Time::ZERO + SEEN).is_none());
        let pause = pause.load(Ordering::Relaxed);
        assert_eq!(pause > 0, is_seen, "{busy_us} us");
    }
}

/// Where one thread makes it; what the device does meanwhile changes nothing.
#[test]
fn a_plan_in_idle_time_leaves_half_of_it() {
    let ms = Nanos::from_ms;
    for (processors, expected) in [(1, TURN), (2, TURN), (7, TURN), (8, Nanos::ZERO)] {
        let mut planner = Planner {
            processors,
            is_in_place: true,
            ..Planner::default()
        };
        let request = Arc::new(request());
        planner.attempt(Time::ZERO, &request, Urgency::Idle);
        planner.request = Some((Time::ZERO, request));
        let pause = planner.attempts[0].pause.clone();
        let paused = || Nanos(pause.load(Ordering::Relaxed));
        assert_eq!(paused(), expected, "{processors} processors");
        let (_quiet, plan) = mpsc::channel();
        planner.attempts[0].plan = plan;
        planner.usage = Some(Usage::nothing(Time::ZERO));
        planner.works(Time::ZERO + ms(10), ms(10));
        assert!(planner.poll(Time::ZERO + ms(10)).is_none());
        assert_eq!(paused(), expected, "{processors} processors, busy");
    }
    // Half of what it took is all that it can have had: it is not for want of idle time.
    let mut planner = Planner::default();
    let request = Arc::new(request());
    for (took_ms, is_late) in [(110, false), (190, false), (210, true)] {
        let (outbox, plan) = mpsc::channel();
        outbox.send((Plan::default(), ms(took_ms))).unwrap();
        planner.request = Some((Time::ZERO, request.clone()));
        planner.attempts = vec![Attempt {
            urgency: Urgency::Idle,
            threads: 1,
            plan,
            stop: Arc::default(),
            pause: Arc::default(),
            spent: Arc::new(AtomicU64::new(ms(50).0)),
        }];
        planner.beginning = Nanos::ZERO;
        planner.poll(Time::ZERO).expect("it is made");
        let share = if is_late { BUSY_BUDGET } else { BUDGET };
        assert_eq!(planner.share, share, "{took_ms} ms");
    }
}

#[test]
fn behind_a_late_plan_the_next_is_made_in_turns_too_until_idle_time_is_enough() {
    let both = [Urgency::Idle, Urgency::InTurns];
    assert_eq!(Urgency::of(2, true, true), both);
    assert_eq!(Urgency::of(2, true, false), [Urgency::Idle]);
    assert_eq!(Urgency::of(2, false, true), [Urgency::Idle]);
    let mut planner = Planner {
        was_late: false,
        ..Planner::default()
    };
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
            threads: 1,
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
    assert_eq!(rest(103, 50, true), 19.0, "5 % at the beginning");
    let confirmed = rest(100, 50, true);
    assert_eq!(confirmed, 99.0, "1 %, as the rule is a good one there");
    assert_eq!(rest(103, 50, true), 19.0, "100 of 300 ms are left of it");
    assert_eq!(rest(100, 50, false), 19.0, "5 %");
    assert_eq!(rest(103, 50, true), 99.0, "it is over");
    assert_eq!(rest(100, 50, false), 19.0);
    assert_eq!(
        rest(102, 50, true),
        99.0,
        "1 % of a busy one, as 2 % change nothing"
    );
    assert_eq!(rest(100, 50, true), 199.0, "0.5 % at the least");
    assert_eq!(rest(100, 50, true), 199.0);
    assert_eq!(rest(100, 200, true), 50.0, "10 s at the most");
    assert_eq!(rest(100, 1000, true), 19.0, "but 5 % at the most");
    assert_eq!(rest(103, 50, true), 99.0, "another rule is better");
    assert_eq!(rest(100, 50, true), 199.0);
    assert_eq!(rest(100, 50, false), 19.0, "in idle time");
    let mut in_turns = |times| rest_of(Urgency::InShortTurns, 100, 50, times);
    assert_eq!(in_turns(3), 19.0, "pauses are its own");
    assert_eq!(in_turns(5), 99.0);
}

#[test]
fn a_gain_that_replaces_no_rule_confirms_it() {
    let confirmed = |own: u64, edge: f64| {
        let plan = Plan {
            costs: [("join:0", 100), ("front", own)]
                .map(|(n, c)| (n.to_string(), c))
                .to_vec(),
            ..Plan::default()
        };
        let mut asked = request();
        asked.weighing.edges = vec![("join:0".to_string(), edge)];
        confirms(&plan, &asked)
    };
    assert!(confirmed(102, 0.0), "2 % change nothing");
    assert!(!confirmed(105, 0.0));
    assert!(confirmed(105, 0.03), "it is held dearer");
    assert!(!confirms(&Plan::default(), &request()), "there is no plan");
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
    wait(&mut planner, begin);
    planner.beginning = Nanos::ZERO;
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
        let mut planner = Planner {
            beginning: Nanos::ZERO,
            ..Planner::default()
        };
        planner.works(second, Nanos::from_ms(worked_ms));
        planner.usage = planner.usage.map(|d| Usage {
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
    let mut planner = Planner {
        beginning: Nanos::ZERO,
        ..Planner::default()
    };
    planner.works(second, Nanos::from_ms(100));
    planner.start(second + Nanos::from_ms(900), request(), false);
    assert_eq!(planner.in_turns, IN_TURNS);
}

#[test]
fn at_the_beginning_plans_take_more_of_a_busy_processor() {
    let second = Time::ZERO + Nanos::from_ms(1000);
    let mut planner = Planner::default();
    let work = |planner: &mut Planner| {
        planner.usage = Some(Usage {
            since: Time::ZERO,
            worked: Nanos::from_ms(990),
            idle: Nanos::ZERO,
        });
        planner.is_in_place = true;
        planner.start(second, request(), false);
        planner.in_turns
    };
    let share = work(&mut planner);
    assert_eq!(share, IN_FIRST_TURNS);
    assert!(planner.is_second, "in turns from the start");
    let late = second + Nanos::from_ms(4000);
    for now in [second, late] {
        assert_eq!(planner.budget(now, &request(), Urgency::InTurns), SOON);
    }
    let left = planner.beginning;
    let plan = wait(&mut planner, second);
    assert!(planner.beginning < left && plan.rest > Nanos::ZERO);
    assert_eq!(work(&mut planner), IN_EARLY_TURNS);
    planner.beginning = Nanos(1);
    assert!(wait(&mut planner, second).rest > Nanos::ZERO);
    assert!(planner.budget(late, &request(), Urgency::InTurns) > SOON);
    assert_eq!(work(&mut planner), LEAST_IN_TURNS);
    // One for models that none knew takes as much as the first of all, and is as short.
    planner.usage = Some(Usage {
        since: Time::ZERO,
        worked: Nanos::from_ms(990),
        idle: Nanos::ZERO,
    });
    let first = PlanRequest {
        is_first: true,
        ..request()
    };
    planner.start(second, first, false);
    assert_eq!(planner.in_turns, IN_FIRST_TURNS);
    assert_eq!(planner.budget(late, &request(), Urgency::InTurns), SOON);
    wait(&mut planner, second);
    assert_eq!(work(&mut planner), LEAST_IN_TURNS);
}

#[test]
fn no_plan_is_made_for_quick_models_whose_device_idles() {
    let second = Nanos::from_ms(1000);
    for (are_quick, busy_ms, is_needless) in
        [(true, 49, true), (true, 51, false), (false, 49, false)]
    {
        let mut planner = Planner {
            was_late: false,
            ..Planner::default()
        };
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
