//! What the commands ask of the machine they run on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The cargo that runs this command.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program of the workspace, built as its tests are: packages that are built alone get other
/// features of what they depend on, and all of that would be built twice. `name` is that of a
/// program, or `examples/NAME`.
///
/// # Errors
/// A workspace that cannot be built.
pub fn built(root: &Path, name: &str) -> Result<PathBuf> {
    let args = ["test", "--quiet", "--workspace", "--no-run"];
    let status = cargo().args(args).current_dir(root).status();
    if !status.context("cannot run cargo")?.success() {
        bail!("cargo {}: failed", args.join(" "));
    }
    // Programs are built beside this one.
    let this = std::env::current_exe().context("the path of this program")?;
    Ok(this.with_file_name(name))
}

/// A clock for how long commands take.
#[allow(
    clippy::disallowed_methods,
    reason = "a developer command times what it runs"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Today's date in UTC as `YYYY-MM-DD`.
#[allow(
    clippy::disallowed_methods,
    reason = "result folders are named after the day they were made"
)]
pub fn today() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date that lies `days` after 1970-01-01.
fn date(days: u64) -> String {
    let is_leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}", month + 1, left + 1)
}

/// The processor's name, as the operating system gives it.
pub fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim());
    name.filter(|name| !name.is_empty())
        .unwrap_or(std::env::consts::ARCH)
        .to_owned()
}

/// Cores that this process may use.
pub fn num_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processor and cores as part of a folder name.
pub fn machine_slug() -> String {
    format!("{}-{}c", slug(&cpu_name()), num_cores())
}

/// Letters, digits and single hyphens only.
fn slug(name: &str) -> String {
    let plain = name
        .to_ascii_lowercase()
        .replace("(r)", "")
        .replace("(tm)", "");
    let words = plain
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// First line that a command prints, or why there is none.
pub fn first_line(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (days, want) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (19_722, "2023-12-31"),
            (19_782, "2024-02-29"),
            (20_088, "2024-12-31"),
        ] {
            assert_eq!(date(days), want);
        }
    }

    #[test]
    fn slugs_are_plain() {
        assert_eq!(
            slug("Intel(R) Xeon(R) CPU @ 2.20GHz"),
            "intel-xeon-cpu-2-20ghz"
        );
        assert_eq!(slug("AMD EPYC 7B13"), "amd-epyc-7b13");
        let machine = machine_slug();
        assert!(
            machine
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-'),
            "{machine}"
        );
    }

    #[test]
    fn a_command_that_fails_says_so() {
        let message = first_line(&mut Command::new("no-such-program"))
            .unwrap_err()
            .to_string();
        assert_eq!(message, "cannot run no-such-program");
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo because >&2; exit 3"]);
        assert_eq!(
            first_line(&mut failing).unwrap_err().to_string(),
            "sh failed: because"
        );
    }
}
