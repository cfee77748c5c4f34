//! `replay`: a journal passes as it was written, and a changed one is refused with its line.

use crate::common::Place;

fn journal(policy: &str) -> (Place, Vec<String>) {
    let place = Place::with_example();
    place.succeed(&format!(
        "simulate --profile p.json --arrivals a.csv --policies {policy} --journal j"
    ));
    let file = format!("j.{}.jsonl", policy.replace([':', '/'], "-"));
    let lines = place.read(&file).lines().map(String::from).collect();
    (place, lines)
}

fn replay(place: &Place, lines: &[String]) -> crate::common::Done {
    place.write("t.jsonl", lines.join("\n") + "\n");
    place.run("replay t.jsonl")
}

#[test]
fn what_was_written_replays() {
    for policy in lazybatch_engine::policy::examples() {
        let (place, lines) = journal(policy);
        let done = replay(&place, &lines);
        assert_eq!(done.status, Some(0), "{policy}: {}", done.err);
        assert!(done.out.starts_with(&format!("{policy}: ")), "{}", done.out);
        assert!(done.out.contains("4 requests ended"), "{}", done.out);
        assert!(done.out.ends_with("no rule broken\n"), "{}", done.out);
    }
    let (place, _) = journal("lazy");
    let done = place.succeed("replay j.lazy.jsonl --timeline");
    assert!(done.out.lines().count() > 5, "{}", done.out);
}

#[test]
fn what_was_replayed_is_told_as_json() {
    let (place, mut lines) = journal("lazy");
    let done = place.succeed("replay j.lazy.jsonl --json r.json");
    let json: serde_json::Value = serde_json::from_str(&place.read("r.json")).unwrap();
    assert_eq!(json["format"], "lazybatch-replay/1");
    assert_eq!(json["policy"], "lazy");
    assert_eq!(json["journal"], "j.lazy.jsonl");
    assert_eq!(
        [&json["requests_ended"], &json["has_end"]],
        [&serde_json::json!(4), &serde_json::json!(true)]
    );
    let told = format!("{} events, {} launches,", json["events"], json["launches"]);
    assert!(done.out.contains(&told), "{told}: {}", done.out);
    // A journal that is not as the core decides leaves what was there.
    let at = lines.iter().position(|l| l.contains("[2,2,0,false]"));
    let line = &mut lines[at.unwrap()];
    *line = line.replace("[2,2,0,false]", "[3,2,0,false]");
    place.write("t.jsonl", lines.join("\n") + "\n");
    assert_eq!(place.run("replay t.jsonl --json r.json").status, Some(2));
    let kept: serde_json::Value = serde_json::from_str(&place.read("r.json")).unwrap();
    assert_eq!(kept, json);
    let clash = "expected a file of its own, got j.lazy.jsonl, which JOURNAL reads";
    place.refuse(
        "replay j.lazy.jsonl --json j.lazy.jsonl",
        &["--json", clash],
    );
}

#[test]
fn a_changed_member_is_named_with_its_line() {
    let (place, mut lines) = journal("lazy");
    let at = lines
        .iter()
        .position(|l| l.contains("[2,2,0,false]"))
        .unwrap();
    lines[at] = lines[at].replace("[2,2,0,false]", "[3,2,0,false]");
    let done = replay(&place, &lines);
    assert_eq!(done.status, Some(2));
    let head = format!(
        "lazybatch: t.jsonl: journal line {}: expected {{\"launch\"",
        at + 1
    );
    assert!(done.err.starts_with(&head), "{}", done.err);
    assert!(done.err.contains("[2,2,0,false]") && done.err.contains("[3,2,0,false]"));
}

#[test]
fn swapped_lines_are_refused() {
    for policy in ["greedy", "lazy"] {
        let (place, lines) = journal(policy);
        // Two arrivals at one instant are as good in the other order.
        let tied = |i: usize| {
            lines[i..i + 2]
                .iter()
                .all(|l| l.contains("{\"at\":5500,\"event\":{\"arrive\""))
        };
        for i in (1..lines.len() - 1).filter(|&i| !tied(i)) {
            let mut swapped = lines.clone();
            swapped.swap(i, i + 1);
            let done = replay(&place, &swapped);
            assert_eq!(
                done.status,
                Some(2),
                "{policy}, line {}: {}",
                i + 1,
                done.out
            );
            assert!(done.err.contains("journal line "), "{}", done.err);
        }
    }
}

