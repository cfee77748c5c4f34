//! Convolution on images `[h, w, c]` (see [`crate::cpu::layout`]).
//!
//! Each output pixel is a row of a product: its window, in the order (kernel row, kernel column,
//! channel), times the packed filters. Windows are not gathered: in an image with its padding around
//! it the rows of a window lie side by side, and those of adjacent pixels at one distance. Each task
//! pads the lines that it sees, so that they are in its processor's cache when it reads them. The pixels
//! of all samples are the rows of one product, so a batch shares the filters that are read. Each
//! output element is one chain over (kernel row, kernel column, channel), from zero or from the
//! residual, whatever the batch. Depthwise convolutions run directly.

mod depthwise;
mod filters;
mod finish;
mod pad;

use std::ops::Range;

use lazybatch_graph::{Act, Node, Program, Window};

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView, split_in};
use crate::cpu::gemm::{AView, Axis, Epilogue, MOST_ROWS, NR, PackedB, Start, gemm_range};
use crate::cpu::pool::Shards;

pub use filters::Filters;
use finish::{Finish, Residual};
use pad::{Patch, padded};

pub use pad::temporaries;

/// Fewest panels of output channels of a task.
const MIN_PANELS: usize = 4;

/// Most tasks of one convolution.
const MOST_TASKS: usize = 4096;

/// Sizes of one convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    window: Window,
    /// Channels, height and width of the input.
    input: [usize; 3],
    /// Channels, height and width of the output.
    output: [usize; 3],
    groups: usize,
}

impl Geometry {
    fn of(program: &Program, node: &Node, window: &Window, groups: usize) -> Self {
        let dims = |value| {
            let dims = program.value(value).ty.fixed_dims();
            [dims[0], dims[1], dims[2]]
        };
        Self {
            window: *window,
            input: dims(node.inputs[0]),
            output: dims(node.outputs[0]),
            groups,
        }
    }

    /// Height and width of an image with its padding around it.
    fn padded(&self) -> [usize; 2] {
        let ([top, left, bottom, right], [_, h, w]) = (self.window.pad, self.input);
        [h + top + bottom, w + left + right]
    }

    /// The windows of a group in images `x` that have their padding around them.
    fn windows<'a>(&self, x: &'a [f32], group: usize) -> AView<'a> {
        let Window {
            kernel: [_, kw],
            stride: [down, right],
            ..
        } = self.window;
        let (c, [h, w]) = (self.input[0], self.padded());
        let [_, oh, ow] = self.output;
        let each = c / self.groups;
        // Where the pixels of a kernel row lie side by side with all their channels, they are one run.
        let run = if self.groups == 1 { kw * c } else { each };
        let is_dense = down == 1 && right == 1 && [oh, ow] == [h, w];
        AView {
            data: &x[group * each..],
            rows: if is_dense {
                Axis::even(c)
            } else {
                Axis {
                    inner: ow,
                    middle: oh,
                    strides: [right * c, down * w * c, h * w * c],
                    origin: 0,
                }
            },
            cols: Axis {
                inner: run,
                middle: kw * each / run,
                strides: [1, c, w * c],
                origin: 0,
            },
        }
    }

    /// Positions `lo..hi` of the kernel that lie inside the image for output `at` of an axis, and
    /// where the first of them lies.
    #[inline(always)]
    fn clip(&self, axis: usize, at: usize) -> (usize, usize, usize) {
        let (kernel, pad) = (self.window.kernel[axis], self.window.pad[axis]);
        let start = at * self.window.stride[axis];
        let lo = pad.saturating_sub(start).min(kernel);
        let hi = (self.input[1 + axis] + pad)
            .saturating_sub(start)
            .clamp(lo, kernel);
        (lo, hi, (start + lo).saturating_sub(pad))
    }

    /// Output columns whose windows lie inside the rows of the image.
    fn inside(&self) -> Range<usize> {
        let Window {
            kernel: [_, kernel],
            stride: [_, stride],
            pad: [_, left, ..],
        } = self.window;
        let first = left.div_ceil(stride);
        let end = match (self.input[2] + left).checked_sub(kernel) {
            Some(last) => last / stride + 1,
            None => 0,
        };
        first..end.min(self.output[2])
    }
}

