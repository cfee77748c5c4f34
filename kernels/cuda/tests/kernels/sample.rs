//! Tokens drawn by their scores, held against the definition in double precision.

use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::sample::Sample;
use lazybatch_graph::{Sampling, sampling};

use crate::harness::{Gpu, numbers, on_device, pick};

/// Tokens of rows, each with its own way and its own place.
fn run(gpu: &Gpu, x: &[f32], how: &[Sampling], places: Option<&[i32]>, first: u32) -> Vec<i32> {
    let (rows, width) = (how.len(), x.len() / how.len());
    let words: Vec<i32> = how.iter().flat_map(Sampling::words).collect();
    let (from, words) = (gpu.upload(x), gpu.upload(&words));
    let places = places.map(|places| gpu.upload(places));
    let out = gpu.fresh::<i32>(rows);
    let call = Sample {
        logits: from.at(),
        how: words.at(),
        positions: places.as_ref().map_or(DevicePtr::NULL, |p| p.at()),
        first,
        out: out.at(),
        rows,
        width,
    };
    gpu.kernels.sample(&gpu.stream, &call).unwrap();
    gpu.download(&out, rows)
}

/// The definition, in double precision.
fn defined(row: &[f32], how: &Sampling, draw: u32) -> i32 {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| {
        let (nan, other) = (row[a].is_nan(), row[b].is_nan());
        let falling = row[b].partial_cmp(&row[a]);
        nan.cmp(&other)
            .then(falling.unwrap_or(std::cmp::Ordering::Equal))
    });
    let top = row[order[0]];
    if how.is_greedy() || !top.is_finite() {
        return order[0] as i32;
    }
    if how.top_k > 0 {
        order.truncate(how.top_k as usize);
    }
    order.sort_unstable();
    let weight = |i: usize| {
        let q = f64::from(row[i] - top) / f64::from(how.temperature);
        (q.exp() * f64::from(1u32 << 31)) as u64
    };
    let total: u64 = order.iter().map(|&i| weight(i)).sum();
    let random = sampling::random(how.seed, draw);
    let left = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    let mut sum = 0;
    let found = order.iter().find(|&&i| {
        sum += weight(i);
        left < sum
    });
    *found.unwrap() as i32
}

fn ways(num: usize) -> Vec<Sampling> {
    (0..num)
        .map(|i| Sampling {
            temperature: [0.0, 0.3, 1.0, 2.5][i % 4],
            top_k: [0, 3, 1, 50, 700][i % 5],
            seed: (i as u64) << (i % 40),
        })
        .collect()
}

on_device! {
    fn tokens_are_those_of_the_definition_whatever_is_beside_them(gpu) {
        for width in [1, 2, 35, 256, 513, 3000] {
            let num = 24;
            let mut x: Vec<f32> = numbers(width as u64, num * width).iter().map(|v| v * 4.0).collect();
            // Equals; zeros of either sign; some that are no numbers and none without end; one
            // without end; nothing but what is no number, or has no share.
            x[width..2 * width].fill(0.5);
            let zeros = x[2 * width..3 * width].iter_mut().enumerate();
            zeros.for_each(|(i, v)| *v = if i % 3 == 0 { -0.0 } else { 0.0 });
            let odd = x[6 * width..8 * width].iter_mut().enumerate();
            odd.for_each(|(i, v)| match i % 5 {
                0 => *v = f32::NAN,
                1 => *v = f32::NEG_INFINITY,
                _ => {}
            });
            x[9 * width] = f32::INFINITY;
            x[10 * width..11 * width].fill(f32::NAN);
            x[11 * width..12 * width].fill(f32::NEG_INFINITY);
            let how = ways(num);
            let places: Vec<i32> = (0..num as i32).map(|i| i * i).collect();
            for (places, first) in [(Some(&places[..]), 1), (None, 0)] {
                let got = run(gpu, &x, &how, places, first);
                for (r, row) in x.chunks_exact(width).enumerate() {
                    let draw = first + places.map_or(0, |p| p[r] as u32);
                    assert_eq!(got[r], defined(row, &how[r], draw), "row {r} of {width}");
                    let own = places.map(|p| &p[r..=r]);
                    let alone = run(gpu, &pick(&x, width, &[r]), &how[r..=r], own, first);
                    assert_eq!(alone, [got[r]], "row {r} of {width} alone");
                }
            }
        }
    }
}

on_device! {
    fn words_that_are_none_of_a_sampling_give_the_likeliest(gpu) {
        let x = [0.0, 3.0, 1.0];
        for (temperature, top_k) in [(f32::NAN, 0), (-1.0, 0), (1e9, 0), (1.0, 5000)] {
            let how = Sampling { temperature, top_k, seed: 3 };
            assert_eq!(run(gpu, &x, &[how], None, 0), [1]);
        }
    }
}

on_device! {
    /// Candidates that there is room for, and more of them than that: the highest are in one
    /// thread's share, or many are chosen. Equals everywhere, and neighbours.
    fn tokens_among_few_of_many_are_those_of_the_definition(gpu) {
        for width in [600, 1025, 6000] {
            let top_ks = [2, 50, 256, 257, 1023, 1024];
            let num = 4 * top_ks.len();
            let mut x: Vec<f32> = numbers(width as u64, num * width).iter().map(|v| v * 3.0).collect();
            let how: Vec<Sampling> = (0..num).map(|r| Sampling {
                temperature: [1.0, 0.4, 1e-30][r % 3],
                top_k: top_ks[r / 4],
                seed: 7 + r as u64,
            }).collect();
            for (r, row) in x.chunks_exact_mut(width).enumerate() {
                match r % 4 {
                    0 => {}
                    1 => row.fill(-0.25),
                    2 => row.iter_mut().for_each(|v| *v = (*v * 2.0).round()),
                    // More than the list holds are at the best of the shares or above.
                    _ => row.iter_mut().enumerate().for_each(|(i, v)| {
                        *v = if i % 1024 < 512 { 3.0 + *v / 4.0 } else { *v };
                    }),
                }
            }
            let got = run(gpu, &x, &how, None, 5);
            for (r, row) in x.chunks_exact(width).enumerate() {
                assert_eq!(got[r], defined(row, &how[r], 5), "row {r} of {width}");
            }
        }
    }
}

on_device! {
    /// The highest are one thread's, so that the best of the others' are far below them; runs of
    /// warps have runs.
    fn tokens_of_wide_rows_are_those_of_the_definition(gpu) {
        let width = 40_000;
        let mut x = numbers(3, 4 * width);
        let of_one = |(i, v): (usize, &mut f32)| if i % 1024 == 77 { *v += 9.0 };
        x[..2 * width].iter_mut().enumerate().for_each(|(i, v)| of_one((i % width, v)));
        let how = [50, 3, 0, 900].map(|top_k| Sampling { temperature: 0.7, top_k, seed: 12 });
        let got = run(gpu, &x, &how, None, 0);
        for (r, row) in x.chunks_exact(width).enumerate() {
            assert_eq!(got[r], defined(row, &how[r], 0), "row {r}");
        }
    }
}
