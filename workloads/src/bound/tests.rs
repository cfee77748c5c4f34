//! The bound against exhaustive search, against every policy, and against its own definition.
#![allow(clippy::unwrap_used, reason = "tests")]

use lazybatch_engine::policy;
use lazybatch_kernels::Noise;
use lazybatch_sla::profile::{BlockProfile, By, FORMAT, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{LatencyTable, Profile, Time, segments_of};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::shares::Share;
use super::*;
use crate::arrivals::{Arrival, Limit, Process, Stream, Workload};
use crate::devices;
use crate::experiment::Detail;
use crate::lengths::Lengths;

fn simulation<'a>(profile: &'a Profile, arrivals: &'a [Arrival]) -> Simulation<'a> {
    Simulation {
        profile,
        arrivals,
        sla: None,
        classes: &[],
        segment: 1,
        decide: Nanos::ZERO,
        max_queue: usize::MAX,
        noise: Noise::default(),
        timing: false,
    }
}

fn node(rng: &mut ChaCha8Rng, name: String, by: By, max_batch: u32) -> NodeProfile {
    let fixed = f64::from(rng.random_range(1..40u32));
    let each = f64::from(rng.random_range(0..20u32));
    let last = match by {
        By::Members => u64::from(max_batch),
        By::Rows => 3 * u64::from(max_batch),
    };
    let knee = rng.random_range(1..=last);
    let mut points = vec![(1, fixed + each)];
    for x in [knee, last] {
        let steeper = if x == last { 2.0 } else { 1.0 };
        if x > points.last().unwrap().0 {
            points.push((x, fixed + each * steeper * x as f64));
        }
    }
    // Some tables fall somewhere.
    if rng.random_bool(0.2) {
        points.last_mut().unwrap().1 *= 0.5;
    }
    NodeProfile {
        name,
        by,
        latency_us: points,
        num_nodes: None,
        merge_bytes_per_member: 0.0,
        weight_bytes: None,
        load_us: None,
        host_access_us: None,
    }
}

/// A random model of one or two blocks of one or two nodes.
fn random_profile(rng: &mut ChaCha8Rng, max_batch: u32) -> Profile {
    let blocks = (0..rng.random_range(1..=2)).map(|b| {
        let repeats = [
            RepeatRule::Once,
            RepeatRule::PerInputStep,
            RepeatRule::UntilStop,
        ];
        let repeat = repeats[rng.random_range(0..3)];
        let nodes = (0..rng.random_range(1..=2)).map(|n| {
            let by_rows = repeat == RepeatRule::Once && rng.random_bool(0.5);
            let by = if by_rows { By::Rows } else { By::Members };
            node(rng, format!("n{b}.{n}"), by, max_batch)
        });
        BlockProfile {
            name: format!("b{b}"),
            repeat,
            stride: None,
            max_steps: None,
            nodes: nodes.collect(),
        }
    });
    let model = ModelProfile {
        name: "m".into(),
        max_batch,
        sla_ms: Some(0.2),
        output_len_p90: Some(2),
        blocks: blocks.collect(),
    };
    Profile {
        format: FORMAT.into(),
        device: "d".into(),
        copy_gbps: 0.0,
        dispatch_us: f64::from(rng.random_range(0..3u32)),
        issue_us: 0.0,
        models: vec![model],
    }
}

fn random_arrivals(rng: &mut ChaCha8Rng, n: usize, gap_us: u64, longest: u32) -> Vec<Arrival> {
    let mut at = 0;
    (0..n)
        .map(|_| {
            at += rng.random_range(0..gap_us) * 1000;
            let (input, output) = (rng.random_range(1..=longest), rng.random_range(0..=longest));
            Arrival {
                sla: Some(Nanos(rng.random_range(20..400u64) * 1000)),
                ..Arrival::new(Time(at), "m", input, output)
            }
        })
        .collect()
}

/// All schedules of few requests.
struct Search<'a> {
    table: LatencyTable,
    arrivals: &'a [Arrival],
    /// Block and segment of every pass of every request.
    passes: Vec<Vec<(u32, u32)>>,
    left: Vec<Vec<u64>>,
    /// Counts late requests, not latencies.
    count_late: bool,
    best: u64,
}

