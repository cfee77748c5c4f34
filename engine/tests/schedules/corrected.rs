//! `adaptive` on devices whose launches take other times than the tables say.

use crate::planning::*;

#[test]
fn plans_count_launches_as_long_as_they_really_take() {
    // The device needs three times what the tables say of the decoder, nothing less for batches.
    let slow = TRANSLATOR.replace("[1,150.0],[8,180.0]", "[1,450.0],[8,540.0]");
    let (with, without) = (
        foretold("adaptive", &slow, 900.0, 50),
        foretold("adaptive:without=correction", &slow, 900.0, 50),
    );
    assert!((0.67..1.5).contains(&with), "{with}");
    assert!(without < 0.5, "{without}");
}

#[test]
fn plans_learn_what_batches_of_each_size_really_take() {
    // Small batches take less than the tables say, or longer, full ones as long: a batch gains less than
    // they say, or more.
    for (enc, dec, rate) in [("40.0", "60.0", 2600.0), ("160.0", "240.0", 2400.0)] {
        let device = TRANSLATOR
            .replace("[1,100.0]", &format!("[1,{enc}]"))
            .replace("[1,150.0]", &format!("[1,{dec}]"));
        let with = foretold("adaptive", &device, rate, 10);
        let without = foretold("adaptive:without=correction", &device, rate, 10);
        let (believed, real) = (config(TRANSLATOR), config(&device));
        let mean_cost = |tables| {
            let of = |seed| {
                let arrivals = arrivals(3000, rate, 10, seed);
                cost(&run_on(&real, tables, "adaptive", &arrivals), 10, 3000)
            };
            (1..=3).map(of).sum::<f64>() / 3.0
        };
        let (learned, known) = (mean_cost(&believed), mean_cost(&real));
        println!("{enc}: {learned:.2} ms, by true tables {known:.2}");
        let off = |foretold: f64| (foretold - 1.0).abs();
        assert!(off(with) < 0.2 && off(with) < 0.5 * off(without));
        assert!(learned < 1.05 * known);
    }
}

/// What the last plan says of the rule that served on, over what its requests really took, where launches
/// take what a profile says and the tables are those of [`TRANSLATOR`].
fn foretold(spec: &str, device: &str, rate: f64, sla_ms: u64) -> f64 {
    let (believed, real) = (config(TRANSLATOR), config(device));
    let arrivals = arrivals(1500, rate, sla_ms, 11);
    let ran = run_on(&real, &believed, spec, &arrivals);
    let plan = ran.plans.last.first().expect("a plan");
    let (said, really) = (plan.1 as f64 / 1e6, cost(&ran, sla_ms, arrivals.len()));
    println!("{spec}: foretold {said:.1} ms, took {really:.1} ms");
    said / really
}
