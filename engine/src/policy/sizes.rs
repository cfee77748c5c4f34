//! Batch sizes that are large enough.
//!
//! Where a launch takes a time in proportion to its batch, a full batch brings no throughput and
//! makes everyone wait for all. The *knee* at a share `S` is the smallest batch that reaches `S` of
//! the highest throughput of any batch, by the latency tables and what each launch takes of the host,
//! over a whole request of mean lengths: those of the requests so far, looked at again whenever there
//! are twice as many, launches take another time of the host, or there is another table.
//!
//! While many wait, what a larger batch brings counts for all of them. A batch of `n` that takes `t`
//! keeps its members and the `q` that wait behind it for `t` each, `t (n + q) / n` for each that it
//! serves: the batch from the knee on for which that is least grows with `q`.

use std::sync::Arc;

use lazybatch_sla::{LatencyTable, ModelId, Nanos, OutputLen, Progress};

use super::host::Host;
use crate::core::{Ending, ModelSpec, Request, View};

/// What was seen of a model, and what follows.
#[derive(Clone, Debug, Default)]
struct Seen {
    num: u64,
    input_lens: u64,
    num_ended: u64,
    output_lens: u64,
    /// Throughput at each batch size from 1 up, as a share of the highest.
    shares: Vec<f64>,
    /// The highest, in samples per nanosecond.
    highest: f64,
    /// `num`, the host's time and the latency table when `shares` were computed.
    computed_at: u64,
    computed_with: Nanos,
    computed_by: Option<Arc<LatencyTable>>,
}

/// Share of the highest throughput that a batch which is filled well has at least.
pub(super) const LEAST_FILL: f64 = 0.9;
/// By how much the host's time for a launch changes before knees do.
const OTHER_HOST: f64 = 1.25;

/// Knees of the models so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    seen: Vec<Seen>,
    host: Host,
}

impl Sizes {
    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId) {
        if let Some(seen) = self.seen.get_mut(model.index()) {
            *seen = Seen::default();
        }
    }

    /// A launch took the device `took`, and `ran` with what the host did.
    pub fn on_done(&mut self, took: Nanos, ran: Nanos) {
        self.host.on_done(took, ran);
    }

    /// What launches and requests take of the host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn on_arrive(&mut self, request: &Request) {
        self.host.on_edge();
        let seen = self.seen(request.model);
        seen.num += 1;
        seen.input_lens += u64::from(request.input_len);
    }

    pub fn on_end(&mut self, ending: &Ending) {
        self.host.on_edge();
        let Some(output_len) = ending.output_len else {
            return;
        };
        let seen = self.seen(ending.model);
        seen.num_ended += 1;
        seen.output_lens += u64::from(output_len);
    }

    /// Mean input length of the requests so far.
    pub fn mean_input_len(&mut self, model: ModelId) -> f64 {
        let seen = self.seen(model);
        seen.input_lens as f64 / seen.num.max(1) as f64
    }

    /// The knee of a model, or, while so many samples wait, the batch from there on that costs least.
    pub fn knee(&mut self, view: &View<'_>, model: ModelId, share: f64, waiting: u32) -> u32 {
        let seen = self.up_to_date(view, model);
        seen.cheapest(seen.knee(share), waiting)
    }

    /// The batch that is filled well for a target: the knee at a share, or at as much less, down to
    /// [`LEAST_FILL`], as takes half of the target. Who comes while such a batch runs waits for its end
    /// and runs in the next: with larger ones nobody would be in time who does not find the device idle.
    pub fn filled(&mut self, view: &View<'_>, model: ModelId, share: f64, target: Nanos) -> u32 {
        self.up_to_date(view, model).filled(share, target)
    }

    /// Time of a batch of so many samples of mean lengths.
    pub fn whole(&mut self, view: &View<'_>, model: ModelId, samples: u32) -> Nanos {
        self.up_to_date(view, model).whole(samples)
    }

    fn up_to_date(&mut self, view: &View<'_>, model: ModelId) -> &Seen {
        let host = self.host.per_launch();
        let (seen, spec) = (self.seen(model), view.model(model));
        if seen.is_outdated(host, &spec.table) {
            (seen.shares, seen.highest) = seen.shares(spec, host);
            (seen.computed_at, seen.computed_with) = (seen.num, host);
            seen.computed_by = Some(spec.table.clone());
        }
        seen
    }

    fn seen(&mut self, model: ModelId) -> &mut Seen {
        if self.seen.len() <= model.index() {
            self.seen.resize(model.index() + 1, Seen::default());
        }
        &mut self.seen[model.index()]
    }
}

