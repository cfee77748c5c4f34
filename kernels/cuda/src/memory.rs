//! Memory that is taken once and handed out in pieces: the arena of frames on the device, and
//! page-locked memory for inputs and outputs.
//!
//! A piece of the arena is free for others as soon as the launch that used it last is in the stream:
//! what comes later in the stream runs later.
//!
//! Where a piece lies is an argument of the kernels that work in it, so a graph is found again only if
//! its frame lies where it lay. Launches therefore all work in one place, at the arena's begin, and what
//! they work in besides lies right behind it. What is alive in a frame moves to the arena's end when
//! another one is to run, and back when it goes on.

use std::ops::Range;

use lazybatch_kernels::frames::FrameMemory;
use range_alloc::RangeAllocator;

use crate::context::{Context, DeviceMemory, DevicePtr, Pinned};
use crate::error::CudaError;
use crate::graphs::Padded;
use crate::kernels::rows::Span;
use crate::pieces::Pieces;

/// Bytes of an element.
pub const ELEM: usize = 4;
/// Bytes to which pieces are rounded up: where a product reads and writes best.
const GRAIN: usize = 256;

/// Device memory of frames, and the copies that a merge asks for.
#[derive(Debug)]
pub struct Arena {
    memory: DeviceMemory,
    pieces: Pieces,
    /// Where the frame ends that is in the place of launches, in grains.
    end: usize,
    /// Where to, where from and bytes of what moved to the place and from it, ahead of the next launch.
    pub carried: Vec<(DevicePtr, DevicePtr, usize)>,
    /// Copies between pieces, for the next launch.
    pub spans: Vec<Span>,
    /// Round the sizes of frames that are made next up to few.
    pub rounds: bool,
}

/// A piece of the arena.
#[derive(Debug, Default)]
pub struct Piece {
    /// Where it starts.
    pub at: DevicePtr,
    grains: Range<usize>,
}

impl Arena {
    /// An arena of about `bytes` bytes.
    ///
    /// # Errors
    /// No memory.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        let grains = bytes.div_ceil(GRAIN).max(1);
        Ok(Self {
            memory: DeviceMemory::new(context, "the arena", grains * GRAIN)?,
            pieces: Pieces::new(grains),
            end: 0,
            carried: Vec::new(),
            spans: Vec::new(),
            rounds: false,
        })
    }

    /// Where a launch may work in `len` elements until it is over: behind its frame. What comes later in
    /// the stream may use it again.
    ///
    /// # Errors
    /// That there is no room.
    pub fn lend(&self, len: usize) -> Result<DevicePtr, String> {
        if len == 0 {
            return Ok(DevicePtr::default());
        }
        let grains = (len * ELEM).div_ceil(GRAIN);
        if !self.pieces.is_free(&(self.end..self.end + grains)) {
            return Err(self.no_room(grains));
        }
        Ok(self.memory.at().add(self.end * GRAIN))
    }

    fn piece(
        &mut self,
        len: usize,
        take: impl FnOnce(&mut Pieces, usize) -> Option<Range<usize>>,
    ) -> Result<Piece, String> {
        if len == 0 {
            return Ok(Piece::default());
        }
        let grains = (len * ELEM).div_ceil(GRAIN);
        let range = take(&mut self.pieces, grains).ok_or_else(|| self.no_room(grains))?;
        Ok(Piece {
            at: self.memory.at().add(range.start * GRAIN),
            grains: range,
        })
    }

    fn no_room(&self, grains: usize) -> String {
        let left = self.pieces.free() * GRAIN;
        let needed = grains * GRAIN;
        format!("out of arena memory: {needed} bytes needed in one piece, {left} free in all")
    }
}

impl FrameMemory for Arena {
    type Arena = Piece;
    type Value = DevicePtr;
    const ONE_PLACE: bool = true;

    fn room(&self, members: usize, rows: usize, samples: usize) -> (usize, usize) {
        if !self.rounds {
            return (rows, samples);
        }
        let padded = Padded::of(members, rows, samples);
        (padded.rows, padded.samples)
    }

    fn take(&mut self, len: usize) -> Result<Piece, String> {
        let piece = self.piece(len, Pieces::take_first)?;
        self.end = self.end.max(piece.grains.end);
        Ok(piece)
    }

    fn give(&mut self, piece: Piece, _len: usize) {
        if piece.grains.is_empty() {
            return;
        }
        if piece.grains.start == 0 {
            self.end = 0;
        }
        self.pieces.give(&piece.grains);
    }

    fn take_aside(&mut self, len: usize) -> Result<Piece, String> {
        self.piece(len, Pieces::take_last)
    }

    fn carry(&mut self, to: &mut DevicePtr, from: &DevicePtr, len: usize) {
        self.carried.push((*to, *from, len * ELEM));
    }

    unsafe fn part(piece: &mut Piece, start: usize, _len: usize) -> DevicePtr {
        piece.at.add(start * ELEM)
    }

    fn copy(
        &mut self,
        to: &mut DevicePtr,
        at: usize,
        (from, from_at): (&DevicePtr, usize),
        len: usize,
    ) {
        self.spans.push(Span {
            from: from.add(from_at * ELEM),
            to: to.add(at * ELEM),
            copied: len as u32,
            zeroed: 0,
        });
    }

    fn clear(&mut self, to: &mut DevicePtr, at: usize, len: usize) {
        if len > 0 {
            self.spans.push(Span {
                from: DevicePtr::NULL,
                to: to.add(at * ELEM),
                copied: 0,
                zeroed: len as u32,
            });
        }
    }
}

/// Page-locked memory for inputs and outputs, which kernels reach directly.
#[derive(Debug)]
pub struct HostPool {
    memory: Pinned,
    free: RangeAllocator<usize>,
    bytes: usize,
}

impl HostPool {
    /// A pool of about `bytes` bytes.
    ///
    /// # Errors
    /// No memory.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        let grains = bytes.div_ceil(GRAIN).max(1);
        Ok(Self {
            memory: Pinned::new(context, grains * GRAIN)?,
            free: RangeAllocator::new(0..grains),
            bytes: grains * GRAIN,
        })
    }

    /// Bytes of the pool.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Room for `elems` elements, as bytes of the pool.
    ///
    /// # Errors
    /// Bytes needed and bytes left.
    pub fn take(&mut self, elems: usize) -> Result<Range<usize>, (usize, usize)> {
        let grains = elems.saturating_mul(ELEM).div_ceil(GRAIN).max(1);
        match self.free.allocate_range(grains) {
            Ok(range) => Ok(range.start * GRAIN..range.end * GRAIN),
            Err(_) => Err((grains * GRAIN, self.free.total_available() * GRAIN)),
        }
    }

    /// Takes room back; no launch that uses it may be in flight.
    pub fn give(&mut self, room: &Range<usize>) {
        self.free.free_range(room.start / GRAIN..room.end / GRAIN);
    }

    /// Writes elements at a byte of the pool.
    pub fn write(&mut self, at: usize, elems: &[f32]) {
        let bytes: &[u8] = bytemuck::cast_slice(elems);
        self.memory.part_mut(at, bytes.len()).copy_from_slice(bytes);
    }

    /// Elements at a byte of the pool.
    pub fn read(&self, at: usize, elems: usize) -> &[f32] {
        bytemuck::cast_slice(self.memory.part(at, elems * ELEM))
    }

    /// Where kernels reach a byte of the pool.
    pub fn device(&self, at: usize) -> DevicePtr {
        self.memory.device().add(at)
    }
}
