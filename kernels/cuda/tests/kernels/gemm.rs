//! Matrix products: the bits of each element's chain, in every tiling and weight type.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::gemm::{Gemm, Tiling};
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_graph::Act;
use lazybatch_kernels::reference::math;

use crate::harness::{Buffer, Gpu, close, integers, numbers, on_device, pick, same};

/// A right side in device memory, and its elements as the kernel sees them.
struct Right {
    data: Buffer,
    scales: Option<(Buffer, Vec<f32>)>,
    stored: Stored,
    seen: Vec<f32>,
}

impl Right {
    fn weights(&self) -> Weights {
        Weights {
            at: self.data.at(),
            stored: self.stored,
        }
    }
}

/// The same numbers in all types.
fn rights(gpu: &Gpu, k: usize, n: usize) -> [Right; 4] {
    let exact = numbers(2, k * n);
    let halves: Vec<u16> = exact.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
    let brains: Vec<u16> = exact.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
    let bytes: Vec<i8> = exact.iter().map(|v| (v * 127.0).round() as i8).collect();
    let scales: Vec<f32> = numbers(8, n).iter().map(|v| (v + 2.0) / 127.0).collect();
    let scales_at = gpu.upload(&scales);
    let right = |data, stored, seen| Right {
        data,
        scales: None,
        stored,
        seen,
    };
    [
        right(gpu.upload(&exact), Stored::F32, exact.clone()),
        right(
            gpu.upload(&halves),
            Stored::F16,
            halves.iter().map(|b| f16::from_bits(*b).to_f32()).collect(),
        ),
        right(
            gpu.upload(&brains),
            Stored::Bf16,
            brains
                .iter()
                .map(|b| bf16::from_bits(*b).to_f32())
                .collect(),
        ),
        Right {
            data: gpu.upload(&bytes),
            stored: Stored::Int8 {
                scales: scales_at.at(),
            },
            scales: Some((scales_at, scales)),
            seen: bytes.iter().map(|b| f32::from(*b)).collect(),
        },
    ]
}

/// The chain of each element as the op defines it, from `start` or zero.
fn chains(a: &[f32], right: &Right, [m, k, n]: [usize; 3], start: Option<&[f32]>) -> Vec<f32> {
    let mut out = Vec::with_capacity(m * n);
    for i in 0..m * n {
        let (row, col) = (i / n, i % n);
        let is_scaled = right.scales.is_some();
        let mut sum = start.filter(|_| !is_scaled).map_or(0.0, |s| s[i]);
        for j in 0..k {
            sum = a[row * k + j].mul_add(right.seen[j * n + col], sum);
        }
        if let Some((_, scales)) = &right.scales {
            sum *= scales[col];
            sum += start.map_or(0.0, |s| s[i]);
        }
        out.push(sum);
    }
    out
}

on_device! {
    fn every_tiling_gives_the_chain_of_each_element(gpu) {
        let shapes = [
            // Rows, inner, columns: tails everywhere, whole tiles, one element, no step at all.
            [1, 7, 5], [9, 33, 17], [3, 64, 16], [8, 130, 48], [33, 20, 65], [40, 36, 132], [1, 1, 1],
            [2, 0, 3],
        ];
        for [m, k, n] in shapes {
            let a = numbers(1, m * k);
            let at = gpu.upload(&a);
            for right in rights(gpu, k, n) {
                let want = chains(&a, &right, [m, k, n], None);
                for tiling in Tiling::ALL {
                    let got: Vec<f32> = gpu.output(m * n, |out| {
                        let g = Gemm {
                            a: at.at(),
                            a_rows: DevicePtr::NULL,
                            weights: right.weights(),
                            out,
                            m,
                            k,
                            n,
                            resume: false,
                            epilogue: Epilogue::default(),
                        };
                        gpu.kernels.gemm_tiled(&gpu.stream, &g, tiling).unwrap();
                    });
                    same(&format!("{m} x {k} x {n}, {:?}, {tiling:?}", right.stored), &got, &want);
                }
            }
        }
    }
}

