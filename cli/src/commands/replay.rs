//! `lazybatch replay`.

use std::fs::File;
use std::io::BufReader;

use anyhow::Context;
use lazybatch_engine::journal::{self, Header, Replayed};
use lazybatch_engine::timeline::Timeline;

use crate::args::ReplayArgs;
use crate::failure::BadInput;
use crate::output::{self, Files, Growing};
use crate::progress;

/// Runs the command.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let mut files = Files::default();
    files.reads("JOURNAL", Some(&args.journal));
    files.writes("--json", args.json.as_deref()).check()?;
    let replayed = replay(args).with_context(|| args.journal.display().to_string())?;
    if let Some(path) = &args.json {
        Growing::new("--json", path).whole(&json(args, &replayed))?;
    }
    Ok(())
}

fn json(args: &ReplayArgs, replayed: &Replayed) -> String {
    let json = serde_json::json!({
        "format": "lazybatch-replay/1",
        "journal": args.journal.to_string_lossy(),
        "policy": replayed.policy,
        "events": replayed.events,
        "launches": replayed.launches,
        "requests_ended": replayed.finished,
        "has_end": replayed.has_end,
    });
    format!("{json:#}\n")
}

fn replay(args: &ReplayArgs) -> anyhow::Result<Replayed> {
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
        let len = file.metadata().map_or(0, |data| data.len());
        let bar = progress::reading(len, "replay");
        let replayed = journal::replay(BufReader::new(bar.wrap_read(file)), &mut ());
        bar.finish_and_clear();
        replayed?
    };
    let end = match replayed.has_end {
        true => "",
        false => "; no end record: may be cut",
    };
    output::line(format_args!(
        "{}: {} events, {} launches, {} requests ended; every action as recorded, no rule broken{end}",
        replayed.policy, replayed.events, replayed.launches, replayed.finished
    ))?;
    Ok(replayed)
}
