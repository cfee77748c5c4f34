//! What all pairs of a load come to.

use lazybatch_benches::record::{Recorder, rounded};
use lazybatch_benches::spread::Spread;
use serde_json::json;

use super::{Bench, Outcome, Outcomes};

/// Simulated or measured means closer than this share, or than two paired standard errors, are a tie.
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
                let as_took = ratios(&other.as_took, &outcomes[0].as_took);
                let mut figures = self.figures();
                figures["load"] = json!(load);
                figures["policy"] = json!(policy);
                figures["over"] = json!(policies[0]);
                figures["simulated_median"] = rounded(simulated.median());
                figures["simulated_as_took_median"] = rounded(as_took.median());
                let real = ratios(&other.real, &outcomes[0].real);
                let logs: Vec<f64> = real.samples().iter().map(|r| r.ln()).collect();
                let (mean, error) = mean_and_error(&logs);
                figures["geometric_mean"] = rounded(mean.exp());
                figures["standard_error"] = error.map_or(json!(null), rounded);
                let beyond =
                    |o: &Outcomes, i: usize| (measure(&o.real[i]) / measure(&o.as_took[i])).ln();
                let pairs = 0..other.real.len();
                let logs = pairs.map(|i| beyond(other, i) - beyond(&outcomes[0], i));
                let (mean, error) = mean_and_error(&logs.collect::<Vec<_>>());
                figures["over_as_took"] = rounded(mean.exp());
                figures["over_as_took_error"] = error.map_or(json!(null), rounded);
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
        let mut figures = self.figures();
        figures["load"] = json!(load);
        figures["order"] = in_order(&real);
        figures["simulated_order"] = in_order(&simulated);
        figures["tie"] = json!(TIE);
        let agrees = f64::from(u8::from(same_ranking(&real, &simulated)));
        recorder.line(figures, "ranking_agrees", &Spread::of(vec![agrees]))
    }
}

/// The mean of logarithms of ratios, and its standard error; none of a single one.
fn mean_and_error(logs: &[f64]) -> (f64, Option<f64>) {
    let num = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / num;
    let squares: f64 = logs.iter().map(|l| (l - mean).powi(2)).sum();
    let error = (logs.len() > 1).then(|| (squares / (num - 1.0) / num).sqrt());
    (mean, error)
}

/// Whether no two policies, of which the logarithms of a figure are given by pair, are in one order
/// by `a` and in the other by `b`. Where either is a tie, or pairs differ so much that nothing can
/// be said, there is no order.
pub(super) fn same_ranking(a: &[Vec<f64>], b: &[Vec<f64>]) -> bool {
    let less = |logs: &[Vec<f64>], i: usize, j: usize| {
        let pairs = logs[i].iter().zip(&logs[j]);
        let (mean, error) = mean_and_error(&pairs.map(|(x, y)| x - y).collect::<Vec<_>>());
        mean < -TIE.ln_1p().max(2.0 * error.unwrap_or_default())
    };
    let mut pairs = (0..a.len()).flat_map(|i| (0..a.len()).map(move |j| (i, j)));
    !pairs.any(|(i, j)| less(a, i, j) && less(b, j, i))
}
