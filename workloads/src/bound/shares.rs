//! Work of requests: weights of launches under which `b` members together progress at most at speed
//! `1 + e (b - 1)`.
//!
//! A launch of a segment takes `T = M(samples) + R(rows)`, dispatch and decision in `M`. Tables that
//! fall somewhere are replaced by what they are at least from there on.
//!
//! A member's weight is the least over batch sizes `b` of `(1 + e (b - 1)) (M(b) / b + r_b)`, where
//! `r_b` is its part of `R` in a batch of `b`: all of `R` at its own rows for `b = 1`, and for more a
//! line `slope x rows + offset / b` that lies below `R` everywhere (a tangent of the lower convex hull
//! of `R`). Weights of members of any batch then add up to at most `(1 + e (b - 1)) T`.
//! Requests with several samples get the cheapest share of `T` per sample and per row, which is a
//! weight for `e = 0` only.

use lazybatch_graph::Repeat;
use lazybatch_sla::latency::Curve;
use lazybatch_sla::profile::{By, ModelProfile, NodeProfile, micros_to_nanos};
use rustc_hash::FxHashMap;

use super::{Job, pairs};
use crate::arrivals::Arrival;
use crate::experiment::Simulation;

/// Interpolated latencies are rounded to whole nanoseconds.
const HALF_NS: f64 = 0.5;

/// Work and lag of one request at some e, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    /// Sum of its weights over all of its passes.
    pub work: f64,
    /// How far its end lies behind the mean of its passes' midpoints, weighted, at least.
    pub lag: f64,
}

/// What two requests of one model take in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// Every launch takes both alike.
    Equal,
    /// One launch each, of times that may differ.
    OneLaunch,
    /// Several launches of times that may differ.
    Unknown,
}

/// Launches of a request of which all of a model's requests have some, in the same order: a segment
/// of a block that runs once, or a whole loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stage {
    /// Least time alone, in nanoseconds.
    pub alone: f64,
    /// What others take.
    pub together: Together,
}

/// One segment of a model.
struct Segment {
    /// `M` at 1, 2, ..., made monotone.
    members: Vec<f64>,
    /// `R`, if any node has a table by rows.
    rows: Option<Rows>,
}

/// `R` of a segment.
struct Rows {
    curves: Vec<Curve>,
    is_monotone: bool,
    /// Lower convex hull, from 0 rows on.
    hull: Vec<(f64, f64)>,
}

/// What one pass through a block costs a request of some length.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    work: f64,
    alone: f64,
    /// Weights times what lies behind each of them within the pass.
    lag: f64,
}

/// One model's segments and the lengths that are asked of it.
struct Model {
    blocks: Vec<(Repeat, Vec<Segment>)>,
    shortest: f64,
    mean: f64,
}

/// All models of a simulation, with its arrivals.
pub(super) struct Models<'a> {
    models: Vec<Model>,
    arrivals: &'a [Arrival],
    of_arrival: Vec<usize>,
}

impl<'a> Models<'a> {
    /// Of a simulation whose arrivals name models of its profile.
    pub fn new(simulation: &Simulation<'a>) -> Self {
        let profile = simulation.profile;
        let launch = micros_to_nanos(profile.dispatch_us).unwrap_or(0) + simulation.decide.0;
        let of = |a: &Arrival| profile.models.iter().position(|m| *m.name == *a.model);
        let of_arrival: Vec<usize> = simulation.arrivals.iter().filter_map(of).collect();
        assert_eq!(of_arrival.len(), simulation.arrivals.len(), "known models");
        let models = profile.models.iter().enumerate().map(|(i, model)| {
            let own = simulation.arrivals.iter().zip(&of_arrival);
            let own = own.filter(|(_, m)| **m == i);
            let lens: Vec<f64> = own.map(|(a, _)| f64::from(a.input_len)).collect();
            Model::new(model, simulation.segment, launch as f64, &lens)
        });
        Self {
            models: models.collect(),
            arrivals: simulation.arrivals,
            of_arrival,
        }
    }

