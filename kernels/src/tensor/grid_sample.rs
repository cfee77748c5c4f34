//! Images sampled at the points of a grid.

use lazybatch_graph::onnx::Array;

use super::resize::cubic;
use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[op("GridSample", &[16, 20, 22], Types::FLOATS, grid_sample)];

/// What lies beyond the border.
#[derive(Clone, Copy, PartialEq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// One axis of the image.
#[derive(Clone, Copy)]
struct Axis {
    n: usize,
    align: bool,
    padding: Padding,
}

impl Axis {
    /// The position of grid coordinate `g` (-1 to 1), moved inside as the padding says.
    fn position(&self, g: f64) -> f64 {
        let n = self.n as f64;
        if self.align {
            (g + 1.0) / 2.0 * (n - 1.0)
        } else {
            ((g + 1.0) * n - 1.0) / 2.0
        }
    }

    /// The element at `p`; none if there is a zero.
    fn element(&self, p: f64) -> Option<usize> {
        let last = self.n as f64 - 1.0;
        let p = match self.padding {
            Padding::Zeros if (0.0..=last).contains(&p) => p,
            Padding::Zeros => return None,
            Padding::Border => p.clamp(0.0, last),
            Padding::Reflection => self.reflected(p).clamp(0.0, last),
        };
        Some(p as usize)
    }

    fn reflected(&self, p: f64) -> f64 {
        let (lo, hi) = if self.align {
            (0.0, self.n as f64 - 1.0)
        } else {
            (-0.5, self.n as f64 - 0.5)
        };
        let range = hi - lo;
        if range <= 0.0 {
            return 0.0;
        }
        let at = (p - lo).rem_euclid(2.0 * range);
        lo + at.min(2.0 * range - at)
    }

    /// The elements around `g` and their weights.
    fn weights(&self, mode: &str, g: f64) -> Vec<(Option<usize>, f64)> {
        let mut p = self.position(g);
        match self.padding {
            Padding::Border => p = p.clamp(0.0, self.n as f64 - 1.0),
            Padding::Reflection => p = self.reflected(p),
            Padding::Zeros => {}
        }
        let first = p.floor();
        match mode {
            "nearest" => vec![(self.element(p.round_ties_even()), 1.0)],
            "bicubic" | "cubic" => {
                let p = self.position(g);
                let first = p.floor();
                let at = |k: i32| first + f64::from(k);
                (-1..=2)
                    .map(|k| (self.element(at(k)), cubic(p - at(k), -0.75)))
                    .collect()
            }
            _ => vec![
                (self.element(first), 1.0 - (p - first)),
                (self.element(first + 1.0), p - first),
            ],
        }
    }
}

/// Image `[n, c, h, w]`, grid `[n, h', w', 2]` of (x, y) in -1 to 1.
fn grid_sample(call: &Call) -> Outputs {
    let (x, grid) = (call.ranked(0, 4)?, call.ranked(1, 4)?);
    let (n, c, h, w) = (x.dims()[0], x.dims()[1], x.dims()[2], x.dims()[3]);
    if grid.dims()[0] != n || grid.dims()[3] != 2 || h == 0 || w == 0 {
        return Err(call.bad("input 1", format!("a grid of points for {x}"), grid));
    }
    let padding = match call.text("padding_mode", "zeros")? {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => return Err(call.bad("attribute \"padding_mode\"", "a known one", other)),
    };
    let mode = call.text("mode", "bilinear")?;
    if !["bilinear", "linear", "nearest", "bicubic", "cubic"].contains(&mode) {
        return Err(call.bad("attribute \"mode\"", "a known one", mode));
    }
    let align = call.flag("align_corners", false)?;
    let axis = |n| Axis { n, align, padding };
    let (rows, cols) = (axis(h), axis(w));
    let dims = vec![n, c, grid.dims()[1], grid.dims()[2]];
    let points = dims[2] * dims[3];
    let mut y = vec![0.0; call.num(&dims)?];
    let (v, g) = (x.data().to_f64(), grid.data().to_f64());
    for (i, at) in g.chunks_exact(2).enumerate() {
        let (image, point) = (i / points, i % points);
        let (across, down) = (cols.weights(mode, at[0]), rows.weights(mode, at[1]));
        for channel in 0..c {
            let plane = &v[(image * c + channel) * h * w..][..h * w];
            let mut sum = 0.0;
            for (row, a) in &down {
                for (col, b) in &across {
                    if let Some((row, col)) = row.zip(*col) {
                        sum += a * b * plane[row * w + col];
                    }
                }
            }
            y[(image * c + channel) * points + point] = sum;
        }
    }
    Ok(vec![Array::from_f64(x.elem(), dims, y)])
}
