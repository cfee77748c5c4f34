//! How a request wants the tokens of a decoder chosen: its parameters `temperature`, `top_k`, `seed`.

use std::ops::RangeInclusive;

use lazybatch_graph::{Sampling, Tensor};

use super::Params;
use crate::error::{Error, Result};
use crate::model::Served;

const TEMPERATURE: &str = "temperature";
const TOP_K: &str = "top_k";
const SEED: &str = "seed";

/// The parameters that say it.
pub const KEYS: [&str; 3] = [TEMPERATURE, TOP_K, SEED];

/// What a request's parameters say of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wish {
    sampling: Sampling,
    /// Nobody asks for a certain seed, and tokens depend on it.
    is_random: bool,
}

impl Wish {
    /// Reads the parameters of a request to `served`. Without any the likeliest tokens are taken; the
    /// temperature is 1 where another is stated. Models without steps do not look at them.
    ///
    /// # Errors
    /// A number out of range, or a wish that a model which takes the likeliest tokens cannot fulfil.
    pub fn of(served: &Served, params: &Params) -> Result<Self> {
        let samples = served.samples();
        if !samples && !served.has_steps() {
            return Ok(Self::default());
        }
        let wish = Self::read(params)?;
        if !samples && !wish.sampling.is_greedy() {
            let what = format!("parameter '{TEMPERATURE}' of model '{}'", served.name);
            let expected = "0, or none of it, top_k and seed: the model takes the likeliest token";
            return Err(Error::expected(what, expected, wish.sampling.temperature));
        }
        Ok(wish)
    }

    fn read(params: &Params) -> Result<Self> {
        let top_k = params.number_within(TOP_K, 0..=u64::from(Sampling::MAX_TOP_K))?;
        let seed = params.number(SEED)?;
        let stated = top_k.is_some() || seed.is_some();
        let most = f64::from(Sampling::MAX_TEMPERATURE);
        let temperature = params.float_within(TEMPERATURE, 0.0..=most)?;
        let sampling = Sampling {
            temperature: temperature.unwrap_or(if stated { 1.0 } else { 0.0 }) as f32,
            top_k: top_k.unwrap_or(0) as u32,
            seed: seed.unwrap_or(0),
        };
        Ok(Self {
            sampling,
            is_random: seed.is_none() && !sampling.is_greedy(),
        })
    }

    /// Whether the same request has the same answer again.
    pub fn repeats(&self) -> bool {
        !self.is_random
    }

    /// What the answer depends on.
    pub fn words(&self) -> [i32; Sampling::WORDS] {
        match self.sampling.is_greedy() {
            true => Sampling::default().words(),
            false => self.sampling.words(),
        }
    }

    /// The program's input for `num` samples: a seed of its own for each where none is stated.
    pub fn tensor(&self, num: usize) -> Tensor {
        let one = || match self.is_random {
            true => Sampling {
                seed: rand::random(),
                ..self.sampling
            },
            false => self.sampling,
        };
        let rows: Vec<Sampling> = (0..num).map(|_| one()).collect();
        Sampling::tensor(&rows)
    }
}

impl Params {
    fn number_within(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let number = self.number(key)?;
        match (number.filter(|n| !range.contains(n)), self.get(key)) {
            (Some(_), Some(got)) => {
                let expected = format!("{} to {}", range.start(), range.end());
                Self::wrong(key, &expected, got)
            }
            _ => Ok(number),
        }
    }

    fn float_within(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        match (self.float(key), self.get(key)) {
            (None, _) | (_, None) => Ok(None),
            (Some(value), Some(_)) if range.contains(&value) => Ok(Some(value)),
            (Some(_), Some(got)) => {
                let expected = format!("a number of {} to {}", range.start(), range.end());
                Self::wrong(key, &expected, got)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Param;
    use super::*;

    fn read(params: &[(&str, Param)]) -> std::result::Result<Wish, String> {
        let params = params.iter().cloned().map(|(key, v)| (key.to_owned(), v));
        Wish::read(&params.collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_not_stated_is_filled_in() {
        let wish = |temperature, top_k, seed, is_random| {
            let sampling = Sampling {
                temperature,
                top_k,
                seed,
            };
            Ok(Wish {
                sampling,
                is_random,
            })
        };
        let (k, seed) = (("top_k", Param::Int(40)), ("seed", Param::Uint(u64::MAX)));
        let t = ("temperature", Param::Double(0.5));
        assert_eq!(read(&[]), wish(0.0, 0, 0, false));
        assert_eq!(read(std::slice::from_ref(&t)), wish(0.5, 0, 0, true));
        assert_eq!(read(std::slice::from_ref(&k)), wish(1.0, 40, 0, true));
        assert_eq!(
            read(std::slice::from_ref(&seed)),
            wish(1.0, 0, u64::MAX, false)
        );
        assert_eq!(read(&[t, k, seed.clone()]), wish(0.5, 40, u64::MAX, false));
        let zero = ("temperature", Param::Text("0".into()));
        assert_eq!(read(&[zero, seed]), wish(0.0, 0, u64::MAX, false));
        let one = ("top_k", Param::Int(1));
        assert_eq!(
            read(&[one]),
            wish(1.0, 1, 0, false),
            "the seed changes nothing"
        );
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (key, value, told) in [
            (
                "temperature",
                Param::Double(-0.1),
                "parameter 'temperature': expected a number of 0 to 100, got -0.1",
            ),
            (
                "temperature",
                Param::Double(f64::NAN),
                "a number of 0 to 100",
            ),
            ("temperature", Param::Int(101), "got 101"),
            (
                "temperature",
                Param::Bool(true),
                "a number of 0 to 100, got true",
            ),
            ("top_k", Param::Int(-1), "parameter 'top_k': expected"),
            (
                "top_k",
                Param::Int(1025),
                "parameter 'top_k': expected 0 to 1024, got 1025",
            ),
            ("top_k", Param::Double(2.0), "a whole number of 0 or more"),
            (
                "seed",
                Param::Int(-4),
                "parameter 'seed': expected a whole number of 0 or more",
            ),
        ] {
            let error = read(&[(key, value)]).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn samples_without_a_stated_seed_have_seeds_of_their_own() {
        let drawn = read(&[("temperature", Param::Int(1))]).unwrap();
        let words = drawn.tensor(2).to_i32();
        assert_ne!(words[2..4], words[6..8]);
        assert!(!drawn.repeats());
        let seeded = read(&[("seed", Param::Int(5))]).unwrap();
        assert_eq!(
            seeded.tensor(2).to_i32()[..4],
            seeded.tensor(2).to_i32()[4..]
        );
        assert!(seeded.repeats());
    }
}
