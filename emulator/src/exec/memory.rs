//! Device memory: allocations with exact bounds, what of them was written, and who touched them.
//!
//! Addresses are never given out twice, so an address of freed memory stays one.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::shadow::Shadow;
use crate::ptx::decode::DEVICE_BASE;
use crate::report::Kind;

/// Alignment of allocations.
const ALIGN: u64 = 512;
/// Bytes that belong to nothing after each allocation.
const GAP: u64 = 4096;
/// Fresh bytes: no number in any float format, and a large integer.
pub const FRESH: u8 = 0xff;

/// Bytes with a mark for each that was written.
#[derive(Debug)]
pub struct Region {
    /// The bytes.
    data: Data,
    /// A mark for each; none where everything counts as written.
    written: Option<Vec<u8>>,
    /// Who touched them.
    pub(super) shadow: Shadow,
    /// For each pair of bytes the operations that wrote and read it last; empty before the first.
    users: Vec<[u32; 2]>,
}

#[derive(Debug)]
enum Data {
    Owned(Vec<u8>),
    /// Page-locked host memory, which the program reads and writes by itself.
    Host {
        at: *mut u8,
        bytes: usize,
    },
}

// SAFETY: host memory is reached through a pointer that `add_host`'s caller vouches for, and the
// emulator reads and writes it under the lock that owns all memory.
unsafe impl Send for Data {}

impl Region {
    /// Bytes that nothing has written.
    pub fn fresh(bytes: usize) -> Self {
        Self {
            data: Data::Owned(vec![FRESH; bytes]),
            written: Some(vec![0; bytes]),
            shadow: Shadow::default(),
            users: Vec::new(),
        }
    }

    /// Bytes with a value.
    pub fn filled(bytes: Vec<u8>) -> Self {
        Self {
            data: Data::Owned(bytes),
            written: None,
            shadow: Shadow::default(),
            users: Vec::new(),
        }
    }

    /// Makes all bytes fresh, and as many as asked.
    pub fn reset(&mut self, bytes: usize) {
        if let Data::Owned(data) = &mut self.data {
            data.clear();
            data.resize(bytes, FRESH);
        }
        if let Some(written) = &mut self.written {
            written.clear();
            written.resize(bytes, 0);
        }
        self.shadow.clear();
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Owned(data) => data,
            // SAFETY: `add_host`'s caller keeps the memory until it is freed here.
            Data::Host { at, bytes } => unsafe { std::slice::from_raw_parts(*at, *bytes) },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.data {
            Data::Owned(data) => data,
            // SAFETY: as for `bytes`; nothing else of the emulator refers to it meanwhile.
            Data::Host { at, bytes } => unsafe { std::slice::from_raw_parts_mut(*at, *bytes) },
        }
    }

    /// Writes bytes and marks them.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        if let Some(written) = &mut self.written {
            written[offset..offset + bytes.len()].fill(1);
        }
    }

    /// Writes a value of at most 8 bytes and marks it.
    pub fn write_word(&mut self, offset: usize, value: u64, len: usize) {
        self.write(offset, &value.to_le_bytes()[..len]);
    }

    /// A value of at most 8 bytes.
    pub fn read_word(&self, offset: usize, len: usize) -> u64 {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&self.bytes()[offset..offset + len]);
        u64::from_le_bytes(word)
    }

    /// Position of the first byte that nothing has written.
    pub fn first_unwritten(&self, offset: usize, len: usize) -> Option<usize> {
        let marks = &self.written.as_ref()?[offset..offset + len];
        marks
            .iter()
            .position(|mark| *mark == 0)
            .map(|at| offset + at)
    }

    /// Takes the marks of bytes away.
    pub fn forget(&mut self, offset: usize, len: usize) {
        if let Some(written) = &mut self.written {
            written[offset..offset + len].fill(0);
        }
    }

    /// Marks of the bytes, to go with a copy of them.
    fn marks(&self, offset: usize, len: usize) -> Vec<u8> {
        match &self.written {
            Some(written) => written[offset..offset + len].to_vec(),
            None => vec![1; len],
        }
    }

    fn set_marks(&mut self, offset: usize, marks: &[u8]) {
        if let Some(written) = &mut self.written {
            written[offset..offset + marks.len()].copy_from_slice(marks);
        }
    }
}

