//! The driver's interface beyond launches: page-locked memory, events, host functions, graphs of
//! several streams, errors that stay, attributes, and what kernels print.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests launch kernels")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{Gpu, is_reported, outcome, runs_clean};
use cudarc::driver::{LaunchConfig, PushKernelArg, result, sys};

const SOURCE: &str = r#"
extern "C" __global__ void add(float* x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}
extern "C" __global__ void sum(const float* x, const float* y, float* z) {
    z[threadIdx.x] = x[threadIdx.x] + y[threadIdx.x];
}
"#;

const PRINTING: &str = r#"
extern "C" __device__ int vprintf(const char*, const char*);
extern "C" __global__ void say(int n) {
    struct { int thread; unsigned n; double share; const char* text; long long big; } values = {(int)threadIdx.x, (unsigned)n, 12.5, "text", 1ll << 40};
    if (threadIdx.x == 1) vprintf("thread %d of %u: %.2f%% %s %lld\n", (const char*)&values);
}
"#;

const FAILING: &str = r#"
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
extern "C" __global__ void check(int n) {
    if (threadIdx.x >= n) __assertfail("thread < n", "kernel.cu", 7, "check", 1);
}
"#;

fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

#[test]
fn page_locked_memory_is_seen_by_kernels() {
    runs_clean("driver::page_locked_memory_is_seen_by_kernels", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.new_stream().unwrap();
        // SAFETY: 64 floats are written before they are read, and freed at the end.
        let at = unsafe { result::malloc_host(256, sys::CU_MEMHOSTALLOC_DEVICEMAP) }
            .unwrap()
            .cast::<f32>();
        for i in 0..64 {
            // SAFETY: inside of the 256 bytes.
            unsafe { at.add(i).write(i as f32) };
        }
        let device = at as u64;
        let kernel = gpu.kernel("add");
        // SAFETY: the arguments are those that the kernel declares.
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&device)
                .arg(&1f32)
                .arg(&64i32)
                .launch(config(2, 32))
        }
        .unwrap();
        stream.synchronize().unwrap();
        for i in 0..64 {
            // SAFETY: as above.
            assert_eq!(unsafe { at.add(i).read() }, i as f32 + 1.0);
        }
        // SAFETY: allocated above, not used afterwards.
        unsafe { result::free_host(at.cast()) }.unwrap();
    });
}

/// Counts a call; `data` is an `AtomicU32`.
unsafe extern "C" fn count(data: *mut std::ffi::c_void) {
    // SAFETY: the test hands its counter over.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn work_runs_only_when_something_waits() {
    runs_clean("driver::work_runs_only_when_something_waits", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.new_stream().unwrap();
        let calls = Arc::new(AtomicU32::new(0));
        let mut x = stream.alloc_zeros::<f32>(32).unwrap();
        let start = stream
            .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
            .unwrap();
        let kernel = gpu.kernel("add");
        // SAFETY: the arguments are those that the kernel declares.
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&mut x)
                .arg(&1f32)
                .arg(&32i32)
                .launch(config(1, 32))
        }
        .unwrap();
        let data = Arc::as_ptr(&calls).cast_mut().cast();
        // SAFETY: the counter outlives the stream's work.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), count, data) }.unwrap();
        let end = stream
            .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
            .unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        while !end.is_complete() {}
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert!(start.elapsed_ms(&end).unwrap() > 0.0);
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [1.0; 32]);
    });
}

#[test]
fn a_graph_of_two_streams() {
    runs_clean("driver::a_graph_of_two_streams", || {
        let gpu = Gpu::new(SOURCE);
        // SAFETY: the events that order the streams are recorded below.
        unsafe { gpu.context.disable_event_tracking() };
        let (one, two) = (
            gpu.context.new_stream().unwrap(),
            gpu.context.new_stream().unwrap(),
        );
        let [mut x, mut y, mut z] = [0; 3].map(|_| one.alloc_zeros::<f32>(32).unwrap());
        one.synchronize().unwrap();
        let (add, sum) = (gpu.kernel("add"), gpu.kernel("sum"));
        one.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .unwrap();
        let fork = one.record_event(None).unwrap();
        two.wait(&fork).unwrap();
        // SAFETY: the arguments are those that the kernels declare.
        unsafe {
            one.launch_builder(&add)
                .arg(&mut x)
                .arg(&1f32)
                .arg(&32i32)
                .launch(config(1, 32))
                .unwrap();
            two.launch_builder(&add)
                .arg(&mut y)
                .arg(&10f32)
                .arg(&32i32)
                .launch(config(1, 32))
                .unwrap();
        }
        let join = two.record_event(None).unwrap();
        one.wait(&join).unwrap();
        // SAFETY: as above.
        unsafe {
            one.launch_builder(&sum)
                .arg(&x)
                .arg(&y)
                .arg(&mut z)
                .launch(config(1, 32))
        }
        .unwrap();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = one.end_capture(flags).unwrap().unwrap();
        assert_eq!(one.clone_dtoh(&z).unwrap(), [0.0; 32], "recorded, not run");
        for run in 1..=3 {
            graph.launch().unwrap();
            assert_eq!(one.clone_dtoh(&z).unwrap(), [11.0 * run as f32; 32]);
        }
    });
}

#[test]
fn an_error_stays() {
    is_reported("driver::an_error_stays", &["out of bounds"], || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let mut x = stream.alloc_zeros::<f32>(32).unwrap();
        let kernel = gpu.kernel("add");
        // SAFETY: that it runs over the end is the point.
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&mut x)
                .arg(&1f32)
                .arg(&33i32)
                .launch(config(2, 32))
        }
        .unwrap();
        for _ in 0..2 {
            let code = stream.synchronize().unwrap_err().0;
            assert_eq!(code, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        assert!(stream.alloc_zeros::<f32>(1).is_err());
    });
}

#[test]
fn kernels_print() {
    let outcome = outcome("driver::kernels_print", 1, || {
        let gpu = Gpu::new(PRINTING);
        let stream = gpu.context.default_stream();
        let kernel = gpu.kernel("say");
        // SAFETY: the arguments are those that the kernel declares.
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&7i32)
                .launch(config(1, 2))
        }
        .unwrap();
        stream.synchronize().unwrap();
    });
    assert!(outcome.passed, "{}", outcome.stderr);
    assert!(
        outcome
            .stdout
            .contains("thread 1 of 7: 12.50% text 1099511627776\n"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn failed_assertions() {
    let expected = [
        "failed assertion: assertion `thread < n` does not hold, kernel.cu:7",
        "kernel check, block (0, 0, 0), thread (3, 0, 0)",
    ];
    is_reported("driver::failed_assertions", &expected, || {
        let gpu = Gpu::new(FAILING);
        let stream = gpu.context.default_stream();
        let kernel = gpu.kernel("check");
        // SAFETY: the arguments are those that the kernel declares.
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&3i32)
                .launch(config(1, 4))
        }
        .unwrap();
        assert_eq!(
            stream.synchronize().unwrap_err().0,
            sys::CUresult::CUDA_ERROR_ASSERT
        );
    });
}
