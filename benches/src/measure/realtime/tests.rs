//! Rankings by hand, and a run of two tiny models.

use super::summary::same_ranking;
use lazybatch_sla::ModelId;

use super::*;

#[test]
fn rankings_differ_beyond_ties_and_errors_only() {
    let runs = |means: &[[f64; 2]]| -> Vec<Vec<f64>> {
        let logs = |m: &[f64; 2]| m.iter().map(|m: &f64| m.ln()).collect();
        means.iter().map(logs).collect()
    };
    let same = |a: &[[f64; 2]], b: &[[f64; 2]]| same_ranking(&runs(a), &runs(b));
    let a = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]];
    assert!(same(&a, &[[10.0, 10.0], [11.0, 11.0], [12.0, 12.0]]));
    assert!(!same(&a, &[[10.0, 10.0], [12.0, 12.0], [11.0, 11.0]]));
    // Within 3 %.
    assert!(same(&a, &[[10.0, 10.0], [12.0, 12.0], [11.8, 11.8]]));
    // One pair says so, the other does not.
    assert!(same(&a, &[[10.0, 10.0], [12.0, 12.0], [9.0, 13.0]]));
    assert!(same(&[[1.0, 1.0], [2.0, 0.6]], &[[2.0, 2.0], [1.0, 1.0]]));
    // Both are slower in the second pair, and that is no error.
    assert!(!same(&[[1.0, 2.0], [1.2, 2.4]], &[[2.0, 2.0], [1.0, 1.0]]));
}

#[test]
fn a_slower_machine_takes_longer_and_sustains_less() {
    let line = "--model transformer-tiny --requests 20 --max-batch 4 --threads 1 --out x";
    let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    let options = Options::parse(&args, "toy").unwrap();
    let bench = Bench::open(&options).unwrap();
    let took = Took {
        in_all: 2.0,
        gap_us: Some(7.0),
    };
    let slow = bench.base.slowed(took);
    let us = |r: &Rated| r.profile.models[0].blocks[0].nodes[0].latency_us.clone();
    let doubled: Vec<_> = us(&bench.base).iter().map(|p| (p.0, 2.0 * p.1)).collect();
    assert_eq!(us(&slow), doubled);
    assert_eq!((bench.base.slower, slow.slower), (1.0, 2.0));
    assert_eq!(slow.sla.as_ms(), 2.0 * bench.base.sla.as_ms());
    assert_eq!(slow.capacity_rps, bench.base.capacity_rps / 2.0);
    assert_eq!(slow.profile.dispatch_us, 7.0);
    let timed = |samples, ns, busy_gap_ns| Timed {
        model: ModelId(0),
        block: 0,
        segment: 0,
        samples,
        rows: u64::from(samples),
        ns,
        busy_gap_ns,
    };
    let predicted = bench.table().segment(0, 0, 1, 1).0 as f64;
    let launches = [
        timed(1, predicted, None),
        timed(1, 2.0 * predicted, Some(3e3)),
        timed(1, 1.5 * predicted, Some(1e3)),
    ];
    let took = bench.took(&launches);
    assert!((took.in_all - 1.5).abs() < 1e-9, "{}", took.in_all);
    assert_eq!((took.gap_us, gap_us(&launches[..1])), (Some(2.0), None));
    let of = |gap_us| Took { gap_us, ..took };
    let runs = [took, of(None), of(Some(4.0))];
    assert_eq!(Took::mean(runs.iter()).gap_us, Some(3.0));
    let unknown = bench.base.slowed(of(None)).profile.dispatch_us;
    assert_eq!(unknown, took.in_all * bench.base.profile.dispatch_us);
}

#[test]
fn a_p99_is_that_of_enough_requests() {
    let of = |num: u64| {
        let at = |i: u64| Time(i * 1_000_000);
        let requests: Vec<FinishedRequest> = (0..num)
            .map(|id| FinishedRequest {
                id,
                model: "m".into(),
                arrival: at(id),
                first_launch: Some(at(id)),
                finish: at(id + 1),
                outcome: lazybatch_sla::Outcome::Met,
                input_len: 0,
                output_len: 0,
                class: None,
            })
            .collect();
        let counters = Counters::default();
        Outcome {
            result: RunResult::summarise("p", "m", 1.0, NO_SLA, &requests, &counters),
            j_ms: 1.0,
        }
    };
    assert_eq!(of(LEAST_OF_P99 - 1).p99_ms(), None);
    assert_eq!(of(LEAST_OF_P99).p99_ms(), Some(1.0));
}

