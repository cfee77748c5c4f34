//! A small profile and grid for the tests of this module.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use super::cases::{Lab, Opened};
use super::grid::{Grid, Source};

/// Two models: a chain of two nodes that batches badly, and a loop that batches for free.
const PROFILE: &str = r#"{ "format": "lazybatch-profile/1", "device": "d", "models": [
  { "name": "chain", "max_batch": 4, "blocks": [ { "name": "main", "repeat": "once", "nodes": [
    { "name": "a", "latency_us": [[1, 10.0]] }, { "name": "b", "latency_us": [[1, 20.0], [4, 80.0]] } ] } ] },
  { "name": "loop", "max_batch": 8, "blocks": [
    { "name": "in", "repeat": "once", "nodes": [ { "name": "e", "latency_us": [[1, 50.0]] } ] },
    { "name": "out", "repeat": "until_stop", "nodes": [ { "name": "d", "latency_us": [[1, 40.0]] } ] } ] } ] }"#;

/// A grid over that profile; `extra` is added to its text.
pub fn grid(models: &str, extra: &str) -> (Grid, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.json");
    std::fs::write(&path, PROFILE).unwrap();
    let text = format!(
        "profile = 'p.json'\nmodels = [{models}]\nrates = [2000, 30000]\nslas_ms = [0.5, 2]\n\
         policies = ['serial', 'greedy', 'lazy', 'oracle']\nwindows = [0.2]\nseeds = 3\n\
         requests = 40\nseconds = 0.05\n{extra}"
    );
    let mut grid = Grid::parse("tiny", "tiny.toml", &text).unwrap();
    grid.source = Source::Profile(path);
    (grid, folder)
}

/// The chain's lab.
pub fn lab(extra: &str) -> Box<Lab> {
    let lengths = match extra.contains("lengths") {
        true => "",
        false => "lengths = 'fixed:0:0'\n",
    };
    let (grid, _folder) = grid("'chain'", &format!("{lengths}{extra}"));
    match Lab::open(&grid, &grid.settings[0], &grid.models[0], None).unwrap() {
        Opened::Lab(lab) => lab,
        Opened::Missing(what) => panic!("{what}"),
    }
}
