//! SLA classes: priority levels, weighted shares, and what becomes of those that are too late.

use crate::common::*;
use lazybatch_sla::{Class, Outcome};
use rand::Rng;

/// Eight take 100 us, alone as together: 80,000 a second.
const CAPACITY: f64 = 80_000.0;

fn model() -> Vec<Node> {
    vec![Node::constant(100_000)]
}

/// Poisson arrivals at `load` times capacity, each of the class and model that `of` says.
fn offered(load: f64, num: u64, sla_us: u64, of: impl Fn(u64, &mut Arrival)) -> Vec<Arrival> {
    let mut rng = rng(7);
    let mut now = 0.0;
    let one = |i| {
        now += -(1.0 - rng.random::<f64>()).ln() * 1e9 / (load * CAPACITY);
        let mut arrival = Arrival::new(now as u64, 0, 1, 1, Some(sla_us * 1000));
        of(i, &mut arrival);
        arrival
    };
    (0..num).map(one).collect()
}

fn classes(specs: &[&str]) -> Options {
    let classes = specs.iter().map(|s| s.parse().expect("a class"));
    Options {
        classes: Class::by_id(classes),
        ..Options::default()
    }
}

/// How the requests that `of` picks ended: number, mean latency of the completed in microseconds,
/// number in time, number refused.
struct Fate {
    num: usize,
    mean_us: f64,
    met: usize,
    shed: usize,
}

fn fate(run: &Run, arrivals: &[Arrival], of: impl Fn(&Arrival) -> bool) -> Fate {
    let own: Vec<_> = run
        .ended
        .iter()
        .zip(arrivals)
        .filter(|(_, a)| of(a))
        .collect();
    let completed = own.iter().filter(|(e, _)| e.outcome.is_completed());
    let latencies: Vec<u64> = completed.map(|(e, a)| e.finish.0 - a.at).collect();
    let num_of = |outcome| own.iter().filter(|(e, _)| e.outcome == outcome).count();
    Fate {
        num: own.len(),
        mean_us: latencies.iter().sum::<u64>() as f64 / 1e3 / latencies.len().max(1) as f64,
        met: num_of(Outcome::Met),
        shed: num_of(Outcome::Shed),
    }
}

/// Completions of each class until arrivals end, while everyone has work all the time.
fn completed_by(run: &Run, arrivals: &[Arrival], of: impl Fn(&Arrival) -> bool) -> f64 {
    let end = arrivals.last().expect("arrivals").at;
    let own = run.ended.iter().zip(arrivals).filter(|(_, a)| of(a));
    own.filter(|(e, _)| e.finish.0 <= end).count() as f64
}

#[test]
fn classes_of_one_model_share_by_weight() {
    let world = World::chain(8, model());
    let options = classes(&["gold:weight=3", "bronze:weight=1"]);
    let arrivals = offered(3.0, 12_000, 1_000_000, |i, a| a.class = 1 + (i % 2) as u32);
    for policy in ["front", "join:1", "balance:1", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &options);
        let gold = completed_by(&run, &arrivals, |a| a.class == 1);
        let bronze = completed_by(&run, &arrivals, |a| a.class == 2);
        let ratio = gold / bronze;
        assert!((2.7..3.3).contains(&ratio), "{policy}: {gold} to {bronze}");
    }
    // In order of arrival, weights say nothing.
    let run = simulate(&world, "greedy", &arrivals, &options);
    let gold = completed_by(&run, &arrivals, |a| a.class == 1);
    let bronze = completed_by(&run, &arrivals, |a| a.class == 2);
    assert!((0.9..1.1).contains(&(gold / bronze)), "{gold} to {bronze}");
}

#[test]
fn models_share_by_the_weight_of_their_classes() {
    let mut world = World::chain(8, model());
    world.models.push(world.models[0].clone());
    let options = classes(&["gold:weight=2", "bronze:weight=1"]);
    let arrivals = offered(3.0, 12_000, 1_000_000, |i, a| {
        a.model = (i % 2) as usize;
        a.class = 1 + (i % 2) as u32;
    });
    for policy in ["front", "balance:1", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &options);
        let of = |model| completed_by(&run, &arrivals, |a| a.model == model);
        let ratio = of(0) / of(1);
        assert!((1.8..2.2).contains(&ratio), "{policy}: {ratio}");
    }
}

