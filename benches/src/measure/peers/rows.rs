//! The rows that are compared, and our side of each.

use std::sync::Arc;

use anyhow::Context;
use lazybatch_benches::clock;
use lazybatch_benches::lockstep::Lockstep;
use lazybatch_benches::matmul::Product;
use lazybatch_graph::{
    Act, At, DType, Error, Heads, MultiHead, Program, ProgramBuilder, Repeat, Tensor, ValueId,
    WeightSource, passes,
};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_workloads::zoo;
use serde_json::{Value, json};

/// Features of recurrent layers.
const HIDDEN: usize = 1024;
/// Positions of recurrent layers: sequences, and one step, as launches that requests may join and
/// leave at any step see them.
const STEPS: [usize; 2] = [16, 1];
/// Features, heads and inner features of an encoder layer: those of BERT-base.
const ENCODER: [usize; 3] = [768, 12, 3072];
/// Added to variances in an encoder layer.
const ENCODER_EPS: f32 = 1e-12;
/// Features, heads and inner features of a decoder layer: those of Transformer-base.
const DECODER: [usize; 3] = [512, 8, 2048];
/// Added to variances in a decoder layer.
const DECODER_EPS: f32 = 1e-6;
/// Positions in the cache and in the encoder's output of a decoder step.
const PAST: usize = 32;

/// Models of images.
const IMAGE_MODELS: [&str; 2] = ["resnet50", "mobilenet-v1"];

/// Launches of a single step that are timed at once.
const LAUNCHES: usize = 8;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// `m` rows times a weight `[k, n]`.
    Gemm {
        /// Rows.
        m: usize,
        /// Inner dimension.
        k: usize,
        /// Columns.
        n: usize,
    },
    /// An LSTM layer over sequences.
    Lstm {
        /// Requests.
        batch: usize,
        /// Positions.
        steps: usize,
    },
    /// A GRU layer over sequences.
    Gru {
        /// Requests.
        batch: usize,
        /// Positions.
        steps: usize,
    },
    /// A transformer encoder layer.
    Encoder {
        /// Requests.
        batch: usize,
        /// Positions.
        len: usize,
    },
    /// A step of a transformer decoder layer.
    Decoder {
        /// Requests.
        batch: usize,
    },
    /// A model of images of the zoo.
    Image {
        /// Its name.
        model: &'static str,
        /// Requests.
        batch: usize,
    },
}

/// An f32 tensor that both sides use.
pub struct Named {
    /// Name of a weight, or `input.NAME` with the requests as its first dimension.
    pub name: String,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Elements.
    pub data: Vec<f32>,
}

/// Our side of a row.
pub struct Own {
    side: Side,
    /// What the peer builds the same from.
    pub tensors: Vec<Named>,
}

enum Side {
    Product {
        product: Product,
        m: usize,
    },
    Program {
        batch: Box<Lockstep>,
        /// The block that is timed; all, with opening and closing, if none.
        timed: Option<usize>,
    },
}

impl Row {
    /// All rows.
    pub fn all() -> Vec<Self> {
        let mut rows = Vec::new();
        for (k, n) in [(1024, 1024), (768, 3072)] {
            rows.extend((0..9).map(|i| Self::Gemm { m: 1 << i, k, n }));
        }
        let batches = [1, 4, 16];
        for steps in STEPS {
            rows.extend(batches.map(|batch| Self::Lstm { batch, steps }));
        }
        for steps in STEPS {
            rows.extend(batches.map(|batch| Self::Gru { batch, steps }));
        }
        for len in [16, 64, 128] {
            rows.extend(batches.map(|batch| Self::Encoder { batch, len }));
        }
        rows.extend(batches.map(|batch| Self::Decoder { batch }));
        for model in IMAGE_MODELS {
            rows.extend(batches.map(|batch| Self::Image { model, batch }));
        }
        rows
    }