impl<'a> Search<'a> {
    fn new(profile: &Profile, arrivals: &'a [Arrival], count_late: bool) -> Self {
        let model = &profile.models[0];
        let segments = segments_of(model, 1);
        let table = LatencyTable::new(model, &segments, profile.dispatch_us, profile.copy_gbps);
        let of = |a: &Arrival| {
            let mut passes = Vec::new();
            for (b, block) in model.blocks.iter().enumerate() {
                let n = match block.repeat {
                    RepeatRule::Once => 1,
                    RepeatRule::PerInputStep => a.input_len,
                    RepeatRule::UntilStop => a.output_len,
                };
                for _ in 0..n {
                    passes.extend((0..block.nodes.len()).map(|s| (b as u32, s as u32)));
                }
            }
            passes
        };
        Self {
            passes: arrivals.iter().map(of).collect(),
            left: vec![Vec::new(); arrivals.len()],
            table,
            arrivals,
            count_late,
            best: u64::MAX,
        }
    }

    fn cost(&self, i: usize, end: u64) -> u64 {
        let latency = end - self.arrivals[i].at.0;
        if self.count_late {
            u64::from(latency > self.arrivals[i].sla.unwrap().0)
        } else {
            latency
        }
    }

    fn least(mut self) -> u64 {
        let n = self.arrivals.len();
        let mut start = 0;
        for i in 0..n {
            let passes = &self.passes[i];
            // What is left behind each pass at least, whoever shares it.
            let mut left = vec![0; passes.len() + 1];
            for (p, &(b, s)) in passes.iter().enumerate().rev() {
                let others = (n as u64 - 1) * 2;
                let rows = u64::from(self.arrivals[i].input_len);
                let sizes = (1..=self.table.max_batch().min(n as u32))
                    .flat_map(|m| (rows..=rows + others).map(move |r| (m, r)));
                let times = sizes.map(|(m, r)| self.table.segment(b, s, m, r).0);
                left[p] = left[p + 1] + times.min().unwrap();
            }
            self.left[i] = left;
            if self.passes[i].is_empty() {
                start += self.cost(i, self.arrivals[i].at.0);
            }
        }
        let mut done = vec![0; n];
        self.go(0, &mut done, start);
        self.best
    }

    /// From time `now` on, with `done` passes behind each request and `cost` of those that ended.
    fn go(&mut self, now: u64, done: &mut Vec<usize>, cost: u64) {
        let open = |s: &Self, i: usize, d: &[usize]| d[i] < s.passes[i].len();
        let n = done.len();
        let mut least = cost;
        for i in (0..n).filter(|&i| open(self, i, done)) {
            least += self.cost(i, now.max(self.arrivals[i].at.0) + self.left[i][done[i]]);
        }
        if least >= self.best {
            return;
        }
        let all: Vec<usize> = (0..n).filter(|&i| open(self, i, done)).collect();
        if all.is_empty() {
            self.best = cost;
            return;
        }
        let here = |i: &&usize| self.arrivals[**i].at.0 <= now;
        let present: Vec<usize> = all.iter().filter(here).copied().collect();
        for set in (1..1u32 << present.len()).rev() {
            let members = present.iter().enumerate();
            let members = members.filter(|(k, _)| set >> k & 1 == 1);
            let members: Vec<usize> = members.map(|(_, &i)| i).collect();
            let at = self.passes[members[0]][done[members[0]]];
            let together = members.iter().all(|&i| self.passes[i][done[i]] == at);
            if !together || members.len() > self.table.max_batch() as usize {
                continue;
            }
            let rows = members
                .iter()
                .map(|&i| u64::from(self.arrivals[i].input_len))
                .sum();
            let time = self.table.segment(at.0, at.1, members.len() as u32, rows).0;
            let end = now + time;
            let mut more = 0;
            for &i in &members {
                done[i] += 1;
                if !open(self, i, done) {
                    more += self.cost(i, end);
                }
            }
            self.go(end, done, cost + more);
            members.iter().for_each(|&i| done[i] -= 1);
        }
        let later = all
            .iter()
            .map(|&i| self.arrivals[i].at.0)
            .filter(|&t| t > now);
        if let Some(next) = later.min() {
            self.go(next, done, cost);
        }
    }
}