impl Seen {
    fn knee(&self, share: f64) -> u32 {
        1 + self.shares.iter().position(|&s| s >= share).unwrap_or(0) as u32
    }

    /// The batch of `least` samples or more that costs least while so many wait.
    fn cheapest(&self, least: u32, waiting: u32) -> u32 {
        let mut cheapest = (f64::MAX, least);
        for (n, share) in (1_u32..).zip(&self.shares).skip(least as usize - 1) {
            let kept = f64::from(n) + f64::from(waiting);
            // No share is above one, so none from here on costs less.
            if kept >= cheapest.0 {
                break;
            }
            if kept / share < cheapest.0 {
                cheapest = (kept / share, n);
            }
        }
        cheapest.1
    }

    fn filled(&self, share: f64, target: Nanos) -> u32 {
        let (least, most) = (self.knee(share.min(LEAST_FILL)), self.knee(share));
        let bears = |&batch: &u32| self.whole(batch) <= Nanos(target.0 / 2);
        (least + 1..=most).take_while(bears).last().unwrap_or(least)
    }

    fn whole(&self, samples: u32) -> Nanos {
        let most = self.shares.len().max(1) as u32;
        let share = self.shares.get(samples.clamp(1, most) as usize - 1);
        let throughput = share.copied().unwrap_or(1.0) * self.highest;
        Nanos((f64::from(samples) / throughput) as u64)
    }

    fn is_outdated(&self, host: Nanos, table: &Arc<LatencyTable>) -> bool {
        let (now, then) = (host.0 as f64, self.computed_with.0 as f64);
        let by = self.computed_by.as_ref();
        by.is_none_or(|by| !Arc::ptr_eq(by, table))
            || self.num >= 2 * self.computed_at.max(1)
            || now > OTHER_HOST * then
            || then > OTHER_HOST * now
    }

    /// Throughput at each batch size from 1 up, as a share of the highest, and that.
    fn shares(&self, spec: &ModelSpec, host: Nanos) -> (Vec<f64>, f64) {
        let input_len = self.input_lens.div_ceil(self.num.max(1)).max(1);
        let output_len = match self.num_ended {
            0 => OutputLen::known(spec.output_len_p90).predict(),
            num => self.output_lens.div_ceil(num) as u32,
        };
        let all = throughputs(spec, host, input_len as u32, output_len);
        let most = all.iter().copied().fold(0.0, f64::max);
        (all.into_iter().map(|t| t / most).collect(), most)
    }
}

