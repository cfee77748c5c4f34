//! Modules and their functions.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use super::device::NUM_MULTIPROCESSORS;
use super::state::{Driver, Function};
use super::{Answer, Code, api, put, text};
use crate::exec::{MAX_THREADS, SHARED_BYTES_OPTIN};
use crate::module::Module;
use crate::ptx::program::Program;

/// Values of `CUfunction_attribute`.
const MAX_THREADS_PER_BLOCK: c_int = 0;
const SHARED_SIZE: c_int = 1;
const LOCAL_SIZE: c_int = 3;
const NUM_REGISTERS: c_int = 4;
const PTX_VERSION: c_int = 5;
const BINARY_VERSION: c_int = 6;
const MAX_DYNAMIC_SHARED: c_int = 8;
const CARVEOUT: c_int = 9;
/// Registers of a thread that the device would spill beyond.
const MAX_REGISTERS: u32 = 255;

impl Driver {
    fn load(&mut self, handle: *mut u64, source: &str) -> Answer {
        self.health()?;
        let module = Module::load(source, &mut self.memory).map_err(|e| {
            let line = source
                .lines()
                .nth(e.line.saturating_sub(1) as usize)
                .unwrap_or_default();
            eprintln!(
                "CUDA emulator (CPU): a module does not load: {e}\n  {}",
                line.trim()
            );
            Code::InvalidPtx
        })?;
        let key = self.handle();
        self.modules.insert(key, Arc::new(module));
        put(handle, key)
    }

    fn load_image(&mut self, handle: *mut u64, image: *const c_char) -> Answer {
        let text = text(image)?;
        if text.starts_with("\u{7f}ELF") || !text.contains(".version") {
            eprintln!(
                "CUDA emulator (CPU): expected a module of PTX text, got something else (a cubin?)"
            );
            return Err(Code::InvalidImage);
        }
        self.load(handle, &text)
    }

    /// The function of that handle.
    pub(super) fn function(&mut self, handle: u64) -> Result<&mut Function, Code> {
        self.functions.get_mut(&handle).ok_or(Code::InvalidHandle)
    }
}

impl Function {
    pub(super) fn program(&self) -> &Program {
        &self.module.kernels()[self.kernel]
    }
}

/// Blocks of a kernel that fit a multiprocessor at a time.
fn occupancy(program: &Program, threads: c_int, dynamic_shared: usize) -> c_int {
    let threads = threads.max(1) as u64;
    let shared = program.static_shared + dynamic_shared as u64;
    let by_threads = 2048 / threads.next_multiple_of(32);
    let by_shared = u64::from(SHARED_BYTES_OPTIN)
        .checked_div(shared)
        .unwrap_or(32);
    let registers = u64::from(program.num_registers.clamp(1, MAX_REGISTERS));
    by_threads
        .min(by_shared)
        .min(65_536 / (registers * threads))
        .min(32) as c_int
}

/// Blocks on the device, and threads of each, with the most threads at a time; larger blocks win.
fn fullest(
    program: &Program,
    shared_of: Option<extern "C" fn(c_int) -> usize>,
    shared: usize,
    limit: c_int,
) -> (c_int, c_int) {
    let bound = if program.max_threads == 0 {
        MAX_THREADS
    } else {
        program.max_threads
    };
    let bound = if limit > 0 {
        (limit as u32).min(bound)
    } else {
        bound
    };
    let sizes = (1..=bound / 32).map(|warps| (warps * 32) as c_int);
    let with_blocks = sizes.map(|threads| {
        let shared = shared_of.map_or(shared, |of| of(threads));
        (occupancy(program, threads, shared), threads)
    });
    let best = with_blocks.max_by_key(|(blocks, threads)| (blocks * threads, *threads));
    let (blocks, threads) = best.unwrap_or((1, bound as c_int));
    (blocks * NUM_MULTIPROCESSORS, threads)
}

