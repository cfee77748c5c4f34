//! Products and recurrent cells.
//!
//! Source: LSTM as in Hochreiter and Schmidhuber 1997 with forget gates (Gers 2000), gate order
//! i, f, g, o; GRU as in Cho 2014 in the variant with the reset gate behind the recurrent product.

use std::ops::Range;

use lazybatch_graph::{Act, Node, Op, Program, StateId};
use smallvec::SmallVec;

use crate::arena::{Extent, LINE};
use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::cpu::gemm::{AView, Epilogue, PackedB, Right, WeightType, gemm, gemm_packed};
use crate::cpu::level::simd;
use crate::cpu::math;
use crate::cpu::pool::Shards;

/// Elements of a row's gates that a thread computes at once.
const PART: usize = 256;

/// Floating-point operations per element behind an LSTM's products, roughly.
const LSTM_COST: usize = 120;

/// The same for a GRU.
const GRU_COST: usize = 80;

/// `out = x w` with an epilogue. With `resume` the chains continue from `out`, or, where the ends of
/// chains are scaled, `out` is added behind the bias.
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
    if resume && w.weights().is_scaled() {
        let mut before = env.temporary(out.len());
        before.copy_from_slice(out);
        let epi = Epilogue {
            residual: Some(&before),
            ..*epi
        };
        gemm_packed(env.pool, env.level, parallel, x, w, out, false, &epi);
        return;
    }
    gemm_packed(env.pool, env.level, parallel, x, w, out, resume, epi);
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
    };
    product(env, v.arg(0), v.right(1), &mut out, false, &epi);
    out
}

/// Whole lanes of `x`.
#[inline(always)]
fn lanes(x: &[f32]) -> &[math::Lanes] {
    x.as_chunks().0
}

/// What [`lanes`] leaves, filled with zeros.
#[inline(always)]
fn tail(x: &[f32]) -> math::Lanes {
    math::load_tail(x.as_chunks::<{ math::LANES }>().1, 0.0)
}

/// Lanes of gates i, f, g, o; updates those of c and gives those of h. Sigmoids and tanh are
/// quotients: one that multiplies another is divided by together with it.
#[inline(always)]
fn lstm_lanes(gates: [&math::Lanes; 4], c: &mut math::Lanes) -> math::Lanes {
    let [i, f, g, o] = gates;
    let mut h = [0.0; math::LANES];
    for j in 0..math::LANES {
        let keep = c[j] / math::logistic_divisor(f[j]);
        let (p, q) = math::tanh_parts(g[j]);
        c[j] = p / (math::logistic_divisor(i[j]) * q) + keep;
        let (p, q) = math::tanh_parts(c[j]);
        h[j] = p / (math::logistic_divisor(o[j]) * q);
    }
    h
}

simd! {
    /// Elements of gates i, f, g, o; updates `c` and writes `h`.
    fn lstm_gates(gates: [&[f32]; 4], c: &mut [f32], h: &mut [f32]) {
        let [i, f, g, o] = gates;
        let (cells, cell_tail) = c.as_chunks_mut();
        let (hiddens, hidden_tail) = h.as_chunks_mut();
        let whole = lanes(i).iter().zip(lanes(f)).zip(lanes(g)).zip(lanes(o));
        for (((((i, f), g), o), c), h) in whole.zip(cells).zip(hiddens) {
            let mut cell = *c;
            *h = lstm_lanes([i, f, g, o], &mut cell);
            *c = cell;
        }
        if !cell_tail.is_empty() {
            let mut cell = math::load_tail(cell_tail, 0.0);
            let hidden = lstm_lanes([&tail(i), &tail(f), &tail(g), &tail(o)], &mut cell);
            cell_tail.copy_from_slice(&cell[..cell_tail.len()]);
            hidden_tail.copy_from_slice(&hidden[..hidden_tail.len()]);
        }
    }
}

/// Lanes of gates r, z, n from input (`x`) and state (`s`), and of `h`; gives those of `h'`.
#[inline(always)]
fn gru_lanes(x: [&math::Lanes; 3], s: [&math::Lanes; 3], h: &math::Lanes) -> math::Lanes {
    let mut next = [0.0; math::LANES];
    for j in 0..math::LANES {
        let reset = s[2][j] / math::logistic_divisor(x[0][j] + s[0][j]);
        let update = math::sigmoid(x[1][j] + s[1][j]);
        let new = math::tanh(reset + x[2][j]);
        next[j] = (1.0 - update).mul_add(new, update * h[j]);
    }
    next
}

