//! Our kernels beside another runtime's, in one run.
//!
//! Both sides compute the same row from the same weights and inputs, on as many threads, and their
//! outputs are compared first. Then they take turns ([`turns`]). Who goes first changes from
//! repetition to repetition. The ratio of a repetition is the peer's median over ours, so noise that
//! both suffer cancels.
//!
//! The peer is timed in its own process, call by call. What its smallest possible model costs is
//! measured too and given beside every row, with the ratio that is left without it.

mod nodes;
mod options;
mod rows;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use lazybatch_benches::peer::{Built, Peer};
use lazybatch_benches::record::{Recorder, merge, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_benches::turns::{self, MIN_CALLS, TURN_NS};
use lazybatch_kernels::cpu::level::Level;
use serde_json::{Value, json};

use super::fetched;
pub use options::Options;
use rows::{Named, Row};

/// The scripts of the peer, as they were when this was compiled; the first one is run.
const SCRIPTS: [(&str, &str); 4] = [
    (
        "onnxruntime_peer.py",
        include_str!("../../peers/onnxruntime_peer.py"),
    ),
    ("graph.py", include_str!("../../peers/graph.py")),
    ("layers.py", include_str!("../../peers/layers.py")),
    ("models.py", include_str!("../../peers/models.py")),
];
/// Largest difference of the outputs, in parts of the largest element.
const TOLERANCE: f32 = 1e-3;

/// Runs the comparison.
pub fn run(options: &Options) -> anyhow::Result<()> {
    for row in &options.rows {
        if let Some(model) = row.model {
            fetched::check(&options.models, model).context(row.family)?;
        }
    }
    if let Some(lines) = options.nodes {
        return each_node(options, lines);
    }
    let recorder = Recorder::new(&options.folder, "peers", &options.command)?;
    let work = tempfile::tempdir()?;
    for (name, script) in SCRIPTS {
        std::fs::write(work.path().join(name), script)?;
    }
    let script = work.path().join(SCRIPTS[0].0);
    let mut peer = Peer::start(Command::new(&options.python).arg(&script))?;
    let nothing = json!({ "row": "nothing", "threads": options.threads, "tensors": [] });
    let nothing = peer.build(&nothing)?;
    for row in &options.rows {
        compare(options, row, &mut peer, nothing, work.path(), &recorder)
            .with_context(|| row.figures().to_string())?;
    }
    Ok(())
}

/// Our side alone, node by node.
fn each_node(options: &Options, lines: nodes::Lines) -> anyhow::Result<()> {
    let recorder = Recorder::new(&options.folder, "nodes", &options.command)?;
    let setup = options.setup();
    for row in &options.rows {
        let mut own = row.own(&setup)?;
        if let Some(batch) = own.batch() {
            let settings = (options.threads, options.repeats);
            nodes::record(&row.figures(), batch, lines, settings, &recorder)
                .with_context(|| row.figures().to_string())?;
        }
    }
    Ok(())
}

/// Medians of one repetition, in nanoseconds.
struct Turns {
    own: f64,
    peer: f64,
    call: f64,
}

fn compare(
    options: &Options,
    row: &Row,
    peer: &mut Peer,
    nothing: Built,
    work: &Path,
    recorder: &Recorder,
) -> anyhow::Result<()> {
    let mut own = row.own(&options.setup())?;
    let file = work.join("row.bin");
    let mut asked = row.figures();
    merge(&mut asked, std::mem::take(&mut own.told));
    asked["threads"] = json!(options.threads);
    asked["file"] = json!(file.display().to_string());
    asked["tensors"] = write_tensors(&own.tensors, &file)?;
    let built = peer.build(&asked)?;
    let theirs = peer.output(built, &work.join("output.bin"))?;
    let difference = difference(&own.output()?, &theirs)?;
    own.tensors.clear();

    let (mut taken, mut peaks) = (Vec::new(), Vec::new());
    for repeat in 0..options.repeats {
        let mut turn = Turns {
            own: 0.0,
            peer: 0.0,
            call: 0.0,
        };
        for side in [repeat % 2, (repeat + 1) % 2] {
            // Ours, then theirs: whoever had the last turn.
            turns::rest();
            peer.rest()?;
            if side == 0 {
                peaks.extend(own.peak_flops());
                turn.own = turns::turn(|| own.call_ns())?;
            } else {
                turn.call = peer_turn(peer, nothing, TURN_NS / 10.0)?;
                turn.peer = peer_turn(peer, built, TURN_NS)?;
            }
        }
        taken.push(turn);
    }
    peer.drop_model(built)?;

    let spread = |f: &dyn Fn(&Turns) -> f64| Spread::of(taken.iter().map(f).collect());
    let own_ns = spread(&|t| t.own).median();
    let mut figures = row.figures();
    let fields = json!({
        "peer": peer.name(),
        "threads": options.threads,
        "simd": Level::detect().name(),
        "own_ns": rounded(own_ns),
        "peer_ns": rounded(spread(&|t| t.peer).median()),
        "peer_call_ns": rounded(spread(&|t| t.call).median()),
        "ratio_without_call": rounded(spread(&|t| (t.peer - t.call) / t.own).median()),
        "difference": rounded(f64::from(difference)),
    });
    merge(&mut figures, std::mem::take(&mut own.facts));
    merge(&mut figures, fields);
    if let (Some(flops), false) = (row.flops, peaks.is_empty()) {
        let peak = Spread::of(peaks).median();
        figures["gflops"] = rounded(flops / own_ns);
        figures["share_of_peak"] = rounded(flops / own_ns / peak);
    }
    recorder.line(figures, "ratio", &spread(&|t| t.peer / t.own))
}

/// Writes tensors one after another; returns where each one is.
fn write_tensors(tensors: &[Named], file: &Path) -> anyhow::Result<Value> {
    let (mut bytes, mut index, mut offset) = (Vec::new(), Vec::new(), 0);
    for t in tensors {
        bytes.extend(t.data.iter().flat_map(|x| x.to_le_bytes()));
        index.push(json!({ "name": t.name, "dims": t.dims, "offset": offset }));
        offset += t.data.len();
    }
    std::fs::write(file, bytes).with_context(|| file.display().to_string())?;
    Ok(Value::Array(index))
}

/// The largest difference in parts of the peer's largest element.
///
/// # Errors
/// Outputs of different sizes, or that differ by more than [`TOLERANCE`].
fn difference(own: &[f32], theirs: &[f32]) -> anyhow::Result<f32> {
    ensure!(
        own.len() == theirs.len(),
        "expected outputs of one size, got {} elements here and {} there",
        own.len(),
        theirs.len()
    );
    let largest = theirs.iter().fold(f32::MIN_POSITIVE, |a, b| a.max(b.abs()));
    let mut worst = 0.0f32;
    for (i, (a, b)) in own.iter().zip(theirs).enumerate() {
        let part = (a - b).abs() / largest;
        ensure!(
            part <= TOLERANCE,
            "element {i}: expected the same work on both sides, got {a} here and {b} there"
        );
        worst = worst.max(part);
    }
    Ok(worst)
}

fn peer_turn(peer: &mut Peer, built: Built, budget_ns: f64) -> anyhow::Result<f64> {
    let first = peer.run(built, 2)?[1];
    let calls = (budget_ns / first).ceil().clamp(MIN_CALLS as f64, 10_000.0);
    Ok(Spread::of(peer.run(built, calls as usize)?).median())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_must_agree() {
        let theirs = [100.0, -2.0, 0.0];
        assert_eq!(difference(&[100.0, -2.0, 0.0], &theirs).unwrap(), 0.0);
        let small = difference(&[100.05, -2.0, 0.0], &theirs).unwrap();
        assert!((4e-4..6e-4).contains(&small));
        for other in [
            &[100.0, -2.0, 0.2][..],
            &[100.0, -2.0],
            &[f32::NAN, -2.0, 0.0],
        ] {
            assert!(difference(other, &theirs).is_err(), "{other:?}");
        }
    }

    #[test]
    fn tensors_lie_one_after_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("row.bin");
        let named = |name: &str, data: &[f32]| Named {
            name: name.into(),
            dims: vec![data.len()],
            data: data.to_vec(),
        };
        let tensors = [named("a", &[1.0, 2.0]), named("b", &[3.0])];
        let index = write_tensors(&tensors, &file).unwrap();
        assert_eq!(index[1], json!({ "name": "b", "dims": [1], "offset": 2 }));
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(bytes[8..], 3.0f32.to_le_bytes());
    }
}
