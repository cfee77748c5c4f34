//! What `simulate` and `replay` promise: the files, their definitions, and the exact times of the
//! simple policies on examples worked out by hand.

use crate::common::{PROFILE, Place, check_run, requests};

/// Three nodes of 10 us by members, no loops.
const CHAIN: &str = r#"{ "format": "lazybatch-profile/1", "device": "d", DEVICE
  "models": [ { "name": "img", "max_batch": 4, "blocks": [ { "name": "main", "repeat": "once", "nodes": [
    { "name": "a", "latency_us": [[1, 10.0]] },
    { "name": "b", "latency_us": [[1, 10.0], [4, 40.0]] },
    { "name": "c", "latency_us": [[1, 10.0]] } ] } ] } ] }"#;

fn chain(device: &str) -> String {
    CHAIN.replace("DEVICE", device)
}

/// Finish times in microseconds of the only policy that ran.
fn finishes(place: &Place, arguments: &str) -> Vec<f64> {
    place.succeed(&format!("simulate --requests-csv r.csv {arguments}"));
    let rows = requests(&place.read("r.csv"));
    rows.iter().map(|r| r.finish as f64 / 1e3).collect()
}

#[test]
fn the_requests_file_is_the_documented_one() {
    let place = Place::with_example();
    place.succeed(
        "simulate --profile p.json --arrivals a.csv --policies serial,greedy --requests-csv r.csv",
    );
    // 12 + 0.5 * 2/23 = 12.043 for 3 rows; a padded batch of two has 2 x 24 rows.
    assert_eq!(
        place.read("r.csv"),
        "id,model,arrival_us,first_launch_us,finish_us,outcome,input_len,output_len,policy\n\
         0,toy,0.000,0.000,48.043,met,3,4,serial\n\
         1,toy,5.500,48.043,78.543,met,24,2,serial\n\
         2,toy,5.500,78.543,117.543,met,0,3,serial\n\
         3,toy,300.000,300.000,312.130,met,7,0,serial\n\
         0,toy,0.000,0.000,48.043,met,3,4,greedy\n\
         1,toy,5.500,48.043,92.361,met,24,2,greedy\n\
         2,toy,5.500,48.043,92.361,met,0,3,greedy\n\
         3,toy,300.000,300.000,312.130,met,7,0,greedy\n"
    );
}

#[test]
fn results_follow_from_the_requests() {
    let place = Place::with_example();
    let policies: Vec<_> = lazybatch_engine::policy::examples().collect();
    let arguments = format!(
        "simulate --profile p.json --rate 9000 --duration 0.05 --sla-ms 0.6 --policies {} \
         --requests-csv r.csv --json r.json --journal j",
        policies.join(",")
    );
    let out = place.succeed(&arguments).out;
    let (results, rows) = (place.json("r.json"), requests(&place.read("r.csv")));
    assert_eq!(results["format"], "lazybatch-results/1");
    assert_eq!(results["command"], "simulate");
    assert_eq!(results["seed"], 1);
    assert_eq!(results["device"], "npu-128x128-700mhz");
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), policies.len());
    let mut outcomes = std::collections::BTreeSet::new();
    for (i, (run, policy)) in runs.iter().zip(&policies).enumerate() {
        let n = rows.len() / policies.len();
        let own = &rows[i * n..(i + 1) * n];
        assert!(own.iter().all(|r| r.policy == *policy), "rows go by policy");
        assert!(own.iter().enumerate().all(|(i, r)| r.id == i as u64));
        assert_eq!(run["policy"], *policy);
        assert_eq!(run["model"], "toy");
        assert_eq!(run["rate_rps"], 9000.0);
        assert_eq!(run["sla_ms"], 0.6);
        assert!(run.get("decision_us_p50").is_none());
        check_run(run, own);
        for row in own {
            let met = row.finish - row.arrival <= 600_000;
            assert_eq!(row.outcome, if met { "met" } else { "violated" });
            outcomes.insert(row.outcome.clone());
        }
        assert!(out.lines().any(|l| l.starts_with(policy)), "{out}");
        // Launches and members as the journal has them.
        let journal = place.read(&format!("j.{}.jsonl", policy.replace([':', '/'], "-")));
        let lines = journal.lines().map(|l| serde_json::from_str(l).unwrap());
        let members: Vec<usize> = lines
            .filter_map(|l: serde_json::Value| l["launch"]["members"].as_array().map(Vec::len))
            .collect();
        assert_eq!(run["launches"], members.len());
        let mean = members.iter().sum::<usize>() as f64 / members.len() as f64;
        assert!((run["mean_batch"].as_f64().unwrap() - mean).abs() < 1e-9);
    }
    assert_eq!(outcomes.len(), 2, "the target is met and missed");
}

