//! `lazybatch inspect`.

use std::fmt::Write as _;

use lazybatch_graph::{Program, Segments, dump};
use lazybatch_kernels::cpu::ProgramMemory;
use lazybatch_kernels::memory::{Linear, bytes};

use crate::args::InspectArgs;
use crate::models::Model;
use crate::output;

/// Runs the command.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let model = Model::load(&args.model)?;
    let segments = Segments::per_node(&model.program);
    let text = dump(&model.program, Some(&segments));
    output::text(text + &memory(&model.program))
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
