//! What all pairs of a load come to.

use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use serde_json::json;

use super::{Bench, Outcome, Outcomes};

/// Simulated or measured means closer than this share are a tie.
const TIE: f64 = 0.03;

/// A number of a run.
type Measure = fn(&Outcome) -> f64;

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
            ("mean_ratio", |o| o.result.mean_ms),
            ("p99_ratio", |o| o.result.p99_ms),
            ("j_ratio", |o| o.j_ms),
        ];
        for (policy, other) in policies.iter().zip(outcomes).skip(1) {
            for (metric, measure) in measures {
                let ratios = |others: &[Outcome], judged: &[Outcome]| {
                    let pairs = others.iter().zip(judged);
                    Spread::of(pairs.map(|(o, j)| measure(o) / measure(j)).collect())
                };
                let simulated = ratios(&other.simulated, &outcomes[0].simulated);
                let mut figures = self.figures();
                figures["load"] = json!(load);
                figures["policy"] = json!(policy);
                figures["over"] = json!(policies[0]);
                figures["simulated_median"] = rounded(simulated.median());
                let real = ratios(&other.real, &outcomes[0].real);
                recorder.line(figures, metric, &real)?;
            }
        }
        let median =
            |runs: &[Outcome]| Spread::of(runs.iter().map(|o| o.result.mean_ms).collect()).median();
        let real: Vec<f64> = outcomes.iter().map(|o| median(&o.real)).collect();
        let simulated: Vec<f64> = outcomes.iter().map(|o| median(&o.simulated)).collect();
        let in_order = |means: &[f64]| {
            let mut order: Vec<usize> = (0..means.len()).collect();
            order.sort_by(|&a, &b| means[a].total_cmp(&means[b]));
            json!(order.iter().map(|&i| &policies[i]).collect::<Vec<_>>())
        };
        let mut figures = self.figures();
        figures["load"] = json!(load);
        figures["order"] = in_order(&real);
        figures["simulated_order"] = in_order(&simulated);
        figures["tie"] = json!(TIE);
        let agrees = f64::from(u8::from(same_ranking(&real, &simulated)));
        recorder.line(figures, "ranking_agrees", &Spread::of(vec![agrees]))
    }
}

/// Whether no two policies are in one order by `a` and in the other by `b`; where either has a tie,
/// there is no order.
pub(super) fn same_ranking(a: &[f64], b: &[f64]) -> bool {
    let less = |means: &[f64], i: usize, j: usize| means[i] * (1.0 + TIE) < means[j];
    let mut pairs = (0..a.len()).flat_map(|i| (0..a.len()).map(move |j| (i, j)));
    !pairs.any(|(i, j)| less(a, i, j) && less(b, j, i))
}
