//! A transformer encoder layer, and a step of a decoder layer.

use std::sync::Arc;

use lazybatch_graph::{Act, At, DType, Error, Heads, MultiHead, Program, ProgramBuilder, Repeat};
use serde_json::json;

use super::{BATCHES, Own, Row, requests, weights};

/// Features, heads and inner features of an encoder layer: those of BERT-base.
pub const ENCODER: [usize; 3] = [768, 12, 3072];
/// Added to variances in an encoder layer.
const ENCODER_EPS: f32 = 1e-12;
/// Features, heads and inner features of a decoder layer: those of Transformer-base.
pub const DECODER: [usize; 3] = [512, 8, 2048];
/// Added to variances in a decoder layer.
const DECODER_EPS: f32 = 1e-6;
/// Positions in the cache and in the encoder's output of a decoder step.
const PAST: usize = 32;

/// Encoder layers, then decoder layers.
pub fn rows() -> Vec<Row> {
    let lens = [16, 64, 128].into_iter();
    let encoders = lens.flat_map(|len| BATCHES.map(|batch| encoder_row(batch, len)));
    encoders.chain(BATCHES.map(decoder_row)).collect()
}

/// `batch` requests of `len` positions.
pub fn encoder_row(batch: usize, len: usize) -> Row {
    let [d, heads, ffn] = ENCODER;
    let sizes = json!({
        "batch": batch, "len": len, "d": d, "heads": heads, "ffn": ffn, "eps": ENCODER_EPS,
    });
    Row::new("encoder", sizes, move |setup| {
        let program = encoder(len)?;
        let (weights, requests) = (weights(&program), requests(&program, batch, len));
        Own::program(Arc::new(program), requests, weights, setup, None)
    })
}

/// `batch` requests, one step.
pub fn decoder_row(batch: usize) -> Row {
    let [d, heads, ffn] = DECODER;
    let sizes = json!({
        "batch": batch, "past": PAST, "d": d, "heads": heads, "ffn": ffn, "eps": DECODER_EPS,
    });
    Row::new("decoder", sizes, move |setup| {
        let program = decoder()?;
        let (weights, requests) = (weights(&program), requests(&program, batch, PAST));
        Own::program(Arc::new(program), requests, weights, setup, Some(1))
    })
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
