//! Aligned memory, and who hands it out.
//!
//! [`Arenas`] keeps the memory of frames from launch to launch, [`Scratch`] is what nodes work in,
//! [`Buffers`] recycles the vector states of requests. A [`Buf`] is memory of its own or a part of an
//! arena or of the scratch memory. With poisoning on, everything handed out is filled with NaN: a
//! kernel that reads what it did not write shows.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::arena::LINE;
use crate::frames::FrameMemory;

/// Bytes of the smallest pages of systems.
const PAGE: usize = 4096;

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
            lines: bytemuck::zeroed_vec(len.div_ceil(LINE)),
            len,
        }
    }

    /// `len` zeros, all of which will be used: on huge pages if the system has some.
    pub fn zeroed_whole(len: usize) -> Self {
        let new = Self::zeroed(len);
        ask_for_huge_pages(&new.lines);
        new
    }

    /// As [`Aligned::zeroed`].
    ///
    /// # Errors
    /// No memory for them.
    pub fn try_zeroed(len: usize) -> Result<Self, String> {
        let lines = bytemuck::try_zeroed_vec(len.div_ceil(LINE));
        let lines = lines.map_err(|()| format!("no memory for {len} elements"))?;
        Ok(Self { lines, len })
    }

    /// As [`Aligned::zeroed_whole`].
    ///
    /// # Errors
    /// No memory for them.
    pub fn try_zeroed_whole(len: usize) -> Result<Self, String> {
        let new = Self::try_zeroed(len)?;
        ask_for_huge_pages(&new.lines);
        Ok(new)
    }

    /// `len` elements of any content, whose pages the system has found already, whether or not the
    /// allocator has written its zeros by then.
    pub fn touched(len: usize) -> Self {
        let mut new = Self::zeroed_whole(len);
        // Nobody is to know that zeros are written over zeros, which would be left out.
        let lines = std::hint::black_box(&mut new.lines[..]);
        for line in lines.iter_mut().step_by(PAGE / size_of::<Line>()) {
            line.0[0] = 0.0;
        }
        if let Some(last) = lines.last_mut() {
            last.0[0] = 0.0;
        }
        std::hint::black_box(lines);
        new
    }

    /// A copy of `data`.
    pub fn from_slice(data: &[f32]) -> Self {
        let mut new = Self::zeroed(data.len());
        new.copy_from_slice(data);
        new
    }

    /// Where it starts.
    pub fn start(&self) -> *const f32 {
        self.lines.as_ptr().cast()
    }

    /// A part of this memory.
    ///
    /// # Safety
    /// The memory must outlive the part and stay as long as it is; while a part is alive, nothing
    /// else may touch its elements.
    ///
    /// # Panics
    /// If the part is not inside.
    pub unsafe fn part(&mut self, start: usize, len: usize) -> Buf {
        let held = self.lines.len() * LINE;
        assert!(start + len <= held, "part {start}+{len} of {held} elements");
        // No reference to the elements is made here: other parts may be alive.
        let at = self.lines.as_mut_ptr().cast::<f32>().wrapping_add(start);
        Buf(Memory::Part(Part { at, len }))
    }

    /// Makes room for `len` elements, keeping what is there.
    pub fn grow(&mut self, len: usize) {
        if len > self.len {
            self.lines.resize(len.div_ceil(LINE), Line([0.0; 16]));
            self.len = len;
        }
    }
}

/// Asks for huge pages under large memory that was not touched yet: translations of addresses then
/// cost less when weights stream through. A system that has none loses nothing.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_huge_pages(lines: &[Line]) {
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
        let mut new = Self::zeroed_whole(self.lines.len() * LINE);
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
#[derive(Debug)]
pub struct Buf(Memory);

#[derive(Debug)]
enum Memory {
    Own(Aligned),
    Part(Part),
}

/// A part of memory that someone else owns.
#[derive(Debug)]
struct Part {
    at: *mut f32,
    len: usize,
}

// SAFETY: by the contract of `Aligned::part` the elements are this part's alone.
unsafe impl Send for Part {}
// SAFETY: as above; through a shared reference they are only read.
unsafe impl Sync for Part {}

impl Default for Buf {
    fn default() -> Self {
        Self(Memory::Own(Aligned::default()))
    }
}

impl Deref for Buf {
    type Target = [f32];
    #[inline]
    fn deref(&self) -> &[f32] {
        match &self.0 {
            Memory::Own(own) => own,
            // SAFETY: inside living memory and this part's alone, by the contract of `Aligned::part`.
            Memory::Part(part) => unsafe { std::slice::from_raw_parts(part.at, part.len) },
        }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.0 {
            Memory::Own(own) => own,
            // SAFETY: as above.
            Memory::Part(part) => unsafe { std::slice::from_raw_parts_mut(part.at, part.len) },
        }
    }
}

