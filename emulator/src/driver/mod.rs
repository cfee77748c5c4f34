//! The driver's C interface, as far as cudarc uses it.
//!
//! One library answers for `libcuda` and, under other names, for `libcublas` and `libcublasLt`: the
//! names are links to the same file, so that all see the same device memory. Handles are numbers,
//! all state is behind one lock, and no panic leaves this module.
//!
//! Work is queued per stream and runs only when something waits, in a random order that the streams
//! and events allow. A check that finds something prints its report, and like a GPU's error it is
//! what every later call answers.

mod absent;
mod codes;
mod context;
mod device;
mod graph;
mod inject;
mod launch;
mod memory;
mod modules;
mod order;
mod queue;
mod state;
mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

pub use codes::Code;
pub(crate) use queue::Work;
pub(crate) use state::Driver;

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

/// What a function answers: nothing, or the code of an error.
pub(crate) type Answer = Result<(), Code>;

/// Runs a function of the interface under the lock, and turns a panic into an error.
pub(crate) fn guard(name: &str, body: impl FnOnce(&mut Driver) -> Answer) -> Code {
    let run = || {
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = driver.get_or_insert_with(Driver::new);
        match driver.injected(name) {
            Some(code) => Err(code),
            None => body(driver),
        }
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => Code::Success,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!("CUDA emulator: {name}: a mistake of the emulator itself");
            Code::Unknown
        }
    }
}

/// Declares functions of the C interface: `fn name(arguments) |driver| { body }`.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> $crate::driver::Code {
            $crate::driver::guard(stringify!($name), |$driver| -> $crate::driver::Answer { $body })
        }
    )*};
}
pub(crate) use api;

/// Writes a result where the caller wants it.
pub(crate) fn put<T>(at: *mut T, value: T) -> Answer {
    if at.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null, and the interface asks the caller for room for a `T`.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// Reads a value that the caller points to.
pub(crate) fn get<T: Copy>(at: *const T) -> Result<T, Code> {
    if at.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null, and the interface asks the caller for a `T`.
    Ok(unsafe { at.read_unaligned() })
}

/// Text that the caller points to.
pub(crate) fn text(at: *const std::ffi::c_char) -> Result<String, Code> {
    if at.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null, and the interface asks the caller for text that ends with a zero.
    Ok(unsafe { std::ffi::CStr::from_ptr(at) }
        .to_string_lossy()
        .into_owned())
}

/// Bytes that the caller points to.
pub(crate) fn host_bytes<'a>(at: *const u8, len: usize) -> Result<&'a [u8], Code> {
    if len == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null, and the interface asks the caller for `len` bytes.
    Ok(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Room of the caller for bytes.
pub(crate) fn host_bytes_mut<'a>(at: *mut u8, len: usize) -> Result<&'a mut [u8], Code> {
    if len == 0 {
        return Ok(&mut []);
    }
    if at.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null, and the interface asks the caller for room for `len` bytes.
    Ok(unsafe { std::slice::from_raw_parts_mut(at, len) })
}
