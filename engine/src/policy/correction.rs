//! How much longer launches take than the latency tables say, by block and batch size.
//!
//! Tables are measured once, with batches of each size alone, and the device may be another one since;
//! but what they are off by differs by size too: small batches find their weights in the caches where
//! they run one behind the other, large ones share them with whoever else is in flight. On a CPU
//! launches of one took 0.4 of the table in a loop whose batches of 32 took as long as it says. What a
//! larger batch gains is what rules are chosen by, so factors are learned for sizes from a power of two
//! to the next, where enough launches had them; between these they go by the logarithm of the size, and
//! far from all that were seen the table holds as it was measured.

use std::sync::Arc;

use lazybatch_sla::{LatencyTable, Launch, ModelId, Nanos};
use smallvec::SmallVec;

use crate::core::{ModelSpec, View};

/// Share that the newest launch has, and of how many passes through a block it has no more than one
/// launch's share: some launches of a pass are longer than others.
const NEWEST: f64 = 0.000_5;
const PASSES: f64 = 32.0;
/// A launch counts at most this far off its prediction, either way.
const CLIP: f64 = 4.0;
/// The first launches of a block, or its first pass where that has more, and how much they count of others:
/// memory and caches are not yet what they will be, but as long as there are no others they are what is known.
const FIRST: u32 = 16;
const OF_FIRST: f64 = 1.0 / 16.0;
/// Share of the launches from which on those of some sizes have a factor of their own.
const ENOUGH: f64 = 1.0 / 128.0;
/// Doublings of a size from which on launches of it say nothing of another one.
const FAR: f64 = 4.0;

/// Recent launches of some sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// What share of all of the block they are.
    share: f64,
    /// Exponentially weighted, as that is: logarithms of their samples, what they took and were predicted
    /// to take. They count by their time: what each takes on top of its table, such as that of a
    /// decision, is a large part of short ones alone.
    at: f64,
    took: f64,
    predicted: f64,
}

impl Recent {
    fn add(&mut self, other: &Self) {
        self.share += other.share;
        self.at += other.at;
        self.took += other.took;
        self.predicted += other.predicted;
    }

    fn times(&self, factor: f64) -> Self {
        Self {
            share: self.share * factor,
            at: self.at * factor,
            took: self.took * factor,
            predicted: self.predicted * factor,
        }
    }

    /// The logarithm of a size, and the factor for it.
    fn point(&self) -> (f64, f64) {
        (self.at / self.share, self.took / self.predicted)
    }
}

/// What the launches of one block took.
#[derive(Clone, Debug, Default)]
struct Correction {
    /// So far, up to the last of the first ones.
    num: u32,
    /// By size: 1, 2 and 3, 4 to 7, and so on.
    sizes: SmallVec<[Recent; 4]>,
}

impl Correction {
    /// A launch of `samples`, of a block of `num_segments`, that was predicted to take `predicted`.
    fn on_done(&mut self, samples: u32, predicted: Nanos, took: Nanos, num_segments: u32) {
        if predicted == Nanos::ZERO {
            return;
        }
        let is_first = self.num < FIRST.max(num_segments);
        self.num += u32::from(is_first);
        let newest = NEWEST.min(1.0 / (PASSES * f64::from(num_segments.max(1))));
        let newest = newest * if is_first { OF_FIRST } else { 1.0 };
        let (samples, predicted) = (samples.max(1), predicted.0 as f64);
        let launch = Recent {
            share: 1.0,
            at: f64::from(samples).log2(),
            took: (took.0 as f64).clamp(predicted / CLIP, predicted * CLIP),
            predicted,
        };
        let i = samples.ilog2() as usize;
        if self.sizes.len() <= i {
            self.sizes.resize(i + 1, Recent::default());
        }
        for size in &mut self.sizes {
            *size = size.times(1.0 - newest);
        }
        self.sizes[i].add(&launch.times(newest));
    }