simd! {
    /// Elements of gates r, z, n from input (`x`) and state (`s`); `h` becomes `h'`.
    fn gru_gates(x: [&[f32]; 3], s: [&[f32]; 3], h: &mut [f32]) {
        let ([xr, xz, xn], [sr, sz, sn]) = (x, s);
        let (hiddens, hidden_tail) = h.as_chunks_mut();
        let from_x = lanes(xr).iter().zip(lanes(xz)).zip(lanes(xn));
        let from_s = lanes(sr).iter().zip(lanes(sz)).zip(lanes(sn));
        for ((((xr, xz), xn), ((sr, sz), sn)), h) in from_x.zip(from_s).zip(hiddens) {
            *h = gru_lanes([xr, xz, xn], [sr, sz, sn], h);
        }
        if !hidden_tail.is_empty() {
            let (xr, xz, xn) = (tail(xr), tail(xz), tail(xn));
            let (sr, sz, sn) = (tail(sr), tail(sz), tail(sn));
            let hidden = math::load_tail(hidden_tail, 0.0);
            let hidden = gru_lanes([&xr, &xz, &xn], [&sr, &sz, &sn], &hidden);
            hidden_tail.copy_from_slice(&hidden[..hidden_tail.len()]);
        }
    }
}

/// Runs `f(row, columns)` on parts of `rows` rows of `hidden` elements; `cost` is the operations
/// per element.
fn per_part(
    env: &mut Env<'_>,
    rows: usize,
    hidden: usize,
    cost: usize,
    f: impl Fn(usize, Range<usize>) + Sync,
) {
    let parts = hidden.div_ceil(PART);
    env.split(rows * parts, rows * hidden * cost, |range| {
        for item in range {
            let first = item % parts * PART;
            f(item / parts, first..(first + PART).min(hidden));
        }
    });
}

/// Gate `gate` of row `row` at `cols`, from rows of `gates` times `hidden` elements.
fn gate_at<'a>(
    all: &'a [f32],
    (row, gates, gate): (usize, usize, usize),
    hidden: usize,
    cols: &Range<usize>,
) -> &'a [f32] {
    &all[(row * gates + gate) * hidden..][cols.clone()]
}

/// Copies a vector state of all samples into packed rows.
fn gather_state(env: &Env<'_>, v: NodeView<'_>, state: StateId, features: usize, rows: &mut [f32]) {
    for (mem, start, num) in v.spans(None) {
        let vector = &env.slots.open(mem.slot).vectors[state.index()];
        rows[start * features..][..num * features].copy_from_slice(vector);
    }
}

