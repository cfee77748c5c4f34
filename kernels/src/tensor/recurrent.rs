//! Recurrent layers: LSTM, GRU and RNN over whole sequences.

use lazybatch_graph::onnx::{Array, Elem, Error};

use super::index::transpose;
use super::unary::softplus;
use super::{Call, OpEntry, Outputs, Types, op};
use crate::reference::math::sigmoid;

const FLOATS: Types = Types::FLOATS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("GRU", &[7, 14, 22], FLOATS, |c| {
        layer(c, 3, &["Sigmoid", "Tanh"], gru_step)
    }),
    op("LSTM", &[7, 14, 22], FLOATS, |c| {
        layer(c, 4, &["Sigmoid", "Tanh", "Tanh"], lstm_step)
    }),
    op("RNN", &[7, 14, 22], FLOATS, |c| {
        layer(c, 1, &["Tanh"], rnn_step)
    }),
];

/// An activation with its parameters.
struct Act<'a> {
    name: &'a str,
    alpha: f64,
    beta: f64,
}

impl<'a> Act<'a> {
    /// The activation `name`; parameters that are not given take the defaults.
    fn new(
        call: &Call,
        name: &'a str,
        alpha: Option<f64>,
        beta: Option<f64>,
    ) -> Result<Self, Error> {
        let (a, b) = match name {
            "Relu" | "Tanh" | "Sigmoid" | "Softsign" | "Softplus" => (0.0, 0.0),
            "Affine" => (1.0, 0.0),
            "LeakyRelu" => (0.01, 0.0),
            "ThresholdedRelu" | "Elu" => (1.0, 0.0),
            "ScaledTanh" => (1.0, 1.0),
            "HardSigmoid" => (0.2, 0.5),
            other => return Err(call.bad("attribute \"activations\"", "a known one", other)),
        };
        Ok(Self {
            name,
            alpha: alpha.unwrap_or(a),
            beta: beta.unwrap_or(b),
        })
    }

    fn apply(&self, x: f64) -> f64 {
        match self.name {
            "Relu" => if_below(x, |_| 0.0),
            "Tanh" => x.tanh(),
            "Sigmoid" => sigmoid(x),
            "Softsign" => x / (1.0 + x.abs()),
            "Softplus" => softplus(x),
            "Affine" => self.alpha * x + self.beta,
            "LeakyRelu" => if_below(x, |x| self.alpha * x),
            "ThresholdedRelu" => {
                if x > self.alpha {
                    x
                } else {
                    0.0
                }
            }
            "Elu" => if_below(x, |x| self.alpha * x.exp_m1()),
            "ScaledTanh" => self.alpha * (self.beta * x).tanh(),
            _ => (self.alpha * x + self.beta).clamp(0.0, 1.0),
        }
    }
}

/// `f(x)` below 0; above it, and of NaN, `x`.
fn if_below(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    if x < 0.0 { f(x) } else { x }
}

/// One direction of a layer; `g` counts gates, `h` is the hidden size, `i` that of the input.
struct Cell<'a> {
    h: usize,
    i: usize,
    /// `[g * h, i]` and `[g * h, h]`.
    w: &'a [f64],
    r: &'a [f64],
    /// `[2 * g * h]`: biases of the input and of the recurrence.
    b: &'a [f64],
    /// `[3 * h]`, LSTM only: peepholes of the gates i, o, f.
    p: &'a [f64],
    acts: &'a [Act<'a>],
    clip: f64,
    /// LSTM: the forget gate is one minus the input gate.
    couple: bool,
    /// GRU: the reset gate comes after the recurrent product.
    reset_after: bool,
}