    /// By what the block's latencies are to be multiplied, at each batch size up to the largest; 1
    /// before its first launch.
    fn factors(&self, max_batch: u32) -> Vec<f64> {
        let points = self.points();
        let (Some(&first), Some(&last)) = (points.first(), points.last()) else {
            return vec![1.0];
        };
        let beyond = |(of, factor): (f64, f64), at: f64| {
            1.0 + (factor - 1.0) * (1.0 - (at - of).abs() / FAR).max(0.0)
        };
        let factor = |samples: u32| {
            let at = f64::from(samples).log2();
            match points.partition_point(|p| p.0 < at) {
                0 => beyond(first, at),
                i if i == points.len() => beyond(last, at),
                i => {
                    let (below, above) = (points[i - 1], points[i]);
                    below.1 + (above.1 - below.1) * (at - below.0) / (above.0 - below.0)
                }
            }
        };
        (1..=max_batch.max(1)).map(factor).collect()
    }

    /// Sizes that have factors of their own: neighbours count together until there are enough launches.
    fn points(&self) -> SmallVec<[(f64, f64); 16]> {
        let mut points: SmallVec<[Recent; 16]> = SmallVec::new();
        let mut few = Recent::default();
        for size in &self.sizes {
            few.add(size);
            if few.share >= ENOUGH {
                points.push(std::mem::take(&mut few));
            }
        }
        if few.share > 0.0 {
            match points.last_mut() {
                Some(last) => last.add(&few),
                None => points.push(few),
            }
        }
        points.iter().map(Recent::point).collect()
    }
}

/// The same of all models.
#[derive(Default)]
pub(super) struct Corrections {
    /// By model and block.
    blocks: Vec<Vec<Correction>>,
    /// As they were measured.
    tables: Vec<Arc<LatencyTable>>,
    /// The models with their tables corrected, as it was last asked for; none as long as it was not.
    corrected: Vec<ModelSpec>,
}

impl Corrections {
    /// Whether the models are known.
    pub fn have_begun(&self) -> bool {
        !self.tables.is_empty()
    }

    pub fn start(&mut self, models: &[ModelSpec]) {
        self.blocks.clear();
        self.blocks.extend(models.iter().map(fresh));
        self.follow(models);
    }

    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId, models: &[ModelSpec]) {
        self.blocks.resize(models.len(), Vec::new());
        self.blocks[model.index()] = fresh(&models[model.index()]);
        self.follow(models);
    }

    fn follow(&mut self, models: &[ModelSpec]) {
        self.tables = models.iter().map(|m| m.table.clone()).collect();
        self.corrected.clear();
    }

    pub fn on_done(&mut self, launch: &Launch, took: Nanos) {
        let Some(table) = self.tables.get(launch.model.index()) else {
            return;
        };
        let (samples, rows) = (launch.num_samples(), launch.num_rows());
        let predicted = table.segment(launch.block, launch.segment, samples, rows);
        let num_segments = table.num_segments(launch.block);
        let correction = &mut self.blocks[launch.model.index()][launch.block as usize];
        correction.on_done(samples, predicted, took, num_segments);
    }

    /// Corrects the tables that [`Corrections::view`] shows, and gives the factors, by batch size for each
    /// model and block.
    pub fn correct(&mut self, models: &[ModelSpec]) -> Vec<Vec<Vec<f64>>> {
        let of = |(spec, blocks): (&ModelSpec, &Vec<Correction>)| {
            blocks.iter().map(|b| b.factors(spec.max_batch)).collect()
        };
        let factors: Vec<Vec<Vec<f64>>> = models.iter().zip(&self.blocks).map(of).collect();
        let corrected = models
            .iter()
            .zip(&factors)
            .map(|(spec, factors)| ModelSpec {
                table: Arc::new(spec.table.scaled(factors)),
                ..spec.clone()
            });
        self.corrected = corrected.collect();
        factors
    }

    /// What a rule sees: tables as they were corrected last.
    pub fn view<'a>(&'a self, view: &View<'a>) -> View<'a> {
        match self.corrected.is_empty() {
            true => *view,
            false => view.with_tables(&self.corrected),
        }
    }
}