#[test]
fn decision_times_come_under_timing_only() {
    let place = Place::with_example();
    place.succeed(
        "simulate --profile p.json --rate 9000 --duration 0.05 --policies lazy --timing --json t.json",
    );
    let run = &place.json("t.json")["runs"][0];
    let (p50, p99) = (&run["decision_us_p50"], &run["decision_us_p99"]);
    assert!(
        p50.as_f64().unwrap() > 0.0 && p99.as_f64() >= p50.as_f64(),
        "{run}"
    );
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let place = Place::with_example();
    let files = |seed: u32| {
        place.succeed(&format!(
            "simulate --profile p.json --rate 3000 --duration 0.05 --jitter 0.2 --seed {seed} \
             --policies graph:0.1,lazy --requests-csv r.csv --json r.json --journal j"
        ));
        ["r.csv", "r.json", "j.graph-0.1.jsonl", "j.lazy.jsonl"].map(|f| place.read(f))
    };
    let (first, again, other) = (files(7), files(7), files(8));
    for i in 0..4 {
        assert!(first[i] == again[i], "file {i} changed from run to run");
        assert!(first[i] != other[i], "file {i} does not depend on the seed");
    }
}

#[test]
fn targets_come_from_the_arrival_then_the_option_then_the_profile() {
    let place = Place::with_example();
    // Alone: 12 us of encoder and one decoder step of 9 us.
    place.write(
        "s.csv",
        "arrival_us,model,input_len,output_len,sla_us\n0,toy,1,1,21\n1000,toy,1,1,20.999\n\
         2000,toy,1,1,\n",
    );
    let outcomes = |options: &str| -> Vec<String> {
        place.succeed(&format!(
            "simulate --profile p.json --arrivals s.csv --policies serial --requests-csv r.csv \
             --json r.json {options}"
        ));
        requests(&place.read("r.csv"))
            .into_iter()
            .map(|r| r.outcome)
            .collect()
    };
    assert_eq!(outcomes(""), ["met", "violated", "met"]);
    assert_eq!(place.json("r.json")["runs"][0]["sla_ms"], 100.0);
    assert_eq!(outcomes("--sla-ms 0.02"), ["met", "violated", "violated"]);
    assert_eq!(place.json("r.json")["runs"][0]["sla_ms"], 0.02);
    place.write("p.json", PROFILE.replace("100.0", "0.02"));
    assert_eq!(outcomes(""), ["met", "violated", "violated"]);
    assert_eq!(outcomes("--sla-ms 0.03"), ["met", "violated", "met"]);
}

#[test]
fn several_models_share_the_device_by_oldest_head() {
    let place = Place::new();
    let second = chain("").replace("\"img\"", "\"second\"");
    let second = &second[second.find("{ \"name\": \"second\"").unwrap()..];
    let first = PROFILE.strip_suffix(" ] }").unwrap();
    place.write("p.json", format!("{first}, {second}"));
    place.write(
        "a.csv",
        "arrival_us,model,input_len,output_len\n0,second,0,0\n0,toy,1,1\n0,second,0,0\n5,second,0,0\n\
         6,toy,1,1\n",
    );
    let run = "simulate --profile p.json --arrivals a.csv --requests-csv r.csv --json r.json";
    place.succeed(&format!("{run} --policies serial,greedy"));
    let rows = requests(&place.read("r.csv"));
    let us: Vec<f64> = rows.iter().map(|r| r.finish as f64 / 1e3).collect();
    // At 0 the profile's order breaks the tie (toy runs 21 us), then file order within a model.
    assert_eq!(us[..5], [51.0, 21.0, 81.0, 111.0, 132.0]);
    // Greedy takes the three of the second model together: 10 + 30 + 10.
    assert_eq!(us[5..], [71.0, 21.0, 71.0, 71.0, 92.0]);
    assert_eq!(place.json("r.json")["runs"][0]["model"], "toy+second");
    place.refuse(
        &format!("{run} --model second"),
        &["a.csv: line 3, column model: expected one of second, got `toy`"],
    );
    place.succeed("simulate --profile p.json --model second --rate 100 --duration 1 --json r.json --policies greedy");
    assert_eq!(place.json("r.json")["runs"][0]["model"], "second");
    place.refuse(
        &format!("{run} --model third"),
        &["--model: expected one of toy, second, got third"],
    );
}

