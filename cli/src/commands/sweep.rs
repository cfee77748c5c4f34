//! `lazybatch sweep`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use lazybatch_engine::policy;
use lazybatch_workloads::Error;
use lazybatch_workloads::sweep::moments::{self, Moment};
use lazybatch_workloads::sweep::resume::Journal;
use lazybatch_workloads::sweep::run::{Options, run as run_grid};
use lazybatch_workloads::sweep::{Grid, Sweep, cases, report, text};

use crate::args::SweepArgs;
use crate::failure::BadInput;
use crate::output::{self, Files};
use crate::progress;

/// Runs the command.
pub fn run(args: &SweepArgs) -> anyhow::Result<()> {
    let grid = grid(args)?;
    let partial = check_outputs(args, &grid)?;
    if let Some(path) = partial
        .as_ref()
        .filter(|path| args.resume && !path.exists())
    {
        let path = path.display();
        output::aside(format_args!(
            "lazybatch: --resume: no {path}: nothing was kept, the sweep starts anew"
        ));
    }
    let journal = match &partial {
        Some(path) if args.resume => Some(Journal::resume(path, &grid)?),
        Some(path) => Some(Journal::create(path, &grid)?),
        None => None,
    };
    let num_outdated = journal.as_ref().map_or(0, Journal::num_outdated);
    if num_outdated > 0 {
        let what = "that another build of the program has finished are run again";
        output::aside(format_args!("lazybatch: {num_outdated} simulations {what}"));
    }
    let options = Options {
        threads: args.threads,
        traces: args.traces.clone(),
        journal,
        points: args.point.clone(),
    };
    let bar = progress::bar(grid.num_simulations() as u64, &grid.name);
    let start = now();
    let ran = match run_grid(&grid, options, &|n| bar.inc(n as u64)) {
        // What is written on the way is the journal.
        Err(error @ Error::Save { .. }) => Err(error).context("--json"),
        ran => Ok(ran?),
    }?;
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let speed = ran.num_requests as f64 / seconds.max(1e-9);
    let kept = match ran.num_taken {
        0 => String::new(),
        n => format!(", {n} taken from the earlier run"),
    };
    output::aside(format_args!(
        "{} simulations of {} requests in {seconds:.1} s, {speed:.0} simulated requests/s{kept}",
        ran.num_simulated, ran.num_requests
    ));
    let judged = args.judge.as_deref().map(policy::canonical);
    let sweep = Sweep::new(&grid, ran, judged.as_deref())?;
    if let Some(path) = &args.json {
        output::write("--json", path, &sweep.to_json())?;
    }
    if let Some(path) = &args.report {
        write_report(args, &sweep, path)?;
    }
    output::text(text::summary(&sweep))?;
    if let Some(path) = partial {
        std::fs::remove_file(&path).with_context(|| output::place("--json", &path))?;
    }
    Ok(())
}

fn write_report(args: &SweepArgs, sweep: &Sweep, path: &Path) -> anyhow::Result<()> {
    let mut chosen = Vec::new();
    for spec in &args.point {
        chosen.push((String::new(), moments::find(sweep, spec)?));
    }
    if chosen.is_empty() {
        chosen = moments::choose(sweep);
    }
    let traces = args.traces.as_deref();
    let moments: Result<Vec<Moment>, _> = chosen
        .iter()
        .map(|(why, point)| Moment::new(sweep, point, why, traces))
        .collect();
    let page = report::report(sweep, &moments?);
    page.write(path).context("--report")
}

/// The grid with what the command line changes of it.
fn grid(args: &SweepArgs) -> anyhow::Result<Grid> {
    let mut grid = Grid::load(&args.grid)?;
    if let Some(models) = &args.models {
        grid.keep_models(models)?;
    }
    if let Some(policies) = &args.policies {
        grid.set_policies(policies)?;
    }
    if let Some(num) = args.seeds {
        if num > grid.seeds.len() {
            let most = grid.seeds.len();
            let message = format!("--seeds: expected at most the grid's {most}, got {num}");
            return Err(BadInput(message).into());
        }
        grid.seeds.truncate(num);
    }
    if let Some(seed) = args.seed {
        grid.seeds = vec![seed];
    }
    if let Some(requests) = args.requests {
        grid.requests = requests;
    }
    if let Some(folder) = args.traces.as_ref().filter(|folder| !folder.is_dir()) {
        let got = folder.display();
        return Err(BadInput(format!("--traces: expected a folder, got {got}")).into());
    }
    if let Some(judged) = &args.judge
        && !grid.policies.contains(&policy::canonical(judged))
    {
        let expected = grid.policies.join(", ");
        return Err(BadInput(format!("--judge: expected one of {expected}, got {judged}")).into());
    }
    Ok(grid)
}

/// Refuses outputs that cannot be written or take another file's place. Where finished simulations
/// are kept; nowhere beside what is no file, a pipe say.
fn check_outputs(args: &SweepArgs, grid: &Grid) -> anyhow::Result<Option<PathBuf>> {
    let json = args.json.as_deref();
    let partial = json.and_then(output::partial);
    if let (true, None, Some(json)) = (args.resume, &partial, json) {
        let expected = "--resume: expected a file beside which simulations are kept as --json";
        return Err(BadInput(format!("{expected}, got {}", json.display())).into());
    }
    let mut files = Files::default();
    files.reads("--grid", Some(&args.grid));
    for file in cases::files(grid, args.traces.as_deref()) {
        files.reads("--grid", Some(file));
    }
    files
        .writes("--json", json)
        .writes("--json", partial.as_deref())
        .writes("--report", args.report.as_deref())
        .check()?;
    Ok(partial)
}

#[allow(
    clippy::disallowed_methods,
    reason = "the speed of a sweep is told, nothing depends on it"
)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