    /// Least latency of each request.
    pub fn alone(&self) -> Vec<f64> {
        let mut known = FxHashMap::default();
        let each = self.arrivals.iter().zip(&self.of_arrival);
        each.map(|(a, &m)| {
            let model = &self.models[m];
            let passes = known
                .entry((m, a.input_len, a.samples))
                .or_insert_with(|| model.passes(a, Weights::None));
            model.total(passes, a).1
        })
        .collect()
    }

    /// How far requests that wait for each other in pairs raise the sum of latencies above that of
    /// the times alone, in nanoseconds; `jobs` are the arrivals.
    pub fn waits(&self, jobs: &[Job]) -> f64 {
        let mut known = FxHashMap::default();
        let key = |a: &Arrival, m: usize| (m, a.input_len, a.output_len);
        let each = || self.arrivals.iter().zip(&self.of_arrival);
        for (a, &m) in each().filter(|(a, _)| a.samples == 1) {
            let stages = || self.models[m].stages(a);
            known.entry(key(a, m)).or_insert_with(stages);
        }
        let of = |(a, &m): (&Arrival, &usize)| {
            let stages = known.get(&key(a, m)).filter(|_| a.samples == 1);
            stages.map(|stages| (m, stages.as_slice()))
        };
        let stages: Vec<Option<(usize, &[Stage])>> = each().map(of).collect();
        pairs::waits(jobs, &stages)
    }

    /// Work and lag of each request for a private speed `e`; `None` where samples forbid it.
    pub fn shares(&self, e: f64) -> Option<Vec<Share>> {
        if e > 0.0 && self.arrivals.iter().any(|a| a.samples != 1) {
            return None;
        }
        // A launch may hold requests of one sample and of several: all then weigh by one rule.
        let is_mixed = self.arrivals.iter().any(|a| a.samples != 1);
        let weights = match is_mixed {
            true => Weights::Cheapest,
            false => Weights::Speed(e),
        };
        let mut known = FxHashMap::default();
        let each = self.arrivals.iter().zip(&self.of_arrival);
        let share = |(a, &m): (&Arrival, &usize)| {
            let model = &self.models[m];
            let passes = known
                .entry((m, a.input_len, a.samples))
                .or_insert_with(|| model.passes(a, weights));
            model.total(passes, a).0
        };
        Some(each.map(share).collect())
    }
}

/// What a request's share of a launch is weighed by.
#[derive(Clone, Copy)]
enum Weights {
    /// Nothing.
    None,
    /// A private speed, of requests of one sample.
    Speed(f64),
    /// The least time of a row or sample in any batch.
    Cheapest,
}

impl Model {
    fn new(model: &ModelProfile, every: u32, launch: f64, lens: &[f64]) -> Self {
        let longest = lens.iter().copied().fold(0.0, f64::max);
        let most_rows = f64::from(model.max_batch) * longest.max(1.0);
        let segment =
            |nodes: &[NodeProfile]| Segment::new(nodes, model.max_batch, most_rows, launch);
        let blocks = model.blocks.iter().map(|b| {
            let segments = b.nodes.chunks(every.max(1) as usize).map(segment);
            (b.repeat(), segments.collect())
        });
        Self {
            blocks: blocks.collect(),
            shortest: lens.iter().copied().fold(longest, f64::min),
            mean: lens.iter().sum::<f64>() / lens.len().max(1) as f64,
        }
    }

