//! `lazybatch inspect`.

use std::fmt::Write as _;
use std::path::Path;

use lazybatch_graph::{Program, Segments, dump};
use lazybatch_kernels::cpu::ProgramMemory;
use lazybatch_kernels::memory::{Linear, bytes};

use crate::args::InspectArgs;
use crate::failure::BadInput;
use crate::models::{self, Model};
use crate::output;

/// Runs the command.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let model = Model::load(&args.model)?;
    let (segments, issue_us) = match &args.profile {
        Some(path) => of_profile(path, &args.model, &model)?,
        None => (Segments::per_node(&model.program), 0.0),
    };
    let mut text = dump(&model.program, Some(&segments));
    for note in model.program.notes() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "note: {note}");
    }
    if issue_us > 0.0 {
        text += &format!("issuing a launch takes {issue_us:.1} us\n");
    }
    output::text(text + &memory(&model.program))
}

/// The segments of a profile, and what issuing a launch takes, if it says so.
fn of_profile(path: &Path, name: &str, model: &Model) -> anyhow::Result<(Segments, f64)> {
    let profile = models::profile(path, Some(name))?;
    let wrong = |expected: String, got: String| {
        BadInput(format!(
            "{}: expected {expected}, got {got}",
            path.display()
        ))
    };
    let Some(of_model) = profile.model(&model.name) else {
        let names: Vec<_> = profile.models.iter().map(|m| m.name.as_str()).collect();
        let expected = format!("the model {}", model.name);
        return Err(wrong(expected, names.join(", ")).into());
    };
    let runs = of_model.program_segments();
    let blocks = runs.iter().map(|block| {
        let run = |r: &std::ops::Range<u32>| r.start as usize..r.end as usize;
        block.iter().map(run).collect()
    });
    let segments = Segments::of(&model.program, blocks.collect());
    let segments = segments.ok_or_else(|| {
        let lens: Vec<_> = model.program.blocks.iter().map(|b| b.nodes.len()).collect();
        let ends: Vec<_> = runs.iter().map(|b| b.last().map_or(0, |r| r.end)).collect();
        wrong(
            format!("entries that cover {lens:?} nodes by block"),
            format!("{ends:?}"),
        )
    })?;
    Ok((segments, profile.issue_us))
}

/// What requests hold on the CPU device.
fn memory(program: &Program) -> String {
    let memory = ProgramMemory::of(program);
    let mut text = String::from("memory of the cpu device\n");
    for block in &memory.blocks {
        let (name, arena) = (&block.name, linear(block.arena));
        let separate = linear(block.separate);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  block {name}: values {arena}; {separate} with a place each"
        );
    }
    let mut request = |what: &str, len: usize| {
        let _ = writeln!(
            text,
            "  request{what} holds up to {}",
            memory.request(len, 1)
        );
    };
    match memory.longest() {
        None => request("", 0),
        Some(longest) => {
            for len in [1, longest / 2, longest] {
                request(&format!(" of {len}"), len);
            }
        }
    }
    text
}

fn linear(of: Linear) -> String {
    let parts = [(of.per_row, "row"), (of.per_sample, "sample")];
    let parts = parts.into_iter().filter(|(num, _)| *num > 0);
    let parts: Vec<_> = parts
        .map(|(num, unit)| format!("{}/{unit}", bytes(num)))
        .collect();
    if parts.is_empty() {
        "none".into()
    } else {
        parts.join(" + ")
    }
}
