//! Several random models on one device.

use lazybatch_sla::{Nanos, Profile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

use super::case::{Case, MODEL};

/// Keeps the models of shared cases from being those of single ones.
const APART: u64 = 1 << 40;
/// Exponent of the models' shares: above 1 one of them has most of the load more often.
const SKEW: f64 = 1.5;

impl Case {
    /// The case of a seed with so many models on one device; [`Case::new`] for one.
    ///
    /// Each model, with its target, lengths and kind of arrivals, is drawn as the one of
    /// [`Case::new`]; copies and launches cost what they do in the first. The load, 0.05 to 1.3, is the
    /// sum of those of the models, in shares that are exponential variables to the power 1.5.
    ///
    /// # Panics
    /// With no model.
    pub fn shared(seed: u64, num_models: usize) -> Self {
        assert!(num_models > 0, "a case has a model");
        if num_models == 1 {
            return Self::new(seed);
        }
        let rng = &mut ChaCha8Rng::seed_from_u64(seed.wrapping_add(APART));
        let load = (rng.random_range(0.05..1.3_f64) * 1e3).round() / 1e3;
        let shares: Vec<f64> = (0..num_models)
            .map(|_| {
                let share: f64 = Exp1.sample(rng);
                share.max(0.01).powf(SKEW)
            })
            .collect();
        let all: f64 = shares.iter().sum();
        let mut models = shares.iter().enumerate().map(|(i, share)| {
            let mut case = Self::new(APART + seed * num_models as u64 + i as u64);
            case.seed = seed;
            case.load = load * share / all;
            case.process = case.process.clone().scaled_to(case.rate_rps());
            if i > 0 {
                case.profile.models[0].name = format!("{MODEL}-{i}");
            }
            case
        });
        let mut first = models.next().expect("there is a first");
        first.beside = models.collect();
        first
    }

    /// All models of the case.
    pub fn models(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.beside)
    }

    /// The profile of the device with all models of the case.
    pub fn device(&self) -> Profile {
        let mut profile = self.profile.clone();
        let others = self.beside.iter().flat_map(|case| &case.profile.models);
        profile.models.extend(others.cloned());
        profile
    }

    /// Arrivals per second, of all models.
    pub fn rate_of_all(&self) -> f64 {
        self.models().map(Self::rate_rps).sum()
    }

    /// Mean time that the arrivals take.
    pub fn span(&self) -> Nanos {
        Nanos((self.num_requests as f64 / self.rate_of_all() * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_cases_are_valid_and_depend_on_their_seed_alone() {
        for (seed, num) in [(0, 2), (5, 3), (5, 8)] {
            let (a, b) = (Case::shared(seed, num), Case::shared(seed, num));
            let device = a.device();
            device.check("-").unwrap();
            assert_eq!(device.models.len(), num);
            assert_eq!(device.to_json(), b.device().to_json());
            let arrivals = a.arrivals(1).unwrap();
            assert_eq!(arrivals, b.arrivals(1).unwrap());
            assert_ne!(arrivals, a.arrivals(2).unwrap());
            assert!(arrivals.is_sorted_by_key(|a| a.at));
            for case in a.models() {
                let (name, rate) = (case.model().name.as_str(), case.rate_rps());
                // What arrives in a span differs from it: on and off begin on, gamma gaps with an arrival.
                assert!((case.process.mean_rate_rps() / rate - 1.0).abs() < 1e-9);
                let mut own = arrivals.iter().filter(|a| &*a.model == name);
                let expected = rate * a.span().as_ms() / 1e3;
                assert!(
                    own.next().is_some() || expected < 10.0,
                    "{name}: {expected}"
                );
            }
            let span_ns = a.span().0;
            assert!(arrivals.iter().all(|a| a.at.0 < span_ns));
            let load: f64 = a.models().map(|c| c.load).sum();
            assert!((0.05..=1.3).contains(&load), "{load}");
            assert_ne!(
                device.to_json(),
                Case::shared(seed + 1, num).device().to_json()
            );
        }
        let (one, single) = (Case::shared(3, 1), Case::new(3));
        assert_eq!(one.device().to_json(), single.profile.to_json());
    }
}
