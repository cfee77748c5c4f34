//! `lazybatch replay`.

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
    let open = || {
        std::fs::File::open(&args.journal)
            .map(BufReader::new)
            .map_err(|e| BadInput(format!("expected a journal, got {e}")))
    };
    let replayed = if args.timeline {
        let header = Header::read(&mut open()?)?;
        let mut timeline = Timeline::new(&header.config()?);
        let replayed = journal::replay(open()?, &mut timeline)?;
        output::text(timeline.into_text())?;
        replayed
    } else {
        journal::replay(open()?, &mut ())?
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