/// Convolution with bias, residual and activation. `reuse` is the memory of a residual that nobody
/// reads later: the result takes its place.
pub fn conv2d(
    env: &mut Env<'_>,
    v: NodeView<'_>,
    window: &Window,
    groups: usize,
    bias: bool,
    residual: bool,
    act: Option<Act>,
    reuse: Option<Buf>,
) -> Buf {
    let in_place = reuse.is_some();
    let mut out = reuse.unwrap_or_else(|| v.alloc(env, 0));
    let g = Geometry::of(&v.model.program, v.node, window, groups);
    let epi = Finish {
        bias: bias.then(|| v.arg(2)),
        residual: match (residual, in_place) {
            (false, _) => Residual::None,
            (true, true) => Residual::InPlace,
            (true, false) => Residual::At(v.arg(2 + usize::from(bias))),
        },
        act,
    };
    match v.filters(1) {
        Filters::Depthwise { taps, .. } => depthwise::run(env, &g, v.arg(0), taps, &mut out, &epi),
        Filters::Products(all) if window.pad == [0; 4] => {
            products(env, &g, &Images::Padded(v.arg(0)), all, &mut out, &epi);
        }
        Filters::Products(all) if Patch::fits(&g) => {
            products(env, &g, &Images::Bare(v.arg(0)), all, &mut out, &epi);
        }
        Filters::Products(all) => {
            let x = padded(env, &g, v.arg(0));
            products(env, &g, &Images::Padded(&x), all, &mut out, &epi);
        }
    }
    out
}

/// What windows are looked at in.
enum Images<'a> {
    /// Images with their padding around them.
    Padded(&'a [f32]),
    /// Images without it: each task pads what it sees of them.
    Bare(&'a [f32]),
}

/// The products of all groups.
fn products(
    env: &mut Env<'_>,
    g: &Geometry,
    images: &Images<'_>,
    filters: &[PackedB],
    out: &mut [f32],
    epi: &Finish<'_>,
) {
    let [m, _, ow] = g.output;
    let mg = m / g.groups;
    let rows = out.len() / m;
    // Whole lines of the output, or else lines in equal parts.
    let rows_each = match MOST_ROWS / ow {
        0 => ow.div_ceil(ow.div_ceil(MOST_ROWS)),
        lines => {
            let chunks = (rows / ow).div_ceil(lines).max(1);
            (rows / ow).div_ceil(chunks) * ow
        }
    };
    let chunks = rows.div_ceil(rows_each.max(1));
    let panels = mg.div_ceil(NR);
    let items = chunks * g.groups;
    let parallel = env.parallel(2 * rows * m * filters[0].k);
    let splits = if parallel {
        splits(items, env.pool.threads(), panels)
    } else {
        1
    };
    let level = env.level;
    let shards = Shards::new(out);
    let task = |task: usize| {
        let (split, item) = (task % splits, task / splits);
        let (chunk, group) = (item / g.groups, item % g.groups);
        let right = Filters::right(&filters[group]);
        let pixels = chunk * rows_each..((chunk + 1) * rows_each).min(rows);
        let cols = panels * split / splits..panels * (split + 1) / splits;
        let first = group * mg;
        let bias = epi.bias.map(|b| &b[first..][..mg]);
        let start = match epi.residual {
            Residual::None => Start::Zero,
            Residual::InPlace => Start::Residual(None, bias),
            Residual::At(residual) => Start::Residual(Some(&residual[first..]), bias),
        };
        let end = Epilogue {
            bias: bias.filter(|_| !epi.has_residual()),
            act: epi.act,
            residual: None,
        };
        let to = shards.offset(first);
        let multiply = |windows: AView<'_>| {
            let pixels = pixels.clone();
            // SAFETY: tasks own disjoint (rows, group, columns) of the output.
            unsafe { gemm_range(level, windows, pixels, right, cols, to, m, start, &end) };
        };
        match *images {
            Images::Padded(x) => multiply(g.windows(x, group)),
            Images::Bare(x) => Patch::of(g, pixels.clone()).windows(g, x, group, multiply),
        }
    };
    split_in(env.pool, parallel, items * splits, MOST_TASKS, |range| {
        range.for_each(&task)
    });
}

/// Into how many parts the output channels of `items` are split, for tasks that keep the threads
/// equally busy.
fn splits(items: usize, threads: usize, panels: usize) -> usize {
    let even = |s: &usize| items * s >= 8 * threads || (items * s).is_multiple_of(threads);
    let most = panels.div_ceil(MIN_PANELS).max(1);
    (1..=most).find(even).unwrap_or(most)
}
