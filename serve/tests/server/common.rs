//! A server on loopback, over a device that can be held.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lazybatch_graph::{DType, Greedy, Program, ProgramBuilder, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::cpu::{CpuDevice, CpuOptions};
use lazybatch_kernels::{Device, Error, Plan, Wrapper};
use lazybatch_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use lazybatch_serve::security::Guard;
use lazybatch_serve::state::State;
use lazybatch_serve::{Bound, Control, Cut, Host, Options, Security, Server, Text};
use lazybatch_sla::profile::ModelProfile;
use lazybatch_sla::{Launch, ModelId, Time};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Holds launches back while it is shut.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<Held>, Condvar)>);

#[derive(Default)]
struct Held {
    shut: bool,
    /// It shuts for the launch behind so many in all.
    shuts_behind: Option<usize>,
    launches: usize,
    /// Whether the next launch fails.
    fails: bool,
    /// Whether the next launch ends its engine.
    panics: bool,
    /// Models and samples of all launches so far.
    order: Vec<(ModelId, u32)>,
}

impl Gate {
    pub fn shut(&self) {
        self.0.0.lock().unwrap().shut = true;
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().shut = false;
        self.0.1.notify_all();
    }

    /// Lets so many more launches through, and holds those behind them.
    pub fn shut_behind(&self, num: usize) {
        let mut held = self.0.0.lock().unwrap();
        held.shuts_behind = Some(held.order.len() + num);
    }

    /// The next launch fails.
    pub fn fail(&self) {
        self.0.0.lock().unwrap().fails = true;
    }

    /// The next launch panics, and its engine ends.
    pub fn panic(&self) {
        self.0.0.lock().unwrap().panics = true;
    }

    /// Launches that are held.
    pub fn holding(&self) -> usize {
        self.0.0.lock().unwrap().launches
    }

    /// Models and samples of all launches so far, in order.
    pub fn order(&self) -> Vec<(ModelId, u32)> {
        self.0.0.lock().unwrap().order.clone()
    }

    /// Holds back whoever calls it, as a launch.
    fn wait(&self) {
        let mut held = self.0.0.lock().unwrap();
        held.launches += 1;
        let mut held = self.0.1.wait_while(held, |held| held.shut).unwrap();
        held.launches -= 1;
    }

    fn pass(&self, launch: &Launch) -> Result<(), Error> {
        let mut held = self.0.0.lock().unwrap();
        held.launches += 1;
        if held.shuts_behind == Some(held.order.len()) {
            held.shut = true;
            held.shuts_behind = None;
        }
        held.order.push((launch.model, launch.num_samples()));
        let mut held = self.0.1.wait_while(held, |held| held.shut).unwrap();
        held.launches -= 1;
        if std::mem::take(&mut held.panics) {
            drop(held);
            panic!("the device has a bug");
        }
        match std::mem::take(&mut held.fails) {
            false => Ok(()),
            true => Err(Error::Launch {
                device: "gated".into(),
                segment: "any".into(),
                why: "it was told to".into(),
            }),
        }
    }
}

/// Opens a gate when it is dropped, so that a test that fails ends.
struct Opens(Gate);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The embedded device behind a gate.
struct Gated(CpuDevice, Gate);

impl Wrapper for Gated {
    fn inner(&self) -> &dyn Device {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut dyn Device {
        &mut self.0
    }

    fn enqueue(&mut self, now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.1.pass(launch)?;
        self.0.enqueue(now, plan, launch)
    }
}

/// The text of a model that reads two numbers and writes ids: its length, and a letter an id.
struct Letters;

impl Text for Letters {
    fn inputs(&self, text: &str) -> Result<Vec<Tensor>, String> {
        Ok(vec![Tensor::from_f32(&[1, 2], &[text.len() as f32, 1.0])])
    }

