//! Requests that are delayed: behind their time to wait they let all of their model pass, under every
//! policy, and still end.

#![allow(clippy::unwrap_used, reason = "a test says by panicking")]

use crate::common::golden::{plain, timeline};
use crate::common::*;
use lazybatch_engine::core::checker::Checker;
use lazybatch_engine::core::{Action, Event};
use lazybatch_engine::driver::Observer;
use lazybatch_engine::journal::{self, Header, Writer};
use lazybatch_sla::{RequestId, Slot, Time};
use rand::Rng;

#[test]
fn who_is_delayed_lets_others_pass_and_keeps_its_place_among_its_like() {
    let expected = " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 1
          2.000 arrive r2 m input 1
          3.000 arrive r3 m input 1
          4.000 arrive r4 m input 1
         10.000 finish r0 met
         10.000 admit b1 [r3]                    // r1 has waited for 9, r2 for 8
         10.000 run b1 net.0 [r3@0]
         12.000 arrive r5 m input 1
         20.000 finish r3 met
         20.000 admit b2 [r5]                    // r4 has waited for 16
         20.000 run b2 net.0 [r5@0]
         30.000 finish r5 met
         30.000 admit b3 [r1]
         30.000 run b3 net.0 [r1@0]
         40.000 finish r1 met
         40.000 admit b4 [r2]
         40.000 run b4 net.0 [r2@0]
         50.000 finish r2 met
         50.000 admit b5 [r4]
         50.000 run b5 net.0 [r4@0]
         60.000 finish r4 met";
    // r3 has waited for its time at 10, but not for longer.
    let arrivals = "at 0 in 1 out 1
         at 1 in 1 out 1 delay 8
         at 2 in 1 out 1 delay 5
         at 3 in 1 out 1 delay 7
         at 4 in 1 out 1 delay 15
         at 12 in 1 out 1";
    let profile = "max_batch 1; net once 10";
    for policy in [
        "serial",
        "greedy",
        "lazy",
        "edf",
        "continuous",
        "front",
        "triton",
    ] {
        let told = timeline(policy, profile, arrivals, false);
        assert_eq!(told, plain(expected), "{policy}");
    }
}

/// Random worlds in which everything goes wrong and a part of the requests may be delayed.
fn chaos(seed: u64) -> Chaos {
    let mut chaos = Chaos::new(seed);
    let mut rng = rng(seed ^ 0xde1a);
    let alone = mean_alone(&chaos.world);
    let share = rng.random_range(0.1..0.9);
    for arrival in &mut chaos.arrivals {
        if rng.random_bool(share) {
            arrival.delay = Some(rng.random_range(0..alone * 4));
        }
    }
    chaos.options.delays = true;
    chaos
}

#[test]
fn no_policy_starts_who_is_delayed_while_another_waits() {
    let mut delayed = 0;
    for seed in 0..num_cases(200) {
        let mut chaos = chaos(seed);
        for policy in examples().chain(refusing_examples()) {
            println!("seed {seed}: {policy}");
            // Who is passed over too often is rescued.
            chaos.options.delays = !policy.starts_with("adaptive");
            let run = simulate(&chaos.world, policy, &chaos.arrivals, &chaos.options);
            check_run(&chaos.world, &chaos.arrivals, &chaos.options, &run);
            delayed += run.counters.delayed;
        }
        chaos.options.delays = true;
        let policy = "adaptive:without=rescue";
        simulate(&chaos.world, policy, &chaos.arrivals, &chaos.options);
    }
    assert!(delayed > 1000, "{delayed}");
}

#[test]
fn the_checker_finds_who_starts_too_early() {
    let world = World::chain(1, vec![Node::constant(10_000)]);
    let config = config(&world, &Options::default());
    let request = |id: u64, level: u8, delay: Option<u64>| {
        let mut arrival = Arrival::new(id, 0, 1, 1, None);
        (arrival.priority, arrival.delay) = (level, delay);
        let mut request = sim_requests(&[arrival], false).remove(0).request;
        request.id = RequestId(id);
        Event::Arrive(request)
    };
    let judge = |level: u8, order: &[u64], at: u64| {
        let mut checker = Checker::new(&config, false).with_delays();
        checker.on_event(Time(1), &request(1, 0, Some(5))).unwrap();
        checker.on_event(Time(2), &request(2, level, None)).unwrap();
        order.iter().try_for_each(|&id| {
            let (request, slot) = (RequestId(id), Slot(id as u32));
            checker.on_action(Time(at), &Action::Open { request, slot })
        })
    };
    assert_eq!(judge(0, &[2, 1], 10), Ok(()));
    assert_eq!(judge(0, &[1, 2], 6), Ok(()), "not delayed yet");
    assert_eq!(judge(3, &[1, 2], 10), Ok(()), "another level");
    let violation = judge(0, &[1, 2], 7).unwrap_err();
    assert_eq!(violation.rule, 10);
    assert!(
        violation
            .what
            .contains("r1 is delayed and starts before r2")
    );
}

#[test]
fn journals_of_delayed_requests_replay() {
    let mut delayed = 0;
    for seed in 0..num_cases(20) {
        let mut chaos = chaos(seed);
        chaos.options.delays = false;
        for policy in ["adaptive", "lazy", "edf", "triton", "balance:1/demote"] {
            let run = simulate(&chaos.world, policy, &chaos.arrivals, &chaos.options);
            delayed += run.counters.delayed;
            let header = Header::new(policy, &chaos.world.profile(), &run.config);
            let mut writer = Writer::new(Vec::new(), &header);
            for (now, item) in &run.transcript {
                match item {
                    Item::Event(event) => writer.on_event(*now, event),
                    Item::Launch(launch) => writer.on_launch(*now, launch),
                    Item::Action(action) => writer.on_action(*now, action),
                }
            }
            let journal = writer.finish().unwrap();
            let replayed = journal::replay(&journal[..], &mut ()).unwrap();
            let ended = run.ended.len();
            assert_eq!(replayed.finished, ended, "seed {seed}: {policy}");
        }
    }
    assert!(delayed > 50, "{delayed}");
}

/// Eight arrive whenever eight end, and eight wait all the time: who is delayed would wait for ever.
#[test]
fn who_is_delayed_ends_although_others_never_cease() {
    let world = World::chain(8, vec![Node::constant(100_000)]);
    let eight = |at| (0..8).map(move |_| Arrival::new(at, 0, 1, 1, None));
    let mut arrivals: Vec<Arrival> = eight(0).chain(eight(0)).collect();
    for at in [50_000, 60_000] {
        let mut delayed = Arrival::new(at, 0, 1, 1, None);
        delayed.delay = Some(10_000);
        arrivals.push(delayed);
    }
    arrivals.extend((1..1000).flat_map(|i| eight(i * 100_000 - 1000)));
    let finish = |policy: &str| {
        let run = simulate(&world, policy, &arrivals, &Options::default());
        assert_eq!(run.counters.delayed, 2);
        run.finishes()[16..18].to_vec()
    };
    assert!(finish("front").iter().all(|&t| t > 99_000_000));
    // As often as docs/scheduling.md says, eight at a time, and two batches more for the two.
    let in_flight = 32;
    let passed = 17 * in_flight + 64 * (17 + 2);
    for policy in ["adaptive:front:demote", "adaptive"] {
        let finish = finish(policy);
        let bound = (passed / 8 + 3) * 100_000;
        assert!(finish.iter().all(|&t| t < bound), "{policy}: {finish:?}");
    }
}
