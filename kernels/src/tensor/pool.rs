//! Pooling over spatial axes.

use lazybatch_graph::onnx::{Array, Data, Error, NONE};

use super::binary::max;
use super::index::strides;
use super::window::Window;
use super::{Call, OpEntry, Outputs, Types, op};

const FLOATS: Types = Types::FLOATS;

/// The ops.
pub const OPS: &[OpEntry] = &[
    op("AveragePool", &[7, 10, 11, 19, 22], FLOATS, average),
    op("GlobalAveragePool", &[1, 22], FLOATS, |c| {
        global(c, |v| v.iter().sum::<f64>() / v.len() as f64)
    }),
    op("GlobalLpPool", &[2, 22], FLOATS, global_lp),
    op("GlobalMaxPool", &[1, 22], FLOATS, |c| {
        global(c, |v| v.iter().copied().fold(f64::NEG_INFINITY, max))
    }),
    op("LpPool", &[2, 11, 18, 22], FLOATS, lp),
    op(
        "MaxPool",
        &[1, 8, 10, 11, 12, 22],
        FLOATS.or(Types::BYTES),
        max_pool,
    ),
    op("MaxUnpool", &[9, 11, 22], FLOATS, max_unpool),
];

/// The window over the spatial axes of input 0 and the dimensions of the result.
fn window(call: &Call) -> Result<(Window, Vec<usize>), Error> {
    let x = call.at_least(0, 3)?;
    let spatial = &x.dims()[2..];
    let kernel = call.ints("kernel_shape")?.unwrap_or_default();
    if kernel.len() != spatial.len() {
        let expected = format!("{} numbers", spatial.len());
        return Err(call.bad(
            "attribute \"kernel_shape\"",
            expected,
            format!("{kernel:?}"),
        ));
    }
    let kernel = call.sizes("attribute \"kernel_shape\"", &kernel)?;
    let window = Window::new(call, spatial, kernel)?;
    let mut dims = x.dims()[..2].to_vec();
    dims.extend(&window.output);
    let num = call.num(&dims)?;
    call.work(&[num.max(1), window.num_taps()])?;
    Ok((window, dims))
}

/// Marks a position in the padding that counts as a zero.
const PADDED: usize = NONE - 1;

fn average(call: &Call) -> Outputs {
    let (window, dims) = window(call)?;
    let count_pad = call.flag("count_include_pad", false)?;
    let taps = window.positions(call, |at, w| {
        // A window rounded up may reach beyond the padding; such positions never count.
        let within = at
            .iter()
            .enumerate()
            .all(|(i, &p)| p < (w.input[i] + w.pads[i].1) as i64);
        if count_pad && within { PADDED } else { NONE }
    })?;
    pooled(call, &window, dims, &taps, |values, num_padded| {
        values.iter().sum::<f64>() / (values.len() + num_padded) as f64
    })
}

fn lp(call: &Call) -> Outputs {
    let p = call.size("p", 2, 1)? as f64;
    let (window, dims) = window(call)?;
    let taps = window.taps(call)?;
    pooled(call, &window, dims, &taps, |values, _| norm(values, p))
}

fn norm(values: &[f64], p: f64) -> f64 {
    values
        .iter()
        .map(|v| v.abs().powf(p))
        .sum::<f64>()
        .powf(1.0 / p)
}

/// Applies `f` to the values of each window and the number of its padded positions that count.
fn pooled(
    call: &Call,
    window: &Window,
    dims: Vec<usize>,
    taps: &[usize],
    f: impl Fn(&[f64], usize) -> f64,
) -> Outputs {
    let x = call.x(0)?;
    let v = x.data().to_f64();
    let plane: usize = window.input.iter().product();
    let mut y = Vec::with_capacity(dims.iter().product());
    let mut values = Vec::with_capacity(window.num_taps());
    for image in v.chunks(plane.max(1)) {
        for places in taps.chunks(window.num_taps()) {
            values.clear();
            values.extend(
                places
                    .iter()
                    .filter(|&&at| at < PADDED)
                    .map(|&at| image[at]),
            );
            y.push(f(
                &values,
                places.iter().filter(|&&at| at == PADDED).count(),
            ));
        }
    }
    finish(call, x, dims, y)
}

/// The result, unless an empty image gave none.
fn finish(call: &Call, x: &Array, dims: Vec<usize>, y: Vec<f64>) -> Outputs {
    if y.len() != dims.iter().product::<usize>() {
        return Err(call.bad("input 0", "an image that is not empty", x));
    }
    Ok(vec![Array::from_f64(x.elem(), dims, y)])
}