    /// Passes through each block for requests of `a`'s input length and samples.
    fn passes(&self, a: &Arrival, weights: Weights) -> Vec<Pass> {
        let samples = f64::from(a.samples);
        let rows = samples * f64::from(a.input_len);
        let pass = |segments: &Vec<Segment>| {
            let mut pass = Pass::default();
            for segment in segments.iter().rev() {
                let alone = segment.alone(a.samples, rows);
                let weight = match weights {
                    Weights::None => 0.0,
                    Weights::Speed(e) => segment.weight(rows, e, self.shortest, self.mean),
                    Weights::Cheapest => segment.cheapest(samples, rows),
                };
                pass.lag += weight * (pass.alone + alone / 2.0);
                pass.work += weight;
                pass.alone += alone;
            }
            pass
        };
        self.blocks
            .iter()
            .map(|(_, segments)| pass(segments))
            .collect()
    }

    /// The stages of a request of one sample.
    fn stages(&self, a: &Arrival) -> Vec<Stage> {
        let rows = f64::from(a.input_len);
        let mut stages = Vec::new();
        for (repeat, segments) in &self.blocks {
            let alone = segments.iter().map(|s| s.alone(1, rows));
            if *repeat == Repeat::Once {
                let stage = |(segment, alone): (&Segment, f64)| Stage {
                    alone,
                    together: match segment.rows {
                        None => Together::Equal,
                        Some(_) => Together::OneLaunch,
                    },
                };
                stages.extend(segments.iter().zip(alone).map(stage));
            } else {
                let by_members = segments.iter().all(|s| s.rows.is_none());
                stages.push(Stage {
                    alone: num_passes(*repeat, a) * alone.sum::<f64>(),
                    together: match by_members {
                        true => Together::Equal,
                        false => Together::Unknown,
                    },
                });
            }
        }
        stages
    }

    /// Share and least latency of a request.
    fn total(&self, passes: &[Pass], a: &Arrival) -> (Share, f64) {
        let (mut work, mut lag, mut alone) = (0.0, 0.0, 0.0);
        for ((repeat, _), pass) in self.blocks.iter().zip(passes).rev() {
            let n = num_passes(*repeat, a);
            // Behind the k-th pass from the end lie k passes of this block and all later blocks.
            let behind = pass.alone * n * (n - 1.0) / 2.0 + n * alone;
            lag += n * pass.lag + pass.work * behind;
            work += n * pass.work;
            alone += n * pass.alone;
        }
        let lag = if work > 0.0 { lag / work } else { alone };
        (Share { work, lag }, alone)
    }
}

/// How often a request passes through a block.
fn num_passes(repeat: Repeat, a: &Arrival) -> f64 {
    f64::from(match repeat {
        Repeat::Once => 1,
        Repeat::PerInputStep { stride } => a.input_len.div_ceil(stride),
        Repeat::UntilStop { max } => a.output_len.min(max),
    })
}

impl Segment {
    fn new(nodes: &[NodeProfile], max_batch: u32, most_rows: f64, launch: f64) -> Self {
        let curve = |n: &NodeProfile| {
            let ns = |us| micros_to_nanos(us).expect("a checked profile");
            Curve::new(n.latency_us.iter().map(|&(x, us)| (x, ns(us))).collect())
        };
        let curves = |by: By| nodes.iter().filter(move |n| n.by == by);
        let of_members: Vec<Curve> = curves(By::Members).map(curve).collect();
        let at = |b: u32| {
            of_members
                .iter()
                .map(|c| c.at(u64::from(b)) as f64)
                .sum::<f64>()
        };
        let mut members: Vec<f64> = (1..=max_batch).map(|b| launch + at(b)).collect();
        for b in (1..members.len()).rev() {
            members[b - 1] = members[b - 1].min(members[b]);
        }
        let with_rows: Vec<&NodeProfile> = curves(By::Rows).collect();
        let rows = (!with_rows.is_empty()).then(|| {
            let is_monotone = with_rows
                .iter()
                .all(|n| n.latency_us.is_sorted_by(|a, b| a.1 <= b.1));
            let curves: Vec<Curve> = with_rows.iter().map(|n| curve(n)).collect();
            let points = with_rows.iter().flat_map(|n| &n.latency_us).map(|p| p.0);
            let mut xs: Vec<u64> = points.filter(|&x| (x as f64) < most_rows).collect();
            xs.extend([0, most_rows as u64]);
            xs.sort_unstable();
            xs.dedup();
            let sum = |x: u64| curves.iter().map(|c| c.at(x) as f64).sum::<f64>();
            let mut points: Vec<(f64, f64)> = xs.iter().map(|&x| (x as f64, sum(x))).collect();
            for i in (1..points.len()).rev() {
                points[i - 1].1 = points[i - 1].1.min(points[i].1);
            }
            Rows {
                hull: lower_hull(&points),
                curves,
                is_monotone,
            }
        });
        Self { members, rows }
    }

