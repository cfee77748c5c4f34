//! Images with their padding around them: what a task sees of them, or else, where that is much, all of
//! them at once.

use std::cell::RefCell;
use std::ops::Range;

use lazybatch_graph::{Node, Op, Program};

use super::{Filters, Geometry};
use crate::arena::Extent;
use crate::cpu::buffers::{Aligned, Buf};
use crate::cpu::exec::Env;
use crate::cpu::gemm::{AView, Axis, MOST_ROWS};
use crate::cpu::pool::Shards;

/// What a convolution takes while it runs.
pub fn temporaries(program: &Program, node: &Node) -> Extent {
    let Op::Conv2d { window, groups, .. } = &node.op else {
        return Extent::default();
    };
    let g = Geometry::of(program, node, window, *groups);
    let filters = program.value(node.inputs[1]).ty.fixed_dims();
    let is_depthwise = Filters::form(&filters, *groups).is_ok_and(|form| form.is_depthwise());
    if window.pad == [0; 4] || is_depthwise || Patch::fits(&g) {
        return Extent::default();
    }
    let [h, w] = g.padded();
    Extent::piece(&program.value(node.inputs[0]).ty, h * w * g.input[0])
}

/// Most elements of a patch: three quarters of a second-level cache of 1 MiB.
const MOST: usize = 192 << 10;

thread_local! {
    static PATCH: RefCell<Aligned> = RefCell::new(Aligned::zeroed_whole(MOST));
}

/// The part of the padded images, one below the other, that the windows of a task lie in.
pub struct Patch {
    lines: Range<usize>,
    columns: Range<usize>,
}

impl Patch {
    /// Whether those of all tasks of a convolution are small enough for [`Patch::windows`].
    pub fn fits(g: &Geometry) -> bool {
        let ([kh, _], [down, _]) = (g.window.kernel, g.window.stride);
        let ([_, oh, ow], [h, w]) = (g.output, g.padded());
        // Tasks of less than a line may begin in one and end in the next.
        let lines = (MOST_ROWS / ow).max(2);
        // From the last line of an image to the first of the next it is further than to any other.
        let further = h.saturating_sub(oh * down);
        let lines = (lines - 1) * down + (lines - 1).div_ceil(oh) * further + kh;
        lines * w * (g.input[0] / g.groups) <= MOST
    }

    /// That of some pixels of the output of all samples.
    pub fn of(g: &Geometry, pixels: Range<usize>) -> Self {
        let ([kh, kw], [down, right]) = (g.window.kernel, g.window.stride);
        let ([_, oh, ow], [h, w]) = (g.output, g.padded());
        let (first, last) = (pixels.start, pixels.end - 1);
        let line = |pixel: usize| pixel / ow / oh * h + pixel / ow % oh * down;
        let is_one = first / ow == last / ow;
        Self {
            lines: line(first)..line(last) + kh,
            columns: if is_one {
                first % ow * right..last % ow * right + kw
            } else {
                0..w
            },
        }
    }

    /// Calls `then` with the windows of a group of channels in images `x`, of which only those that the
    /// patch is made for are there.
    ///
    /// # Panics
    /// If the patch is too large, see [`Patch::fits`].
    pub fn windows(&self, g: &Geometry, x: &[f32], group: usize, then: impl FnOnce(AView<'_>)) {
        let ([_, kw], [down, right]) = (g.window.kernel, g.window.stride);
        let ([_, oh, ow], [h, _]) = (g.output, g.padded());
        let each = g.input[0] / g.groups;
        let line = self.columns.len() * each;
        PATCH.with_borrow_mut(|patch| {
            let patch = &mut patch[..self.lines.len() * line];
            for (y, to) in self.lines.clone().zip(patch.chunks_exact_mut(line)) {
                self.fill(g, x, (y, group * each), to);
            }
            then(AView {
                data: patch,
                rows: Axis {
                    inner: ow,
                    middle: oh,
                    strides: [right * each, down * line, h * line],
                    origin: self.lines.start * line + self.columns.start * each,
                },
                cols: Axis {
                    inner: kw * each,
                    middle: 1,
                    strides: [1, 0, line],
                    origin: 0,
                },
            });
        });
    }

    /// Fills line `y` with channels from `first` on.
    fn fill(&self, g: &Geometry, x: &[f32], (y, first): (usize, usize), to: &mut [f32]) {
        let ([top, left, ..], [c, h, w]) = (g.window.pad, g.input);
        let (each, lines) = (c / g.groups, g.padded()[0]);
        let (image, y) = (y / lines, y % lines);
        if y < top || y >= top + h {
            to.fill(0.0);
            return;
        }
        let inside = |column: usize| column.clamp(left, left + w) - left;
        let columns = inside(self.columns.start)..inside(self.columns.end);
        let start = (left + columns.start).clamp(self.columns.start, self.columns.end);
        let (before, to) = to.split_at_mut((start - self.columns.start) * each);
        let (to, behind) = to.split_at_mut(columns.len() * each);
        before.fill(0.0);
        behind.fill(0.0);
        let from = &x[(image * h + y - top) * w * c..][..w * c];
        if each == c {
            to.copy_from_slice(&from[columns.start * c..columns.end * c]);
            return;
        }
        let pixels = from[columns.start * c..columns.end * c].chunks_exact(c);
        for (from, to) in pixels.zip(to.chunks_exact_mut(each)) {
            to.copy_from_slice(&from[first..first + each]);
        }
    }
}

/// `x` with zeros around each image.
pub fn padded(env: &mut Env<'_>, g: &Geometry, x: &[f32]) -> Buf {
    let ([c, h, w], [top, left, ..], [lines, width]) = (g.input, g.window.pad, g.padded());
    let line = width * c;
    let rows = x.len() / (h * w * c) * lines;
    let mut out = env.temporary(rows * line);
    let shards = Shards::new(&mut out);
    env.split(rows, rows * line, |range| {
        for row in range {
            let (image, y) = (row / lines, row % lines);
            // SAFETY: each row is one item.
            let to = unsafe { shards.slice(row * line, line) };
            if y < top || y >= top + h {
                to.fill(0.0);
                continue;
            }
            let (before, to) = to.split_at_mut(left * c);
            let (inside, behind) = to.split_at_mut(w * c);
            before.fill(0.0);
            inside.copy_from_slice(&x[(image * h + y - top) * w * c..][..w * c]);
            behind.fill(0.0);
        }
    });
    out
}
