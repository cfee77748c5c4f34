//! A random model with random arrivals.
//!
//! Ranges are in [`Case::new`] and the functions it calls; "log-uniform" means uniform in the
//! logarithm. They are ours, set to span what the zoo, the device models and the public traces
//! have, and kept small enough to simulate ten policies in about a second.

use lazybatch_engine::core::ModelSpec;
use lazybatch_graph::Repeat;
use lazybatch_sla::profile::{BlockProfile, By, FORMAT, ModelProfile, NodeProfile, RepeatRule};
use lazybatch_sla::{LatencyTable, Nanos, Profile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, LogNormal};
use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrival, Limit, Process, Stream, Workload};
use crate::error::Result;
use crate::lengths::Lengths;

/// Name of the model in every case.
pub const MODEL: &str = "random";
/// Most node executions of a request of mean lengths; models with more get shorter loops.
pub const MAX_EXECUTIONS: f64 = 200.0;
/// Share of models that are drawn without loops, as ResNet-50 and BERT are; a few more have none by
/// chance.
pub const SHARE_STATIC: f64 = 0.25;
/// Pairs of lengths that are drawn for a case's histogram.
const NUM_PAIRS: usize = 4096;

/// How a node's time grows with its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// Linear in the batch, up to 40 % of it fixed.
    Compute,
    /// Nearly flat: a full batch takes 2 to 50 % longer than one request.
    Memory,
    /// Flat up to a batch between 2 and the largest, linear from there on.
    Roofline,
    /// Each node one of the other three.
    Mixed,
}

/// How output lengths are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthKind {
    /// A multiple of the input length, with little noise.
    Correlated,
    /// Independent of the input length.
    Independent,
    /// Independent, with a Pareto tail of index 1.1 to 1.8, cut at 20 medians.
    HeavyTailed,
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalKind {
    /// Poisson.
    Poisson,
    /// Gamma gaps with a coefficient of variation of 1.5 to 4.
    Gamma,
    /// On and off in turn.
    OnOff,
}

/// One model, and who asks for it.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it was drawn from.
    pub seed: u64,
    /// Latency tables, with the SLA target.
    pub profile: Profile,
    /// Shape of the cost.
    pub cost: Cost,
    /// Kind of lengths.
    pub length_kind: LengthKind,
    /// The lengths.
    pub lengths: Lengths,
    /// Kind of arrivals.
    pub arrival_kind: ArrivalKind,
    /// The arrivals.
    pub process: Process,
    /// How many requests arrive.
    pub num_requests: usize,
    /// Arrival rate over [`Case::capacity_rps`].
    pub load: f64,
    /// Max batch over the time of one full batch of requests of mean lengths that stays full:
    /// blocks once at max batch, loops at max batch for the mean number of steps. Requests/s. As
    /// long as time per request falls with the batch, no schedule does better for long.
    pub capacity_rps: f64,
    /// Time of a request of mean lengths alone, milliseconds.
    pub alone_ms: f64,
    /// Other models on the same device, with their arrivals ([`Case::shared`]).
    pub beside: Vec<Case>,
}

impl Case {
    /// The case of a seed.
    ///
    /// A model of 2 to 6 blocks and 3 to 200 nodes (log-uniform), a quarter of them without loops,
    /// in the others each block with equal odds once or a loop, over the input or the output; max batch 8 to 64; an SLA of 2 to 20 times
    /// the latency alone (log-uniform); 1,500 to 2,500 requests at 0.05 to 1.3 of the capacity;
    /// half of the cases with costs of launches and merges.
    ///
    /// # Panics
    /// Never: what is drawn is valid, which a test holds.
    pub fn new(seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let length_kind = pick(
            rng,
            &[
                LengthKind::Correlated,
                LengthKind::Independent,
                LengthKind::HeavyTailed,
            ],
        );
        let lengths = lengths(rng, seed, length_kind);
        let cost = pick(
            rng,
            &[Cost::Compute, Cost::Memory, Cost::Roofline, Cost::Mixed],
        );
        let mut profile = profile(rng, cost, &lengths);
        let [capacity_rps, alone_ms] = figures(&profile, &lengths);
        profile.models[0].sla_ms = Some(round(alone_ms * log_uniform(rng, 2.0, 20.0), 1e3));
        let load = round(rng.random_range(0.05..1.3), 1e3);
        let arrival_kind = pick(
            rng,
            &[ArrivalKind::Poisson, ArrivalKind::Gamma, ArrivalKind::OnOff],
        );
        let process = process(rng, arrival_kind, load * capacity_rps);
        let num_requests = rng.random_range(1500..=2500);
        Self {
            seed,
            profile,
            cost,
            length_kind,
            lengths,
            arrival_kind,
            process,
            num_requests,
            load,
            capacity_rps,
            alone_ms,
            beside: Vec::new(),
        }
    }

