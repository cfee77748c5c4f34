//! Convolution and its transpose, over any number of spatial axes.

use lazybatch_graph::onnx::{Array, Error, NONE};

use super::wide::Num;
use super::window::{Window, explicit_pads, per_axis};
use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Conv", &[1, 11, 22], Types::FLOATS, conv),
    op("ConvTranspose", &[1, 11, 22], Types::FLOATS, conv_transpose),
];

/// A convolution of `x: [n, c, spatial]` with `w: [m, c / group, kernel]`.
pub struct Conv {
    /// `[n, m, spatial]`.
    pub dims: Vec<usize>,
    window: Window,
    group: usize,
    channels: usize,
}

impl Conv {
    /// Its sizes.
    pub fn new(call: &Call, x: &Array, w: &Array) -> Result<Self, Error> {
        let bad = || {
            call.bad(
                "inputs",
                "an image and a kernel for it",
                format!("{x} and {w}"),
            )
        };
        if x.rank() < 3 || w.rank() != x.rank() {
            return Err(bad());
        }
        let group = call.size("group", 1, 1)?;
        let (c, m) = (x.dims()[1], w.dims()[0]);
        if Some(c) != w.dims()[1].checked_mul(group) || m % group != 0 {
            return Err(bad());
        }
        let kernel = w.dims()[2..].to_vec();
        if let Some(stated) = call.ints("kernel_shape")?
            && call.sizes("attribute \"kernel_shape\"", &stated)? != kernel
        {
            let got = format!("{stated:?}");
            return Err(call.bad("attribute \"kernel_shape\"", format!("{kernel:?}"), got));
        }
        let window = Window::new(call, &x.dims()[2..], kernel)?;
        let mut dims = vec![x.dims()[0], m];
        dims.extend(&window.output);
        let num = call.num(&dims)?;
        call.work(&[num, w.dims()[1].max(1), window.num_taps()])?;
        Ok(Self {
            dims,
            window,
            group,
            channels: w.dims()[1],
        })
    }

    /// Computes it.
    pub fn run<T: Num>(&self, call: &Call, x: &[T], w: &[T]) -> Result<Vec<T>, Error> {
        let taps = self.window.taps(call)?;
        let per = self.window.num_taps();
        let plane: usize = self.window.input.iter().product();
        let (n, m) = (self.dims[0], self.dims[1]);
        let mut y = Vec::with_capacity(self.dims.iter().product());
        for (n, m) in (0..n).flat_map(|n| (0..m).map(move |o| (n, o))) {
            let first = m / (self.dims[1] / self.group).max(1) * self.channels;
            for window in taps.chunks(per) {
                let mut acc = T::ZERO;
                for c in 0..self.channels {
                    let from = (n * self.channels * self.group + first + c) * plane;
                    let weights = &w[(m * self.channels + c) * per..][..per];
                    for (&at, &weight) in window.iter().zip(weights) {
                        if at != NONE {
                            acc = acc.add_mul(x[from + at], weight);
                        }
                    }
                }
                y.push(acc);
            }
        }
        Ok(y)
    }

    /// Adds one number per output channel.
    pub fn add_bias<T: Num>(&self, y: &mut [T], bias: &[T], one: T) {
        let plane: usize = self.dims[2..].iter().product();
        for (i, part) in y.chunks_mut(plane.max(1)).enumerate() {
            for v in part {
                *v = v.add_mul(bias[i % self.dims[1]], one);
            }
        }
    }
}

fn conv(call: &Call) -> Outputs {
    let (x, w) = (call.x(0)?, call.x(1)?);
    call.expect_elem(1, w, x.elem())?;
    let conv = Conv::new(call, x, w)?;
    let mut y = conv.run(call, &x.data().to_f64(), &w.data().to_f64())?;
    if let Some(b) = call.opt(2) {
        call.expect_dims(2, b, &conv.dims[1..2])?;
        conv.add_bias(&mut y, &b.data().to_f64(), 1.0);
    }
    Ok(vec![Array::from_f64(x.elem(), conv.dims, y)])
}

