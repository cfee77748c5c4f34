//! Resize and Upsample: interpolation along each axis in turn.

use lazybatch_graph::onnx::{Array, Error};

use super::index::around;
use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("Resize", &[10, 11, 13, 18, 19], Types::NUMBERS, resize),
    op("Upsample", &[7, 9], Types::NUMBERS, upsample),
];

/// The nearest position as opset 10 has it: above where an axis becomes shorter, else below.
const BEFORE_11: &str = "before opset 11";

/// How one axis is resampled.
#[derive(Clone, Copy)]
struct Axis {
    n: usize,
    out: usize,
    scale: f64,
    /// Region of interest, as fractions.
    roi: (f64, f64),
}

/// How positions and weights are found.
struct Method<'a> {
    mode: &'a str,
    coordinates: &'a str,
    nearest: &'a str,
    cubic_a: f64,
    exclude_outside: bool,
}

impl Method<'_> {
    /// Where output `i` lies on the input axis. The nearest pixel is that of a position in single
    /// precision, each step of it rounded, as ONNX Runtime computes it.
    fn source(&self, axis: &Axis, i: usize) -> f64 {
        let r = |v: f64| match self.mode {
            "nearest" => f64::from(v as f32),
            _ => v,
        };
        let (n, out, i) = (axis.n as f64, axis.out as f64, i as f64);
        let scale = r(axis.scale);
        match self.coordinates {
            "asymmetric" => r(i / scale),
            "align_corners" if axis.out == 1 => 0.0,
            "align_corners" => r(r(i * (n - 1.0)) / (out - 1.0)),
            "pytorch_half_pixel" if axis.out == 1 => 0.0,
            "tf_half_pixel_for_nn" => r(r(i + 0.5) / scale),
            "half_pixel_symmetric" => {
                let adjustment = r(out / r(scale * n));
                let offset = r(r(n / 2.0) * r(1.0 - adjustment));
                r(r(offset + r(r(i + 0.5) / scale)) - 0.5)
            }
            "tf_crop_and_resize" if axis.out == 1 => {
                let sum = r(r(axis.roi.0) + r(axis.roi.1));
                r(r(0.5 * sum) * (n - 1.0))
            }
            "tf_crop_and_resize" => {
                let (start, end) = (r(axis.roi.0), r(axis.roi.1));
                let inner = r(r(r(i * r(end - start)) * (n - 1.0)) / (out - 1.0));
                r(r(start * (n - 1.0)) + inner)
            }
            _ => r(r(r(i + 0.5) / scale) - 0.5),
        }
    }

    /// Input positions and weights of the value at `at`.
    fn weights(&self, axis: &Axis, at: f64) -> Vec<(usize, f64)> {
        let last = axis.n as i64 - 1;
        let inside = |p: i64| p.clamp(0, last) as usize;
        match self.mode {
            "nearest" => {
                let p = match self.nearest {
                    BEFORE_11 if axis.scale < 1.0 => at.ceil(),
                    BEFORE_11 | "floor" => at.floor(),
                    "ceil" => at.ceil(),
                    "round_prefer_ceil" => (at + 0.5).floor(),
                    _ => (at - 0.5).ceil(),
                };
                vec![(inside(p as i64), 1.0)]
            }
            "cubic" => {
                let first = at.floor();
                let mut all: Vec<(i64, f64)> = (-1..=2)
                    .map(|k| (first as i64 + k, cubic(at - first - k as f64, self.cubic_a)))
                    .collect();
                if self.exclude_outside {
                    all.retain(|(p, _)| (0..=last).contains(p));
                    let sum: f64 = all.iter().map(|(_, w)| w).sum();
                    all.iter_mut().for_each(|(_, w)| *w /= sum);
                }
                all.into_iter().map(|(p, w)| (inside(p), w)).collect()
            }
            _ => {
                let at = at.clamp(0.0, last as f64);
                let first = at.floor();
                let part = at - first;
                let p = first as i64;
                vec![(inside(p), 1.0 - part), (inside(p + 1), part)]
            }
        }
    }
}

/// The cubic convolution kernel with parameter `a` at distance `x`.
pub fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((x - 5.0) * x + 8.0) * a * x - 4.0 * a
    } else {
        0.0
    }
}

/// Sizes of `x` scaled by `scales`. As ONNX infers them: cut from products of single precision, of which
/// 0.7 times 10 is 7.
fn scaled(call: &Call, x: &Array, scales: &[f64]) -> Result<Vec<usize>, Error> {
    let good = scales.iter().all(|s| s.is_finite() && *s > 0.0);
    if scales.len() != x.rank() || !good {
        let expected = format!("{} numbers above 0", x.rank());
        return Err(call.bad("scales", expected, format!("{scales:?}")));
    }
    let sizes = x.dims().iter().zip(scales);
    let scaled = |(&n, &s): (&usize, &f64)| match s {
        1.0 => n,
        s => (n as f32 * s as f32).floor() as usize,
    };
    Ok(sizes.map(scaled).collect())
}

