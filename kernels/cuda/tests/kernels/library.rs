//! Products by cuBLASLt with what follows them: by the library where it can, by a kernel else.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::gemm::{LibraryCounts, Products};
use lazybatch_cuda::kernels::gemm::Gemm;
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_graph::Act;
use lazybatch_kernels::reference::math;

use crate::harness::{Gpu, close, numbers, on_device, wide};

/// What follows a product, and whether the library does all of it.
struct Ending {
    bias: bool,
    act: Option<Act>,
    residual: bool,
    resume: bool,
    is_whole: bool,
}

const fn ending(
    bias: bool,
    act: Option<Act>,
    residual: bool,
    resume: bool,
    is_whole: bool,
) -> Ending {
    Ending {
        bias,
        act,
        residual,
        resume,
        is_whole,
    }
}

const ENDINGS: [Ending; 11] = [
    ending(false, None, false, false, true),
    ending(true, None, false, false, true),
    ending(false, Some(Act::Relu), false, false, true),
    ending(true, Some(Act::Relu), false, false, true),
    ending(false, None, true, false, true),
    ending(true, None, true, false, true),
    ending(true, None, false, true, true),
    // A residual behind an activation, or beside a sum that goes on.
    ending(true, Some(Act::Relu), true, false, false),
    ending(true, None, true, true, false),
    // The library's gelu is another function, and it has no tanh.
    ending(true, Some(Act::Gelu), false, false, false),
    ending(true, Some(Act::Tanh), true, false, false),
];

/// The product of `ending` in double precision.
fn want(
    ending: &Ending,
    [m, k, n]: [usize; 3],
    [a, b, bias, residual, start]: [&[f64]; 5],
) -> Vec<f64> {
    let element = |i: usize| {
        let (row, col) = (i / n, i % n);
        let products = (0..k).map(|j| a[row * k + j] * b[j * n + col]);
        let mut sum: f64 = products.sum();
        sum += if ending.resume { start[i] } else { 0.0 };
        sum += if ending.bias { bias[col] } else { 0.0 };
        let acted = ending.act.map_or(sum, |act| math::act(act, sum));
        acted + if ending.residual { residual[i] } else { 0.0 }
    };
    (0..m * n).map(element).collect()
}

/// Numbers as a type stores them, and their bytes.
fn stored(stored: Stored, x: &[f32]) -> (Vec<f32>, Vec<u8>) {
    match stored {
        Stored::F16 => {
            let halves: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
            let bytes = halves.iter().flat_map(|v| v.to_le_bytes());
            (halves.iter().map(|v| v.to_f32()).collect(), bytes.collect())
        }
        Stored::Bf16 => {
            let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
            let bytes = halves.iter().flat_map(|v| v.to_le_bytes());
            (halves.iter().map(|v| v.to_f32()).collect(), bytes.collect())
        }
        _ => (x.to_vec(), bytemuck::cast_slice(x).to_vec()),
    }
}

fn check(gpu: &Gpu, of: Stored, shape: [usize; 3]) {
    let [m, k, n] = shape;
    let mut products = Products::new(&gpu.context, false).unwrap();
    // Activations are rounded to the type of the weights.
    let a = stored(of, &numbers(1, m * k)).0;
    let (b, bytes) = stored(of, &numbers(2, k * n));
    let (bias, residual, start) = (numbers(3, n), numbers(4, m * n), numbers(5, m * n));
    let [at_a, at_bias, at_residual] = [&a, &bias, &residual].map(|x| gpu.upload(x));
    let (at_b, rounded) = (gpu.upload(&bytes), gpu.fresh::<f32>(m * k));
    let numbers = [&a, &b, &bias, &residual, &start].map(|x| wide(x));
    for ending in &ENDINGS {
        let or_null = |is: bool, at: DevicePtr| if is { at } else { DevicePtr::NULL };
        let out = match ending.resume {
            true => gpu.upload(&start),
            false => gpu.fresh::<f32>(m * n),
        };
        let before = products.library_counts();
        let product = Gemm {
            a: at_a.at(),
            a_rows: DevicePtr::NULL,
            weights: Weights {
                at: at_b.at(),
                stored: of,
            },
            out: out.at(),
            m,
            k,
            n,
            resume: ending.resume,
            epilogue: Epilogue {
                bias: or_null(ending.bias, at_bias.at()),
                act: ending.act,
                residual: or_null(ending.residual, at_residual.at()),
            },
        };
        let ran = products.run(&gpu.kernels, &gpu.stream, &product, rounded.at());
        ran.unwrap();
        let name = format!(
            "{shape:?}, {of:?}, bias {}, {:?}, residual {}, resume {}",
            ending.bias, ending.act, ending.residual, ending.resume
        );
        let want = want(ending, shape, numbers.each_ref().map(|x| &x[..]));
        close(&name, &gpu.download(&out, m * n), &want, 1e-5);
        let is_whole = u64::from(ending.is_whole);
        let counts = LibraryCounts {
            whole: before.whole + is_whole,
            with_kernel: before.with_kernel + (1 - is_whole),
        };
        // What it has algorithms for is the library's to say: the emulator's has all.
        if gpu.context.is_emulator().unwrap() {
            assert_eq!(products.library_counts(), counts, "{name}");
        } else if products.library_counts() != counts {
            println!("{name}: not as the emulator's library does it");
        }
    }
}

on_device! {
    fn what_follows_a_product_is_fused_where_it_can_be(gpu) {
        for of in [Stored::F32, Stored::F16, Stored::Bf16] {
            check(gpu, of, [1, 6, 5]);
            check(gpu, of, [7, 20, 9]);
        }
    }
}

on_device! {
    /// As values of sub-batches lie, and nearer to one another than the library takes for granted.
    fn values_lie_at_multiples_of_64_bytes(gpu) {
        let mut products = Products::new(&gpu.context, false).unwrap();
        let [m, k, n] = [4, 8, 8];
        let (a, b) = (numbers(1, 16 + m * k), numbers(2, k * n));
        let (at_a, at_b, out) = (gpu.upload(&a), gpu.upload(&b), gpu.fresh::<f32>(16 + m * n));
        let product = Gemm {
            a: at_a.at().add(64),
            a_rows: DevicePtr::NULL,
            weights: Weights::f32(at_b.at()),
            out: out.at().add(64),
            m,
            k,
            n,
            resume: false,
            epilogue: Epilogue::default(),
        };
        products.run(&gpu.kernels, &gpu.stream, &product, DevicePtr::NULL).unwrap();
        gpu.stream.synchronize().unwrap();
    }
}
