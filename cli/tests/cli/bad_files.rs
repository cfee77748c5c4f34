//! Malformed profiles, arrivals and traces end with status 2 and one message that names the file,
//! the place in it, what was expected and what came; so do files that cannot be read or written.

use crate::common::{PROFILE, Place};

#[test]
fn malformed_profiles_are_refused_with_their_place() {
    let place = Place::with_example();
    let change = |from: &str, to: &str| {
        assert!(PROFILE.contains(from), "{from}");
        PROFILE.replacen(from, to, 1)
    };
    let cases = [
        (
            PROFILE[..300].to_string(),
            vec!["line 5 column", "lazybatch-profile/1", "EOF"],
        ),
        (String::new(), vec!["line 1 column 0", "EOF"]),
        (
            "[]".into(),
            vec!["line 1", "expected a lazybatch-profile/1 document"],
        ),
        (
            change("profile/1", "profile/2"),
            vec!["format: expected lazybatch-profile/1, got \"lazybatch-profile/2\""],
        ),
        (
            change("\"device\": \"npu-128x128-700mhz\",", ""),
            vec!["missing field `device`"],
        ),
        (
            change("\"repeat\": \"once\",", ""),
            vec!["missing field `repeat`"],
        ),
        (
            change("\"once\"", "\"twice\""),
            vec!["unknown variant `twice`", "line 4 column"],
        ),
        (
            change("\"max_batch\"", "\"max_bacth\""),
            vec!["unknown field `max_bacth`"],
        ),
        (
            change("\"members\"", "\"rows\""),
            vec![
                "blocks[1] (decoder).nodes[0] (ffn0).by",
                "\"once\" blocks only",
            ],
        ),
        (
            change("[24, 12.5]", "[1, 12.5]"),
            vec!["nodes[0] (qkv0).latency_us[1]: expected strictly increasing x, got 1"],
        ),
        (
            change("12.5", "-12.5"),
            vec!["latency_us[1]: expected microseconds >= 0", "got -12.5"],
        ),
        (change("12.5", "1e300"), vec!["latency_us[1]", "got 1e300"]),
        (
            change("[[1, 9.0], [64, 11.0]]", "[]"),
            vec!["latency_us: expected at least one point, got none"],
        ),
        (change("[1, 9.0]", "[1]"), vec!["line 7 column"]),
        (
            change("64", "0"),
            vec!["models[0] (toy).max_batch: expected 1 to 65536, got 0"],
        ),
        (
            change("64", "4294967295"),
            vec!["max_batch: expected 1 to 65536"],
        ),
        (
            change("100.0", "0"),
            vec!["models[0] (toy).sla_ms: expected 1e-6 to 1000000000.0, got 0.0"],
        ),
        (
            change("\"models\"", "\"dispatch_us\": 1e300, \"models\""),
            vec!["dispatch_us: expected microseconds", "got 1e300"],
        ),
        (
            change("\"models\"", "\"copy_gbps\": -1, \"models\""),
            vec!["copy_gbps: expected", "got -1"],
        ),
        (
            change("\"by\": \"members\"", "\"merge_bytes_per_member\": -1"),
            vec!["merge_bytes_per_member", "got -1"],
        ),
        (
            change("\"by\": \"members\"", "\"load_us\": -1"),
            vec!["load_us", "got -1"],
        ),
    ];
    for (text, parts) in cases {
        place.write("bad.json", &text);
        let mut parts: Vec<&str> = parts;
        parts.push("profile bad.json: ");
        place.refuse("simulate --profile bad.json --arrivals a.csv", &parts);
    }
    place.refuse(
        "compare --profile p.json",
        &["p.json: expected the model phonemes, got toy"],
    );
    place.write("other.json", PROFILE.replace("\"toy\"", "\"phonemes\""));
    let parts = [
        "other.json: model phonemes: segments of encoder: expected",
        "got [0..1]",
    ];
    place.refuse("compare --profile other.json", &parts);
}