    /// Least time of a launch with a request of so many samples and rows.
    fn alone(&self, samples: u32, rows: f64) -> f64 {
        let members = self.members[samples as usize - 1];
        members + self.rows.as_ref().map_or(0.0, |r| r.at_least(rows))
    }

    /// Weight of a request of one sample.
    fn weight(&self, rows: f64, e: f64, shortest: f64, mean: f64) -> f64 {
        let alone = self.alone(1, rows);
        let shared = |(b, members): (usize, &f64)| {
            let b = (b + 1) as f64;
            let of_rows = self
                .rows
                .as_ref()
                .map_or(0.0, |r| r.part(rows, b, shortest, mean));
            (1.0 + e * (b - 1.0)) * (members / b + of_rows)
        };
        let sizes = self.members.iter().enumerate().skip(1);
        sizes.map(shared).fold(alone, f64::min)
    }

    /// Cheapest share of a request of any number of samples.
    fn cheapest(&self, samples: f64, rows: f64) -> f64 {
        let each = self
            .members
            .iter()
            .enumerate()
            .map(|(b, m)| m / (b + 1) as f64);
        let per_row = self.rows.as_ref().map_or(0.0, Rows::per_row);
        samples * each.fold(f64::INFINITY, f64::min) + rows * per_row
    }
}

impl Rows {
    /// Least time at so many rows or more.
    fn at_least(&self, rows: f64) -> f64 {
        if self.is_monotone {
            return self.curves.iter().map(|c| c.at(rows as u64) as f64).sum();
        }
        let (slope, offset) = self.line(rows);
        (slope * rows + offset - self.rounding()).max(0.0)
    }

    /// Part of a member with `rows` in a batch of `b`.
    fn part(&self, rows: f64, b: f64, shortest: f64, mean: f64) -> f64 {
        let (slope, offset) = self.line(b * mean);
        let offset = offset - self.rounding();
        if slope * shortest + offset / b >= 0.0 {
            slope * rows + offset / b
        } else {
            rows * self.per_row()
        }
    }

    /// Slope and offset of the hull at `rows`.
    fn line(&self, rows: f64) -> (f64, f64) {
        let hull = &self.hull;
        let upper = hull.partition_point(|p| p.0 < rows);
        let upper = upper.clamp(1, hull.len() - 1);
        let ((x0, y0), (x1, y1)) = (hull[upper - 1], hull[upper]);
        let slope = (y1 - y0) / (x1 - x0);
        (slope, y0 - slope * x0)
    }

    /// Least time per row at any number of rows.
    fn per_row(&self) -> f64 {
        let positive = self.hull.iter().filter(|p| p.0 > 0.0);
        let each = positive.map(|p| (p.1 - self.rounding()).max(0.0) / p.0);
        each.fold(f64::INFINITY, f64::min)
    }

    /// What interpolated sums may lie below the line.
    fn rounding(&self) -> f64 {
        HALF_NS * self.curves.len() as f64
    }
}

/// The points of the lower convex hull, x increasing and at least two of them.
fn lower_hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for &p in points {
        while let [.., a, b] = hull[..] {
            let turns_up = (b.0 - a.0) * (p.1 - a.1) > (b.1 - a.1) * (p.0 - a.0);
            if turns_up {
                break;
            }
            hull.pop();
        }
        hull.push(p);
    }
    hull
}
