//! Loads, stores and copies, with all their checks.

use super::block::World;
use super::memory::BadAddress;
use super::shadow::Conflict;
use super::warp::{Warp, lanes};
use crate::ptx::ast::Space;
use crate::ptx::decode::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};
use crate::ptx::forms::LANES;
use crate::ptx::program::{Access, Address, Dest, Reg};
use crate::report::{Fault, Kind};

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Shared(usize),
    Local(usize),
    Param(usize),
    Device(usize, usize),
}

/// An asynchronous copy that is under way.
pub(super) struct Copy {
    lane: usize,
    /// Group of the lane that it belongs to.
    group: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl World<'_> {
    /// Where `len` bytes at an address are, for one thread.
    pub(super) fn locate(
        &mut self,
        space: Space,
        address: u64,
        len: usize,
        thread: usize,
    ) -> Result<Place, BadAddress> {
        match space {
            Space::Generic => {
                let space = [Space::Shared, Space::Local, Space::Param]
                    .into_iter()
                    .find(|s| Self::is_in(*s, address));
                match space {
                    Some(Space::Shared) => {
                        self.locate(Space::Shared, address - SHARED_BASE, len, thread)
                    }
                    Some(Space::Local) => {
                        self.locate(Space::Local, address - LOCAL_BASE, len, thread)
                    }
                    Some(_) => self.locate(Space::Param, address - PARAM_BASE, len, thread),
                    None => self.locate(Space::Global, address, len, thread),
                }
            }
            Space::Global | Space::Const => {
                let (idx, offset) = self.memory.locate(address, len)?;
                Ok(Place::Device(idx, offset))
            }
            Space::Shared => {
                // Offsets in this space have 32 bits.
                let address = address & 0xffff_ffff;
                let inside = |v: &&crate::ptx::program::SharedVariable| {
                    address >= v.offset && address + len as u64 <= v.offset + v.bytes
                };
                if self.shared_variables.iter().any(|v| inside(&v)) {
                    return Ok(Place::Shared(address as usize));
                }
                let before = self.shared_variables.iter().filter(|v| v.offset <= address);
                let what = match before.max_by_key(|v| v.offset) {
                    Some(v) => format!(
                        "{len} bytes at {} of the shared variable {} end {} bytes after its {} bytes",
                        address - v.offset,
                        v.name,
                        address + len as u64 - v.offset - v.bytes,
                        v.bytes
                    ),
                    None => format!("shared address {address:#x} is in no variable"),
                };
                Err((Kind::OutOfBounds, what))
            }
            Space::Local => {
                let bytes = self.program.local_bytes as u64;
                if address.saturating_add(len as u64) > bytes {
                    let what =
                        format!("{len} bytes at {address:#x} of the thread's own {bytes} bytes");
                    return Err((Kind::OutOfBounds, what));
                }
                Ok(Place::Local(
                    thread * self.program.local_bytes + address as usize,
                ))
            }
            Space::Param => {
                if address.saturating_add(len as u64) > self.params.len() as u64 {
                    let what = format!(
                        "{len} bytes at {address:#x} of {} bytes of parameters",
                        self.params.len()
                    );
                    return Err((Kind::OutOfBounds, what));
                }
                Ok(Place::Param(address as usize))
            }
        }
    }

    /// Locates, after the check that the address is a multiple of `len`.
    pub(super) fn place(
        &mut self,
        space: Space,
        address: u64,
        len: usize,
        warp: &Warp,
        lane: usize,
    ) -> Result<Place, Box<Fault>> {
        // Accesses have 1, 2, 4, 8 or 16 bytes; a mask is faster than a division here.
        if address & (len as u64 - 1) != 0 {
            let what = format!("address {address:#x} is no multiple of {len} bytes");
            return Err(Fault::new(Kind::Misaligned, lane, what));
        }
        let thread = warp.index * LANES + lane;
        self.locate(space, address, len, thread)
            .map_err(|(kind, what)| Fault::new(kind, lane, what))
    }