#[test]
fn who_was_idle_has_saved_up_nothing() {
    // The second model comes when the first has had the device to itself for long. It must not
    // keep the first from the device until it has had as much.
    let mut world = World::chain(8, model());
    world.models.push(world.models[0].clone());
    let mut arrivals = offered(2.0, 8000, 1_000_000, |i, a| {
        a.model = usize::from(i > 4000 && i % 2 == 0);
    });
    arrivals.truncate(6000);
    let run = simulate(&world, "front", &arrivals, &Options::default());
    let from = arrivals[4001].at;
    let end = arrivals[5999].at;
    let within = |model| {
        let own = run
            .ended
            .iter()
            .zip(&arrivals)
            .filter(|(_, a)| a.model == model);
        own.filter(|(e, _)| (from..end).contains(&e.finish.0))
            .count() as f64
    };
    let ratio = within(0) / within(1);
    assert!(
        (0.85..1.2).contains(&ratio),
        "{} to {}",
        within(0),
        within(1)
    );
}

#[test]
fn higher_levels_come_first_and_lower_ones_do_not_starve() {
    let world = World::chain(8, model());
    let arrivals = offered(1.5, 8000, 1_000_000, |i, a| {
        a.priority = [1, 2, 0][(i % 3) as usize]
    });
    for policy in ["front", "balance:1", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &Options::default());
        let [first, second, last] = [1, 2, 0].map(|p| fate(&run, &arrivals, |a| a.priority == p));
        // Two levels of three fit the device: they wait for a batch or two.
        assert!(first.mean_us < 260.0, "{policy}: {}", first.mean_us);
        assert!(
            last.mean_us > 20.0 * first.mean_us,
            "{policy}: {}",
            last.mean_us
        );
        assert!(
            second.mean_us >= first.mean_us,
            "{policy}: {}",
            second.mean_us
        );
    }
    // A level that could keep the device busy alone does not shut the others out for ever.
    let arrivals = offered(2.0, 8000, 1_000_000, |i, a| {
        a.priority = u8::from(i % 8 != 0)
    });
    let by_end = |policy| {
        let run = simulate(&world, policy, &arrivals, &Options::default());
        completed_by(&run, &arrivals, |a| a.priority == 0)
    };
    let (front, adaptive) = (by_end("front"), by_end("adaptive"));
    assert!(
        front < 20.0 && adaptive > 40.0,
        "{front} and {adaptive} of level 0 by the end"
    );
}

#[test]
fn the_level_of_a_class_is_that_of_requests_that_state_none() {
    let gold: Class = "gold:priority=1".parse().expect("a class");
    assert_eq!((gold.priority_of(0), gold.priority_of(3)), (1, 3));
}

#[test]
fn levels_hold_between_models() {
    let mut world = World::chain(8, model());
    world.models.push(world.models[0].clone());
    let arrivals = offered(1.6, 8000, 1_000_000, |i, a| {
        a.model = (i % 2) as usize;
        a.priority = 1 + (i % 2) as u8;
    });
    for policy in ["front", "balance:1", "join:0", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &Options::default());
        let [first, second] = [0, 1].map(|m| fate(&run, &arrivals, |a| a.model == m));
        assert!(first.mean_us < 300.0, "{policy}: {}", first.mean_us);
        assert!(second.mean_us > 10.0 * first.mean_us, "{policy}");
    }
}