/// Memory of frames that ended, for frames to come. Where frames need other sizes than before, what
/// is held stays within three times the most that frames ever needed at once.
#[derive(Debug, Default)]
pub struct Arenas {
    free: Vec<Aligned>,
    allocated: usize,
    /// Elements of all arenas, free or not.
    held: usize,
    /// Elements that the frames of now need, and the most they ever needed.
    needed: usize,
    most_needed: usize,
}

impl Arenas {
    /// Adds an arena to the free ones, if none of these is as large.
    pub fn add(&mut self, arena: Aligned) {
        let len = arena.len();
        if len == 0 || self.free.iter().any(|a| a.len() >= len) {
            return;
        }
        self.most_needed = self.most_needed.max(self.needed + len);
        // All free ones are smaller.
        while self.held + len > 2 * self.most_needed
            && let Some(dropped) = self.free.pop()
        {
            self.held -= dropped.len();
        }
        self.allocated += 1;
        self.held += len;
        self.free.push(arena);
    }

    /// Takes memory back that was asked for as `len` elements.
    pub fn give(&mut self, arena: Aligned, len: usize) {
        if !arena.is_empty() {
            self.needed -= len;
            self.free.push(arena);
        }
    }

    /// Arenas that were ever allocated: constant once warm.
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// Bytes that frames need now, and the most they ever needed at once.
    pub fn needed_bytes(&self) -> [usize; 2] {
        [self.needed, self.most_needed].map(|elems| elems * size_of::<f32>())
    }

    /// Bytes of all arenas, free or not.
    pub fn bytes(&self) -> usize {
        self.held * size_of::<f32>()
    }
}

impl FrameMemory for Arenas {
    type Arena = Aligned;
    type Value = Buf;

    /// The smallest that is free and large enough. A new one has up to an eighth more, so that a
    /// batch may grow a little.
    fn take(&mut self, len: usize) -> Result<Aligned, String> {
        if len == 0 {
            return Ok(Aligned::default());
        }
        let needed = self.needed + len;
        let most_needed = self.most_needed.max(needed);
        let sizes = self.free.iter().map(|a| a.len()).enumerate();
        let fits = sizes.filter(|s| s.1 >= len).min_by_key(|s| s.1);
        let arena = match fits {
            Some((i, _)) => self.free.swap_remove(i),
            None => {
                let new = len.next_multiple_of((len.next_power_of_two() / 16).max(LINE));
                // All free ones are smaller.
                while self.held + new > 2 * most_needed
                    && let Some(dropped) = self.free.pop()
                {
                    self.held -= dropped.len();
                }
                let arena = Aligned::try_zeroed_whole(new)?;
                self.allocated += 1;
                self.held += new;
                arena
            }
        };
        self.needed = needed;
        self.most_needed = most_needed;
        Ok(arena)
    }

    fn give(&mut self, arena: Aligned, len: usize) {
        Self::give(self, arena, len);
    }

    unsafe fn part(arena: &mut Aligned, start: usize, len: usize) -> Buf {
        // SAFETY: as the trait asks.
        unsafe { arena.part(start, len) }
    }

    fn copy(&mut self, to: &mut Buf, at: usize, (from, from_at): (&Buf, usize), len: usize) {
        to[at..at + len].copy_from_slice(&from[from_at..from_at + len]);
    }

    fn clear(&mut self, to: &mut Buf, at: usize, len: usize) {
        to[at..at + len].fill(0.0);
    }
}

/// What a node works in beside its operands and results: planned at load, one after another while
/// it runs, all free again behind it.
#[derive(Debug, Default)]
pub struct Scratch {
    memory: Aligned,
    used: usize,
}

impl Scratch {
    /// Makes room for a node that takes `len` elements.
    ///
    /// # Errors
    /// No memory for them.
    ///
    /// # Safety
    /// Nothing that was taken may be alive.
    pub unsafe fn grow(&mut self, len: usize) -> Result<(), String> {
        self.used = 0;
        if self.memory.len() < len {
            self.memory = Aligned::try_zeroed_whole(len)?;
        }
        Ok(())
    }

    /// Takes larger memory in place of what there is.
    ///
    /// # Safety
    /// Nothing that was taken may be alive.
    pub unsafe fn replace(&mut self, memory: Aligned) {
        if self.memory.len() < memory.len() {
            self.used = 0;
            self.memory = memory;
        }
    }

    /// Makes everything that was taken free again.
    ///
    /// # Safety
    /// Nothing that was taken may be alive.
    pub unsafe fn reset(&mut self) {
        self.used = 0;
    }

