//! Models with trained weights, their requests, and what their answers are judged by.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use lazybatch_benches::record::rounded;
use lazybatch_benches::spread::Spread;
use lazybatch_graph::{SharedProgram, Tensor, WeightFile};
use lazybatch_workloads::experiment::words;
use lazybatch_workloads::zoo;
use serde_json::{Value, json};

use crate::measure::fetched::{self, MINILM, MOBILENET};

/// How good the answers are.
pub struct Verdict {
    /// In sum.
    pub figures: Value,
    /// What `spread` is of.
    pub metric: &'static str,
    /// Over the requests.
    pub spread: Spread,
}

/// Judges all answers.
type Judge = Box<dyn Fn(&[Vec<Tensor>]) -> anyhow::Result<Verdict>>;

/// A model.
pub struct Trained {
    /// Its name.
    pub name: &'static str,
    /// What is served.
    pub program: SharedProgram,
    /// What it is asked.
    pub requests: Vec<Vec<Tensor>>,
    /// Judges the answers to all of them.
    pub judge: Judge,
}

/// All of them.
///
/// # Errors
/// A model that is not fetched, or damaged.
pub fn all(models: &Path) -> anyhow::Result<Vec<Trained>> {
    for model in [MINILM, MOBILENET] {
        fetched::check(models, model)?;
    }
    Ok(vec![sentences(models)?, pictures(models)?, spellings()?])
}

/// The values of the only output of an answer.
fn values(answer: &[Tensor]) -> anyhow::Result<Vec<f64>> {
    let first = answer.first().context("expected an output, got none")?;
    Ok(first.to_f32().iter().map(|&x| f64::from(x)).collect())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The furthest element, in parts of the largest of `want`.
fn drift(got: &[f64], want: &[f64]) -> f64 {
    let largest = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
    off.fold(0.0, f64::max) / largest
}

/// The place of the largest.
fn best(scores: &[f64]) -> Option<usize> {
    (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
}

/// MiniLM-L6 by the cosine of each embedding and the reference's.
fn sentences(models: &Path) -> anyhow::Result<Trained> {
    let (_, program) = fetched::program(models, MINILM)?;
    let ids = fetched::sentences(models)?;
    let cases = fetched::cases(models, MINILM)?;
    let embeddings = cases
        .iter()
        .map(|case| fetched::numbers(&case["embedding"]));
    let embeddings: Vec<Vec<f64>> = embeddings.collect::<Result<_, _>>()?;
    let judge = move |answers: &[Vec<Tensor>]| {
        let mut cosines = Vec::new();
        for (answer, want) in answers.iter().zip(&embeddings) {
            cosines.push(cosine(&values(answer)?, want));
        }
        let spread = Spread::of(cosines);
        // Nearly 1, so what is left to 1 is told too: more digits.
        let figures = json!({ "mean": spread.mean(), "least": spread.min() });
        let metric = "cosine";
        Ok(Verdict {
            figures,
            metric,
            spread,
        })
    };
    Ok(Trained {
        name: MINILM,
        program,
        requests: ids
            .iter()
            .map(|ids| vec![Tensor::from_i32(&[ids.len()], ids)])
            .collect(),
        judge: Box::new(judge),
    })
}

/// MobileNetV2 by the classes and logits of the reference.
fn pictures(models: &Path) -> anyhow::Result<Trained> {
    let (_, program) = fetched::program(models, MOBILENET)?;
    let cases = fetched::cases(models, MOBILENET)?;
    let images = WeightFile::open(models.join(MOBILENET).join("images.safetensors"))?;
    let (mut requests, mut wanted) = (Vec::new(), Vec::new());
    for case in &cases {
        let name = case["image"]
            .as_str()
            .context("expected the name of an image")?;
        let image = images.tensor(name)?;
        let dims: Vec<usize> = [1].into_iter().chain(image.dims.iter().copied()).collect();
        requests.push(vec![Tensor::from_f32(&dims, &image.to_f32())]);
        wanted.push(fetched::numbers(&case["logits"])?);
    }
    let judge = move |answers: &[Vec<Tensor>]| {
        let (mut right, mut drifts) = (0, Vec::new());
        for (answer, want) in answers.iter().zip(&wanted) {
            let got = values(answer)?;
            right += usize::from(best(&got) == best(want));
            drifts.push(drift(&got, want));
        }
        let spread = Spread::of(drifts);
        Ok(Verdict {
            figures: json!({ "right": right, "mean": rounded(spread.mean()) }),
            metric: "drift",
            spread,
        })
    };
    Ok(Trained {
        name: MOBILENET,
        program,
        requests,
        judge: Box::new(judge),
    })
}

/// The project's own model by the words that it spells out rightly.
fn spellings() -> anyhow::Result<Trained> {
    let entry = zoo::find(words::MODEL).context("the trained model in the zoo")?;
    let held_out = words::all();
    let items = held_out.iter().map(|word| words::item(word.spelling));
    let items: Option<Vec<_>> = items.collect();
    let items = items.context("expected words of letters")?;
    let judge = move |answers: &[Vec<Tensor>]| {
        ensure!(answers.len() == held_out.len(), "an answer to each word");
        let pairs = held_out.iter().zip(answers);
        let right = pairs.filter(|(word, answer)| word.accepts(&words::answer(answer)));
        let right = right.count();
        let share = right as f64 / held_out.len() as f64;
        Ok(Verdict {
            figures: json!({ "right": right }),
            metric: "word_accuracy",
            spread: Spread::of(vec![share]),
        })
    };
    Ok(Trained {
        name: entry.name,
        program: Arc::new(entry.program()?),
        requests: items.into_iter().map(|item| item.inputs).collect(),
        judge: Box::new(judge),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_compared() {
        assert!((cosine(&[1.0, 0.0], &[2.0, 0.0]) - 1.0).abs() < 1e-15);
        assert!((cosine(&[1.0, 1.0], &[1.0, 0.0]) - 0.5f64.sqrt()).abs() < 1e-15);
        assert_eq!(drift(&[1.0, -3.0], &[1.0, -4.0]), 0.25);
        assert_eq!(best(&[0.5, 2.0, 1.0]), Some(1));
    }

    #[test]
    fn words_are_judged_by_their_pronunciations() {
        let model = spellings().unwrap();
        let nothing = vec![vec![Tensor::from_i32(&[1], &[2])]; model.requests.len()];
        let verdict = (model.judge)(&nothing).unwrap();
        assert_eq!(verdict.figures["right"], 0);
        assert!((model.judge)(&nothing[1..]).is_err());
    }
}