/// A decoder of which one of the first level is always in flight, with as many of level 0 behind it as
/// there is room for, and a chain whose requests are of a level between them: nobody of level 0 goes
/// before these, whoever is in flight in their model.
#[test]
fn who_waits_on_a_lower_level_gains_nothing_by_one_in_flight_on_a_higher() {
    let mut world = World::chain(8, model());
    let block = Block {
        rep: Rep::Until(Some(20)),
        nodes: model(),
    };
    world.models.push(Model {
        max_batch: 8,
        p90: 10,
        blocks: vec![block],
    });
    let mut arrivals: Vec<Arrival> = (0..40)
        .map(|i| {
            let mut first = Arrival::new(i * 900_000, 1, 1, 10, None);
            first.priority = 1;
            first
        })
        .collect();
    arrivals.extend((0..400).map(|i| Arrival::new(i * 90_000, 1, 1, 10, None)));
    arrivals.extend((0..100).map(|i| {
        let mut between = Arrival::new(i * 360_000, 0, 1, 1, None);
        between.priority = 5;
        between
    }));
    arrivals.sort_by_key(|a| a.at);
    for policy in ["join:0", "balance:1", "join:1/short", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &Options::default());
        // Of level 0, those that were launched first while somebody of level 5 waited from before.
        let waits: Vec<(u64, u64)> = run
            .ended
            .iter()
            .zip(&arrivals)
            .filter(|(_, a)| a.priority == 5)
            .map(|(e, a)| (a.at, e.first_launch.expect("it ran").0))
            .collect();
        let before = run.ended.iter().zip(&arrivals).filter(|(e, a)| {
            let at = e.first_launch.expect("it ran").0;
            a.priority == 0 && waits.iter().any(|w| w.0 < at && at < w.1)
        });
        assert_eq!(before.count(), 0, "{policy}");
    }
}

#[test]
fn each_class_says_what_becomes_of_those_that_are_too_late() {
    let world = World::chain(8, model());
    let options = classes(&[
        "keeps:late=keep",
        "demotes:late=demote",
        "sheds:late=shed",
        "refuses:late=refuse",
    ]);
    // One class alone, at twice what the device can do.
    for (class, name) in [(1, "keep"), (2, "demote"), (3, "shed"), (4, "refuse")] {
        let arrivals = offered(2.0, 10_000, 1000, |_, a| a.class = class);
        let span_s = arrivals.last().expect("arrivals").at as f64 / 1e9;
        for policy in ["front", "adaptive"] {
            let run = simulate(&world, policy, &arrivals, &options);
            let fate = fate(&run, &arrivals, |_| true);
            let goodput = fate.met as f64 / span_s;
            let what = format!("{policy}, {name}: {goodput:.0}/s, {} shed", fate.shed);
            let refuses = class >= 3;
            assert_eq!(fate.shed > 0, refuses, "{what}");
            if class != 4 {
                assert_eq!(run.counters.demoted > 0, class == 2, "{what}");
            }
            if class == 1 {
                assert!(goodput < 0.1 * CAPACITY, "{what}");
            } else {
                assert!(goodput > 0.88 * CAPACITY, "{what}");
            }
            if refuses {
                // Who is accepted is in time, nearly always.
                let accepted = fate.num - fate.shed;
                assert!(
                    fate.met as f64 > 0.97 * accepted as f64,
                    "{what}: of {accepted}"
                );
            }
        }
    }
}

#[test]
fn a_class_says_how_long_those_that_are_too_late_let_others_pass() {
    let world = World::chain(8, model());
    // Forty at once, of which some are late, and then nine tenths of what the device bears.
    let mut arrivals = offered(0.9, 4000, 300, |_, a| a.class = 1);
    for arrival in &mut arrivals[..40] {
        arrival.at = 0;
    }
    let longest = |run: &Run| {
        let took = run.ended.iter().zip(&arrivals);
        took.map(|(e, a)| (e.finish.0 - a.at) / 1000).max()
    };
    for policy in ["front", "adaptive:front:demote"] {
        let [without, with] = ["late=demote", "late=demote,patience=0.4"].map(|late| {
            let options = classes(&[&format!("strict:{late}")]);
            let run = simulate(&world, policy, &arrivals, &options);
            assert!(run.counters.demoted > 0, "{policy}: {late}");
            run
        });
        let [late, bounded] = [&without, &with].map(longest);
        // Behind its target and the patience it waits for those alone who came before, and for what runs.
        assert!(bounded < Some(300 + 400 + 600), "{policy}: {bounded:?} us");
        assert!(late > Some(2 * (300 + 400 + 600)), "{policy}: {late:?} us");
        // Others pay for it.
        let [all, fewer] = [&without, &with].map(|run| fate(run, &arrivals, |_| true).met);
        assert!(fewer < all, "{policy}: {fewer} of {all}");
    }
}

