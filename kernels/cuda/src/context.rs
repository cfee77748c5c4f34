//! Contexts, events, memory and modules (and `stream.rs`): thin owners of what the driver hands
//! out.
//!
//! Nothing here allocates behind a caller's back or waits without saying so. Handles keep their
//! context alive; a context is the device's primary one. [`Context::bind`] must come first on each
//! thread that makes calls.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::error::{CudaError, NOT_READY};
use crate::probe;
pub use crate::stream::{Graph, Grid, Stream};

/// What the name of an emulated device begins with.
const EMULATOR: &str = "CUDA emulator";

/// An address in device memory (or of page-locked memory, which kernels reach too).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// No memory: for operands that a launcher may do without.
    pub const NULL: Self = Self(0);

    /// The address `bytes` behind this one.
    #[must_use]
    pub const fn add(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }

    /// Whether it is [`Self::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// Names the call that failed.
pub(crate) trait Named<T> {
    /// As a [`CudaError`] of that call.
    fn named(self, call: &'static str) -> Result<T, CudaError>;
}

impl<T> Named<T> for Result<T, DriverError> {
    fn named(self, call: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| {
            let name = error.error_name().ok();
            CudaError::Driver {
                call,
                name: name.map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
                code: error.0 as i32,
            }
        })
    }
}

struct Primary {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context may be used from any thread that has made it current.
unsafe impl Send for Primary {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Primary {}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained once when this was made. A lost context cannot be released; the process
        // ends with it.
        unsafe { result::primary_ctx::release(self.device) }.ok();
    }
}

/// The primary context of a device.
#[derive(Clone)]
pub struct Context(Arc<Primary>);

impl Context {
    /// The context of the device at `ordinal`, current on this thread.
    ///
    /// # Errors
    /// A library that is missing, no such device, a driver that refuses.
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        probe::driver()?;
        result::init().named("cuInit")?;
        let device = result::device::get(ordinal as i32).named("cuDeviceGet")?;
        // SAFETY: the device was just given out by the driver.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = raw.named("cuDevicePrimaryCtxRetain")?;
        let context = Self(Arc::new(Primary { device, raw }));
        context.bind()?;
        Ok(context)
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained.
        unsafe { result::ctx::set_current(self.0.raw) }.named("cuCtxSetCurrent")
    }

    /// The device's name.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn name(&self) -> Result<String, CudaError> {
        result::device::get_name(self.0.device).named("cuDeviceGetName")
    }

    /// Whether this is the driver of the crate `emulator`, on which nothing is measured.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn is_emulator(&self) -> Result<bool, CudaError> {
        Ok(self.name()?.starts_with(EMULATOR))
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32, CudaError> {
        // SAFETY: the device was given out by the driver.
        unsafe { result::device::get_attribute(self.0.device, attribute) }
            .named("cuDeviceGetAttribute")
    }

    /// Compute capability: major, minor.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn capability(&self) -> Result<(u32, u32), CudaError> {
        use sys::CUdevice_attribute as A;
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major as u32, minor as u32))
    }

    /// Multiprocessors.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn multiprocessors(&self) -> Result<u32, CudaError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(self.attribute(attribute)? as u32)
    }

    /// Bytes of memory: free, all.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        result::mem_get_info().named("cuMemGetInfo")
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(device {})", self.0.device)
    }
}

/// Memory of the device, given back when this is dropped.
pub struct DeviceMemory {
    at: DevicePtr,
    bytes: usize,
    context: Context,
}

impl DeviceMemory {
    /// `bytes` bytes with any content, for `what` as an error names it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or what else the driver answers.
    pub fn new(context: &Context, what: &str, bytes: usize) -> Result<Self, CudaError> {
        if bytes == 0 {
            return Ok(Self {
                at: DevicePtr::NULL,
                bytes,
                context: context.clone(),
            });
        }
        // SAFETY: memory with any content is what is asked for.
        let at = match unsafe { result::malloc_sync(bytes) } {
            Ok(at) => at,
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(CudaError::OutOfMemory {
                    what: what.to_owned(),
                    needed: bytes,
                    available: context.memory()?.0,
                });
            }
            Err(error) => return Err(error).named("cuMemAlloc"),
        };
        Ok(Self {
            at: DevicePtr(at),
            bytes,
            context: context.clone(),
        })
    }

    /// Where it starts.
    pub fn at(&self) -> DevicePtr {
        self.at
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.context.bind().is_ok() {
            // SAFETY: allocated when this was made; the call waits for work that uses it.
            unsafe { result::free_sync(self.at.0) }.ok();
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes)", self.bytes)
    }
}

/// Page-locked memory of the host, given back when this is dropped.
///
/// Copies from and to it run behind the host's back: who writes or reads it must know which copies
/// are over.
pub struct Pinned {
    at: *mut u8,
    bytes: usize,
    context: Context,
}

