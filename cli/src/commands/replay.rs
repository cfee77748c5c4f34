//! `lazybatch replay`.

use std::fs::File;
use std::io::BufReader;

use anyhow::Context;
use lazybatch_engine::journal::{self, Header};
use lazybatch_engine::timeline::Timeline;

use crate::args::ReplayArgs;
use crate::failure::BadInput;
use crate::output;

/// Runs the command.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    replay(args).with_context(|| args.journal.display().to_string())
}

fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let no_journal = |e| BadInput(format!("expected a journal, got {e}"));
    let replayed = if args.timeline {
        // It is read twice, which a pipe cannot be.
        let text = std::fs::read(&args.journal).map_err(no_journal)?;
        let header = Header::read(&mut &text[..])?;
        let mut timeline = Timeline::new(&header.config()?);
        let replayed = journal::replay(&text[..], &mut timeline)?;
        output::text(timeline.into_text())?;
        replayed
    } else {
        let file = File::open(&args.journal).map_err(no_journal)?;
        journal::replay(BufReader::new(file), &mut ())?
    };
    let end = match replayed.has_end {
        true => "",
        false => "; no end record: may be cut",
    };
    output::line(format_args!(
        "{}: {} events, {} launches, {} requests ended; every action as recorded, no rule broken{end}",
        replayed.policy, replayed.events, replayed.launches, replayed.finished
    ))
}