#[test]
fn who_has_let_others_pass_for_its_patience_goes_by_when_it_came() {
    // One at a time, 100 us each. The second is due at 110 and found late at 100, as at 200; its
    // patience is over at 210.
    let world = World::chain(1, model());
    let due = [(0, 1000), (10, 100), (20, 1000), (30, 1000), (40, 1000)];
    let arrivals = due.map(|(at, sla)| Arrival::new(at * 1000, 0, 1, 1, Some(sla * 1000)));
    for (patience, order) in [("", [0, 2, 3, 4, 1]), (",patience=0.1", [0, 2, 3, 1, 4])] {
        let options = classes(&[&format!("default:late=demote{patience}")]);
        let run = simulate(&world, "front", &arrivals, &options);
        let mut ended: Vec<_> = run.ended.iter().map(|e| (e.finish, e.id.index())).collect();
        ended.sort();
        let ended: Vec<_> = ended.iter().map(|e| e.1).collect();
        assert_eq!(ended, order, "{patience}");
    }
}

/// A loop of 10 us a pass, for up to eight, and arrivals at twice what that can do if each takes ten
/// passes in the mean.
fn looping(rep: Rep, num: u64, of: impl Fn(u64, &mut Arrival)) -> (World, Vec<Arrival>) {
    let mut world = World::chain(8, vec![Node::constant(10_000)]);
    world.models[0].p90 = 18;
    world.models[0].blocks[0].rep = rep;
    let arrivals = offered(2.0, num, 400, |i, a| {
        a.class = 1;
        of(i, a);
    });
    (world, arrivals)
}

#[test]
fn where_others_wait_only_those_are_served_who_are_sure_to_be_in_time() {
    // From 1 to 19 passes, as nobody can know: 95 us in the mean.
    let lens = std::cell::RefCell::new(rng(11));
    let (world, arrivals) = looping(Rep::Until(None), 10_000, |_, a| {
        a.output_len = lens.borrow_mut().random_range(1..20);
    });
    let span_s = arrivals.last().expect("arrivals").at as f64 / 1e9;
    for policy in ["iteration", "balance:2", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &classes(&["strict:late=shed"]));
        let fate = fate(&run, &arrivals, |_| true);
        let (accepted, goodput) = (fate.num - fate.shed, fate.met as f64 / span_s);
        let what = format!("{policy}: of {accepted} {} met, {goodput:.0}/s", fate.met);
        assert!(fate.met as f64 > 0.9 * accepted as f64, "{what}");
        assert!(goodput > 0.8 * CAPACITY, "{what}");
    }
}

#[test]
fn where_not_all_can_be_in_time_the_long_ones_are_shed() {
    // Every fourth takes 34 passes, the others 2.
    let (world, arrivals) = looping(Rep::PerStep(1), 10_000, |i, a| {
        a.input_len = if i % 4 == 0 { 34 } else { 2 };
    });
    for (policy, class) in [
        ("iteration", "strict:late=shed"),
        ("balance:2", "strict:late=shed"),
        ("adaptive", "strict:late=shed"),
    ] {
        let run = simulate(&world, policy, &arrivals, &classes(&[class]));
        let [short, long] = [2, 34].map(|len| fate(&run, &arrivals, |a| a.input_len == len));
        let what = format!("{policy}: {} of {} short ones met", short.met, short.num);
        assert!(short.met as f64 > 0.9 * short.num as f64, "{what}");
        assert!(long.shed as f64 > 0.4 * long.num as f64, "{what}");
    }
    // Where everyone can be, nobody is.
    let mut slower = arrivals;
    for a in &mut slower {
        (a.at, a.sla) = (4 * a.at, Some(2_000_000));
    }
    let run = simulate(&world, "adaptive", &slower, &classes(&["strict:late=shed"]));
    assert_eq!(fate(&run, &slower, |_| true).shed, 0);
}

