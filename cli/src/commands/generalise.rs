//! `lazybatch generalise`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lazybatch_workloads::generalise::{Case, Summary, file, report, run as run_cases};
use lazybatch_workloads::traces::arrivals_csv;

use crate::args::GeneraliseArgs;
use crate::failure::BadInput;
use crate::output::{self, Files};
use crate::progress;

/// Runs the command.
pub fn run(args: &GeneraliseArgs) -> anyhow::Result<()> {
    let seeds = seeds(args);
    lazybatch_workloads::generalise::run::check(&seeds, &args.policies, &args.judge)?;
    check_outputs(args)?;
    if let Some(folder) = &args.cases {
        for seed in seeds.clone() {
            write_case(folder, &Case::shared(seed, args.models), args.draws)?;
        }
    }
    let num_simulations =
        (seeds.end - seeds.start) * args.policies.len() as u64 * u64::from(args.draws);
    let bar = progress::bar(num_simulations, "generalise");
    let tick = || bar.inc(1);
    let results = run_cases(
        seeds.clone(),
        args.models,
        args.draws,
        &args.policies,
        &args.judge,
        args.threads,
        &tick,
    )?;
    bar.finish_and_clear();
    let summary = Summary::new(&args.judge, &results);
    if let Some(path) = &args.json {
        let text = file::text(
            &seeds,
            args.models,
            args.draws,
            &args.policies,
            &results,
            &summary,
        );
        output::write("--json", path, &text)?;
    }
    if let Some(path) = &args.report {
        let settings = vec![
            ("seeds".into(), format!("{}..{}", seeds.start, seeds.end)),
            ("models".into(), args.models.to_string()),
            ("draws".into(), args.draws.to_string()),
            ("policies".into(), args.policies.join(", ")),
        ];
        let page = report::report(&summary, &results, settings);
        page.write(path).context("--report")?;
    }
    output::text(summary.text(&results))
}

/// Seeds of the cases.
fn seeds(args: &GeneraliseArgs) -> Range<u64> {
    args.seed.map_or(args.seeds.clone(), |seed| seed..seed + 1)
}

/// Refuses outputs that cannot be written or take another file's place.
fn check_outputs(args: &GeneraliseArgs) -> anyhow::Result<()> {
    let mut files = Files::default();
    if let Some(folder) = &args.cases {
        std::fs::create_dir_all(folder).map_err(|e| {
            let (expected, got) = ("a folder, there or to be made", folder.display());
            BadInput(format!("--cases: expected {expected}, got {got}: {e}"))
        })?;
        for seed in seeds(args) {
            files.writes("--cases", Some(profile_path(folder, seed)));
            for draw in 0..args.draws {
                files.writes("--cases", Some(arrivals_path(folder, seed, draw)));
            }
        }
    }
    files
        .writes("--json", args.json.as_deref())
        .writes("--report", args.report.as_deref())
        .check()
}

fn profile_path(folder: &Path, seed: u64) -> PathBuf {
    folder.join(format!("{seed}.profile.json"))
}

fn arrivals_path(folder: &Path, seed: u64, draw: u32) -> PathBuf {
    folder.join(match draw {
        0 => format!("{seed}.arrivals.csv"),
        _ => format!("{seed}.{draw}.arrivals.csv"),
    })
}

fn write_case(folder: &Path, case: &Case, draws: u32) -> anyhow::Result<()> {
    let profile = profile_path(folder, case.seed);
    output::write("--cases", &profile, &case.device().to_json())?;
    for draw in 0..draws {
        let path = arrivals_path(folder, case.seed, draw);
        let file = output::create("--cases", &path)?;
        arrivals_csv::write(std::io::BufWriter::new(file), &case.arrivals(draw)?)
            .with_context(|| output::place("--cases", &path))?;
    }
    Ok(())
}
