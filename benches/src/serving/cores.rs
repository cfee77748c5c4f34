//! Which cores servers and clients run on. They are set by `taskset` of util-linux.

use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// Cores, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// `0,2,3`.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let cores: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
        match cores {
            Ok(cores) if cores.iter().all(|&c| c < 4096) => Ok(Self(cores)),
            _ => bail!("expected numbers of cores, got {text}"),
        }
    }

    /// Keeps this process to these cores.
    ///
    /// # Errors
    /// Cores that it may not use.
    pub fn take(&self) -> anyhow::Result<()> {
        self.set(&["-a"], &std::process::id().to_string())
    }

    /// Keeps the calling thread to these cores, and those that it begins.
    ///
    /// # Errors
    /// Cores that it may not use.
    pub fn take_thread(&self) -> anyhow::Result<()> {
        let own = std::fs::read_link("/proc/thread-self").context("/proc/thread-self")?;
        let thread = own.file_name().unwrap_or_default().to_string_lossy();
        self.set(&[], &thread)
    }

    fn set(&self, options: &[&str], id: &str) -> anyhow::Result<()> {
        let mut command = Command::new("taskset");
        command
            .args(options)
            .args(["-c", "-p", &self.to_string(), id])
            .stdout(Stdio::null());
        let status = command
            .status()
            .context("cannot run taskset of util-linux")?;
        ensure!(status.success(), "cores {self}: taskset: {status}");
        Ok(())
    }

    /// A command that runs `program` on these cores.
    pub fn run(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &self.to_string()]).arg(program);
        command
    }

    /// How many.
    pub fn num(&self) -> usize {
        self.0.len()
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::Cores;

    #[test]
    fn cores_are_numbers() {
        assert_eq!(Cores::parse("0,2").unwrap().to_string(), "0,2");
        for bad in ["", "x", "0,,1", "-1", "999999999"] {
            assert!(Cores::parse(bad).is_err(), "{bad}");
        }
    }
}
