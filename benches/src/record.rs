//! Records of results: lines of JSON, and the environment that they come from.
//!
//! Lines are appended, so a folder keeps every run that was made into it. They name the processor,
//! not the host, and the commit that they were made at.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use lazybatch_kernels::cpu::level::Level;
use serde_json::{Map, Value, json};

use crate::clock;
use crate::spread::Spread;

/// The processor.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its model name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|l| l.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        Self {
            cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_string()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// What was measured: the repository that the measuring program was started in.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its commit; `unknown` outside of one.
    pub commit: String,
    /// Whether tracked files differ from that commit, results aside; null where nobody can tell.
    pub is_dirty: Option<bool>,
}

impl Source {
    /// The one of the current folder.
    pub fn here() -> Self {
        Self::of(Path::new("."))
    }

    fn of(folder: &Path) -> Self {
        let git = |args: &[&str]| {
            let output = Command::new("git")
                .arg("-C")
                .arg(folder)
                .args(args)
                .output();
            let output = output.ok().filter(|o| o.status.success())?;
            Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
        };
        let changed = [
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            ":/",
            ":(exclude,top)benches/results",
        ];
        Self {
            commit: git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into()),
            is_dirty: git(&changed).map(|changed| !changed.is_empty()),
        }
    }
}

/// Appends lines of one bench to a folder.
pub struct Recorder {
    path: PathBuf,
    bench: String,
    command: String,
    machine: Machine,
    source: Source,
}

impl Recorder {
    /// Lines of `bench` into `folder`, which is made if it is missing.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn new(folder: &Path, bench: &str, command: &str) -> anyhow::Result<Self> {
        Self::file(&folder.join(format!("{bench}.jsonl")), bench, command)
    }

    /// Lines of `bench` into the file `path`, whose folder is made if it is missing.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn file(path: &Path, bench: &str, command: &str) -> anyhow::Result<Self> {
        let folder = folder_of(path);
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        Ok(Self {
            path: path.into(),
            bench: bench.into(),
            command: command.into(),
            machine: Machine::here(),
            source: Source::here(),
        })
    }

    /// Appends the spread of `metric` beside the figures that it belongs to, and prints it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn line(&self, figures: Value, metric: &str, spread: &Spread) -> anyhow::Result<()> {
        let mut line = Map::new();
        line.insert("bench".into(), json!(self.bench));
        line.insert("date".into(), json!(clock::utc_minute()));
        let machine = json!({ "cpu": self.machine.cpu, "cores": self.machine.cores });
        line.insert("machine".into(), machine);
        line.insert("load_average".into(), load_average());
        line.insert("real_time_priority".into(), json!(is_real_time()));
        line.insert("command".into(), json!(self.command));
        line.insert("commit".into(), json!(self.source.commit));
        line.insert("uncommitted".into(), json!(self.source.is_dirty));
        if let Value::Object(figures) = &figures {
            line.extend(figures.clone());
        }
        line.insert("metric".into(), json!(metric));
        line.insert("runs".into(), json!(spread.runs()));
        line.insert("median".into(), rounded(spread.median()));
        line.insert("min".into(), rounded(spread.min()));
        line.insert("max".into(), rounded(spread.max()));
        println!(
            "{}: {metric} {} ({} to {}, {} runs) {figures}",
            self.bench,
            rounded(spread.median()),
            rounded(spread.min()),
            rounded(spread.max()),
            spread.runs(),
        );
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .with_context(|| self.path.display().to_string())?;
        Ok(writeln!(file, "{}", Value::Object(line))?)
    }
}

/// The folder that a file lies in.
pub fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Processes that wanted a processor over the last minute, this one included; null where the system
/// does not say.
fn load_average() -> Value {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next();
    json!(first.and_then(|f| f.parse::<f64>().ok()))
}

/// Whether this process runs before all ordinary ones (`chrt -r 1`), so that others on the machine
/// disturb it less. Source: proc(5), field 41 of a process, its scheduling policy.
fn is_real_time() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    matches!(fields.split_whitespace().nth(38), Some("1" | "2"))
}