/// The window that a transposed convolution undoes: its input is this one's output.
fn undone(call: &Call, spatial: &[usize], kernel: &[usize]) -> Result<Window, Error> {
    let rank = spatial.len();
    let strides = per_axis(call, "strides", rank, 1)?;
    let dilations = per_axis(call, "dilations", rank, 1)?;
    let mut pads = explicit_pads(call, rank)?;
    let extra = match call.ints("output_padding")? {
        Some(v) if v.len() == rank => call.sizes("attribute \"output_padding\"", &v)?,
        Some(v) => {
            let expected = format!("{rank} numbers");
            return Err(call.bad("attribute \"output_padding\"", expected, format!("{v:?}")));
        }
        None => vec![0; rank],
    };
    let auto = call.text("auto_pad", "NOTSET")?;
    let stated = match call.ints("output_shape")? {
        Some(v) if v.len() >= rank => {
            Some(call.sizes("attribute \"output_shape\"", &v[v.len() - rank..])?)
        }
        _ => None,
    };
    let mut output = Vec::with_capacity(rank);
    for i in 0..rank {
        let span = (kernel[i].max(1) - 1) * dilations[i] + 1;
        let full = spatial[i].saturating_sub(1).saturating_mul(strides[i]) + extra[i] + span;
        let same = auto.starts_with("SAME");
        let wanted = match &stated {
            Some(sizes) => Some(sizes[i]),
            None if same => Some(spatial[i].saturating_mul(strides[i])),
            None => None,
        };
        if let Some(size) = wanted {
            let total = full.saturating_sub(size);
            let small = total / 2;
            pads[i] = if auto == "SAME_UPPER" {
                (small, total - small)
            } else {
                (total - small, small)
            };
            output.push(size);
        } else {
            let size = full.checked_sub(pads[i].0 + pads[i].1).ok_or_else(|| {
                call.bad(
                    "attribute \"pads\"",
                    format!("at most {full}"),
                    format!("{pads:?}"),
                )
            })?;
            output.push(size);
        }
    }
    call.num(&output)?;
    Ok(Window {
        input: output,
        kernel: kernel.to_vec(),
        strides,
        dilations,
        pads,
        output: spatial.to_vec(),
    })
}

fn conv_transpose(call: &Call) -> Outputs {
    let (x, w) = (call.x(0)?, call.x(1)?);
    call.expect_elem(1, w, x.elem())?;
    let bad = || {
        call.bad(
            "inputs",
            "an image and a kernel for it",
            format!("{x} and {w}"),
        )
    };
    let group = call.size("group", 1, 1)?;
    if x.rank() < 3 || w.rank() != x.rank() || x.dims()[1] != w.dims()[0] {
        return Err(bad());
    }
    let (n, c, m) = (x.dims()[0], x.dims()[1], w.dims()[1]);
    if c % group != 0 || w.dims()[2..].contains(&0) {
        return Err(bad());
    }
    let window = undone(call, &x.dims()[2..], &w.dims()[2..])?;
    let mut dims = vec![n, m.checked_mul(group).ok_or_else(bad)?];
    dims.extend(&window.input);
    call.work(&[x.len().max(1), m.max(1), window.num_taps()])?;
    let mut y = vec![0.0; call.num(&dims)?];
    let (taps, per) = (window.taps(call)?, window.num_taps());
    let (from, to): (usize, usize) = (
        window.output.iter().product(),
        window.input.iter().product(),
    );
    let (xs, ws) = (x.data().to_f64(), w.data().to_f64());
    for (n, c_in) in (0..n).flat_map(|n| (0..c).map(move |i| (n, i))) {
        let first = c_in / (c / group) * m;
        for o in 0..m {
            let weights = &ws[(c_in * m + o) * per..][..per];
            let out = &mut y[(n * dims[1] + first + o) * to..][..to];
            let values = &xs[(n * c + c_in) * from..][..from];
            for (&value, places) in values.iter().zip(taps.chunks(per)) {
                for (&at, &weight) in places.iter().zip(weights) {
                    if at != NONE {
                        out[at] += value * weight;
                    }
                }
            }
        }
    }
    if let Some(b) = call.opt(2) {
        call.expect_dims(2, b, &dims[1..2])?;
        let bias = b.data().to_f64();
        for (i, part) in y.chunks_mut(to.max(1)).enumerate() {
            for v in part {
                *v += bias[i % dims[1]];
            }
        }
    }
    Ok(vec![Array::from_f64(x.elem(), dims, y)])
}
