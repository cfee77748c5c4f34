//! Memory and copies.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::device::MEMORY_BYTES;
use super::queue::{Source, Work};
use super::state::{Driver, LEGACY};
use super::{Answer, Code, api, host_bytes, host_bytes_mut, put};
use crate::exec::FRESH;

/// Handle of the default pool.
const DEFAULT_POOL: u64 = 0x200;
/// Alignment of page-locked memory.
const PAGE: usize = 4096;

impl Driver {
    fn allocate(&mut self, at: *mut u64, bytes: usize) -> Answer {
        self.health()?;
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        if self.memory.used_bytes() as usize + bytes > MEMORY_BYTES {
            return Err(Code::OutOfMemory);
        }
        let base = self.memory.alloc(bytes);
        put(at, base)
    }

    /// Whether all bytes are page-locked memory that was allocated here.
    fn is_locked(&self, at: usize, len: usize) -> bool {
        let found = self.host.range(..=at as u64).next_back();
        found.is_some_and(|(base, bytes)| at + len <= *base as usize + bytes)
    }

    fn is_capturing(&self, stream: u64) -> bool {
        let key = self.stream_key(stream).unwrap_or(LEGACY);
        self.streams.get(&key).is_some_and(|s| s.capture.is_some())
    }

    /// Memory that the program pages is read before the call returns; locked memory when the copy
    /// runs.
    fn upload(&mut self, to: u64, from: *const u8, len: usize, stream: u64) -> Answer {
        if len == 0 {
            return self.health();
        }
        let bytes = host_bytes(from, len)?;
        let from = if self.is_locked(from as usize, len) || self.is_capturing(stream) {
            Source::Host(from as usize, len)
        } else {
            Source::Bytes(Arc::from(bytes))
        };
        self.enqueue(stream, Work::ToDevice { to, from })
    }

    /// A copy to memory that the program pages has run when the call returns.
    fn download(&mut self, to: *mut u8, from: u64, len: usize, stream: u64) -> Answer {
        if len == 0 {
            return self.health();
        }
        host_bytes_mut(to, len)?;
        self.enqueue(
            stream,
            Work::ToHost {
                to: to as usize,
                from,
                len,
            },
        )?;
        if self.is_locked(to as usize, len) || self.is_capturing(stream) {
            Ok(())
        } else {
            self.synchronize(stream)
        }
    }

    fn host_alloc(&mut self, at: *mut *mut u8, bytes: usize) -> Answer {
        self.health()?;
        let layout = Layout::from_size_align(bytes.max(1), PAGE).map_err(|_| Code::InvalidValue)?;
        // SAFETY: the layout has a size above zero.
        let room = unsafe { alloc(layout) };
        if room.is_null() {
            return Err(Code::OutOfMemory);
        }
        // SAFETY: `room` has `bytes` bytes, and stays until `host_free`, which takes it back first.
        unsafe {
            room.write_bytes(FRESH, bytes);
            self.memory.add_host(room, bytes);
        }
        self.host.insert(room as u64, bytes);
        put(at, room)
    }

    fn host_free(&mut self, at: *mut u8) -> Answer {
        self.wait_for_all().ok();
        let bytes = self.host.remove(&(at as u64)).ok_or(Code::InvalidValue)?;
        let result = self.memory.free(at as u64);
        let layout = Layout::from_size_align(bytes.max(1), PAGE).map_err(|_| Code::InvalidValue)?;
        // SAFETY: `host_alloc` made it with this layout, and it was still in the list.
        unsafe { dealloc(at, layout) };
        self.bad(result, "cuMemFreeHost")
    }

    /// Frees after all work, as the real call waits for it.
    fn free_now(&mut self, at: u64) -> Answer {
        if at == 0 {
            return Ok(());
        }
        self.wait_for_all()?;
        let result = self.memory.free(at);
        self.bad(result, "cuMemFree")
    }
}

fn fill(to: u64, pattern: &[u8], count: usize) -> Work {
    Work::Fill {
        to,
        pattern: pattern.to_vec(),
        count,
    }
}