    /// The arrivals of a draw, from 0, sorted by time: of the same processes and lengths, independent of
    /// those of other draws; as many each time where there is one model, over as long where there are
    /// several.
    ///
    /// # Errors
    /// As [`Workload::generate`].
    pub fn arrivals(&self, draw: u32) -> Result<Vec<Arrival>> {
        let stream = |case: &Self| {
            let model = case.model().name.as_str();
            Stream::new(model, case.process.clone(), case.lengths.clone())
        };
        let workload = Workload {
            streams: self.models().map(stream).collect(),
            limit: match self.beside.is_empty() {
                true => Limit::Requests(self.num_requests),
                false => Limit::Duration(self.span()),
            },
        };
        // An odd constant, 2^64 over the golden ratio: no draw has the seed of a case nearby.
        let seed = u64::from(draw).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        workload.generate(self.seed.wrapping_add(seed))
    }

    /// The model.
    pub fn model(&self) -> &ModelProfile {
        &self.profile.models[0]
    }

    /// The SLA target.
    ///
    /// # Panics
    /// Never: every case states one.
    pub fn sla(&self) -> Nanos {
        self.model().sla().expect("every case states a target")
    }

    /// Arrivals per second of this model.
    pub fn rate_rps(&self) -> f64 {
        self.load * self.capacity_rps
    }

    /// Whether a block is a loop.
    pub fn has_loops(&self) -> bool {
        let blocks = &self.model().blocks;
        blocks.iter().any(|b| b.repeat != RepeatRule::Once)
    }

    /// The blocks in order: repeat rule, number of nodes, and time of a pass at batch 1 and at max
    /// batch, with rows of requests of mean input length: `once 12: 80 > 210 us`.
    pub fn blocks(&self) -> Vec<String> {
        let table = table(&self.profile);
        let max_batch = self.model().max_batch;
        let describe = |(i, block): (usize, &BlockProfile)| {
            let pass = |batch: u32| {
                let rows = rows(batch, &self.lengths);
                table.pass(i as u32, 0, batch, rows).as_us()
            };
            let rule = match block.repeat {
                RepeatRule::Once => "once",
                RepeatRule::PerInputStep => "per_input_step",
                RepeatRule::UntilStop => "until_stop",
            };
            let nodes = block.nodes.len();
            format!("{rule} {nodes}: {:.0} > {:.0} us", pass(1), pass(max_batch))
        };
        let blocks = self.model().blocks.iter().enumerate();
        blocks.map(describe).collect()
    }
}