#[test]
fn who_has_time_enough_is_not_refused_for_large_batches() {
    // Time goes with the batch, 2 ms for each, so that batches are as large as what has gathered:
    // some ten at 90 % of the capacity, over within tens of milliseconds of a target of 400.
    let world = World::chain(64, vec![Node::linear(100_000, 2_000_000)]);
    let arrivals = offered(0.9 * 490.0 / CAPACITY, 4000, 400_000, |_, a| a.class = 1);
    for class in ["strict:late=shed", "strict:late=refuse"] {
        for policy in ["front", "join:1", "adaptive"] {
            let run = simulate(&world, policy, &arrivals, &classes(&[class]));
            let fate = fate(&run, &arrivals, |_| true);
            let what = format!("{policy}, {class}: mean {:.0} us", fate.mean_us);
            assert_eq!((fate.shed, fate.met), (0, arrivals.len()), "{what}");
            assert!(fate.mean_us > 10_000.0, "{what}");
        }
    }
}

#[test]
fn who_is_refused_hears_at_once() {
    let world = World::chain(8, model());
    let options = classes(&["refuses:late=refuse", "sheds:late=shed"]);
    let mean_wait = |class| {
        let arrivals = offered(2.0, 10_000, 1000, |_, a| a.class = class);
        let run = simulate(&world, "front", &arrivals, &options);
        let refused = run.ended.iter().filter(|e| e.outcome == Outcome::Shed);
        let waits: Vec<u64> = refused
            .map(|e| e.finish.0 - arrivals[e.id.index()].at)
            .collect();
        assert!(waits.len() > 1000, "{} refused", waits.len());
        waits.iter().sum::<u64>() / waits.len() as u64
    };
    // While a batch runs, against when its turn would have come.
    assert_eq!(mean_wait(1), 0);
    assert!(mean_wait(2) > 700_000, "{} ns", mean_wait(2));
}

#[test]
fn one_class_may_refuse_where_another_does_not() {
    let world = World::chain(8, model());
    let options = classes(&["strict:late=shed", "patient:late=keep"]);
    let arrivals = offered(2.0, 10_000, 1000, |i, a| a.class = 1 + (i % 2) as u32);
    let run = simulate(&world, "adaptive", &arrivals, &options);
    let [strict, patient] = [1, 2].map(|c| fate(&run, &arrivals, |a| a.class == c));
    assert!(strict.shed > 0 && patient.shed == 0);
    assert_eq!(run.counters.demoted, 0);
}

#[test]
fn an_idle_device_tries_those_who_would_be_in_time_with_short_outputs() {
    // Loops of 10 us; ten passes, as predicted, are too many for everyone but one, three are not.
    let mut world = World::chain(8, vec![Node::constant(10_000)]);
    world.models[0].p90 = 10;
    world.models[0].blocks[0].rep = Rep::Until(None);
    let at = |us: u64, output, sla_us: u64| {
        let mut arrival = Arrival::new(us * 1000, 0, 1, output, Some(sla_us * 1000));
        arrival.class = 1;
        arrival
    };
    // At first predictions are believed.
    let mut arrivals: Vec<_> = (0..16).map(|i| at(100 * i, 3, 50)).collect();
    let mut expected = vec![Outcome::Shed; 16];
    for (arrival, outcome) in [
        (at(2000, 5, 50), Outcome::Met),
        // While that runs.
        (at(2005, 3, 50), Outcome::Shed),
        (at(2200, 6, 50), Outcome::Violated),
        // Too late even for one pass.
        (at(2300, 1, 5), Outcome::Shed),
        // At the same moment comes one who is predicted to be in time; then predictions are believed.
        (at(2400, 3, 50), Outcome::Shed),
        (at(2400, 3, 150), Outcome::Met),
        (at(2600, 3, 50), Outcome::Shed),
        // The fourth to end; from then on outputs are predicted by those that were, not to be ten.
        (at(2700, 3, 150), Outcome::Met),
        (at(2900, 3, 50), Outcome::Met),
    ] {
        arrivals.push(arrival);
        expected.push(outcome);
    }
    for policy in ["balance:1/shed", "adaptive:shed"] {
        let run = simulate(&world, policy, &arrivals, &classes(&["strict"]));
        let outcomes: Vec<_> = run.ended.iter().map(|e| e.outcome).collect();
        assert_eq!(outcomes, expected, "{policy}");
    }
}

