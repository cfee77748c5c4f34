//! `compare`, `profile` and `run` on real and simulated devices.

use crate::common::{Place, check_run, requests, shared_traces};

/// Runs `compare` and returns its standard output.
fn compare(place: &Place, options: &str) -> String {
    place
        .succeed(&format!("compare --report c.html {options}"))
        .out
}

#[test]
fn the_main_job_writes_everything_and_feeds_the_simulator() {
    let place = Place::new();
    let out = compare(
        &place,
        "--duration 0.3 --policies greedy,lazy,greedy --json c.json --requests-csv c.csv \
         --arrivals-out a.csv --profile-out p.json --trace-out t",
    );
    for policy in ["greedy", "lazy"] {
        let line = out
            .lines()
            .find(|l| l.starts_with(&format!("{policy}: ")))
            .unwrap();
        let mut words = line.split(' ').skip(1);
        let (identical, of, all) = (words.next(), words.next(), words.next());
        assert_eq!((identical, of), (all, Some("of")), "{line}");
        assert!(
            line.contains("answers bit-identical to those alone"),
            "{line}"
        );
        assert!(
            place
                .read(&format!("t.{policy}.json"))
                .contains("traceEvents")
        );
    }
    let (results, rows) = (place.json("c.json"), requests(&place.read("c.csv")));
    assert_eq!(results["format"], "lazybatch-results/1");
    assert_eq!(results["command"], "compare");
    assert_eq!(results["device"], place.json("p.json")["device"]);
    let runs = results["runs"].as_array().unwrap();
    let n = rows.len() / 2;
    for (i, run) in runs.iter().enumerate() {
        check_run(run, &rows[i * n..(i + 1) * n]);
        assert_eq!(run["sla_ms"], 100.0);
        assert!(run["rate_rps"].as_f64().unwrap() > 0.0);
    }
    assert!(
        rows.iter()
            .all(|r| r.arrival < 300_000_000 && r.model == "phonemes")
    );
    let page = place.read("c.html");
    assert!(page.contains("bit-identical") && page.contains("<svg"));
    assert!(!page.contains("http://") && !page.contains("https://"));

    place.succeed(
        "simulate --profile p.json --arrivals a.csv --policies greedy,lazy --requests-csv s.csv",
    );
    let simulated = requests(&place.read("s.csv"));
    let arrivals = |rows: &[crate::common::Row]| rows.iter().map(|r| r.arrival).collect::<Vec<_>>();
    assert_eq!(
        arrivals(&simulated),
        arrivals(&rows),
        "both serve the same arrivals"
    );

    // The same profile schedules a simulated device in real time.
    let out = compare(
        &place,
        "--device sim --profile p.json --duration 0.2 --policies lazy,oracle --json s.json --requests-csv s.csv",
    );
    assert!(
        out.contains("a simulated device computes no answers"),
        "{out}"
    );
    let (results, rows) = (place.json("s.json"), requests(&place.read("s.csv")));
    check_run(&results["runs"][0], &rows[..rows.len() / 2]);
    assert!(
        rows.iter()
            .all(|r| r.outcome == "met" || r.outcome == "violated")
    );
}

#[test]
fn rounds_are_compared_within_themselves() {
    let place = Place::new();
    let out = compare(
        &place,
        "--duration 0.2 --rate 100 --pool 16 --policies greedy,lazy --rounds 3 --json c.json",
    );
    let head = out.lines().find(|l| l.contains("over greedy")).unwrap();
    assert!(head.starts_with("policy"), "{out}");
    assert!(out.contains("rounds 3"), "{out}");
    assert!(place.read("c.html").contains("over greedy"));
    let results = place.json("c.json");
    let runs = results["runs"].as_array().unwrap();
    let served: Vec<_> = runs.iter().map(|r| (&r["policy"], &r["round"])).collect();
    let expected = [
        ("greedy", 1),
        ("lazy", 1),
        ("lazy", 2),
        ("greedy", 2),
        ("greedy", 3),
        ("lazy", 3),
    ];
    let expected = expected.map(|(policy, round)| (policy.into(), round.into()));
    let expected: Vec<(&serde_json::Value, &serde_json::Value)> =
        expected.iter().map(|(p, r)| (p, r)).collect();
    assert_eq!(served, expected);
    // The same arrivals within a round, others in the next.
    let requests = |i: usize| runs[i]["requests"].as_u64().unwrap();
    assert_eq!((requests(0), requests(2)), (requests(1), requests(3)));
    assert!(
        requests(0) != requests(2) || requests(2) != requests(4),
        "{runs:?}"
    );
    let answers: u64 = [0, 3, 4].map(requests).iter().sum();
    let line = format!("greedy: {answers} of {answers} answers bit-identical");
    assert!(out.contains(&line), "{out}");
    for option in [
        "--requests-csv r.csv",
        "--trace-out t",
        "--arrivals-out a.csv",
        "--dry",
    ] {
        place.refuse(
            &format!("compare --rounds 2 {option}"),
            &["cannot be used with"],
        );
    }
    place.refuse(
        "compare --rounds 0",
        &["--rounds", "expected 1 to 1000 rounds, got 0"],
    );
}

