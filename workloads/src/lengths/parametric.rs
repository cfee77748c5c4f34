//! Length distributions computed from a formula.
//!
//! The input length is log-normal, the output length given the input is log-normal around a
//! multiple of it, both on whole numbers within bounds:
//!
//! ```text
//! p(s)     ~ 1/s * exp(-(ln s - ln median)^2 / (2 sigma^2)),          1 <= s <= max_input
//! p(t | s) ~ 1/t * exp(-(ln t - ln(ratio * s))^2 / (2 noise^2)),      1 <= t <= max_output
//! ```
//!
//! and the count of a pair is p(s) * p(t | s) * 10,000,000, rounded. The parameters were set by
//! hand so that means, medians and 90th percentiles come near those of well-known public sets
//! (caption and news translation, read speech, a pronouncing dictionary). No file of those sets is
//! part of this: the distributions stand for their kind, and are not measurements of them.

use crate::error::Result;

use super::Lengths;

/// Counts of each distribution add up to about this.
const TOTAL: f64 = 1e7;

/// Parameters of the formula in the module's description.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// What the distribution is called.
    pub name: &'static str,
    /// What the lengths count.
    pub about: &'static str,
    /// Median input length before bounds.
    pub median: f64,
    /// Spread of the input length, in natural logarithms.
    pub sigma: f64,
    /// Median output length per input length; 0 for no output at all.
    pub ratio: f64,
    /// Spread of that ratio, in natural logarithms.
    pub noise: f64,
    /// Largest input length.
    pub max_input: u32,
    /// Largest output length.
    pub max_output: u32,
}

/// The names that [`by_name`] knows.
pub const NAMES: &[&str] = &[
    "translation-short",
    "translation-long",
    "speech",
    "spelling",
    "sentence",
];

/// The distributions, in the order of [`NAMES`].
const SHAPES: &[Shape] = &[
    Shape {
        name: "translation-short",
        about: "words of image captions and of their translations",
        median: 11.3,
        sigma: 0.32,
        ratio: 0.92,
        noise: 0.17,
        max_input: 40,
        max_output: 40,
    },
    Shape {
        name: "translation-long",
        about: "words of news sentences and of their translations",
        median: 18.4,
        sigma: 0.5,
        ratio: 0.945,
        noise: 0.175,
        max_input: 120,
        max_output: 120,
    },
    Shape {
        name: "speech",
        about: "encoder steps of 80 ms of read speech, and characters of the transcript",
        median: 73.5,
        sigma: 0.63,
        ratio: 1.17,
        noise: 0.19,
        max_input: 408,
        max_output: 516,
    },
    Shape {
        name: "spelling",
        about: "letters of English words and phonemes of their pronunciation",
        median: 7.05,
        sigma: 0.31,
        ratio: 0.85,
        noise: 0.16,
        max_input: 24,
        max_output: 24,
    },
    Shape {
        name: "sentence",
        about: "word pieces of sentences to embed or classify, without an output sequence",
        median: 23.0,
        sigma: 0.5,
        ratio: 0.0,
        noise: 0.0,
        max_input: 128,
        max_output: 0,
    },
];

/// The distribution called `name`.
pub fn by_name(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

impl Shape {
    /// The distribution as a histogram.
    ///
    /// # Errors
    /// As [`Lengths::from_counts`]; never for the shapes in this module.
    pub fn lengths(&self) -> Result<Lengths> {
        let mut counts = Vec::new();
        for (s, p_input) in log_normal(self.median, self.sigma, self.max_input) {
            if self.ratio == 0.0 {
                counts.push(((s, 0), (p_input * TOTAL).round() as u64));
                continue;
            }
            let centre = self.ratio * f64::from(s);
            for (t, p_output) in log_normal(centre, self.noise, self.max_output) {
                counts.push(((s, t), (p_input * p_output * TOTAL).round() as u64));
            }
        }
        Lengths::from_counts(self.name, counts)
    }
}

/// A log-normal density at 1 to `max`, made to add up to 1.
fn log_normal(median: f64, sigma: f64, max: u32) -> impl Iterator<Item = (u32, f64)> {
    let density = move |x: u32| {
        let x = f64::from(x);
        let distance = (x / median).ln() / sigma;
        (-0.5 * distance * distance).exp() / x
    };
    let total: f64 = (1..=max).map(density).sum();
    (1..=max).map(move |x| (x, density(x) / total))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean input, mean output and p90 of the output.
    fn facts(name: &str) -> (f64, f64, u32) {
        let lengths = by_name(name).unwrap().lengths().unwrap();
        (
            lengths.mean_input(),
            lengths.mean_output(),
            lengths.output_p90(),
        )
    }

    #[test]
    fn names_and_shapes_agree() {
        let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        assert_eq!(names, NAMES);
    }

    #[test]
    fn means_and_p90_come_near_those_of_their_kind() {
        for (name, mean_input, mean_output, p90) in [
            ("translation-short", 11.9, 11.1, 16),
            ("translation-long", 20.8, 19.9, 35),
            ("speech", 89.7, 106.7, 204),
            ("spelling", 7.4, 6.3, 9),
        ] {
            let (input, output, got_p90) = facts(name);
            assert!(
                (input / mean_input - 1.0).abs() < 0.03,
                "{name}: mean input {input}"
            );
            assert!(
                (output / mean_output - 1.0).abs() < 0.04,
                "{name}: mean output {output}"
            );
            let off = (f64::from(got_p90) / f64::from(p90) - 1.0).abs();
            assert!(off < 0.07, "{name}: p90 {got_p90}");
        }
        assert_eq!(facts("sentence").1, 0.0);
    }

    #[test]
    fn input_and_output_lengths_are_tied() {
        let lengths = by_name("translation-long").unwrap().lengths().unwrap();
        let (mi, mo) = (lengths.mean_input(), lengths.mean_output());
        let (mut ii, mut oo, mut io) = (0.0, 0.0, 0.0);
        for ((s, t), count) in lengths.counts() {
            let (ds, dt, w) = (f64::from(s) - mi, f64::from(t) - mo, count as f64);
            ii += w * ds * ds;
            oo += w * dt * dt;
            io += w * ds * dt;
        }
        let correlation = io / (ii * oo).sqrt();
        assert!((0.90..0.97).contains(&correlation), "{correlation}");
    }

    #[test]
    fn bounds_hold_and_the_total_is_as_promised() {
        for shape in SHAPES {
            let lengths = shape.lengths().unwrap();
            assert!(lengths.max_input() <= shape.max_input, "{}", shape.name);
            assert!(lengths.max_output() <= shape.max_output, "{}", shape.name);
            let total: u64 = lengths.counts().map(|(_, count)| count).sum();
            assert!(
                (total as f64 / TOTAL - 1.0).abs() < 0.01,
                "{}: {total}",
                shape.name
            );
        }
    }
}