api! {
    /// Memory of the device.
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) |driver| { driver.allocate(at, bytes) }
    /// Memory of the device, in the order of a stream.
    fn cuMemAllocAsync(at: *mut u64, bytes: usize, _stream: u64) |driver| { driver.allocate(at, bytes) }
    /// Memory of the device from a pool.
    fn cuMemAllocFromPoolAsync(at: *mut u64, bytes: usize, _pool: u64, _stream: u64) |driver| {
        driver.allocate(at, bytes)
    }
    /// Gives memory back.
    fn cuMemFree_v2(at: u64) |driver| { driver.free_now(at) }
    /// Gives memory back, in the order of a stream.
    fn cuMemFreeAsync(at: u64, stream: u64) |driver| {
        if at == 0 { Ok(()) } else { driver.enqueue(stream, Work::Free(at)) }
    }
    /// Bytes that are free, and all.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        put(free, MEMORY_BYTES - driver.memory.used_bytes() as usize)?;
        put(total, MEMORY_BYTES)
    }
    /// The allocation that an address is in.
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, at: u64) |driver| {
        let found = driver.memory.allocation_of(at).ok_or(Code::NotFound)?;
        let (start, len) = (found.base, found.bytes as usize);
        if !base.is_null() {
            put(base, start)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, len) }
    }
    /// Page-locked memory, which kernels reach at the same address.
    fn cuMemHostAlloc(at: *mut *mut u8, bytes: usize, _flags: u32) |driver| { driver.host_alloc(at, bytes) }
    /// Page-locked memory, which kernels reach at the same address.
    fn cuMemAllocHost_v2(at: *mut *mut u8, bytes: usize) |driver| { driver.host_alloc(at, bytes) }
    /// Gives page-locked memory back.
    fn cuMemFreeHost(at: *mut u8) |driver| { driver.host_free(at) }
    /// Where kernels reach page-locked memory.
    fn cuMemHostGetDevicePointer_v2(device: *mut u64, at: *mut u8, _flags: u32) |driver| {
        if driver.is_locked(at as usize, 1) { put(device, at as u64) } else { Err(Code::InvalidValue) }
    }
    /// Flags of page-locked memory.
    fn cuMemHostGetFlags(flags: *mut u32, _at: *mut u8) |_driver| { put(flags, 3) }
    /// Copies to the device.
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, len: usize) |driver| {
        driver.upload(to, from, len, LEGACY)?;
        driver.synchronize(LEGACY)
    }
    /// Copies to the device, in the order of a stream.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: u64) |driver| {
        driver.upload(to, from, len, stream)
    }
    /// Copies to the host.
    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, len: usize) |driver| {
        driver.download(to, from, len, LEGACY)?;
        driver.synchronize(LEGACY)
    }
    /// Copies to the host, in the order of a stream.
    fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, len: usize, stream: u64) |driver| {
        driver.download(to, from, len, stream)
    }
    /// Copies within the device.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) |driver| {
        driver.enqueue(LEGACY, Work::Copy { to, from, len })
    }
    /// Copies within the device, in the order of a stream.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) |driver| {
        driver.enqueue(stream, Work::Copy { to, from, len })
    }
    /// Copies between devices, of which there is one.
    fn cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, len: usize, stream: u64) |driver| {
        driver.enqueue(stream, Work::Copy { to, from, len })
    }
    /// Fills with a byte.
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |driver| {
        driver.enqueue(LEGACY, fill(to, &[value], count))
    }
    /// Fills with a byte, in the order of a stream.
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |driver| {
        driver.enqueue(stream, fill(to, &[value], count))
    }
    /// Fills with two bytes, in the order of a stream.
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) |driver| {
        driver.enqueue(stream, fill(to, &value.to_le_bytes(), count))
    }
    /// Fills with four bytes, in the order of a stream.
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) |driver| {
        driver.enqueue(stream, fill(to, &value.to_le_bytes(), count))
    }
    /// The device's pool.
    fn cuDeviceGetDefaultMemPool(pool: *mut u64, _device: c_int) |_driver| { put(pool, DEFAULT_POOL) }
    /// The device's pool.
    fn cuDeviceGetMemPool(pool: *mut u64, _device: c_int) |_driver| { put(pool, DEFAULT_POOL) }
    /// Sets the device's pool; all are alike.
    fn cuDeviceSetMemPool(_device: c_int, _pool: u64) |_driver| { Ok(()) }
    /// Makes a pool; all are alike.
    fn cuMemPoolCreate(pool: *mut u64, _props: *const c_void) |driver| {
        let handle = driver.handle();
        driver.others.insert(handle, 0);
        put(pool, handle)
    }
    /// Ends a pool.
    fn cuMemPoolDestroy(pool: u64) |driver| {
        driver.others.remove(&pool).map(|_| ()).ok_or(Code::InvalidValue)
    }
    /// Gives unused memory of a pool back, of which there is none.
    fn cuMemPoolTrimTo(_pool: u64, _keep: usize) |_driver| { Ok(()) }
    /// An attribute of a pool.
    fn cuMemPoolGetAttribute(_pool: u64, _attribute: c_int, value: *mut u64) |_driver| { put(value, 0) }
    /// Sets an attribute of a pool; none changes anything here.
    fn cuMemPoolSetAttribute(_pool: u64, _attribute: c_int, _value: *mut c_void) |_driver| { Ok(()) }
}
