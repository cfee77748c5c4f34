//! Contexts. All of them share the one device and its memory.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use super::{Code, api, put};

/// Handle of the primary context.
const PRIMARY: u64 = 0x100;

thread_local! {
    /// The calling thread's context.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

api! {
    /// Takes the primary context.
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) |driver| {
        if device != 0 {
            return Err(Code::InvalidDevice);
        }
        driver.primary_users += 1;
        put(context, PRIMARY)
    }
    /// Gives the primary context back.
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) |driver| {
        driver.primary_users = driver.primary_users.saturating_sub(1);
        Ok(())
    }
    /// Makes a context.
    fn cuCtxCreate_v2(context: *mut u64, _flags: u32, _device: c_int) |driver| {
        let handle = driver.handle();
        driver.others.insert(handle, 0);
        CURRENT.set(handle);
        put(context, handle)
    }
    /// Makes a context.
    fn cuCtxCreate_v3(context: *mut u64, _params: *mut c_void, _count: c_int, _flags: u32, _device: c_int) |driver| {
        let handle = driver.handle();
        driver.others.insert(handle, 0);
        CURRENT.set(handle);
        put(context, handle)
    }
    /// Makes a context.
    fn cuCtxCreate_v4(context: *mut u64, _params: *mut c_void, _flags: u32, _device: c_int) |driver| {
        let handle = driver.handle();
        driver.others.insert(handle, 0);
        CURRENT.set(handle);
        put(context, handle)
    }
    /// Ends a context.
    fn cuCtxDestroy_v2(context: u64) |driver| {
        driver.others.remove(&context).map(|_| ()).ok_or(Code::InvalidContext)
    }
    /// The calling thread's context.
    fn cuCtxGetCurrent(context: *mut u64) |_driver| { put(context, CURRENT.get()) }
    /// Sets the calling thread's context.
    fn cuCtxSetCurrent(context: u64) |_driver| {
        CURRENT.set(context);
        Ok(())
    }
    /// The device of the context.
    fn cuCtxGetDevice(device: *mut c_int) |_driver| { put(device, 0) }
    /// Waits for all work.
    fn cuCtxSynchronize() |driver| {
        if driver.streams.values().any(|stream| stream.capture.is_some()) {
            return Err(Code::CaptureUnsupported);
        }
        driver.wait_for_all()
    }
    /// How the host waits: one way only.
    fn cuCtxSetFlags(_flags: u32) |_driver| { Ok(()) }
    /// A limit; they bind nothing here.
    fn cuCtxGetLimit(value: *mut usize, _limit: u32) |_driver| { put(value, 0) }
    /// Sets a limit; they bind nothing here.
    fn cuCtxSetLimit(_limit: u32, _value: usize) |_driver| { Ok(()) }
    /// A preference about caches, of which there are none.
    fn cuCtxGetCacheConfig(config: *mut u32) |_driver| { put(config, 0) }
    /// A preference about caches, of which there are none.
    fn cuCtxSetCacheConfig(_config: u32) |_driver| { Ok(()) }
    /// Priorities of streams: lowest and highest.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |_driver| {
        if !least.is_null() {
            put(least, 0)?;
        }
        if greatest.is_null() { Ok(()) } else { put(greatest, -5) }
    }
    /// Starts a profiler, of which there is none.
    fn cuProfilerStart() |_driver| { Ok(()) }
    /// Ends a profiler, of which there is none.
    fn cuProfilerStop() |_driver| { Ok(()) }
}