// SAFETY: plain memory that this owns.
unsafe impl Send for Pinned {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `bytes` bytes, zeroed.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        const PORTABLE_AND_MAPPED: u32 = 3;
        let held = bytes.max(64);
        // SAFETY: it is zeroed before anything reads it.
        let at = unsafe { result::malloc_host(held, PORTABLE_AND_MAPPED) };
        let at = at.named("cuMemHostAlloc")?.cast::<u8>();
        // SAFETY: `held` bytes were given.
        unsafe { at.write_bytes(0, held) };
        Ok(Self {
            at,
            bytes,
            context: context.clone(),
        })
    }

    /// All its bytes; no copy or kernel that writes them may be under way.
    pub fn bytes(&self) -> &[u8] {
        self.part(0, self.bytes)
    }

    /// All its bytes, to be written; no copy or kernel that reads them may be under way.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.part_mut(0, self.bytes)
    }

    /// Bytes `start..start + len`, to be written; no copy or kernel that reads them may be under way.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn part_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start + len <= self.bytes, "{start}+{len} of {}", self.bytes);
        // SAFETY: inside what was allocated and zeroed, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(start), len) }
    }

    /// Bytes `start..start + len`; no copy or kernel that writes them may be under way.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn part(&self, start: usize, len: usize) -> &[u8] {
        assert!(start + len <= self.bytes, "{start}+{len} of {}", self.bytes);
        // SAFETY: inside what was allocated and zeroed.
        unsafe { std::slice::from_raw_parts(self.at.add(start), len) }
    }

    /// Where kernels reach it, as is the case for all page-locked memory under unified addressing.
    pub fn device(&self) -> DevicePtr {
        DevicePtr(self.at as u64)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated when this was made.
            unsafe { result::free_host(self.at.cast()) }.ok();
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes)
    }
}

/// A point in a stream's work.
pub struct Event {
    raw: sys::CUevent,
    context: Context,
}

// SAFETY: an event may be used from any thread whose context is current.
unsafe impl Send for Event {}

impl Event {
    /// An event that keeps no time.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Self {
            raw: raw.named("cuEventCreate")?,
            context: context.clone(),
        })
    }

    /// An event that keeps its time.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn timed(context: &Context) -> Result<Self, CudaError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Self {
            raw: raw.named("cuEventCreate")?,
            context: context.clone(),
        })
    }

    /// Microseconds from `earlier` to this event; both are [`Self::timed`], and over.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn us_since(&self, earlier: &Self) -> Result<f64, CudaError> {
        // SAFETY: both events are alive.
        let ms = unsafe { result::event::elapsed(earlier.raw, self.raw) };
        Ok(f64::from(ms.named("cuEventElapsedTime")?) * 1e3)
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Stands behind all that `stream` was given so far.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        unsafe { result::event::record(self.raw, stream.raw()) }.named("cuEventRecord")
    }

    /// Whether that work is over.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn is_over(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        match unsafe { result::event::query(self.raw) }.named("cuEventQuery") {
            Ok(()) => Ok(true),
            Err(CudaError::Driver {
                code: NOT_READY, ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until that work is over.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.raw) }.named("cuEventSynchronize")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made when this was made.
            unsafe { result::event::destroy(self.raw) }.ok();
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

/// Kernels that are loaded.
pub struct Module {
    raw: sys::CUmodule,
    context: Context,
}

// SAFETY: a module may be used from any thread whose context is current.
unsafe impl Send for Module {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Module {}

/// A kernel of a module that stays loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(sys::CUfunction);

#[cfg(test)]
impl Function {
    /// No kernel.
    pub(crate) const fn none() -> Self {
        Self(std::ptr::null_mut())
    }
}

// SAFETY: a handle of the driver, valid on any thread whose context is current.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads a cubin, or PTX text that ends with a zero.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Panics
    /// If the image is neither.
    pub fn load(context: &Context, image: &[u8]) -> Result<Self, CudaError> {
        assert!(
            image.starts_with(b"\x7fELF") || image.ends_with(&[0]),
            "expected a cubin, or text that ends with a zero"
        );
        // SAFETY: a cubin says its own length, and text ends with a zero.
        let raw = unsafe { result::module::load_data(image.as_ptr().cast()) };
        Ok(Self {
            raw: raw.named("cuModuleLoadData")?,
            context: context.clone(),
        })
    }

    /// The kernel of that name, to be used while the module is loaded.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Panics
    /// If the name has a zero inside.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        #[allow(
            clippy::expect_used,
            reason = "names of kernels are written in this crate"
        )]
        let name = CString::new(name).expect("a name without zeros");
        // SAFETY: the module is loaded.
        let raw = unsafe { result::module::get_function(self.raw, name) };
        Ok(Function(raw.named("cuModuleGetFunction")?))
    }
}

impl Function {
    /// The driver's handle.
    pub(crate) const fn raw(self) -> sys::CUfunction {
        self.0
    }

    /// Lets launches ask for up to `bytes` of dynamic shared memory.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn allow_shared(self, bytes: u32) -> Result<(), CudaError> {
        use sys::CUfunction_attribute_enum as A;
        let attribute = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is loaded.
        unsafe { result::function::set_function_attribute(self.0, attribute, bytes as i32) }
            .named("cuFuncSetAttribute")
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded when this was made.
            unsafe { result::module::unload(self.raw) }.ok();
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Module")
    }
}
