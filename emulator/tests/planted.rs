//! Mistakes that the checks have to find, each at its place, and their twins without a mistake.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests launch kernels")]

mod common;

use common::{Gpu, is_reported, runs_clean};
use cudarc::driver::{LaunchConfig, PushKernelArg};

const SOURCE: &str = include_str!("kernels/planted.cu");

fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Launches, waits, and answers whether all went well.
macro_rules! is_well {
    ($gpu:expr, $kernel:expr, $config:expr, $($arg:expr),*) => {{
        let stream = $gpu.context.default_stream();
        let kernel = $gpu.kernel($kernel);
        let mut builder = stream.launch_builder(&kernel);
        $(builder.arg($arg);)*
        // SAFETY: whatever is wrong with it, the emulator finds.
        unsafe { builder.launch($config) }.and_then(|_| stream.synchronize()).is_ok()
    }};
}

/// A kernel over a zeroed buffer of `len` numbers, which has to be reported, or to run clean.
fn over(kernel: &str, grid: LaunchConfig, len: usize) -> bool {
    let gpu = Gpu::new(SOURCE);
    let mut y = gpu
        .context
        .default_stream()
        .alloc_zeros::<f32>(len)
        .unwrap();
    is_well!(gpu, kernel, grid, &mut y)
}

#[test]
fn one_past_the_end() {
    let expected = [
        "out of bounds: 4 bytes at",
        "end 4 bytes after an allocation of 400 bytes",
        "kernel past_end, block (3, 0, 0), thread (4, 0, 0)",
        "st.global",
    ];
    is_reported("one_past_the_end", &expected, || {
        let gpu = Gpu::new(SOURCE);
        let mut x = gpu
            .context
            .default_stream()
            .alloc_zeros::<f32>(100)
            .unwrap();
        assert!(!is_well!(gpu, "past_end", config(4, 32), &mut x, &100i32));
    });
}

#[test]
fn inside_the_bounds() {
    runs_clean("inside_the_bounds", || {
        let gpu = Gpu::new(SOURCE);
        let mut x = gpu
            .context
            .default_stream()
            .alloc_zeros::<f32>(100)
            .unwrap();
        assert!(is_well!(gpu, "inside", config(4, 32), &mut x, &100i32));
    });
}

#[test]
fn past_the_end_of_shared_memory() {
    let expected = [
        "out of bounds",
        "end 4 bytes after its 64 bytes",
        "kernel shared_past_end",
    ];
    is_reported("past_the_end_of_shared_memory", &expected, || {
        let gpu = Gpu::new(SOURCE);
        let mut y = gpu.context.default_stream().alloc_zeros::<f32>(1).unwrap();
        assert!(is_well!(
            gpu,
            "shared_past_end",
            config(1, 1),
            &mut y,
            &16i32
        ));
        assert!(!is_well!(
            gpu,
            "shared_past_end",
            config(1, 1),
            &mut y,
            &17i32
        ));
    });
}

#[test]
fn use_after_free() {
    let expected = [
        "use after free: address",
        "of 128 that were freed",
        "kernel copy, block (0, 0, 0)",
        "ld.global",
    ];
    is_reported("use_after_free", &expected, || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let x = stream.alloc_zeros::<f32>(32).unwrap();
        let mut y = stream.alloc_zeros::<f32>(32).unwrap();
        assert!(is_well!(gpu, "copy", config(1, 32), &x, &mut y));
        let at = {
            use cudarc::driver::DevicePtr;
            let (at, _guard) = x.device_ptr(&stream);
            at
        };
        drop(x);
        assert!(!is_well!(gpu, "copy", config(1, 32), &at, &mut y));
    });
}

#[test]
fn unwritten_memory() {
    let expected = [
        "read of unwritten memory: byte",
        "kernel copy, block (0, 0, 0), thread",
        "ld.global",
    ];
    is_reported("unwritten_memory", &expected, || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        // SAFETY: that it is read unwritten is the point.
        let x = unsafe { stream.alloc::<f32>(32) }.unwrap();
        let mut y = stream.alloc_zeros::<f32>(32).unwrap();
        assert!(!is_well!(gpu, "copy", config(1, 32), &x, &mut y));
    });
}

#[test]
fn missing_barrier() {
    let expected = [
        "race: thread",
        "shared memory",
        "kernel exchange_without_barrier",
        "shared",
    ];
    is_reported("missing_barrier", &expected, || {
        assert!(!over("exchange_without_barrier", config(1, 64), 64));
    });
}

#[test]
fn barriers_in_place() {
    runs_clean("barriers_in_place", || {
        assert!(over("exchange", config(2, 64), 64) && over("warp_exchange", config(1, 32), 32));
        assert!(over("barrier_for_all", config(1, 32), 32));
    });
}