    /// `len` elements with any content, until the node ends.
    ///
    /// # Panics
    /// If a node takes more than was planned for it.
    pub fn take(&mut self, len: usize) -> Buf {
        let start = self.used;
        self.used += len.next_multiple_of(LINE);
        let have = self.memory.len();
        assert!(self.used <= have, "a node takes {} of {have}", self.used);
        // SAFETY: behind what was taken before; whoever frees or replaces it vouches for the end.
        unsafe { self.memory.part(start, len) }
    }
}

/// So many times the most elements that were taken at once are held at most.
const MOST_HELD: usize = 2;

/// Buffers by size class, those that came back among them.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Vec<Vec<Aligned>>,
    allocated: usize,
    /// Elements of those that are taken, now and at most, and of those that are free.
    taken: usize,
    most: usize,
    idle: usize,
}

impl Buffers {
    /// Elements held for a buffer of `len`: the next power of two.
    pub fn held(len: usize) -> usize {
        len.max(64).next_power_of_two()
    }

    /// A buffer of `len` elements with any content.
    ///
    /// # Errors
    /// No memory for it.
    pub fn take(&mut self, len: usize) -> Result<Buf, String> {
        let class = Self::held(len);
        let idx = class.trailing_zeros() as usize;
        if self.free.len() <= idx {
            self.free.resize_with(idx + 1, Vec::new);
        }
        let mut own = match self.free[idx].pop() {
            Some(own) => {
                self.idle -= class;
                own
            }
            None => {
                self.make_room(class);
                let own = Aligned::try_zeroed(class)?;
                self.allocated += 1;
                own
            }
        };
        self.taken += class;
        self.most = self.most.max(self.taken);
        own.len = len;
        Ok(Buf(Memory::Own(own)))
    }

    /// Lets free buffers of other sizes go, the largest first, before one more of `class` elements is
    /// held.
    fn make_room(&mut self, class: usize) {
        let taken = self.taken + class;
        let room = MOST_HELD * self.most.max(taken) - taken;
        for free in self.free.iter_mut().rev() {
            while self.idle > room
                && let Some(own) = free.pop()
            {
                self.idle -= own.lines.len() * LINE;
            }
        }
    }

    /// Takes a buffer back; parts of other memory need not come back.
    pub fn give(&mut self, buf: Buf) {
        let Memory::Own(mut own) = buf.0 else {
            return;
        };
        let class = own.lines.len() * LINE;
        if class > 0 {
            own.len = class;
            self.taken -= class;
            self.idle += class;
            self.free[class.trailing_zeros() as usize].push(own);
        }
    }