#[test]
fn lines_have_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("rt.jsonl");
    for model in ["transformer-tiny", "cnn-tiny"] {
        let line = format!(
            "--model {model} --requests 20 --loads 0.5 --pairs 2 --max-batch 4 --threads 1 \
             --policies adaptive,greedy,lazy --out {}",
            out.display()
        );
        let args: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        run(&Options::parse(&args, "toy").unwrap()).unwrap();
    }
    let text = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let of = |metric: &str| {
        lines
            .iter()
            .filter(|l| l["metric"] == metric)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("capacity_rps").len(), 2);
    // Both runs of a pair go by the same.
    let by =
        |r: &Value| ["model", "pair", "slower", "capacity_rps", "sla_ms"].map(|key| r[key].clone());
    for run in of("mean_ms") {
        let same = |o: &&&Value| o["model"] == run["model"] && o["pair"] == run["pair"];
        let runs = of("mean_ms");
        assert!(runs.iter().filter(same).all(|o| by(o) == by(run)), "{run}");
    }
    let runs = of("mean_ms");
    assert_eq!(runs.len(), 2 * 2 * 3);
    for run in runs {
        for key in [
            "p50_ms",
            "mean_batch",
            "j_ms",
            "wall_s",
            "sla_ms",
            "simulated_mean_ms",
            "simulated_j_ms",
            "capacity_rps",
            "rate_rps",
            "slower",
            "took_in_all",
            "simulated_as_took_mean_ms",
        ] {
            assert!(run[key].as_f64().unwrap() > 0.0, "{key}: {run}");
        }
        // Twenty requests have no p99.
        assert!(run["p99_ms"].is_null() && run["simulated_p99_ms"].is_null());
        // A model of one launch has no time between two.
        assert!(run["model"] == "cnn-tiny" || run["gap_us"].as_f64().unwrap() > 0.0);
        assert!(run["violation_rate"].is_number() && run["goodput_rps"].is_number());
        assert_eq!(
            (&run["requests"], &run["not_counted"]),
            (&json!(20), &json!(2))
        );
        assert!(run["machine"]["cores"].is_number() && run["command"] == "toy");
        // Rules are those of policies that choose between some, and one has always decided.
        let rules = run["rule_s"].as_object();
        assert_eq!(rules.is_some(), run["policy"] == "adaptive", "{run}");
        if let Some(rules) = rules {
            let most = run["rule_changes"].as_u64().unwrap() + 1;
            let times: Vec<_> = rules.values().filter_map(Value::as_f64).collect();
            assert!((1..=most).contains(&(times.len() as u64)), "{run}");
            assert!(times.iter().sum::<f64>() > 0.0 && run["plans"].is_u64());
        }
    }
    assert!(of("p99_ratio").is_empty());
    for metric in ["mean_ratio", "j_ratio"] {
        let ratios = of(metric);
        assert_eq!(ratios.len(), 2 * 2);
        for ratio in ratios {
            assert!(ratio["geometric_mean"].as_f64().unwrap() > 0.0);
            assert!(ratio["standard_error"].as_f64().unwrap() >= 0.0);
            assert!(ratio["over_as_took"].as_f64().unwrap() > 0.0);
            assert!(ratio["over_as_took_error"].as_f64().unwrap() >= 0.0);
            assert_eq!(
                (&ratio["over"], &ratio["runs"]),
                (&json!("adaptive"), &json!(2))
            );
            assert!(ratio["simulated_median"].as_f64().unwrap() > 0.0);
        }
    }
    let ranking = of("ranking_agrees");
    assert_eq!(ranking.len(), 2);
    assert_eq!(ranking[0]["order"].as_array().unwrap().len(), 3);
}
