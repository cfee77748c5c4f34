//! What a launch tells its kernels: rows, positions, pages, members. All tables of a launch are
//! written to page-locked memory and copied to the device in one go, ahead of its kernels: always to
//! the same place, as launches run one after another.

use crate::context::{Context, DeviceMemory, DevicePtr, Pinned, Stream};
use crate::error::CudaError;
use crate::kernels::Member;
use crate::kernels::elementwise::Step;
use crate::kernels::rows::Span;

/// Alignment of a table.
const ALIGN: usize = 16;

/// An entry of a table.
///
/// # Safety
/// Any bytes of it may be copied: it has no pointers of the host and no padding.
pub unsafe trait Entry: Copy {}

// SAFETY: a number.
unsafe impl Entry for i32 {}
// SAFETY: an address of the device, a number.
unsafe impl Entry for DevicePtr {}
// SAFETY: two addresses and two u32.
unsafe impl Entry for Span {}
// SAFETY: four u32.
unsafe impl Entry for Member {}
// SAFETY: an address, a float and three u32.
unsafe impl Entry for Step {}

/// Tables and flags of one launch in flight.
#[derive(Debug)]
pub struct Stage {
    tables: Pinned,
    /// Where they go.
    device: DevicePtr,
    used: usize,
    room: usize,
    flags: Pinned,
    flags_used: usize,
    flags_room: usize,
}

impl Stage {
    /// Room for as many bytes of tables as `device` has.
    ///
    /// # Errors
    /// No memory.
    pub fn new(context: &Context, device: &DeviceMemory) -> Result<Self, CudaError> {
        let bytes = device.bytes();
        let flags_room = (bytes / 16).max(64);
        Ok(Self {
            tables: Pinned::new(context, bytes)?,
            device: device.at(),
            used: 0,
            room: bytes,
            flags: Pinned::new(context, flags_room)?,
            flags_used: 0,
            flags_room,
        })
    }

    /// Forgets all tables; the launch that used them must be over.
    pub fn clear(&mut self) {
        self.used = 0;
        self.flags_used = 0;
    }

    /// Adds a table; returns where it will be on the device, null if it is empty.
    ///
    /// # Errors
    /// No room.
    pub fn push<T: Entry>(
        &mut self,
        entries: impl IntoIterator<Item = T>,
    ) -> Result<DevicePtr, String> {
        let start = self.used;
        for entry in entries {
            let bytes = size_of::<T>();
            if self.used + bytes > self.room {
                return Err(format!(
                    "a launch needs more than {} bytes of tables",
                    self.room
                ));
            }
            // SAFETY: entries have no padding, as their trait says.
            let from =
                unsafe { std::slice::from_raw_parts((&raw const entry).cast::<u8>(), bytes) };
            self.tables.part_mut(self.used, bytes).copy_from_slice(from);
            self.used += bytes;
        }
        if self.used == start {
            return Ok(DevicePtr::NULL);
        }
        self.used = self.used.next_multiple_of(ALIGN).min(self.room);
        Ok(self.device.add(start))
    }

    /// Room for `num` flags of a byte: where kernels write them, and where to read them.
    ///
    /// # Errors
    /// No room.
    pub fn flags(&mut self, num: usize) -> Result<(DevicePtr, usize), String> {
        let start = self.flags_used;
        if start + num > self.flags_room {
            return Err(format!("a launch of more than {} flags", self.flags_room));
        }
        self.flags_used += num;
        Ok((self.flags.device().add(start), start))
    }

    /// A flag of a launch that is over.
    pub fn flag(&self, at: usize) -> bool {
        self.flags.part(at, 1)[0] != 0
    }

    /// Copies the tables to the device.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: nothing is written here until the launch is over.
        unsafe { stream.copy_in(self.device, &self.tables, 0, self.used) }
    }
}