/// Six significant digits: more than any clock here is good for.
pub fn rounded(x: f64) -> Value {
    let text = format!("{x:.5e}");
    json!(text.parse::<f64>().unwrap_or(x))
}

/// Adds the fields of one object to another.
pub fn merge(figures: &mut Value, more: Value) {
    if let (Value::Object(all), Value::Object(more)) = (figures, more) {
        all.extend(more);
    }
}

/// The first GPU that CUDA finds; none where there is no driver, and none for the emulator.
fn gpu() -> Option<String> {
    lazybatch_cuda::probe::driver().ok()?;
    let context = lazybatch_cuda::Context::new(0).ok()?;
    let is_emulator = context.is_emulator().ok()?;
    context.name().ok().filter(|_| !is_emulator)
}

/// Writes `environment.json`: processor, SIMD level, whether there is a GPU, compiler, commit and
/// whether files differ from it, date.
///
/// # Errors
/// A file that cannot be written.
pub fn environment(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let (machine, source) = (Machine::here(), Source::here());
    let gpu = gpu();
    let levels: Vec<_> = Level::available().iter().map(|l| l.name()).collect();
    let text = json!({
        "cpu": machine.cpu,
        "cores": machine.cores,
        "simd_used": Level::detect().name(),
        "simd_available": levels,
        // What the benches measure runs on the processor, whether there is a GPU or not.
        "gpu": gpu.is_some(),
        "gpu_name": gpu,
        "rustc": output("rustc", &["--version"]),
        "commit": source.commit,
        "uncommitted": source.is_dirty,
        "date": clock::utc_minute(),
    });
    let path = folder.join("environment.json");
    let text = serde_json::to_string_pretty(&text)? + "\n";
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// First line of a command's output, `unknown` without one.
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map_or_else(|_| Vec::new(), |o| o.stdout);
    let text = String::from_utf8_lossy(&text);
    text.lines().next().unwrap_or("unknown").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_figures_and_spread() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::new(folder.path(), "toy", "toy command").unwrap();
        let spread = Spread::of(vec![1.0, 3.0, 2.0]);
        recorder
            .line(json!({ "policy": "lazy" }), "ns", &spread)
            .unwrap();
        let text = fs::read_to_string(folder.path().join("toy.jsonl")).unwrap();
        let line: Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(line["policy"], "lazy");
        assert_eq!((&line["median"], &line["runs"]), (&json!(2.0), &json!(3)));
        assert!(line["machine"]["cores"].as_u64().unwrap() > 0);
        assert!(line["commit"].is_string() && line.get("uncommitted").is_some());
    }

    #[test]
    fn changes_beside_results_make_a_source_dirty() {
        let folder = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let as_somebody = ["-c", "user.name=n", "-c", "user.email=e"];
            let mut git = Command::new("git");
            let git = git.arg("-C").arg(folder.path()).args(as_somebody);
            assert!(
                git.args(args).output().unwrap().status.success(),
                "{args:?}"
            );
        };
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(Source::of(folder.path()).is_dirty, None, "no repository");
        git(&["init", "-q"]);
        fs::create_dir_all(folder.path().join("benches/results")).unwrap();
        write("code", "1");
        write("benches/results/raw", "1");
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "first"]);
        let clean = Source::of(folder.path());
        assert_eq!((clean.commit.len(), clean.is_dirty), (12, Some(false)));
        write("benches/results/raw", "2");
        assert_eq!(Source::of(folder.path()).is_dirty, Some(false));
        write("code", "2");
        assert_eq!(Source::of(folder.path()).is_dirty, Some(true));
    }

    #[test]
    fn an_environment_says_whether_there_is_a_gpu() {
        let folder = tempfile::tempdir().unwrap();
        environment(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join("environment.json")).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written["gpu"], json!(gpu().is_some()));
        assert_eq!(written["gpu_name"].is_string(), written["gpu"] == true);
        assert!(written["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn figures_are_rounded() {
        assert_eq!(rounded(1_234.567_89), json!(1234.57));
        assert_eq!(rounded(0.0), json!(0.0));
    }
}