/// An allocation.
#[derive(Debug)]
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Size.
    pub bytes: u64,
    /// Whether kernels may only read it.
    pub is_constant: bool,
    /// Its bytes, until it is freed.
    pub region: Option<Region>,
}

/// Why an address cannot be used: a kind and words.
pub type BadAddress = (Kind, String);

/// All device memory.
#[derive(Debug, Default)]
pub struct Memory {
    allocations: Vec<Allocation>,
    by_base: BTreeMap<u64, usize>,
    used_bytes: u64,
    next: u64,
    /// The allocation that was found last.
    recent: usize,
    /// The operation that runs; 0 for none.
    operation: u32,
    /// Operations that have run and that it does not come after.
    unordered: FxHashMap<u32, String>,
}

impl Memory {
    /// No memory in use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fresh memory; at least one byte of address space even for none.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        self.add(None, Region::fresh(bytes), bytes as u64, false)
    }

    /// Memory with a value, for a module's variables.
    pub fn alloc_filled(&mut self, bytes: Vec<u8>, is_constant: bool) -> u64 {
        let len = bytes.len() as u64;
        self.add(None, Region::filled(bytes), len, is_constant)
    }

    /// Makes host memory known, at its own address.
    ///
    /// # Safety
    /// `at` points to `bytes` bytes that stay until [`Self::free`].
    pub unsafe fn add_host(&mut self, at: *mut u8, bytes: usize) -> u64 {
        let data = Data::Host { at, bytes };
        let region = Region {
            data,
            written: None,
            shadow: Shadow::default(),
            users: Vec::new(),
        };
        self.add(Some(at as u64), region, bytes as u64, false)
    }

    fn add(&mut self, at: Option<u64>, region: Region, bytes: u64, is_constant: bool) -> u64 {
        let base = at.unwrap_or_else(|| {
            let base = DEVICE_BASE + self.next;
            self.next += (bytes.max(1) + GAP).next_multiple_of(ALIGN);
            base
        });
        self.used_bytes += bytes;
        // Host memory may come back at addresses that were freed before, in other pieces.
        let end = base + bytes.max(1);
        let reused = self.by_base.range(..end).rev();
        let reused = reused.map(|(other, idx)| (*other, &self.allocations[*idx]));
        let is_reused = |a: &Allocation| a.region.is_none() && a.base + a.bytes.max(1) > base;
        let reused: Vec<u64> = reused
            .take_while(|(other, a)| *other >= base || is_reused(a))
            .filter(|(_, a)| is_reused(a))
            .map(|(other, _)| other)
            .collect();
        for other in reused {
            self.by_base.remove(&other);
        }
        self.by_base.insert(base, self.allocations.len());
        self.allocations.push(Allocation {
            base,
            bytes,
            is_constant,
            region: Some(region),
        });
        base
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Gives an allocation back.
    ///
    /// # Errors
    /// `base` is not the start of one, or it was freed before.
    pub fn free(&mut self, base: u64) -> Result<(), BadAddress> {
        let found = self
            .by_base
            .get(&base)
            .map(|idx| &mut self.allocations[*idx]);
        match found {
            Some(allocation) if allocation.region.is_some() => {
                allocation.region = None;
                self.used_bytes -= allocation.bytes;
                Ok(())
            }
            Some(_) => Err((
                Kind::UseAfterFree,
                format!("free of {base:#x}, which was freed before"),
            )),
            None => Err((
                Kind::OutOfBounds,
                format!("free of {base:#x}, which is no allocation"),
            )),
        }
    }

    /// Base and size of the allocation that holds an address.
    pub fn allocation_of(&self, address: u64) -> Option<&Allocation> {
        let (_, idx) = self.by_base.range(..=address).next_back()?;
        let found = &self.allocations[*idx];
        (address < found.base + found.bytes.max(1)).then_some(found)
    }

    /// Index of an allocation and the offset in it of `len` bytes.
    ///
    /// # Errors
    /// No allocation in use holds all of them.
    pub fn locate(&mut self, address: u64, len: usize) -> Result<(usize, usize), BadAddress> {
        if let Some(recent) = self.allocations.get(self.recent)
            && address >= recent.base
            && address.wrapping_add(len as u64) <= recent.base + recent.bytes
            && recent.region.is_some()
        {
            return Ok((self.recent, (address - recent.base) as usize));
        }
        let below = self
            .by_base
            .range(..=address)
            .next_back()
            .map(|(_, idx)| *idx);
        let Some(idx) = below else {
            let what = if address < 4096 {
                "near the null pointer"
            } else {
                "below all allocations"
            };
            return Err((Kind::OutOfBounds, format!("address {address:#x} is {what}")));
        };
        let found = &self.allocations[idx];
        let (offset, bytes) = (address - found.base, found.bytes);
        if offset < bytes.max(1) && found.region.is_none() {
            let what = format!("address {address:#x} is byte {offset} of {bytes} that were freed");
            return Err((Kind::UseAfterFree, what));
        }
        if offset.saturating_add(len as u64) > bytes {
            let past = offset.saturating_add(len as u64) - bytes;
            let what = if past > 1 << 32 {
                format!("address {address:#x} is in no allocation")
            } else {
                format!(
                    "{len} bytes at {address:#x} end {past} bytes after an allocation of {bytes} bytes at {:#x}",
                    found.base
                )
            };
            return Err((Kind::OutOfBounds, what));
        }
        self.recent = idx;
        Ok((idx, offset as usize))
    }

    /// Starts an operation that does not come after the `unordered` ones, which have run.
    pub fn begin(&mut self, operation: u32, unordered: FxHashMap<u32, String>) {
        self.operation = operation;
        self.unordered = unordered;
    }

    /// Ends the operation.
    pub fn end(&mut self) {
        self.operation = 0;
        self.unordered.clear();
    }

    /// Notes that the operation touches bytes of an allocation.
    ///
    /// # Errors
    /// One that nothing orders before it has touched them too, and one of the two writes.
    pub(super) fn note(
        &mut self,
        idx: usize,
        offset: usize,
        len: usize,
        is_write: bool,
    ) -> Result<(), BadAddress> {
        let allocation = &mut self.allocations[idx];
        let Some(region) = allocation
            .region
            .as_mut()
            .filter(|_| self.operation != 0 && !allocation.is_constant)
        else {
            return Ok(());
        };
        if region.users.is_empty() {
            region
                .users
                .resize((allocation.bytes as usize).div_ceil(2), [0; 2]);
        }
        for users in &mut region.users[offset / 2..(offset + len).div_ceil(2)] {
            let [writer, reader] = *users;
            if !self.unordered.is_empty() {
                let found = self.unordered.get(&writer).map(|name| (name, "wrote"));
                let found = found.or_else(|| {
                    self.unordered
                        .get(&reader)
                        .filter(|_| is_write)
                        .map(|name| (name, "read"))
                });
                if let Some((name, did)) = found {
                    let verb = if is_write { "writes" } else { "reads" };
                    let what = format!(
                        "{verb} byte {offset} of the allocation at {:#x}, which {name} on another stream {did}: no event orders the two",
                        allocation.base
                    );
                    return Err((Kind::Race, what));
                }
            }
            users[usize::from(!is_write)] = self.operation;
        }
        Ok(())
    }

    /// The bytes of an allocation in use.
    pub(super) fn region(&mut self, idx: usize) -> Option<&mut Region> {
        self.allocations[idx].region.as_mut()
    }

    /// Whether kernels may only read an allocation.
    pub(super) fn is_constant(&self, idx: usize) -> bool {
        self.allocations[idx].is_constant
    }

    /// Copies bytes from the host.
    ///
    /// # Errors
    /// No allocation holds all of them.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BadAddress> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (idx, offset) = self.locate(address, bytes.len())?;
        self.note(idx, offset, bytes.len(), true)?;
        if let Some(region) = self.region(idx) {
            region.write(offset, bytes);
        }
        Ok(())
    }

    /// Bytes for the host.
    ///
    /// # Errors
    /// No allocation holds all of them.
    pub fn read(&mut self, address: u64, len: usize) -> Result<&[u8], BadAddress> {
        if len == 0 {
            return Ok(&[]);
        }
        let (idx, offset) = self.locate(address, len)?;
        self.note(idx, offset, len, false)?;
        Ok(self.allocations[idx]
            .region
            .as_ref()
            .map_or(&[], |r| &r.bytes()[offset..offset + len]))
    }

    /// Copies within the device; what was not written stays so.
    ///
    /// # Errors
    /// No allocation holds all of them.
    pub fn copy(&mut self, to: u64, from: u64, len: usize) -> Result<(), BadAddress> {
        if len == 0 {
            return Ok(());
        }
        let bytes = self.read(from, len)?.to_vec();
        let (idx, offset) = self.locate(from, len)?;
        let marks = self
            .region(idx)
            .map(|r| r.marks(offset, len))
            .unwrap_or_default();
        let (idx, offset) = self.locate(to, len)?;
        self.note(idx, offset, len, true)?;
        if let Some(region) = self.region(idx) {
            region.write(offset, &bytes);
            region.set_marks(offset, &marks);
        }
        Ok(())
    }

    /// Bytes for a library that reads them all: as [`Self::read`].
    ///
    /// # Errors
    /// As [`Self::read`], or some were never written.
    pub fn read_written(&mut self, address: u64, len: usize) -> Result<&[u8], BadAddress> {
        if len > 0 {
            let (idx, offset) = self.locate(address, len)?;
            if let Some(at) = self
                .region(idx)
                .and_then(|r| r.first_unwritten(offset, len))
            {
                let what = format!("byte {at} of the allocation of {address:#x} was never written");
                return Err((Kind::Unwritten, what));
            }
        }
        self.read(address, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact() {
        let mut memory = Memory::new();
        let at = memory.alloc(10);
        assert!(memory.write(at, &[1; 10]).is_ok());
        let (kind, what) = memory.write(at + 7, &[1; 4]).unwrap_err();
        assert_eq!(kind, Kind::OutOfBounds);
        assert!(
            what.contains("end 1 bytes after an allocation of 10 bytes"),
            "{what}"
        );
        assert_eq!(memory.read(0, 1).unwrap_err().0, Kind::OutOfBounds);
    }

    #[test]
    fn freed_memory_stays_freed() {
        let mut memory = Memory::new();
        let at = memory.alloc(10);
        memory.free(at).unwrap();
        assert_eq!(memory.free(at).unwrap_err().0, Kind::UseAfterFree);
        memory.alloc(10);
        assert_eq!(memory.read(at + 3, 1).unwrap_err().0, Kind::UseAfterFree);
        assert_eq!(memory.used_bytes(), 10);
    }

    #[test]
    fn host_memory_comes_back_in_other_pieces() {
        let mut memory = Memory::new();
        let mut room = [0u8; 64];
        let at = room.as_mut_ptr();
        // SAFETY: parts of `room`, which stays to the end.
        unsafe {
            let (first, second) = (at.add(16), at.add(32));
            memory.add_host(first, 16);
            memory.add_host(second, 16);
            memory.free(first as u64).unwrap();
            memory.free(second as u64).unwrap();
            memory.add_host(at, 64);
        }
        memory.write(at as u64 + 20, &[1; 20]).unwrap();
        assert_eq!(memory.read(at as u64 + 36, 2).unwrap(), [1, 1]);
    }

    #[test]
    fn a_copy_of_what_was_not_written_is_not_written() {
        let mut memory = Memory::new();
        let (a, b) = (memory.alloc(4), memory.alloc(4));
        memory.write(a, &[7, 7]).unwrap();
        memory.copy(b, a, 4).unwrap();
        assert_eq!(memory.read(b, 4).unwrap(), [7, 7, FRESH, FRESH]);
        assert!(memory.read_written(b, 2).is_ok());
        assert_eq!(memory.read_written(b, 3).unwrap_err().0, Kind::Unwritten);
    }
}