    /// Checks and notes a read.
    pub(super) fn reads(
        &mut self,
        place: Place,
        len: usize,
        warp: &Warp,
        lane: usize,
        is_strong: bool,
    ) -> Result<(), Box<Fault>> {
        let (allocation, offset) = match place {
            Place::Param(_) => return Ok(()),
            Place::Local(offset) => {
                return unwritten(
                    self.local.first_unwritten(offset, len),
                    offset,
                    "its own memory",
                    lane,
                );
            }
            Place::Shared(offset) => {
                unwritten(
                    self.shared.first_unwritten(offset, len),
                    offset,
                    "shared memory",
                    lane,
                )?;
                (None, offset)
            }
            Place::Device(idx, offset) => {
                let at = self
                    .memory
                    .region(idx)
                    .and_then(|r| r.first_unwritten(offset, len));
                unwritten(at, offset, "an allocation", lane)?;
                if self.memory.is_constant(idx) {
                    return Ok(());
                }
                let noted = self.memory.note(idx, offset, len, false);
                noted.map_err(|(kind, what)| Fault::new(kind, lane, what))?;
                (Some(idx), offset)
            }
        };
        let mark = self.mark(warp.index * LANES + lane, is_strong);
        match self.touch(allocation, offset, len, false, mark) {
            Some(conflict) => Err(self.race(conflict, lane, warp, "reads", offset, allocation)),
            None => Ok(()),
        }
    }

    /// Checks and notes a write; one that changes nothing does not race with other writes.
    pub(super) fn writes(
        &mut self,
        place: Place,
        bytes: &[u8],
        warp: &Warp,
        lane: usize,
        is_strong: bool,
    ) -> Result<(), Box<Fault>> {
        let (allocation, offset) = match place {
            Place::Local(_) => return Ok(()),
            Place::Param(_) => {
                return Err(Fault::new(
                    Kind::ReadOnly,
                    lane,
                    "a store to the parameters",
                ));
            }
            Place::Shared(offset) => (None, offset),
            Place::Device(idx, _) if self.memory.is_constant(idx) => {
                return Err(Fault::new(
                    Kind::ReadOnly,
                    lane,
                    "a store to constant memory",
                ));
            }
            Place::Device(idx, offset) => {
                let noted = self.memory.note(idx, offset, bytes.len(), true);
                noted.map_err(|(kind, what)| Fault::new(kind, lane, what))?;
                (Some(idx), offset)
            }
        };
        let mark = self.mark(warp.index * LANES + lane, is_strong);
        let Some(conflict) = self.touch(allocation, offset, bytes.len(), true, mark) else {
            return Ok(());
        };
        if conflict.wrote && self.bytes(place, bytes.len()) == bytes {
            return Ok(());
        }
        Err(self.race(conflict, lane, warp, "writes", offset, allocation))
    }

    fn race(
        &self,
        conflict: Conflict,
        lane: usize,
        warp: &Warp,
        verb: &str,
        offset: usize,
        allocation: Option<usize>,
    ) -> Box<Fault> {
        let earlier = conflict.earlier;
        let did = if conflict.wrote { "wrote" } else { "read" };
        let who = if earlier.block() == self.block & 0xff_ffff {
            format!("thread {} of the block", earlier.thread())
        } else {
            format!("thread {} of block {}", earlier.thread(), earlier.block())
        };
        let of = if allocation.is_none() {
            "shared memory"
        } else {
            "an allocation"
        };
        let thread = warp.index * LANES + lane;
        let what = format!(
            "thread {thread} {verb} byte {offset} of {of}, which {who} {did} with nothing to order the two"
        );
        Fault::new(Kind::Race, lane, what)
    }

    /// The bytes at a place.
    pub(super) fn bytes(&mut self, place: Place, len: usize) -> &[u8] {
        match place {
            Place::Shared(at) => &self.shared.bytes()[at..at + len],
            Place::Local(at) => &self.local.bytes()[at..at + len],
            Place::Param(at) => &self.params[at..at + len],
            Place::Device(idx, at) => self
                .memory
                .region(idx)
                .map_or(&[], |r| &r.bytes()[at..at + len]),
        }
    }

    /// A value of at most 8 bytes.
    pub(super) fn word(&mut self, place: Place, len: usize) -> u64 {
        let mut word = [0; 8];
        word[..len].copy_from_slice(self.bytes(place, len));
        u64::from_le_bytes(word)
    }

    pub(super) fn put(&mut self, place: Place, bytes: &[u8]) {
        let (region, at) = match place {
            Place::Shared(at) => (Some(&mut self.shared), at),
            Place::Local(at) => (Some(&mut self.local), at),
            Place::Device(idx, at) => (self.memory.region(idx), at),
            Place::Param(_) => return,
        };
        if let Some(region) = region {
            region.write(at, bytes);
        }
    }