    /// Lets all free buffers go, and forgets how many were taken.
    pub fn clear(&mut self) {
        self.free.iter_mut().for_each(|free| *free = Vec::new());
        (self.idle, self.most) = (0, self.taken);
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
    fn buffers_are_recycled() {
        let mut buffers = Buffers::default();
        let a = buffers.take(100).unwrap();
        assert_eq!(a.len(), 100);
        assert_eq!(a.as_ptr() as usize % 64, 0);
        buffers.give(a);
        assert_eq!(buffers.take(128).unwrap().len(), 128);
        assert_eq!(buffers.allocated(), 1);
    }

    #[test]
    fn buffers_of_other_sizes_go_where_many_are_free() {
        let mut buffers = Buffers::default();
        for class in [64, 128, 256, 512, 1024] {
            let taken: Vec<Buf> = (0..1024 / class)
                .map(|_| buffers.take(class).unwrap())
                .collect();
            taken.into_iter().for_each(|buf| buffers.give(buf));
            assert!(buffers.idle <= 2 * 1024, "{}", buffers.idle);
        }
        let free: usize = buffers.free.iter().flatten().map(|b| b.lines.len()).sum();
        assert_eq!(free * LINE, buffers.idle);
        let taken = buffers.take(64).unwrap();
        buffers.clear();
        assert_eq!((buffers.idle, buffers.taken), (0, 64));
        buffers.give(taken);
        assert_eq!(buffers.idle, 64);
    }

    /// Pages of memory that the system has found, and all; `None` where it does not tell. Source: Linux,
    /// Documentation/admin-guide/mm/pagemap.rst: bit 63 of a page's word.
    #[cfg(not(miri))]
    fn present(memory: &Aligned) -> Option<(usize, usize)> {
        use std::io::{Read, Seek, SeekFrom};
        let first = memory.start() as usize / PAGE;
        let end = (memory.start() as usize + memory.len() * size_of::<f32>()).div_ceil(PAGE);
        let mut map = std::fs::File::open("/proc/self/pagemap").ok()?;
        map.seek(SeekFrom::Start(8 * first as u64)).ok()?;
        let mut words = vec![0; 8 * (end - first)];
        map.read_exact(&mut words).ok()?;
        // The last byte of a word, as all systems with such a file on which this is built have it.
        let there = words.chunks(8).filter(|word| word[7] & 0x80 != 0);
        Some((there.count(), end - first))
    }

    #[test]
    #[cfg(not(miri))]
    fn all_pages_of_touched_memory_are_there() {
        // No whole number of pages, and more than one huge one.
        let len = (5 << 20) / size_of::<f32>() + 1000;
        let touched = Aligned::touched(len);
        let Some((found, all)) = present(&touched) else {
            eprintln!("not run: the system does not tell which pages are there");
            return;
        };
        assert_eq!(found, all);
        assert_eq!(touched.len(), len);
        assert!(Aligned::touched(0).is_empty());
    }

    #[test]
    fn memory_made_ready_is_taken_first_and_once() {
        let mut arenas = Arenas::default();
        arenas.add(Aligned::touched(1000));
        let ready = (arenas.allocated(), arenas.bytes());
        arenas.add(Aligned::touched(900));
        arenas.add(Aligned::default());
        assert_eq!((arenas.allocated(), arenas.bytes()), ready);
        let arena = arenas.take(1000).unwrap();
        assert_eq!((arena.len(), arenas.allocated()), (1000, 1));
        arenas.give(arena, 1000);
        let mut scratch = Scratch::default();
        // SAFETY: nothing was taken.
        unsafe { scratch.replace(Aligned::touched(64)) };
        let at = scratch.memory.start();
        // SAFETY: as above.
        unsafe { scratch.replace(Aligned::touched(32)) };
        // SAFETY: as above.
        unsafe { scratch.grow(64).unwrap() };
        assert_eq!(scratch.memory.start(), at);
    }

    #[test]
    fn the_smallest_arena_that_fits_is_taken() {
        let mut arenas = Arenas::default();
        let (small, large) = (arenas.take(64).unwrap(), arenas.take(1024).unwrap());
        let at = small.start();
        arenas.give(large, 1024);
        arenas.give(small, 64);
        let small = arenas.take(50).unwrap();
        assert_eq!((small.start(), arenas.allocated()), (at, 2));
        arenas.give(small, 50);
        let larger = arenas.take(2000).unwrap();
        assert!(larger.len() >= 2000 && larger.len() <= 2250);
        assert_eq!(arenas.take(0).unwrap().len(), 0);
    }

    #[test]
    fn what_no_memory_has_room_for_is_an_error() {
        let beyond = 1 << 50;
        let mut arenas = Arenas::default();
        let kept = arenas.take(64).unwrap();
        let e = arenas.take(beyond).unwrap_err();
        assert_eq!(e, format!("no memory for {beyond} elements"));
        assert_eq!(arenas.needed_bytes(), [256, 256]);
        assert_eq!(arenas.bytes(), 256);
        arenas.give(kept, 64);
        assert!(Buffers::default().take(beyond).is_err());
        // SAFETY: nothing was taken.
        assert!(unsafe { Scratch::default().grow(beyond) }.is_err());
    }

    #[test]
    fn arenas_of_sizes_that_do_not_come_back_are_dropped() {
        let mut arenas = Arenas::default();
        let mut size = 64;
        while size < 1 << 20 {
            let arena = arenas.take(size).unwrap();
            arenas.give(arena, size);
            size += size / 3;
            assert!(
                arenas.bytes() <= 3 * 4 * size,
                "{} at {size}",
                arenas.bytes()
            );
        }
        let (warm, held) = (arenas.allocated(), arenas.bytes());
        for size in [1 << 19, 1, 70_000, 1 << 18] {
            let arena = arenas.take(size).unwrap();
            arenas.give(arena, size);
        }
        assert_eq!((arenas.allocated(), arenas.bytes()), (warm, held));
    }

    #[test]
    fn arenas_of_ever_larger_models_are_dropped() {
        let mut arenas = Arenas::default();
        for size in (1000..=2000).step_by(100) {
            arenas.add(Aligned::touched(size));
        }
        assert!(arenas.bytes() <= 3 * 4 * 2000, "{}", arenas.bytes());
    }

    #[test]
    fn parts_of_scratch_memory_are_apart_and_bounded() {
        let mut scratch = Scratch::default();
        // SAFETY: nothing was taken.
        unsafe { scratch.grow(48).unwrap() };
        let (mut a, mut b) = (scratch.take(10), scratch.take(20));
        a.fill(1.0);
        b.fill(2.0);
        assert!(a.iter().all(|v| *v == 1.0) && b.iter().all(|v| *v == 2.0));
        assert_eq!(b.as_ptr() as usize % 64, 0);
        let more = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scratch.take(1)));
        assert!(more.is_err());
        drop((a, b));
        // SAFETY: both parts are gone.
        unsafe { scratch.reset() };
        assert_eq!(scratch.take(48).len(), 48);
    }
}