    /// Its name on command lines and for the peer.
    pub const fn family(self) -> &'static str {
        match self {
            Self::Gemm { .. } => "gemm",
            Self::Lstm { .. } => "lstm",
            Self::Gru { .. } => "gru",
            Self::Encoder { .. } => "encoder",
            Self::Decoder { .. } => "decoder",
            Self::Image { model, .. } => model,
        }
    }

    /// Name and sizes.
    pub fn figures(self) -> Value {
        let row = self.family();
        match self {
            Self::Gemm { m, k, n } => json!({ "row": row, "m": m, "k": k, "n": n }),
            Self::Lstm { batch, steps } | Self::Gru { batch, steps } => {
                json!({ "row": row, "batch": batch, "hidden": HIDDEN, "steps": steps })
            }
            Self::Encoder { batch, len } => {
                let [d, heads, ffn] = ENCODER;
                json!({
                    "row": row, "batch": batch, "len": len,
                    "d": d, "heads": heads, "ffn": ffn, "eps": ENCODER_EPS,
                })
            }
            Self::Decoder { batch } => {
                let [d, heads, ffn] = DECODER;
                json!({
                    "row": row, "batch": batch, "past": PAST,
                    "d": d, "heads": heads, "ffn": ffn, "eps": DECODER_EPS,
                })
            }
            Self::Image { batch, .. } => json!({ "row": row, "batch": batch }),
        }
    }

    /// Floating-point operations of a matrix product; of other rows nobody asks.
    pub const fn flops(self) -> Option<f64> {
        match self {
            Self::Gemm { m, k, n } => Some((2 * m * k * n) as f64),
            _ => None,
        }
    }

    /// Our side, on `threads` threads.
    ///
    /// # Errors
    /// A bug of the builder or the device.
    pub fn own(self, threads: usize) -> anyhow::Result<Own> {
        match self {
            Self::Gemm { m, k, n } => Ok(product(m, k, n, threads)),
            Self::Lstm { batch, steps } => {
                let program = recurrent("lstm", steps, |b, x| b.lstm("lstm", x, HIDDEN))?;
                Own::recurrent(program, batch, steps, threads)
            }
            Self::Gru { batch, steps } => {
                let program = recurrent("gru", steps, |b, x| {
                    let h = b.vector_state("gru.h", DType::F32, &[HIDDEN], 0.0);
                    b.gru("gru", x, HIDDEN, h)
                })?;
                Own::recurrent(program, batch, steps, threads)
            }
            Self::Encoder { batch, len } => Own::program(encoder(len)?, batch, len, threads, None),
            Self::Decoder { batch } => Own::program(decoder()?, batch, PAST, threads, Some(1)),
            Self::Image { model, batch } => {
                let entry = zoo::find(model).with_context(|| format!("{model} in the zoo"))?;
                let plain = (entry.build)()?;
                let mut own = Own::program(entry.program()?, batch, 0, threads, None)?;
                // The peer folds the batch norms itself.
                own.tensors.retain(|t| t.name.starts_with("input."));
                own.tensors.extend(weights(&plain));
                Ok(own)
            }
        }
    }
}

fn noise(seed: u64, num: usize) -> Vec<f32> {
    WeightSource::Seeded { seed, bound: 1.0 }.to_f32(num)
}

fn product(m: usize, k: usize, n: usize, threads: usize) -> Own {
    let (x, w) = (noise(2, m * k), noise(1, k * n));
    let product = Product::of(Level::detect(), threads, &w, [k, n], x.clone());
    let named = |name: &str, dims: [usize; 2], data| Named {
        name: name.into(),
        dims: dims.into(),
        data,
    };
    Own {
        side: Side::Product { product, m },
        tensors: vec![named("input.x", [m, k], x), named("weight", [k, n], w)],
    }
}

/// Weights in the order of their declaration.
fn weights(program: &Program) -> Vec<Named> {
    let weights = program.weights.iter();
    let named = weights.map(|w| Named {
        name: w.name.clone(),
        dims: w.ty.fixed_dims().to_vec(),
        data: w.source.to_f32(w.ty.row_elems()),
    });
    named.collect()
}