#[test]
fn no_schedule_of_few_requests_beats_it() {
    let (mut tight, mut late_bounds, mut runs) = (0, 0, 0);
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let max_batch = rng.random_range(1..=4);
        let profile = random_profile(&mut rng, max_batch);
        let n = rng.random_range(2..=3);
        let gap_us = [5, 40, 150][rng.random_range(0..3)];
        let arrivals = random_arrivals(&mut rng, n, gap_us, 2);
        let bound = LowerBound::of(&simulation(&profile, &arrivals)).unwrap();
        let search = Search::new(&profile, &arrivals, false);
        if search.passes.iter().map(Vec::len).sum::<usize>() > 12 {
            continue;
        }
        let best = search.least();
        let best_ms = best as f64 / n as f64 / 1e6;
        assert!(
            bound.mean_ms <= best_ms,
            "seed {seed}: {bound:?}, but {best_ms} ms is possible"
        );
        let late = Search::new(&profile, &arrivals, true).least();
        assert!(
            bound.violations <= late,
            "seed {seed}: {bound:?}, but {late} late is possible"
        );
        runs += 1;
        tight += u32::from(bound.mean_ms > 0.9 * best_ms);
        late_bounds += u32::from(bound.violations > 0 && bound.violations == late);
    }
    // Not a bound of nothing.
    assert!(tight * 2 > runs, "{tight} of {runs} within 10 %");
    assert!(
        late_bounds > 20,
        "{late_bounds} instances with late requests"
    );
}

#[test]
fn no_policy_beats_it() {
    for seed in 0..30 {
        let mut rng = ChaCha8Rng::seed_from_u64(1000 + seed);
        let mut profile = random_profile(&mut rng, 8);
        // LazyBatching's slack needs tables that do not fall; the bound does not.
        for node in profile.models[0]
            .blocks
            .iter_mut()
            .flat_map(|b| &mut b.nodes)
        {
            let mut most: f64 = 0.0;
            for point in &mut node.latency_us {
                most = most.max(point.1);
                point.1 = most;
            }
        }
        let gap_us = [10, 60, 200][rng.random_range(0..3)];
        let arrivals = random_arrivals(&mut rng, 150, gap_us, 6);
        let segment = rng.random_range(1..=2);
        let simulation = Simulation {
            segment,
            decide: Nanos(rng.random_range(0..2000)),
            ..simulation(&profile, &arrivals)
        };
        let bound = LowerBound::of(&simulation).unwrap();
        for policy in policy::examples().chain(policy::refusing_examples()) {
            let done = simulation
                .run(policy, None, &mut (), Detail::Launches)
                .unwrap();
            let sum: u64 = done.requests.iter().map(|r| r.latency().0).sum();
            let mean_ms = sum as f64 / done.requests.len() as f64 / 1e6;
            let met = done
                .requests
                .iter()
                .filter(|r| r.outcome == lazybatch_sla::Outcome::Met);
            let missed = done.requests.len() as u64 - met.count() as u64;
            let all_done = done.requests.iter().all(|r| r.outcome.is_completed());
            assert!(
                !all_done || bound.mean_ms <= mean_ms,
                "seed {seed}, {policy}: {bound:?}"
            );
            assert!(
                bound.violations <= missed,
                "seed {seed}, {policy}: {bound:?}"
            );
        }
    }
}

