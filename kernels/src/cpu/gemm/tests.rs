//! Every product has the bits of one chain per element.

use half::{bf16, f16};

use lazybatch_graph::Act;

use super::driver::Columns;
use super::tile::{DEPTH, WIDEST};
use super::*;
use crate::cpu::level::Level;
use crate::cpu::pool::{Pool, Shards};

fn noise(n: usize, seed: u64) -> Vec<f32> {
    lazybatch_graph::WeightSource::Seeded { seed, bound: 1.0 }.to_f32(n)
}

/// The one chain per element that every product must have.
fn chain(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f32> {
    let mut c = vec![0.0f32; m * n];
    for i in 0..m {
        for j in 0..n {
            c[i * n + j] = (0..k).fold(0.0, |s, x| a[i * k + x].mul_add(b[x * n + j], s));
        }
    }
    c
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// `act(a w + bias) + residual` at every level and on one to three threads.
fn everywhere(a: &[f32], w: &PackedB, epi: &Epilogue<'_>, mut check: impl FnMut(&[f32], &str)) {
    for level in Level::available() {
        for threads in [1, 2, 3] {
            let mut pool = Pool::new(threads);
            let mut c = vec![f32::NAN; a.len() / w.k * w.n];
            gemm_packed(&mut pool, level, true, a, w, &mut c, false, epi);
            check(&c, &format!("{threads} threads, {level:?}"));
        }
    }
}

/// Inner dimensions and columns; few where an interpreter runs the tests.
const SHAPES: &[(usize, usize)] = if cfg!(miri) {
    &[(1, 1), (7, 5), (260, 33)]
} else {
    &[
        (1, 1),
        (7, 5),
        (64, 16),
        (300, 33),
        (513, 100),
        (256, 161),
        (40, 700),
        (DEPTH + 300, 35),
        (2 * DEPTH + 1, 20),
    ]
};

/// Activations behind a product.
const ACTS: &[Option<Act>] = if cfg!(miri) {
    &[Some(Act::Relu)]
} else {
    &[None, Some(Act::Relu), Some(Act::Relu6), Some(Act::Tanh)]
};

/// Rows of the left side.
const ROWS: &[usize] = if cfg!(miri) {
    &[1, 13]
} else {
    &[1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16, 25, 37, 100]
};

#[test]
fn every_shape_thread_count_and_level_has_the_bits_of_one_chain() {
    for &(k, n) in SHAPES {
        let b = noise(k * n, 1);
        let packed = PackedB::pack(&b, k, n);
        for &m in ROWS {
            let a = noise(m * k, 2);
            let want = bits(&chain(&a, &b, m, k, n));
            everywhere(&a, &packed, &Epilogue::default(), |c, what| {
                assert!(bits(c) == want, "{m}x{k}x{n}, {what}");
            });
        }
    }
}

#[test]
fn chains_go_on_from_what_is_there() {
    let (k, n) = (600, 70);
    let b = noise(2 * k * n, 1);
    let halves = [&b[..k * n], &b[k * n..]].map(|b| PackedB::pack(b, k, n));
    for m in [1, 5, 13, 30] {
        let a = noise(m * 2 * k, 2);
        let want = bits(&chain(&a, &b, m, 2 * k, n));
        for level in Level::available() {
            let mut pool = Pool::new(2);
            let mut c = vec![f32::NAN; m * n];
            for (i, half) in halves.iter().enumerate() {
                let a: Vec<f32> = a
                    .chunks(2 * k)
                    .flat_map(|r| &r[i * k..][..k])
                    .copied()
                    .collect();
                let epi = Epilogue::default();
                gemm_packed(&mut pool, level, true, &a, half, &mut c, i > 0, &epi);
            }
            assert!(bits(&c) == want, "{m} rows, {level:?}");
        }
    }
}

/// Inner dimensions of two sides, one on top of the other.
const STACKED: &[[usize; 2]] = if cfg!(miri) {
    &[[3, 260]]
} else {
    &[
        [1, 1],
        [16, 256],
        [255, 3],
        [256, 256],
        [257, 300],
        [300, 257],
        [3, DEPTH - 3],
        [DEPTH - 1, 1],
    ]
};

#[test]
fn one_product_with_two_sides_has_the_chains_of_both() {
    for &[top, rest] in STACKED {
        let k = top + rest;
        for n in [5, 33, 100] {
            let (b, bias) = (noise(k * n, 1), noise(n, 4));
            let above = PackedB::pack(&b[..top * n], top, n);
            let below = PackedB::pack(&b[top * n..], rest, n);
            for &m in ROWS {
                let a = noise(m * k, 2);
                let mut want = chain(&a, &b, m, k, n);
                want.iter_mut()
                    .zip(bias.iter().cycle())
                    .for_each(|(c, b)| *c += b);
                for (level, threads) in Level::available()
                    .into_iter()
                    .flat_map(|l| [(l, 1), (l, 3)])
                {
                    let right = Right::stacked(&above, &below).expect("both are f32");
                    let epi = Epilogue {
                        bias: Some(&bias),
                        ..Epilogue::default()
                    };
                    let mut c = vec![f32::NAN; m * n];
                    let (mut pool, a) = (Pool::new(threads), AView::rows(&a, k));
                    gemm(&mut pool, level, true, a, m, right, &mut c, n, false, &epi);
                    let what =
                        format!("{m} x ({top} + {rest}) x {n}, {threads} threads, {level:?}");
                    assert!(bits(&c) == bits(&want), "{what}");
                }
            }
        }
    }
}

#[test]
fn sides_are_stacked_where_one_product_can_have_both() {
    let side = |weights, k, n| PackedB::pack_as(weights, &noise(k * n, 1), k, n).unwrap();
    let float = |k, n| side(WeightType::F32, k, n);
    let is_one = |above: &PackedB, below: &PackedB| Right::stacked(above, below).is_some();
    assert!(is_one(&float(24, 7), &float(DEPTH - 24, 7)));
    assert!(!is_one(&float(25, 7), &float(DEPTH - 24, 7)), "too long");
    assert!(!is_one(&float(5, 7), &float(5, 8)), "of other columns");
    for weights in WeightType::ALL
        .into_iter()
        .filter(|w| *w != WeightType::F32)
    {
        let other = side(weights, 5, 7);
        let both = [&other, &float(5, 7)];
        assert!(
            !is_one(both[0], both[1]) && !is_one(both[1], both[0]),
            "{weights:?}"
        );
        assert!(!is_one(&other, &other), "{weights:?}");
    }
}

/// `act(residual + first_bias + a w + bias)`, chains beginning with the first two.
#[test]
fn chains_begin_with_a_residual_and_its_bias_and_end_with_bias_and_activation() {
    for &(k, n) in SHAPES {
        let (b, first, last) = (noise(k * n, 1), noise(n, 6), noise(n, 7));
        let packed = PackedB::pack(&b, k, n);
        let AnyB::Float(right) = packed.view() else {
            panic!("packed as f32")
        };
        for &m in ROWS {
            let (a, residual) = (noise(m * k, 2), noise(m * n, 3));
            for &act in ACTS {
                let want: Vec<f32> = (0..m * n)
                    .map(|at| {
                        let (i, j) = (at / n, at % n);
                        let start = residual[at] + first[j];
                        let x = (0..k).fold(start, |s, x| a[i * k + x].mul_add(b[x * n + j], s));
                        let x = x + last[j];
                        act.map_or(x, |act| crate::cpu::math::act(act, [x; 16])[0])
                    })
                    .collect();
                for (level, in_place) in Level::available()
                    .into_iter()
                    .flat_map(|l| [(l, true), (l, false)])
                {
                    let mut c = vec![f32::NAN; m * n];
                    let from = (!in_place).then_some(&residual[..]);
                    if in_place {
                        c.copy_from_slice(&residual);
                    }
                    let epi = Epilogue {
                        bias: Some(&last),
                        act,
                        residual: None,
                    };
                    let start = Start::Residual(from, Some(&first));
                    let to = Shards::new(&mut c);
                    let left = AView::rows(&a, k);
                    // SAFETY: the whole result is borrowed mutably.
                    unsafe {
                        gemm_range(
                            level,
                            left,
                            0..m,
                            right,
                            0..n.div_ceil(NR),
                            to,
                            n,
                            start,
                            &epi,
                        )
                    };
                    assert!(
                        bits(&c) == bits(&want),
                        "{m}x{k}x{n}, {act:?}, {level:?}, {in_place}"
                    );
                }
            }
        }
    }
}

#[test]
fn transposed_right_sides_agree() {
    let (m, k, n) = (17, 530, 40);
    let (a, b) = (noise(m * k, 3), noise(k * n, 4));
    let want = chain(&a, &b, m, k, n);
    let mut bt = vec![0.0; n * k];
    for i in 0..k {
        for j in 0..n {
            bt[j * k + i] = b[i * n + j];
        }
    }
    let mut panels = vec![f32::NAN; packed_len(k, n)];
    pack_b_transposed(&bt, k, k, n, &mut panels);
    let view = BView {
        k,
        n,
        data: &panels,
    };
    for level in Level::available() {
        let mut c = vec![f32::NAN; m * n];
        let (mut pool, epi) = (Pool::new(1), Epilogue::default());
        let left = AView::rows(&a, k);
        gemm(
            &mut pool, level, false, left, m, view, &mut c, n, false, &epi,
        );
        assert_eq!(c, want);
    }
}

/// Left sides whose rows share elements, as the windows of images do, copied and read as they lie.
#[test]
fn windows_have_the_bits_of_their_copies() {
    // Kernel height and width, channels, height and width of the images, distances of windows.
    let cases = [
        ([3, 3], 5, [6, 7], [1, 1]),
        ([7, 7], 3, [20, 40], [2, 2]),
        ([1, 1], 20, [6, 30], [2, 3]),
        ([3, 2], 100, [5, 20], [1, 1]),
        ([1, 4], 130, [1, 50], [1, 2]),
    ];
    let images = 2;
    let (cases, columns) = if cfg!(miri) {
        (&cases[..1], &[20][..])
    } else {
        (&cases[..], &[20, 300][..])
    };
    for &([kh, kw], c, [h, w], [down, right]) in cases {
        let [oh, ow] = [(h - kh) / down + 1, (w - kw) / right + 1];
        let (m, k) = (images * oh * ow, kh * kw * c);
        let x = noise(images * h * w * c, 3);
        let at = |i: usize, j: usize| {
            let [image, y, x] = [i / (oh * ow), i / ow % oh * down, i % ow * right];
            let [ky, kx, channel] = [j / (kw * c), j / c % kw, j % c];
            ((image * h + y + ky) * w + x + kx) * c + channel
        };
        let copy: Vec<f32> = (0..m * k).map(|i| x[at(i / k, i % k)]).collect();
        for &n in columns {
            let b = noise(k * n, 4);
            let want = chain(&copy, &b, m, k, n);
            let packed = PackedB::pack(&b, k, n);
            let AnyB::Float(b) = packed.view() else {
                panic!("packed as f32")
            };
            let left = AView {
                data: &x,
                rows: Axis {
                    inner: ow,
                    middle: oh,
                    strides: [right * c, down * w * c, h * w * c],
                    origin: 0,
                },
                cols: Axis {
                    inner: kw * c,
                    middle: 1,
                    strides: [1, 0, w * c],
                    origin: 0,
                },
            };
            for level in Level::available() {
                let mut got = vec![f32::NAN; m * n];
                let (mut pool, epi) = (Pool::new(2), Epilogue::default());
                gemm(&mut pool, level, true, left, m, b, &mut got, n, false, &epi);
                assert!(bits(&got) == bits(&want), "{kh}x{kw}x{c}, {n}, {level:?}");
            }
        }
    }
}

/// A matrix, rounded by `round` one by one.
fn rounded(w: &[f32], round: impl Fn(f32) -> f32) -> Vec<f32> {
    w.iter().map(|&x| round(x)).collect()
}

#[test]
fn halves_have_the_bits_of_one_chain_over_the_rounded_weights() {
    for &(k, n) in SHAPES {
        let w = noise(k * n, 1);
        for (weights, exact) in [
            (WeightType::F16, rounded(&w, |x| f16::from_f32(x).to_f32())),
            (
                WeightType::Bf16,
                rounded(&w, |x| bf16::from_f32(x).to_f32()),
            ),
        ] {
            let packed = PackedB::pack_as(weights, &w, k, n).unwrap();
            for &m in ROWS {
                let a = noise(m * k, 2);
                let want = bits(&chain(&a, &exact, m, k, n));
                everywhere(&a, &packed, &Epilogue::default(), |c, what| {
                    assert!(bits(c) == want, "{weights}, {m}x{k}x{n}, {what}");
                });
            }
        }
    }
}

/// Integers of the columns and their scales, by the rule and nothing else.
fn columns(w: &[f32], k: usize, n: usize) -> (Vec<f32>, Vec<f32>) {
    let scale = |j: usize| {
        let most = (0..k).map(|i| w[i * n + j].abs()).fold(0.0, f32::max);
        (most / 127.0).max(f32::MIN_POSITIVE)
    };
    let scales: Vec<f32> = (0..n).map(scale).collect();
    let q = (0..k * n).map(|i| (w[i] / scales[i % n]).round_ties_even());
    (q.collect(), scales)
}

#[test]
fn int8_is_a_chain_of_integers_scaled_once_before_the_bias() {
    for &(k, n) in SHAPES {
        let w = noise(k * n, 1);
        let (q, scales) = columns(&w, k, n);
        let bias = noise(n, 5);
        let packed = PackedB::pack_as(WeightType::Int8, &w, k, n).unwrap();
        for &m in ROWS {
            let a = noise(m * k, 2);
            let mut want = chain(&a, &q, m, k, n);
            for (i, x) in want.iter_mut().enumerate() {
                *x = *x * scales[i % n] + bias[i % n];
            }
            let epi = Epilogue {
                bias: Some(&bias),
                ..Epilogue::default()
            };
            everywhere(&a, &packed, &epi, |c, what| {
                assert!(bits(c) == bits(&want), "{m}x{k}x{n}, {what}");
            });
        }
    }
}

#[test]
fn integer_products_are_exact() {
    for &(k, n) in SHAPES {
        let mut w = noise(k * n, 1);
        // The largest sums: every product has the largest magnitude and one sign.
        (0..k).for_each(|i| w[i * n] = -1.0);
        let (q, scales) = columns(&w, k, n);
        let packed = PackedB::pack_as(WeightType::Int8Dynamic, &w, k, n).unwrap();
        for &m in ROWS {
            let mut a = noise(m * k, 2);
            a[..k].fill(-3.0);
            a[(m - 1) * k] = 1e-3;
            let mut want = vec![0.0; m * n];
            for (i, row) in a.chunks(k).enumerate() {
                let most = row.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let scale = (most / 127.0).max(f32::MIN_POSITIVE);
                let row: Vec<i64> = row
                    .iter()
                    .map(|x| (x / scale).round_ties_even() as i64)
                    .collect();
                for j in 0..n {
                    let sum: i64 = (0..k).map(|x| row[x] * q[x * n + j] as i64).sum();
                    want[i * n + j] = sum as f32 * scale * scales[j];
                }
            }
            everywhere(&a, &packed, &Epilogue::default(), |c, what| {
                assert!(bits(c) == bits(&want), "{m}x{k}x{n}, {what}");
            });
        }
    }
}

/// Numbers around those that 16 bits hold: exact ones, ties, neighbours, subnormal ones.
fn hard_numbers(exact: impl Fn(u16) -> f32) -> Vec<f32> {
    let mut numbers = Vec::new();
    for bits in (0..0x7fff).step_by(7).chain([0, 1, 2, 0x3ff, 0x400, 0x401]) {
        let (low, high) = (exact(bits), exact(bits + 1));
        if high.is_finite() {
            let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
            numbers.extend([low, middle, middle.next_up(), middle.next_down()]);
        }
    }
    let negative: Vec<f32> = numbers.iter().map(|x| -x).collect();
    numbers.extend(negative);
    numbers
}

#[test]
fn halves_round_to_nearest_even() {
    let types: [(WeightType, &dyn Fn(u16) -> f32); 2] = [
        (WeightType::F16, &|bits| f16::from_bits(bits).to_f32()),
        (WeightType::Bf16, &|bits| bf16::from_bits(bits).to_f32()),
    ];
    for (weights, exact) in types {
        let w = hard_numbers(exact);
        let (n, all) = (w.len(), Vec::from_iter(0..0x7fffu16));
        let packed = PackedB::pack_as(weights, &w, 1, n).unwrap();
        let mut c = vec![f32::NAN; n];
        let epi = Epilogue::default();
        let mut pool = Pool::new(1);
        gemm_packed(
            &mut pool,
            Level::PORTABLE,
            false,
            &[1.0],
            &packed,
            &mut c,
            false,
            &epi,
        );
        for (&x, &got) in w.iter().zip(&c) {
            // The nearest of all numbers, the one with an even pattern among two.
            let above = all.partition_point(|&b| exact(b) < x.abs());
            let near = [above.saturating_sub(1) as u16, above as u16];
            let distance = |b: u16| (f64::from(exact(b)) - f64::from(x.abs())).abs();
            let best = match distance(near[0]).total_cmp(&distance(near[1])) {
                std::cmp::Ordering::Less => near[0],
                std::cmp::Ordering::Greater => near[1],
                std::cmp::Ordering::Equal => near[usize::from(near[0] % 2 == 1)],
            };
            // A chain begins at zero: the sign of zero is lost.
            assert_eq!(got, exact(best).copysign(x), "{weights} of {x:e}");
        }
    }
}

#[test]
fn what_a_type_cannot_hold_is_refused() {
    for (weights, x, told) in [
        (
            WeightType::F16,
            65_520.0,
            "up to 6.5504e4 for f16, got 6.552e4",
        ),
        (WeightType::F16, -1e38, "for f16, got -1e38"),
        (WeightType::Bf16, f32::MAX, "for bf16, got 3.4028235e38"),
        (
            WeightType::Int8,
            f32::INFINITY,
            "a finite number for int8, got inf",
        ),
        (
            WeightType::Int8Dynamic,
            f32::NAN,
            "a finite number for int8, got NaN",
        ),
    ] {
        let error = PackedB::pack_as(weights, &[0.0, x], 2, 1).unwrap_err();
        assert!(
            error.starts_with("element 1: expected") && error.contains(told),
            "{error}"
        );
    }
    let long = (1 << 17) + 1;
    let error = PackedB::pack_as(WeightType::Int8Dynamic, &vec![1.0; long], long, 1).unwrap_err();
    assert!(
        error.starts_with("inner dimension: expected at most 131072"),
        "{error}"
    );
}

#[test]
fn infinity_and_the_largest_numbers_stay_in_halves() {
    for (weights, most) in [
        (WeightType::F16, 65_504.0),
        (WeightType::Bf16, 3.389_531_4e38),
    ] {
        let w = [f32::INFINITY, -most, most, f32::NEG_INFINITY, f32::NAN];
        let packed = PackedB::pack_as(weights, &w, 1, 5).unwrap();
        everywhere(&[1.0], &packed, &Epilogue::default(), |c, what| {
            assert_eq!(c[..4], w[..4], "{weights}, {what}");
            assert!(c[4].is_nan());
        });
    }
}

#[test]
fn integer_columns_may_be_zero_or_subnormal() {
    let tiny = f32::from_bits(3);
    let w = [0.0, tiny, 1.0, 0.0, -tiny, -127.0];
    for weights in [WeightType::Int8, WeightType::Int8Dynamic] {
        let packed = PackedB::pack_as(weights, &w, 2, 3).unwrap();
        everywhere(&[127.0, 2.0], &packed, &Epilogue::default(), |c, what| {
            assert_eq!(c, [0.0, 0.0, 127.0 - 254.0], "{weights}, {what}");
        });
    }
}

#[test]
fn a_row_with_infinity_or_nan_is_nan_and_a_zero_row_is_zero() {
    let (k, n) = (70, 20);
    let packed = PackedB::pack_as(WeightType::Int8Dynamic, &noise(k * n, 1), k, n).unwrap();
    let mut a = noise(4 * k, 2);
    a[k] = f32::INFINITY;
    a[3 * k - 1] = f32::NAN;
    a[3 * k..].fill(0.0);
    everywhere(&a, &packed, &Epilogue::default(), |c, what| {
        assert!(c[..n].iter().all(|x| x.is_finite()), "{what}");
        assert!(c[n..3 * n].iter().all(|x| x.is_nan()), "{what}");
        assert!(c[3 * n..].iter().all(|&x| x == 0.0), "{what}");
    });
}

#[test]
fn names_are_read_back() {
    for weights in WeightType::ALL {
        assert_eq!(weights.to_string().parse(), Ok(weights));
    }
    let error = "f8".parse::<WeightType>().unwrap_err();
    assert_eq!(
        error,
        "expected one of f32, f16, bf16, int8, int8-dynamic, got f8"
    );
}

#[test]
fn shares_of_columns_cover_them_and_differ_by_no_more_than_a_tile() {
    for panels in 1..400 {
        for shares in [1, 2, 3, 4, 6, 8] {
            let columns = Columns::share_out(panels, shares);
            let all: Vec<_> = (0..columns.shares).map(|i| columns.share(i)).collect();
            assert_eq!((all[0].start, all[all.len() - 1].end), (0, panels));
            assert!(all.windows(2).all(|w| w[0].end == w[1].start));
            let lens = || all.iter().map(|cols| cols.len());
            let (least, most) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
            // The last panels may be a part of a tile.
            let allowed = 2 * WIDEST - 1;
            assert!(
                least > 0 && most - least <= allowed,
                "{panels} panels in {shares} shares: {all:?}"
            );
        }
    }
    assert_eq!(Columns::share_out(64, 4).share(1), 16..32);
    // Neither thread of two has more than the other.
    for (panels, each) in [(24, [6; 4]), (20, [4, 6, 4, 6]), (48, [12; 4])] {
        let columns = Columns::share_out(panels, 4);
        assert_eq!([0, 1, 2, 3].map(|i| columns.share(i).len()), each);
    }
}

#[test]
fn chains_of_fewer_steps_leave_out_the_last_rows() {
    let n = 2 * NR + 5;
    for (k, steps) in [
        (40, 25),
        (600, 256),
        (600, 300),
        (DEPTH + 300, DEPTH + 9),
        (DEPTH + 300, 70),
    ] {
        let mut b = noise(k * n, 1);
        let packed = |b: &[f32]| PackedB::pack(b, k, n);
        b[steps * n..].fill(f32::NAN);
        let packed = packed(&b);
        let AnyB::Float(whole) = packed.view() else {
            panic!("packed as f32")
        };
        let right = Right { steps, ..whole };
        for m in [1, 9, 30] {
            let a = noise(m * k, 2);
            let taken: Vec<f32> = a.chunks(k).flat_map(|row| &row[..steps]).copied().collect();
            let want = bits(&chain(&taken, &b[..steps * n], m, steps, n));
            for level in Level::available() {
                let mut c = vec![f32::NAN; m * n];
                let (view, epi) = (AView::rows(&a, k), Epilogue::default());
                gemm(
                    &mut Pool::new(2),
                    level,
                    true,
                    view,
                    m,
                    right,
                    &mut c,
                    n,
                    false,
                    &epi,
                );
                assert!(bits(&c) == want, "{m}x{steps} of {k}, {level:?}");
            }
        }
    }
}
