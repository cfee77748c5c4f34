//! Normalisations.

use lazybatch_cuda::DevicePtr;

use crate::harness::{Gpu, alone_as_together, close, numbers, on_device, pick, wide};

/// Widths of one warp and of a block, with and without tails.
const WIDTHS: [usize; 8] = [1, 5, 37, 64, 384, 512, 513, 1030];
const ROWS: usize = 5;

fn layer_norm(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let scaled = x.iter().map(|v| (v - mean) / (var + eps).sqrt());
    scaled
        .zip(gamma.iter().zip(beta))
        .map(|(v, (g, b))| v * g + b)
        .collect()
}

fn by_row(x: &[f32], width: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    x.chunks_exact(width)
        .flat_map(|row| f(&wide(row)))
        .collect()
}

/// Runs a kernel of one operand on rows.
fn on_rows(
    gpu: &Gpu,
    x: &[f32],
    width: usize,
    which: &[usize],
    run: impl Fn(DevicePtr, DevicePtr, usize),
) -> Vec<f32> {
    let from = gpu.upload(&pick(x, width, which));
    gpu.output(which.len() * width, |out| run(from.at(), out, which.len()))
}

on_device! {
    fn layer_norms(gpu) {
        for width in WIDTHS {
            // A mean far from zero, as the sum of squares alone would not stand.
            let x: Vec<f32> = numbers(width as u64, ROWS * width).iter().map(|v| v + 30.0).collect();
            let (gamma, beta) = (numbers(2, width), numbers(3, width));
            let (g, b) = (gpu.upload(&gamma), gpu.upload(&beta));
            let name = format!("layer norm of {width}");
            let got = alone_as_together(&name, ROWS, width, |which| {
                on_rows(gpu, &x, width, which, |x, out, rows| {
                    gpu.kernels
                        .layer_norm(&gpu.stream, x, g.at(), b.at(), 1e-5, out, rows, width)
                        .unwrap();
                })
            });
            let eps = f64::from(1e-5f32);
            let want = by_row(&x, width, |r| layer_norm(r, &wide(&gamma), &wide(&beta), eps));
            close(&name, &got, &want, 5e-5);
        }
    }
}

on_device! {
    fn sums_and_their_layer_norms(gpu) {
        for width in WIDTHS {
            let (x, y) = (numbers(1, ROWS * width), numbers(4, ROWS * width));
            let (gamma, beta) = (numbers(2, width), numbers(3, width));
            let (g, b) = (gpu.upload(&gamma), gpu.upload(&beta));
            let name = format!("add and layer norm of {width}");
            let got = alone_as_together(&name, ROWS, 2 * width, |which| {
                let rows = which.len();
                let xt = gpu.upload(&pick(&x, width, which));
                let yt = gpu.upload(&pick(&y, width, which));
                let sum = gpu.fresh::<f32>(rows * width);
                let out: Vec<f32> = gpu.output(rows * width, |out| {
                    gpu.kernels
                        .add_layer_norm(
                            &gpu.stream, xt.at(), yt.at(), g.at(), b.at(), 1e-5, sum.at(), out, rows,
                            width,
                        )
                        .unwrap();
                });
                let sum: Vec<f32> = gpu.download(&sum, rows * width);
                let both = sum.chunks(width).zip(out.chunks(width));
                both.flat_map(|(s, o)| [s, o].concat()).collect()
            });
            let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            let eps = f64::from(1e-5f32);
            let want = by_row(&sums, width, |r| {
                [r.to_vec(), layer_norm(r, &wide(&gamma), &wide(&beta), eps)].concat()
            });
            close(&name, &got, &want, 2e-5);
        }
    }
}

on_device! {
    fn root_mean_squares(gpu) {
        for width in WIDTHS {
            let (x, gamma) = (numbers(1, ROWS * width), numbers(2, width));
            let g = gpu.upload(&gamma);
            let name = format!("rms norm of {width}");
            let got = alone_as_together(&name, ROWS, width, |which| {
                on_rows(gpu, &x, width, which, |x, out, rows| {
                    gpu.kernels
                        .rms_norm(&gpu.stream, x, g.at(), 1e-6, out, rows, width)
                        .unwrap();
                })
            });
            let want = by_row(&x, width, |r| {
                let square = r.iter().map(|v| v * v).sum::<f64>() / width as f64;
                let rms = (square + f64::from(1e-6f32)).sqrt();
                r.iter().zip(&gamma).map(|(v, g)| v / rms * f64::from(*g)).collect()
            });
            close(&name, &got, &want, 5e-6);
        }
    }
}

on_device! {
    fn channels_by_given_statistics(gpu) {
        let (channels, plane) = (5, 12);
        let width = channels * plane;
        let x = numbers(1, ROWS * width);
        let parts = [2, 3, 4].map(|seed| numbers(seed, channels));
        let var: Vec<f32> = numbers(5, channels).iter().map(|v| v + 1.1).collect();
        let uploaded = [&parts[0], &parts[1], &parts[2], &var].map(|p| gpu.upload(p));
        let got = alone_as_together("batch norm", ROWS, width, |which| {
            on_rows(gpu, &x, width, which, |x, out, rows| {
                let stats = [0, 1, 2, 3].map(|i: usize| uploaded[i].at());
                gpu.kernels
                    .batch_norm(&gpu.stream, x, stats, 1e-5, out, rows, channels, plane)
                    .unwrap();
            })
        });
        let want = x.iter().enumerate().map(|(i, v)| {
            let c = i / plane % channels;
            let [gamma, beta, mean] = [0, 1, 2].map(|p: usize| f64::from(parts[p][c]));
            let std = (f64::from(var[c]) + f64::from(1e-5f32)).sqrt();
            (f64::from(*v) - mean) / std * gamma + beta
        });
        close("batch norm", &got, &want.collect::<Vec<_>>(), 5e-6);
    }
}
