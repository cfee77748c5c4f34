//! Streams, and the graphs that are captured from them.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use crate::context::{Context, DevicePtr, Event, Function, Named, Pinned};
use crate::error::CudaError;
use crate::record::{Operation, Record};

/// A stream: work that runs in the order in which it is given. While it records, kernels, copies
/// within the device and fills are kept instead, to be issued later.
pub struct Stream {
    raw: sys::CUstream,
    context: Context,
    record: Mutex<Option<Record>>,
}

// SAFETY: a stream may be used from any thread whose context is current.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Stream {}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Grid {
    /// A row of blocks.
    pub const fn row(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared_bytes: 0,
        }
    }
}

impl Stream {
    /// A stream that does not wait for the legacy stream.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            raw: raw.named("cuStreamCreate")?,
            context: context.clone(),
            record: Mutex::new(None),
        })
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    fn recording(&self) -> MutexGuard<'_, Option<Record>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what comes from now on instead of issuing it.
    pub(crate) fn start_record(&self) {
        *self.recording() = Some(Record::default());
    }

    /// What was kept; what comes from now on is issued.
    pub(crate) fn end_record(&self) -> Record {
        self.recording().take().unwrap_or_default()
    }

    /// Operations that were kept so far.
    pub(crate) fn num_recorded(&self) -> usize {
        let record = self.recording();
        record.as_ref().map_or(0, |r| r.operations.len())
    }

    /// Keeps an operation if the stream records; else it is the caller's to run.
    pub(crate) fn keep(&self, operation: Operation) -> Option<Operation> {
        match &mut *self.recording() {
            Some(record) => {
                record.operations.push(operation);
                None
            }
            None => Some(operation),
        }
    }

    /// Captures what `issue` puts into this stream, which runs nothing.
    ///
    /// # Errors
    /// Those of `issue`, or what the driver answers.
    pub fn capture<E: From<CudaError>>(
        &self,
        issue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let begun = unsafe { result::stream::begin_capture(self.raw, mode) };
        begun.named("cuStreamBeginCapture")?;
        let issued = issue();
        // SAFETY: the stream is being captured.
        let graph = unsafe { result::stream::end_capture(self.raw) }.named("cuStreamEndCapture");
        if let (Err(_), Ok(graph)) = (&issued, &graph) {
            // SAFETY: nobody else knows of it.
            unsafe { result::graph::destroy(*graph) }.ok();
        }
        let graph = issued.and_then(|()| Ok(graph?))?;
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph was just made, and is not needed once it is instantiated.
        let ready = unsafe {
            let ready = result::graph::instantiate(graph, flags);
            result::graph::destroy(graph).ok();
            ready
        };
        Ok(Graph {
            raw: ready.named("cuGraphInstantiate")?,
            context: self.context.clone(),
        })
    }

    /// Puts a graph onto the device, so that its first run need not.
    ///
    /// # Errors
    /// What the driver answers.
    pub(crate) fn upload_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        unsafe { result::graph::upload(graph.raw, self.raw) }.named("cuGraphUpload")
    }

    /// Runs a graph.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn launch_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        unsafe { result::graph::launch(graph.raw, self.raw) }.named("cuGraphLaunch")
    }

    /// Waits until all its work is over.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.raw) }.named("cuStreamSynchronize")
    }

    /// Lets later work of this stream come after `event`.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(self.raw, event.raw(), flags) }
            .named("cuStreamWaitEvent")
    }

    /// Copies bytes of page-locked memory to the device.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Panics
    /// If the bytes are not inside `from`.
    ///
    /// # Safety
    /// The bytes must stay as they are until the copy is over, and `to` must have room for them.
    pub unsafe fn copy_in(
        &self,
        to: DevicePtr,
        from: &Pinned,
        start: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let from = from.part(start, bytes);
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller vouches for both ends.
        unsafe { result::memcpy_htod_async(to.0, from, self.raw) }.named("cuMemcpyHtoDAsync")
    }

    /// Copies bytes of the device to page-locked memory.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Panics
    /// If the bytes are not inside `to`.
    ///
    /// # Safety
    /// Nobody may read the bytes until the copy is over, and `from` must have so many.
    pub unsafe fn copy_out(
        &self,
        to: &mut Pinned,
        start: usize,
        from: DevicePtr,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let to = to.part_mut(start, bytes);
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller vouches for both ends.
        unsafe { result::memcpy_dtoh_async(to, from.0, self.raw) }.named("cuMemcpyDtoHAsync")
    }

    /// Copies within the device.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Safety
    /// Both ends must have so many bytes.
    pub unsafe fn copy(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if bytes == 0 || self.keep(Operation::Copy { to, from, bytes }).is_none() {
            return Ok(());
        }
        // SAFETY: the caller vouches for both ends.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.raw) }
            .named("cuMemcpyDtoDAsync")
    }

    /// Fills device memory with a byte.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Safety
    /// `to` must have so many bytes.
    pub unsafe fn fill(&self, to: DevicePtr, byte: u8, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 || self.keep(Operation::Fill { to, byte, bytes }).is_none() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memset_d8_async(to.0, byte, bytes, self.raw) }.named("cuMemsetD8Async")
    }

    /// Launches a kernel with the addresses of its arguments, and their sizes in bytes.
    ///
    /// # Errors
    /// What the driver answers; a fault of the kernel itself shows later.
    ///
    /// # Safety
    /// The arguments must be those of the kernel in type and order, and must describe memory that
    /// it may touch until it is over.
    pub unsafe fn launch(
        &self,
        function: Function,
        grid: Grid,
        args: &mut [*mut c_void],
        sizes: &[usize],
    ) -> Result<(), CudaError> {
        if let Some(record) = &mut *self.recording() {
            // SAFETY: the caller vouches for the arguments.
            unsafe { record.launch(function, grid, args, sizes) };
            return Ok(());
        }
        let dims = |d: [u32; 3]| (d[0], d[1], d[2]);
        // SAFETY: the caller vouches for the arguments.
        unsafe {
            result::launch_kernel(
                function.raw(),
                dims(grid.blocks),
                dims(grid.threads),
                grid.shared_bytes,
                self.raw,
                args,
            )
        }
        .named("cuLaunchKernel")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made when this was made; what is queued still runs.
            unsafe { result::stream::destroy(self.raw) }.ok();
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// Captured work, ready to run.
pub struct Graph {
    raw: sys::CUgraphExec,
    context: Context,
}

// SAFETY: a graph may be used from any thread whose context is current, by one at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made when this was made.
            unsafe { result::graph::exec_destroy(self.raw) }.ok();
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}
