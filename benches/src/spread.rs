//! Median and extremes of repeated measurements.

/// Repeated measurements of one figure, in order of size.
#[derive(Clone, Debug)]
pub struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    /// Of `samples` in any order.
    ///
    /// # Panics
    /// If there are none.
    pub fn of(mut samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a spread of something");
        samples.sort_unstable_by(f64::total_cmp);
        Self { sorted: samples }
    }

    /// How many.
    pub fn runs(&self) -> usize {
        self.sorted.len()
    }

    /// The nearest-rank percentile.
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (percent * self.sorted.len()).div_ceil(100).max(1);
        self.sorted[rank - 1]
    }

    /// The middle one, the lower of two.
    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len() as f64
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let spread = Spread::of(vec![4.0, 1.0, 3.0, 2.0, 5.0]);
        assert_eq!(
            (spread.min(), spread.median(), spread.max()),
            (1.0, 3.0, 5.0)
        );
        assert_eq!((spread.percentile(99), spread.percentile(1)), (5.0, 1.0));
        assert_eq!(Spread::of(vec![1.0, 2.0]).median(), 1.0);
    }
}
