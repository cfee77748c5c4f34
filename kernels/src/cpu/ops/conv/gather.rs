//! Windows as rows of a product.

use std::cell::RefCell;
use std::ops::Range;

use super::Geometry;
use crate::cpu::buffers::Aligned;
use crate::cpu::gemm::{A_STRIDE, AView, KC};

/// Longest run that is copied without a call.
const SHORT: usize = 32;

thread_local! {
    /// Gathered windows of this thread.
    static WINDOWS: RefCell<Aligned> = RefCell::default();
}

/// Calls `f` with this thread's memory for windows.
pub fn with_scratch(f: impl FnOnce(&mut Aligned)) {
    WINDOWS.with_borrow_mut(f);
}

/// The windows of output pixels `pixels` (of all samples, one after another) in the channels of a
/// group: a left-hand matrix, blocks of 256 columns one after another.
pub fn gather<'a>(
    g: &Geometry,
    x: &[f32],
    group: usize,
    pixels: Range<usize>,
    scratch: &'a mut Aligned,
) -> AView<'a> {
    let [c, h, w] = g.input;
    let [kh, kw] = g.window.kernel;
    let cg = c / g.groups;
    let num = pixels.len();
    let block_stride = num * A_STRIDE;
    scratch.grow((kh * kw * cg).div_ceil(KC) * block_stride);
    let [_, oh, ow] = g.output;
    let (sample, place) = (pixels.start / (oh * ow), pixels.start % (oh * ow));
    let mut at = [sample, place / ow, place % ow];
    for row in 0..num {
        let [sample, oy, ox] = at;
        let (y_lo, y_hi, y) = g.clip(0, oy);
        let (x_lo, x_hi, left) = g.clip(1, ox);
        at[2] += 1;
        if at[2] == ow {
            at = if oy + 1 < oh {
                [sample, oy + 1, 0]
            } else {
                [sample + 1, 0, 0]
            };
        }
        let mut to = Row {
            data: &mut scratch[row * A_STRIDE..],
            block_stride,
            k: 0,
        };
        to.zeros(y_lo * kw * cg);
        for ky in y_lo..y_hi {
            let at = ((sample * h + y + ky - y_lo) * w + left) * c + group * cg;
            to.zeros(x_lo * cg);
            if g.groups == 1 {
                // The pixels of a kernel row lie side by side.
                to.copy(&x[at..][..(x_hi - x_lo) * c]);
            } else {
                for kx in 0..x_hi - x_lo {
                    to.copy(&x[at + kx * c..][..cg]);
                }
            }
            to.zeros((kw - x_hi) * cg);
        }
        to.zeros((kh - y_hi) * kw * cg);
    }
    AView {
        data: scratch,
        row_stride: A_STRIDE,
        block_stride,
    }
}

/// A row of the left-hand matrix that is written from its start.
struct Row<'a> {
    data: &'a mut [f32],
    block_stride: usize,
    k: usize,
}

impl Row<'_> {
    /// The next elements, at most `len` and no further than their block.
    #[inline(always)]
    fn next(&mut self, len: usize) -> &mut [f32] {
        let (block, at) = (self.k / KC, self.k % KC);
        let len = len.min(KC - at);
        self.k += len;
        &mut self.data[block * self.block_stride + at..][..len]
    }

    #[inline(always)]
    fn copy(&mut self, mut from: &[f32]) {
        while !from.is_empty() {
            let to = self.next(from.len());
            let (now, rest) = from.split_at(to.len());
            copy(to, now);
            from = rest;
        }
    }

    #[inline(always)]
    fn zeros(&mut self, mut num: usize) {
        while num > 0 {
            let to = self.next(num);
            to.fill(0.0);
            num -= to.len();
        }
    }
}

/// Copies a run; short ones without a call.
#[inline(always)]
fn copy(to: &mut [f32], from: &[f32]) {
    if to.len() > SHORT {
        to.copy_from_slice(from);
        return;
    }
    let (to, to_rest) = to.as_chunks_mut::<4>();
    let (from, from_rest) = from.as_chunks::<4>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}