api! {
    /// Loads a module from text.
    fn cuModuleLoadData(module: *mut u64, image: *const c_char) |driver| { driver.load_image(module, image) }
    /// Loads a module from text.
    fn cuModuleLoadDataEx(module: *mut u64, image: *const c_char, _count: u32, _options: *mut c_int, _values: *mut *mut u8) |driver| {
        driver.load_image(module, image)
    }
    /// Loads a module from a file.
    fn cuModuleLoad(module: *mut u64, path: *const c_char) |driver| {
        let source = std::fs::read_to_string(text(path)?).map_err(|_| Code::FileNotFound)?;
        driver.load(module, &source)
    }
    /// Ends a module, after all work.
    fn cuModuleUnload(module: u64) |driver| {
        let found = driver.modules.remove(&module).ok_or(Code::InvalidHandle)?;
        driver.wait_for_all().ok();
        driver.functions.retain(|_, function| !Arc::ptr_eq(&function.module, &found));
        let result = found.unload(&mut driver.memory);
        driver.bad(result, "cuModuleUnload")
    }
    /// A kernel by name.
    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) |driver| {
        let name = text(name)?;
        let found = driver.modules.get(&module).ok_or(Code::InvalidHandle)?.clone();
        let kernel = found.kernels().iter().position(|k| k.name == name).ok_or(Code::NotFound)?;
        let handle = driver.handle();
        driver.functions.insert(handle, Function { module: found, kernel, max_dynamic_shared: 0 });
        put(function, handle)
    }
    /// A variable by name.
    fn cuModuleGetGlobal_v2(at: *mut u64, bytes: *mut usize, module: u64, name: *const c_char) |driver| {
        let found = driver.modules.get(&module).ok_or(Code::InvalidHandle)?;
        let (base, len) = found.variable(&text(name)?).ok_or(Code::NotFound)?;
        if !bytes.is_null() {
            put(bytes, len)?;
        }
        if at.is_null() { Ok(()) } else { put(at, base) }
    }
    /// An attribute of a kernel.
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: u64) |driver| {
        let function = driver.function(function)?;
        let program = function.program();
        let bound = if program.max_threads == 0 { MAX_THREADS } else { program.max_threads };
        let found = match attribute {
            MAX_THREADS_PER_BLOCK => bound,
            SHARED_SIZE => program.static_shared as u32,
            LOCAL_SIZE => program.local_bytes as u32,
            NUM_REGISTERS => program.num_registers.min(MAX_REGISTERS),
            PTX_VERSION | BINARY_VERSION => 80,
            MAX_DYNAMIC_SHARED => function.max_dynamic_shared,
            _ => 0,
        };
        put(value, found as c_int)
    }
    /// Sets an attribute of a kernel.
    fn cuFuncSetAttribute(function: u64, attribute: c_int, value: c_int) |driver| {
        let function = driver.function(function)?;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let room = u64::from(SHARED_BYTES_OPTIN) - function.program().static_shared.min(u64::from(SHARED_BYTES_OPTIN));
                if value < 0 || value as u64 > room {
                    return Err(Code::InvalidValue);
                }
                function.max_dynamic_shared = value as u32;
                Ok(())
            }
            CARVEOUT => Ok(()),
            _ => Err(Code::NotSupported),
        }
    }
    /// A preference about caches, of which there are none.
    fn cuFuncSetCacheConfig(function: u64, _config: u32) |driver| { driver.function(function).map(|_| ()) }
    /// Blocks that fit a multiprocessor at a time.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: *mut c_int, function: u64, threads: c_int, shared: usize) |driver| {
        put(count, occupancy(driver.function(function)?.program(), threads, shared))
    }
    /// Blocks that fit a multiprocessor at a time.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: *mut c_int, function: u64, threads: c_int, shared: usize, _flags: u32) |driver| {
        put(count, occupancy(driver.function(function)?.program(), threads, shared))
    }
    /// Threads of a block, and blocks, that fill the device.
    fn cuOccupancyMaxPotentialBlockSize(
        blocks: *mut c_int, threads: *mut c_int, function: u64, shared_of: Option<extern "C" fn(c_int) -> usize>,
        shared: usize, limit: c_int,
    ) |driver| {
        let (found_blocks, found_threads) = fullest(driver.function(function)?.program(), shared_of, shared, limit);
        put(blocks, found_blocks)?;
        put(threads, found_threads)
    }
    /// Threads of a block, and blocks, that fill the device.
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        blocks: *mut c_int, threads: *mut c_int, function: u64, shared_of: Option<extern "C" fn(c_int) -> usize>,
        shared: usize, limit: c_int, _flags: u32,
    ) |driver| {
        let (found_blocks, found_threads) = fullest(driver.function(function)?.program(), shared_of, shared, limit);
        put(blocks, found_blocks)?;
        put(threads, found_threads)
    }
    /// Shared memory left to each of some blocks of a multiprocessor.
    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: u64, blocks: c_int, _threads: c_int) |driver| {
        let own = driver.function(function)?.program().static_shared as usize;
        let share = SHARED_BYTES_OPTIN as usize / blocks.max(1) as usize;
        put(bytes, share.saturating_sub(own))
    }
}