    pub(super) fn load(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        dests: &[Option<Dest>],
        active: u32,
    ) -> Result<(), Box<Fault>> {
        let len = access.unit * dests.len();
        for lane in lanes(active) {
            let address = lane_address(warp, access.address, lane);
            let place = self.place(access.space, address, len, warp, lane)?;
            self.reads(place, len, warp, lane, access.is_strong)?;
            let mut words = [0u64; 4];
            let bytes = self.bytes(place, len);
            for (word, part) in words.iter_mut().zip(bytes.chunks(access.unit)) {
                let mut buffer = [0; 8];
                buffer[..part.len().min(8)].copy_from_slice(&part[..part.len().min(8)]);
                *word = u64::from_le_bytes(buffer);
            }
            for (word, dest) in words.iter().zip(dests) {
                if let Some(dest) = dest {
                    warp.set_lane(*dest, lane, extend(*word, access));
                }
            }
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        sources: &[Reg],
        active: u32,
    ) -> Result<(), Box<Fault>> {
        let len = access.unit * sources.len();
        for lane in lanes(active) {
            let address = lane_address(warp, access.address, lane);
            let place = self.place(access.space, address, len, warp, lane)?;
            let mut bytes = [0; 32];
            for (part, source) in bytes.chunks_mut(access.unit).zip(sources) {
                part.copy_from_slice(&warp.row(*source)[lane].to_le_bytes()[..access.unit]);
            }
            self.writes(place, &bytes[..len], warp, lane, access.is_strong)?;
            self.put(place, &bytes[..len]);
            if access.is_strong
                && let Place::Device(..) = place
            {
                self.hand_over(address, true);
            }
        }
        Ok(())
    }

    /// Starts a copy: reads now, and writes at the wait; until then nothing may be read there.
    pub(super) fn copy_async(
        &mut self,
        warp: &mut Warp,
        (to, from): (Address, Address),
        len: usize,
        source_bytes: Option<Reg>,
        active: u32,
    ) -> Result<(), Box<Fault>> {
        for lane in lanes(active) {
            let (to, from) = (lane_address(warp, to, lane), lane_address(warp, from, lane));
            let place = self.place(Space::Shared, to, len, warp, lane)?;
            let num_read = source_bytes.map_or(len, |reg| (warp.row(reg)[lane] as usize).min(len));
            let mut bytes = vec![0; len];
            if num_read > 0 {
                let source = self.place(Space::Global, from, len, warp, lane);
                let source = match source {
                    // Only what is read has to be there.
                    Err(fault) if fault.kind == Kind::OutOfBounds && num_read < len => {
                        let thread = warp.index * LANES + lane;
                        self.locate(Space::Global, from, num_read, thread)
                            .map_err(|(kind, what)| Fault::new(kind, lane, what))?
                    }
                    other => other?,
                };
                self.reads(source, num_read, warp, lane, false)?;
                bytes[..num_read].copy_from_slice(self.bytes(source, num_read));
            }
            self.writes(place, &bytes, warp, lane, false)?;
            if let Place::Shared(to) = place {
                self.shared.forget(to, len);
                warp.copies.push(Copy {
                    lane,
                    group: warp.committed[lane],
                    to,
                    bytes,
                });
            }
        }
        Ok(())
    }

    /// Ends the copies of all but the last `left` groups of each lane, or all of them.
    pub(super) fn copy_wait(&mut self, warp: &mut Warp, left: Option<u32>, active: u32) {
        let committed = warp.committed;
        let copies = std::mem::take(&mut warp.copies);
        for copy in copies {
            let is_over = match left {
                None => true,
                Some(left) => copy.group + u64::from(left) < committed[copy.lane],
            };
            if active >> copy.lane & 1 == 1 && is_over {
                self.shared.write(copy.to, &copy.bytes);
            } else {
                warp.copies.push(copy);
            }
        }
    }
}

pub(super) fn lane_address(warp: &Warp, address: Address, lane: usize) -> u64 {
    address.at(address.base.map_or(0, |base| warp.row(base)[lane]))
}

/// A loaded element as its register holds it.
fn extend(word: u64, access: &Access) -> u64 {
    if !access.is_signed || access.unit == 8 {
        return word;
    }
    let shift = 64 - 8 * access.unit as u32;
    ((word << shift) as i64 >> shift) as u64
}

fn unwritten(at: Option<usize>, offset: usize, of: &str, lane: usize) -> Result<(), Box<Fault>> {
    match at {
        None => Ok(()),
        Some(at) => {
            let what =
                format!("byte {at} of {of} was never written (the read starts at byte {offset})");
            Err(Fault::new(Kind::Unwritten, lane, what))
        }
    }
}
