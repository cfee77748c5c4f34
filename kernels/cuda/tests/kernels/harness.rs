//! A device for the body of a test, and comparisons.

use bytemuck::Pod;
use lazybatch_cuda::context::{DeviceMemory, Pinned};
use lazybatch_cuda::kernels::Source;
use lazybatch_cuda::{Context, DevicePtr, Kernels, Stream};

use crate::process::{self, kernel_folder};

/// Declares a test whose body runs on the emulator, under two seeds of its orders, or as many as a soak
/// asks for.
macro_rules! on_device {
    ($(#[$doc:meta])* fn $name:ident($gpu:ident) $body:block) => {
        $(#[$doc])*
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            crate::harness::runs_clean(path, |$gpu: &crate::harness::Gpu| $body);
        }
    };
}
pub(crate) use on_device;

/// The body passes under those seeds, and no check of the emulator finds anything. `path` is the
/// test's, the crate's name in front.
pub fn runs_clean(path: &str, body: impl Fn(&Gpu)) {
    let (_, name) = path.split_once("::").unwrap();
    process::runs_clean_under(name, process::seeds(1, 2), || body(&Gpu::new()));
}

/// A device with its kernels and a stream.
pub struct Gpu {
    pub context: Context,
    pub stream: Stream,
    pub kernels: Kernels,
}

/// Elements in device memory.
pub struct Buffer(DeviceMemory);

impl Buffer {
    pub fn at(&self) -> DevicePtr {
        self.0.at()
    }
}

impl Gpu {
    pub fn new() -> Self {
        Self::with_texts(Source::full_text)
    }

    /// With kernels of these sources.
    pub fn with_texts(texts: impl Fn(&Source) -> String + Send + Sync + 'static) -> Self {
        let context = Context::new(0).unwrap();
        Self {
            stream: Stream::new(&context).unwrap(),
            kernels: Kernels::with_texts(&context, Some(kernel_folder()), texts).unwrap(),
            context,
        }
    }

    /// Room for elements that nobody has written: the emulator reports who reads them.
    pub fn fresh<T: Pod>(&self, len: usize) -> Buffer {
        Buffer(DeviceMemory::new(&self.context, "test", len * size_of::<T>()).unwrap())
    }

    pub fn upload<T: Pod>(&self, data: &[T]) -> Buffer {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.fresh::<T>(data.len());
        let mut staging = Pinned::new(&self.context, bytes.len()).unwrap();
        staging.bytes_mut().copy_from_slice(bytes);
        // SAFETY: both ends live until the copy is over.
        unsafe { self.stream.copy_in(buffer.at(), &staging, 0, bytes.len()) }.unwrap();
        self.stream.synchronize().unwrap();
        buffer
    }

    pub fn download<T: Pod>(&self, from: &Buffer, len: usize) -> Vec<T> {
        let bytes = len * size_of::<T>();
        let mut staging = Pinned::new(&self.context, bytes).unwrap();
        // SAFETY: both ends live until the copy is over.
        unsafe { self.stream.copy_out(&mut staging, 0, from.at(), bytes) }.unwrap();
        self.stream.synchronize().unwrap();
        bytemuck::pod_collect_to_vec(staging.bytes())
    }

    /// What `run` writes to an output of `len` elements.
    pub fn output<T: Pod>(&self, len: usize, run: impl FnOnce(DevicePtr)) -> Vec<T> {
        let out = self.fresh::<T>(len);
        run(out.at());
        self.download(&out, len)
    }
}

/// Numbers that repeat with the seed, in [-1, 1).
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(next).collect()
}

/// Integers in `0..below` that repeat with the seed.
pub fn integers(seed: u64, len: usize, below: usize) -> Vec<i32> {
    let numbers = numbers(seed, len).into_iter();
    let scaled = numbers.map(|v| ((v + 1.0) / 2.0 * below as f32) as i32);
    scaled.map(|v| v.min(below as i32 - 1)).collect()
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

/// `|got - want| <= tolerance (1 + |want|)` everywhere.
pub fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let near = (f64::from(*g) - w).abs() <= tolerance * (1.0 + w.abs());
        assert!(near, "{what}: element {i}: expected {w}, got {g}");
    }
}

/// Equal bit for bit.
pub fn same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let is_same = g.to_bits() == w.to_bits();
        assert!(is_same, "{what}: element {i}: expected {w:e}, got {g:e}");
    }
}

/// Rows `which` of `x: [_, width]`.
pub fn pick<T: Copy>(x: &[T], width: usize, which: &[usize]) -> Vec<T> {
    let rows = which.iter().flat_map(|r| &x[r * width..(r + 1) * width]);
    rows.copied().collect()
}

/// `run(which)` computes those rows of a problem, `width` elements each. All together give the bits
/// that each gives alone, and that all give in another order; returns them.
pub fn alone_as_together(
    what: &str,
    rows: usize,
    width: usize,
    run: impl Fn(&[usize]) -> Vec<f32>,
) -> Vec<f32> {
    let order: Vec<usize> = (0..rows).collect();
    let together = run(&order);
    for r in 0..rows {
        let alone = run(&[r]);
        same(
            &format!("{what}: row {r} alone"),
            &alone,
            &pick(&together, width, &[r]),
        );
    }
    let back: Vec<usize> = (0..rows).rev().collect();
    same(
        &format!("{what}: backwards"),
        &run(&back),
        &pick(&together, width, &back),
    );
    together
}
