//! Sample kernels, compiled by the real NVRTC and run by programs of cudarc, against the host.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests launch kernels")]

use crate::common::{Gpu, difference, numbers, runs_clean};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use half::{bf16, f16};

const SOURCE: &str = include_str!("../kernels/samples.cu");

fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Launches with arguments by reference.
macro_rules! launch {
    ($stream:expr, $kernel:expr, $config:expr, $($arg:expr),*) => {{
        let kernel = $kernel;
        let mut builder = $stream.launch_builder(&kernel);
        $(builder.arg($arg);)*
        // SAFETY: the arguments are those that the kernel declares.
        unsafe { builder.launch($config) }.unwrap();
    }};
}

fn up<T: DeviceRepr>(stream: &std::sync::Arc<CudaStream>, values: &[T]) -> CudaSlice<T> {
    stream.clone_htod(values).unwrap()
}

#[test]
fn vector_add() {
    runs_clean("samples::vector_add", || {
        let gpu = Gpu::new(SOURCE);
        assert_eq!(gpu.context.name().unwrap(), "CUDA emulator (CPU)");
        let stream = gpu.context.default_stream();
        let (a, b) = (numbers(1, 1000), numbers(2, 1000));
        let (da, db) = (up(&stream, &a), up(&stream, &b));
        let mut dc = stream.alloc_zeros::<f32>(1000).unwrap();
        let kernel = gpu.kernel("vector_add");
        launch!(
            stream,
            kernel,
            LaunchConfig::for_num_elems(1000),
            &da,
            &db,
            &mut dc,
            &1000i32
        );
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(stream.clone_dtoh(&dc).unwrap(), want);

        let mut dy = stream.alloc_zeros::<f32>(1000).unwrap();
        launch!(
            stream,
            gpu.kernel("scale4"),
            config(4, 64),
            &da,
            &mut dy,
            &3f32,
            &250i32
        );
        let want: Vec<f32> = a.iter().map(|a| a * 3.0).collect();
        assert_eq!(stream.clone_dtoh(&dy).unwrap(), want);
    });
}

#[test]
fn reductions() {
    runs_clean("samples::reductions", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let x = numbers(3, 256 * 5);
        let dx = up(&stream, &x);
        let mut sums = stream.alloc_zeros::<f32>(5).unwrap();
        launch!(
            stream,
            gpu.kernel("block_sum"),
            config(5, 256),
            &dx,
            &mut sums
        );
        let want: Vec<f32> = x.chunks(256).map(|c| c.iter().sum()).collect();
        assert!(difference(&stream.clone_dtoh(&sums).unwrap(), &want) < 1e-5);

        // Blocks that hand their sums over with a fence and an atomic do not race.
        let mut partial = stream.alloc_zeros::<f32>(20).unwrap();
        let mut total = stream.alloc_zeros::<f32>(1).unwrap();
        launch!(
            stream,
            gpu.kernel("last_block_sum"),
            config(20, 32),
            &dx,
            &mut partial,
            &mut total
        );
        let want: f32 = x[..320].iter().sum();
        assert!(difference(&stream.clone_dtoh(&total).unwrap(), &[want]) < 1e-5);

        let values: Vec<u32> = x.iter().map(|v| (v * 1e6) as i32 as u32).collect();
        let dv = up(&stream, &values);
        let mut bins = stream.alloc_zeros::<u32>(64).unwrap();
        launch!(
            stream,
            gpu.kernel("histogram"),
            config(10, 128),
            &dv,
            &mut bins,
            &1200i32
        );
        let mut want = vec![0; 64];
        for v in &values[..1200] {
            want[*v as usize % 64] += 1;
        }
        assert_eq!(stream.clone_dtoh(&bins).unwrap(), want);
    });
}

fn normed(x: &[f32], n: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let mean = row.iter().sum::<f32>() / n as f32;
        let square = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n as f32;
        let scale = 1.0 / (square + 1e-5).sqrt();
        row.iter().map(|v| (v - mean) * scale).collect::<Vec<f32>>()
    };
    x.chunks(n).flat_map(row).collect()
}