#[test]
fn rate_target_and_batch_are_as_asked() {
    let place = Place::new();
    let tiny =
        "--model transformer-tiny --duration 0.2 --rate 100 --policies serial,greedy --json c.json";
    let out = compare(
        &place,
        &format!("{tiny} --max-batch 3 --sla-ms 0.001 --seed 5 --profile-out p.json --timing"),
    );
    assert!(
        out.contains("load 100 requests/s") && out.contains("max batch 3"),
        "{out}"
    );
    let results = place.json("c.json");
    assert_eq!(results["seed"], 5);
    for run in results["runs"].as_array().unwrap() {
        assert_eq!(
            (&run["rate_rps"], &run["sla_ms"]),
            (&100.0.into(), &0.001.into())
        );
        assert_eq!(run["violation_rate"], 1.0);
        // At this rate there need not have been a choice to time.
        let decision = run.get("decision_us_p50");
        assert!(decision.is_none_or(serde_json::Value::is_number), "{run}");
    }
    assert_eq!(place.json("p.json")["models"][0]["max_batch"], 3);
    // Target and batch of a given profile count unless others are asked for.
    place.write(
        "p.json",
        place
            .read("p.json")
            .replace("\"sla_ms\": 100.0", "\"sla_ms\": 70.0"),
    );
    let out = compare(&place, &format!("{tiny} --profile p.json"));
    assert!(
        out.contains("SLA 70 ms") && out.contains("max batch 3"),
        "{out}"
    );
    assert_eq!(place.json("c.json")["runs"][0]["sla_ms"], 70.0);
    // The device is the one that ran, whatever the profile is of.
    let device = place.json("p.json")["device"].as_str().unwrap().to_owned();
    let text = place.read("p.json").replace(&device, "npu-9");
    place.write("npu.json", text);
    let out = compare(&place, &format!("{tiny} --profile npu.json"));
    let settings = [
        format!("device {device},"),
        "scheduled by a profile of npu-9".into(),
    ];
    for part in settings {
        assert!(out.contains(&part), "{part}: {out}");
    }
    assert_eq!(place.json("c.json")["device"], *device);
    assert!(place.read("c.html").contains(&device));
    place.succeed(&format!("compare {tiny} --profile npu.json --dry"));
    assert_eq!(place.json("c.json")["device"], *device);
    let out = compare(&place, &format!("{tiny} --profile npu.json --device sim"));
    assert!(out.contains("device npu-9,"), "{out}");
    assert_eq!(place.json("c.json")["device"], "npu-9");
    place.refuse(
        "compare --model transformer-tiny --profile p.json --rate 0.01 --duration 0.01",
        &["--rate: expected arrivals, got none"],
    );
}

#[test]
fn what_the_drain_leaves_open_counts_as_shed() {
    let place = Place::new();
    compare(
        &place,
        "--model transformer-tiny --max-batch 2 --duration 0.2 --rate 20000 --drain 0.01 --policies serial --json c.json --requests-csv c.csv",
    );
    let (results, rows) = (place.json("c.json"), requests(&place.read("c.csv")));
    let run = &results["runs"][0];
    check_run(run, &rows);
    assert!(run["shed"].as_u64().unwrap() > 0, "{run}");
    assert!(run["violation_rate"].as_f64().unwrap() > 0.0, "{run}");
}