/// Rows of `x` with those of a vector state behind them.
fn gather_behind(
    env: &Env<'_>,
    v: NodeView<'_>,
    x: &[f32],
    state: StateId,
    [from, own]: [usize; 2],
    rows: &mut [f32],
) {
    let mut rows = rows.chunks_exact_mut(from + own).zip(x.chunks_exact(from));
    for (mem, _, _) in v.spans(None) {
        let vector = &env.slots.open(mem.slot).vectors[state.index()];
        for (h, (row, x)) in vector.chunks_exact(own).zip(&mut rows) {
            row[..from].copy_from_slice(x);
            row[from..].copy_from_slice(h);
        }
    }
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

/// What [`lstm`] and [`gru`] take while they run.
pub fn cell_temporaries(program: &Program, node: &Node, weights: WeightType) -> Extent {
    let columns = |operand: usize| program.value(node.inputs[operand]).ty.fixed_dims();
    let pieces: SmallVec<[usize; 5]> = match node.op {
        Op::LstmCell { proj, ahead, .. } => {
            let w_hh = columns(1 + usize::from(!ahead));
            let (recurrent, gates, hidden) = (w_hh[0], w_hh[1], w_hh[1] / 4);
            let recurrent = recurrent + if ahead { 0 } else { columns(1)[0] };
            let before = weights.is_scaled().then_some(gates);
            let whole = proj.then_some(hidden);
            let pieces = [recurrent, hidden, gates];
            pieces.into_iter().chain(before).chain(whole).collect()
        }
        Op::GruCell { ahead, .. } => {
            let gates = columns(1 + usize::from(!ahead))[1];
            let own = (!ahead).then_some(gates);
            [gates].into_iter().chain(own).collect()
        }
        _ => SmallVec::new(),
    };
    Extent {
        per_row: 0,
        per_sample: pieces.iter().sum(),
        fixed: LINE * pieces.len(),
    }
}

/// One LSTM step; `ahead` if the product with `w_ih` is the operand.
pub fn lstm(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    h: StateId,
    c: StateId,
    proj: bool,
    ahead: bool,
) -> Buf {
    // Operands behind `w_ih`, or where that would be.
    let next = 1 + usize::from(!ahead);
    let w_hh = v.right(next);
    let (hidden, recurrent, rows) = (w_hh.n / 4, w_hh.k, v.frame.samples);
    let mut cell = env.temporary(rows * hidden);
    gather_state(env, v, c, hidden, &mut cell);
    let mut gates = env.temporary(rows * w_hh.n);
    let epi = Epilogue {
        bias: Some(v.arg(next + 1)),
        ..Epilogue::default()
    };
    let w_ih = (!ahead).then(|| v.right(1));
    let stacked = w_ih.and_then(|w_ih| Right::stacked(w_ih, w_hh));
    if let Some(both) = stacked {
        // The same chains in one product: they begin with those of the input.
        let widths = [both.k - recurrent, recurrent];
        let mut left = env.temporary(rows * both.k);
        gather_behind(env, v, v.arg(0), h, widths, &mut left);
        let parallel = env.parallel(2 * rows * both.k * both.n);
        let (a, to) = (AView::rows(&left, both.k), &mut gates[..]);
        gemm(
            env.pool, env.level, parallel, a, rows, both, to, both.n, false, &epi,
        );
    } else {
        let mut last = env.temporary(rows * recurrent);
        gather_state(env, v, h, recurrent, &mut last);
        match w_ih {
            None => gates.copy_from_slice(v.arg(0)),
            Some(w) => product(env, v.arg(0), w, &mut gates, false, &Epilogue::default()),
        }
        product(env, &last, w_hh, &mut gates, true, &epi);
    }
    let mut out = if proj {
        env.temporary(rows * hidden)
    } else {
        v.alloc(env, 0)
    };
    let level = env.level;
    let (cells, outs) = (Shards::new(&mut cell), Shards::new(&mut out));
    per_part(env, rows, hidden, LSTM_COST, |row, cols| {
        let gate = |gate| gate_at(&gates, (row, 4, gate), hidden, &cols);
        let (at, num) = (row * hidden + cols.start, cols.len());
        // SAFETY: parts are disjoint.
        let (c, h) = unsafe { (cells.slice(at, num), outs.slice(at, num)) };
        lstm_gates(level, [gate(0), gate(1), gate(2), gate(3)], c, h);
    });
    if proj {
        let mut projected = v.alloc(env, 0);
        product(
            env,
            &out,
            v.right(next + 2),
            &mut projected,
            false,
            &Epilogue::default(),
        );
        out = projected;
    }
    scatter_state(env, v, c, hidden, &cell);
    scatter_state(env, v, h, recurrent, &out);
    out
}

/// One GRU step; `ahead` if the product with `w_ih`, bias added, is the operand.
pub fn gru(env: &mut Env<'_>, v: NodeView<'_>, h: StateId, ahead: bool) -> Buf {
    let [w_hh, b_hh] = if ahead { [1, 2] } else { [2, 4] };
    let w_hh = v.right(w_hh);
    let (hidden, rows) = (w_hh.k, v.frame.samples);
    let mut state = v.alloc(env, 0);
    gather_state(env, v, h, hidden, &mut state);
    let mut r = env.temporary(rows * w_hh.n);
    let bias = |b| Epilogue {
        bias: Some(b),
        ..Epilogue::default()
    };
    let own = (!ahead).then(|| {
        let mut x = env.temporary(rows * w_hh.n);
        product(env, v.arg(0), v.right(1), &mut x, false, &bias(v.arg(3)));
        x
    });
    let x = own.as_deref().unwrap_or(v.arg(0));
    product(env, &state, w_hh, &mut r, false, &bias(v.arg(b_hh)));
    let (level, states) = (env.level, Shards::new(&mut state));
    per_part(env, rows, hidden, GRU_COST, |row, cols| {
        let gate = |all, gate| gate_at(all, (row, 3, gate), hidden, &cols);
        let gates = |all| [gate(all, 0), gate(all, 1), gate(all, 2)];
        // SAFETY: parts are disjoint.
        let h = unsafe { states.slice(row * hidden + cols.start, cols.len()) };
        gru_gates(level, gates(x), gates(&r[..]), h);
    });
    scatter_state(env, v, h, hidden, &state);
    state
}