#[test]
fn malformed_arrivals_are_refused_with_line_and_column() {
    let place = Place::with_example();
    let header = "arrival_us,model,input_len,output_len\n";
    for (text, part) in [
        (
            format!("{header}0,toy,1,1\n5,toy,twelve,1\n"),
            "line 3, column input_len: expected a whole number from 0 to 4294967295, got `twelve`",
        ),
        (
            format!("{header}5,toy,1,1\n4.999,toy,1,1\n"),
            "line 3, column arrival_us: expected arrivals in order, at or after 5.000, got `4.999`",
        ),
        (
            format!("{header}1.2345,toy,1,1\n"),
            "line 2, column arrival_us: expected microseconds from 0 to 18446744073709551.615 with at most three decimals, got `1.2345`",
        ),
        (
            format!("{header}-1,toy,1,1\n"),
            "line 2, column arrival_us: expected microseconds",
        ),
        (
            format!("{header}1,toy,-1,1\n"),
            "line 2, column input_len: expected a whole number",
        ),
        (
            format!("{header}1,toy,1\n"),
            "line 2: expected 4 fields, got 3",
        ),
        (
            "arrival_us,model,input_len\n1,toy,1\n".into(),
            "line 1: expected a column output_len",
        ),
        (
            format!("{},sla_ms\n", header.trim_end()),
            "line 1: expected columns among",
        ),
        (
            format!("{header}0,toy,1,1\n1,tox,1,1\n"),
            "line 3, column model: expected one of toy, got `tox`",
        ),
        (
            format!("{header}0,toy,3,4294967295\n"),
            "line 2, column output_len: expected at most 16777216 node executions a request, got \
             4294967296 by a length of 4294967295",
        ),
        (
            format!("{header}0,toy,3,1\n4611686018427387.905,toy,3,1\n"),
            "line 3, column arrival_us: expected an arrival by 4611686018427387.904",
        ),
        (header.into(), "expected arrivals, got none"),
        (
            String::new(),
            "line 1: expected the first line of a known format",
        ),
        (
            "when,what\n".into(),
            "line 1: expected the first line of a known format (arrivals, azure-llm, mooncake)",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n".into(),
            "line 2, column TIMESTAMP: expected a time such as",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1,-4\n".into(),
            "line 2, column GeneratedTokens: expected a whole number",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1,4294967295\n".into(),
            "line 2, column GeneratedTokens: expected at most 16777216 node executions a request",
        ),
        (
            "\n{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n".into(),
            "line 1: expected the first line of a known format",
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n\n\
             {\"timestamp\": 1, \"input_length\": 1, \"output_length\": 4294967295}\n"
                .into(),
            "line 3, column output_length: expected at most 16777216 node executions a request",
        ),
        (
            "TIMESTAMP,ContextTokens\n".into(),
            "line 1: expected a column GeneratedTokens",
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": \"x\"}\n".into(),
            "line 1, column output_length: expected a whole number",
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n{\"time".into(),
            "line 2: expected a JSON object",
        ),
    ] {
        place.write("bad.csv", &text);
        let run =
            "simulate --profile p.json --policies lazy --arrivals bad.csv --requests-csv r.csv";
        place.refuse(run, &["bad.csv: ", part]);
        assert!(
            !place.path("r.csv").exists(),
            "nothing is written for {text}"
        );
    }
    place.write("bad.csv", b"arrival_us,model\xff\n");
    place.refuse(
        "simulate --profile p.json --arrivals bad.csv",
        &["bad.csv: expected UTF-8 text"],
    );
    place.write("bad.csv.gz", "no gzip");
    assert_eq!(
        place
            .run("simulate --profile p.json --arrivals bad.csv.gz")
            .status,
        Some(2)
    );
    // `compare` finds the same faults before it measures anything.
    place.refuse(
        "compare --trace a.csv",
        &["a.csv: line 2, column model: expected phonemes, got `toy`"],
    );
    place.write(
        "t.csv",
        format!("{},samples\n0,phonemes,1,1,2\n", header.trim_end()),
    );
    place.refuse(
        "compare --trace t.csv",
        &["t.csv: line 2, column samples: expected 1, got `2`"],
    );
    place.write(
        "t.csv",
        format!(
            "{},sequence_id,class\n0,phonemes,1,1,,gold\n1,phonemes,1,1,7,base\n",
            header.trim_end()
        ),
    );
    let arguments = "--trace t.csv --class gold:sla=9 --class free --profile-out p.out";
    place.refuse(
        &format!("compare {arguments}"),
        &["t.csv: line 3, column class: expected one of default, gold, free, got `base`"],
    );
    let arguments = arguments.replace("--class free", "--class base");
    place.refuse(
        &format!("compare {arguments}"),
        &["t.csv: line 3, column sequence_id: expected none, as all requests are served apart, got `7`"],
    );
    place.write("t.csv", format!("{header}5,phonemes,1,1\n"));
    place.refuse(
        "compare --trace t.csv --trace-rate 5 --profile-out p.out",
        &["t.csv: expected at least two arrivals at different times, got 1 arrivals"],
    );
    for (rate, part) in [
        (
            "--rate 0.001 --duration 1",
            "got none at 0.001/s within 1 s",
        ),
        ("--rate 1e9 --duration 1e9", "expected at most 1e7 arrivals"),
    ] {
        place.refuse(&format!("compare {rate} --profile-out p.out"), &[part]);
    }
    assert!(!place.path("p.out").exists(), "nothing has been measured");
    place.write(
        "t.csv",
        format!("{},priority\n0,toy,1,1,first\n", header.trim_end()),
    );
    place.refuse(
        "simulate --profile p.json --arrivals t.csv",
        &["t.csv: line 2, column priority: expected a whole number from 0 to 18446744073709551615, got `first`"],
    );
    place.refuse(
        "compare --trace none.csv",
        &["none.csv: expected a file that can be read, got No such file"],
    );
    place.write("len.csv", "src_len,tgt_len,count\n1,1,0\n");
    let lengths = "simulate --profile p.json --rate 5 --lengths len.csv";
    place.refuse(lengths, &["len.csv", "at least one pair"]);
}

/// Puts `text` into a pipe `name` of the folder, which is read once.
#[cfg(target_os = "linux")]
fn pipe(place: &Place, name: &str, text: &str) -> std::thread::JoinHandle<std::io::Result<()>> {
    let (path, text) = (place.path(name), text.to_owned());
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("a system with mkfifo").success());
    std::thread::spawn(move || std::fs::write(path, text))
}

#[cfg(target_os = "linux")]
#[test]
fn pipes_are_read_once() {
    let place = Place::with_example();
    let text = "arrival_us,model,input_len,output_len\n0,other,1,1\n";
    let written = pipe(&place, "f", text);
    place.refuse(
        "simulate --profile p.json --policies greedy --arrivals f",
        &["f: arrival 0, model: expected one of toy, got `other`"],
    );
    written.join().unwrap().unwrap();
    place.succeed("simulate --profile p.json --arrivals a.csv --policies greedy --journal j");
    let written = pipe(&place, "t", &place.read("j.greedy.jsonl"));
    let timeline = place.succeed("replay t --timeline").out;
    written.join().unwrap().unwrap();
    assert_eq!(
        timeline,
        place.succeed("replay j.greedy.jsonl --timeline").out
    );
}

#[test]
fn files_that_cannot_be_read_or_written_are_named() {
    let place = Place::with_example();
    place.refuse(
        "simulate --profile none.json --rate 5",
        &["none.json", "No such file"],
    );
    place.refuse(
        "simulate --profile . --rate 5",
        &["profile .: ", "Is a directory"],
    );
    place.refuse(
        "simulate --profile p.json --arrivals none.csv",
        &["none.csv: expected a file that can be read, got No such file"],
    );
    place.write("kept.json", "kept");
    for option in ["--json", "--report", "--requests-csv", "--journal"] {
        let run = format!("--policies lazy {option} no/such/x");
        let part = format!("{option}: expected a file that can be written, got no/such/x");
        place.refuse(
            &format!("simulate --profile p.json --arrivals a.csv {run}"),
            &[&part],
        );
    }
    for option in [
        "--json",
        "--report",
        "--requests-csv",
        "--profile-out",
        "--arrivals-out",
        "--trace-out",
    ] {
        let part = format!("{option}: expected a file that can be written, got no/x");
        place.refuse(&format!("compare --policies lazy {option} no/x"), &[&part]);
    }
    place.refuse(
        "profile --model cnn-tiny --out .",
        &["--out: expected a file that can be written"],
    );
    // Trying a file changes nothing about it.
    place.refuse(
        "simulate --profile p.json --json kept.json --requests-csv new.csv --report no/x --rate 5",
        &["no/x"],
    );
    assert_eq!(place.read("kept.json"), "kept");
    assert!(!place.path("new.csv").exists());
}