fn max_pool(call: &Call) -> Outputs {
    let x = call.x(0)?;
    let (window, dims) = window(call)?;
    let taps = window.taps(call)?;
    let by_column = call.flag("storage_order", false)?;
    let plane: usize = window.input.iter().product();
    let own = strides(&window.input);
    // Position of an element when the image is stored with its first axis fastest.
    let column_major = |at: usize| {
        let (mut rest, mut step, mut sum) = (at, 1, 0);
        for (&stride, &n) in own.iter().zip(&window.input) {
            sum += rest / stride * step;
            rest %= stride;
            step *= n;
        }
        sum
    };
    let v = x.data().to_f64();
    let (mut from, mut indices) = (Vec::new(), Vec::new());
    for i in 0..v.len() / plane.max(1) {
        let image = &v[i * plane..(i + 1) * plane];
        for places in taps.chunks(window.num_taps()) {
            let inside = places.iter().copied().filter(|&at| at != NONE);
            // What is no number counts as the largest.
            let best = inside.reduce(|a, b| {
                let (of_a, of_b) = (image[a], image[b]);
                let is_above = of_b > of_a || of_b.is_nan();
                if is_above && !of_a.is_nan() { b } else { a }
            });
            let Some(best) = best else {
                return Err(call.bad("window", "a part of the image", "only padding"));
            };
            from.push(i * plane + best);
            let at = if by_column { column_major(best) } else { best };
            indices.push((i * plane + at) as i64);
        }
    }
    if from.len() != dims.iter().product::<usize>() {
        return Err(call.bad("input 0", "an image that is not empty", x));
    }
    Ok(vec![
        Array::new(dims.clone(), x.data().take(&from)),
        Array::new(dims, Data::I64(indices)),
    ])
}

fn max_unpool(call: &Call) -> Outputs {
    let (x, places) = (call.at_least(0, 3)?, call.x(1)?);
    call.expect_dims(1, places, x.dims())?;
    let spatial = &x.dims()[2..];
    let rank = spatial.len();
    let kernel = super::window::per_axis(call, "kernel_shape", rank, 1)?;
    let strides = super::window::per_axis(call, "strides", rank, 1)?;
    let pads = super::window::explicit_pads(call, rank)?;
    let mut dims = x.dims()[..2].to_vec();
    for i in 0..rank {
        let size = spatial[i].saturating_sub(1).saturating_mul(strides[i]) + kernel[i];
        let size = size.checked_sub(pads[i].0 + pads[i].1).ok_or_else(|| {
            call.bad(
                "attribute \"pads\"",
                format!("at most {size}"),
                format!("{pads:?}"),
            )
        })?;
        dims.push(size);
    }
    let inner = dims.clone();
    if call.opt(2).is_some() {
        dims = call.sizes("output shape", &call.int_vec(2)?)?;
        if dims.len() != inner.len() || dims.iter().zip(&inner).any(|(a, b)| a < b) {
            return Err(call.bad(
                "output shape",
                format!("at least {inner:?}"),
                format!("{dims:?}"),
            ));
        }
    }
    let mut to = vec![NONE; call.num(&dims)?];
    // Indices count in the image that was pooled; a larger one keeps it in its first corner.
    let (own, wide) = (super::index::strides(&inner), super::index::strides(&dims));
    for (i, at) in places.data().to_i128().into_iter().enumerate() {
        let total: usize = inner.iter().product();
        let Some(mut rest) = usize::try_from(at).ok().filter(|&at| at < total) else {
            return Err(call.bad("input 1", format!("indices below {total}"), at));
        };
        let mut place = 0;
        for (&stride, &step) in own.iter().zip(&wide) {
            place += rest / stride * step;
            rest %= stride;
        }
        to[place] = i;
    }
    Ok(vec![Array::new(dims, x.data().take(&to))])
}

fn global(call: &Call, f: impl Fn(&[f64]) -> f64) -> Outputs {
    let x = call.at_least(0, 3)?;
    let plane: usize = x.dims()[2..].iter().product();
    let mut dims = x.dims()[..2].to_vec();
    dims.resize(x.rank(), 1);
    let y = x.data().to_f64().chunks(plane.max(1)).map(f).collect();
    finish(call, x, dims, y)
}

fn global_lp(call: &Call) -> Outputs {
    let p = call.size("p", 2, 1)? as f64;
    global(call, |v| norm(v, p))
}
