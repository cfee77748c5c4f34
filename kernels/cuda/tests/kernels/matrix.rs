//! Matrix products by matrix instructions: near those of the rounded operands, and every row with
//! the same bits alone and among any others.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::gemm::Gemm;
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_graph::Act;
use lazybatch_kernels::reference::math;

use crate::harness::{Gpu, close, integers, numbers, on_device, pick, same};

/// Bits of a number in a type of weights, and the number that they are.
pub fn rounded(stored: Stored, v: f32) -> (u16, f32) {
    match stored {
        Stored::F16 => (f16::from_f32(v).to_bits(), f16::from_f32(v).to_f32()),
        _ => (bf16::from_f32(v).to_bits(), bf16::from_f32(v).to_f32()),
    }
}

/// What the product should be, from `start` or zero, in double precision.
fn products(
    stored: Stored,
    (a, b): (&[f32], &[f32]),
    [m, k, n]: [usize; 3],
    start: Option<&[f32]>,
) -> Vec<f64> {
    let round = |v: f32| f64::from(rounded(stored, v).1);
    let (a, b): (Vec<f64>, Vec<f64>) = (
        a.iter().map(|v| round(*v)).collect(),
        b.iter().map(|v| round(*v)).collect(),
    );
    let element = |i: usize| {
        let (row, col) = (i / n, i % n);
        let sum: f64 = (0..k).map(|j| a[row * k + j] * b[j * n + col]).sum();
        sum + start.map_or(0.0, |s| f64::from(s[i]))
    };
    (0..m * n).map(element).collect()
}

/// The product of these rows by matrix instructions.
fn run(
    gpu: &Gpu,
    stored: Stored,
    (a, b): (&[f32], &[f32]),
    [m, k, n]: [usize; 3],
    start: Option<&[f32]>,
) -> Vec<f32> {
    let bits: Vec<u16> = b.iter().map(|v| rounded(stored, *v).0).collect();
    let (at, bt) = (gpu.upload(a), gpu.upload(&bits));
    let out = match start {
        Some(start) => gpu.upload(start),
        None => gpu.fresh::<f32>(m * n),
    };
    let g = Gemm {
        a: at.at(),
        a_rows: DevicePtr::NULL,
        weights: Weights {
            at: bt.at(),
            stored,
        },
        out: out.at(),
        m,
        k,
        n,
        resume: start.is_some(),
        epilogue: Epilogue::default(),
    };
    gpu.kernels.gemm_matrix(&gpu.stream, &g).unwrap();
    gpu.download(&out, m * n)
}

pub const TYPES: [Stored; 2] = [Stored::F16, Stored::Bf16];

on_device! {
    fn products_are_those_of_the_rounded_operands(gpu) {
        // Tails everywhere, whole tiles, one element, no step at all, more rows than a block has, and
        // more steps than a block has stages, in each tile.
        let shapes = [
            [1, 7, 5], [9, 33, 17], [3, 64, 32], [33, 20, 65], [64, 128, 32], [70, 36, 40], [1, 1, 1],
            [2, 0, 3], [5, 600, 33], [20, 500, 40], [40, 300, 33],
        ];
        for [m, k, n] in shapes {
            let (a, b) = (numbers(1, m * k), numbers(2, k * n));
            let start = numbers(3, m * n);
            for stored in TYPES {
                for start in [None, Some(&start[..])] {
                    let want = products(stored, (&a, &b), [m, k, n], start);
                    let got = run(gpu, stored, (&a, &b), [m, k, n], start);
                    // Matrix instructions of a GPU cut off what they add, where the emulator rounds.
                    close(&format!("{m} x {k} x {n}, {stored:?}"), &got, &want, 8e-6);
                }
            }
        }
    }
}

on_device! {
    fn a_row_has_the_same_bits_among_any_others(gpu) {
        let ([most, k, n], table) = ([70, 300, 40], [69, 0, 17, 16, 64]);
        let (a, b) = (numbers(1, most * k), numbers(2, k * n));
        for stored in TYPES {
            let whole = run(gpu, stored, (&a, &b), [most, k, n], None);
            for m in [1, 2, 8, 15, 16, 17, 32, 33, 48, 64, 65] {
                // The first rows, and the last: each lies elsewhere in its tile than before.
                for first in [0, most - m] {
                    let rows = &a[first * k..(first + m) * k];
                    let got = run(gpu, stored, (rows, &b), [m, k, n], None);
                    let want = &whole[first * n..(first + m) * n];
                    same(&format!("{m} rows from {first}, {stored:?}"), &got, want);
                }
            }
            for row in table {
                let alone = run(gpu, stored, (pick(&a, k, &[row]).as_slice(), &b), [1, k, n], None);
                same(&format!("row {row} alone"), &alone, &whole[row * n..(row + 1) * n]);
            }
        }
    }
}

on_device! {
    fn rows_come_from_a_table_and_epilogues_follow(gpu) {
        let ([m, k, n], pool) = ([18, 40, 24], 20);
        let (rows, b) = (numbers(1, pool * k), numbers(2, k * n));
        let (bias, residual) = (numbers(3, n), numbers(4, m * n));
        let picks = integers(5, m, pool);
        let which: Vec<usize> = picks.iter().map(|p| *p as usize).collect();
        let a = pick(&rows, k, &which);
        let (rt, pt) = (gpu.upload(&rows), gpu.upload(&picks));
        let (bias_at, residual_at) = (gpu.upload(&bias), gpu.upload(&residual));
        for stored in TYPES {
            let bits: Vec<u16> = b.iter().map(|v| rounded(stored, *v).0).collect();
            let bt = gpu.upload(&bits);
            let plain = run(gpu, stored, (&a, &b), [m, k, n], None);
            let want = (0..m * n).map(|i| {
                let v = f64::from(plain[i]) + f64::from(bias[i % n]);
                math::act(Act::Gelu, v) + f64::from(residual[i])
            });
            let got: Vec<f32> = gpu.output(m * n, |out| {
                let g = Gemm {
                    a: rt.at(),
                    a_rows: pt.at(),
                    weights: Weights { at: bt.at(), stored },
                    out,
                    m,
                    k,
                    n,
                    resume: false,
                    epilogue: Epilogue {
                        bias: bias_at.at(),
                        act: Some(Act::Gelu),
                        residual: residual_at.at(),
                    },
                };
                gpu.kernels.gemm_matrix(&gpu.stream, &g).unwrap();
            });
            close("epilogue", &got, &want.collect::<Vec<f64>>(), 2e-6);
        }
        let g = Gemm {
            a: rt.at(),
            a_rows: DevicePtr::NULL,
            weights: Weights::f32(rt.at()),
            out: DevicePtr::NULL,
            m,
            k,
            n,
            resume: false,
            epilogue: Epilogue::default(),
        };
        let error = gpu.kernels.gemm_matrix(&gpu.stream, &g).unwrap_err();
        assert!(error.to_string().contains("expected weights of f16 or bf16, got F32"), "{error}");
    }
}
