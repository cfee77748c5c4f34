//! Bad input ends with status 2 and one message that says what, where, what was expected and what
//! came; nothing panics.

use crate::common::{ARRIVALS, PROFILE, Place};

#[test]
fn usage_errors_end_with_status_2() {
    let place = Place::with_example();
    place.refuse("simulate", &["--profile"]);
    place.refuse("simulate --profile p.json", &["--rate"]);
    place.refuse(
        "simulate --profile p.json --rate 5 --no-such",
        &["--no-such"],
    );
    place.refuse(
        "simulate --profile p.json --arrivals a.csv --rate 5",
        &["cannot be used with"],
    );
    place.refuse(
        "simulate --profile p.json --rate 5 --segment 0",
        &["--segment", "'0'"],
    );
    place.refuse(
        "simulate --profile p.json --rate 5 --seed -1",
        &["--seed", "'-1'"],
    );
    place.refuse("compare --rate 5 --trace a.csv", &["cannot be used with"]);
    place.refuse("profile --model cnn-tiny", &["--out"]);
    place.refuse("nonsense", &["nonsense"]);
    assert_eq!(place.run("").status, Some(2));
    for help in [
        "", "compare", "simulate", "profile", "run", "inspect", "replay",
    ] {
        assert!(
            place
                .succeed(&format!("{help} --help"))
                .out
                .contains("Usage:"),
            "{help}"
        );
    }
}

#[test]
fn numbers_out_of_range_name_option_and_value() {
    let place = Place::with_example();
    let rated = "simulate --profile p.json --policies greedy";
    for (option, values) in [
        ("--rate", &["0", "-5", "NaN", "inf", "many"][..]),
        ("--duration", &["0", "-1", "NaN"]),
        ("--sla-ms", &["0", "-100", "NaN"]),
        ("--decide-us", &["-1", "NaN"]),
        ("--jitter", &["1", "-0.5", "NaN"]),
    ] {
        for value in values {
            let rate = if option == "--rate" { "" } else { "--rate 100" };
            let parts = [option, "expected", &format!("got {value}")];
            place.refuse(&format!("{rated} {rate} {option} {value}"), &parts);
        }
    }
    for (option, values) in [
        ("--max-batch", &["0", "-1", "many"][..]),
        ("--threads", &["0", "x"]),
        ("--weights", &["f64", "INT8"]),
        ("--products", &["cublas", "OWN"]),
        ("--depth", &["0", "3", "deep"]),
        ("--rate", &["0", "NaN"]),
        ("--duration", &["0"]),
        ("--requests", &["0", "many"]),
        ("--pool", &["0"]),
        ("--drain", &["0"]),
        ("--sla-ms", &["0"]),
    ] {
        for value in values {
            place.refuse(&format!("compare {option} {value}"), &[option, value]);
        }
    }
    place.refuse(
        "profile --model cnn-tiny --out x --max-batch 0",
        &["--max-batch", "got 0"],
    );
    place.refuse(
        &format!("{rated} --rate 0.001 --duration 1"),
        &["--rate: expected arrivals, got none at 0.001/s within 1 s"],
    );
    place.refuse(
        &format!("{rated} --rate 1e9 --duration 1e9"),
        &["--rate: expected at most"],
    );
}

