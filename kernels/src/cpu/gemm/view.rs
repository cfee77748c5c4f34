//! Left sides as they lie in memory.

use super::tile::KC;

/// Where the rows or the columns of a matrix lie: `inner` of them `strides[0]` apart, `middle` such
/// runs `strides[1]` apart, and what follows `strides[2]` further. The first `origin` elements of all
/// that are left out.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Elements of a run.
    pub inner: usize,
    /// Runs of a band.
    pub middle: usize,
    /// Distances of elements, runs and bands.
    pub strides: [usize; 3],
    /// Elements that are left out in front of all.
    pub origin: usize,
}

impl Axis {
    /// All at one distance.
    pub const fn even(stride: usize) -> Self {
        Self {
            inner: usize::MAX,
            middle: 1,
            strides: [stride, 0, 0],
            origin: 0,
        }
    }

    /// Where the `i`-th lies, which was not left out.
    #[inline(always)]
    pub fn at(&self, i: usize) -> usize {
        if self.inner == usize::MAX {
            return i * self.strides[0];
        }
        let (run, place) = (i / self.inner, i % self.inner);
        place * self.strides[0]
            + run % self.middle * self.strides[1]
            + run / self.middle * self.strides[2]
            - self.origin
    }
}

/// A left-hand matrix. The windows of a convolution are one, whose rows share elements.
#[derive(Clone, Copy, Debug)]
pub struct AView<'a> {
    /// Elements.
    pub data: &'a [f32],
    /// Where its rows begin.
    pub rows: Axis,
    /// Where the columns of a row lie; the elements of a run side by side.
    pub cols: Axis,
}

impl<'a> AView<'a> {
    /// A row-major matrix with rows `row_stride` apart.
    pub fn rows(data: &'a [f32], row_stride: usize) -> Self {
        Self {
            data,
            rows: Axis::even(row_stride),
            cols: Axis::even(1),
        }
    }

    /// Columns `k0..k0 + k` as runs: where each begins behind the start of a row, and its length.
    pub fn runs(&self, k0: usize, k: usize) -> impl Iterator<Item = (usize, usize)> {
        let (cols, end) = (self.cols, k0 + k);
        let mut at = k0;
        std::iter::from_fn(move || {
            let len = (end - at).min(cols.inner - at % cols.inner);
            let start = cols.at(at);
            at += len;
            (len > 0).then_some((start, len))
        })
    }
}

/// Steps of a tile's chains whose left elements lie side by side, and whose right ones are in one
/// block.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Where its left elements begin, behind the start of a row.
    pub a: usize,
    /// Its number of steps.
    pub k: usize,
    /// Its right elements are in what stands above the others.
    pub is_above: bool,
    /// Its block, of [`KC`] steps but for the last.
    pub block: usize,
    /// Its first step in that block.
    pub first: usize,
}

/// Splits `runs`, one after another, at the ends of blocks; the first `above` steps have blocks of
/// their own.
pub fn segments(runs: impl Iterator<Item = (usize, usize)>, above: usize, to: &mut Vec<Segment>) {
    to.clear();
    let mut at = 0;
    for (mut a, mut len) in runs {
        while len > 0 {
            let is_above = at < above;
            let (place, end) = match is_above {
                true => (at, above),
                false => (at - above, usize::MAX),
            };
            let (block, first) = (place / KC, place % KC);
            let k = len.min(KC - first).min(end - place);
            to.push(Segment {
                a,
                k,
                is_above,
                block,
                first,
            });
            (a, at, len) = (a + k, at + k, len - k);
        }
    }
}