#[test]
fn models_with_targets_of_their_own_are_told_apart() {
    let place = Place::new();
    let second = chain("").replace("\"img\"", "\"second\", \"sla_ms\": 0.05");
    let second = &second[second.find("{ \"name\": \"second\"").unwrap()..];
    let first = PROFILE.replace("100.0", "0.04");
    let first = first.strip_suffix(" ] }").unwrap();
    place.write("p.json", format!("{first}, {second}"));
    let header = "arrival_us,model,input_len,output_len\n";
    place.write("a.csv", format!("{header}0,second,0,0\n0,toy,1,1\n"));
    place.write("b.csv", format!("{header}0,second,0,0\n"));
    let run = "simulate --profile p.json --policies serial --json r.json --report r.html";
    let row = |arguments: &str| {
        place.succeed(&format!("{run} {arguments}"));
        place.json("r.json")["runs"][0].clone()
    };
    let both = row("--arrivals a.csv");
    assert_eq!(both["sla_ms"], 0.04);
    let each = serde_json::json!({"second": 0.05, "toy": 0.04});
    assert_eq!(both["sla_ms_by_model"], each);
    // No line is drawn in charts for a target that is not everybody's.
    assert!(!place.read("r.html").contains(">SLA 0.04"));
    for (arguments, sla_ms) in [
        ("--arrivals a.csv --sla-ms 0.03", 0.03),
        ("--arrivals b.csv", 0.05),
    ] {
        let one = row(arguments);
        assert_eq!(one["sla_ms"], sla_ms);
        assert!(one.get("sla_ms_by_model").is_none(), "{one}");
        assert!(place.read("r.html").contains(&format!(">SLA {sla_ms}")));
    }
    // What all arrivals of a model state themselves is its target.
    let header = format!("{},sla_us\n", header.trim_end());
    place.write("c.csv", format!("{header}0,second,0,0,60\n0,toy,1,1,60\n"));
    let one = row("--arrivals c.csv");
    assert_eq!(one["sla_ms"], 0.06);
    assert!(one.get("sla_ms_by_model").is_none(), "{one}");
    place.write("d.csv", format!("{header}0,second,0,0,60\n0,second,0,0,\n"));
    assert_eq!(row("--arrivals d.csv")["sla_ms"], 0.05);
}

#[test]
fn samples_take_the_place_of_members() {
    let place = Place::new();
    place.write("p.json", chain(""));
    place.write(
        "a.csv",
        "arrival_us,model,input_len,output_len,samples\n0,img,0,0,3\n0,img,0,0,2\n0,img,0,0,\n",
    );
    let greedy = "--profile p.json --arrivals a.csv --policies greedy";
    // Three samples alone, as five exceed the batch of four; then two and one.
    assert_eq!(finishes(&place, greedy), [50.0, 100.0, 100.0]);
    place.write(
        "a.csv",
        "arrival_us,model,input_len,output_len,samples\n0,img,0,0,5\n",
    );
    let parts = ["a.csv: line 2, column samples: expected 1 to 4 samples, got 5"];
    place.refuse(&format!("simulate {greedy}"), &parts);
}

#[test]
fn costs_of_launches_decisions_and_segments_add_up() {
    let place = Place::new();
    place.write(
        "a.csv",
        "arrival_us,model,input_len,output_len\n0,img,0,0\n",
    );
    place.write("p.json", chain(""));
    let one = |options: &str| {
        let arguments = "--profile p.json --arrivals a.csv --policies serial --journal j";
        let done = finishes(&place, &format!("{arguments} {options}"));
        let launches = place.read("j.serial.jsonl").matches("\"launch\"").count();
        (done[0], launches)
    };
    assert_eq!(one(""), (30.0, 3));
    assert_eq!(one("--segment 2"), (30.0, 2));
    assert_eq!(one("--decide-us 2.5"), (37.5, 3));
    // Half up, as it is written.
    assert_eq!(one("--decide-us 4.0005"), (42.003, 3));
    assert_eq!(one("--decide-us 2.5 --segment 3"), (32.5, 1));
    place.write("p.json", chain("\"dispatch_us\": 1.5,"));
    assert_eq!(one(""), (34.5, 3));
    assert_eq!(one("--segment 2"), (33.0, 2));
    assert_eq!(one("--segment 9"), (31.5, 1));
}