impl Own {
    /// A recurrent layer: one launch of a step, or sequences with all input products ahead, as the
    /// peer has them.
    fn recurrent(
        mut program: Program,
        batch: usize,
        steps: usize,
        threads: usize,
    ) -> anyhow::Result<Self> {
        if steps == 1 {
            return Self::program(program, batch, steps, threads, Some(0));
        }
        let pass = passes::find("project_ahead").context("the pass project_ahead")?;
        passes::apply(pass, &mut program)?;
        Self::program(program, batch, steps, threads, None)
    }

    /// `batch` requests of `len` positions with inputs of their own.
    fn program(
        program: Program,
        batch: usize,
        len: usize,
        threads: usize,
        timed: Option<usize>,
    ) -> anyhow::Result<Self> {
        let mut tensors = weights(&program);
        let mut requests = vec![Vec::new(); batch];
        for (i, input) in program.inputs.iter().enumerate() {
            let mut dims = vec![len.max(1)];
            dims.extend(input.ty.fixed_dims());
            let each: usize = dims.iter().product();
            let data = noise(100 + i as u64, batch * each);
            for (request, data) in requests.iter_mut().zip(data.chunks(each)) {
                request.push(Tensor::from_f32(&dims, data));
            }
            if len == 0 {
                dims.clear();
                dims.extend(input.ty.fixed_dims());
            }
            dims.insert(0, batch);
            let name = format!("input.{}", input.name);
            tensors.push(Named { name, dims, data });
        }
        let batch = Lockstep::new(Arc::new(program), requests, threads)?;
        let side = Side::Program {
            batch: Box::new(batch),
            timed,
        };
        Ok(Self { side, tensors })
    }

    /// Nanoseconds of one call.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn call_ns(&mut self) -> anyhow::Result<f64> {
        match &mut self.side {
            Side::Product { product, m } => Ok(clock::time(|| product.run(*m)).0),
            Side::Program { batch, timed: None } => {
                let (ns, outputs) = clock::time(|| batch.run());
                outputs.map(|_| ns)
            }
            Side::Program {
                batch,
                timed: Some(block),
            } => {
                batch.open()?;
                for before in 0..*block {
                    batch.run_block(before)?;
                }
                // Launches follow each other, as they do under load; the first wakes the threads.
                // A cache grows by a row with each, so the others have no less to do than the peer.
                batch.run_block(*block)?;
                let (ns, done) =
                    clock::time(|| (0..LAUNCHES).try_for_each(|_| batch.run_block(*block)));
                batch.close();
                done.map(|()| ns / LAUNCHES as f64)
            }
        }
    }

    /// The first output of all requests, one after another.
    ///
    /// # Errors
    /// What the device refuses or fails.
    pub fn output(&mut self) -> anyhow::Result<Vec<f32>> {
        match &mut self.side {
            Side::Product { product, m } => {
                product.run(*m);
                Ok(product.result(*m).to_vec())
            }
            Side::Program { batch, .. } => {
                let mut all = Vec::new();
                for outputs in batch.run()? {
                    let first = outputs.into_iter().next().flatten();
                    all.extend(first.context("an output")?.to_f32());
                }
                Ok(all)
            }
        }
    }

    /// The most multiply-adds per second times two, of a matrix product's device; else nothing.
    pub fn peak_flops(&mut self) -> Option<f64> {
        let Side::Product { product, .. } = &mut self.side else {
            return None;
        };
        let (ns, ()) = clock::time(|| product.run_peak());
        Some(product.peak_flops() / ns)
    }
}

/// A layer of one cell over `x`.
fn recurrent(
    name: &str,
    steps: usize,
    cell: impl FnOnce(&mut ProgramBuilder, ValueId) -> ValueId,
) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new(name);
    let x = b.sequence("x", DType::F32, &[HIDDEN], steps);
    let y = b.output_sequence("y", DType::F32, &[HIDDEN]);
    b.begin_block("layer", Repeat::PerInputStep { stride: 1 });
    let row = b.read_input("x", x);
    let h = cell(&mut b, row);
    b.emit("emit", y, h);
    b.finish()
}

