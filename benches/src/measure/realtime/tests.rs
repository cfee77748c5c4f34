//! Rankings by hand, and a run of two tiny models.

use super::summary::same_ranking;
use super::*;

#[test]
fn rankings_differ_beyond_ties_only() {
    assert!(same_ranking(&[1.0, 2.0, 3.0], &[10.0, 11.0, 12.0]));
    assert!(!same_ranking(&[1.0, 2.0, 3.0], &[10.0, 12.0, 11.0]));
    assert!(same_ranking(&[1.0, 2.0, 3.0], &[10.0, 12.0, 11.8]));
    assert!(same_ranking(&[1.02, 1.0], &[1.0, 2.0]));
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
    let runs = of("mean_ms");
    assert_eq!(runs.len(), 2 * 2 * 3);
    for run in runs {
        for key in [
            "p50_ms",
            "p99_ms",
            "mean_batch",
            "j_ms",
            "wall_s",
            "sla_ms",
            "simulated_mean_ms",
            "simulated_j_ms",
            "capacity_rps",
            "rate_rps",
        ] {
            assert!(run[key].as_f64().unwrap() > 0.0, "{key}: {run}");
        }
        assert!(run["violation_rate"].is_number() && run["goodput_rps"].is_number());
        assert_eq!(
            (&run["requests"], &run["not_counted"]),
            (&json!(20), &json!(2))
        );
        assert!(run["machine"]["cores"].is_number() && run["command"] == "toy");
    }
    for metric in ["mean_ratio", "p99_ratio", "j_ratio"] {
        let ratios = of(metric);
        assert_eq!(ratios.len(), 2 * 2);
        for ratio in ratios {
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