#[test]
fn the_projects_own_arrivals_are_served_at_the_rate_asked_for() {
    let place = Place::new();
    let mut text = String::from("arrival_us,model,input_len,output_len,sla_us\n");
    for i in 0..40 {
        let sla = if i % 2 == 0 { "0.001" } else { "" };
        let output = if i < 38 { 3 } else { 1000 };
        text += &format!("{}.5,transformer-tiny,7,{output},{sla}\n", i * 1000);
    }
    place.write("a.csv", text);
    let run = "--model transformer-tiny --max-batch 4 --sla-ms 60000 --trace a.csv --trace-rate 200 \
               --duration 10 --policies greedy";
    let run_all = format!("compare --report c.html {run} --json c.json --requests-csv c.csv");
    let done = place.succeed(&run_all);
    let said = "a.csv: 2 of 40 arrivals are served with the lengths of the nearest of 512 inputs";
    assert!(done.err.contains(said), "{}", done.err);
    let said = "a.csv: 40 of 40 arrivals are served, those within 10 s (--duration), from time 0 on at \
                200.0000 requests/s, its own 1000.0000 (--trace-rate)";
    assert!(done.err.contains(said), "{}", done.err);
    let rows = requests(&place.read("c.csv"));
    let rate = place.json("c.json")["runs"][0]["rate_rps"]
        .as_f64()
        .unwrap();
    assert!((rate - 200.0).abs() < 1e-3, "{rate}");
    assert_eq!(rows.len(), 40);
    // Some have targets of their own: what the others go by is told.
    assert_eq!(place.json("c.json")["runs"][0]["sla_ms"], 60000.0);
    assert!(
        rows.iter()
            .enumerate()
            .all(|(i, r)| r.arrival == i as u64 * 5_000_000)
    );
    for row in rows {
        assert_eq!(
            row.outcome,
            if row.id % 2 == 0 { "violated" } else { "met" }
        );
    }
    let own = place.read("a.csv").replace(",\n", ",7000000\n");
    place.write("own.csv", own.replace(",0.001\n", ",7000000\n"));
    let run_own = run_all.replace("--trace a.csv", "--trace own.csv");
    let done = place.succeed(&format!("{run_own} --requests 3"));
    assert!(done.out.contains("SLA 7000 ms"), "{}", done.out);
    let said = "own.csv: 3 of 40 arrivals are served, the first 3 (--requests), from time 0 on at ";
    assert!(done.err.contains(said), "{}", done.err);
    assert_eq!(place.json("c.json")["runs"][0]["sla_ms"], 7000.0);
    compare(
        &place,
        &format!("{run} --requests 7 --pool 2 --requests-csv c.csv"),
    );
    assert_eq!(requests(&place.read("c.csv")).len(), 7);
    let poisson = "--model transformer-tiny --rate 500 --duration 5 --policies greedy";
    compare(
        &place,
        &format!("{poisson} --requests 9 --requests-csv c.csv"),
    );
    assert_eq!(requests(&place.read("c.csv")).len(), 9);
}

#[test]
fn a_trace_arrives_when_it_says_and_a_simulated_device_takes_its_lengths() {
    let place = Place::new();
    let header = "arrival_us,model,input_len,output_len";
    let rows = [
        ("20000.125", 7, 3),
        ("50000.000", 900, 2),
        ("50000.000", 8, 1000),
        ("90000.000", 9, 0),
        ("61000000.000", 5, 5),
    ];
    let rows: String = rows
        .iter()
        .map(|(at, input, output)| format!("{at},transformer-tiny,{input},{output}\n"))
        .collect();
    place.write("t.csv", format!("{header}\n{rows}"));
    let run = |device: &str, arguments: &str| {
        let done = place.succeed(&format!(
            "compare --report c.html --model transformer-tiny --max-batch 4 --policies greedy --trace t.csv \
             --device {device} {arguments} --requests-csv c.csv"
        ));
        // Id, model, arrival, ..., lengths, policy.
        let csv = place.read("c.csv");
        let rows = csv.lines().skip(1).map(|row| {
            let of: Vec<_> = row.split(',').collect();
            (of[2].to_string(), of[6].to_string(), of[7].to_string())
        });
        (done.err, rows.collect::<Vec<_>>())
    };
    let (err, rows) = run("sim", "");
    // The model takes no more than 40.
    let expected = [
        ("20000.125", "7", "3"),
        ("50000.000", "40", "2"),
        ("50000.000", "8", "40"),
        ("90000.000", "9", "0"),
    ];
    let expected = expected.map(|(at, i, o)| (at.to_string(), i.to_string(), o.to_string()));
    assert_eq!(rows, expected);
    let said = "t.csv: 4 of 5 arrivals are served, those within 60 s (--duration)\n";
    assert!(err.contains(said), "{err}");
    let said = "t.csv: 2 of 4 arrivals are served with the lengths";
    assert!(err.contains(said), "{err}");
    let (err, rows) = run("cpu", "--duration 0.06 --pool 2");
    let at: Vec<_> = rows.iter().map(|r| r.0.as_str()).collect();
    assert_eq!(at, ["20000.125", "50000.000", "50000.000"]);
    assert!(err.contains("those within 0.06 s (--duration)\n"), "{err}");
    place.refuse(
        "compare --model transformer-tiny --trace t.csv --duration 0.01",
        &["--duration: expected arrivals, got none within 0.01 s"],
    );
}