#[test]
fn unknown_names_come_with_the_known_ones() {
    let place = Place::with_example();
    for policy in [
        "fifo",
        "graph",
        "graph:",
        "graph:x",
        "graph:-1",
        "graph:NaN",
        "greedy:3",
        ",",
    ] {
        let part = match policy.split(':').next() {
            Some("graph") => "expected graph:W (whole-graph batches",
            Some("greedy") => "expected greedy (whole-graph batches",
            _ => "expected one of serial, graph:W, greedy, lazy",
        };
        let parts = ["policy \"", part];
        place.refuse(
            &format!("simulate --profile p.json --rate 5 --policies {policy}"),
            &parts,
        );
        place.refuse(&format!("compare --policies lazy,{policy}"), &parts);
    }
    for command in ["compare", "run", "inspect", "profile --out x"] {
        let parts = ["--model: expected one of ", "phonemes", "got resnet51"];
        place.refuse(&format!("{command} --model resnet51"), &parts);
    }
    place.refuse(
        "simulate --profile p.json --rate 5 --model other",
        &["--model: expected one of toy, got other"],
    );
    for name in ["tpu", "cuda:", "cuda:x"] {
        let part = format!("--device: expected cpu, cuda, cuda:N or sim, got {name}");
        place.refuse(&format!("compare --device {name}"), &[&part]);
        let part = format!("got {name}");
        place.refuse(
            &format!("profile --model cnn-tiny --out x --device {name}"),
            &["--device: expected cpu, cuda, cuda:N, npu", &part],
        );
    }
    for command in ["compare", "inspect"] {
        place.refuse(
            &format!("{command} --profile tpu"),
            &[
                "--profile: expected a file, or one of npu, v100, ",
                "got tpu: No such file",
            ],
        );
    }
    place.refuse(
        "profile --model cnn-tiny --out x --device sim",
        &["--device: expected cpu, cuda, cuda:N, npu, v100", "got sim"],
    );
    place.refuse(
        "profile --model cnn-tiny --out x --device tpu",
        &["--device: expected cpu, cuda, cuda:N, npu, v100", "got tpu"],
    );
    place.refuse(
        "profile --model cnn-tiny --out x --device npu --max-batch 8",
        &["--max-batch: expected 64", "got 8"],
    );
    place.refuse(
        "profile --model cnn-tiny --out x --device npu --threads 2",
        &["--threads: expected none", "got 2"],
    );
    place.refuse(
        "profile --model cnn-tiny --out x --device npu --weights f16",
        &["--weights: expected none", "got f16"],
    );
    for command in [
        "compare",
        "run",
        "serve --models m",
        "profile --model cnn-tiny --out x",
    ] {
        place.refuse(
            &format!("{command} --products own"),
            &["--products: expected none for a device that is no GPU, got own"],
        );
    }
    place.refuse(
        "profile --model cnn-tiny --out x --device npu --products matrix",
        &["--products: expected none", "got matrix"],
    );
    for command in ["compare", "compare --device sim --profile p.json"] {
        place.refuse(
            &format!("{command} --depth 2"),
            &["--depth: expected 1 for a device that is no GPU, got 2"],
        );
    }
    for (options, expected, got) in [
        ("matrix", "f16 or bf16", "f32"),
        ("matrix --weights int8", "f16 or bf16", "int8"),
        ("cublaslt --weights int8", "f32, f16 or bf16", "int8"),
    ] {
        let products = options.split(' ').next().unwrap();
        place.refuse(
            &format!("compare --device cuda --products {options}"),
            &[&format!(
                "--products {products}: expected --weights {expected}, got {got}"
            )],
        );
    }
    place.refuse(
        "profile --model cnn-tiny --out x --device npu --weight-cache w",
        &["--weight-cache: expected none", "got w"],
    );
    place.refuse(
        "profile --model no-such --out x --device npu",
        &["model: expected one of resnet50", "got no-such"],
    );
    place.refuse(
        "simulate --profile tpu --rate 5 --model gnmt-tiny",
        &[
            "--profile: expected a file, or one of npu, v100, ",
            "got tpu: No such file",
        ],
    );
    place.refuse(
        "simulate --profile npu --rate 5",
        &["--model: expected a model, got none for --profile npu"],
    );
    place.refuse(
        "simulate --profile npu --rate 5 --model no-such",
        &["model: expected one of resnet50", "got no-such"],
    );
    place.refuse(
        "simulate --profile p.json --rate 5 --lengths fixed:4000000000:4000000000",
        &["--lengths: expected at most 16777216 node executions a request, got 4000000001 by"],
    );
    for lengths in ["translation", "fixed:1", "fixed:1:x", "fixed:-1:1"] {
        let parts = ["lengths: expected ", "fixed:IN:OUT", lengths];
        place.refuse(
            &format!("simulate --profile p.json --rate 5 --lengths {lengths}"),
            &parts,
        );
    }
}

