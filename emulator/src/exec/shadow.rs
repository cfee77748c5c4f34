//! Who touched which bytes last, to find races.
//!
//! Memory is looked at by words of four bytes; a page where something smaller was touched, by
//! bytes. A word remembers its last writer and its last two readers that differ, which is enough to
//! see a later writer that nothing orders after them.

/// Words of a page.
const PAGE_WORDS: usize = 256;
/// Bytes of a page.
const PAGE_BYTES: usize = PAGE_WORDS * 4;

/// One access: block, thread, the block's clock, and whether it may race with its like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// An access by `thread` of `block` when the block's clock showed `clock`.
    pub fn new(block: u32, thread: usize, clock: u32, is_strong: bool) -> Self {
        let block = (u64::from(block) + 1) & 0xff_ffff;
        Self(
            block << 40
                | u64::from(clock & 0x0fff_ffff) << 11
                | (thread as u64) << 1
                | u64::from(is_strong),
        )
    }

    fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether both are of the same block.
    pub fn same_block(self, other: Self) -> bool {
        self.0 >> 40 == other.0 >> 40
    }

    /// The block, modulo 2^24.
    pub fn block(self) -> u32 {
        ((self.0 >> 40) as u32).wrapping_sub(1) & 0xff_ffff
    }

    /// The thread in its block.
    pub fn thread(self) -> usize {
        (self.0 >> 1) as usize & 0x3ff
    }

    /// The block's clock.
    pub fn clock(self) -> u32 {
        (self.0 >> 11) as u32 & 0x0fff_ffff
    }

    fn is_strong(self) -> bool {
        self.0 & 1 == 1
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    writer: Mark,
    readers: [Mark; 2],
}

#[derive(Debug, Default)]
struct Page {
    /// The launch that the cells are of.
    launch: u32,
    /// One cell a word, or one a byte.
    cells: Vec<Cell>,
}

/// Marks of a region.
#[derive(Debug, Default)]
pub struct Shadow {
    pages: Vec<Page>,
}

/// An earlier access that conflicts: who, and whether it wrote.
#[derive(Clone, Copy, Debug)]
pub struct Conflict {
    /// The earlier access.
    pub earlier: Mark,
    /// Whether it wrote.
    pub wrote: bool,
}

impl Shadow {
    /// Forgets everything.
    pub fn clear(&mut self) {
        for page in &mut self.pages {
            page.launch = 0;
        }
    }

    /// Records an access to `len` bytes, and answers one that it conflicts with: not both strong,
    /// one of them a write, and not `ordered`.
    pub fn touch(
        &mut self,
        launch: u32,
        offset: usize,
        len: usize,
        is_write: bool,
        mark: Mark,
        ordered: impl Fn(Mark) -> bool,
    ) -> Option<Conflict> {
        let mut found = None;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let page = at / PAGE_BYTES;
            let stop = end.min((page + 1) * PAGE_BYTES);
            if self.pages.len() <= page {
                self.pages.resize_with(page + 1, Page::default);
            }
            let is_small = !at.is_multiple_of(4) || !stop.is_multiple_of(4);
            let page_start = page * PAGE_BYTES;
            let cells =
                self.pages[page].cells(launch, is_small, (at - page_start, stop - page_start));
            for cell in cells {
                found = found.or(cell.touch(is_write, mark, &ordered));
            }
            at = stop;
        }
        found
    }
}

impl Page {
    fn cells(&mut self, launch: u32, is_small: bool, (from, to): (usize, usize)) -> &mut [Cell] {
        if self.launch != launch {
            self.launch = launch;
            self.cells.clear();
            self.cells.resize(
                if is_small { PAGE_BYTES } else { PAGE_WORDS },
                Cell::default(),
            );
        } else if is_small && self.cells.len() == PAGE_WORDS {
            self.cells = self.cells.iter().flat_map(|cell| [*cell; 4]).collect();
        }
        let shift = if self.cells.len() == PAGE_BYTES { 0 } else { 2 };
        &mut self.cells[from >> shift..to >> shift]
    }
}

impl Cell {
    fn touch(
        &mut self,
        is_write: bool,
        mark: Mark,
        ordered: &impl Fn(Mark) -> bool,
    ) -> Option<Conflict> {
        let conflicts = |earlier: Mark| {
            let may_meet = earlier.is_none() || (earlier.is_strong() && mark.is_strong());
            !may_meet && !ordered(earlier)
        };
        let mut found = None;
        if conflicts(self.writer) {
            found = Some(Conflict {
                earlier: self.writer,
                wrote: true,
            });
        }
        if is_write {
            for reader in self.readers {
                if found.is_none() && conflicts(reader) {
                    found = Some(Conflict {
                        earlier: reader,
                        wrote: false,
                    });
                }
            }
            self.writer = mark;
        } else {
            let same = |a: Mark, b: Mark| a.same_block(b) && a.thread() == b.thread();
            if !same(self.readers[0], mark) {
                self.readers[1] = self.readers[0];
            }
            self.readers[0] = mark;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(
        shadow: &mut Shadow,
        offset: usize,
        len: usize,
        is_write: bool,
        thread: usize,
    ) -> bool {
        let mark = Mark::new(0, thread, 5, false);
        shadow
            .touch(1, offset, len, is_write, mark, |m| m.thread() == thread)
            .is_some()
    }

    #[test]
    fn readers_do_not_conflict_but_writers_do() {
        let mut shadow = Shadow::default();
        assert!(!touch(&mut shadow, 8, 4, false, 1));
        assert!(!touch(&mut shadow, 8, 4, false, 2));
        assert!(touch(&mut shadow, 8, 4, true, 2), "1 has read");
        assert!(!touch(&mut shadow, 12, 4, true, 1));
        assert!(touch(&mut shadow, 12, 1, false, 2));
    }

    #[test]
    fn bytes_of_a_word_are_apart() {
        let mut shadow = Shadow::default();
        assert!(!touch(&mut shadow, 1020, 8, true, 1));
        assert!(!touch(&mut shadow, 0, 1, true, 1));
        assert!(!touch(&mut shadow, 1, 1, true, 2));
        assert!(touch(&mut shadow, 0, 2, false, 3));
        assert!(touch(&mut shadow, 1024, 4, false, 3));
    }

    #[test]
    fn a_mark_keeps_what_it_is_of() {
        let mark = Mark::new(70_000, 1023, 12_345, true);
        assert_eq!(
            (mark.block(), mark.thread(), mark.clock()),
            (70_000, 1023, 12_345)
        );
        assert!(mark.is_strong());
    }
}
