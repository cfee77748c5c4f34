//! Aligned memory and the recycling of activation buffers.
//!
//! A [`Buf`] comes from [`Buffers`] and goes back to it; once warm, no node allocates. Sizes are
//! rounded up to powers of two, so that a batch that grows and shrinks finds its buffers again.
//! With poisoning on, every buffer handed out is filled with NaN: a kernel that reads what it did
//! not write shows.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// One cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Zero-initialised elements that start on a cache line.
#[derive(Default)]
pub struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        Self {
            lines: bytemuck::zeroed_vec(len.div_ceil(16)),
            len,
        }
    }

    /// `len` zeros, all of which will be used: on huge pages if the system has some.
    pub fn zeroed_whole(len: usize) -> Self {
        let new = Self::zeroed(len);
        ask_for_huge_pages(&new.lines);
        new
    }

    /// A copy of `data`.
    pub fn from_slice(data: &[f32]) -> Self {
        let mut new = Self::zeroed(data.len());
        new.copy_from_slice(data);
        new
    }

    /// Makes room for `len` elements, keeping what is there.
    pub fn grow(&mut self, len: usize) {
        if len > self.len {
            self.lines.resize(len.div_ceil(16), Line([0.0; 16]));
            self.len = len;
        }
    }
}

/// Asks for huge pages under large memory that was not touched yet: translations of addresses then
/// cost less when weights stream through. A system that has none loses nothing.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_huge_pages(lines: &[Line]) {
    const PAGE: usize = 4096;
    const HUGE_PAGE: usize = 2 << 20;
    const MADV_HUGEPAGE: i32 = 14;
    unsafe extern "C" {
        fn madvise(addr: *mut u8, length: usize, advice: i32) -> i32;
    }
    let bytes = size_of_val(lines);
    if bytes < HUGE_PAGE {
        return;
    }
    let start = lines.as_ptr().cast::<u8>().cast_mut();
    let skip = start.align_offset(PAGE);
    // SAFETY: whole pages inside the allocation; the advice does not change their content.
    unsafe {
        madvise(
            start.wrapping_add(skip),
            (bytes - skip) / PAGE * PAGE,
            MADV_HUGEPAGE,
        )
    };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask_for_huge_pages(_: &[Line]) {}

impl Clone for Aligned {
    fn clone(&self) -> Self {
        let mut new = Self::zeroed_whole(self.lines.len() * 16);
        new.lines.copy_from_slice(&self.lines);
        new.len = self.len;
        new
    }
}

impl Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl fmt::Debug for Aligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aligned({})", self.len)
    }
}

/// An activation's elements. Ids are stored as the bits of i32.
#[derive(Clone, Debug, Default)]
pub struct Buf(Aligned);

impl Deref for Buf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

/// Free buffers by size class.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Vec<Vec<Buf>>,
    poison: bool,
    allocated: usize,
}

impl Buffers {
    /// An empty pool; `poison` fills what it hands out with NaN.
    pub fn new(poison: bool) -> Self {
        Self {
            poison,
            ..Self::default()
        }
    }

    /// A buffer of `len` elements with any content.
    pub fn take(&mut self, len: usize) -> Buf {
        let class = len.max(64).next_power_of_two();
        let idx = class.trailing_zeros() as usize;
        if self.free.len() <= idx {
            self.free.resize_with(idx + 1, Vec::new);
        }
        let mut buf = self.free[idx].pop().unwrap_or_else(|| {
            self.allocated += 1;
            Buf(Aligned::zeroed(class))
        });
        buf.0.len = len;
        if self.poison {
            buf.fill(f32::NAN);
        }
        buf
    }

    /// Takes a buffer back.
    pub fn give(&mut self, mut buf: Buf) {
        let class = buf.0.lines.len() * 16;
        if class == 0 {
            return;
        }
        buf.0.len = class;
        self.free[class.trailing_zeros() as usize].push(buf);
    }

    /// Buffers that were ever allocated: constant once warm.
    pub fn allocated(&self) -> usize {
        self.allocated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_recycled_and_poisoned() {
        let mut buffers = Buffers::new(true);
        let mut a = buffers.take(100);
        assert!(a.len() == 100 && a.iter().all(|v| v.is_nan()));
        assert_eq!(a.as_ptr() as usize % 64, 0);
        a.fill(1.0);
        buffers.give(a);
        let b = buffers.take(128);
        assert!(b.len() == 128 && b.iter().all(|v| v.is_nan()));
        assert_eq!(buffers.allocated(), 1);
    }
}
