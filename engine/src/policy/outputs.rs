//! Output lengths by input length, learned as requests end.
//!
//! Inputs of about the same length, four classes to an octave, share an exponentially weighted mean of
//! the passes that their loop took until the output stopped. A class in which too few have ended
//! takes the mean of the nearest one in which enough have. Of one that was cut where its client asked
//! for it is known that it would have taken as long at the least: it counts if that is more than the
//! mean. Nobody is thought to take more than the
//! model's own prediction, which stands where nothing is known: a class whose requests are refused
//! for what a few of them took would never hear of others.
//!
//! Of one that has passed its loop for a while it is known that its output is longer than that. What it
//! is thought to take then is the mean of those that were as long, each as a multiple of the mean of its
//! class when it ended: the mean residual life, as renewal theory has it.

use lazybatch_sla::ModelId;

use crate::core::{Ending, ModelSpec};

/// Share that the newest output has in a mean, once the mean has as many as that share allows.
const WEIGHT: f64 = 0.02;
/// Outputs of a class before its mean is believed.
const ENOUGH: u32 = 4;
/// Classes of input lengths.
const CLASSES: usize = 4 * 32;

/// Multiples of the mean are told apart to an eighth of it, up to so many eighths.
const EIGHTHS: usize = 64;
/// Share that the newest output has among multiples.
const NEWEST: f64 = 0.01;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    num: u32,
    len: f64,
}

/// Means of one model.
#[derive(Clone, Debug, Default)]
struct Means {
    by_class: Vec<Mean>,
    /// For each class the nearest one that has enough; empty where none has.
    nearest: Vec<usize>,
    multiples: Multiples,
}

/// Outputs as multiples of the means of their classes.
#[derive(Clone, Debug, Default)]
struct Multiples {
    /// By eighths: how many, the newer the more, and their multiples added.
    seen: Vec<(f64, f64)>,
    /// By eighths: by how much those that were at least that long were longer, in the mean. Beyond the
    /// longest it is as for that.
    excess: Vec<f64>,
}

/// Means of the models so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs(Vec<Means>);

impl Outputs {
    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId) {
        if let Some(means) = self.0.get_mut(model.index()) {
            *means = Means::default();
        }
    }

    pub fn on_end(&mut self, ending: &Ending) {
        let Some(output_len) = ending.output_len else {
            return;
        };
        let model = ending.model.index();
        if self.0.len() <= model {
            self.0.resize(model + 1, Means::default());
        }
        let class = class(ending.input_len);
        let is_longer = |mean: f64| f64::from(output_len) > mean;
        let means = &mut self.0[model];
        let mean = means.len(class);
        if !ending.is_cut || mean.is_some_and(is_longer) {
            means.add(class, output_len);
            if let Some(mean) = mean {
                means.multiples.add(f64::from(output_len) / mean.max(1.0));
            }
        }
    }

    /// Passes that a request with that input is thought to take.
    pub fn predict(&self, spec: &ModelSpec, model: ModelId, input_len: u32) -> u32 {
        let means = self.0.get(model.index());
        let len = means.and_then(|m| m.len(class(input_len)));
        len.map_or(spec.output_len_p90, |len| {
            (len.round() as u32).min(spec.output_len_p90)
        })
    }

    /// Passes in all of one that has taken `step` and goes on: one more at the least.
    pub fn predict_beyond(
        &self,
        spec: &ModelSpec,
        model: ModelId,
        (input_len, step): (u32, u32),
    ) -> u32 {
        let means = self.0.get(model.index());
        let known = means.and_then(|m| Some((m, m.len(class(input_len))?.max(1.0))));
        let beyond = known.and_then(|(m, mean)| {
            let multiple = m.multiples.beyond((f64::from(step) + 1.0) / mean)?;
            Some((multiple * mean).round() as u32)
        });
        let beyond = beyond.unwrap_or_else(|| self.predict(spec, model, input_len));
        beyond.max(step.saturating_add(1))
    }
}

impl Multiples {
    fn add(&mut self, multiple: f64) {
        self.seen.resize(EIGHTHS, (0.0, 0.0));
        self.excess.resize(EIGHTHS, 0.0);
        for (num, sum) in &mut self.seen {
            *num *= 1.0 - NEWEST;
            *sum *= 1.0 - NEWEST;
        }
        let (num, sum) = &mut self.seen[eighth(multiple)];
        *num += 1.0;
        *sum += multiple;
        let (mut num, mut sum, mut longest) = (0.0, 0.0, None);
        for (i, seen) in self.seen.iter().enumerate().rev() {
            num += seen.0;
            sum += seen.1;
            // What is left of one long ago is no longer known.
            if num > NEWEST {
                self.excess[i] = sum / num - i as f64 / 8.0;
                longest = longest.or(Some((i, self.excess[i])));
            }
        }
        if let Some((longest, excess)) = longest {
            self.excess[longest..].fill(excess);
        }
    }

    /// The mean of those that were at least so long.
    fn beyond(&self, multiple: f64) -> Option<f64> {
        let i = eighth(multiple);
        let from = match i + 1 < EIGHTHS {
            true => i as f64 / 8.0,
            false => multiple,
        };
        self.excess.get(i).map(|excess| from + excess)
    }
}

fn eighth(multiple: f64) -> usize {
    ((multiple * 8.0) as usize).min(EIGHTHS - 1)
}

