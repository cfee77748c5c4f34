//! Multi-head attention layers: within a sequence, on a growing cache, over an encoder's output.
//!
//! Queries, keys and values are three linear nodes: a single wide one would need three slices
//! behind it, which is one node more and three copies.

use super::ProgramBuilder;
use crate::ids::{StateId, ValueId};
use crate::op::{At, Heads, Seen};

/// Keys and values that a request keeps.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Sequence state of keys.
    pub keys: StateId,
    /// Sequence state of values.
    pub values: StateId,
}

/// Shape of a multi-head attention whose heads together are as wide as its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiHead {
    /// Heads; divides the features of the input.
    pub heads: usize,
    /// Which keys a query sees.
    pub seen: Seen,
}

impl MultiHead {
    /// Heads that see all positions.
    pub const fn new(heads: usize) -> Self {
        Self {
            heads,
            seen: Seen::ALL,
        }
    }
}

impl ProgramBuilder {
    fn heads(&mut self, name: &str, d: usize, heads: usize) -> Heads {
        if heads == 0 || !d.is_multiple_of(heads) {
            let what = format!(
                "{}: {heads} heads do not divide {d} features",
                self.path(name)
            );
            self.broken(what);
            return Heads {
                query: 1,
                kv: 1,
                dim: d,
                scale: 1.0,
            };
        }
        let dim = d / heads;
        Heads {
            query: heads,
            kv: heads,
            dim,
            scale: 1.0 / (dim as f32).sqrt(),
        }
    }

    /// Output projection, added to `residual` if there is one.
    fn project(&mut self, x: ValueId, d: usize, residual: Option<ValueId>) -> ValueId {
        match residual {
            Some(residual) => self.dense_residual("o", x, residual),
            None => self.dense("o", x, d, None),
        }
    }

    /// Self-attention within each member, for `Once` blocks: nodes `name.{q,k,v,scores,o}`.
    pub fn self_attention(
        &mut self,
        name: &str,
        x: ValueId,
        shape: MultiHead,
        residual: Option<ValueId>,
    ) -> ValueId {
        let d = self.features(x);
        let heads = self.heads(name, d, shape.heads);
        self.scope(name, |b| {
            let qkv = ["q", "k", "v"].map(|part| b.dense(part, x, d, None));
            let y = b.attention("scores", qkv, heads, shape.seen, None);
            b.project(y, d, residual)
        })
    }

    /// Self-attention on a cache that grows by one row per pass, for loops of at most `max_len`
    /// passes.
    pub fn cached_self_attention(
        &mut self,
        name: &str,
        x: ValueId,
        num_heads: usize,
        max_len: usize,
        residual: Option<ValueId>,
    ) -> ValueId {
        let d = self.features(x);
        let heads = self.heads(name, d, num_heads);
        self.scope(name, |b| {
            let cache = b.memory(d, max_len);
            let [q, k, v] = ["q", "k", "v"].map(|part| b.dense(part, x, d, None));
            b.seq_write("k.append", cache.keys, At::End, k);
            b.seq_write("v.append", cache.values, At::End, v);
            let y = b.state_attention("scores", q, heads, cache.keys, cache.values);
            b.project(y, d, residual)
        })
    }

    /// Projects an encoder's output to the keys and values of a cross-attention, once, in the
    /// `Once` block behind the encoder.
    pub fn cross_memory(&mut self, name: &str, x: ValueId, d: usize, max_len: usize) -> Memory {
        self.scope(name, |b| {
            let memory = b.memory(d, max_len);
            let [k, v] = ["k", "v"].map(|part| b.dense(part, x, d, None));
            b.seq_write("k.keep", memory.keys, At::All, k);
            b.seq_write("v.keep", memory.values, At::All, v);
            memory
        })
    }

    /// Attention of `x` over `memory`: nodes `name.{q,scores,o}`.
    pub fn cross_attention(
        &mut self,
        name: &str,
        x: ValueId,
        num_heads: usize,
        memory: Memory,
        residual: Option<ValueId>,
    ) -> ValueId {
        let d = self.features(x);
        let heads = self.heads(name, d, num_heads);
        self.scope(name, |b| {
            let q = b.dense("q", x, d, None);
            let y = b.state_attention("scores", q, heads, memory.keys, memory.values);
            b.project(y, d, residual)
        })
    }

    /// States `keys`, `values` of `features` each.
    pub fn memory(&mut self, features: usize, max_len: usize) -> Memory {
        Memory {
            keys: self.sequence_state("keys", features, max_len),
            values: self.sequence_state("values", features, max_len),
        }
    }
}
