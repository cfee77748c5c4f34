//! Positions and tables.

use half::{bf16, f16};
use lazybatch_cuda::kernels::positions::rope_turns;
use lazybatch_cuda::kernels::{Stored, Weights};

use crate::harness::{alone_as_together, close, integers, numbers, on_device, pick, same};

on_device! {
    fn pairs_turn_by_position(gpu) {
        let positions = [0, 1, 5, 36, 4095, 131_071];
        for (heads, dim, theta) in [(1, 6, 1e4f32), (3, 8, 1e4), (2, 64, 5e5), (1, 2, 1e4)] {
            let width = heads * dim;
            let x = numbers(dim as u64, positions.len() * width);
            let turns = gpu.upload(&rope_turns(dim, theta));
            let name = format!("rope of {heads} x {dim}");
            let got = alone_as_together(&name, positions.len(), width, |which| {
                let from = gpu.upload(&pick(&x, width, which));
                let at = gpu.upload(&pick(&positions, 1, which));
                let args = (from.at(), at.at(), turns.at());
                gpu.output(which.len() * width, |out| {
                    gpu.kernels
                        .rope(&gpu.stream, args.0, args.1, args.2, out, which.len(), heads, dim)
                        .unwrap();
                })
            });
            let mut want = Vec::new();
            for (row, position) in positions.iter().enumerate() {
                for at in (0..width).step_by(2) {
                    let i = at / 2 % (dim / 2);
                    let frequency = f64::from(theta).powf(-2.0 * i as f64 / dim as f64);
                    let (sin, cos) = (f64::from(*position) * frequency).sin_cos();
                    let [a, b] = [0, 1].map(|j| f64::from(x[row * width + at + j]));
                    want.extend([a * cos - b * sin, a * sin + b * cos]);
                }
            }
            close(&name, &got, &want, 1e-6);
            let (from, at) = (gpu.upload(&x), gpu.upload(&positions));
            let rows = positions.len();
            gpu.kernels
                .rope(&gpu.stream, from.at(), at.at(), turns.at(), from.at(), rows, heads, dim)
                .unwrap();
            same("in place", &gpu.download(&from, x.len()), &got);
        }
    }
}

on_device! {
    fn learned_positions_are_added(gpu) {
        let (rows, width, table_rows) = (9, 18, 7);
        let (x, table) = (numbers(1, rows * width), numbers(2, table_rows * width));
        // The last ones are behind the table's end.
        let positions: Vec<i32> = (0..rows as i32).collect();
        let (from, at) = (gpu.upload(&x), gpu.upload(&positions));
        let t = gpu.upload(&table);
        let got: Vec<f32> = gpu.output(rows * width, |out| {
            gpu.kernels
                .add_position(&gpu.stream, from.at(), t.at(), table_rows, at.at(), out, rows, width)
                .unwrap();
        });
        let want: Vec<f32> = (0..rows * width)
            .map(|i| x[i] + table[(i / width).min(table_rows - 1) * width + i % width])
            .collect();
        same("positions", &got, &want);
    }
}

on_device! {
    fn tables_are_looked_up_and_summed(gpu) {
        let (rows, table_rows) = (6, 13);
        for (bag, width) in [(1, 9), (1, 64), (4, 7), (3, 1100)] {
            let mut ids = integers(width as u64, rows * bag, table_rows);
            // Outside of the table.
            ids[0] = -1;
            ids[bag] = table_rows as i32;
            let exact = numbers(5, table_rows * width);
            let halves: Vec<u16> = exact.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
            let brains: Vec<u16> = exact.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
            let tables = [gpu.upload(&exact), gpu.upload(&halves), gpu.upload(&brains)];
            let rounded: [Vec<f32>; 3] = [
                exact.clone(),
                halves.iter().map(|b| f16::from_bits(*b).to_f32()).collect(),
                brains.iter().map(|b| bf16::from_bits(*b).to_f32()).collect(),
            ];
            let stored = [Stored::F32, Stored::F16, Stored::Bf16];
            for ((at, rounded), stored) in tables.iter().zip(&rounded).zip(stored) {
                let table = Weights { at: at.at(), stored };
                let name = format!("{bag} rows of {width}, {stored:?}");
                let got = alone_as_together(&name, rows, width, |which| {
                    let ids = gpu.upload(&pick(&ids, bag, which));
                    let num = which.len();
                    gpu.output(num * width, |out| {
                        gpu.kernels
                            .embedding_bag(
                                &gpu.stream, ids.at(), table, table_rows, out, num, bag, width,
                            )
                            .unwrap();
                    })
                });
                let mut want = vec![0.0f32; rows * width];
                for (i, id) in ids.iter().enumerate() {
                    if (0..table_rows as i32).contains(id) {
                        let row = &rounded[*id as usize * width..][..width];
                        let to = &mut want[i / bag * width..][..width];
                        to.iter_mut().zip(row).for_each(|(t, r)| *t += r);
                    }
                }
                same(&name, &got, &want);
            }
        }
        let table = Weights {
            at: lazybatch_cuda::DevicePtr::NULL,
            stored: Stored::Int8 { scales: lazybatch_cuda::DevicePtr::NULL },
        };
        let null = lazybatch_cuda::DevicePtr::NULL;
        assert!(gpu.kernels.embedding(&gpu.stream, null, table, 1, null, 1, 1).is_err());
    }
}