    fn answer(&self, outputs: &[Tensor]) -> Result<Option<String>, String> {
        let letter = |id: i32| u8::try_from(id).map(|id| char::from(b'a' + id));
        let text: Result<String, _> = outputs[0].to_i32().into_iter().map(letter).collect();
        text.map(Some).map_err(|e| e.to_string())
    }
}

struct TestHost(Gate);

impl Host for TestHost {
    fn device(&self) -> Result<Box<dyn Device>, String> {
        let options = CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        };
        Ok(Box::new(Gated(CpuDevice::new(options), self.0.clone())))
    }
    fn text(&self, program: &Program, _: &Path) -> Result<Option<Box<dyn Text>>, String> {
        if ["speaker", "reader"].contains(&program.name.as_str()) {
            return Ok(Some(Box::new(Letters)));
        }
        let word = program.name.strip_prefix("speaker of ");
        let speaks = |word: &str| Speaks(word.parse().unwrap(), self.0.clone());
        Ok(word.map(|word| Box::new(speaks(word)) as _))
    }
    fn measure(&self, _: &SharedProgram, _: u32, _: Cut) -> Result<Option<ModelProfile>, String> {
        Ok(None)
    }
}

/// What a speaker of words without bytes says, a byte a token.
pub const SPELT: &str = "a\u{e9} \u{2603}b \u{1f389}\u{1f389}.\u{e9}";

/// Bytes beyond which a [`speaker`]'s text is not read while the gate is shut.
pub const LONG: usize = 100_000;

/// Text of [`speaker`]: every token is a word of so many bytes, or a byte of [`SPELT`].
struct Speaks(usize, Gate);

impl Text for Speaks {
    fn inputs(&self, text: &str) -> Result<Vec<Tensor>, String> {
        if text.len() > LONG {
            self.1.wait();
        }
        Ok(vec![Tensor::from_f32(&[1, 2], &[0.5, 0.25])])
    }
    fn answer(&self, outputs: &[Tensor]) -> Result<Option<String>, String> {
        let num = outputs.first().map_or(0, Tensor::num_elems);
        if self.0 == 0 {
            let said = &SPELT.as_bytes()[..num];
            return Ok(Some(String::from_utf8_lossy(said).into_owned()));
        }
        Ok(Some("x".repeat(num * self.0)))
    }
}

/// A decoder whose tokens stand for words of `word` bytes, of which it says `num`; for the bytes of
/// [`SPELT`] if `word` is 0.
pub fn speaker(word: usize, num: u32) -> Program {
    let mut b = ProgramBuilder::new(format!("speaker of {word}")).with_seed(3);
    let x = b.input("x", DType::F32, &[2]);
    let h = b.vector_state("h", DType::F32, &[2], 0.0);
    // No score is that of the token that stops.
    let greedy = Greedy::new(&mut b, 1, 9);
    b.begin_block("start", Repeat::Once);
    let v = b.read_input("read", x);
    b.vec_write("h0", h, v);
    b.begin_block("loop", Repeat::UntilStop { max: num });
    let token = greedy.read(&mut b);
    let v = b.embed("table", token, 7, 4);
    let v = b.gru("gru", v, 2, h);
    let v = b.dense("scores", v, 7, None);
    greedy.choose(&mut b, v);
    b.finish().unwrap()
}

/// A server that runs.
pub struct Running {
    pub at: Bound,
    pub gate: Gate,
    pub state: Arc<State>,
    pub guard: Arc<Guard>,
    end: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
    _opens: Opens,
    /// The model repository.
    pub models: TempDir,
}

/// The configuration of the model `add`.
const ADD: &str = "max_batch_size: 4
dynamic_batching { default_queue_policy { max_queue_size: 2 } }";

/// That of the model `lstm`: requests may state how long they wait.
const LSTM: &str = "dynamic_batching { default_queue_policy {
default_timeout_microseconds: 600000000 allow_timeout_override: true } }";