#[test]
fn classes_of_a_trace_group_the_results_and_reach_the_simulator() {
    let place = Place::new();
    let row = |i: u64| {
        let class = ["gold", "free", ""][i as usize % 3];
        format!("{},transformer-tiny,7,3,{class}\n", i * 2000)
    };
    let rows: String = (0..12).map(row).collect();
    let header = "arrival_us,model,input_len,output_len,class";
    place.write("c.csv", format!("{header}\n{rows}"));
    // A simulated device is the npu where no profile says another.
    let run = "--model transformer-tiny --device sim --policies greedy --trace c.csv --trace-rate 400 \
               --json c.json --arrivals-out a.csv";
    let out = compare(&place, run);
    assert!(out.contains("gold (greedy)"), "{out}");
    assert!(out.contains("device npu"), "{out}");
    let classes = |file: &str| {
        let told = place.json(file);
        let rows = told["classes"].as_array().unwrap().iter();
        rows.map(|r| (r["class"].clone(), r["requests"].clone()))
            .collect::<Vec<_>>()
    };
    let told = classes("c.json");
    assert_eq!(told, [("free".into(), 4.into()), ("gold".into(), 4.into())]);
    place.succeed(
        "simulate --profile npu --model transformer-tiny --arrivals a.csv --policies greedy --json s.json",
    );
    assert_eq!(classes("s.json"), told);
    let out = compare(&place, &format!("{run} --profile v100:free"));
    assert!(out.contains("device nvidia-v100-sxm2-16gb:free,"), "{out}");
    place.succeed("inspect --model transformer-tiny --profile npu");
}

#[test]
fn public_traces_are_served() {
    let Some(folder) = shared_traces() else {
        return;
    };
    let place = Place::new();
    for file in [
        "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
        "mooncake-fast25/synthetic_trace.jsonl.gz",
    ] {
        let path = folder.join(file);
        let arguments = format!(
            "--model transformer-tiny --max-batch 2 --trace-rate 300 --duration 0.2 --policies lazy \
             --requests-csv c.csv --trace {}",
            path.display()
        );
        let out = compare(&place, &arguments);
        assert!(out.contains("answers bit-identical"), "{out}");
        assert!(!requests(&place.read("c.csv")).is_empty());
    }
}

#[test]
fn a_measured_profile_is_one_that_simulate_takes() {
    let place = Place::new();
    let done = place.succeed("profile --model cnn-tiny --max-batch 4 --segment-us 0 --out p.json");
    assert!(
        done.out.starts_with("p.json: cnn-tiny on cpu"),
        "{}",
        done.out
    );
    let profile = place.json("p.json");
    assert_eq!(profile["format"], "lazybatch-profile/1");
    assert_eq!(profile["models"][0]["max_batch"], 4);
    place.succeed("simulate --profile p.json --rate 100 --duration 0.5");
    let inspected = place.succeed("inspect --model cnn-tiny").out;
    assert!(
        inspected.starts_with("program cnn-tiny: 11 nodes"),
        "{inspected}"
    );
    for part in [
        "block main: values ",
        "with a place each",
        "request holds up to ",
    ] {
        assert!(inspected.contains(part), "{inspected}");
    }
    // Segments are those of the profile, and of no other model's.
    let nodes = inspected.matches("  segment ").count();
    assert_eq!(nodes, 11, "{inspected}");
    place.succeed("profile --model cnn-tiny --max-batch 1 --segment-us 1e6 --out long.json");
    let long = place.succeed("inspect --model cnn-tiny --profile long.json");
    assert_eq!(long.out.matches("  segment ").count(), 1, "{}", long.out);
    let text = place.read("long.json");
    let text = text.replacen('{', "{\"issue_us\": 7.25,", 1);
    place.write("issue.json", &text);
    let out = place
        .succeed("inspect --model cnn-tiny --profile issue.json")
        .out;
    assert!(out.contains("issuing a launch takes 7.2 us"), "{out}");
    place.write(
        "other.json",
        text.replace("\"num_nodes\": 11", "\"num_nodes\": 12"),
    );
    let words = [
        "other.json: expected entries that cover [11] nodes",
        "got [12]",
    ];
    place.refuse("inspect --model cnn-tiny --profile other.json", &words);
    let words = ["p.json: expected the model bert-tiny, got cnn-tiny"];
    place.refuse("inspect --model bert-tiny --profile p.json", &words);
}

#[test]
fn packed_weights_are_kept_where_asked() {
    let place = Place::new();
    let cache = place.path("weights");
    let run = format!("run --input batching --weight-cache {}", cache.display());
    for round in 0..2 {
        let done = place.succeed(&run);
        assert_eq!(done.out, "B AE CH IH NG\n");
        assert!(!done.err.contains("weight cache"), "{round}: {}", done.err);
    }
    let mut files = std::fs::read_dir(&cache).unwrap();
    let file = files.next().unwrap().unwrap().path();
    std::fs::write(&file, "damaged").unwrap();
    let done = place.succeed(&run);
    assert_eq!(done.out, "B AE CH IH NG\n");
    let name = file.file_name().unwrap().to_string_lossy();
    assert!(done.err.contains(&*name), "{}", done.err);
}

#[test]
fn one_word_is_spelled_out() {
    let place = Place::new();
    let out = place.succeed("run --input batching").out;
    assert_eq!(out, "B AE CH IH NG\n");
}