impl Means {
    fn add(&mut self, class: usize, output_len: u32) {
        self.by_class.resize(CLASSES, Mean::default());
        let mean = &mut self.by_class[class];
        mean.num = mean.num.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(mean.num));
        mean.len += weight * (f64::from(output_len) - mean.len);
        if mean.num == ENOUGH {
            let known = (0..CLASSES).filter(|&c| self.by_class[c].num >= ENOUGH);
            let known: Vec<usize> = known.collect();
            let nearest = |c: usize| known.iter().copied().min_by_key(|&k| k.abs_diff(c));
            self.nearest = (0..CLASSES).filter_map(nearest).collect();
        }
    }

    fn len(&self, class: usize) -> Option<f64> {
        Some(self.by_class[*self.nearest.get(class)?].len)
    }
}

/// The class of an input length: its octave and quarter.
fn class(input_len: u32) -> usize {
    let octave = input_len.max(1).ilog2();
    let quarter = (u64::from(input_len.max(1)) << 2 >> octave) & 3;
    4 * octave as usize + quarter as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fixtures;
    use lazybatch_sla::Profile;

    fn spec() -> ModelSpec {
        let text = r#"{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":0,
            "models":[{"name":"m","max_batch":4,"output_len_p90":90,"blocks":[{"name":"decode",
            "repeat":"until_stop","nodes":[{"name":"n","by":"members","latency_us":[[1,5]]}]}]}]}"#;
        let profile = Profile::parse("test", text).expect("a profile");
        ModelSpec::from_profile(&profile, &profile.models[0], 1, 8)
    }

    #[test]
    fn classes_are_quarters_of_octaves() {
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, 8].map(class),
            [0, 0, 4, 6, 8, 9, 10, 11, 12]
        );
        assert_eq!([15, 16, 19, 20].map(class), [15, 16, 16, 17]);
        assert!(class(u32::MAX) < CLASSES);
    }

    fn end(outputs: &mut Outputs, input_len: u32, output_len: u32) {
        end_at(outputs, input_len, output_len, false);
    }

    fn end_at(outputs: &mut Outputs, input_len: u32, output_len: u32, is_cut: bool) {
        outputs.on_end(&Ending {
            model: ModelId(1),
            input_len,
            output_len: Some(output_len),
            is_cut,
            ..fixtures::ending(0)
        });
    }

    #[test]
    fn who_goes_on_is_thought_to_take_as_long_as_those_that_did() {
        let (spec, model) = (spec(), ModelId(1));
        let mut outputs = Outputs::default();
        let beyond = |outputs: &Outputs, step| outputs.predict_beyond(&spec, model, (10, step));
        assert_eq!(
            [0, 89, 90, 200].map(|step| beyond(&outputs, step)),
            [90, 90, 91, 201]
        );
        for len in [8, 8, 8, 32].repeat(500) {
            end(&mut outputs, 10, len);
        }
        let mean = outputs.predict(&spec, model, 10);
        assert!((13..=15).contains(&mean), "{mean}");
        // Those that were longer than 8 were 32.
        for (step, least, most) in [(0, 13, 15), (5, 13, 15), (12, 30, 34), (28, 30, 34)] {
            let beyond = beyond(&outputs, step);
            assert!((least..=most).contains(&beyond), "{step}: {beyond}");
        }
        // Nobody was as long: one more.
        assert!((61..=63).contains(&beyond(&outputs, 60)));
    }

    #[test]
    fn who_was_cut_counts_if_it_was_longer() {
        let (spec, model) = (spec(), ModelId(1));
        let mut outputs = Outputs::default();
        for _ in 0..ENOUGH {
            end_at(&mut outputs, 10, 2, true);
        }
        assert_eq!(
            outputs.predict(&spec, model, 10),
            90,
            "how long is not known"
        );
        for _ in 0..ENOUGH {
            end(&mut outputs, 10, 20);
        }
        (0..50).for_each(|_| end_at(&mut outputs, 10, 2, true));
        assert_eq!(outputs.predict(&spec, model, 10), 20);
        (0..50).for_each(|_| end_at(&mut outputs, 10, 40, true));
        assert!(outputs.predict(&spec, model, 10) > 25);
    }

    #[test]
    fn outputs_are_predicted_by_those_of_such_inputs() {
        let (spec, model) = (spec(), ModelId(1));
        let mut outputs = Outputs::default();
        assert_eq!(outputs.predict(&spec, model, 10), 90);
        for i in 0..ENOUGH {
            assert_eq!(outputs.predict(&spec, model, 10), 90, "{i} ended");
            end(&mut outputs, 10, 20 + i);
        }
        assert_eq!(outputs.predict(&spec, model, 900), 22, "the only class");
        for _ in 0..ENOUGH {
            end(&mut outputs, 1000, 50);
        }
        assert_eq!(outputs.predict(&spec, model, 10), 22, "21.5 rounded");
        assert_eq!(outputs.predict(&spec, model, 1), 22, "the nearest class");
        assert_eq!(outputs.predict(&spec, model, 900), 50);
        assert_eq!(outputs.predict(&spec, ModelId(0), 10), 90);
        for _ in 0..1000 {
            end(&mut outputs, 10, 60);
            end(&mut outputs, 1000, 500);
        }
        assert_eq!(
            outputs.predict(&spec, model, 10),
            60,
            "what was is forgotten"
        );
        assert_eq!(
            outputs.predict(&spec, model, 900),
            90,
            "no more than was foretold"
        );
        outputs.on_model(model);
        assert_eq!(outputs.predict(&spec, model, 10), 90);
    }
}
