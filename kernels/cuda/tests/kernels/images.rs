//! Convolutions, pooling, and interactions of vectors.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::conv::Conv;
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_graph::{Act, Pool, Window};
use lazybatch_kernels::reference::math;

use crate::harness::{alone_as_together, close, numbers, on_device, pick};

pub const ROWS: usize = 3;
pub const UNEVEN: Window = Window {
    kernel: [3, 2],
    stride: [2, 1],
    pad: [1, 0, 0, 1],
};

/// Input row or column under output `o` and window element `k`; none in the padding.
fn source(w: &Window, axis: usize, o: usize, k: usize, n: usize) -> Option<usize> {
    let at = (o * w.stride[axis] + k).checked_sub(w.pad[axis])?;
    (at < n).then_some(at)
}

/// The elements of a window, by place in it; none in the padding.
fn window<'a>(
    w: &'a Window,
    plane: &'a [f32],
    [height, width]: [usize; 2],
    [oy, ox]: [usize; 2],
) -> impl Iterator<Item = (usize, f64)> + 'a {
    (0..w.kernel[0] * w.kernel[1]).filter_map(move |i| {
        let y = source(w, 0, oy, i / w.kernel[1], height)?;
        let x = source(w, 1, ox, i % w.kernel[1], width)?;
        Some((i, f64::from(plane[y * width + x])))
    })
}

pub struct Case {
    pub window: Window,
    pub channels: usize,
    pub size: [usize; 2],
    pub filters: usize,
    pub groups: usize,
    pub act: Option<Act>,
    /// Bias, residual.
    pub with: [bool; 2],
}

pub fn case(
    window: Window,
    [channels, height, width, filters, groups]: [usize; 5],
    act: Option<Act>,
    with: [bool; 2],
) -> Case {
    Case {
        window,
        channels,
        size: [height, width],
        filters,
        groups,
        act,
        with,
    }
}

fn cases() -> Vec<Case> {
    let square = Window::square;
    vec![
        case(
            square(3, 1, 1),
            [3, 9, 7, 8, 1],
            Some(Act::Relu),
            [true, false],
        ),
        case(
            square(1, 1, 0),
            [40, 5, 5, 33, 1],
            Some(Act::Relu),
            [true, true],
        ),
        case(square(7, 2, 3), [3, 17, 17, 12, 1], None, [false, false]),
        case(UNEVEN, [4, 8, 8, 6, 2], Some(Act::Relu6), [true, false]),
        case(UNEVEN, [4, 8, 8, 20, 2], Some(Act::Silu), [true, true]),
        case(square(3, 1, 1), [32, 6, 6, 70, 1], None, [false, true]),
        case(
            square(3, 2, 1),
            [6, 9, 9, 6, 6],
            Some(Act::Relu6),
            [true, false],
        ),
        case(square(3, 1, 1), [6, 9, 9, 12, 6], None, [false, true]),
    ]
}

pub fn conv_by_definition(
    c: &Case,
    x: &[f32],
    weights: &[f32],
    bias: &[f32],
    residual: &[f32],
) -> Vec<f64> {
    let [oh, ow] = c.window.output(c.size[0], c.size[1]).unwrap();
    let (plane, area) = (
        c.size[0] * c.size[1],
        c.window.kernel[0] * c.window.kernel[1],
    );
    let per = c.channels / c.groups;
    let mut out = Vec::new();
    for image in x.chunks_exact(c.channels * plane) {
        for filter in 0..c.filters {
            let group = filter / (c.filters / c.groups);
            for pixel in 0..oh * ow {
                let mut sum = 0.0;
                for i in 0..per {
                    let from = &image[(group * per + i) * plane..][..plane];
                    let w = &weights[(filter * per + i) * area..][..area];
                    let seen = window(&c.window, from, c.size, [pixel / ow, pixel % ow]);
                    sum += seen.map(|(at, v)| v * f64::from(w[at])).sum::<f64>();
                }
                if c.with[0] {
                    sum += f64::from(bias[filter]);
                }
                if c.with[1] {
                    sum += f64::from(residual[out.len()]);
                }
                out.push(c.act.map_or(sum, |act| math::act(act, sum)));
            }
        }
    }
    out
}

