//! How much of its capacity arrivals ask of a device.

use lazybatch_sla::OutputLen;

use super::sizes;
use crate::core::{CoreConfig, Past};

/// The share of the time that the device would work for those `arrivals`, if each of them ran in a
/// batch of the size that brings most throughput, by the latency tables over a request of its model's
/// mean lengths. Nobody stays below a share of 1; what batches can be had for is less.
pub(super) fn of(config: &CoreConfig, arrivals: &[Past]) -> f64 {
    let span: u64 = arrivals.iter().skip(1).map(|p| p.gap.0).sum();
    let works = config.models.iter().enumerate().map(|(m, spec)| {
        let own = || arrivals.iter().filter(|p| p.model.index() == m);
        let samples: u64 = own().map(|p| u64::from(p.samples)).sum();
        let num = own().count() as u64;
        let mean = |total: u64| total.div_ceil(num.max(1)).max(1) as u32;
        let input_len = mean(own().map(|p| u64::from(p.input_len)).sum());
        let output_len = mean(own().map(|p| u64::from(p.output_len)).sum());
        let throughputs = match num {
            0 => Vec::new(),
            _ => sizes::throughputs(spec, input_len, OutputLen::known(output_len).predict()),
        };
        let most = throughputs.into_iter().fold(0.0, f64::max);
        if most > 0.0 {
            samples as f64 / most
        } else {
            0.0
        }
    });
    works.sum::<f64>() / span.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ModelSpec;
    use lazybatch_sla::{ClassId, ModelId, Nanos, Profile, RequestId};

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
        };
        let of = |arrivals: &[Past]| of(&config, arrivals);
        assert_eq!(of(&[]), 0.0);
        let chain = of(&[past(0, 1), past(0, 2), past(0, 3)]);
        assert!((chain - 6.0 * 30.0 / 200.0).abs() < 1e-9, "{chain}");
        let both = of(&[past(0, 1), past(1, 1), past(0, 1)]);
        assert!((both - (60.0 + 100.0) / 200.0).abs() < 1e-9, "{both}");
    }
}