#[test]
fn merges_cost_their_copies() {
    let place = Place::with_example();
    let lazy = "--profile p.json --arrivals a.csv --policies lazy --json r.json";
    let free = finishes(&place, lazy);
    assert_eq!(place.json("r.json")["runs"][0]["merges"], 1);
    let bytes = PROFILE.replace("\"ffn0\",", "\"ffn0\", \"merge_bytes_per_member\": 2000,");
    place.write("p.json", &bytes);
    assert_eq!(
        finishes(&place, lazy),
        free,
        "copies are free without a speed"
    );
    place.write(
        "p.json",
        bytes.replace("\"models\"", "\"copy_gbps\": 1.0, \"models\""),
    );
    // One member is copied to the others' place: 2000 bytes at 1 GB/s.
    let costly = finishes(&place, lazy);
    let late: Vec<f64> = costly
        .iter()
        .zip(&free)
        .map(|(a, b)| ((a - b) * 1e3).round())
        .collect();
    assert_eq!(late, [2000.0, 2000.0, 2000.0, 0.0]);
}

#[test]
fn loops_of_length_zero_are_skipped() {
    let place = Place::new();
    let loops = r#"{ "format": "lazybatch-profile/1", "device": "d", "models": [ { "name": "m", "blocks": [
      { "name": "in", "repeat": "per_input_step", "nodes": [ { "name": "x", "latency_us": [[1, 3]] } ] },
      { "name": "out", "repeat": "until_stop", "nodes": [ { "name": "y", "latency_us": [[1, 5]] } ] } ] } ] }"#;
    place.write("p.json", loops);
    place.write(
        "a.csv",
        "arrival_us,model,input_len,output_len\n0,m,2,3\n100,m,0,3\n200,m,2,0\n300,m,0,0\n",
    );
    for policy in ["serial", "greedy", "lazy", "oracle"] {
        let arguments = format!("--profile p.json --arrivals a.csv --policies {policy}");
        assert_eq!(
            finishes(&place, &arguments),
            [21.0, 115.0, 206.0, 300.0],
            "{policy}"
        );
    }
    let rows = requests(&place.read("r.csv"));
    assert_eq!(
        (rows[3].first_launch, rows[3].outcome.as_str()),
        (None, "met")
    );
}

