//! The first of a row in order.

use lazybatch_cuda::kernels::top_k::TopK;

use crate::harness::{Gpu, numbers, on_device, pick};

/// Values, as bits, and indices of the first `k` of each row.
fn run(gpu: &Gpu, x: &[f32], width: usize, k: usize, largest: bool) -> (Vec<u32>, Vec<i32>) {
    let rows = x.len() / width;
    let (from, ids) = (gpu.upload(x), gpu.fresh::<i32>(rows * k));
    let values = gpu.output(rows * k, |values| {
        let call = TopK {
            x: from.at(),
            values,
            ids: ids.at(),
            rows,
            width,
            k,
            largest,
        };
        gpu.kernels.top_k(&gpu.stream, &call).unwrap();
    });
    (values, gpu.download(&ids, rows * k))
}

/// What they should be, by sorting.
fn sorted(row: &[f32], k: usize, largest: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| {
        let sign = if largest { -1.0 } else { 1.0 };
        let (a, b) = (sign * row[a], sign * row[b]);
        a.is_nan()
            .cmp(&b.is_nan())
            .then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal))
    });
    order.truncate(k);
    order
}

on_device! {
    fn the_first_come_in_order_and_equals_by_index(gpu) {
        let most = [(1, 1), (2, 2), (35, 35), (512, 40), (513, 17), (3000, 9)];
        // Many candidates, more than a list holds, and more than it is tried for.
        let many = [(1500, 200), (6000, 256), (520, 300)];
        for (width, most) in most.into_iter().chain(many) {
            let mut x = numbers(width as u64, 6 * width);
            // All equal; few values, so that many are; zeros of either sign; some that are no
            // numbers and some without end; no number at all.
            x[width..2 * width].fill(0.5);
            x[2 * width..3 * width].iter_mut().for_each(|v| *v = (*v * 3.0).round());
            let zeros = x[3 * width..4 * width].iter_mut().enumerate();
            zeros.for_each(|(i, v)| *v = if i % 3 == 0 { -0.0 } else { 0.0 });
            let odd = x[4 * width..5 * width].iter_mut().enumerate();
            odd.for_each(|(i, v)| match i % 5 {
                0 => *v = f32::NAN,
                1 => *v = f32::NEG_INFINITY,
                2 => *v = f32::INFINITY,
                _ => {}
            });
            x[5 * width..].fill(f32::NAN);
            for largest in [true, false] {
                for k in [1, most / 2 + 1, most] {
                    let name = format!("{k} of {width}, largest {largest}");
                    let (values, ids) = run(gpu, &x, width, k, largest);
                    for (r, row) in x.chunks_exact(width).enumerate() {
                        let want = sorted(row, k, largest);
                        let got: Vec<usize> = ids[r * k..][..k].iter().map(|i| *i as usize).collect();
                        assert_eq!(got, want, "{name}, row {r}");
                        let bits: Vec<u32> = want.iter().map(|i| row[*i].to_bits()).collect();
                        assert_eq!(values[r * k..][..k], bits, "{name}, row {r}");
                        let alone = run(gpu, &pick(&x, width, &[r]), width, k, largest);
                        assert_eq!(alone.1, ids[r * k..][..k], "{name}, row {r} alone");
                    }
                }
            }
        }
    }
}

on_device! {
    fn more_than_there_are_is_refused(gpu) {
        let x = gpu.upload(&[0.0f32; 3]);
        let call = TopK {
            x: x.at(),
            values: x.at(),
            ids: x.at(),
            rows: 1,
            width: 3,
            k: 4,
            largest: true,
        };
        let error = gpu.kernels.top_k(&gpu.stream, &call).unwrap_err();
        assert!(error.to_string().contains("k of at most the width, got 4"), "{error}");
    }
}