on_device! {
    fn convolutions(gpu) {
        for (i, c) in cases().iter().enumerate() {
            let [oh, ow] = c.window.output(c.size[0], c.size[1]).unwrap();
            let (taken, made) = (c.channels * c.size[0] * c.size[1], c.filters * oh * ow);
            let x = numbers(1, ROWS * taken);
            let num = c.filters * c.channels / c.groups * c.window.kernel.iter().product::<usize>();
            let exact = numbers(2, num);
            let (bias, residual) = (numbers(3, c.filters), numbers(4, ROWS * made));
            let bt = gpu.upload(&bias);
            let halves: Vec<u16> = exact.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
            let brains: Vec<u16> = exact.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
            let mut stored = vec![(Stored::F32, gpu.upload(&exact), exact.clone())];
            if i % 3 == 0 {
                let rounded = halves.iter().map(|b| f16::from_bits(*b).to_f32()).collect();
                stored.push((Stored::F16, gpu.upload(&halves), rounded));
                let rounded = brains.iter().map(|b| bf16::from_bits(*b).to_f32()).collect();
                stored.push((Stored::Bf16, gpu.upload(&brains), rounded));
            }
            for (stored, at, rounded) in stored {
                let name = format!("conv {i}, {stored:?}");
                let got = alone_as_together(&name, ROWS, made, |which| {
                    let from = gpu.upload(&pick(&x, taken, which));
                    let rt = gpu.upload(&pick(&residual, made, which));
                    let on = |is_on: bool, at| if is_on { at } else { DevicePtr::NULL };
                    gpu.output(which.len() * made, |out| {
                        let conv = Conv {
                            x: from.at(),
                            weights: Weights { at: at.at(), stored },
                            out,
                            rows: which.len(),
                            channels: c.channels,
                            size: c.size,
                            filters: c.filters,
                            window: c.window,
                            groups: c.groups,
                            epilogue: Epilogue {
                                bias: on(c.with[0], bt.at()),
                                act: c.act,
                                residual: on(c.with[1], rt.at()),
                            },
                        };
                        gpu.kernels.conv2d(&gpu.stream, &conv).unwrap();
                    })
                });
                close(&name, &got, &conv_by_definition(c, &x, &rounded, &bias, &residual), 1e-5);
            }
        }
    }
}

on_device! {
    fn windows_are_pooled(gpu) {
        let cases = [(Window::square(3, 2, 1), [9, 9]), (UNEVEN, [8, 8]), (Window::square(2, 2, 0), [6, 7])];
        for (window_of, size) in cases {
            let [oh, ow] = window_of.output(size[0], size[1]).unwrap();
            let (planes, plane) = (8, size[0] * size[1]);
            let x = numbers(1, planes * plane);
            for pool in [Pool::Max, Pool::Average] {
                let got = alone_as_together("pool", planes, oh * ow, |which| {
                    let from = gpu.upload(&pick(&x, plane, which));
                    gpu.output(which.len() * oh * ow, |out| {
                        gpu.kernels
                            .pool2d(&gpu.stream, pool, &window_of, from.at(), out, which.len(), size)
                            .unwrap();
                    })
                });
                let mut want = Vec::new();
                for from in x.chunks_exact(plane) {
                    for pixel in 0..oh * ow {
                        let at = [pixel / ow, pixel % ow];
                        let seen: Vec<f64> = window(&window_of, from, size, at).map(|(_, v)| v).collect();
                        want.push(match pool {
                            Pool::Max => seen.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                            Pool::Average => seen.iter().sum::<f64>() / seen.len() as f64,
                        });
                    }
                }
                close("pool", &got, &want, 1e-6);
            }
        }
        for plane in [1, 49, 100] {
            let x = numbers(plane as u64, 7 * plane);
            let got = alone_as_together("mean of planes", 7, 1, |which| {
                let from = gpu.upload(&pick(&x, plane, which));
                gpu.output(which.len(), |out| {
                    gpu.kernels
                        .global_average_pool(&gpu.stream, from.at(), out, which.len(), plane)
                        .unwrap();
                })
            });
            let mean = |p: &[f32]| p.iter().map(|v| f64::from(*v)).sum::<f64>() / plane as f64;
            let want: Vec<f64> = x.chunks_exact(plane).map(mean).collect();
            close("mean of planes", &got, &want, 1e-6);
        }
    }
}

on_device! {
    fn vectors_interact(gpu) {
        for (vectors, dim) in [(5, 18), (2, 1), (27, 64), (1, 4)] {
            let pairs = vectors * (vectors - 1) / 2;
            let x = numbers(dim as u64, ROWS * vectors * dim);
            let got = alone_as_together("interaction", ROWS, pairs, |which| {
                let from = gpu.upload(&pick(&x, vectors * dim, which));
                gpu.output(which.len() * pairs, |out| {
                    gpu.kernels
                        .interaction(&gpu.stream, from.at(), out, which.len(), vectors, dim)
                        .unwrap();
                })
            });
            let mut want = Vec::new();
            for row in x.chunks_exact(vectors * dim) {
                for i in 1..vectors {
                    for j in 0..i {
                        let term = |e: usize| f64::from(row[i * dim + e]) * f64::from(row[j * dim + e]);
                        want.push((0..dim).map(term).sum());
                    }
                }
            }
            close("interaction", &got, &want, 2e-6);
        }
    }
}
