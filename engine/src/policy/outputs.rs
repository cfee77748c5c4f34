//! Output lengths by input length, learned as requests end.
//!
//! Inputs of about the same length, four classes to an octave, share an exponentially weighted mean of
//! the passes that their last loop took until the output stopped. A class in which too few have
//! ended takes the mean of the nearest one in which enough have; where there is none, the model's
//! prediction stands.

use lazybatch_sla::ModelId;

use crate::core::ModelSpec;

/// Share that the newest output has in a mean, once the mean has as many as that share allows.
const WEIGHT: f64 = 0.02;
/// Outputs of a class before its mean is believed.
const ENOUGH: u32 = 4;
/// Classes of input lengths.
const CLASSES: usize = 4 * 32;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    num: u32,
    len: f64,
}

/// Means of the models so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs(Vec<Vec<Mean>>);

impl Outputs {
    /// Forgets a model.
    pub fn on_model(&mut self, model: ModelId) {
        if let Some(classes) = self.0.get_mut(model.index()) {
            classes.clear();
        }
    }

    /// A request has ended after so many passes.
    pub fn on_end(&mut self, model: ModelId, input_len: u32, output_len: u32) {
        if self.0.len() <= model.index() {
            self.0.resize(model.index() + 1, Vec::new());
        }
        let classes = &mut self.0[model.index()];
        classes.resize(CLASSES, Mean::default());
        let mean = &mut classes[class(input_len)];
        mean.num = mean.num.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(mean.num));
        mean.len += weight * (f64::from(output_len) - mean.len);
    }

    /// Passes that a request with that input is thought to take.
    pub fn predict(&self, spec: &ModelSpec, model: ModelId, input_len: u32) -> u32 {
        let classes = self.0.get(model.index()).map_or(&[][..], Vec::as_slice);
        let at = class(input_len);
        let known = |i: usize| classes.get(i).filter(|m| m.num >= ENOUGH);
        let near = known(at).or_else(|| {
            (1..classes.len()).find_map(|d| known(at + d).or_else(|| known(at.checked_sub(d)?)))
        });
        near.map_or(spec.output_len_p90, |m| m.len.round() as u32)
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

    #[test]
    fn outputs_are_predicted_by_those_of_such_inputs() {
        let (spec, model) = (spec(), ModelId(1));
        let mut outputs = Outputs::default();
        assert_eq!(outputs.predict(&spec, model, 10), 90);
        for i in 0..ENOUGH {
            assert_eq!(outputs.predict(&spec, model, 10), 90, "{i} ended");
            outputs.on_end(model, 10, 20 + i);
            outputs.on_end(model, 1000, 500);
        }
        assert_eq!(outputs.predict(&spec, model, 10), 22, "21.5 rounded");
        assert_eq!(outputs.predict(&spec, model, 1), 22, "the nearest class");
        assert_eq!(outputs.predict(&spec, model, 900), 500);
        assert_eq!(outputs.predict(&spec, ModelId(0), 10), 90);
        for _ in 0..1000 {
            outputs.on_end(model, 10, 60);
        }
        assert_eq!(
            outputs.predict(&spec, model, 10),
            60,
            "what was is forgotten"
        );
        outputs.on_model(model);
        assert_eq!(outputs.predict(&spec, model, 10), 90);
    }
}
