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
            write_case(folder, &Case::new(seed))?;
        }
    }
    let num_simulations = (seeds.end - seeds.start) * args.policies.len() as u64;
    let bar = progress::bar(num_simulations, "generalise");
    let tick = || bar.inc(1);
    let results = run_cases(
        seeds.clone(),
        &args.policies,
        &args.judge,
        args.threads,
        &tick,
    )?;
    bar.finish_and_clear();
    let summary = Summary::new(&args.judge, &results);
    output::text(summary.text(&results))?;
    if let Some(path) = &args.json {
        let text = file::text(&seeds, &args.policies, &results, &summary);
        output::write("--json", path, &text)?;
    }
    Ok(())
}

fn write_case(folder: &Path, case: &Case) -> anyhow::Result<()> {
    let path = |what: &str| folder.join(format!("{}.{what}", case.seed));
    let profile = path("profile.json");
    output::write("--cases", &profile, &case.profile.to_json())?;
    let arrivals = case.arrivals()?;
    let file = output::create("--cases", &path("arrivals.csv"))?;
    Ok(arrivals_csv::write(
        std::io::BufWriter::new(file),
        &arrivals,
    )?)
}