#[test]
fn a_policy_that_is_named_twice_runs_once() {
    let place = Place::with_example();
    let run = "simulate --profile p.json --arrivals a.csv --json r.json --requests-csv r.csv";
    place.succeed(&format!("{run} --policies lazy,greedy,lazy,graph:0,greedy"));
    let results = place.json("r.json");
    let runs = results["runs"].as_array().unwrap();
    let policies: Vec<_> = runs.iter().map(|r| r["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["lazy", "greedy", "graph:0"]);
    assert_eq!(requests(&place.read("r.csv")).len(), 3 * 4);
}

#[test]
fn a_report_needs_no_network() {
    let place = Place::with_example();
    place.succeed("simulate --profile p.json --rate 2000 --duration 0.1 --policies greedy,lazy --report r.html");
    let page = place.read("r.html");
    assert!(page.contains("<svg") && page.contains("greedy") && page.contains("p.json"));
    for part in ["http://", "https://", "<script src", "<link", "@import"] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn a_device_model_is_a_profile() {
    let place = Place::with_example();
    let said = place
        .succeed("profile --model gnmt-tiny --device npu --out npu.json")
        .out;
    assert!(said.contains("gnmt-tiny on npu-128x128-700mhz"), "{said}");
    let run = "--model gnmt-tiny --rate 200 --duration 0.2 --policies lazy --requests-csv";
    place.succeed(&format!("simulate --profile npu.json {run} file.csv"));
    place.succeed(&format!("simulate --profile npu {run} name.csv"));
    assert_eq!(place.read("file.csv"), place.read("name.csv"));
    place.succeed(&format!("simulate --profile npu:free {run} free.csv"));
    assert_ne!(place.read("file.csv"), place.read("free.csv"));
}

#[test]
fn the_bound_is_printed_below_the_table() {
    let place = Place::new();
    place.write("chain.json", chain(""));
    place.write(
        "a.csv",
        "arrival_us,model,input_len,output_len\n0,img,0,0\n",
    );
    let run = "simulate --profile chain.json --arrivals a.csv --policies serial";
    assert!(!place.succeed(run).out.contains("any schedule"));
    let out = place.succeed(&format!("{run} --bound --sla-ms 0.02")).out;
    let line = "any schedule: mean at least 0.030 ms (alone 0.030 ms), at least 1 of 1 violated\n";
    assert!(out.ends_with(line), "{out}");
}

#[test]
fn loops_over_the_input_are_measured_to_their_end() {
    let place = Place::new();
    // The block behind the encoder reads what every position of it wrote.
    let run = "profile --model gnmt-tiny --device cpu --max-batch 4 --segment-us 0 --out p.json";
    place.succeed(run);
    let profile = place.json("p.json");
    let blocks = profile["models"][0]["blocks"]
        .as_array()
        .map_or(0, Vec::len);
    assert_eq!(blocks, 4);
    place.succeed("simulate --profile p.json --rate 50 --duration 0.2 --policies greedy");
}

#[test]
fn classes_are_served_and_shown_apart() {
    let place = Place::with_example();
    let arrivals: String = (0..400)
        .map(|i| {
            let class = if i % 2 == 0 { "gold" } else { "free" };
            format!("{}.000,toy,4,3,{class}\n", i * 15)
        })
        .collect();
    place.write(
        "c.csv",
        format!("arrival_us,model,input_len,output_len,class\n{arrivals}"),
    );
    let simulate = "simulate --profile p.json --arrivals c.csv --policies adaptive,greedy";
    // Without classes their names only group the results.
    let out = place.succeed(&format!("{simulate} --json r.json")).out;
    assert!(out.contains("gold (adaptive)"), "{out}");
    let plain = place.json("r.json");
    let rows = plain["classes"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|r| (&r["class"], &r["policy"])).collect();
    assert_eq!(
        format!("{names:?}").matches("String").count(),
        8,
        "two classes under two policies: {names:?}"
    );
    assert!(rows.iter().all(|r| r["requests"] == 200 && r["shed"] == 0));
    // With them, gold is refused what it is thought not to get in time.
    let out = place.succeed(&format!(
        "{simulate} --class gold:sla=0.2,priority=1,late=refuse --class free:late=keep --json r.json"
    ));
    let told = place.json("r.json");
    let of = |class: &str, key: &str| {
        let rows = told["classes"].as_array().unwrap();
        let is = |r: &&serde_json::Value| r["class"] == class && r["policy"] == "adaptive";
        rows.iter().find(is).unwrap()[key].as_f64().unwrap()
    };
    let slas = [of("gold", "sla_ms"), of("free", "sla_ms")];
    assert_eq!(slas, [0.2, 100.0]);
    assert!(told["classes"][0].get("launches").is_none());
    assert!(of("gold", "shed") > 0.0, "{}", out.out);
    assert!(of("gold", "p99_ms") <= 0.25, "{}", out.out);
    assert_eq!(of("free", "shed"), 0.0);
    // Those that nobody names are told, and nothing else is.
    assert_eq!(out.err, "");
    let done = place.run(&format!(
        "{simulate} --class gold --class free --class lead:sla=5 --class default"
    ));
    let told = ["lead", "default"]
        .map(|name| format!("lazybatch: --class {name}: c.csv has no arrival of it\n"));
    assert_eq!((done.status, done.err), (Some(0), told.concat()));
    // Unknown names and bad classes are told.
    let done = place.run(&format!("{simulate} --class gold"));
    assert_ne!(done.status, Some(0));
    assert!(
        done.err.contains("line 3, column class") && done.err.contains("one of default, gold"),
        "{}",
        done.err
    );
    let done = place.run(&format!("{simulate} --class gold:late=never"));
    assert_eq!(done.status, Some(2));
    assert!(
        done.err.contains("one of keep, demote, shed, refuse"),
        "{}",
        done.err
    );
}
