//! Accounts of why requests waited add up.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use crate::common::*;
use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Core, Hold};
use lazybatch_engine::driver::Judge;
use lazybatch_engine::driver::Observer;
use lazybatch_engine::driver::virtual_time::{Ended, Script, run, untimed};
use lazybatch_engine::explain::Explainer;
use lazybatch_engine::policy;
use lazybatch_engine::timeline::ChromeTrace;
use lazybatch_kernels::{Noise, SimDevice};
use lazybatch_sla::{Nanos, RequestId, Time};

fn explained(world: &World, policy: &str, arrivals: &[Arrival]) -> (Explainer, Vec<Ended>) {
    explained_at(world, policy, arrivals, 1)
}

fn explained_at(
    world: &World,
    policy: &str,
    arrivals: &[Arrival],
    depth: u32,
) -> (Explainer, Vec<Ended>) {
    let options = Options {
        lane_depths: vec![depth],
        notes: true,
        reasons: true,
        ..Options::default()
    };
    let config = config(world, &options);
    let tables: Vec<_> = config.models.iter().map(|m| m.table.clone()).collect();
    let mut device = SimDevice::new("sim", 1, tables, Nanos::ZERO, Noise::default());
    let mut core = Core::new(config.clone(), policy::build(policy).unwrap());
    let mut explainer = Explainer::new(1000);
    let mut judge = Judge::new(Checker::new(&config, false));
    let mut ended = run(
        &mut core,
        &mut device,
        &sim_requests(arrivals, false),
        &Script::default(),
        &mut (&mut judge, &mut explainer),
        &mut untimed,
    );
    judge.finish().unwrap();
    ended.sort_by_key(|e| e.id);
    (explainer, ended)
}

#[test]
fn a_wait_by_hand() {
    // Two nodes of 10; the second arrives 3 into the first batch, which `front` lets end.
    let world = World::chain(4, vec![Node::constant(10), Node::constant(10)]);
    let arrivals = [0, 3].map(|at| Arrival::new(at, 0, 1, 1, None));
    let (mut explainer, _) = explained(&world, "adaptive:front", &arrivals);
    let second = explainer.explain(RequestId(1)).unwrap();
    assert_eq!(second.admitted, Some(Time(20)));
    // Until 10 a node ran anyway; then the policy ran the next one.
    assert_eq!(second.held.get(&Hold::Policy), Some(&Nanos(10)));
    assert_eq!((second.launches, second.running), (2, Nanos(20)));
    assert_eq!(second.ended.unwrap().0, Time(40));
    assert!(second.because.starts_with("front: "), "{}", second.because);
    let text = second.to_string();
    assert!(
        text.starts_with("r1 waited 0.000 ms in its queue"),
        "{text}"
    );
    assert!(text.ends_with("met"), "{text}");
    assert_eq!(explainer.explain(RequestId(7)), None);
}

#[test]
fn parts_never_exceed_the_whole() {
    for seed in 0..40 {
        let mut rng = rng(seed);
        let world = random_world(&mut rng, Shape::default());
        let arrivals = random_arrivals(&mut rng, &world, 30);
        for policy in [
            "adaptive",
            "lazy",
            "join:1",
            "sharing:1/0.5/0.25/demote",
            "edf",
        ] {
            let depth = 1 + seed as u32 % 3;
            let (mut explainer, ended) = explained_at(&world, policy, &arrivals, depth);
            for e in &ended {
                let x = explainer.explain(e.id).unwrap();
                let what = format!("seed {seed}: {policy}: {x}");
                assert_eq!(x.ended, Some((e.finish, e.outcome)), "{what}");
                let admitted = x.admitted.unwrap_or(e.finish);
                let held: u64 = x.held.values().map(|n| n.0).sum();
                assert!(held <= admitted.since(x.arrival).0, "{what}");
                assert!(x.running <= e.finish.since(admitted), "{what}");
                assert_eq!(x.launches > 0, x.running > Nanos::ZERO, "{what}");
            }
        }
    }
}

#[test]
fn only_the_last_are_kept() {
    let world = World::chain(4, vec![Node::constant(10)]);
    let arrivals: Vec<_> = (0..1100)
        .map(|i| Arrival::new(i * 20, 0, 1, 1, None))
        .collect();
    let (mut explainer, _) = explained(&world, "greedy", &arrivals);
    assert_eq!(explainer.explain(RequestId(99)), None);
    assert!(explainer.explain(RequestId(100)).is_some());
}

#[test]
fn launches_of_a_lane_lie_one_behind_the_other_in_a_trace() {
    // Two in flight: the second is issued while the first runs, and begins when that has ended.
    let world = World::chain(4, vec![Node::constant(10_000); 3]);
    let arrivals = [Arrival::new(0, 0, 1, 1, None)];
    let options = Options {
        lane_depths: vec![2],
        record: true,
        ..Options::default()
    };
    let run = simulate(&world, "greedy", &arrivals, &options);
    let mut trace = ChromeTrace::new(&run.config);
    for (now, item) in &run.transcript {
        match item {
            Item::Event(event) => trace.on_event(*now, event),
            Item::Launch(launch) => trace.on_launch(*now, launch),
            Item::Action(action) => trace.on_action(*now, action),
        }
    }
    let json: serde_json::Value = serde_json::from_str(&trace.into_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap().iter();
    let launches = events.filter(|e| e["ph"] == "X");
    let spans = launches.map(|e| [&e["ts"], &e["dur"]].map(|n| n.as_f64().unwrap()));
    let spans: Vec<_> = spans.collect();
    assert_eq!(spans, [[0.0, 10.0], [10.0, 10.0], [20.0, 10.0]]);
}
