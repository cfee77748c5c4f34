//! `adaptive` on devices whose launches take other times than the tables say.

#[path = "common/planning.rs"]
mod planning;

use planning::*;

#[test]
fn plans_count_launches_as_long_as_they_really_take() {
    // The device needs three times what the tables say of the decoder, nothing less for batches.
    let slow = TRANSLATOR.replace("[1,150.0],[8,180.0]", "[1,450.0],[8,540.0]");
    let (believed, real) = (config(TRANSLATOR), config(&slow));
    let arrivals = arrivals(1500, 900.0, 50, 11);
    // What the last plan says of the rule that served on, over what its requests really took.
    let foretold = |spec: &str| {
        let ran = run_on(&real, &believed, spec, &arrivals);
        let plan = ran.plans.last.first().expect("a plan");
        let really = cost(&ran, 50, arrivals.len());
        println!(
            "{spec}: foretold {:.1} ms, took {really:.1} ms",
            plan.1 as f64 / 1e6
        );
        plan.1 as f64 / 1e6 / really
    };
    let (with, without) = (
        foretold("adaptive"),
        foretold("adaptive:without=correction"),
    );
    assert!((0.67..1.5).contains(&with), "{with}");
    assert!(without < 0.5, "{without}");
}

#[test]
fn plans_learn_what_batches_of_each_size_really_take() {
    // Small batches take less than the tables say, or longer, full ones as long: a batch gains less than
    // they say, or more.
    for (enc, dec, rate) in [("40.0", "60.0", 3400.0), ("160.0", "240.0", 3000.0)] {
        let real = TRANSLATOR
            .replace("[1,100.0]", &format!("[1,{enc}]"))
            .replace("[1,150.0]", &format!("[1,{dec}]"));
        let (believed, real) = (config(TRANSLATOR), config(&real));
        let mean_cost = |spec: &str, tables| {
            let of = |seed| {
                let arrivals = arrivals(3000, rate, 10, seed);
                cost(&run_on(&real, tables, spec, &arrivals), 10, 3000)
            };
            (1..=3).map(of).sum::<f64>() / 3.0
        };
        let with = mean_cost("adaptive", &believed);
        let without = mean_cost("adaptive:without=correction", &believed);
        let known = mean_cost("adaptive", &real);
        println!("{enc}: {with:.2} ms, without {without:.2}, by true tables {known:.2}");
        assert!(with < 1.05 * known && with < 0.9 * without);
    }
}
