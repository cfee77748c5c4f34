//! Whether the answers of a run are those of each request alone.

use lazybatch_graph::{DType, Tensor};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_workloads::experiment::inputs::Item;
use lazybatch_workloads::experiment::{Call, Served, words};

use crate::args::CpuArgs;
use crate::models::{Model, Products};

/// How far answers may be from those alone, where products do not promise the same bits: the share
/// of the largest number of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding(Option<f32>);

impl Rounding {
    /// What the products of a device leave open.
    pub fn of(args: &CpuArgs) -> Self {
        if args.products != Some(Products::Cublaslt) {
            return Self(None);
        }
        Self(Some(match args.weights.unwrap_or_default() {
            WeightType::F32 => 1e-4,
            _ => 5e-2,
        }))
    }
}

/// Whether the answers were right.
pub struct Answers {
    /// Requests that were answered.
    pub completed: usize,
    /// Of those, with the bits of each request alone.
    pub identical: usize,
    /// Of those, within the rounding that products leave open; `None` where they leave none open.
    pub close: Option<usize>,
    rounding: Rounding,
    correct: Option<usize>,
}

impl Answers {
    /// Compares answers with those of the serial pass, and words with the dictionary.
    pub fn judge(
        model: &Model,
        pool: &[Item],
        calls: &[Call],
        alone: &Served,
        served: &Served,
        rounding: Rounding,
    ) -> Self {
        let accepted: std::collections::HashMap<_, _> =
            words::all().into_iter().map(|w| (w.spelling, w)).collect();
        let mut answers = Self {
            completed: 0,
            identical: 0,
            close: rounding.0.map(|_| 0),
            rounding,
            correct: model.reads_words().then_some(0),
        };
        for (call, outputs) in calls.iter().zip(&served.outputs) {
            let Some(outputs) = outputs else { continue };
            answers.completed += 1;
            let reference = alone.outputs[call.item].as_deref().unwrap_or(&[]);
            answers.identical += usize::from(all(outputs, reference, is_same));
            if let (Some(close), Some(share)) = (&mut answers.close, rounding.0) {
                let near = |a: &Tensor, b: &Tensor| is_close(a, b, share);
                *close += usize::from(all(outputs, reference, near));
            }
            if let (Some(correct), Some(text)) = (&mut answers.correct, &pool[call.item].text) {
                let word = accepted.get(text.as_str());
                *correct += usize::from(word.is_some_and(|w| w.accepts(&words::answer(outputs))));
            }
        }
        answers
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.completed += other.completed;
        self.identical += other.identical;
        let sum = |a: Option<usize>, b: Option<usize>| Some(a? + b?);
        self.close = sum(self.close, other.close);
        self.correct = sum(self.correct, other.correct);
    }

    /// Answers that are as they have to be: bit for bit, or within the rounding that is left open.
    pub fn right(&self) -> usize {
        self.close.unwrap_or(self.identical)
    }

    /// One line for a policy.
    pub fn line(&self, policy: &str) -> String {
        let mut line = format!(
            "{policy}: {} of {} answers bit-identical to those alone",
            self.identical, self.completed
        );
        if let (Some(close), Some(share)) = (self.close, self.rounding.0) {
            line.push_str(&format!(", {close} within {share} of them"));
        }
        if let Some(correct) = self.correct {
            let share = 100.0 * correct as f64 / self.completed.max(1) as f64;
            line.push_str(&format!(", {share:.2} % of words right"));
        }
        line
    }
}

/// Whether all pairs of two lists of the same length are alike.
fn all(a: &[Tensor], b: &[Tensor], alike: impl Fn(&Tensor, &Tensor) -> bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b))
}

fn is_same(a: &Tensor, b: &Tensor) -> bool {
    a.dims == b.dims && a.data.as_slice() == b.data.as_slice()
}

/// Whether each number is within `share` of the largest of `b`; what is no float has to be the same.
fn is_close(a: &Tensor, b: &Tensor, share: f32) -> bool {
    if a.dtype != DType::F32 || b.dtype != DType::F32 || a.dims != b.dims {
        return is_same(a, b);
    }
    let (a, b) = (a.to_f32(), b.to_f32());
    let most = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    // NaN is close to nothing.
    a.iter()
        .zip(&b)
        .all(|(a, b)| a == b || (a - b).abs() <= share * most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closeness_is_a_share_of_the_largest_number() {
        let of = |x: [f32; 2]| Tensor::from_f32(&[2], &x);
        let alone = of([100.0, 0.5]);
        assert!(is_close(&of([100.5, 0.0]), &alone, 1e-2));
        assert!(!is_close(&of([102.0, 0.5]), &alone, 1e-2));
        assert!(!is_close(&of([f32::NAN, 0.5]), &alone, 1e-2));
        assert!(!is_close(
            &Tensor::from_f32(&[1, 2], &[100.0, 0.5]),
            &alone,
            1e-2
        ));
        let tokens = |t: i32| Tensor::from_i32(&[1], &[t]);
        assert!(is_close(&tokens(1000), &tokens(1000), 1e-2));
        assert!(!is_close(&tokens(1001), &tokens(1000), 1e-2));
    }

    #[test]
    fn only_the_library_leaves_rounding_open() {
        let of = |products, weights| {
            Rounding::of(&CpuArgs {
                products,
                weights,
                ..CpuArgs::default()
            })
        };
        assert_eq!(of(None, None), Rounding(None));
        assert_eq!(
            of(Some(Products::Matrix), Some(WeightType::Bf16)),
            Rounding(None)
        );
        assert_eq!(of(Some(Products::Cublaslt), None), Rounding(Some(1e-4)));
        let half = of(Some(Products::Cublaslt), Some(WeightType::F16));
        assert_eq!(half, Rounding(Some(5e-2)));
    }
}
