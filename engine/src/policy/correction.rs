//! How much longer the launches of a block take than its latency table says.

use lazybatch_sla::Nanos;

/// Share that the newest launch has, and of how many passes through a block it has no more than one
/// launch's share: some launches of a pass are longer than others.
const NEWEST: f64 = 0.005;
const PASSES: f64 = 4.0;
/// A launch counts at most this far off its prediction, either way.
const CLIP: f64 = 4.0;

/// The ratio over recent launches of all that they took to all that was predicted. Launches count by
/// their time: what each takes on top of its table, such as that of a decision, is a large part of
/// short ones alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Correction {
    took: f64,
    predicted: f64,
}

impl Correction {
    /// A launch of a block of `num_segments` that was predicted to take `predicted` has ended.
    pub fn on_done(&mut self, predicted: Nanos, took: Nanos, num_segments: u32) {
        if predicted == Nanos::ZERO {
            return;
        }
        let newest = NEWEST.min(1.0 / (PASSES * f64::from(num_segments.max(1))));
        let predicted = predicted.0 as f64;
        let took = (took.0 as f64).clamp(predicted / CLIP, predicted * CLIP);
        self.took += newest * (took - self.took);
        self.predicted += newest * (predicted - self.predicted);
    }

    /// By what the block's latencies are to be multiplied; 1 before its first launch.
    pub fn factor(&self) -> f64 {
        match self.predicted > 0.0 {
            true => self.took / self.predicted,
            false => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factor after passes through segments that take so many ns more than predicted, times a
    /// factor.
    fn after(passes: usize, segments: &[u64], factor: f64, more: f64) -> f64 {
        let mut correction = Correction::default();
        for _ in 0..passes {
            for &ns in segments {
                let took = ns as f64 * factor + more;
                correction.on_done(Nanos(ns), Nanos(took as u64), segments.len() as u32);
            }
        }
        correction.factor()
    }

    #[test]
    fn nothing_is_corrected_before_the_first_launch() {
        let mut correction = Correction::default();
        assert_eq!(correction.factor(), 1.0);
        correction.on_done(Nanos::ZERO, Nanos(7), 1);
        assert_eq!(correction.factor(), 1.0);
        correction.on_done(Nanos(10), Nanos(20), 1);
        assert_eq!(correction.factor(), 2.0);
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
    fn the_recent_counts() {
        let mut correction = Correction::default();
        for took in [300; 1000].into_iter().chain([100; 1200]) {
            correction.on_done(Nanos(100), Nanos(took), 10);
        }
        assert!((correction.factor() - 1.0).abs() < 0.01);
    }
}