/// Starts a server with the models `add`, whose queue holds two, and `lstm`; `set` changes its
/// options.
pub async fn start(set: impl FnOnce(&mut Options)) -> Running {
    let models = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/models");
    for (name, config) in [("add", ADD), ("lstm", LSTM)] {
        let version = models.path().join(name).join("1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::copy(
            from.join(format!("{name}.onnx")),
            version.join("model.onnx"),
        )
        .unwrap();
        std::fs::write(models.path().join(name).join("config.pbtxt"), config).unwrap();
    }
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut options = Options {
        models: models.path().to_owned(),
        control: Control::None,
        policy: "serial".into(),
        cache_bytes: 1 << 20,
        poll_every: Duration::from_secs(1),
        exit_on_error: true,
        strict_readiness: true,
        http: any,
        grpc: any,
        metrics: any,
        max_body: 1 << 20,
        max_request_memory: 64 << 20,
        max_tensor: 16 << 20,
        max_in_flight: 64,
        max_connections: 256,
        max_streams: 64,
        header_timeout: Duration::from_secs(5),
        keep_alive: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        body_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(30),
        drain: Duration::from_secs(60),
        security: Security::default(),
        switches: Arc::default(),
        rounds: Arc::default(),
        dashboard: true,
        otlp: None,
        traces: None,
    };
    set(&mut options);
    let gate = Gate::default();
    let host = Arc::new(TestHost(gate.clone()));
    let server = Server::start(host, options).await.unwrap();
    let (at, state) = (server.bound(), server.state().clone());
    let guard = server.guard().clone();
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(server.run(async move {
        let _ = ended.await;
    }));
    let running = Running {
        at,
        _opens: Opens(gate.clone()),
        gate,
        state,
        guard,
        end: Some(end),
        task,
        models,
    };
    until(|| running.state.is_serving()).await;
    running
}

impl Running {
    pub fn http(&self) -> SocketAddr {
        self.at.http.unwrap()
    }

    pub fn metrics(&self) -> SocketAddr {
        self.at.metrics.unwrap()
    }

    /// Tells it to end.
    pub fn end(&mut self) {
        let _ = self.end.take().unwrap().send(());
    }

    /// Waits until it has.
    pub async fn ended(self) {
        self.task.await.unwrap();
    }

    pub async fn grpc(&self) -> GrpcInferenceServiceClient<tonic::transport::Channel> {
        let at = format!("http://{}", self.at.grpc.unwrap());
        GrpcInferenceServiceClient::connect(at).await.unwrap()
    }
}

/// Lets other tasks run until `holds`.
pub async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

/// As [`until`], but fails after half a minute.
pub async fn soon(what: &str, holds: impl Fn() -> bool) {
    let held = tokio::time::timeout(Duration::from_secs(30), until(holds)).await;
    held.unwrap_or_else(|_| panic!("{what}: not within half a minute"));
}

/// Sends bytes and reads what comes back until the server closes or `answer` bytes were read.
pub async fn send(at: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).await.unwrap();
    // A server that refuses early may have closed before all was sent.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

/// A request of HTTP that closes its connection.
pub fn http(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Status and text of an answer of HTTP.
pub fn status(answer: &[u8]) -> (u16, String) {
    let text = String::from_utf8_lossy(answer).into_owned();
    let status = text.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, text)
}

/// A whole call.
pub async fn call(at: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    ask(at, &http(method, path, body.as_bytes())).await
}

/// The bytes of a whole call that closes its connection, which stays open until the answer came.
pub async fn ask(at: SocketAddr, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    status(&answer)
}

/// A request to `add` as JSON: all elements of the first input are `value`.
pub fn add(value: u8) -> String {
    add_samples(value, 1)
}

/// The same of several samples.
pub fn add_samples(value: u8, samples: usize) -> String {
    let input = |name: &str, value: u8| {
        let data = vec![value.to_string(); 16 * samples].join(",");
        format!(r#"{{"name":"{name}","datatype":"FP32","shape":[{samples},16],"data":[{data}]}}"#)
    };
    format!(
        r#"{{"inputs":[{},{}]}}"#,
        input("INPUT0", value),
        input("INPUT1", 1)
    )
}

/// Whether `text` answers [`add`] of `value`.
pub fn is_sum(text: &str, value: u8) -> bool {
    let sum = vec![format!("{}.0", value + 1); 16].join(",");
    text.contains(&format!(r#""data":[{sum}]"#))
}
