//! Layers that declare their own synthetic weights and states.
//!
//! A layer `name` declares weights `name.weight`, `name.bias`, ... in the current scope, all
//! seeded and scaled by their fan-in.

use super::{Fused, ProgramBuilder};
use crate::dtype::DType;
use crate::ids::{StateId, ValueId};
use crate::op::{Act, Window};

/// The two states of an LSTM layer.
#[derive(Clone, Copy, Debug)]
pub struct LstmState {
    /// Hidden state.
    pub h: StateId,
    /// Cell state.
    pub c: StateId,
}

impl ProgramBuilder {
    /// Linear layer with bias: `name.weight [features of x, n]`, `name.bias [n]`.
    pub fn dense(&mut self, name: &str, x: ValueId, n: usize, act: Option<Act>) -> ValueId {
        let bias = self.seeded_within(&format!("{name}.bias"), &[n], 0.02);
        self.dense_with(
            name,
            x,
            n,
            Fused {
                act,
                ..Fused::bias(bias)
            },
        )
    }

    /// Linear layer with bias whose result is added to `residual`.
    pub fn dense_residual(&mut self, name: &str, x: ValueId, residual: ValueId) -> ValueId {
        let n = self.features(residual);
        let bias = self.seeded_within(&format!("{name}.bias"), &[n], 0.02);
        self.dense_with(name, x, n, Fused::bias(bias).residual(residual))
    }

    /// Linear layer `name.weight [features of x, n]` with what `fused` says.
    pub fn dense_with(&mut self, name: &str, x: ValueId, n: usize, fused: Fused) -> ValueId {
        let k = self.features(x);
        let w = self.seeded(&format!("{name}.weight"), &[k, n], k);
        self.linear(name, x, w, fused)
    }

    /// Layer normalisation with `name.gamma`, `name.beta`.
    pub fn norm(&mut self, name: &str, x: ValueId, eps: f32) -> ValueId {
        let d = self.features(x);
        let gamma = self.constant(&format!("{name}.gamma"), &[d], 1.0);
        let beta = self.constant(&format!("{name}.beta"), &[d], 0.0);
        self.layer_norm(name, x, gamma, beta, eps)
    }

    /// Table `name.table [vocab, d]` and its rows by id.
    pub fn embed(&mut self, name: &str, ids: ValueId, vocab: usize, d: usize) -> ValueId {
        let table = self.seeded_within(&format!("{name}.table"), &[vocab, d], 1.0);
        self.embedding(name, ids, table)
    }

    /// Position-wise feed-forward layer `name.up`, `name.down`; the result of `down` is added to
    /// `residual` if there is one.
    pub fn ffn(
        &mut self,
        name: &str,
        x: ValueId,
        hidden: usize,
        act: Act,
        residual: Option<ValueId>,
    ) -> ValueId {
        self.scope(name, |b| {
            let d = b.features(x);
            let up = b.dense("up", x, hidden, Some(act));
            match residual {
                Some(residual) => b.dense_residual("down", up, residual),
                None => b.dense("down", up, d, None),
            }
        })
    }

    /// Convolution `name.weight [m, c / groups, kernel]` without bias, scaled for a ReLU behind it.
    pub fn conv(
        &mut self,
        name: &str,
        x: ValueId,
        m: usize,
        window: Window,
        groups: usize,
        fused: Fused,
    ) -> ValueId {
        let channels = self.ty(x).fixed_dims().first().copied().unwrap_or(1);
        let [kh, kw] = window.kernel;
        let dims = [m, channels / groups.max(1), kh, kw];
        let fan_in = (dims[1] * kh * kw).max(1);
        let bound = (6.0 / fan_in as f32).sqrt();
        let w = self.seeded_within(&format!("{name}.weight"), &dims, bound);
        self.conv2d(name, x, w, window, groups, fused)
    }

    /// Batch normalisation with `name.gamma`, `name.beta`, `name.mean`, `name.var`, initially the
    /// identity.
    pub fn bn(&mut self, name: &str, x: ValueId, eps: f32) -> ValueId {
        let c = self.ty(x).fixed_dims().first().copied().unwrap_or(1);
        let w = [("gamma", 1.0), ("beta", 0.0), ("mean", 0.0), ("var", 1.0)]
            .map(|(part, value)| self.constant(&format!("{name}.{part}"), &[c], value));
        self.batch_norm(name, x, w, eps)
    }

    /// Weights `name.w_ih [k, 4h]`, `name.w_hh [h, 4h]`, `name.bias [4h]` of an LSTM, for use by
    /// one or more cells.
    pub fn lstm_weights(&mut self, name: &str, k: usize, hidden: usize) -> [ValueId; 3] {
        let fan = k + hidden;
        [
            self.seeded(&format!("{name}.w_ih"), &[k, 4 * hidden], fan),
            self.seeded(&format!("{name}.w_hh"), &[hidden, 4 * hidden], fan),
            self.seeded_within(&format!("{name}.bias"), &[4 * hidden], 0.02),
        ]
    }

    /// States `name.h`, `name.c` of an LSTM, zero at the start.
    pub fn lstm_state(&mut self, name: &str, hidden: usize) -> LstmState {
        LstmState {
            h: self.vector_state(&format!("{name}.h"), DType::F32, &[hidden], 0.0),
            c: self.vector_state(&format!("{name}.c"), DType::F32, &[hidden], 0.0),
        }
    }

    /// LSTM layer: its weights, its states and one step. Returns `h`.
    pub fn lstm(&mut self, name: &str, x: ValueId, hidden: usize) -> ValueId {
        let k = self.features(x);
        let w = self.lstm_weights(name, k, hidden);
        let state = self.lstm_state(name, hidden);
        self.lstm_cell(name, x, w, None, state.h, state.c)
    }

    /// GRU layer on state `h`, with `name.w_ih`, `name.w_hh`, `name.b_ih`, `name.b_hh`. Returns
    /// the new state.
    pub fn gru(&mut self, name: &str, x: ValueId, hidden: usize, h: StateId) -> ValueId {
        let k = self.features(x);
        let fan = k + hidden;
        let w = [
            self.seeded(&format!("{name}.w_ih"), &[k, 3 * hidden], fan),
            self.seeded(&format!("{name}.w_hh"), &[hidden, 3 * hidden], fan),
            self.seeded_within(&format!("{name}.b_ih"), &[3 * hidden], 0.02),
            self.seeded_within(&format!("{name}.b_hh"), &[3 * hidden], 0.02),
        ];
        self.gru_cell(name, x, w, h)
    }
}
