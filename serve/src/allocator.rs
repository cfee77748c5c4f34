//! mimalloc for programs that serve, on the short way.
//!
//! The crate `mimalloc` asks for every block with its alignment, which is three times as long a way as
//! the one without: a small call to the front end asks for half a hundred. Blocks of mimalloc are aligned
//! to 16 bytes if they have as many, as `malloc` of C promises, so that few have to say more.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys as mi;

/// To be declared as the global allocator of a program.
pub struct Allocator;

/// What blocks that are as large are aligned to (`MI_MAX_ALIGN_SIZE`).
const ALIGNED: usize = 16;

/// Whether any block of that layout's size is aligned as it says.
fn is_aligned_anyhow(layout: Layout) -> bool {
    layout.align() <= ALIGNED && layout.align() <= layout.size()
}

#[allow(unsafe_code, reason = "an allocator is declared so")]
// SAFETY: blocks are mimalloc's, of the size that is asked for, and aligned as it is: by its promise, or
// because it is told. It does not unwind.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and power of two will do.
        let block = unsafe {
            match is_aligned_anyhow(layout) {
                true => mi::mi_malloc(layout.size()),
                false => mi::mi_malloc_aligned(layout.size(), layout.align()),
            }
        };
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe {
            match is_aligned_anyhow(layout) {
                true => mi::mi_zalloc(layout.size()),
                false => mi::mi_zalloc_aligned(layout.size(), layout.align()),
            }
        };
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the block is one of those above, by the contract.
        unsafe { mi::mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_aligned = layout.align() <= ALIGNED && layout.align() <= size;
        // SAFETY: as above.
        let block = unsafe {
            match is_aligned {
                true => mi::mi_realloc(block.cast(), size),
                false => mi::mi_realloc_aligned(block.cast(), size, layout.align()),
            }
        };
        block.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "an allocator is called so")]
    fn blocks_are_aligned_and_keep_what_is_in_them() {
        for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
            for size in [
                1_usize, 2, 3, 7, 8, 9, 15, 16, 17, 24, 48, 100, 1000, 1025, 70_000,
            ] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: of a size above 0; each block is given back once, as it was asked for last.
                unsafe {
                    let zeroed = Allocator.alloc_zeroed(layout);
                    let block = Allocator.alloc(layout);
                    for block in [zeroed, block] {
                        assert!(!block.is_null() && block.addr().is_multiple_of(align));
                    }
                    let bytes = std::slice::from_raw_parts(zeroed, size);
                    assert!(bytes.iter().all(|b| *b == 0));
                    std::slice::from_raw_parts_mut(block, size).fill(7);
                    let more = Allocator.realloc(block, layout, size + 33);
                    assert!(more.addr().is_multiple_of(align), "{size}, {align}");
                    let bytes = std::slice::from_raw_parts(more, size);
                    assert!(bytes.iter().all(|b| *b == 7));
                    let grown = Layout::from_size_align(size + 33, align).unwrap();
                    Allocator.dealloc(more, grown);
                    Allocator.dealloc(zeroed, layout);
                }
            }
        }
    }
}
