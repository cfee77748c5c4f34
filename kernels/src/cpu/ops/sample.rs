//! Tokens drawn by their scores.

use lazybatch_graph::{Dim, Sampling, sampling};

use super::rowwise::{arg_max_row, per_row};
use super::top_k::choose;
use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::cpu::level::simd;
use crate::cpu::math;

/// A score's part of the sum: `floor(2^31 exp((x - top) / temperature))`, none for what is no number.
#[inline(always)]
fn weight(x: f32, top: f32, temperature: f32) -> u64 {
    let q = (x - top) / temperature;
    // Less is below one.
    if q > -30.0 {
        (math::exp(math::min(q, 0.0)) * (1u32 << 31) as f32) as u64
    } else {
        0
    }
}

simd! {
    /// Of the elements at `ids`, which rise, that which `random` falls on.
    fn among(x: &[f32], top: f32, temperature: f32, random: u64, ids: &[u32]) -> u32 {
        drawn(x, top, temperature, random, ids.iter().copied())
    }
}

simd! {
    /// The same of all elements.
    fn among_all(x: &[f32], top: f32, temperature: f32, random: u64) -> u32 {
        drawn(x, top, temperature, random, 0..x.len() as u32)
    }
}

#[inline(always)]
fn drawn(
    x: &[f32],
    top: f32,
    temperature: f32,
    random: u64,
    mut ids: impl Iterator<Item = u32> + Clone,
) -> u32 {
    let weight = |&id: &u32| weight(x[id as usize], top, temperature);
    let total: u64 = ids.clone().map(|id| weight(&id)).sum();
    let mut left = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    let is_it = |id: &u32| {
        let own = weight(id);
        let is_it = left < own;
        left = left.wrapping_sub(own);
        is_it
    };
    ids.find(is_it).expect("less is left than all weights are")
}

/// A token of each row of scores; see [`lazybatch_graph::Op::Sample`].
pub fn sample(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (d, level, words) = (v.ty(0).row_elems(), env.level, v.ids(1));
    let lead = v.ty(0).lead();
    let (members, is_loop) = (&v.frame.members[..], v.repeat.is_loop());
    let draw = |row: usize| {
        let mut spans = members.iter().map(|m| (m, m.span(lead)));
        let own = spans.find(|(_, (start, num))| (*start..start + num).contains(&row));
        match own {
            Some((m, _)) if is_loop => m.step + 1,
            Some((_, (start, _))) if lead == Some(Dim::Rows) => row - start,
            _ => 0,
        }
    };
    per_row(env, v.arg(0), d, &mut out, 1, 30, |row, x, to| {
        let best = arg_max_row(level, x);
        let words = &words[row * Sampling::WORDS..][..Sampling::WORDS];
        // Words of padding may be any.
        let how = Sampling::of_words(words).unwrap_or_default();
        let top = x[best];
        if how.is_greedy() || !top.is_finite() {
            to[0] = f32::from_bits(best as u32);
            return;
        }
        let random = sampling::random(how.seed, draw(row) as u32);
        let k = how.top_k as usize;
        let id = if k == 0 || k >= d {
            among_all(level, x, top, how.temperature, random)
        } else {
            let mut ids = [0; Sampling::MAX_TOP_K as usize];
            let ids = &mut ids[..k];
            choose(x, true, ids);
            ids.sort_unstable();
            among(level, x, top, how.temperature, random, ids)
        };
        to[0] = f32::from_bits(id);
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::level::Level;

    /// Draws of token after token, and how often each came.
    fn counts(x: &[f32], temperature: f32, k: usize, seed: u64, num: u32) -> Vec<u32> {
        let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut ids = vec![0; k];
        choose(x, true, &mut ids);
        ids.sort_unstable();
        let mut counts = vec![0; x.len()];
        for draw in 0..num {
            let random = sampling::random(seed, draw);
            let id = among(Level::detect(), x, top, temperature, random, &ids);
            for level in Level::available() {
                let again = among(level, x, top, temperature, random, &ids);
                assert_eq!(again, id, "{}", level.name());
            }
            if k == x.len() {
                assert_eq!(among_all(Level::detect(), x, top, temperature, random), id);
            }
            counts[id as usize] += 1;
        }
        counts
    }

    /// Shares of the softmax over the `k` largest.
    fn shares(x: &[f32], temperature: f32, k: usize) -> Vec<f64> {
        let mut sorted = x.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let exp = |v: &f32| match *v >= sorted[k - 1] {
            true => (f64::from(*v) / f64::from(temperature)).exp(),
            false => 0.0,
        };
        let total: f64 = x.iter().map(exp).sum();
        x.iter().map(|v| exp(v) / total).collect()
    }

    #[test]
    fn tokens_come_as_often_as_their_shares_say() {
        const NUM: u32 = 20_000;
        let x: Vec<f32> = (0..24u32)
            .map(|i| (i * 7 % 24) as f32 / 8.0 - 1.0)
            .collect();
        // The 0.999 quantiles of chi-square with 23, 23, 4 degrees of freedom.
        for (temperature, k, most) in [(1.0, 24, 49.73), (2.5, 24, 49.73), (0.7, 5, 18.47)] {
            for seed in [1, 0xfeed_0000_0000] {
                let counts = counts(&x, temperature, k, seed, NUM);
                let mut chi_square = 0.0;
                for (count, share) in counts.iter().zip(shares(&x, temperature, k)) {
                    let expected = share * f64::from(NUM);
                    if share == 0.0 {
                        assert_eq!(*count, 0);
                    } else {
                        chi_square += (f64::from(*count) - expected).powi(2) / expected;
                    }
                }
                assert!(chi_square < most, "{temperature} {k} {seed}: {chi_square}");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_never_drawn_and_neither_is_what_has_no_share() {
        let x = [f32::NAN, 1.0, -40.0, f32::NEG_INFINITY, 1.0];
        let counts = counts(&x, 1.0, 5, 9, 1000);
        assert_eq!([counts[0], counts[2], counts[3]], [0; 3]);
        assert!(counts[1] > 400 && counts[4] > 400, "{counts:?}");
    }
}