fn pick<T: Copy>(rng: &mut ChaCha8Rng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn log_uniform(rng: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    rng.random_range(low.ln()..high.ln()).exp()
}

/// To a whole multiple of 1 / `per_unit`, so that files stay short.
fn round(x: f64, per_unit: f64) -> f64 {
    (x * per_unit).round().max(1.0) / per_unit
}

/// Medians of 4 to 25 input and 3 to 25 (heavy-tailed 3 to 12) output steps.
fn lengths(rng: &mut ChaCha8Rng, seed: u64, kind: LengthKind) -> Lengths {
    let median_in = log_uniform(rng, 4.0, 25.0);
    let most_out = match kind {
        LengthKind::HeavyTailed => 12.0,
        LengthKind::Correlated | LengthKind::Independent => 25.0,
    };
    let median_out = log_uniform(rng, 3.0, most_out);
    let spread_in = rng.random_range(0.2..0.6);
    let spread_out = match kind {
        LengthKind::Correlated => rng.random_range(0.05..0.25),
        LengthKind::Independent => rng.random_range(0.3..0.7),
        LengthKind::HeavyTailed => rng.random_range(1.1..1.8),
    };
    let log_normal = |median: f64, spread: f64| {
        LogNormal::new(median.ln(), spread).expect("median and spread are finite")
    };
    let whole = |x: f64, most: f64| x.round().clamp(1.0, most.round()) as u32;
    let input = log_normal(median_in, spread_in);
    let noise = log_normal(1.0, spread_out);
    let pairs = (0..NUM_PAIRS).map(|_| {
        let s = whole(input.sample(rng), 8.0 * median_in);
        let t = match kind {
            LengthKind::Correlated => {
                let own = median_out / median_in * f64::from(s);
                whole(own * noise.sample(rng), 8.0 * median_out)
            }
            LengthKind::Independent => whole(median_out * noise.sample(rng), 8.0 * median_out),
            LengthKind::HeavyTailed => {
                let tail: f64 = Exp1.sample(rng);
                // A Pareto variable whose median is `median_out`.
                let least = median_out / 2.0_f64.powf(1.0 / spread_out);
                whole(least * (tail / spread_out).exp(), 20.0 * median_out)
            }
        };
        ((s, t), 1)
    });
    Lengths::from_counts(format!("random:{seed}"), pairs).expect("there are pairs")
}

fn profile(rng: &mut ChaCha8Rng, cost: Cost, lengths: &Lengths) -> Profile {
    let max_batch = log_uniform(rng, 8.0, 64.9) as u32;
    let is_static = rng.random_bool(SHARE_STATIC);
    let repeats: Vec<RepeatRule> = (0..rng.random_range(2..=6))
        .map(|_| match rng.random_range(0..4) {
            _ if is_static => RepeatRule::Once,
            0 | 1 => RepeatRule::Once,
            2 => RepeatRule::PerInputStep,
            _ => RepeatRule::UntilStop,
        })
        .collect();
    let typical_us = log_uniform(rng, 3.0, 200.0);
    let has_overheads = rng.random_bool(0.5);
    let (copy_gbps, dispatch_us, bytes) = if has_overheads {
        let gbps = round(log_uniform(rng, 10.0, 500.0), 1.0);
        let dispatch_us = round(typical_us * log_uniform(rng, 0.01, 0.3), 1e2);
        // A copy for one member takes 0.1 to 10 % of a typical node.
        let bytes = gbps * 1e3 * typical_us * log_uniform(rng, 0.001, 0.1);
        (gbps, dispatch_us, bytes.round())
    } else {
        (0.0, 0.0, 0.0)
    };
    let counts = node_counts(rng, &repeats, lengths);
    let mut blocks = Vec::new();
    for (b, (&repeat, &num_nodes)) in repeats.iter().zip(&counts).enumerate() {
        let mean_input = lengths.mean_input().round().max(2.0);
        let by_rows = repeat == RepeatRule::Once && rng.random_bool(0.4);
        let nodes = (0..num_nodes).map(|n| NodeProfile {
            name: format!("n{n}"),
            by: if by_rows { By::Rows } else { By::Members },
            latency_us: {
                let own_us = typical_us * log_uniform(rng, 0.3, 3.0);
                let rows_each = if by_rows { mean_input as u64 } else { 1 };
                latency_us(rng, cost, own_us, max_batch, rows_each)
            },
            num_nodes: None,
            // Nothing is live at the head of a block.
            merge_bytes_per_member: if n == 0 { 0.0 } else { bytes },
            weight_bytes: None,
            load_us: None,
            host_access_us: None,
        });
        blocks.push(BlockProfile {
            name: format!("b{b}"),
            repeat,
            stride: None,
            max_steps: None,
            nodes: nodes.collect(),
        });
    }
    Profile {
        format: FORMAT.into(),
        device: "random".into(),
        copy_gbps,
        dispatch_us,
        issue_us: 0.0,
        models: vec![ModelProfile {
            name: MODEL.into(),
            max_batch,
            sla_ms: None,
            output_len_p90: Some(lengths.output_p90()),
            blocks,
        }],
    }
}

/// Nodes of each block: 3 to 200 in all, in random shares; those of loops reduced until a request
/// of mean lengths executes at most [`MAX_EXECUTIONS`] in loops and [`MAX_EXECUTIONS`] elsewhere.
fn node_counts(rng: &mut ChaCha8Rng, repeats: &[RepeatRule], lengths: &Lengths) -> Vec<usize> {
    let fewest = repeats.len().max(3);
    let total = log_uniform(rng, fewest as f64, 200.9).floor();
    let shares: Vec<f64> = repeats.iter().map(|_| Exp1.sample(rng)).collect();
    let all: f64 = shares.iter().sum();
    // One each, and the rest by share.
    let spare = total - repeats.len() as f64;
    let mut counts: Vec<usize> = shares
        .iter()
        .map(|share| 1 + (spare * share / all).floor() as usize)
        .collect();
    let steps = |repeat| passes(repeat, lengths);
    let in_loops: f64 = counts
        .iter()
        .zip(repeats)
        .filter(|(_, r)| **r != RepeatRule::Once)
        .map(|(&n, &r)| n as f64 * steps(r))
        .sum();
    let factor = (MAX_EXECUTIONS / in_loops.max(1.0)).min(1.0);
    for (count, &repeat) in counts.iter_mut().zip(repeats) {
        if repeat != RepeatRule::Once {
            *count = ((*count as f64 * factor).floor() as usize).max(1);
        }
    }
    let num: usize = counts.iter().sum();
    counts[0] += fewest.saturating_sub(num);
    counts
}

/// Points of a node that takes `own_us` for one request of `rows_each` rows.
fn latency_us(
    rng: &mut ChaCha8Rng,
    cost: Cost,
    own_us: f64,
    max_batch: u32,
    rows_each: u64,
) -> Vec<(u64, f64)> {
    let us = |factor: f64| round(own_us * factor, 1e3);
    let full = f64::from(max_batch);
    let end = u64::from(max_batch) * rows_each;
    match cost {
        Cost::Mixed => {
            let one = pick(rng, &[Cost::Compute, Cost::Memory, Cost::Roofline]);
            latency_us(rng, one, own_us, max_batch, rows_each)
        }
        Cost::Compute => {
            let fixed = rng.random_range(0.0..0.4);
            let at = |requests: f64| us(fixed + (1.0 - fixed) * requests);
            vec![(1, at(1.0 / rows_each as f64)), (end, at(full))]
        }
        Cost::Memory => vec![(1, us(1.0)), (end, us(1.0 + log_uniform(rng, 0.02, 0.5)))],
        Cost::Roofline => {
            let knee = log_uniform(rng, 2.0, full - 1.0).floor();
            let from = knee as u64 * rows_each;
            vec![(1, us(1.0)), (from, us(1.0)), (end, us(full / knee))]
        }
    }
}

fn process(rng: &mut ChaCha8Rng, kind: ArrivalKind, rate_rps: f64) -> Process {
    match kind {
        ArrivalKind::Poisson => Process::Poisson { rate_rps },
        ArrivalKind::Gamma => Process::Gamma {
            rate_rps,
            cv: rng.random_range(1.5..4.0),
        },
        ArrivalKind::OnOff => {
            // A stretch on and one off together see 40 to 400 arrivals on average.
            let cycle_ns = log_uniform(rng, 40.0, 400.0) / rate_rps * 1e9;
            let share_on = rng.random_range(0.2..0.6);
            let part = |share: f64| Nanos((cycle_ns * share).round().max(1.0) as u64);
            let process = Process::OnOff {
                on_rps: 1.0,
                off_rps: rng.random_range(0.0..0.3),
                mean_on: part(share_on),
                mean_off: part(1.0 - share_on),
            };
            process.scaled_to(rate_rps)
        }
    }
}

fn table(profile: &Profile) -> std::sync::Arc<LatencyTable> {
    let model = &profile.models[0];
    ModelSpec::from_profile(profile, model, 1, 1).table
}

/// Rows of `batch` requests of mean input length.
fn rows(batch: u32, lengths: &Lengths) -> u64 {
    (f64::from(batch) * lengths.mean_input()).round() as u64
}

/// Passes of a block for a request of mean lengths.
fn passes(repeat: RepeatRule, lengths: &Lengths) -> f64 {
    match repeat {
        RepeatRule::Once => 1.0,
        RepeatRule::PerInputStep => lengths.mean_input(),
        RepeatRule::UntilStop => lengths.mean_output(),
    }
}

/// Capacity in requests/s and time alone in milliseconds.
fn figures(profile: &Profile, lengths: &Lengths) -> [f64; 2] {
    let table = table(profile);
    let model = &profile.models[0];
    let time_ns = |batch: u32| {
        let block = |(i, b): (usize, &BlockProfile)| {
            let pass = table.pass(i as u32, 0, batch, rows(batch, lengths));
            debug_assert_eq!(table.repeat(i as u32) == Repeat::Once, {
                b.repeat == RepeatRule::Once
            });
            passes(b.repeat, lengths) * pass.0 as f64
        };
        model.blocks.iter().enumerate().map(block).sum::<f64>()
    };
    let full = model.max_batch;
    [f64::from(full) * 1e9 / time_ns(full), time_ns(1) / 1e6]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn cases() -> impl Iterator<Item = Case> {
        (0..300).map(Case::new)
    }

    #[test]
    fn a_case_depends_on_its_seed_alone() {
        for seed in [0, 7, 1000] {
            let (a, b) = (Case::new(seed), Case::new(seed));
            assert_eq!(a.profile.to_json(), b.profile.to_json());
            for draw in 0..3 {
                assert_eq!(a.arrivals(draw).unwrap(), b.arrivals(draw).unwrap());
            }
            assert_ne!(a.arrivals(0).unwrap(), a.arrivals(1).unwrap());
            assert_ne!(a.arrivals(1).unwrap(), a.arrivals(2).unwrap());
            let other = Case::new(seed + 1);
            assert_ne!(a.profile.to_json(), other.profile.to_json());
        }
    }

    #[test]
    fn every_case_is_valid_and_in_its_ranges() {
        for case in cases() {
            let seed = case.seed;
            case.profile.check("-").unwrap();
            case.process.validate().unwrap();
            let again = Profile::parse("-", &case.profile.to_json()).unwrap();
            assert_eq!(again.to_json(), case.profile.to_json(), "seed {seed}");
            let model = case.model();
            assert!((2..=6).contains(&model.blocks.len()), "seed {seed}");
            assert!((8..=64).contains(&model.max_batch), "seed {seed}");
            let nodes: usize = model.blocks.iter().map(|b| b.nodes.len()).sum();
            assert!((3..=200).contains(&nodes), "seed {seed}: {nodes} nodes");
            let ratio = case.sla().as_ms() / case.alone_ms;
            assert!((1.9..20.1).contains(&ratio), "seed {seed}: SLA x {ratio}");
            assert!((0.05..=1.3).contains(&case.load), "seed {seed}");
            let rate = case.process.mean_rate_rps();
            assert!((rate / case.rate_rps() - 1.0).abs() < 1e-9, "seed {seed}");
            let executions: f64 = model
                .blocks
                .iter()
                .map(|b| b.nodes.len() as f64 * passes(b.repeat, &case.lengths))
                .sum();
            assert!(executions < 3.0 * MAX_EXECUTIONS, "seed {seed}");
            assert!((1500..=2500).contains(&case.num_requests), "seed {seed}");
            assert_eq!(case.blocks().len(), model.blocks.len());
        }
    }

    #[test]
    fn all_kinds_occur() {
        let kinds: BTreeSet<_> = cases()
            .map(|c| (c.cost, c.length_kind, c.arrival_kind))
            .collect();
        assert_eq!(kinds.len(), 4 * 3 * 3);
        let has = |fits: &dyn Fn(&Case) -> bool| cases().filter(fits).count();
        for (what, num) in [
            ("loops", has(&|c| c.has_loops())),
            ("none", has(&|c| !c.has_loops())),
            ("overload", has(&|c| c.load > 1.0)),
            ("little load", has(&|c| c.load < 0.3)),
            ("overheads", has(&|c| c.profile.dispatch_us > 0.0)),
            (
                "rows",
                has(&|c| {
                    let blocks = &c.model().blocks;
                    blocks.iter().any(|b| b.nodes[0].by == By::Rows)
                }),
            ),
        ] {
            assert!((20..=280).contains(&num), "{what}: {num} of 300");
        }
    }

    #[test]
    fn kinds_are_what_they_say() {
        for case in cases() {
            let (seed, lengths) = (case.seed, &case.lengths);
            let total: f64 = lengths.counts().map(|(_, n)| n as f64).sum();
            let mean = |f: &dyn Fn(f64, f64) -> f64| {
                let add = |((s, t), n): ((u32, u32), u64)| f(s.into(), t.into()) * n as f64;
                lengths.counts().map(add).sum::<f64>() / total
            };
            let (s, t) = (mean(&|s, _| s), mean(&|_, t| t));
            let of = |f: &dyn Fn(f64) -> f64, g: &dyn Fn(f64) -> f64| mean(&|a, b| f(a) * g(b));
            let one = |_: f64| 1.0;
            let var_s = of(&|a| (a - s).powi(2), &one);
            let var_t = of(&one, &|b| (b - t).powi(2));
            let both = of(&|a| a - s, &|b| b - t) / (var_s * var_t).sqrt();
            match case.length_kind {
                LengthKind::Correlated => assert!(both > 0.4, "seed {seed}: {both}"),
                LengthKind::Independent | LengthKind::HeavyTailed => {
                    assert!(both.abs() < 0.1, "seed {seed}: {both}");
                }
            }
            if case.length_kind == LengthKind::HeavyTailed {
                let (max, median) = (lengths.max_output(), lengths.output_percentile(50));
                assert!(max > 10 * median, "seed {seed}: {max} over {median}");
            }
            let table = table(&case.profile);
            let full = case.model().max_batch;
            for (b, block) in case.model().blocks.iter().enumerate() {
                if block.nodes[0].by == By::Rows || case.profile.dispatch_us > 0.0 {
                    continue;
                }
                let time = |n: u32| table.pass(b as u32, 0, n, 0).0 as f64;
                let growth = time(full) / time(1);
                match case.cost {
                    Cost::Compute => assert!(growth > 0.55 * f64::from(full), "seed {seed}"),
                    Cost::Memory => assert!((1.0..1.6).contains(&growth), "seed {seed}"),
                    Cost::Roofline | Cost::Mixed => assert!(growth > 1.0, "seed {seed}"),
                }
            }
        }
    }

    #[test]
    fn capacity_and_time_alone_by_hand() {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","dispatch_us":1,"models":[
            {"name":"random","max_batch":4,"blocks":[
            {"name":"a","repeat":"once","nodes":[{"name":"n","by":"rows","latency_us":[[10,9],[40,39]]}]},
            {"name":"b","repeat":"until_stop","nodes":[{"name":"n","latency_us":[[1,4],[4,7]]}]}]}]}"#;
        let profile = Profile::parse("-", text).unwrap();
        let [capacity, alone] = figures(&profile, &Lengths::fixed(10, 5));
        // Full: 40 rows 39 + 1, five passes of 7 + 1; alone 10 rows 9 + 1, five of 4 + 1.
        assert!((capacity - 4.0 / 80e-6).abs() < 1e-6, "{capacity}");
        assert!((alone - 0.035).abs() < 1e-12, "{alone}");
    }
}
