//! Weights of a model that is unloaded are given back beside the device's thread, which has launches of
//! others to run.
//!
//! An allocator tells which thread gives back what is large.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazybatch_graph::{DType, ProgramBuilder, Repeat};
use lazybatch_kernels::{CpuDevice, CpuOptions, Device};
use lazybatch_sla::ModelId;

/// Bytes from which something is large: one of the weights below.
const LARGE: usize = 1 << 20;

/// Large bytes that the device's thread and others gave back.
static HERE: AtomicUsize = AtomicUsize::new(0);
static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_DEVICES: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, watched.
struct Watched;

// SAFETY: all calls go to the system's allocator as they come.
#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() >= LARGE {
            let is_devices = IS_DEVICES.try_with(Cell::get).unwrap_or_default();
            let bytes = if is_devices { &HERE } else { &ELSEWHERE };
            bytes.fetch_add(layout.size(), Ordering::SeqCst);
        }
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

#[test]
fn weights_are_given_back_beside_the_devices_thread() {
    const SIZE: usize = 1024;
    let mut b = ProgramBuilder::new("large");
    let x = b.input("x", DType::F32, &[SIZE]);
    let y = b.output("y", DType::F32, &[SIZE]);
    b.begin_block("all", Repeat::Once);
    let mut v = b.read_input("read", x);
    for i in 0..3 {
        v = b.dense(&format!("dense{i}"), v, SIZE, None);
    }
    b.emit("emit", y, v);
    let program = Arc::new(b.finish().unwrap());
    let mut device = CpuDevice::new(CpuOptions {
        threads: 1,
        ..CpuOptions::default()
    });
    device.load(ModelId(0), program).unwrap();
    let weights = 3 * SIZE * SIZE * size_of::<f32>();
    assert!(device.weight_bytes(ModelId(0)).unwrap() >= weights);
    IS_DEVICES.set(true);
    HERE.store(0, Ordering::SeqCst);
    ELSEWHERE.store(0, Ordering::SeqCst);
    device.unload(ModelId(0));
    // Another thread has them at some time, if this one has not.
    let given_back = || HERE.load(Ordering::SeqCst) + ELSEWHERE.load(Ordering::SeqCst);
    let mut turns = 0;
    while given_back() < weights {
        assert!(turns < 20_000_000, "{} of {weights} bytes", given_back());
        turns += 1;
        std::thread::yield_now();
    }
    assert_eq!(HERE.load(Ordering::SeqCst), 0, "of {weights} bytes");
}