/// The dual value of any prices, with the integral taken numerically from above: between events the
/// integrand is convex, so that trapezoids overestimate it.
fn dual_value(jobs: &[Job], shares: &[Share], prices: &[f64], e: f64) -> f64 {
    let each = || jobs.iter().zip(shares).zip(prices);
    let mut cuts: Vec<f64> = Vec::new();
    for ((job, share), price) in each() {
        cuts.extend([job.at, job.at + price * share.work]);
    }
    cuts.sort_by(f64::total_cmp);
    let worth = |t: f64, before: bool| {
        let there = each().filter(|((job, _), _)| job.at < t || (job.at == t && !before));
        let worth = there.map(|((job, share), price)| price - (t - job.at) / share.work);
        worth.fold(0.0, f64::max)
    };
    let mut integral = 0.0;
    for pair in cuts.windows(2) {
        let steps = 400;
        for s in 0..steps {
            let at = |s: i32| pair[0] + (pair[1] - pair[0]) * f64::from(s) / f64::from(steps);
            let (from, to) = (at(s), at(s + 1));
            integral += (worth(from, false) + worth(to, true)) / 2.0 * (to - from);
        }
    }
    let own = each().map(|((_, s), p)| p * s.work - e * p * p * s.work / 2.0);
    own.sum::<f64>() - (1.0 - e) * integral
}

#[test]
fn the_integral_of_prices_is_what_the_order_says() {
    for seed in 0..20 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut at = 0.0;
        let works = [3.0, 5.0, 5.0, 9.0];
        let (mut jobs, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            at += f64::from(rng.random_range(0..7u32));
            let work = works[rng.random_range(0..4)];
            jobs.push(Job { at, alone: work });
            shares.push(Share { work, lag: 0.0 });
        }
        for e in [0.0, 0.3] {
            let left: Vec<f64> = shares.iter().map(|s| s.work * (1.0 - e)).collect();
            let ordered = mean::shared(&jobs, &shares, &left, 1.0 - e);
            let mut value = ordered.cost;
            for ((price, share), left) in ordered.prices.iter().zip(&shares).zip(&left) {
                value += price * (share.work - left) - e * price * price * share.work / 2.0;
            }
            let dual = dual_value(&jobs, &shares, &ordered.prices, e);
            assert!(
                (value - dual).abs() < 1e-3 * value.abs(),
                "seed {seed}, {e}: {value}, {dual}"
            );
        }
    }
}

fn flat(max_batch: u32, us: f64, last_us: f64) -> Profile {
    let last = match max_batch {
        1 => String::new(),
        b => format!(",[{b},{last_us}]"),
    };
    let text = format!(
        r#"{{"format":"lazybatch-profile/1","device":"d","models":[{{"name":"m","max_batch":{max_batch},
        "sla_ms":0.1,"blocks":[{{"name":"b","repeat":"once","nodes":[
        {{"name":"n","latency_us":[[1,{us}]{last}]}}]}}]}}]}}"#
    );
    Profile::parse("-", &text).unwrap()
}

fn at_us(times: &[u64]) -> Vec<Arrival> {
    let arrival = |&us: &u64| Arrival::new(Time(us * 1000), "m", 0, 0);
    times.iter().map(arrival).collect()
}

fn close(got: f64, expected: f64) {
    assert!(
        (got - expected).abs() < 1e-6 * expected,
        "{got}, not {expected}"
    );
}

#[test]
fn bounds_by_hand() {
    // Nothing to share: three requests of 40 us one behind the other, 40, 80, 120; with 100 us
    // from arrival to deadline one is late.
    let profile = flat(1, 40.0, 40.0);
    let arrivals = at_us(&[0, 0, 0]);
    let bound = LowerBound::of(&simulation(&profile, &arrivals)).unwrap();
    close(bound.mean_ms, 0.08);
    assert_eq!((bound.requests, bound.violations), (3, 1));
    close(bound.alone_ms, 0.04);
    // Everything for the price of one.
    let profile = flat(4, 40.0, 40.0);
    let bound = LowerBound::of(&simulation(&profile, &arrivals)).unwrap();
    close(bound.mean_ms, 0.04);
    assert_eq!((bound.violations, bound.private_speed), (0, 1.0));
    // Longer alone than the target allows.
    let profile = flat(4, 140.0, 140.0);
    let bound = LowerBound::of(&simulation(&profile, &arrivals)).unwrap();
    assert_eq!(bound.violations, 3);
    // Half of the time is shared: 40 us for one, 60 us for two. Both at once are best: 60 us each.
    let profile = flat(2, 40.0, 60.0);
    let bound = LowerBound::of(&simulation(&profile, &at_us(&[0, 0]))).unwrap();
    assert!((0.045..=0.06).contains(&bound.mean_ms), "{bound:?}");
}