#[test]
fn options_without_an_effect_are_refused() {
    let place = Place::new();
    place.refuse(
        "profile --model gnmt-tiny --out x --device npu --segment-us 5",
        &["--segment-us: expected none for a device that is computed, got 5"],
    );
    place.refuse(
        "run --input word --seed 3",
        &["cannot be used with", "--seed"],
    );
    place.refuse(
        "run --seed 5",
        &["--seed: expected none for a model that reads words, got 5"],
    );
    for (options, part) in [
        (
            "--repository-poll-secs 3",
            "--repository-poll-secs: expected --model-control-mode poll, got none",
        ),
        (
            "--metrics-open",
            "--metrics-open: expected --token-file, got none",
        ),
        (
            "--otlp-sample 0.5",
            "--otlp-sample: expected --otlp-endpoint, got none",
        ),
        ("--trace-mb 5", "--trace-mb: expected --trace-dir, got none"),
    ] {
        place.refuse(&format!("serve --models m {options}"), &[part]);
    }
    for (mode, got) in [("", "none"), ("--model-control-mode poll", "poll")] {
        let part = format!("--load-model: expected --model-control-mode explicit, got {got}");
        place.refuse(&format!("serve --models m --load-model a {mode}"), &[&part]);
    }
}

#[test]
fn help_lists_what_there_is() {
    use lazybatch_engine::policy;
    use lazybatch_workloads::{devices::DEVICES, traces::FORMATS};
    let place = Place::new();
    let help = |command: &str| {
        let text = place.succeed(&format!("{command} --help")).out;
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (simulate, compare) = (help("simulate"), help("compare"));
    for format in FORMATS {
        assert!(simulate.contains(format.about), "{simulate}");
        assert!(compare.contains(format.about), "{compare}");
    }
    let profile = help("profile");
    for device in DEVICES {
        let part = format!("{} ({})", device.name, device.about);
        assert!(simulate.contains(&part), "{simulate}");
        assert_eq!(profile.contains(&part), device.name != "cpu", "{profile}");
    }
    let rules = format!("({})", policy::base_rules().collect::<Vec<_>>().join(", "));
    assert!(help("generalise").contains(&rules));
    assert!(compare.contains("the input of --pool whose length is the nearest"));
}

#[test]
fn classes_are_told_apart_and_have_somebody_to_name_them() {
    let place = Place::with_example();
    let simulate = "simulate --profile p.json --policies greedy";
    for (arguments, part) in [
        (
            "--arrivals a.csv --class a --class b --class a:sla=5",
            "--class: expected each name once, got a twice",
        ),
        (
            "--rate 100 --class gold:sla=5",
            "--class: expected --arrivals, whose arrivals name classes, got none for gold",
        ),
        (
            "--arrivals a.csv --class a:sla=5,sla=6",
            "key: expected each key once",
        ),
    ] {
        place.refuse(&format!("{simulate} {arguments}"), &[part]);
    }
    place.refuse("compare --class gold", &["--class: expected --trace"]);
    // Those that name no class are of this one.
    place.succeed(&format!("{simulate} --rate 100 --class default:sla=5"));
}

#[test]
fn policies_may_be_apart() {
    let place = Place::with_example();
    let run = ["simulate", "--profile", "p.json", "--arrivals", "a.csv"];
    let done = place.run_args(&[&run[..], &["--policies", " greedy , graph:5 "]].concat());
    assert_eq!(done.status, Some(0), "{}", done.err);
    assert!(done.out.contains("\ngreedy ") && done.out.contains("\ngraph:5 "));
}

#[test]
fn inputs_of_one_request_are_checked() {
    let place = Place::new();
    let default = place.succeed("run");
    assert_eq!(default.out, place.succeed("run --input batching").out);
    place.write("file", "");
    place.refuse(
        "run --weight-cache file",
        &["--weight-cache: expected a folder, got file"],
    );
    for word in [
        "",
        "w0rd",
        "two words",
        "naïve",
        "abcdefghijklmnopqrstuvwxy",
    ] {
        let got = format!("got {word:?}");
        let parts = [
            "--input: expected a word of 1 to 24 letters a-z",
            got.as_str(),
        ];
        place.refuse_args(&["run", "--input", word], &parts);
    }
    let long = format!("{{\"source\": {:?}}}", vec![1; 41]);
    for (text, part) in [
        (
            "{\"source\": [1, [2]]}",
            "source: expected numbers in even nested lists, got a list beside a number",
        ),
        (
            "{\"source\": [[1], [2, 3]]}",
            "source: expected numbers in even nested lists, got lists of 1 and 2",
        ),
        (
            "{\"source\": [1, \"a\"]}",
            "source: expected numbers in even nested lists, got \"a\"",
        ),
        (
            "{\"source\": [[1, 2]]}",
            "input source: expected shape [len], got shape [1, 2]",
        ),
        (
            "{\"source\": 5}",
            "input source: expected shape [len], got shape []",
        ),
        ("{\"source\": []}", "input source: expected at least 1"),
        (
            "{\"source\": [1.5]}",
            "source: expected whole numbers of 32 bits, got 1.5",
        ),
        (
            "{\"source\": [3000000000]}",
            "source: expected whole numbers of 32 bits, got 3000000000.0",
        ),
        (
            "{\"source\": [50]}",
            "input source: expected ids in 0..50, got id 50",
        ),
        (
            "{\"source\": [-1]}",
            "input source: expected ids in 0..50, got id -1",
        ),
        (
            &long,
            "input source: expected a length of at most 40, got length 41",
        ),
        (
            "{\"sauce\": [1]}",
            "input: expected one of source, got sauce",
        ),
        ("{}", "source: expected a tensor, got nothing"),
        (
            "[1, 2]",
            "file: expected an object of tensors by input name",
        ),
        (
            "{\"source\": [1",
            "file: expected an object of tensors by input name, got EOF",
        ),
    ] {
        place.write("in.json", text);
        place.refuse(
            "run --model transformer-tiny --input in.json",
            &["in.json: ", part],
        );
    }
    place.refuse(
        "run --model transformer-tiny --input none.json",
        &["none.json: file: ", "No such file"],
    );
    place.write("in.json", "{\"image\": [[[1]]]}");
    let parts = ["input image: expected shape [samples, 3, 16, 16], got shape [1, 1, 1]"];
    place.refuse("run --model cnn-tiny --input in.json", &parts);
    place.write("in.json", "{\"image\": [1e300]}");
    place.refuse(
        "run --model cnn-tiny --input in.json",
        &["image: expected 32-bit floats, got 1e300"],
    );
    place.write("in.json", "{\"source\": [3, 4, 5]}");
    assert!(
        place
            .succeed("run --model transformer-tiny --input in.json")
            .out
            .starts_with("tokens i32[")
    );
    assert_eq!(
        place.succeed("run --input Hello").out,
        place.succeed("run --input hello").out
    );
}

#[test]
fn extreme_but_legal_numbers_do_not_overflow() {
    let place = Place::with_example();
    let all = "--policies serial,graph:1e9,greedy,lazy,oracle";
    let long = "arrival_us,model,input_len,output_len,sla_us\n0,toy,4294967295,2,18446744073709551.615\n\
                1,toy,4294967295,2,0\n4611686018427387.904,toy,1,1,\n";
    place.write("a.csv", long);
    place.succeed(&format!("simulate --profile p.json --arrivals a.csv {all}"));
    place.write(
        "p.json",
        PROFILE.replace("[1536, 310.0]", "[25, 999999999999]"),
    );
    place.succeed(&format!("simulate --profile p.json --arrivals a.csv {all}"));
    place.write(
        "p.json",
        PROFILE.replace("\"output_len_p90\": 35", "\"output_len_p90\": 4294967295"),
    );
    place.write("a.csv", ARRIVALS);
    place.succeed(&format!(
        "simulate --profile p.json --arrivals a.csv --sla-ms 1e9 --decide-us 1e9 {all}"
    ));
    place.refuse(
        "simulate --profile p.json --arrivals a.csv --policies graph:1e300",
        &["simulation of graph:1e300: expected an end within 2^63 ns"],
    );
}

#[test]
fn a_list_that_is_cut_within_a_policy_blames_the_policy() {
    let place = Place::with_example();
    let simulate = "simulate --profile p.json --rate 5 --policies";
    for (policies, told) in [
        (
            "lazy,triton:levels=2,default-level=9",
            "policy \"triton:levels=2,default-level=9\": expected one of the 2 levels in place of \
             \"default-level=9\"",
        ),
        (
            "triton:delay=1,delay=2,lazy",
            "policy \"triton:delay=1,delay=2\": expected each parameter once in place of \"delay=2\"",
        ),
        (
            "triton:delay=1,window=2",
            "expected one of preferred=N+N.., delay=MS, levels=N,",
        ),
        (
            "triton:levels=256",
            "expected levels=N of 0 to 255 in place of \"levels=256\"",
        ),
    ] {
        place.refuse(&format!("{simulate} {policies}"), &[told]);
    }
    // One policy is one however its numbers are written.
    place.succeed(&format!(
        "{simulate} graph:05,graph:5,lazy,graph:5.0 --json r.json"
    ));
    let told = place.json("r.json");
    let runs = told["runs"].as_array().unwrap().iter();
    let policies: Vec<_> = runs.map(|r| r["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["graph:05", "lazy"]);
}

#[test]
fn numbers_out_of_range_say_the_range() {
    let place = Place::with_example();
    let simulate = "simulate --profile p.json --rate 5";
    let seeds = "expected a whole number from 0 to 18446744073709551615, got -1";
    for (arguments, told) in [
        (format!("{simulate} --seed -1"), seeds),
        ("compare --seed -1".into(), seeds),
        ("sweep --grid paper-quick --seed -1".into(), seeds),
        ("run --model cnn-tiny --seed -1".into(), seeds),
        (
            "generalise --seed -1".into(),
            "expected a whole number from 0 to 18446744073709551614, got -1",
        ),
        (
            format!("{simulate} --segment 0"),
            "expected 1 to 4294967295 nodes, got 0",
        ),
        (
            format!("{simulate} --sla-ms 1e-9"),
            "expected a number of 1e-6 or more, at most 1e9, got 1e-9",
        ),
        (
            "serve --models m --host foo".into(),
            "expected an IP address, got foo",
        ),
        (
            "simulate --profile p.json --arrivals a.csv --class gold:sla=1e300".into(),
            "--class gold: sla: expected 1e-6 to 1e9 milliseconds, got more",
        ),
        (
            "simulate --profile p.json --arrivals a.csv --class gold:sla=1e-9".into(),
            "--class gold: sla: expected 1e-6 to 1e9 milliseconds, got less",
        ),
    ] {
        place.refuse(&arguments, &[told]);
    }
    let far = crate::common::ARRIVALS.replace("300,", "99999999999999999999,");
    place.write("far.csv", far);
    place.refuse(
        "simulate --profile p.json --arrivals far.csv",
        &["far.csv: line 5, column arrival_us: expected microseconds from 0 to 18446744073709551.615"],
    );
}

#[test]
fn what_a_terminal_would_obey_is_not_repeated() {
    let place = Place::with_example();
    place.write(
        "a.csv",
        crate::common::ARRIVALS.replace("300,toy", "300,\u{1b}[31mtoy\u{9b}0m"),
    );
    let arguments = "simulate --profile p.json --arrivals a.csv";
    place.refuse(arguments, &["`\\u{1b}[31mtoy\\u{9b}0m`"]);
    assert!(!place.run(arguments).err.contains('\u{1b}'));
}

#[test]
fn files_that_cannot_be_read_say_what_was_expected() {
    let place = Place::with_example();
    place.write(
        "cut.jsonl.gz",
        [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 3, 0x4b],
    );
    for (arguments, parts) in [
        (
            "simulate --profile p.json --arrivals cut.jsonl.gz",
            [
                "cut.jsonl.gz: expected a whole gzip file, as it begins like one, got ",
                "",
            ],
        ),
        (
            "simulate --profile p.json --arrivals .",
            [".: expected a file that can be read, got ", "irectory"],
        ),
        (
            "sweep --grid .",
            [".: expected a file that can be read, got ", "irectory"],
        ),
        (
            "import . --out m",
            [
                ".: file: content: expected an ONNX file, got a directory",
                "",
            ],
        ),
    ] {
        place.refuse(arguments, &parts);
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_lazybatch"))
        .args(["inspect", "--model", "transformer-tiny"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), err.as_str()), (Some(0), ""));
}