#[test]
fn missing_and_repeated_lines_are_refused() {
    for policy in ["greedy", "lazy"] {
        let (place, lines) = journal(policy);
        // Journals of before have no end record; it is told that they may be cut.
        let (end, before) = lines.split_last().unwrap();
        assert_eq!(*end, format!("{{\"end\":{{\"lines\":{}}}}}", before.len()));
        let done = replay(&place, before);
        assert_eq!(done.status, Some(0), "{}", done.err);
        let told = "no rule broken; no end record: may be cut\n";
        assert!(done.out.ends_with(told), "{}", done.out);
        for i in 0..lines.len() {
            let mut without = lines.clone();
            without.remove(i);
            if i + 1 == lines.len() {
                without.push(end.replace("lines\":", "lines\":1"));
            }
            let done = replay(&place, &without);
            assert_eq!(done.status, Some(2), "without line {}: {}", i + 1, done.err);
            assert!(done.err.contains("journal line "), "{}", done.err);
            let mut twice = lines.clone();
            twice.insert(i, lines[i].clone());
            let done = replay(&place, &twice);
            assert_eq!(done.status, Some(2), "line {} twice: {}", i + 1, done.err);
        }
    }
}

#[test]
fn a_truncated_journal_is_refused() {
    let (place, lines) = journal("lazy");
    // The first three requests overlap: before the last of them ends, no cut is a whole run.
    let quiet = lines
        .iter()
        .position(|l| l.contains("\"arrival\":300000"))
        .unwrap();
    for end in (1..lines.len()).filter(|&end| end != quiet) {
        // But for the end record: that run is whole.
        if end + 1 == lines.len() {
            continue;
        }
        let done = replay(&place, &lines[..end]);
        assert_eq!(done.status, Some(2), "{end} lines: {}", done.out);
        let expected = format!("t.jsonl: journal line {}: expected ", end + 1);
        assert!(done.err.contains(&expected), "{}", done.err);
    }
    // That cut is told, as others that leave no request open would be.
    let done = replay(&place, &lines[..quiet]);
    assert_eq!(done.status, Some(0), "{}", done.err);
    assert!(done.out.contains("3 requests ended"), "{}", done.out);
    assert!(
        done.out.contains("no end record: may be cut"),
        "{}",
        done.out
    );
    let whole = lines[..lines.len() - 1].join("\n");
    place.write("t.jsonl", &whole[..whole.len() - 20]);
    let line = format!("journal line {}: expected a JSON line", lines.len() - 1);
    place.refuse("replay t.jsonl", &[&line]);
}

#[test]
fn no_damage_makes_it_panic() {
    let (place, lines) = journal("lazy");
    let digits = |l: &str| l.bytes().filter(u8::is_ascii_digit).count();
    for i in 0..lines.len() {
        // Every fifth digit, changed to another one.
        for nth in (0..digits(&lines[i])).step_by(5) {
            let mut seen = 0;
            let change = |c: char| {
                seen += usize::from(c.is_ascii_digit());
                let hit = c.is_ascii_digit() && seen == nth + 1;
                if hit {
                    if c == '9' { '1' } else { '9' }
                } else {
                    c
                }
            };
            let mut damaged = lines.clone();
            damaged[i] = lines[i].chars().map(change).collect();
            let done = replay(&place, &damaged);
            let fine = matches!(done.status, Some(0 | 2));
            assert!(fine, "line {}: {}\n{}", i + 1, damaged[i], done.err);
        }
    }
}