/// A post-norm encoder layer.
fn encoder(len: usize) -> Result<Program, Error> {
    let [d, heads, ffn] = ENCODER;
    let mut b = ProgramBuilder::new("encoder");
    let x = b.sequence("x", DType::F32, &[d], len);
    let y = b.output_sequence("y", DType::F32, &[d]);
    b.begin_block("layer", Repeat::Once);
    let x = b.read_input("x", x);
    let h = b.self_attention("attn", x, MultiHead::new(heads), Some(x));
    let x = b.norm("attn_norm", h, ENCODER_EPS);
    let h = b.ffn("ffn", x, ffn, Act::Gelu, Some(x));
    let out = b.norm("ffn_norm", h, ENCODER_EPS);
    b.emit("emit", y, out);
    b.finish()
}

/// A post-norm decoder layer: one block fills cache and encoder's output, the other is a step.
fn decoder() -> Result<Program, Error> {
    let [d, num_heads, ffn] = DECODER;
    let dim = d / num_heads;
    let heads = Heads {
        query: num_heads,
        kv: num_heads,
        dim,
        scale: 1.0 / (dim as f32).sqrt(),
    };
    let mut b = ProgramBuilder::new("decoder");
    let x = b.sequence("x", DType::F32, &[d], PAST);
    let y = b.output("y", DType::F32, &[d]);
    let names = ["cache_k", "cache_v", "cross_k", "cross_v"];
    let inputs = names.map(|name| b.sequence(name, DType::F32, &[d], PAST));
    let cache = b.scope("self", |b| b.memory(d, PAST + 1));
    let cross = b.scope("cross", |b| b.memory(d, PAST));
    let states = [cache.keys, cache.values, cross.keys, cross.values];
    b.begin_block("fill", Repeat::Once);
    for ((name, input), state) in names.iter().zip(inputs).zip(states) {
        let rows = b.read_input(name, input);
        b.seq_write(&format!("{name}.keep"), state, At::All, rows);
    }
    let stride = PAST as u32;
    b.begin_block("step", Repeat::PerInputStep { stride });
    let x = b.read_input("x", x);
    let h = b.scope("self", |b| {
        let [q, k, v] = ["q", "k", "v"].map(|part| b.dense(part, x, d, None));
        b.seq_write("k.append", cache.keys, At::End, k);
        b.seq_write("v.append", cache.values, At::End, v);
        let h = b.state_attention("scores", q, heads, cache.keys, cache.values);
        b.dense_residual("o", h, x)
    });
    let x = b.norm("self_norm", h, DECODER_EPS);
    let h = b.cross_attention("cross", x, num_heads, cross, Some(x));
    let x = b.norm("cross_norm", h, DECODER_EPS);
    let h = b.ffn("ffn", x, ffn, Act::Relu, Some(x));
    let out = b.norm("ffn_norm", h, DECODER_EPS);
    b.emit("emit", y, out);
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_programs_own_side_runs_without_a_peer() {
        for (row, num) in [
            (
                Row::Gemm {
                    m: 2,
                    k: 300,
                    n: 40,
                },
                80,
            ),
            (Row::Lstm { batch: 2, steps: 3 }, 2 * 3 * HIDDEN),
            (Row::Gru { batch: 1, steps: 1 }, HIDDEN),
            (Row::Encoder { batch: 2, len: 3 }, 2 * 3 * ENCODER[0]),
            (Row::Decoder { batch: 2 }, 2 * DECODER[0]),
        ] {
            let mut own = row.own(1).unwrap();
            assert!(own.call_ns().unwrap() > 0.0);
            let output = own.output().unwrap();
            assert_eq!(output.len(), num, "{row:?}");
            assert!(output.iter().all(|y| y.is_finite()) && output.iter().any(|y| *y != 0.0));
            for t in &own.tensors {
                let elems: usize = t.dims.iter().product();
                assert_eq!(t.data.len(), elems, "{row:?}: {}", t.name);
            }
        }
    }

    #[test]
    fn a_request_has_the_same_answer_in_any_batch() {
        let one = Row::Decoder { batch: 1 }.own(1).unwrap().output().unwrap();
        let two = Row::Decoder { batch: 2 }.own(2).unwrap().output().unwrap();
        assert_eq!(one, two[..one.len()]);
    }
}
