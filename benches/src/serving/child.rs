//! A server in a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::Way;

/// A running server. Dropping it ends it.
pub struct Server {
    child: Child,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// Where gRPC listens.
    pub grpc: SocketAddr,
}

/// The processor time that a process has taken, and the memory that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Microseconds of processor time of all its threads.
    pub cpu_us: u64,
    /// Bytes of memory in use.
    pub rss_bytes: u64,
}

impl Server {
    /// Starts `command` and waits until it prints `ready`, before it the lines `http ADDRESS` and
    /// `grpc ADDRESS`.
    ///
    /// # Errors
    /// A program that cannot be started, or that ends or says something else.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let shown = format!("{command:?}");
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot run {shown}"))?;
        let stdout = child.stdout.take().context("the server's stdout")?;
        let bound = addresses(BufReader::new(stdout).lines());
        match bound.with_context(|| shown) {
            Ok((http, grpc)) => Ok(Self { child, http, grpc }),
            Err(error) => {
                // It may have ended by itself.
                drop(child.kill());
                drop(child.wait());
                Err(error)
            }
        }
    }

    /// Where it listens.
    pub fn at(&self, way: Way) -> SocketAddr {
        match way {
            Way::Http => self.http,
            Way::Grpc => self.grpc,
        }
    }

    /// What it has used.
    ///
    /// # Errors
    /// A server that has ended.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage_of(self.child.id())
    }
}

/// What a process has used.
///
/// # Errors
/// A process that is not there.
pub fn usage_of(pid: u32) -> anyhow::Result<Usage> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::read_to_string(&path).context(path)
    };
    usage(&read("stat")?, &read("status")?).context("expected figures of a process")
}

/// User and system time in ticks of 10 ms, fields 14 and 15 of `stat`; memory by `status`. Source:
/// proc(5).
fn usage(stat: &str, status: &str) -> Option<Usage> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let memory = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kb: u64 = memory.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(Usage {
        cpu_us: (field(14)? + field(15)?) * 10_000,
        rss_bytes: kb << 10,
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It may have ended by itself.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        drop(self.child.wait());
    }
}

fn addresses(
    lines: impl Iterator<Item = std::io::Result<String>>,
) -> anyhow::Result<(SocketAddr, SocketAddr)> {
    let (mut http, mut grpc) = (None, None);
    for line in lines {
        let line = line?;
        match line.split_once(' ') {
            Some(("http", at)) => http = Some(at.parse().with_context(|| line.clone())?),
            Some(("grpc", at)) => grpc = Some(at.parse().with_context(|| line.clone())?),
            None if line == "ready" => {
                return Ok((http.context("no line http")?, grpc.context("no line grpc")?));
            }
            _ => {}
        }
    }
    bail!("expected the line ready, got the end of the process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_where_it_listens() {
        let lines = |text: &str| addresses(text.lines().map(|l| Ok(l.to_owned())));
        let (http, grpc) =
            lines("http 127.0.0.1:1\ngrpc 127.0.0.1:2\nmetrics 127.0.0.1:3\nready").unwrap();
        assert_eq!((http.port(), grpc.port()), (1, 2));
        assert!(lines("http 127.0.0.1:1\ngrpc 127.0.0.1:2").is_err());
        assert!(lines("http nowhere\nready").is_err());
        assert!(lines("ready").is_err());
    }

    #[test]
    fn usage_is_read_behind_the_name() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 7 5 0 0 20 0 3 0 99 1000000 25 1844";
        let status = "Name:\ta b) c\nVmRSS:\t    1500 kB\nThreads:\t3\n";
        let expected = Usage {
            cpu_us: 120_000,
            rss_bytes: 1500 << 10,
        };
        assert_eq!(usage(stat, status), Some(expected));
        assert_eq!(usage("12 (a) S 1", status), None);
        assert!(usage_of(std::process::id()).unwrap().rss_bytes > 0);
    }
}
