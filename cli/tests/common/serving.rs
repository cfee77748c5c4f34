//! Runs the built binary as a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use super::Place;

/// A server of the models in the folder `models` that ends with the test.
pub struct Serving {
    /// Its process.
    pub child: Child,
    http: SocketAddr,
}

impl Serving {
    /// Starts it and waits until it is ready.
    pub fn start(place: &Place, flags: &str) -> Self {
        Self::start_with(place, flags, &[])
    }

    /// With variables of the environment.
    pub fn start_with(place: &Place, flags: &str, vars: &[(&str, &str)]) -> Self {
        let mut command = Self::command(place, flags);
        command.envs(vars.iter().copied());
        Self::start_by(place, &mut command)
    }

    /// The command that [`Serving::start`] starts it by.
    pub fn command(place: &Place, flags: &str) -> Command {
        std::fs::create_dir_all(place.path("models")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lazybatch"));
        command
            .arg("serve")
            .args(["--http-port=0", "--grpc-port=0", "--metrics-port=0"])
            .arg("--models")
            .arg(place.path("models"))
            .args(flags.split_whitespace())
            .current_dir(place.path(""))
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(place.path("log")).unwrap());
        command
    }

    /// Starts it by such a command and waits until it is ready.
    pub fn start_by(place: &Place, command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let http = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut this = Self { child, http };
        let lines = BufReader::new(this.child.stdout.take().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(at) = line.strip_prefix("http ") {
                this.http = at.parse().unwrap();
            }
            if line == "ready" {
                return this;
            }
        }
        panic!("it ended: {}", place.read("log"));
    }

    /// Status of a call.
    pub fn get(&self, path: &str, token: &str) -> String {
        let bearer = format!("authorization: Bearer {token}\r\n");
        self.call("GET", path, &bearer, "").0
    }

    /// Status and body of a call.
    pub fn post(&self, path: &str, body: &str) -> (String, String) {
        self.call("POST", path, "", body)
    }

    fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> (String, String) {
        let at = SocketAddr::from(([127, 0, 0, 1], self.http.port()));
        let mut stream = TcpStream::connect(at).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.get(9..12).unwrap_or_default().to_owned();
        let body = answer.split_once("\r\n\r\n").unwrap_or_default().1;
        (status, body.to_owned())
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
