//! How a request wants its tokens chosen, and the random numbers for it.
//!
//! A model that samples declares one more input, `sampling [4] i32`, the last of all, with the words
//! of a [`Sampling`]; [`crate::Op::Sample`] reads it. Random numbers are a function of the request's
//! seed and of how many were drawn for it before, so tokens depend on the request alone.
//!
//! Source of the generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
//! (Philox4x32-10), 2011.

use crate::tensor::Tensor;

/// Name of the input that holds the words.
pub const SAMPLING_INPUT: &str = "sampling";

/// How tokens are chosen: of the `top_k` likeliest, by their shares of the softmax of
/// `logits / temperature`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// What scores are divided by; 0 for the likeliest token alone.
    pub temperature: f32,
    /// How many of the likeliest tokens are drawn from; 0 for all. 1 is the likeliest token alone.
    pub top_k: u32,
    /// Where random numbers come from.
    pub seed: u64,
}

impl Sampling {
    /// Words of a row of the input.
    pub const WORDS: usize = 4;
    /// Largest temperature.
    pub const MAX_TEMPERATURE: f32 = 100.0;
    /// Largest `top_k`.
    pub const MAX_TOP_K: u32 = 1024;

    /// Whether the likeliest token is taken, whatever the seed.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// The words: bits of the temperature, `top_k`, low and high half of the seed.
    pub fn words(&self) -> [i32; Self::WORDS] {
        let [low, high] = [self.seed as u32, (self.seed >> 32) as u32];
        [self.temperature.to_bits(), self.top_k, low, high].map(u32::cast_signed)
    }

    /// What a row of the input says.
    ///
    /// # Errors
    /// What was expected and what came: a temperature or `top_k` out of range, or not four words.
    pub fn of_words(words: &[i32]) -> Result<Self, (String, String)> {
        let &[temperature, top_k, low, high] = words else {
            let expected = format!("{} words", Self::WORDS);
            return Err((expected, words.len().to_string()));
        };
        let [bits, top_k, low, high] = [temperature, top_k, low, high].map(i32::cast_unsigned);
        let temperature = f32::from_bits(bits);
        if !(0.0..=Self::MAX_TEMPERATURE).contains(&temperature) {
            let expected = format!("a temperature of 0 to {}", Self::MAX_TEMPERATURE);
            return Err((expected, format!("{temperature:?}")));
        }
        if top_k > Self::MAX_TOP_K {
            let expected = format!("a top_k of 0 to {}", Self::MAX_TOP_K);
            return Err((expected, top_k.cast_signed().to_string()));
        }
        Ok(Self {
            temperature,
            top_k,
            seed: u64::from(high) << 32 | u64::from(low),
        })
    }

    /// The input's tensor `[samples, 4]` for as many samples as these.
    pub fn tensor(rows: &[Self]) -> Tensor {
        let words: Vec<i32> = rows.iter().flat_map(Self::words).collect();
        Tensor::from_i32(&[rows.len(), Self::WORDS], &words)
    }
}

/// The random number `draw` of a seed: the first two words of Philox4x32-10 with the seed as its key
/// and `draw` as its counter, the first word low.
pub fn random(seed: u64, draw: u32) -> u64 {
    let mut key = [seed as u32, (seed >> 32) as u32];
    let mut counter = [draw, 0, 0, 0];
    for _ in 0..10 {
        let [a, b] = [
            u64::from(counter[0]) * 0xd251_1f53,
            u64::from(counter[2]) * 0xcd9e_8d57,
        ];
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key[0] = key[0].wrapping_add(0x9e37_79b9);
        key[1] = key[1].wrapping_add(0xbb67_ae85);
    }
    u64::from(counter[1]) << 32 | u64::from(counter[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_those_of_the_publication() {
        // Random123's known answer for a key and a counter of zeros.
        assert_eq!(random(0, 0), 0xe169_c58d_6627_e8d5);
        assert_ne!(random(0, 1), random(0, 0));
        assert_ne!(random(1, 0), random(1 << 32, 0));
    }

    #[test]
    fn words_are_read_as_they_were_written_and_those_out_of_range_are_refused() {
        let sampling = Sampling {
            temperature: 0.8,
            top_k: 40,
            seed: 0xdead_beef_0123_4567,
        };
        assert_eq!(Sampling::of_words(&sampling.words()), Ok(sampling));
        assert_eq!(Sampling::of_words(&[0; 4]), Ok(Sampling::default()));
        assert!(Sampling::default().is_greedy());
        let words = |temperature: f32, top_k| [temperature.to_bits().cast_signed(), top_k, 0, 0];
        for (words, told) in [
            (&words(-0.5, 0)[..], "-0.5"),
            (&words(f32::NAN, 0), "NaN"),
            (&words(100.5, 0), "100.5"),
            (&words(1.0, -1), "-1"),
            (&words(1.0, 1025), "1025"),
            (&[0; 3], "3"),
        ] {
            assert_eq!(Sampling::of_words(words).unwrap_err().1, told);
        }
    }

    #[test]
    fn a_tensor_has_a_row_for_each_sample() {
        let rows = [1, 2].map(|top_k| Sampling {
            top_k,
            ..Sampling::default()
        });
        let tensor = Sampling::tensor(&rows);
        assert_eq!(tensor.dims, [2, 4]);
        assert_eq!(tensor.to_i32(), [0, 1, 0, 0, 0, 2, 0, 0]);
    }
}
