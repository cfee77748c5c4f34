//! How much of its capacity arrivals ask of a device.

use std::ops::RangeInclusive;

use lazybatch_sla::{Nanos, OutputLen};

use super::{history, sizes};
use crate::core::{CoreConfig, Past};

/// Loads near capacity. A load that is a little above 1 by the last arrivals may as well be below it. Beyond
/// capacity every backlog stays, and who looks far finds it cheapest to leave nearly everyone late.
const NEAR_CAPACITY: RangeInclusive<f64> = 0.85..=1.02;
/// The same of several models.
const NEAR_CAPACITY_SHARED: RangeInclusive<f64> = 0.85..=0.98;
/// What arrivals leave of the time is this at the least.
const LEAST_SPARE: f64 = 0.1;
/// A load that is above 1 by more than so many standard errors of the mean gap is beyond capacity: there a
/// backlog does not go.
const SURELY: f64 = 3.0;
/// As long as fewer arrivals are known than are remembered, so many standard errors of their mean gap may
/// be chance, beside what that of all is.
const UNSURE: f64 = 1.5;

/// The share of the time that the device would work for those `arrivals`, if each of them ran in a
/// batch of the size that brings most throughput, by the latency tables over a request of its model's
/// mean lengths, and each took the host `per_request`. Above 1 every backlog grows, whatever the policy; with smaller batches it does below 1.
pub(super) fn of(config: &CoreConfig, per_request: Nanos, arrivals: &[Past]) -> f64 {
    let mut seen = vec![Seen::default(); config.models.len()];
    for past in arrivals {
        let seen = &mut seen[past.model.index()];
        seen.num += 1;
        seen.samples += u64::from(past.samples);
        seen.input_lens += u64::from(past.input_len);
        seen.output_lens += u64::from(past.output_len);
    }
    let works = config.models.iter().zip(seen).filter(|(_, s)| s.num > 0);
    let works = works.map(|(spec, seen)| {
        let mean = |total: u64| total.div_ceil(seen.num).max(1) as u32;
        let output_len = OutputLen::known(mean(seen.output_lens)).predict();
        let throughputs = sizes::throughputs(spec, Nanos::ZERO, mean(seen.input_lens), output_len);
        let most = throughputs.into_iter().fold(f64::MIN_POSITIVE, f64::max);
        seen.samples as f64 / most + seen.num as f64 * per_request.0 as f64
    });
    let span: u64 = arrivals.iter().skip(1).map(|p| p.gap.0).sum();
    works.sum::<f64>() / span.max(1) as f64
}

/// Whether a load, by so many arrivals, is or may be near capacity.
pub(super) fn is_near_capacity(load: f64, num_arrivals: usize, are_several: bool) -> bool {
    if are_several {
        return NEAR_CAPACITY_SHARED.contains(&load);
    }
    let unsure = UNSURE * (error(num_arrivals) - error(history::CAPACITY));
    (*NEAR_CAPACITY.start()..=*NEAR_CAPACITY.end() + unsure).contains(&load)
}

/// By what factor longer a backlog lasts as others keep coming, by so many arrivals: what they leave of the
/// time works it off. Beyond capacity 0, as there it is not known for how long.
pub(super) fn lasting(load: f64, num_arrivals: usize) -> f64 {
    match load > 1.0 + SURELY * error(num_arrivals) {
        true => 0.0,
        false => 1.0 / (1.0 - load).max(LEAST_SPARE),
    }
}

/// The standard error of the mean of so many gaps, as a share of it, where arrivals are random.
fn error(num_arrivals: usize) -> f64 {
    1.0 / (num_arrivals.max(1) as f64).sqrt()
}

/// What was seen of a model.
#[derive(Clone, Copy, Default)]
struct Seen {
    num: u64,
    samples: u64,
    input_lens: u64,
    output_lens: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ModelSpec;
    use lazybatch_sla::{ClassId, ModelId, Profile, RequestId};

    #[test]
    fn fewer_arrivals_may_be_near_capacity_at_higher_loads() {
        let highest = |num, are_several| {
            let mut loads = (800..1500).rev().map(|l| f64::from(l) / 1000.0);
            loads.find(|&l| is_near_capacity(l, num, are_several))
        };
        assert_eq!(highest(4096, false), Some(1.02));
        // One and a half times the sixteenth that the mean of 256 gaps may be off by, less a 64th.
        assert_eq!(highest(256, false), Some(1.09));
        assert_eq!([64, 4096].map(|num| highest(num, true)), [Some(0.98); 2]);
        assert!(!is_near_capacity(0.84, 64, false));
    }

    #[test]
    fn a_backlog_lasts_as_much_longer_as_others_take_of_the_time() {
        let lasting = |load| (lasting(load, 10_000) * 1e6).round() / 1e6;
        assert_eq!([0.0, 0.5, 0.8, 0.9].map(lasting), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!([0.99, 1.0, 1.029].map(lasting), [10.0; 3]);
        assert_eq!([1.031, 3.0].map(lasting), [0.0; 2], "it stays");
        assert_eq!(super::lasting(1.18, 256), 10.0, "it may go");
    }

    #[test]
    fn each_counts_what_it_takes_in_the_best_batch_for_it() {
        // Eight in 240 us, 30 each; and, twice for an output of two, four in 200 us, 50 each.
        let text = r#"{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
            "models":[{"name":"chain","max_batch":8,"blocks":[{"name":"once","repeat":"once",
            "nodes":[{"name":"n","latency_us":[[1,100],[8,240]]}]}]},
            {"name":"loop","max_batch":4,"blocks":[{"name":"decode","repeat":"until_stop",
            "nodes":[{"name":"n","latency_us":[[1,110],[4,200]]}]}]}]}"#;
        let profile = Profile::parse("test", text).expect("a profile");
        let models = profile.models.iter();
        let models = models.map(|m| ModelSpec::from_profile(&profile, m, 1, 1));
        let config = CoreConfig::new(models.collect());
        let past = |model: u32, samples| Past {
            id: RequestId(0),
            gap: Nanos(100_000),
            model: ModelId(model),
            sla: None,
            class: ClassId::default(),
            priority: 0,
            delay_after: None,
            samples,
            input_len: 1,
            output_len: 2,
            max_steps: None,
        };
        let with_host = |arrivals: &[Past]| of(&config, Nanos(9_000), arrivals);
        let of = |arrivals: &[Past]| of(&config, Nanos::ZERO, arrivals);
        assert_eq!(of(&[]), 0.0);
        let chain = of(&[past(0, 1), past(0, 2), past(0, 3)]);
        assert!((chain - 6.0 * 30.0 / 200.0).abs() < 1e-9, "{chain}");
        let both = of(&[past(0, 1), past(1, 1), past(0, 1)]);
        assert!((both - (60.0 + 100.0) / 200.0).abs() < 1e-9, "{both}");
        let both = with_host(&[past(0, 1), past(1, 1), past(0, 1)]);
        assert!(
            (both - (60.0 + 100.0 + 3.0 * 9.0) / 200.0).abs() < 1e-9,
            "{both}"
        );
    }
}