fn fresh(spec: &ModelSpec) -> Vec<Correction> {
    vec![Correction::default(); spec.blocks.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Core, CoreConfig};
    use lazybatch_sla::{LaneId, Member, Profile, RequestId, Slot, SubBatchId, Ticket};

    /// The factor of a launch's size after passes through segments that take so many ns more than
    /// predicted, times a factor.
    fn after(passes: usize, segments: &[u64], factor: f64, more: f64) -> f64 {
        let mut correction = begun();
        for _ in 0..passes {
            for &ns in segments {
                let took = Nanos((ns as f64 * factor + more) as u64);
                correction.on_done(1, Nanos(ns), took, segments.len() as u32);
            }
        }
        correction.factors(1)[0]
    }

    /// Behind the first launches.
    fn begun() -> Correction {
        Correction {
            num: u32::MAX,
            ..Correction::default()
        }
    }

    /// Launches of 1000 ns, each this many samples and times as long as predicted.
    fn launches(correction: &mut Correction, num: usize, sizes: &[(u32, f64)]) {
        for &(samples, ratio) in sizes.iter().cycle().take(num) {
            let took = Nanos((1000.0 * ratio) as u64);
            correction.on_done(samples, Nanos(1000), took, 1);
        }
    }

    #[test]
    fn the_first_launches_count_as_long_as_there_are_no_others() {
        for num_segments in [3, 56] {
            let mut correction = Correction::default();
            let launch = |c: &mut Correction, took| {
                c.on_done(1, Nanos(10), took, num_segments);
            };
            correction.on_done(1, Nanos::ZERO, Nanos(7), num_segments);
            assert_eq!(correction.factors(4), [1.0]);
            let first = FIRST.max(num_segments);
            for _ in 0..first {
                launch(&mut correction, Nanos(20));
                let factors = correction.factors(4);
                for (samples, expected) in [(1, 2.0), (2, 1.75), (4, 1.5)] {
                    let factor = factors[samples - 1];
                    assert!((factor - expected).abs() < 1e-9, "{factors:?}");
                }
            }
            for _ in 0..first {
                launch(&mut correction, Nanos(10));
            }
            let factor = correction.factors(1)[0];
            assert!((1.0..1.1).contains(&factor), "{factor}");
        }
    }

    #[test]
    fn a_factor_is_found_whatever_the_segments() {
        assert!((after(3, &[100, 9000, 50_000], 1.5, 0.0) - 1.5).abs() < 1e-3);
        let clipped = after(3, &[1000], 100.0, 0.0);
        assert!((clipped - CLIP).abs() < 1e-9);
    }

    #[test]
    fn what_each_launch_takes_on_top_counts_by_what_a_pass_takes() {
        // Many short segments and a few long ones, 500 ns more for each of them.
        let mut segments = vec![1_000; 60];
        segments.extend([20_000; 20]);
        let pass: u64 = segments.iter().sum();
        let expected = 1.0 + 80.0 * 500.0 / pass as f64;
        let factor = after(20, &segments, 1.0, 500.0);
        assert!((factor - expected).abs() < 0.02, "{factor}, {expected}");
        // The mean over launches of their own ratios would be 1.38.
        assert!(expected < 1.1);
    }

    #[test]
    fn sizes_have_factors_of_their_own() {
        let mut correction = begun();
        let sizes = [(1, 0.4), (6, 0.7), (32, 1.2)];
        launches(&mut correction, 600, &sizes);
        let factors = correction.factors(256);
        assert_eq!(factors.len(), 256);
        let at = |samples: usize| factors[samples - 1];
        for (samples, ratio) in sizes {
            let factor = at(samples as usize);
            assert!((factor - ratio).abs() < 1e-6, "{samples}: {factor}");
        }
        assert!(factors[..32].is_sorted(), "{factors:?}");
        // Of the three doublings from 6 to 48, 12 is the first.
        let (from, to) = (6_f64.log2(), 32_f64.log2());
        assert!((at(12) - (0.7 + 0.5 / (to - from))).abs() < 1e-6);
        // Far from what was seen the table is as it was.
        assert!((at(64) - 1.15).abs() < 1e-6 && (at(256) - 1.05).abs() < 1e-6);
    }

    #[test]
    fn sizes_that_are_hardly_seen_go_by_their_neighbours() {
        let mut correction = begun();
        launches(&mut correction, 4000, &[(2, 1.2)]);
        launches(&mut correction, 3, &[(4, 4.0)]);
        let factor = |c: &Correction| c.factors(4)[3];
        assert!((1.1..1.3).contains(&factor(&correction)));
        launches(&mut correction, 40, &[(4, 4.0)]);
        assert!(factor(&correction) > 3.0);
        // Among others, too.
        let mut correction = begun();
        launches(&mut correction, 400, &[(1, 1.2), (64, 1.2)]);
        launches(&mut correction, 2, &[(8, 4.0)]);
        assert!((1.15..1.4).contains(&correction.factors(64)[7]));
    }

    #[test]
    fn the_recent_counts() {
        let mut correction = begun();
        launches(&mut correction, 3000, &[(1, 3.0)]);
        launches(&mut correction, 10_000, &[(1, 1.0)]);
        let factor = correction.factors(1)[0];
        assert!((factor - 1.0).abs() < 0.02, "{factor}");
    }

    #[test]
    fn rules_see_tables_as_they_were_corrected_last() {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
            "models":[{"name":"m","max_batch":4,"blocks":[{"name":"b","repeat":"once",
            "nodes":[{"name":"n","by":"members","latency_us":[[1,100],[4,400]]}]}]}]}"#;
        let profile = Profile::parse("test", text).unwrap();
        let spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 1);
        let config = CoreConfig::new(vec![spec]);
        let core = Core::new(config.clone(), crate::policy::build("serial").unwrap());
        let mut corrections = Corrections::default();
        corrections.start(&config.models);
        let member = Member {
            request: RequestId(0),
            slot: Slot(0),
            step: 0,
            input_len: 0,
            samples: 1,
            idle: false,
        };
        let launch = Launch {
            ticket: Ticket(0),
            lane: LaneId(0),
            model: ModelId(0),
            block: 0,
            segment: 0,
            first_node: 0,
            end_node: 1,
            sub_batch: SubBatchId(0),
            members: vec![member],
            padded_len: None,
            merged_members: 0,
        };
        let alone = |c: &Corrections| {
            let view = core.view();
            let spec = c.view(&view).model(ModelId(0));
            assert_eq!(spec.max_in_flight, config.models[0].max_in_flight);
            spec.table.segment(0, 0, 1, 1)
        };
        for _ in 0..2 * FIRST {
            corrections.on_done(&launch, Nanos(150_000));
        }
        assert_eq!(alone(&corrections), Nanos(100_000), "nobody asked");
        let factors = corrections.correct(&config.models);
        assert!((factors[0][0][0] - 1.5).abs() < 1e-9, "{factors:?}");
        assert_eq!(alone(&corrections), Nanos(150_000));
        for _ in 0..2 * FIRST {
            corrections.on_done(&launch, Nanos(200_000));
        }
        assert_eq!(
            alone(&corrections),
            Nanos(150_000),
            "until a plan is asked for"
        );
        corrections.on_model(ModelId(0), &config.models);
        assert_eq!(alone(&corrections), Nanos(100_000));
        assert_eq!(corrections.correct(&config.models), [[[1.0]]]);
    }
}
