//! Products and recurrent cells.
//!
//! Source: LSTM as in Hochreiter and Schmidhuber 1997 with forget gates (Gers 2000), gate order
//! i, f, g, o; GRU as in Cho 2014 in the variant with the reset gate behind the recurrent product.

use lazybatch_graph::{Act, StateId};

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::cpu::gemm::{AView, Epilogue, PackedB, gemm};
use crate::cpu::level::simd;
use crate::cpu::math;

/// `out = x w` with an epilogue, continuing from `out` if `resume`.
fn product(
    env: &mut Env<'_>,
    x: &[f32],
    w: &PackedB,
    out: &mut [f32],
    resume: bool,
    epi: &Epilogue<'_>,
) {
    let m = x.len() / w.k;
    let parallel = env.parallel(2 * m * w.k * w.n);
    let a = AView::rows(x, w.k);
    gemm(
        env.pool,
        env.level,
        parallel,
        a,
        m,
        w.view(),
        out,
        w.n,
        resume,
        epi,
    );
}

/// `act(x w + bias) + residual`.
pub fn linear(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    bias: bool,
    act: Option<Act>,
    residual: bool,
) -> Buf {
    let mut out = v.alloc(env, 0);
    let epi = Epilogue {
        bias: bias.then(|| v.arg(2)),
        act,
        residual: residual.then(|| v.arg(2 + usize::from(bias))),
        ..Epilogue::default()
    };
    product(env, v.arg(0), v.right(1), &mut out, false, &epi);
    out
}

simd! {
    /// `gates: [4h]` in order i, f, g, o; updates `c` and writes `h`.
    fn lstm_row(gates: &[f32], c: &mut [f32], h: &mut [f32]) {
        let n = c.len();
        let (i, rest) = gates.split_at(n);
        let (f, rest) = rest.split_at(n);
        let (g, o) = rest.split_at(n);
        let mut at = 0;
        while at < n {
            let len = math::LANES.min(n - at);
            let load = |x: &[f32]| math::load_tail(&x[at..at + len], 0.0);
            let (i, f, g, o) = (load(i), load(f), load(g), load(o));
            let mut cell = load(c);
            let mut hidden = [0.0; math::LANES];
            for j in 0..math::LANES {
                let keep = math::sigmoid(f[j]) * cell[j];
                cell[j] = math::sigmoid(i[j]).mul_add(math::tanh(g[j]), keep);
                hidden[j] = math::sigmoid(o[j]) * math::tanh(cell[j]);
            }
            c[at..at + len].copy_from_slice(&cell[..len]);
            h[at..at + len].copy_from_slice(&hidden[..len]);
            at += len;
        }
    }
}

simd! {
    /// `x: [3h]` and `r: [3h]` in order r, z, n; `h` becomes `h'`.
    fn gru_row(x: &[f32], r: &[f32], h: &mut [f32]) {
        let n = h.len();
        let mut at = 0;
        while at < n {
            let len = math::LANES.min(n - at);
            let load = |s: &[f32], gate: usize| math::load_tail(&s[gate * n + at..][..len], 0.0);
            let (xr, xz, xn) = (load(x, 0), load(x, 1), load(x, 2));
            let (hr, hz, hn) = (load(r, 0), load(r, 1), load(r, 2));
            let mut hidden = math::load_tail(&h[at..at + len], 0.0);
            for j in 0..math::LANES {
                let reset = math::sigmoid(xr[j] + hr[j]);
                let update = math::sigmoid(xz[j] + hz[j]);
                let new = math::tanh(reset.mul_add(hn[j], xn[j]));
                hidden[j] = (1.0 - update).mul_add(new, update * hidden[j]);
            }
            h[at..at + len].copy_from_slice(&hidden[..len]);
            at += len;
        }
    }
}

/// Copies a vector state of all samples into packed rows.
fn gather_state(env: &mut Env<'_>, v: NodeView<'_>, state: StateId, features: usize) -> Buf {
    let mut buf = env.buffers.take(v.frame.samples * features);
    for (mem, start, num) in v.spans(None) {
        let vector = &env.slots.open(mem.slot).vectors[state.index()];
        buf[start * features..][..num * features].copy_from_slice(vector);
    }
    buf
}

/// Writes packed rows to a vector state, but for idle members.
fn scatter_state(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    state: StateId,
    features: usize,
    rows: &[f32],
) {
    for (mem, start, num) in v.spans(None) {
        if !mem.idle {
            let vector = &mut env.slots.open_mut(mem.slot).vectors[state.index()];
            vector.copy_from_slice(&rows[start * features..][..num * features]);
        }
    }
}

/// One LSTM step.
pub fn lstm(env: &mut Env<'_>, v: NodeView<'_>, h: StateId, c: StateId, proj: bool) -> Buf {
    let (w_ih, w_hh) = (v.right(1), v.right(2));
    let (hidden, recurrent, rows) = (w_hh.n / 4, w_hh.k, v.frame.samples);
    let last = gather_state(env, v, h, recurrent);
    let mut cell = gather_state(env, v, c, hidden);
    let mut gates = env.buffers.take(rows * w_hh.n);
    product(env, v.arg(0), w_ih, &mut gates, false, &Epilogue::default());
    let epi = Epilogue {
        bias: Some(v.arg(3)),
        ..Epilogue::default()
    };
    product(env, &last, w_hh, &mut gates, true, &epi);
    let mut out = env.buffers.take(rows * hidden);
    let level = env.level;
    for r in 0..rows {
        let gates = &gates[r * 4 * hidden..][..4 * hidden];
        let c = &mut cell[r * hidden..][..hidden];
        lstm_row(level, gates, c, &mut out[r * hidden..][..hidden]);
    }
    if proj {
        let mut projected = v.alloc(env, 0);
        product(
            env,
            &out,
            v.right(4),
            &mut projected,
            false,
            &Epilogue::default(),
        );
        env.buffers.give(std::mem::replace(&mut out, projected));
    }
    scatter_state(env, v, c, hidden, &cell);
    scatter_state(env, v, h, recurrent, &out);
    [last, cell, gates]
        .into_iter()
        .for_each(|b| env.buffers.give(b));
    out
}

/// One GRU step.
pub fn gru(env: &mut Env<'_>, v: NodeView<'_>, h: StateId) -> Buf {
    let (w_ih, w_hh) = (v.right(1), v.right(2));
    let (hidden, rows) = (w_hh.k, v.frame.samples);
    let mut state = gather_state(env, v, h, hidden);
    let mut x = env.buffers.take(rows * w_ih.n);
    let mut r = env.buffers.take(rows * w_hh.n);
    let bias = |b| Epilogue {
        bias: Some(b),
        ..Epilogue::default()
    };
    product(env, v.arg(0), w_ih, &mut x, false, &bias(v.arg(3)));
    product(env, &state, w_hh, &mut r, false, &bias(v.arg(4)));
    for i in 0..rows {
        let gates = i * 3 * hidden..(i + 1) * 3 * hidden;
        let row = &mut state[i * hidden..][..hidden];
        gru_row(env.level, &x[gates.clone()], &r[gates], row);
    }
    scatter_state(env, v, h, hidden, &state);
    [x, r].into_iter().for_each(|b| env.buffers.give(b));
    state
}