#[test]
fn warp_exchange_without_sync() {
    let expected = [
        "race: thread",
        "of shared memory, which thread",
        "kernel warp_exchange_without_sync",
        "ld.shared",
    ];
    is_reported("warp_exchange_without_sync", &expected, || {
        assert!(!over("warp_exchange_without_sync", config(1, 32), 32));
    });
}

#[test]
fn race_between_blocks() {
    let expected = [
        "race: thread 0",
        "of an allocation, which thread 0 of block",
        "kernel add_plainly",
    ];
    is_reported("race_between_blocks", &expected, || {
        assert!(over("add_atomically", config(8, 1), 1));
        assert!(!over("add_plainly", config(8, 1), 1));
    });
}

#[test]
fn misaligned_vector_load() {
    let expected = [
        "misaligned access: address",
        "is no multiple of 16 bytes",
        "kernel load4",
        "ld.global",
    ];
    is_reported("misaligned_vector_load", &expected, || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let x = stream.alloc_zeros::<f32>(64).unwrap();
        let mut y = stream.alloc_zeros::<f32>(64).unwrap();
        assert!(is_well!(gpu, "load4", config(1, 8), &x, &mut y, &4i32));
        assert!(!is_well!(gpu, "load4", config(1, 8), &x, &mut y, &1i32));
    });
}

#[test]
fn barrier_in_divergent_code() {
    let expected = [
        "barrier in divergent code",
        "ended without coming to it",
        "kernel barrier_for_some, block (0, 0, 0), thread (0, 0, 0)",
        "bar.sync",
    ];
    is_reported("barrier_in_divergent_code", &expected, || {
        assert!(!over("barrier_for_some", config(1, 32), 32));
    });
}

#[test]
fn lanes_that_do_not_come() {
    let expected = ["deadlock: lanes", "kernel lanes_that_do_not_come"];
    is_reported("lanes_that_do_not_come", &expected, || {
        assert!(!over("lanes_that_do_not_come", config(1, 32), 32));
    });
}

#[test]
fn a_kernel_without_end() {
    let expected = ["no end: a block ran 100000 instructions", "kernel endless"];
    is_reported("a_kernel_without_end", &expected, || {
        // SAFETY: nothing else of this process reads the environment meanwhile.
        unsafe { std::env::set_var("LAZYBATCH_EMULATOR_STEPS", "100000") };
        assert!(!over("endless", config(1, 32), 1));
    });
}

#[test]
fn too_many_threads() {
    let expected = ["launch limits: threads of a block: expected at most 1024, got 1056"];
    is_reported("too_many_threads", &expected, || {
        let grid = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (33, 32, 1),
            shared_mem_bytes: 0,
        };
        assert!(!over("add_atomically", grid, 1));
    });
}

/// A kernel that writes on one stream, one that reads on another, with an event between or not.
fn two_streams(has_event: bool) -> bool {
    let gpu = Gpu::new(SOURCE);
    // SAFETY: whether something orders the streams is the point.
    unsafe { gpu.context.disable_event_tracking() };
    let (one, two) = (
        gpu.context.new_stream().unwrap(),
        gpu.context.new_stream().unwrap(),
    );
    let (write, read) = (gpu.kernel("inside"), gpu.kernel("copy"));
    let [mut x, mut y] = [0; 2].map(|_| one.alloc_zeros::<f32>(32).unwrap());
    one.synchronize().unwrap();
    // SAFETY: the arguments are those that the kernels declare.
    unsafe {
        let mut launch = one.launch_builder(&write);
        launch
            .arg(&mut x)
            .arg(&32i32)
            .launch(config(1, 32))
            .unwrap();
    }
    if has_event {
        let event = one.record_event(None).unwrap();
        two.wait(&event).unwrap();
    }
    // SAFETY: as above.
    unsafe {
        let mut launch = two.launch_builder(&read);
        launch.arg(&x).arg(&mut y).launch(config(1, 32)).unwrap();
    }
    two.synchronize().is_ok() && one.synchronize().is_ok()
}

#[test]
fn missing_event_wait() {
    // Whichever of the two runs first, the other is reported.
    let expected = [
        "race: ",
        "on another stream",
        "no event orders the two",
        ", block (0, 0, 0), thread",
    ];
    is_reported("missing_event_wait", &expected, || {
        assert!(!two_streams(false));
    });
}

#[test]
fn event_wait_in_place() {
    runs_clean("event_wait_in_place", || assert!(two_streams(true)));
}

#[test]
fn unknown_instructions_name_their_line() {
    let expected = [
        "a module does not load: line 8: instruction `frobnicate.u32` is not known",
        "frobnicate.u32 %r1, %r1;",
    ];
    is_reported("unknown_instructions_name_their_line", &expected, || {
        let text = ".version 8.8\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, %tid.x;\nfrobnicate.u32 %r1, %r1;\nret;\n}\n";
        let context = cudarc::driver::CudaContext::new(0).unwrap();
        assert!(
            context
                .load_module(cudarc::nvrtc::Ptx::from_src(text))
                .is_err()
        );
    });
}