/// Samples of these lengths per nanosecond, at each batch size from 1 to the largest, if each launch
/// takes the host so long.
pub(super) fn throughputs(
    spec: &ModelSpec,
    host: Nanos,
    input_len: u32,
    output_len: u32,
) -> Vec<f64> {
    let whole = Progress {
        block: 0,
        segment: 0,
        step: 0,
        input_len,
        output_len,
    };
    let beside = host.0.saturating_mul(spec.table.num_launches(&whole));
    let throughput = |n: u32| {
        let rows = u64::from(n) * u64::from(input_len);
        let took = spec.table.remaining(&whole, n, rows).0;
        f64::from(n) / took.saturating_add(beside).max(1) as f64
    };
    (1..=spec.max_batch).map(throughput).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_sla::Profile;

    /// A loop over the input whose passes take as long for four as for one, behind a block whose
    /// time is in proportion to the batch.
    fn spec() -> ModelSpec {
        let block = |name: &str, repeat: &str, four: u32| {
            format!(
                r#"{{"name":"{name}","repeat":"{repeat}","nodes":
                [{{"name":"n","by":"members","latency_us":[[1,100],[4,{four}]]}}]}}"#
            )
        };
        let blocks = [block("a", "once", 400), block("b", "per_input_step", 100)];
        let text = format!(
            r#"{{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
                "models":[{{"name":"m","max_batch":4,"output_len_p90":1,"blocks":[{}]}}]}}"#,
            blocks.join(",")
        );
        let profile = Profile::parse("test", &text).unwrap();
        ModelSpec::from_profile(&profile, &profile.models[0], 1, 100)
    }

    #[test]
    fn shares_are_those_of_mean_lengths() {
        let shares = |num, input_lens| {
            let seen = Seen {
                num,
                input_lens,
                ..Seen::default()
            };
            seen.shares(&spec(), Nanos::ZERO).0
        };
        // One at a time of 4 in 500 us, or 200 us each.
        let one_step = shares(2, 2);
        assert!(
            (one_step[0] - (1.0 / 200.0) / (4.0 / 500.0)).abs() < 1e-9,
            "{one_step:?}"
        );
        // With 19 steps batches bring nearly all that they can: 4 in 2300 us, or 2000 us each.
        let many_steps = shares(2, 38);
        assert!(
            (many_steps[0] - (1.0 / 2000.0) / (4.0 / 2300.0)).abs() < 1e-9,
            "{many_steps:?}"
        );
        assert_eq!([one_step[3], many_steps[3]], [1.0, 1.0]);
    }

    #[test]
    fn launches_that_take_the_host_long_pay_in_larger_batches() {
        let seen = Seen {
            num: 1,
            input_lens: 1,
            ..Seen::default()
        };
        // Two launches of 50 us of the host each: one in 300 us, four in 600.
        let (shares, _) = seen.shares(&spec(), Nanos(50_000));
        let expected = (1.0 / 300.0) / (4.0 / 600.0);
        assert!((shares[0] - expected).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn a_batch_is_filled_as_far_as_half_of_the_target_bears() {
        // 100 us and 20 more for each: 26 reach 90 % of what 64 bring, 45 reach 97 %.
        let times = (1..=64).map(|n| f64::from(n) / (100e3 + 20e3 * f64::from(n)));
        let times: Vec<f64> = times.collect();
        let highest = times[63];
        let seen = Seen {
            shares: times.iter().map(|t| t / highest).collect(),
            highest,
            ..Seen::default()
        };
        let filled = |share, us: u64| seen.filled(share, Nanos(us * 1000));
        assert_eq!([seen.knee(0.9), seen.knee(0.97)], [26, 45]);
        assert_eq!(filled(0.97, 1_000_000), 45);
        // 35 take 800 us.
        assert_eq!(filled(0.97, 1_601), 35);
        assert_eq!([filled(0.97, 10), filled(0.9, 1_000_000)], [26, 26]);
        assert_eq!(filled(0.5, 1_000_000), seen.knee(0.5));
    }

    #[test]
    fn the_more_wait_the_larger_is_the_batch_that_costs_least() {
        // 100 us and 20 more for each, but 20 us more from the 49th on, as where rows fill another tile.
        let us = |n: u32| 100.0 + 20.0 * f64::from(n) + if n > 48 { 20.0 } else { 0.0 };
        let throughputs: Vec<f64> = (1..=64).map(|n| f64::from(n) / us(n)).collect();
        let highest = throughputs.iter().copied().fold(0.0, f64::max);
        let shares: Vec<f64> = throughputs.iter().map(|t| t / highest).collect();
        let seen = Seen {
            shares,
            highest,
            ..Seen::default()
        };
        for waiting in 0..3_000_u32 {
            let cost = |n: u32| us(n) * (1.0 + f64::from(waiting) / f64::from(n));
            let least = (30..=64).map(cost).fold(f64::MAX, f64::min);
            let got = cost(seen.cheapest(30, waiting));
            assert!(got <= least * (1.0 + 1e-9), "{waiting}: {got} {least}");
        }
        // t (n + q) / n is least where n is the root of 5 q.
        let cheapest = |least| [0, 20, 320, 1500].map(|q| seen.cheapest(least, q));
        assert_eq!(cheapest(1), [1, 10, 40, 48]);
        assert_eq!(cheapest(30), [30, 30, 40, 48]);
        assert_eq!([seen.cheapest(1, u32::MAX), seen.cheapest(64, 0)], [64; 2]);
        assert_eq!(Seen::default().cheapest(1, 9), 1);
    }

    #[test]
    fn shares_are_computed_anew_for_another_host_time_or_table() {
        let table = spec().table;
        let mut seen = Seen {
            computed_by: Some(table.clone()),
            num: 3,
            shares: vec![1.0],
            computed_at: 2,
            computed_with: Nanos(1000),
            ..Seen::default()
        };
        let at = |seen: &Seen| [790, 810, 1240, 1260].map(|ns| seen.is_outdated(Nanos(ns), &table));
        assert_eq!(at(&seen), [true, false, false, true]);
        let other = spec().table;
        assert!(seen.is_outdated(Nanos(1000), &other));
        seen.num = 4;
        assert_eq!(at(&seen), [true; 4]);
    }
}
