//! Another runtime in a process of its own, to measure beside ours.
//!
//! One JSON object per line goes to its stdin, one comes back from its stdout, in order; what they
//! say is described in `benches/peers/onnxruntime_peer.py`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// A model that the peer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built(u64);

/// The running peer. Ends with its stdin.
pub struct Peer {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts `command` and waits for it to say its name.
    ///
    /// # Errors
    /// A program that cannot be started, or that says something else.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {shown}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the peer's stdout")?;
        let mut peer = Self {
            name: shown,
            child,
            stdin,
            stdout: BufReader::new(stdout),
        };
        let hello = peer.receive()?;
        let name = hello["peer"].as_str().context("a peer without a name")?;
        peer.name = name.to_string();
        Ok(peer)
    }

    /// Name and version of the runtime.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds the model that `row` describes.
    ///
    /// # Errors
    /// What the peer cannot build.
    pub fn build(&mut self, row: &Value) -> anyhow::Result<Built> {
        let reply = self.ask(&json!({ "build": row }))?;
        let id = reply["id"].as_u64();
        Ok(Built(id.with_context(|| unexpected("an id", &reply))?))
    }

    /// Nanoseconds of each of `calls` calls.
    ///
    /// # Errors
    /// What the peer cannot run.
    pub fn run(&mut self, built: Built, calls: usize) -> anyhow::Result<Vec<f64>> {
        let reply = self.ask(&json!({ "run": built.0, "calls": calls }))?;
        times(&reply, calls)
    }

    /// The output of a model: f32, by way of the file `path`.
    ///
    /// # Errors
    /// What the peer cannot run, or a file that cannot be read.
    pub fn output(&mut self, built: Built, path: &Path) -> anyhow::Result<Vec<f32>> {
        let shown = path.display().to_string();
        self.ask(&json!({ "output": built.0, "path": shown }))?;
        let bytes = std::fs::read(path).context(shown)?;
        let floats = bytes.as_chunks::<4>().0;
        Ok(floats.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Drops a model.
    ///
    /// # Errors
    /// A peer that has ended.
    pub fn drop_model(&mut self, built: Built) -> anyhow::Result<()> {
        self.ask(&json!({ "drop": built.0 })).map(|_| ())
    }

    /// Waits for the peer's threads, which go on looking for work behind a call, to sleep: until then
    /// they take a core from whoever is measured next.
    ///
    /// # Errors
    /// A peer that has ended.
    pub fn rest(&mut self) -> anyhow::Result<()> {
        self.ask(&json!({ "rest": true })).map(|_| ())
    }

    /// The answer to any line.
    ///
    /// # Errors
    /// What the peer says is wrong, or a peer that has ended.
    pub fn ask(&mut self, message: &Value) -> anyhow::Result<Value> {
        let stdin = self.stdin.as_mut().context("the peer has ended")?;
        let sent = writeln!(stdin, "{message}").and_then(|()| stdin.flush());
        sent.with_context(|| format!("{}: cannot be written to", self.name))?;
        self.receive()
    }

    fn receive(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        read.with_context(|| format!("{}: cannot be read from", self.name))?;
        reply(&line).with_context(|| self.name.clone())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stdin = None;
        // It ends by itself once its stdin is closed; how does not matter any more.
        let _ = self.child.wait();
    }
}

fn unexpected(expected: &str, got: &Value) -> String {
    format!("expected {expected}, got {got}")
}

/// One line of the peer.
fn reply(line: &str) -> anyhow::Result<Value> {
    if line.is_empty() {
        bail!("expected an answer, got the end of the process");
    }
    let value: Value = serde_json::from_str(line)
        .with_context(|| format!("expected a line of JSON, got {}", line.trim_end()))?;
    match value.get("error") {
        Some(error) => bail!("{}", error.as_str().unwrap_or("an error without text")),
        None => Ok(value),
    }
}

/// The times of a reply to `run`.
fn times(reply: &Value, calls: usize) -> anyhow::Result<Vec<f64>> {
    let times = reply["ns"].as_array();
    let times = times.map(|times| times.iter().filter_map(Value::as_f64).collect::<Vec<_>>());
    match times {
        Some(times) if times.len() == calls && calls > 0 => Ok(times),
        _ => bail!(unexpected(&format!("ns of {calls} calls"), reply)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> anyhow::Result<Peer> {
        Peer::start(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn a_peer_is_asked_line_by_line() {
        let script = r#"echo '{"peer": "toy 1"}'
            read line; case "$line" in *'"row":"gemm"'*) echo '{"id": 4}';; esac
            read line; [ "$line" = '{"calls":2,"run":4}' ] && echo '{"ns": [5, 6.5]}'
            read line; [ "$line" = '{"rest":true}' ] && echo '{}'"#;
        let mut peer = shell(script).unwrap();
        assert_eq!(peer.name(), "toy 1");
        let built = peer.build(&json!({ "row": "gemm" })).unwrap();
        assert_eq!(built, Built(4));
        assert_eq!(peer.run(built, 2).unwrap(), [5.0, 6.5]);
        peer.rest().unwrap();
    }

    #[test]
    fn what_a_peer_says_wrong_is_told() {
        let told = |script: &str| match shell(script) {
            Ok(mut peer) => format!("{:#}", peer.build(&json!({})).unwrap_err()),
            Err(error) => format!("{error:#}"),
        };
        assert!(told("true").ends_with("got the end of the process"));
        assert!(told("echo hello").contains("expected a line of JSON, got hello"));
        assert!(told("echo '{}'").contains("without a name"));
        let answer = |text: &str| format!("echo '{{\"peer\": \"toy\"}}'; read line; echo '{text}'");
        assert_eq!(told(&answer(r#"{"error": "no room"}"#)), "toy: no room");
        assert_eq!(told(&answer("{}")), "expected an id, got {}");
        let missing = Peer::start(&mut Command::new("no-such-peer"))
            .err()
            .unwrap();
        assert!(missing.to_string().starts_with("cannot run"), "{missing}");
    }

    #[test]
    fn as_many_times_as_calls_are_expected() {
        assert_eq!(times(&json!({ "ns": [1, 2] }), 2).unwrap(), [1.0, 2.0]);
        for reply in [json!({ "ns": [1] }), json!({ "ns": [1, "x"] }), json!({})] {
            let message = times(&reply, 2).unwrap_err().to_string();
            assert!(message.starts_with("expected ns of 2 calls"), "{message}");
        }
    }
}