/// A model of a segment of 40 us, a loop of 10 us steps over the input, and one of 20 us steps over
/// the output, all of them free to share.
fn staged() -> Profile {
    let text = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m","max_batch":8,
        "sla_ms":1,"blocks":[
        {"name":"a","repeat":"once","nodes":[{"name":"n","latency_us":[[1,40]]}]},
        {"name":"b","repeat":"per_input_step","nodes":[{"name":"n","latency_us":[[1,10]]}]},
        {"name":"c","repeat":"until_stop","nodes":[{"name":"n","latency_us":[[1,20]]}]}]}]}"#;
    Profile::parse("-", text).unwrap()
}

#[test]
fn pairs_by_hand() {
    let profile = staged();
    let bound = |requests: &[(u64, u32, u32)]| {
        let arrival = |&(us, input, output)| Arrival::new(Time(us * 1000), "m", input, output);
        let arrivals: Vec<Arrival> = requests.iter().map(arrival).collect();
        LowerBound::of(&simulation(&profile, &arrivals))
            .unwrap()
            .mean_ms
            * 1e3
    };
    // Alone 40 + 100 + 100 each. Side by side nobody waits.
    close(bound(&[(0, 10, 5), (0, 10, 5)]), 240.0);
    // The first segment apart: one waits for 40.
    close(bound(&[(0, 10, 5), (40, 10, 5)]), 260.0);
    // 60 of the first loop are shared at best, then the later one is 80 behind.
    close(bound(&[(0, 10, 5), (80, 10, 5)]), 280.0);
    // The earlier one has 80 left, the later one can wait for that.
    close(bound(&[(0, 10, 5), (160, 10, 5)]), 280.0);
    close(bound(&[(0, 10, 5), (240, 10, 5)]), 240.0);
    // The loops differ in length by 70: waiting in the first costs that, ending there costs 100.
    close(
        bound(&[(0, 10, 5), (0, 3, 5)]),
        (240.0 + 170.0 + 70.0) / 2.0,
    );
    // A pair apart by 80, and one that is left alone.
    let three = [(0, 10, 5), (80, 10, 5), (1000, 10, 5)];
    close(bound(&three), 240.0 + 80.0 / 3.0);
    // Who is in two pairs counts in one.
    let three = [(0, 10, 5), (80, 10, 5), (120, 10, 5)];
    assert!(bound(&three) <= 240.0 + 120.0 / 3.0 + 1e-6);
}

#[test]
fn requests_of_several_samples_count_them() {
    let profile = flat(4, 40.0, 160.0);
    let mut arrivals = at_us(&[0, 0]);
    arrivals[0].samples = 3;
    // 120 us and 40 us of work that cannot be shared: the short one first, 40 and 160.
    let bound = LowerBound::of(&simulation(&profile, &arrivals)).unwrap();
    close(bound.mean_ms, 0.1);
    assert_eq!(bound.violations, 1);
}

