//! `lazybatch generalise`.

use std::path::Path;

use lazybatch_workloads::generalise::{Case, Summary, file, run as run_cases};
use lazybatch_workloads::traces::arrivals_csv;

use crate::args::GeneraliseArgs;
use crate::{output, progress};

/// Runs the command.
pub fn run(args: &GeneraliseArgs) -> anyhow::Result<()> {
    let seeds = args.seeds.clone();
    lazybatch_workloads::generalise::run::check(&seeds, &args.policies, &args.judge)?;
    output::check([("--json", args.json.as_deref())])?;
    if let Some(folder) = &args.cases {
        for seed in seeds.clone() {
            write_case(folder, &Case::new(seed), args.draws)?;
        }
    }
    let num_simulations =
        (seeds.end - seeds.start) * args.policies.len() as u64 * u64::from(args.draws);
    let bar = progress::bar(num_simulations, "generalise");
    let tick = || bar.inc(1);
    let results = run_cases(
        seeds.clone(),
        args.draws,
        &args.policies,
        &args.judge,
        args.threads,
        &tick,
    )?;
    bar.finish_and_clear();
    let summary = Summary::new(&args.judge, &results);
    output::text(summary.text(&results))?;
    if let Some(path) = &args.json {
        let text = file::text(&seeds, args.draws, &args.policies, &results, &summary);
        output::write("--json", path, &text)?;
    }
    Ok(())
}

fn write_case(folder: &Path, case: &Case, draws: u32) -> anyhow::Result<()> {
    let path = |what: &str| folder.join(format!("{}.{what}", case.seed));
    let profile = path("profile.json");
    output::write("--cases", &profile, &case.profile.to_json())?;
    for draw in 0..draws {
        let name = match draw {
            0 => "arrivals.csv".to_owned(),
            _ => format!("{draw}.arrivals.csv"),
        };
        let file = output::create("--cases", &path(&name))?;
        arrivals_csv::write(std::io::BufWriter::new(file), &case.arrivals(draw)?)?;
    }
    Ok(())
}
