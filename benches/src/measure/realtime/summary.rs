//! What all pairs of a load come to.

use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_workloads::sweep::points::paired;
use serde_json::json;

use super::{Bench, Outcome, Outcomes};

/// Simulated or measured means closer than this share, or than two paired standard errors, are a tie.
const TIE: f64 = 0.03;

/// A number of a run; there is none where too few requests were counted.
type Measure = fn(&Outcome) -> Option<f64>;

impl Bench<'_> {
    /// The other policies over the first, pair by pair, and whether the order is the simulated one.
    pub(super) fn sum_up(
        &self,
        recorder: &Recorder,
        load: f64,
        outcomes: &[Outcomes],
    ) -> anyhow::Result<()> {
        let policies = &self.options.policies;
        let measures: [(&str, Measure); 3] = [
            ("mean_ratio", |o| Some(o.result.mean_ms)),
            ("p99_ratio", Outcome::p99_ms),
            ("j_ratio", |o| Some(o.j_ms)),
        ];
        // Runs of a pair have the same requests.
        let counted = |measure: Measure| {
            let mut all = outcomes.iter().flat_map(|o| &o.real);
            all.all(|o| measure(o).is_some())
        };
        for (policy, other) in policies.iter().zip(outcomes).skip(1) {
            for (metric, measure) in measures.into_iter().filter(|m| counted(m.1)) {
                let measure = |o: &Outcome| measure(o).unwrap_or(f64::NAN);
                let ratios = |others: &[Outcome], judged: &[Outcome]| {
                    let pairs = others.iter().zip(judged);
                    Spread::of(pairs.map(|(o, j)| measure(o) / measure(j)).collect())
                };
                let simulated = ratios(&other.simulated, &outcomes[0].simulated);
                let as_took = ratios(&other.as_took, &outcomes[0].as_took);
                let mut figures = self.figures(&self.base);
                figures["load"] = json!(load);
                figures["policy"] = json!(policy);
                figures["over"] = json!(policies[0]);
                figures["simulated_median"] = rounded(simulated.median());
                figures["simulated_as_took_median"] = rounded(as_took.median());
                let real = ratios(&other.real, &outcomes[0].real);
                let logs = |runs: &[Outcome]| -> Vec<f64> {
                    runs.iter().map(|o| measure(o).ln()).collect()
                };
                let (mean, error) = paired(&logs(&other.real), &logs(&outcomes[0].real));
                figures["geometric_mean"] = rounded(mean.exp());
                figures["standard_error"] = rounded(error);
                let beyond = |o: &Outcomes| -> Vec<f64> {
                    let both = logs(&o.real).into_iter().zip(logs(&o.as_took));
                    both.map(|(real, as_took)| real - as_took).collect()
                };
                let (mean, error) = paired(&beyond(other), &beyond(&outcomes[0]));
                figures["over_as_took"] = rounded(mean.exp());
                figures["over_as_took_error"] = rounded(error);
                recorder.line(figures, metric, &real)?;
            }
        }
        let logs = |runs: fn(&Outcomes) -> &[Outcome]| -> Vec<Vec<f64>> {
            let of = |o: &Outcomes| runs(o).iter().map(|o| o.result.mean_ms.ln()).collect();
            outcomes.iter().map(of).collect()
        };
        let (real, simulated) = (logs(|o| &o.real), logs(|o| &o.simulated));
        let in_order = |logs: &[Vec<f64>]| {
            let mean = |i: &usize| logs[*i].iter().sum::<f64>();
            let mut order: Vec<usize> = (0..logs.len()).collect();
            order.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
            json!(order.iter().map(|&i| &policies[i]).collect::<Vec<_>>())
        };
        let mut figures = self.figures(&self.base);
        figures["load"] = json!(load);
        figures["order"] = in_order(&real);
        figures["simulated_order"] = in_order(&simulated);
        figures["tie"] = json!(TIE);
        let agrees = f64::from(u8::from(same_ranking(&real, &simulated)));
        recorder.line(figures, "ranking_agrees", &Spread::of(vec![agrees]))
    }
}

/// Whether no two policies, of which the logarithms of a figure are given by pair, are in one order
/// by `a` and in the other by `b`. Where either is a tie, or pairs differ so much that nothing can
/// be said, there is no order.
pub(super) fn same_ranking(a: &[Vec<f64>], b: &[Vec<f64>]) -> bool {
    let less = |logs: &[Vec<f64>], i: usize, j: usize| {
        let (mean, error) = paired(&logs[i], &logs[j]);
        mean < -TIE.ln_1p().max(2.0 * error)
    };
    let mut pairs = (0..a.len()).flat_map(|i| (0..a.len()).map(move |j| (i, j)));
    !pairs.any(|(i, j)| less(a, i, j) && less(b, j, i))
}
