//! Measurements of the serving front end, as its clients see it.

pub mod in_process;
pub mod ladder;
pub mod load;
pub mod overload;
pub mod peers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use lazybatch_benches::record::{self, Recorder};
use lazybatch_benches::serving::Way;
use lazybatch_benches::serving::child::Server;
use lazybatch_benches::serving::cores::Cores;
use serde_json::{Value, json};

use super::args::{above_0, folder, pairs, positive, read};

/// What all of them take.
pub struct Settings {
    /// Where lines go.
    pub folder: PathBuf,
    /// The binary `lazybatch`.
    pub server: PathBuf,
    /// Cores of servers.
    pub server_cores: Cores,
    /// Cores of clients.
    pub client_cores: Cores,
    /// What messages travel over.
    pub ways: Vec<Way>,
    /// Connections of closed loops.
    pub connections: usize,
    /// Length of a run.
    pub span: Duration,
    /// Runs.
    pub repeats: usize,
    /// Seed of arrivals and inputs.
    pub seed: u64,
    /// The command line that repeats this.
    pub command: String,
}

impl Settings {
    /// Reads a folder and options; `own` takes those that only one measurement has, and says whether
    /// it knew them.
    ///
    /// # Errors
    /// An option that is not there, or a value that it cannot have.
    pub fn parse(
        args: &[String],
        command: &str,
        mut own: impl FnMut(&str, &str) -> anyhow::Result<bool>,
    ) -> anyhow::Result<Self> {
        let (folder, options) = folder(args)?;
        let mut parsed = Self {
            folder,
            server: "target/release/lazybatch".into(),
            server_cores: Cores::parse("0")?,
            client_cores: Cores::parse("1")?,
            ways: Way::ALL.to_vec(),
            connections: 32,
            span: Duration::from_secs(3),
            repeats: 5,
            seed: 1,
            command: command.into(),
        };
        for (key, value) in pairs(options)? {
            match key {
                "--server" => parsed.server = value.into(),
                "--server-cores" => parsed.server_cores = Cores::parse(value)?,
                "--client-cores" => parsed.client_cores = Cores::parse(value)?,
                "--over" => parsed.ways = vec![way(value)?],
                "--connections" => parsed.connections = positive(key, value)?,
                "--seconds" => parsed.span = Duration::from_secs_f64(above_0(key, value)?),
                "--repeats" => parsed.repeats = positive(key, value)?,
                "--seed" => parsed.seed = read(key, value, "a whole number")?,
                _ if own(key, value)? => {}
                _ => bail!("{key} {value}: no such option"),
            }
        }
        Ok(parsed)
    }

    /// Where the lines of `bench` go; from now on this process keeps to the client's cores.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn recorder(&self, bench: &str) -> anyhow::Result<Recorder> {
        record::environment(&self.folder)?;
        self.client_cores.take()?;
        Recorder::new(&self.folder, bench, &self.command)
    }

    /// Starts the front end on the repository `models`, with a thread for each of its cores.
    ///
    /// # Errors
    /// A server that does not start.
    pub fn front_end(&self, models: &Path) -> anyhow::Result<Server> {
        let mut command = self.server_cores.run(&self.server);
        let any = [
            "--http-port",
            "0",
            "--grpc-port",
            "0",
            "--metrics-port",
            "0",
        ];
        command.arg("serve").arg("--models").arg(models).args(any);
        command.args(["--threads", &self.server_cores.num().to_string()]);
        Server::start(&mut command)
    }

    /// Starts the bare echo servers.
    ///
    /// # Errors
    /// A server that does not start.
    pub fn echo(&self) -> anyhow::Result<Server> {
        let mut command = self.server_cores.run(std::env::current_exe()?);
        Server::start(command.arg("serve-echo"))
    }

    /// What every line says of the run.
    fn figures(&self, way: Way, what: &str) -> Value {
        json!({
            "over": way.name(), "what": what, "seconds": self.span.as_secs_f64(),
            "server_cores": self.server_cores.to_string(),
            "client_cores": self.client_cores.to_string(),
        })
    }
}

fn way(name: &str) -> anyhow::Result<Way> {
    let found = Way::ALL.into_iter().find(|w| w.name() == name);
    match found {
        Some(way) => Ok(way),
        None => bail!("--over: expected http or grpc, got {name}"),
    }
}