on_device! {
    fn rows_come_from_a_table_and_chains_go_on(gpu) {
        let ([m, k, n], pool) = ([11, 37, 40], 20);
        let rows = numbers(1, pool * k);
        let picks = integers(5, m, pool);
        let which: Vec<usize> = picks.iter().map(|p| *p as usize).collect();
        let a = pick(&rows, k, &which);
        let start = numbers(6, m * n);
        let (rt, pt) = (gpu.upload(&rows), gpu.upload(&picks));
        for right in rights(gpu, k, n) {
            let want = chains(&a, &right, [m, k, n], Some(&start));
            for tiling in Tiling::ALL {
                let out = gpu.upload(&start);
                let g = Gemm {
                    a: rt.at(),
                    a_rows: pt.at(),
                    weights: right.weights(),
                    out: out.at(),
                    m,
                    k,
                    n,
                    resume: true,
                    epilogue: Epilogue::default(),
                };
                gpu.kernels.gemm_tiled(&gpu.stream, &g, tiling).unwrap();
                same("resumed", &gpu.download(&out, m * n), &want);
            }
        }
    }
}

on_device! {
    fn two_halves_give_the_bits_of_the_whole(gpu) {
        let [m, k, n] = [5, 50, 33];
        let (a, b) = (numbers(1, m * k), numbers(2, k * n));
        let first = 22;
        let part = |from: usize, to: usize| -> (Vec<f32>, Vec<f32>) {
            let cut = |row: &[f32]| row[from..to].to_vec();
            (a.chunks_exact(k).flat_map(cut).collect(), b[from * n..to * n].to_vec())
        };
        let out = gpu.fresh::<f32>(m * n);
        for (i, (from, to)) in [(0, first), (first, k)].into_iter().enumerate() {
            let (a, b) = part(from, to);
            let (at, bt) = (gpu.upload(&a), gpu.upload(&b));
            let g = Gemm {
                a: at.at(),
                a_rows: DevicePtr::NULL,
                weights: Weights::f32(bt.at()),
                out: out.at(),
                m,
                k: to - from,
                n,
                resume: i == 1,
                epilogue: Epilogue::default(),
            };
            gpu.kernels.gemm(&gpu.stream, &g).unwrap();
            gpu.stream.synchronize().unwrap();
        }
        let (at, bt) = (gpu.upload(&a), gpu.upload(&b));
        let whole: Vec<f32> = gpu.output(m * n, |out| {
            let g = Gemm {
                a: at.at(),
                a_rows: DevicePtr::NULL,
                weights: Weights::f32(bt.at()),
                out,
                m,
                k,
                n,
                resume: false,
                epilogue: Epilogue::default(),
            };
            gpu.kernels.gemm(&gpu.stream, &g).unwrap();
        });
        same("halves", &gpu.download(&out, m * n), &whole);
    }
}

on_device! {
    fn epilogues_come_in_the_order_of_the_op(gpu) {
        let [m, k, n] = [10, 20, 21];
        let (a, bias, residual) = (numbers(1, m * k), numbers(3, n), numbers(4, m * n));
        let (at, bt, rt) = (gpu.upload(&a), gpu.upload(&bias), gpu.upload(&residual));
        for right in rights(gpu, k, n) {
            let chains = chains(&a, &right, [m, k, n], None);
            for act in [None, Some(Act::Gelu), Some(Act::Relu)] {
                let want = (0..m * n).map(|i| {
                    let v = f64::from(chains[i]) + f64::from(bias[i % n]);
                    act.map_or(v, |act| math::act(act, v)) + f64::from(residual[i])
                });
                let want: Vec<f64> = want.collect();
                let results = Tiling::ALL.map(|tiling| -> Vec<f32> {
                    gpu.output(m * n, |out| {
                        let g = Gemm {
                            a: at.at(),
                            a_rows: DevicePtr::NULL,
                            weights: right.weights(),
                            out,
                            m,
                            k,
                            n,
                            resume: false,
                            epilogue: Epilogue { bias: bt.at(), act, residual: rt.at() },
                        };
                        gpu.kernels.gemm_tiled(&gpu.stream, &g, tiling).unwrap();
                    })
                });
                close("epilogue", &results[0], &want, 2e-6);
                same("tilings", &results[1], &results[0]);
                same("tilings", &results[2], &results[0]);
            }
        }
    }
}
