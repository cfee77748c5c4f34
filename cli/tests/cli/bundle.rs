//! The GPU bundle's script names policies and models of this program: all of them, or here is why
//! not.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use lazybatch_engine::policy;
use lazybatch_workloads::zoo;

/// Policies that the script leaves out: the rules that `adaptive` chooses among.
const PARTS_OF_ADAPTIVE: [&str; 5] = ["front", "join", "balance", "sharing", "iteration"];

/// Models that it leaves out: those for tests, and one whose weights take longer to make than all
/// others together.
fn is_left_out(model: &str) -> bool {
    model.ends_with("-tiny") || model == "dlrm-kaggle"
}

/// The last value of a variable in the script, which is that of a run on a GPU.
fn value(name: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/bundle/run.sh");
    let text = std::fs::read_to_string(script).unwrap();
    let assigned = format!(" {name}=");
    let at = text.rfind(&assigned).map(|at| at + assigned.len());
    let rest = &text[at.unwrap_or_else(|| panic!("no {name}"))..];
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap().to_owned(),
        None => rest.split_whitespace().next().unwrap().to_owned(),
    }
}

/// The first value, for variables that a dry run changes behind it.
fn first_value(name: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/bundle/run.sh");
    let text = std::fs::read_to_string(script).unwrap();
    let assigned = format!("    {name}=");
    let line = text.lines().find_map(|line| line.strip_prefix(&assigned));
    line.unwrap().to_owned()
}

#[test]
fn the_bundle_compares_all_policies() {
    let specs = format!("{},{}", first_value("named"), first_value("others"));
    let names: Vec<&str> = specs
        .split(',')
        .map(|s| policy::find(s).unwrap().name)
        .collect();
    for entry in policy::REGISTRY {
        let is_there = names.contains(&entry.name);
        let is_part = PARTS_OF_ADAPTIVE.contains(&entry.name);
        assert_eq!(is_there, !is_part, "{}: {specs}", entry.name);
    }
}

#[test]
fn the_bundle_profiles_all_models() {
    let (served, decoder, models) = (value("served"), value("decoder"), value("models"));
    let compared = format!("{served} {decoder}");
    let rest = models.strip_prefix("$served $decoder ").unwrap();
    let all: Vec<&str> = compared.split(' ').chain(rest.split(' ')).collect();
    for name in zoo::names() {
        assert_eq!(all.contains(&name), !is_left_out(name), "{name}: {all:?}");
    }
    let mut once = all.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), all.len(), "{all:?}");
    assert!(all.iter().all(|name| zoo::find(name).is_some()), "{all:?}");
}