#[test]
fn what_is_no_journal_is_refused() {
    let place = Place::with_example();
    place.refuse(
        "replay none.jsonl",
        &["none.jsonl: expected a journal, got No such file"],
    );
    place.write("t.jsonl", "");
    place.refuse(
        "replay t.jsonl",
        &["t.jsonl: journal line 1: expected a lazybatch-journal/1 header"],
    );
    place.refuse(
        "replay p.json",
        &["p.json: journal line 1: expected a lazybatch-journal/1 header"],
    );
    place.write("t.jsonl", [0xff, 0xfe, 0x00]);
    place.refuse(
        "replay t.jsonl",
        &["header, got bytes that are no UTF-8 text"],
    );
    place.write("t.jsonl", [0x1f, 0x8b, 0x08, 0x00, 0xff, b'\n']);
    for timeline in ["", " --timeline"] {
        place.refuse(
            &format!("replay t.jsonl{timeline}"),
            &["t.jsonl: journal line 1", "a file that gzip has packed"],
        );
    }
    place.write("t.jsonl", "{\"format\": \"lazybatch-results/1\"}\n");
    let got = "header, got one of format \"lazybatch-results/1\"";
    place.refuse("replay t.jsonl", &[got]);
    let (place, mut lines) = journal("lazy");
    lines[0] = lines[0].replace("journal/1", "journal/9");
    replay_refused(&place, &lines, "format \"lazybatch-journal/9\"");
    let (place, mut lines) = journal("lazy");
    let start = lines[0].find("\"classes\":[").unwrap();
    let end = start + lines[0][start..].find(']').unwrap() + 1;
    lines[0].replace_range(start..end, "\"classes\":[]");
    replay_refused(&place, &lines, "expected at least one class");
    let (place, mut lines) = journal("lazy");
    lines[0] = lines[0].replace("\"policy\":\"lazy\"", "\"policy\":\"lazier\"");
    replay_refused(&place, &lines, "policy \"lazier\"");
}

fn replay_refused(place: &Place, lines: &[String], part: &str) {
    let done = replay(place, lines);
    assert_eq!(done.status, Some(2));
    assert!(
        done.err.contains("journal line 1") && done.err.contains(part),
        "{}",
        done.err
    );
}

#[test]
fn decisions_are_explained_with_what_else_was_possible() {
    let place = Place::with_example();
    place.succeed(
        "simulate --profile p.json --rate 9000 --duration 0.15 --policies adaptive,lazy --explain e",
    );
    for policy in ["adaptive", "lazy"] {
        let lines = place.read(&format!("e.{policy}.jsonl"));
        let lines: Vec<serde_json::Value> = lines
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let decisions = || lines.iter().filter(|l| l.get("chosen").is_some());
        assert!(decisions().count() > 100, "{policy}: {}", lines.len());
        let mut choices = 0;
        for decision in decisions() {
            let chosen = decision["chosen"].as_str().unwrap();
            let candidates = decision["candidates"].as_array().unwrap();
            assert!(
                candidates
                    .iter()
                    .all(|c| c["predicted_us"].as_f64().unwrap() > 0.0)
            );
            choices += usize::from(candidates.len() > 1);
            if chosen.starts_with("launch") {
                assert!(candidates.iter().any(|c| c["what"] == chosen), "{decision}");
            }
        }
        assert!(choices > 10, "{policy}: {choices}");
        if policy == "adaptive" {
            assert!(decisions().all(|d| d["because"] != ""));
            let plans = lines.iter().filter(|l| l.get("plan").is_some());
            let rules: Vec<_> = plans
                .map(|p| p["plan"]["rules"].as_array().unwrap())
                .collect();
            assert!(!rules.is_empty(), "no plan in {} lines", lines.len());
            assert!(rules[0].len() > 3 && rules[0][0]["cost_us"].as_f64().unwrap() > 0.0);
        }
    }
    // Explaining changes nothing.
    let plain = "simulate --profile p.json --rate 9000 --duration 0.15 --policies adaptive --json";
    place.succeed(&format!("{plain} a.json"));
    place.succeed(&format!("{plain} b.json --explain e"));
    assert_eq!(place.read("a.json"), place.read("b.json"));
}
