//! Matrix products by matrix instructions: near those of the rounded operands, and every row with
//! the same bits alone and among any others.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::gemm::Gemm;
use lazybatch_cuda::kernels::gemm_matrix::{MatrixTiling, tiles};
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_graph::Act;
use lazybatch_kernels::reference::math;

use crate::harness::{Buffer, Gpu, close, integers, numbers, on_device, pick, same};

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

/// A right side `[k, n]` in tiles, and how it is stored.
fn right(gpu: &Gpu, stored: Stored, b: &[f32], [k, n]: [usize; 2]) -> (Buffer, Stored) {
    let bits: Vec<u16> = b.iter().map(|v| rounded(stored, *v).0).collect();
    let in_tiles = match stored {
        Stored::F16 => Stored::F16Tiles,
        _ => Stored::Bf16Tiles,
    };
    (gpu.upload(&tiles(&bits, k, n)), in_tiles)
}

/// Room for so many rows of `k` in tiles.
fn room(gpu: &Gpu, m: usize, k: usize) -> Buffer {
    gpu.fresh::<u16>(m.next_multiple_of(16) * k.next_multiple_of(16))
}

/// The product of these rows by matrix instructions.
fn run(
    gpu: &Gpu,
    stored: Stored,
    (a, b): (&[f32], &[f32]),
    [m, k, n]: [usize; 3],
    start: Option<&[f32]>,
) -> Vec<f32> {
    run_tiled(
        gpu,
        stored,
        (a, b),
        [m, k, n],
        start,
        MatrixTiling::of(m, n),
    )
}

fn run_tiled(
    gpu: &Gpu,
    stored: Stored,
    (a, b): (&[f32], &[f32]),
    [m, k, n]: [usize; 3],
    start: Option<&[f32]>,
    tiling: MatrixTiling,
) -> Vec<f32> {
    let (bt, stored) = right(gpu, stored, b, [k, n]);
    let (at, packed) = (gpu.upload(a), room(gpu, m, k));
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
    let (kernels, stream) = (&gpu.kernels, &gpu.stream);
    kernels
        .gemm_matrix_tiled(stream, &g, packed.at(), tiling)
        .unwrap();
    gpu.download(&out, m * n)
}

pub const TYPES: [Stored; 2] = [Stored::F16, Stored::Bf16];

on_device! {
    fn products_are_those_of_the_rounded_operands(gpu) {
        // Tails everywhere, whole tiles, one element, no step at all, more rows than a block has, and
        // more steps than a block has stages, in each tile.
        let shapes = [
            [1, 7, 5], [9, 33, 17], [3, 64, 32], [33, 20, 65], [64, 128, 32], [70, 36, 40], [1, 1, 1],
            [2, 0, 3], [5, 600, 33], [20, 500, 40], [40, 300, 33], [130, 272, 140],
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
                    for tiling in MatrixTiling::ALL {
                        let other = run_tiled(gpu, stored, (&a, &b), [m, k, n], start, tiling);
                        same(&format!("{m} x {k} x {n}, {stored:?}, {tiling:?}"), &other, &got);
                    }
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
            let (bt, in_tiles) = right(gpu, stored, &b, [k, n]);
            let packed = room(gpu, m, k);
            let plain = run(gpu, stored, (&a, &b), [m, k, n], None);
            let want = (0..m * n).map(|i| {
                let v = f64::from(plain[i]) + f64::from(bias[i % n]);
                math::act(Act::Gelu, v) + f64::from(residual[i])
            });
            let got: Vec<f32> = gpu.output(m * n, |out| {
                let g = Gemm {
                    a: rt.at(),
                    a_rows: pt.at(),
                    weights: Weights { at: bt.at(), stored: in_tiles },
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
                gpu.kernels.gemm_matrix(&gpu.stream, &g, packed.at()).unwrap();
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
        let error = gpu.kernels.gemm_matrix(&gpu.stream, &g, DevicePtr::NULL).unwrap_err();
        let expected = "expected weights of f16 or bf16 in tiles, got F32";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