#[test]
fn layer_norms() {
    runs_clean("samples::layer_norms", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let (rows, n) = (6, 100);
        let x = numbers(4, rows * n);
        let dx = up(&stream, &x);
        let mut y = stream.alloc_zeros::<f32>(rows * n).unwrap();
        let (grid, num) = (config(rows as u32, 32), n as i32);
        launch!(
            stream,
            gpu.kernel("layer_norm_f32"),
            grid,
            &dx,
            &mut y,
            &num
        );
        assert!(difference(&stream.clone_dtoh(&y).unwrap(), &normed(&x, n)) < 1e-4);

        let halves: Vec<u16> = x.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
        let exact: Vec<f32> = halves.iter().map(|h| f16::from_bits(*h).to_f32()).collect();
        let (dh, mut dy) = (
            up(&stream, &halves),
            stream.alloc_zeros::<u16>(rows * n).unwrap(),
        );
        launch!(
            stream,
            gpu.kernel("layer_norm_f16"),
            grid,
            &dh,
            &mut dy,
            &num
        );
        let got = stream.clone_dtoh(&dy).unwrap();
        let got: Vec<f32> = got.iter().map(|h| f16::from_bits(*h).to_f32()).collect();
        assert!(difference(&got, &normed(&exact, n)) < 2e-3);

        let halves: Vec<u16> = x.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
        let exact: Vec<f32> = halves
            .iter()
            .map(|h| bf16::from_bits(*h).to_f32())
            .collect();
        let (dh, mut dy) = (
            up(&stream, &halves),
            stream.alloc_zeros::<u16>(rows * n).unwrap(),
        );
        launch!(
            stream,
            gpu.kernel("layer_norm_bf16"),
            grid,
            &dh,
            &mut dy,
            &num
        );
        let got = stream.clone_dtoh(&dy).unwrap();
        let got: Vec<f32> = got.iter().map(|h| bf16::from_bits(*h).to_f32()).collect();
        assert!(difference(&got, &normed(&exact, n)) < 1e-2);
    });
}

fn softmaxed(x: &[f32]) -> Vec<f32> {
    let top = x.iter().copied().fold(f32::MIN, f32::max);
    let sum: f32 = x.iter().map(|v| (v - top).exp()).sum();
    x.iter().map(|v| (v - top).exp() / sum).collect()
}

#[test]
fn softmax_and_attention() {
    runs_clean("samples::softmax_and_attention", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let (rows, n) = (3, 77);
        let num = n as i32;
        let x: Vec<f32> = numbers(5, rows * n).iter().map(|v| v * 8.0).collect();
        let (dx, mut y) = (
            up(&stream, &x),
            stream.alloc_zeros::<f32>(rows * n).unwrap(),
        );
        let grid = LaunchConfig {
            shared_mem_bytes: n as u32 * 4,
            ..config(rows as u32, 32)
        };
        launch!(stream, gpu.kernel("softmax"), grid, &dx, &mut y, &num);
        let want: Vec<f32> = x.chunks(n).flat_map(softmaxed).collect();
        assert!(difference(&stream.clone_dtoh(&y).unwrap(), &want) < 1e-5);

        let (rows, d) = (13, 32);
        let num = rows as i32;
        let (q, k, v) = (
            numbers(6, rows * d),
            numbers(7, rows * d),
            numbers(8, rows * d),
        );
        let (dq, dk, dv) = (up(&stream, &q), up(&stream, &k), up(&stream, &v));
        let mut o = stream.alloc_zeros::<f32>(rows * d).unwrap();
        let grid = config(rows as u32, 32);
        launch!(
            stream,
            gpu.kernel("attention"),
            grid,
            &dq,
            &dk,
            &dv,
            &mut o,
            &num
        );
        let mut want = Vec::new();
        for row in q.chunks(d) {
            let dot = |k: &[f32]| row.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() * 0.176_776_69;
            let weights = softmaxed(&k.chunks(d).map(dot).collect::<Vec<f32>>());
            for i in 0..d {
                want.push((0..rows).map(|r| weights[r] * v[r * d + i]).sum());
            }
        }
        assert!(difference(&stream.clone_dtoh(&o).unwrap(), &want) < 1e-5);
    });
}

fn product(a: &[f32], b: &[f32], (m, n, k): (usize, usize, usize)) -> Vec<f32> {
    let at = |i: usize| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum();
    (0..m * n).map(at).collect()
}

#[test]
fn matrix_products() {
    runs_clean("samples::matrix_products", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let (m, n, k) = (33, 20, 45);
        let sizes = [m as i32, n as i32, k as i32];
        let (a, b) = (numbers(9, m * k), numbers(10, k * n));
        let (da, db) = (up(&stream, &a), up(&stream, &b));
        let mut c = stream.alloc_zeros::<f32>(m * n).unwrap();
        let grid = LaunchConfig {
            grid_dim: (2, 3, 1),
            block_dim: (16, 16, 1),
            shared_mem_bytes: 0,
        };
        launch!(
            stream,
            gpu.kernel("gemm"),
            grid,
            &da,
            &db,
            &mut c,
            &sizes[0],
            &sizes[1],
            &sizes[2]
        );
        assert!(difference(&stream.clone_dtoh(&c).unwrap(), &product(&a, &b, (m, n, k))) < 1e-5);

        let (a, b) = (numbers(11, 256), numbers(12, 128));
        type Round = (&'static str, fn(f32) -> u16, fn(u16) -> f32);
        let rounds: [Round; 2] = [
            (
                "mma_f16",
                |v| f16::from_f32(v).to_bits(),
                |b| f16::from_bits(b).to_f32(),
            ),
            (
                "mma_bf16",
                |v| bf16::from_f32(v).to_bits(),
                |b| bf16::from_bits(b).to_f32(),
            ),
        ];
        for (name, round, exact) in rounds {
            let bits = |v: &[f32]| v.iter().map(|v| round(*v)).collect::<Vec<u16>>();
            let values = |b: &[u16]| b.iter().map(|b| exact(*b)).collect::<Vec<f32>>();
            let (a, b) = (bits(&a), bits(&b));
            let (da, db) = (up(&stream, &a), up(&stream, &b));
            let mut d = stream.alloc_zeros::<f32>(128).unwrap();
            launch!(stream, gpu.kernel(name), config(1, 32), &da, &db, &mut d);
            let want = product(&values(&a), &values(&b), (16, 8, 16));
            assert!(
                difference(&stream.clone_dtoh(&d).unwrap(), &want) < 1e-5,
                "{name}"
            );
        }
    });
}

