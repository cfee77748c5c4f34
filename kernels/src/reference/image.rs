//! Convolution and pooling by their definition, NCHW.

use lazybatch_graph::{Pool, Window};

/// Input row or column under output `o` and kernel element `k`; none in the padding.
fn source(window: &Window, axis: usize, o: usize, k: usize, n: usize) -> Option<usize> {
    (o * window.stride[axis] + k)
        .checked_sub(window.pad[axis])
        .filter(|&i| i < n)
}

/// `x: [r, c, h, w]`, `w: [m, c / groups, kh, kw]`.
pub(super) fn conv(
    x: &[f64],
    dims: &[usize],
    w: &[f64],
    w_dims: &[usize],
    window: &Window,
    groups: usize,
    out: &[usize],
) -> Vec<f64> {
    let (c, h, wd) = (dims[0], dims[1], dims[2]);
    let (m, oh, ow) = (out[0], out[1], out[2]);
    let (per, kh, kw) = (w_dims[1], w_dims[2], w_dims[3]);
    let mut y = Vec::new();
    for image in x.chunks_exact(c * h * wd) {
        for o in 0..m {
            let group = o / (m / groups);
            for oy in 0..oh {
                for ox in 0..ow {
                    let mut sum = 0.0;
                    for i in 0..per {
                        for ky in 0..kh {
                            for kx in 0..kw {
                                let at =
                                    (source(window, 0, oy, ky, h), source(window, 1, ox, kx, wd));
                                if let (Some(iy), Some(ix)) = at {
                                    sum += image[((group * per + i) * h + iy) * wd + ix]
                                        * w[((o * per + i) * kh + ky) * kw + kx];
                                }
                            }
                        }
                    }
                    y.push(sum);
                }
            }
        }
    }
    y
}

/// `x: [r, c, h, w]`.
pub(super) fn pool(
    x: &[f64],
    dims: &[usize],
    pool: Pool,
    window: &Window,
    out: &[usize],
) -> Vec<f64> {
    let (h, w) = (dims[1], dims[2]);
    let mut y = Vec::new();
    for plane in x.chunks_exact(h * w) {
        for oy in 0..out[1] {
            for ox in 0..out[2] {
                let mut seen = Vec::new();
                for ky in 0..window.kernel[0] {
                    for kx in 0..window.kernel[1] {
                        let at = (source(window, 0, oy, ky, h), source(window, 1, ox, kx, w));
                        if let (Some(iy), Some(ix)) = at {
                            seen.push(plane[iy * w + ix]);
                        }
                    }
                }
                y.push(match pool {
                    Pool::Max => seen.iter().copied().fold(f64::NEG_INFINITY, |a, b| {
                        if a.is_nan() || a > b { a } else { b }
                    }),
                    Pool::Average => seen.iter().sum::<f64>() / seen.len().max(1) as f64,
                });
            }
        }
    }
    y
}