impl Cell<'_> {
    fn act(&self, k: usize, x: f64) -> f64 {
        self.acts[k].apply(x.clamp(-self.clip, self.clip))
    }

    /// Row `row` of the input product with its bias.
    fn input(&self, row: usize, x: &[f64]) -> f64 {
        self.b[row] + dot(&self.w[row * self.i..(row + 1) * self.i], x)
    }

    /// Row `row` of the recurrent product with its bias.
    fn recurrent(&self, row: usize, h: &[f64]) -> f64 {
        self.b[self.b.len() / 2 + row] + dot(&self.r[row * self.h..(row + 1) * self.h], h)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn rnn_step(cell: &Cell, x: &[f64], state: &mut [f64], _: &mut [f64]) {
    let new: Vec<f64> = (0..cell.h)
        .map(|k| cell.act(0, cell.input(k, x) + cell.recurrent(k, state)))
        .collect();
    state.copy_from_slice(&new);
}

/// Gates in the order z, r, h.
fn gru_step(cell: &Cell, x: &[f64], state: &mut [f64], _: &mut [f64]) {
    let h = cell.h;
    let gate = |k: usize| cell.act(0, cell.input(k, x) + cell.recurrent(k, state));
    let z: Vec<f64> = (0..h).map(gate).collect();
    let r: Vec<f64> = (h..2 * h).map(gate).collect();
    let reset: Vec<f64> = r.iter().zip(&*state).map(|(r, s)| r * s).collect();
    let new: Vec<f64> = (0..h)
        .map(|k| {
            let row = 2 * h + k;
            let past = if cell.reset_after {
                r[k] * cell.recurrent(row, state)
            } else {
                cell.recurrent(row, &reset)
            };
            let candidate = cell.act(1, cell.input(row, x) + past);
            (1.0 - z[k]) * candidate + z[k] * state[k]
        })
        .collect();
    state.copy_from_slice(&new);
}

/// Gates in the order i, o, f, c.
fn lstm_step(cell: &Cell, x: &[f64], state: &mut [f64], memory: &mut [f64]) {
    let h = cell.h;
    let sum = |row: usize| cell.input(row, x) + cell.recurrent(row, state);
    let mut new = vec![0.0; h];
    for k in 0..h {
        let old = memory[k];
        let input = cell.act(0, sum(k) + cell.p[k] * old);
        let forget = if cell.couple {
            1.0 - input
        } else {
            cell.act(0, sum(2 * h + k) + cell.p[2 * h + k] * old)
        };
        memory[k] = forget * old + input * cell.act(1, sum(3 * h + k));
        let output = cell.act(0, sum(h + k) + cell.p[h + k] * memory[k]);
        new[k] = output * cell.acts[2].apply(memory[k]);
    }
    state.copy_from_slice(&new);
}

type Step = fn(&Cell, &[f64], &mut [f64], &mut [f64]);

/// Operand `i` with `dims`, or zeros.
fn or_zeros(call: &Call, i: usize, dims: &[usize]) -> Result<Vec<f64>, Error> {
    match call.opt(i) {
        Some(x) => {
            call.expect_dims(i, x, dims)?;
            Ok(x.data().to_f64())
        }
        None => Ok(vec![0.0; call.num(dims)?]),
    }
}

/// Operand `i` of dimensions `[d, batch, h]`, or `[batch, d, h]` if `swapped`.
fn initial(call: &Call, i: usize, dims: [usize; 3], swapped: bool) -> Result<Vec<f64>, Error> {
    match call.opt(i) {
        Some(x) if swapped => {
            call.expect_dims(i, x, &[dims[1], dims[0], dims[2]])?;
            Ok(transpose(x, &[1, 0, 2]).data().to_f64())
        }
        _ => or_zeros(call, i, &dims),
    }
}

/// Runs a layer of `gates` gates. Operands: x `[steps, batch, i]`, w `[d, gates * h, i]`,
/// r `[d, gates * h, h]`, b, lengths, state, and for LSTM the memory and peepholes.
fn layer(call: &Call, gates: usize, default_acts: &[&'static str], step: Step) -> Outputs {
    let swapped = call.flag("layout", false)?;
    let x = call.ranked(0, 3)?;
    let elem = x.elem();
    let x = if swapped {
        transpose(x, &[1, 0, 2])
    } else {
        x.clone()
    };
    let (steps, batch, i) = (x.dims()[0], x.dims()[1], x.dims()[2]);
    let directions: &[bool] = match call.text("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(call.bad("attribute \"direction\"", "a known one", other)),
    };
    let d = directions.len();
    let r = call.ranked(2, 3)?;
    let h = r.dims()[2];
    let wide = gates.saturating_mul(h);
    let w = call.ranked(1, 3)?;
    call.expect_dims(1, w, &[d, wide, i])?;
    call.expect_dims(2, r, &[d, wide, h])?;
    if call.attr("hidden_size").is_some() && call.size("hidden_size", 0, 0)? != h {
        return Err(call.bad("attribute \"hidden_size\"", h, call.int("hidden_size", 0)?));
    }
    call.work(&[steps.max(1), batch.max(1), d, wide.max(1), i + h + 1])?;
    let (w, r) = (w.data().to_f64(), r.data().to_f64());
    let b = or_zeros(call, 3, &[d, 2 * wide])?;
    let lens = match call.opt(4) {
        Some(x) => {
            call.expect_dims(4, x, &[batch])?;
            call.sizes("input 4", &call.int_vec(4)?)?
        }
        None => vec![steps; batch],
    };
    if lens.iter().any(|&n| n > steps) {
        return Err(call.bad(
            "input 4",
            format!("lengths up to {steps}"),
            format!("{lens:?}"),
        ));
    }
    let mut state = initial(call, 5, [d, batch, h], swapped)?;
    let is_lstm = gates == 4;
    let mut memory = if is_lstm {
        initial(call, 6, [d, batch, h], swapped)?
    } else {
        state.clone()
    };
    let p = if is_lstm {
        or_zeros(call, 7, &[d, 3 * h])?
    } else {
        Vec::new()
    };
    let acts = activations(call, d, default_acts)?;
    let clip = call.float("clip", f64::INFINITY)?;
    if clip.is_nan() || clip < 0.0 {
        return Err(call.bad("attribute \"clip\"", "a number from 0 on", clip));
    }
    let xs = x.data().to_f64();
    let mut y = vec![0.0; call.num(&[steps, d, batch, h])?];
    for (k, &backward) in directions.iter().enumerate() {
        let cell = Cell {
            h,
            i,
            w: &w[k * wide * i..(k + 1) * wide * i],
            r: &r[k * wide * h..(k + 1) * wide * h],
            b: &b[k * 2 * wide..(k + 1) * 2 * wide],
            p: if is_lstm {
                &p[k * 3 * h..(k + 1) * 3 * h]
            } else {
                &[]
            },
            acts: &acts[k * default_acts.len()..(k + 1) * default_acts.len()],
            clip,
            couple: call.flag("input_forget", false)?,
            reset_after: call.flag("linear_before_reset", false)?,
        };
        for n in 0..batch {
            let at = (k * batch + n) * h;
            for t in 0..lens[n] {
                let t = if backward { lens[n] - 1 - t } else { t };
                let x = &xs[(t * batch + n) * i..][..i];
                step(&cell, x, &mut state[at..at + h], &mut memory[at..at + h]);
                y[((t * d + k) * batch + n) * h..][..h].copy_from_slice(&state[at..at + h]);
            }
        }
    }
    Ok(outputs(
        elem,
        [steps, d, batch, h],
        y,
        state,
        memory,
        swapped,
        is_lstm,
    ))
}