#[test]
fn requests_of_one_and_of_several_samples_share_a_launch() {
    let text = r#"{"format":"lazybatch-profile/1","device":"d","models":[{"name":"m","max_batch":10,
        "blocks":[{"name":"b","repeat":"once","nodes":[{"name":"n","by":"rows",
        "latency_us":[[1,150],[150,150],[1000,1000]]}]}]}]}"#;
    let profile = Profile::parse("test", text).unwrap();
    let mut arrivals = Vec::new();
    for group in 0..200 {
        let at = Time(group * 220_000);
        arrivals.extend((0..8).map(|_| Arrival::new(at, "m", 1, 0)));
        let mut double = Arrival::new(at, "m", 100, 0);
        double.samples = 2;
        arrivals.push(double);
    }
    let simulation = simulation(&profile, &arrivals);
    let bound = LowerBound::of(&simulation).unwrap();
    // One launch of all 208 rows for each group.
    let done = simulation.run("continuous", None, &mut (), Detail::Launches);
    let requests = done.unwrap().requests;
    let ms = requests.iter().map(|r| r.finish.since(r.arrival).as_ms());
    let mean_ms = ms.sum::<f64>() / requests.len() as f64;
    close(mean_ms, 0.208);
    assert!(bound.mean_ms <= mean_ms, "{}", bound.mean_ms);
}

#[test]
fn a_class_has_its_own_target() {
    let profile = flat(1, 40_000.0, 40_000.0);
    let mut arrivals = at_us(&[0]);
    arrivals[0].class = Some("gold".into());
    let mut gold = lazybatch_sla::Class::new("gold");
    let violations = |classes: &[lazybatch_sla::Class]| {
        let simulation = Simulation {
            sla: Some(Nanos::from_ms(20)),
            classes,
            ..simulation(&profile, &arrivals)
        };
        LowerBound::of(&simulation).unwrap().violations
    };
    assert_eq!(violations(std::slice::from_ref(&gold)), 1);
    gold.sla = Some(Nanos::from_ms(500));
    assert_eq!(violations(&[gold]), 0);
}

#[test]
fn bad_input_is_refused() {
    let profile = flat(1, 40.0, 40.0);
    let empty = LowerBound::of(&simulation(&profile, &[])).unwrap();
    assert_eq!((empty.requests, empty.mean_ms), (0, 0.0));
    let message = |arrivals: &[Arrival], jitter: f64| {
        let simulation = Simulation {
            noise: Noise {
                jitter,
                ..Noise::default()
            },
            ..simulation(&profile, arrivals)
        };
        LowerBound::of(&simulation).unwrap_err().to_string()
    };
    assert_eq!(
        message(&at_us(&[5, 3]), 0.0),
        "arrival 1: expected sorted times, got 3000 ns behind 5000 ns"
    );
    assert!(message(&at_us(&[5]), 0.1).starts_with("noise: expected no noise"));
    let other = vec![Arrival::new(Time(0), "other", 0, 0)];
    assert!(message(&other, 0.0).starts_with("arrival 0, column model: expected one of m"));
}

/// Strength on the models and device of the grid `paper`: printed with `--nocapture`.
#[test]
fn it_is_of_use_on_the_models_of_the_grid_paper() {
    for (model, rate, least_share) in [
        ("resnet50", 250.0, 0.8),
        ("resnet50", 1000.0, 0.7),
        ("bert-base", 250.0, 0.8),
        ("transformer", 64.0, 0.6),
    ] {
        let profile = devices::find("npu")
            .unwrap()
            .profile(&[model], true)
            .unwrap();
        let lengths = Lengths::load(crate::zoo::find(model).unwrap().lengths).unwrap();
        let process = Process::Poisson { rate_rps: rate };
        let workload = Workload::single(Stream::new(model, process, lengths), Limit::Requests(400));
        let arrivals = workload.generate(3).unwrap();
        let simulation = simulation(&profile, &arrivals);
        let bound = LowerBound::of(&simulation).unwrap();
        let done = simulation
            .run("greedy", None, &mut (), Detail::Launches)
            .unwrap();
        let sum: u64 = done.requests.iter().map(|r| r.latency().0).sum();
        let mean_ms = sum as f64 / done.requests.len() as f64 / 1e6;
        println!("{model} {rate}/s: {bound:?}, greedy {mean_ms:.3} ms");
        let share = bound.mean_ms / mean_ms;
        assert!(
            (least_share..=1.0).contains(&share),
            "{model} {rate}: {share}"
        );
    }
}
