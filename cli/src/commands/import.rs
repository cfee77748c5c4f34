//! `lazybatch import`.

use std::path::Path;

use anyhow::Context;
use lazybatch_graph::{Manifest, Program, folder, manifest, optimize};
use lazybatch_kernels::import::{Limits, Options, TOLERANCE, import};
use lazybatch_workloads::text::Text;

use crate::args::ImportArgs;
use crate::failure::BadInput;
use crate::output::{self, Files, Growing};
use crate::progress;

/// Runs the command.
pub fn run(args: &ImportArgs) -> anyhow::Result<()> {
    check_apart(&args.file, &args.out)?;
    if let Some(json) = &args.json {
        check_outside(json, &args.out)?;
    }
    let mut files = Files::default();
    files.reads("FILE", Some(&args.file));
    files.writes("--json", args.json.as_deref()).check()?;
    folder::check_target(&args.out).context("--out")?;
    output::try_folder("--out", &args.out)?;
    let is_name = |name: &String| {
        !name.is_empty() && !name.contains('/') && !name.chars().any(char::is_control)
    };
    if let Some(name) = args.name.as_ref().filter(|name| !is_name(name)) {
        let expected = "--name: expected a name without / and control characters";
        return Err(BadInput(format!("{expected}, got {name:?}")).into());
    }
    if manifest::is_manifest(&args.file) {
        return published(args);
    }
    let options = Options {
        name: args.name.clone(),
        batch: args.batch_axis.clone(),
        sequence: args.sequence_axis.clone(),
        max_len: args.max_len,
        masks: args.mask.clone(),
        fixed: args.set.clone(),
        sizes: args.size.clone(),
        carried: args.carry.clone(),
        limits: Limits::default().with(&args.limit),
    };
    let bar = progress::bar(2, "import");
    let program = import(&args.file, &options)?;
    bar.inc(1);
    save(&program, args)?;
    bar.finish_and_clear();
    done(args, &program, Some(TOLERANCE))
}

/// Whether something that is there lies in a folder. What is not there yet holds nothing.
fn is_within(path: &Path, folder: &Path) -> bool {
    let (path, folder) = (path.canonicalize(), folder.canonicalize());
    matches!((path, folder), (Ok(path), Ok(folder)) if path.starts_with(&folder))
}

/// Refuses an input within the folder that is to be replaced as a whole.
fn check_apart(file: &Path, out: &Path) -> Result<(), BadInput> {
    if !is_within(file, out) {
        return Ok(());
    }
    let (expected, got) = ("a folder that the input does not lie in", out.display());
    Err(BadInput(format!("--out: expected {expected}, got {got}")))
}

/// Refuses a result in the folder of the model, where it would be a file that is none of the model's.
fn check_outside(json: &Path, out: &Path) -> Result<(), BadInput> {
    let folder = json.parent().filter(|p| !p.as_os_str().is_empty());
    let is_inside = json.starts_with(out) || is_within(folder.unwrap_or(Path::new(".")), out);
    if !is_inside {
        return Ok(());
    }
    let (expected, got) = ("a file outside the folder of --out", json.display());
    Err(BadInput(format!("--json: expected {expected}, got {got}")))
}

/// Imports published weights by their manifest, with the tokenizer.
fn published(args: &ImportArgs) -> anyhow::Result<()> {
    let of_graphs = [
        ("--batch-axis", args.batch_axis.is_empty()),
        ("--sequence-axis", args.sequence_axis.is_empty()),
        ("--max-len", args.max_len.is_none()),
        ("--mask", args.mask.is_empty()),
        ("--size", args.size.is_empty()),
        ("--set", args.set.is_empty()),
        ("--carry", args.carry.is_empty()),
        ("--limit", args.limit.is_empty()),
    ];
    if let Some((option, _)) = of_graphs.iter().find(|(_, absent)| !absent) {
        let got = args.file.display();
        return Err(BadInput(format!("{option}: expected an ONNX model, got {got}")).into());
    }
    let bar = progress::bar(2, "import");
    let manifest = Manifest::open(&args.file)?;
    let mut program = optimize(manifest.program()?)?;
    if let Some(name) = &args.name {
        program.name.clone_from(name);
    }
    let tokenizer = manifest.tokenizer();
    // A tokenizer that cannot be read is better refused now than when the first text comes.
    if let Some(folder) = tokenizer.as_ref().and_then(|path| path.parent()) {
        Text::of(&program, folder)?;
    }
    bar.inc(1);
    save(&program, args)?;
    if let Some(from) = &tokenizer {
        let to = args.out.join(from.file_name().unwrap_or_default());
        std::fs::copy(from, &to).with_context(|| to.display().to_string())?;
    }
    bar.finish_and_clear();
    done(args, &program, None)
}

/// Writes the folder. What of it cannot be written is no fault of the input.
fn save(program: &Program, args: &ImportArgs) -> anyhow::Result<()> {
    folder::save(program, &args.out).map_err(|e| match e {
        lazybatch_graph::Error::Folder { .. } => anyhow::anyhow!("--out: {e}"),
        other => anyhow::Error::from(other).context("--out"),
    })
}

/// Tells what was imported, and how far outputs may differ from those of the graph that they were
/// compared with, if they were.
fn done(args: &ImportArgs, program: &Program, agrees: Option<f64>) -> anyhow::Result<()> {
    let within = agrees.map(|most| format!("; outputs agree with the graph within {most:e}"));
    output::line(format_args!(
        "{}: {}, {} nodes in {} blocks, {} parameters{}",
        args.out.display(),
        program.name,
        program.nodes.len(),
        program.blocks.len(),
        program.num_parameters(),
        within.unwrap_or_default(),
    ))?;
    for note in program.notes() {
        output::line(format_args!("note: {note}"))?;
    }
    let Some(path) = &args.json else {
        return Ok(());
    };
    let notes: Vec<String> = program.notes().map(|note| note.to_string()).collect();
    let json = serde_json::json!({
        "format": "lazybatch-import/1",
        "out": args.out.to_string_lossy(),
        "model": program.name,
        "nodes": program.nodes.len(),
        "blocks": program.blocks.len(),
        "parameters": program.num_parameters(),
        "agrees_within": agrees,
        "notes": notes,
    });
    Growing::new("--json", path).whole(&format!("{json:#}\n"))
}
