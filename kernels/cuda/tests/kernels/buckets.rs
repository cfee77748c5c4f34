//! Rows of a product have the same bits at every size of a launch: at and around each bucket that
//! rows are rounded up to, and on either side of every switch between tilings.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::gemm::{Gemm, Tiling};
use lazybatch_cuda::kernels::gemm_matrix::{MatrixTiling, packed_elems, tiles};
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};

use crate::harness::{Buffer, Gpu, numbers, on_device, same};

/// Rows of the largest bucket, and one more.
const MOST: usize = 257;

/// Numbers of rows at and around the ends of all buckets: those that launches are padded to, and
/// those for which cuBLASLt is asked for an algorithm.
fn sizes() -> Vec<usize> {
    let of_library = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
    // All up to 8, then four between powers of two.
    let step = |m: usize| (m.next_power_of_two() / 8).max(1);
    let padded = (1..MOST).filter(|m| m.is_multiple_of(step(*m)));
    let around = padded.chain(of_library).flat_map(|m| [m - 1, m, m + 1]);
    let mut all: Vec<usize> = around.filter(|m| (1..=MOST).contains(m)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A right side in a type.
struct Right {
    data: Buffer,
    _scales: Buffer,
    stored: Stored,
}

fn right(gpu: &Gpu, k: usize, n: usize, name: &str) -> Right {
    let exact = numbers(2, k * n);
    let scales = gpu.upload(&vec![0.01f32; n]);
    let halves = |bits: fn(f32) -> u16| exact.iter().map(|v| bits(*v)).collect::<Vec<u16>>();
    let (data, stored) = match name {
        "f32" => (gpu.upload(&exact), Stored::F32),
        "f16" => {
            let bits = halves(|v| f16::from_f32(v).to_bits());
            (gpu.upload(&bits), Stored::F16)
        }
        "bf16" => {
            let bits = halves(|v| bf16::from_f32(v).to_bits());
            (gpu.upload(&bits), Stored::Bf16)
        }
        "bf16, tiles" => {
            let bits = halves(|v| bf16::from_f32(v).to_bits());
            (gpu.upload(&tiles(&bits, k, n)), Stored::Bf16Tiles)
        }
        "f16, tiles" => {
            let bits = halves(|v| f16::from_f32(v).to_bits());
            (gpu.upload(&tiles(&bits, k, n)), Stored::F16Tiles)
        }
        _ => {
            let bytes: Vec<i8> = exact.iter().map(|v| (v * 127.0) as i8).collect();
            let scales = scales.at();
            (gpu.upload(&bytes), Stored::Int8 { scales })
        }
    };
    Right {
        data,
        _scales: scales,
        stored,
    }
}

/// The product of rows `first..first + m` of `a: [_, k]`.
fn run(
    gpu: &Gpu,
    right: &Right,
    a: &Buffer,
    (first, m): (usize, usize),
    [k, n]: [usize; 2],
) -> Vec<f32> {
    let packed = gpu.fresh::<f32>(packed_elems(m, k, n));
    gpu.output(m * n, |out| {
        let g = Gemm {
            a: a.at().add(first * k * size_of::<f32>()),
            a_rows: DevicePtr::NULL,
            weights: Weights {
                at: right.data.at(),
                stored: right.stored,
            },
            out,
            m,
            k,
            n,
            resume: false,
            epilogue: Epilogue::default(),
        };
        let ran = match right.stored.is_tiles() {
            true => gpu.kernels.gemm_matrix(&gpu.stream, &g, packed.at()),
            false => gpu.kernels.gemm(&gpu.stream, &g),
        };
        ran.unwrap();
    })
}

/// Each size gives the first rows and the last the bits that they have alone: a row lies elsewhere
/// in its tile than in other sizes, and in other tiles.
fn check(gpu: &Gpu, types: &[&str], [k, n]: [usize; 2], sizes: &[usize]) {
    let most = sizes.iter().copied().max().unwrap();
    let a = gpu.upload(&numbers(1, most * k));
    for name in types {
        let right = right(gpu, k, n, name);
        let alone = |row: usize| run(gpu, &right, &a, (row, 1), [k, n]);
        let whole = run(gpu, &right, &a, (0, most), [k, n]);
        for row in [0, 1, 7, 8, 31, 32, 63, 64, 127, 128, most - 1] {
            if row < most {
                let want = &whole[row * n..(row + 1) * n];
                same(&format!("{name}: row {row} alone"), &alone(row), want);
            }
        }
        for &m in sizes {
            for first in [0, most - m] {
                let got = run(gpu, &right, &a, (first, m), [k, n]);
                let want = &whole[first * n..(first + m) * n];
                same(&format!("{name}: {m} rows from {first}"), &got, want);
            }
        }
    }
}

on_device! {
    fn own_products_have_the_same_bits_in_all_buckets(gpu) {
        check(gpu, &["f32", "f16", "bf16", "int8"], [19, 6], &sizes());
    }
}

on_device! {
    fn matrix_products_have_the_same_bits_in_all_buckets(gpu) {
        check(gpu, &["f16, tiles", "bf16, tiles"], [35, 6], &sizes());
    }
}

on_device! {
    fn a_switch_of_tiles_of_matrix_instructions_changes_no_bits(gpu) {
        // More rows have other tiles, and with many columns the largest.
        let (k, n, rows) = (20, 200 * 128, [8, 9, 16, 17, 64, 65]);
        let tilings = [16, 17, 64, 65].map(|m| MatrixTiling::of(m, n));
        let shared = [MatrixTiling::Many128x64, MatrixTiling::Many64x128];
        assert_eq!(tilings, [MatrixTiling::Few32x16, shared[0], shared[0], shared[1]]);
        check(gpu, &["f16, tiles"], [k, n], &rows);
        // A block more than there are to be of each.
        let (n, few) = (264 * 16, [1, 9, 17, 33, 65]);
        let tilings = few.map(|m| MatrixTiling::of(m, n));
        assert_eq!(tilings, MatrixTiling::ALL[..5]);
        check(gpu, &["bf16, tiles"], [k, n], &few);
    }
}

on_device! {
    fn a_switch_of_tiling_changes_no_bits(gpu) {
        // By rows, where results are few enough for the first tiling.
        let (k, n, rows) = (3, 2000, [8, 9, 70, 71]);
        let tilings = rows.map(|m| Tiling::of(m, n));
        assert_eq!(tilings, [Tiling::Few, Tiling::Few, Tiling::Few, Tiling::Small]);
        check(gpu, &["f32", "int8"], [k, n], &rows);
        // By columns: what is computed with one column more has the bits from before.
        let ends = [(15_556, [Tiling::Few, Tiling::Small]), (25_473, [Tiling::Small, Tiling::Large])];
        for (wide, tilings) in ends {
            assert_eq!([wide - 1, wide].map(|n| Tiling::of(9, n)), tilings);
            let (a, b) = (gpu.upload(&numbers(1, 9)), numbers(2, wide));
            let of = |n: usize| {
                let right = Right {
                    data: gpu.upload(&b[..n]),
                    _scales: gpu.fresh::<f32>(1),
                    stored: Stored::F32,
                };
                run(gpu, &right, &a, (0, 9), [1, n])
            };
            let (narrow, wider) = (of(wide - 1), of(wide));
            for row in 0..9 {
                let want = &narrow[row * (wide - 1)..(row + 1) * (wide - 1)];
                same("one column more", &wider[row * wide..(row + 1) * wide - 1], want);
            }
        }
    }
}
