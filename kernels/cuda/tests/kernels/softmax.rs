//! Softmax, the best of a row, stop tokens.

use crate::harness::{alone_as_together, close, numbers, on_device, pick, same};

const WIDTHS: [usize; 7] = [1, 3, 18, 100, 512, 515, 1200];
const ROWS: usize = 5;

on_device! {
    fn rows_become_shares(gpu) {
        for width in WIDTHS {
            let x: Vec<f32> = numbers(width as u64, ROWS * width).iter().map(|v| v * 20.0).collect();
            let name = format!("softmax of {width}");
            let got = alone_as_together(&name, ROWS, width, |which| {
                let from = gpu.upload(&pick(&x, width, which));
                gpu.output(which.len() * width, |out| {
                    gpu.kernels.softmax(&gpu.stream, from.at(), out, which.len(), width).unwrap();
                })
            });
            let want = x.chunks_exact(width).flat_map(|row| {
                let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let each: Vec<f64> = row.iter().map(|v| f64::from(v - top).exp()).collect();
                let sum: f64 = each.iter().sum();
                each.into_iter().map(move |v| v / sum)
            });
            close(&name, &got, &want.collect::<Vec<_>>(), 1e-6);
            // In place.
            let from = gpu.upload(&x);
            gpu.kernels.softmax(&gpu.stream, from.at(), from.at(), ROWS, width).unwrap();
            same(&name, &gpu.download(&from, ROWS * width), &got);
        }
    }
}

on_device! {
    fn the_lowest_of_the_largest_is_chosen(gpu) {
        for width in [1, 2, 35, 512, 600, 3000] {
            let mut x = numbers(width as u64, 7 * width);
            let last = width - 1;
            // All equal; the first and the last; two others; one that is no number; nothing.
            x[width..2 * width].fill(0.5);
            x[2 * width] = 3.0;
            x[2 * width + last] = 3.0;
            x[3 * width + last] = 3.0;
            x[3 * width + width / 2] = 3.0;
            x[4 * width] = f32::NAN;
            x[5 * width..6 * width].fill(f32::NEG_INFINITY);
            x[6 * width..].fill(f32::NAN);
            let from = gpu.upload(&x);
            let got: Vec<i32> = gpu.output(7, |out| {
                gpu.kernels.arg_max(&gpu.stream, from.at(), out, 7, width).unwrap();
            });
            let want: Vec<i32> = x.chunks_exact(width).map(|row| {
                let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let at = row.iter().position(|v| *v == top).unwrap_or(0);
                if row[0].is_nan() { 0 } else { at as i32 }
            }).collect();
            assert_eq!(got, want, "{width}");
        }
    }
}

on_device! {
    fn stop_tokens_are_flagged(gpu) {
        let ids: Vec<i32> = (0..300).map(|i| i % 7 - 2).collect();
        let from = gpu.upload(&ids);
        for token in [3, -2, 100] {
            let got: Vec<u8> = gpu.output(ids.len(), |out| {
                let table = gpu.upload(&[out.0]);
                gpu.kernels.stop_flags(&gpu.stream, from.at(), token, table.at(), ids.len()).unwrap();
                gpu.stream.synchronize().unwrap();
            });
            let want: Vec<u8> = ids.iter().map(|i| u8::from(*i == token)).collect();
            assert_eq!(got, want);
        }
    }
}