fn upsample(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let scales = match call.opset {
        ..=8 => call.floats("scales")?.unwrap_or_default(),
        _ => call.x(1)?.data().to_f64(),
    };
    let dims = scaled(call, x, &scales)?;
    let method = Method {
        mode: call.text("mode", "nearest")?,
        coordinates: "asymmetric",
        nearest: "floor",
        cubic_a: -0.75,
        exclude_outside: false,
    };
    let axes = (0..x.rank()).map(|i| Axis {
        n: x.dims()[i],
        out: dims[i],
        scale: scales[i],
        roi: (0.0, 1.0),
    });
    run(call, x, &axes.collect::<Vec<_>>(), &method, None)
}

fn resize(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let rank = x.rank();
    if call.flag("antialias", false)? {
        return Err(call.bad("attribute \"antialias\"", "0", 1));
    }
    if call.text("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return Err(call.bad(
            "attribute \"keep_aspect_ratio_policy\"",
            "stretch",
            "another",
        ));
    }
    let axes = match call.ints("axes")? {
        Some(axes) => call.axes_of(&axes, rank)?,
        None => (0..rank).collect(),
    };
    let given = |i: usize| call.opt(i).filter(|x| !x.is_empty());
    // Opset 10 has the scales where later ones have the region of interest.
    let (roi, scales, sizes) = if call.opset < 11 {
        (None, given(1), None)
    } else {
        (given(1), given(2), given(3))
    };
    let mut all: Vec<Axis> = x
        .dims()
        .iter()
        .map(|&n| Axis {
            n,
            out: n,
            scale: 1.0,
            roi: (0.0, 1.0),
        })
        .collect();
    let fits = |what: &str, x: &Array, num: usize| {
        if x.len() == num {
            Ok(x.data().to_f64())
        } else {
            Err(call.bad(what, format!("{num} numbers"), x))
        }
    };
    if let Some(sizes) = sizes {
        fits("sizes", sizes, axes.len())?;
        let sizes = call.sizes("sizes", &call.int_vec(3)?)?;
        for (&axis, &out) in axes.iter().zip(&sizes) {
            all[axis].out = out;
            all[axis].scale = out as f64 / all[axis].n as f64;
        }
    } else if let Some(scales) = scales {
        let mut full = vec![1.0; rank];
        for (&axis, s) in axes.iter().zip(fits("scales", scales, axes.len())?) {
            full[axis] = s;
        }
        for (axis, (out, scale)) in all
            .iter_mut()
            .zip(scaled(call, x, &full)?.into_iter().zip(full))
        {
            axis.out = out;
            axis.scale = scale;
        }
    } else {
        return Err(call.bad("inputs", "scales or sizes", "neither"));
    }
    let coordinates = if call.opset < 11 {
        "asymmetric"
    } else {
        call.text("coordinate_transformation_mode", "half_pixel")?
    };
    let crop = coordinates == "tf_crop_and_resize";
    if crop {
        let Some(roi) = roi else {
            return Err(call.bad("input 1", "a region", "none"));
        };
        let roi = fits("region", roi, 2 * axes.len())?;
        for (k, &axis) in axes.iter().enumerate() {
            all[axis].roi = (roi[k], roi[axes.len() + k]);
        }
    }
    let method = Method {
        mode: call.text("mode", "nearest")?,
        coordinates,
        nearest: if call.opset < 11 {
            BEFORE_11
        } else {
            call.text("nearest_mode", "round_prefer_floor")?
        },
        cubic_a: call.float("cubic_coeff_a", -0.75)?,
        exclude_outside: call.flag("exclude_outside", false)?,
    };
    let outside = call.float("extrapolation_value", 0.0)?;
    run(call, x, &all, &method, crop.then_some(outside))
}

/// Resamples `x`; values whose position lies outside of it become `outside`, if that is given.
fn run(call: &Call, x: &Array, axes: &[Axis], method: &Method, outside: Option<f64>) -> Outputs {
    let dims: Vec<usize> = axes.iter().map(|axis| axis.out).collect();
    call.num(&dims)?;
    if let Some(axis) = axes.iter().position(|axis| axis.n == 0 && axis.out > 0) {
        return Err(call.bad("input 0", format!("elements along axis {axis}"), x));
    }
    let mut v = x.data().to_f64();
    let mut now = x.dims().to_vec();
    for (i, axis) in axes.iter().enumerate() {
        if axis.n == axis.out && axis.scale == 1.0 && outside.is_none() {
            continue;
        }
        let (outer, n, inner) = around(&now, i);
        now[i] = axis.out;
        let mut y = Vec::with_capacity(call.num(&now)?);
        let lines: Vec<_> = (0..axis.out)
            .map(|k| {
                let at = method.source(axis, k);
                let beyond = at < 0.0 || at > n as f64 - 1.0;
                let value = outside.filter(|_| beyond);
                (method.weights(axis, at), value)
            })
            .collect();
        for (o, (weights, value)) in (0..outer).flat_map(|o| lines.iter().map(move |l| (o, l))) {
            y.extend((0..inner).map(|k| {
                match value {
                    Some(value) => *value,
                    None => weights
                        .iter()
                        .map(|(p, w)| v[(o * n + p) * inner + k] * w)
                        .sum(),
                }
            }));
        }
        v = y;
    }
    Ok(vec![Array::from_f64(x.elem(), dims, v)])
}