/// y, the last state and for LSTM the last memory, in the layout asked for.
fn outputs(
    elem: Elem,
    [steps, d, batch, h]: [usize; 4],
    y: Vec<f64>,
    state: Vec<f64>,
    memory: Vec<f64>,
    swapped: bool,
    is_lstm: bool,
) -> Vec<Array> {
    let mut all = vec![
        Array::from_f64(elem, vec![steps, d, batch, h], y),
        Array::from_f64(elem, vec![d, batch, h], state),
    ];
    if is_lstm {
        all.push(Array::from_f64(elem, vec![d, batch, h], memory));
    }
    if swapped {
        all[0] = transpose(&all[0], &[2, 0, 1, 3]);
        for last in &mut all[1..] {
            *last = transpose(last, &[1, 0, 2]);
        }
    }
    all
}

fn activations<'a>(
    call: &Call<'a>,
    d: usize,
    default: &[&'static str],
) -> Result<Vec<Act<'a>>, Error> {
    let names: Vec<&str> = match call.texts("activations")? {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => default.repeat(d),
    };
    if names.len() != d * default.len() {
        let expected = format!("{} names", d * default.len());
        return Err(call.bad("attribute \"activations\"", expected, format!("{names:?}")));
    }
    let alpha = parameters(call, "activation_alpha", &names, |name| {
        matches!(name, "LeakyRelu" | "ThresholdedRelu" | "Elu") || takes_two(name)
    })?;
    let beta = parameters(call, "activation_beta", &names, takes_two)?;
    let given = names.iter().zip(alpha.into_iter().zip(beta));
    given
        .map(|(name, (alpha, beta))| Act::new(call, name, alpha, beta))
        .collect()
}

/// Whether an activation has both parameters.
fn takes_two(name: &str) -> bool {
    matches!(name, "Affine" | "ScaledTanh" | "HardSigmoid")
}

/// The values of an attribute by activation: one after another they are of those that take one, or else
/// there is one for each activation.
fn parameters(
    call: &Call,
    attr: &str,
    names: &[&str],
    takes: impl Fn(&str) -> bool,
) -> Result<Vec<Option<f64>>, Error> {
    let values = call.floats(attr)?.unwrap_or_default();
    if values.len() == names.len() {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    let next = |name: &&str| takes(name).then(|| values.next()).flatten();
    Ok(names.iter().map(next).collect())
}