#[test]
fn lateness_is_of_samples_not_of_requests() {
    // Eight samples take 80 us, of which the short target knows nothing.
    let world = World::chain(8, vec![Node::linear(0, 10_000)]);
    let options = classes(&["gold:late=refuse"]);
    let arrivals: Vec<Arrival> = (0..60)
        .map(|i| {
            let (sla_us, samples) = [(60, 8), (90, 8), (60, 5)][i % 3];
            let mut arrival = Arrival::new(i as u64 * 1_000_000, 0, 1, 1, Some(sla_us * 1000));
            (arrival.samples, arrival.class) = (samples, 1);
            arrival
        })
        .collect();
    for policy in ["front", "join:1", "adaptive"] {
        let run = simulate(&world, policy, &arrivals, &options);
        for (i, ended) in run.ended.iter().enumerate() {
            let right = [Outcome::Shed, Outcome::Met, Outcome::Met][i % 3];
            assert_eq!(ended.outcome, right, "{i} under {policy}");
        }
    }
}

#[test]
fn a_burst_on_an_idle_device_is_one_batch() {
    // Twenty take 10.6 ms together, and come all at once, or one behind the other.
    let world = World::chain(32, vec![Node::linear(10_000_000, 30_000)]);
    for apart in [0, 1000] {
        let arrivals: Vec<Arrival> = (0..2000)
            .map(|i| {
                let at = i / 20 * 100_000_000 + i % 20 * apart;
                let mut arrival = Arrival::new(at, 0, 1, 1, Some(50_000_000));
                arrival.class = 1;
                arrival
            })
            .collect();
        for (policy, late) in [
            ("adaptive", "refuse"),
            ("front", "refuse"),
            ("adaptive", "shed"),
        ] {
            let options = classes(&[&format!("gold:late={late}")]);
            let run = simulate(&world, policy, &arrivals, &options);
            let all = fate(&run, &arrivals, |_| true);
            assert_eq!(
                (all.met, all.num),
                (2000, 2000),
                "{policy}, {late}, {apart} ns"
            );
        }
    }
}

#[test]
fn of_a_burst_the_first_are_served() {
    // Ten can be in time, in two batches of four and one of two, so the others are refused.
    let world = World::chain(4, vec![Node::constant(10_000_000)]);
    let mut arrivals = Vec::new();
    for burst in 0..50 {
        for _ in 0..40 {
            let mut arrival = Arrival::new(burst * 1_000_000_000, 0, 1, 1, Some(35_000_000));
            arrival.class = 1;
            arrivals.push(arrival);
        }
    }
    let options = classes(&["gold:late=refuse"]);
    let run = simulate(&world, "front", &arrivals, &options);
    for (burst, ended) in run.ended.chunks(40).enumerate() {
        let refused = ended
            .iter()
            .position(|e| e.outcome == Outcome::Shed)
            .unwrap();
        assert!((8..=12).contains(&refused), "{refused} of burst {burst}");
        let later = &ended[refused..];
        assert!(
            later.iter().all(|e| e.outcome == Outcome::Shed),
            "burst {burst}"
        );
    }
}

#[test]
fn nobody_is_locked_out_by_what_others_took_once() {
    // A row takes 1 ms: short ones that share a launch with a long one take hundreds of times what they
    // need. Then comes one every 20 ms, on an idle device, that needs 1 ms and has 5.
    let by_rows = Node {
        by_rows: true,
        ..Node::linear(0, 1_000_000)
    };
    let world = World::chain(32, vec![by_rows]);
    let mut arrivals: Vec<Arrival> = (0..32)
        .map(|i| Arrival::new(0, 0, if i == 0 { 400 } else { 1 }, 1, None))
        .collect();
    arrivals.extend(
        (0..1000).map(|i| Arrival::new(2_000_000_000 + i * 20_000_000, 0, 1, 1, Some(5_000_000))),
    );
    for late in ["refuse", "shed", "demote"] {
        let options = classes(&[&format!("gold:late={late}")]);
        arrivals.iter_mut().for_each(|a| a.class = 1);
        for policy in ["front", "adaptive"] {
            let run = simulate(&world, policy, &arrivals, &options);
            let short = fate(&run, &arrivals, |a| a.at >= 2_000_000_000);
            assert!(short.met >= 900, "{policy}, {late}: {} met", short.met);
        }
    }
}
