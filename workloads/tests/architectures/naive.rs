//! The building blocks of neural networks in double precision, written down plainly: whole
//! matrices, no caches, no batches.

use std::collections::BTreeMap;

use lazybatch_graph::Tensor;
use lazybatch_graph::manifest::Store;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Rows of features.
pub type Rows = Vec<Vec<f64>>;

/// Seeded tensors by name.
pub struct Weights {
    rng: ChaCha8Rng,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Weights {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            tensors: BTreeMap::new(),
        }
    }

    /// A tensor of elements in `from..to`.
    pub fn within(&mut self, name: impl Into<String>, dims: &[usize], from: f32, to: f32) {
        let num = dims.iter().product();
        let data = (0..num).map(|_| self.rng.random_range(from..to)).collect();
        self.tensors.insert(name.into(), (dims.to_vec(), data));
    }

    /// A matrix `[out, in]` that keeps the variance of its input.
    pub fn matrix(&mut self, name: impl Into<String>, out: usize, into: usize) {
        let bound = (3.0 / into as f32).sqrt();
        self.within(name, &[out, into], -bound, bound);
    }

    /// `name.weight [out, in]` and `name.bias [out]`.
    pub fn linear(&mut self, name: &str, out: usize, into: usize) {
        self.matrix(format!("{name}.weight"), out, into);
        self.within(format!("{name}.bias"), &[out], -0.3, 0.3);
    }

    /// `name.weight [d]` around one and `name.bias [d]`.
    pub fn norm(&mut self, name: &str, d: usize) {
        self.within(format!("{name}.weight"), &[d], 0.5, 1.5);
        self.within(format!("{name}.bias"), &[d], -0.3, 0.3);
    }

    pub fn store(&self) -> Store {
        let tensor = |(name, (dims, data)): (&String, &(Vec<usize>, Vec<f32>))| {
            (name.clone(), Tensor::from_f32(dims, data))
        };
        Store::from_tensors("weights", self.tensors.iter().map(tensor))
    }

    /// All elements.
    pub fn flat(&self, name: &str) -> Vec<f64> {
        let (_, data) = &self.tensors[name];
        data.iter().map(|&x| f64::from(x)).collect()
    }

    pub fn dims(&self, name: &str) -> &[usize] {
        &self.tensors[name].0
    }

    /// Row `at` of a matrix.
    pub fn row(&self, name: &str, at: usize) -> Vec<f64> {
        let width = self.dims(name)[1];
        self.flat(name)[at * width..][..width].to_vec()
    }

    /// `x` times the matrix `name [out, in]`, turned.
    pub fn times(&self, name: &str, x: &Rows) -> Rows {
        let (w, dims) = (self.flat(name), self.dims(name));
        let (out, into) = (dims[0], dims[1]);
        let one = |x: &Vec<f64>| -> Vec<f64> {
            assert_eq!(x.len(), into, "{name}");
            (0..out)
                .map(|o| (0..into).map(|i| w[o * into + i] * x[i]).sum())
                .collect()
        };
        x.iter().map(one).collect()
    }

    /// `name.weight` and, if there is one, `name.bias`.
    pub fn apply(&self, name: &str, x: &Rows) -> Rows {
        let y = self.times(&format!("{name}.weight"), x);
        let bias = format!("{name}.bias");
        if !self.tensors.contains_key(&bias) {
            return y;
        }
        let bias = self.flat(&bias);
        y.iter().map(|row| sum(row, &bias)).collect()
    }

    pub fn layer_norm(&self, name: &str, x: &Rows, eps: f64) -> Rows {
        let (gamma, beta) = (
            self.flat(&format!("{name}.weight")),
            self.flat(&format!("{name}.bias")),
        );
        let one = |row: &Vec<f64>| -> Vec<f64> {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let unit = |i: usize| (row[i] - mean) / (var + eps).sqrt();
            (0..row.len())
                .map(|i| unit(i) * gamma[i] + beta[i])
                .collect()
        };
        x.iter().map(one).collect()
    }

    pub fn rms_norm(&self, name: &str, x: &Rows, eps: f64) -> Rows {
        let gamma = self.flat(&format!("{name}.weight"));
        let one = |row: &Vec<f64>| -> Vec<f64> {
            let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let rms = (square + eps).sqrt();
            (0..row.len()).map(|i| row[i] / rms * gamma[i]).collect()
        };
        x.iter().map(one).collect()
    }
}

pub fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

pub fn add(a: &Rows, b: &Rows) -> Rows {
    a.iter().zip(b).map(|(a, b)| sum(a, b)).collect()
}

pub fn map(x: &Rows, f: impl Fn(f64) -> f64) -> Rows {
    x.iter()
        .map(|row| row.iter().map(|&x| f(x)).collect())
        .collect()
}

/// Attention of rows of `heads` heads over rows of `kv` heads; `causal` rows see none behind them.
pub fn attention(q: &Rows, k: &Rows, v: &Rows, heads: usize, kv: usize, causal: bool) -> Rows {
    let dim = q[0].len() / heads;
    let one = |(i, q): (usize, &Vec<f64>)| -> Vec<f64> {
        let seen = if causal { i + 1 } else { k.len() };
        let mut out = Vec::new();
        for head in 0..heads {
            let shared = head / (heads / kv);
            let part = |row: &Vec<f64>, head: usize| row[head * dim..][..dim].to_vec();
            let query = part(q, head);
            let scores: Vec<f64> = (0..seen)
                .map(|j| dot(&query, &part(&k[j], shared)) / (dim as f64).sqrt())
                .collect();
            let odds = softmax(&scores);
            for f in 0..dim {
                out.push((0..seen).map(|j| odds[j] * part(&v[j], shared)[f]).sum());
            }
        }
        out
    };
    q.iter().enumerate().map(one).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn softmax(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = x.iter().map(|x| (x - top).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|p| p / total).collect()
}

/// The first of the largest.
pub fn arg_max(x: &[f64]) -> usize {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter().position(|&x| x == top).unwrap()
}

pub fn relu(x: f64) -> f64 {
    x.max(0.0)
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// With erf by Simpson's rule.
pub fn gelu(x: f64) -> f64 {
    let end = (x / 2f64.sqrt()).clamp(-7.0, 7.0);
    const PARTS: usize = 400;
    let step = end / PARTS as f64;
    let weight = |i: usize| match i {
        0 | PARTS => 1.0,
        i if i % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let height = |i: usize| (-(i as f64 * step).powi(2)).exp();
    let area: f64 = (0..=PARTS).map(|i| weight(i) * height(i)).sum::<f64>() * step / 3.0;
    x * 0.5 * (1.0 + 2.0 / std::f64::consts::PI.sqrt() * area)
}
