//! Rows that move.

use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::Member;
use lazybatch_cuda::kernels::rows::Span;

use crate::harness::{Gpu, close, integers, numbers, on_device, pick, same};

/// A table of structs as bytes.
pub fn table<T>(gpu: &Gpu, entries: &[T]) -> crate::harness::Buffer {
    // SAFETY: plain integers without gaps.
    let bytes = unsafe {
        std::slice::from_raw_parts(
            entries.as_ptr().cast::<u8>(),
            std::mem::size_of_val(entries),
        )
    };
    gpu.upload(bytes)
}

pub fn members(gpu: &Gpu, entries: &[Member]) -> crate::harness::Buffer {
    table(gpu, entries)
}

on_device! {
    fn spans_are_copied_and_zeroed(gpu) {
        let x = numbers(1, 3000);
        let from = gpu.upload(&x);
        // Aligned, by one element off, zeros behind, zeros alone, nothing, long.
        let spans = [(0, 8, 0), (9, 7, 3), (64, 5, 6), (0, 0, 4), (0, 0, 0), (100, 2700, 1)];
        let mut want = Vec::new();
        let out = gpu.fresh::<f32>(3000);
        let mut entries = Vec::new();
        for (start, copied, zeroed) in spans {
            entries.push(Span {
                from: from.at().add(start * 4),
                to: out.at().add(want.len() * 4),
                copied: copied as u32,
                zeroed: zeroed as u32,
            });
            want.extend_from_slice(&x[start..start + copied]);
            want.extend(vec![0.0; zeroed]);
        }
        let null = Span { from: DevicePtr::NULL, to: out.at().add(want.len() * 4), copied: 5, zeroed: 0 };
        entries.push(null);
        want.extend([0.0; 5]);
        let entries_at = table(gpu, &entries);
        gpu.kernels.copy_spans(&gpu.stream, entries_at.at(), entries.len(), 2701).unwrap();
        same("spans", &gpu.download(&out, want.len()), &want);
        gpu.kernels.copy_spans(&gpu.stream, DevicePtr::NULL, 0, 0).unwrap();
    }
}

on_device! {
    fn rows_are_gathered_and_scattered(gpu) {
        for width in [1, 3, 4, 20, 33, 1500] {
            let x = numbers(width as u64, 7 * width);
            let picks = [3, 0, -1, 6, 6, 1];
            let (from, entries) = (gpu.upload(&x), gpu.upload(&picks));
            let got: Vec<f32> = gpu.output(picks.len() * width, |out| {
                gpu.kernels
                    .gather_rows(&gpu.stream, from.at(), entries.at(), out, picks.len(), width)
                    .unwrap();
            });
            let row = |r: i32| match usize::try_from(r) {
                Ok(r) => pick(&x, width, &[r]),
                Err(_) => vec![0.0; width],
            };
            let want: Vec<f32> = picks.into_iter().flat_map(row).collect();
            same("gather", &got, &want);

            let places = [4, -1, 0, 6, 1, 2, 3];
            let before = numbers(99, 8 * width);
            for is_null in [false, true] {
                let (pool, entries) = (gpu.upload(&before), gpu.upload(&places));
                let data = if is_null { DevicePtr::NULL } else { from.at() };
                gpu.kernels
                    .scatter_rows(&gpu.stream, data, entries.at(), pool.at(), 7, width)
                    .unwrap();
                let mut want = before.clone();
                for (r, place) in places.into_iter().enumerate() {
                    if let Ok(place) = usize::try_from(place) {
                        let row = pick(&x, width, &[r]);
                        let to = &mut want[place * width..][..width];
                        to.copy_from_slice(&row);
                        if is_null {
                            to.fill(0.0);
                        }
                    }
                }
                same("scatter", &gpu.download(&pool, 8 * width), &want);
            }
        }
    }
}

on_device! {
    fn columns_are_joined_and_cut(gpu) {
        let rows = 5;
        let widths = [3, 5, 1, 16];
        let parts: Vec<Vec<f32>> = widths.iter().map(|&w| numbers(w as u64, rows * w)).collect();
        let uploaded: Vec<_> = parts.iter().map(|p| gpu.upload(p)).collect();
        let args: Vec<_> = uploaded.iter().zip(widths).map(|(b, w)| (b.at(), w)).collect();
        let all: usize = widths.iter().sum();
        let got: Vec<f32> = gpu.output(rows * all, |out| {
            gpu.kernels.concat(&gpu.stream, &args, out, rows).unwrap();
        });
        let mut want = Vec::new();
        for r in 0..rows {
            parts.iter().zip(widths).for_each(|(p, w)| want.extend(pick(p, w, &[r])));
        }
        same("concat", &got, &want);
        let joined = gpu.upload(&got);
        let cut: Vec<f32> = gpu.output(rows * 5, |out| {
            gpu.kernels.slice(&gpu.stream, joined.at(), out, rows, all, 3, 5).unwrap();
        });
        same("slice", &cut, &parts[1]);
        let outside = gpu.kernels.slice(&gpu.stream, joined.at(), joined.at(), rows, all, 22, 5);
        let text = outside.unwrap_err().to_string();
        assert!(text.contains("22..27 of 25"), "{text}");
    }
}

on_device! {
    fn members_give_one_row_each(gpu) {
        // Padding behind the second and third.
        let all = [(0, 4, 4, 2), (4, 6, 3, 0), (10, 5, 1, 1)].map(|(start, rows, own, sample)| {
            Member { start, rows, own, sample }
        });
        for width in [1, 23, 300] {
            let mut x = numbers(width as u64, 15 * width);
            // What is in the padding must not matter.
            for m in &all {
                let padding = (m.start + m.own) as usize * width..(m.start + m.rows) as usize * width;
                x[padding].fill(f32::NAN);
            }
            let (from, at) = (gpu.upload(&x), members(gpu, &all));
            let run = |which: usize| -> Vec<f32> {
                gpu.output(3 * width, |out| {
                    let (k, s, x, at) = (&gpu.kernels, &gpu.stream, from.at(), at.at());
                    match which {
                        0 => k.mean_rows(s, x, at, out, 3, width),
                        1 => k.first_row(s, x, at, out, 3, width),
                        _ => k.last_row(s, x, at, out, 3, width),
                    }
                    .unwrap();
                })
            };
            let row = |r: u32| pick(&x, width, &[r as usize]);
            let mut order = all;
            order.sort_by_key(|m| m.sample);
            let first: Vec<f32> = order.iter().flat_map(|m| row(m.start)).collect();
            same("first", &run(1), &first);
            let last: Vec<f32> = order.iter().flat_map(|m| row(m.start + m.own - 1)).collect();
            same("last", &run(2), &last);
            let mean = order.iter().flat_map(|m| {
                let rows: Vec<Vec<f32>> = (0..m.own).map(|r| row(m.start + r)).collect();
                let sum = move |c: usize| rows.iter().map(|r| f64::from(r[c])).sum::<f64>();
                (0..width).map(move |c| sum(c) / f64::from(m.own)).collect::<Vec<_>>()
            });
            close("mean", &run(0), &mean.collect::<Vec<_>>(), 1e-6);
        }
        // Ids move as well as numbers.
        let ids = integers(3, 15, 1000);
        let (from, at) = (gpu.upload(&ids), members(gpu, &all));
        let got: Vec<i32> = gpu.output(3, |out| {
            gpu.kernels.last_row(&gpu.stream, from.at(), at.at(), out, 3, 1).unwrap();
        });
        assert_eq!(got, [ids[6], ids[10], ids[3]]);
    }
}