#[test]
fn calls_switches_doubles_and_constants() {
    runs_clean("samples::calls_switches_doubles_and_constants", || {
        let gpu = Gpu::new(SOURCE);
        let stream = gpu.context.default_stream();
        let table = numbers(13, 16);
        let mut symbol = gpu.module.get_global("table", &stream).unwrap();
        let bytes: Vec<u8> = table.iter().flat_map(|v| v.to_le_bytes()).collect();
        stream.memcpy_htod(&bytes, &mut symbol).unwrap();
        let (x, n) = (numbers(14, 64), 11);
        let dx = up(&stream, &x);
        let mut y = stream.alloc_zeros::<f32>(64).unwrap();
        let mut d = stream.alloc_zeros::<f64>(64).unwrap();
        let mut l = stream.alloc_zeros::<i64>(64).unwrap();
        launch!(
            stream,
            gpu.kernel("mixed"),
            config(1, 64),
            &dx,
            &mut y,
            &mut d,
            &mut l,
            &n
        );
        let (mut wy, mut wl) = (Vec::new(), Vec::new());
        for i in 0..64usize {
            let sum = (0..n as usize).fold(0.0, |sum: f32, t| sum.mul_add(x[i], table[t & 15]));
            let k = (i * 5 + n as usize) & 7;
            let v = sum + x[k] * (k + 1) as f32;
            wy.push(match i % 6 {
                0 => v + 1.0,
                1 => v * 2.0,
                2 => v.sin(),
                3 => v.tanh(),
                4 => (v.abs() + 1.0).ln(),
                _ => v.abs().powf(1.5),
            });
            let lead = (i as u32 + 1).leading_zeros();
            wl.push(
                ((i as i64) << 33) / 12 % 1_000_003 + i64::from(i.count_ones()) - i64::from(lead),
            );
        }
        assert!(difference(&stream.clone_dtoh(&y).unwrap(), &wy) < 1e-4);
        assert_eq!(stream.clone_dtoh(&l).unwrap(), wl);
        for (i, got) in stream.clone_dtoh(&d).unwrap().into_iter().enumerate() {
            let want = f64::from(x[i]).exp() / 3.0 + (i as f64).sqrt();
            assert!(
                (got - want).abs() < 1e-12 * want,
                "{i}: expected {want}, got {got}"
            );
        }
    });
}

#[test]
fn two_streams_and_a_graph() {
    runs_clean("samples::two_streams_and_a_graph", || {
        let gpu = Gpu::new(SOURCE);
        // SAFETY: the events that order the streams are recorded below.
        unsafe { gpu.context.disable_event_tracking() };
        let (one, two) = (
            gpu.context.new_stream().unwrap(),
            gpu.context.new_stream().unwrap(),
        );
        let (a, n) = (numbers(15, 512), 512i32);
        let da = up(&one, &a);
        // SAFETY: it is written before it is read.
        let mut b = unsafe { one.alloc::<f32>(512) }.unwrap();
        // SAFETY: as above.
        let mut c = unsafe { one.alloc::<f32>(512) }.unwrap();
        launch!(
            one,
            gpu.kernel("vector_add"),
            config(4, 128),
            &da,
            &da,
            &mut b,
            &n
        );
        let event = one.record_event(None).unwrap();
        two.wait(&event).unwrap();
        launch!(
            two,
            gpu.kernel("vector_add"),
            config(4, 128),
            &da,
            &b,
            &mut c,
            &n
        );
        let want: Vec<f32> = a.iter().map(|v| v + (v + v)).collect();
        assert_eq!(two.clone_dtoh(&c).unwrap(), want);

        use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
        one.synchronize().unwrap();
        one.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .unwrap();
        launch!(
            one,
            gpu.kernel("vector_add"),
            config(4, 128),
            &da,
            &c,
            &mut b,
            &n
        );
        launch!(
            one,
            gpu.kernel("vector_add"),
            config(4, 128),
            &da,
            &b,
            &mut c,
            &n
        );
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = one.end_capture(flags).unwrap().unwrap();
        for _ in 0..2 {
            graph.launch().unwrap();
        }
        let want: Vec<f32> = want
            .iter()
            .zip(&a)
            .map(|(w, v)| v + (v + (v + (v + w))))
            .collect();
        assert_eq!(one.clone_dtoh(&c).unwrap(), want);
    });
}
