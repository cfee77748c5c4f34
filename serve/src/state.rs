//! What all calls share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use tokio::sync::watch;

use crate::calls::{Calls, Place};
use crate::changes::Changes;
use crate::error::{Error, Result};
use crate::gpus::Gpus;
use crate::machine::Meter;
use crate::memory::Memory;
use crate::model::Served;
use crate::repository::Repository;
use crate::rounds::Rounds;
use crate::settings::Switches;
use crate::shm::Regions;
use crate::telemetry::Telemetry;
use crate::traces::{Texts, Traces};
use crate::watch::Hub;

/// Name of this server, as metadata states it.
pub const SERVER_NAME: &str = "lazybatch";

/// Extensions of the protocol that are there however a server is set up.
const EXTENSIONS: [&str; 12] = [
    "classification",
    "sequence",
    "sequence(string_id)",
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
    "generate",
];

/// What all calls share.
pub struct State {
    /// The models.
    pub repository: Repository,
    /// Loads and unloads that clients ask for.
    pub changes: Changes,
    /// Memory that clients share.
    pub regions: Regions,
    /// Memory that requests hold.
    pub memory: Arc<Memory>,
    /// Traces in files, and their settings.
    pub traces: Arc<Traces>,
    /// Logging settings.
    pub switches: Arc<Switches>,
    /// Refusals for want of room.
    pub rounds: Arc<Rounds>,
    /// Who tells figures of GPUs, if one serves.
    pub gpus: Option<Box<dyn Gpus>>,
    /// How much processors work.
    pub meter: Meter,
    /// Those who look at what the engines do.
    pub hub: Hub,
    /// Who makes and sends spans, if spans are wanted.
    pub telemetry: Option<Telemetry>,
    calls: Arc<Calls>,
    /// Whether a model that was asked for at the start and is not there makes it unready.
    is_strict: bool,
    ready: AtomicBool,
    open: AtomicBool,
    over: watch::Sender<bool>,
}

impl State {
    /// At the start, not ready; at most `most` inference calls at once.
    pub fn new(
        repository: Repository,
        switches: Arc<Switches>,
        rounds: Arc<Rounds>,
        memory: Arc<Memory>,
        most: usize,
        is_strict: bool,
        telemetry: Option<Telemetry>,
        traces: Traces,
        gpus: Option<Box<dyn Gpus>>,
    ) -> Self {
        Self {
            repository,
            changes: Changes::default(),
            regions: Regions::default(),
            memory,
            traces: Arc::new(traces),
            switches,
            rounds,
            gpus,
            meter: Meter::default(),
            hub: Hub::default(),
            telemetry,
            calls: Arc::new(Calls::new(most)),
            is_strict,
            ready: AtomicBool::new(false),
            open: AtomicBool::new(true),
            over: watch::Sender::new(false),
        }
    }

    /// Changes trace settings of a model, or of all if that is empty; those of models that are not known
    /// any more go.
    ///
    /// # Errors
    /// Those of [`Traces::change`].
    pub fn set_traces(&self, model: &str, changes: &Texts) -> Result<()> {
        self.traces.change(model, changes)?;
        self.traces.keep(|model| self.repository.is_known(model));
        Ok(())
    }

    /// Extensions of the protocol that are there, as server metadata lists them: what a call would
    /// be refused for however it is made is not among them.
    pub fn extensions(&self) -> Vec<&'static str> {
        let unloads = self.repository.is_explicit();
        let traces = self.traces.counts().is_some();
        let set_up = [
            (unloads, "model_repository(unload_dependents)"),
            (traces, "trace"),
        ];
        let set_up = set_up.into_iter().filter(|(is_there, _)| *is_there);
        EXTENSIONS
            .into_iter()
            .chain(set_up.map(|(_, name)| name))
            .collect()
    }

    /// Whether inference calls are expected to be answered.
    pub fn is_ready(&self) -> bool {
        self.is_running() && (!self.is_strict || self.repository.is_complete())
    }

    /// Whether a model that is ready is expected to answer, whatever others are.
    pub fn is_running(&self) -> bool {
        self.is_serving() && self.repository.runs()
    }

    /// Whether it has begun to serve and is not about to end, whatever its models are.
    pub fn is_serving(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// Says so.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::SeqCst);
    }

    /// From now on inference calls are refused, but those that go on with a sequence; those that were
    /// taken end.
    pub fn close(&self) {
        self.set_ready(false);
        self.open.store(false, Ordering::SeqCst);
    }

    /// Whether it takes no more calls, but those that go on with a sequence.
    pub fn is_stopping(&self) -> bool {
        !self.open.load(Ordering::SeqCst)
    }

    /// Whether it takes no more calls and has none left, nor a sequence that one may go on with.
    pub fn is_over(&self) -> bool {
        self.is_stopping() && self.in_flight() == 0 && self.num_sequences() == 0
    }

    /// Behind [`Self::idle`], or when that took too long: who waits for calls of a client goes.
    pub fn end(&self) {
        self.over.send_replace(true);
    }

    /// Waits until that was said.
    pub async fn ended(&self) {
        // It is there as long as this is.
        drop(self.over.subscribe().wait_for(|&over| over).await);
    }

    /// Inference calls that were taken and have not ended.
    pub fn in_flight(&self) -> usize {
        self.calls.num()
    }

    /// Calls that were refused for want of room, by cause: too many of them, no memory.
    pub fn refused(&self) -> [(&'static str, u64); 2] {
        let (calls, memory) = (self.calls.refused(), self.memory.refused());
        [("in_flight", calls), ("memory", memory)]
    }

    /// Sequences of all models that may go on: those that began, and neither ended, nor were idle for too
    /// long, nor broke; those of versions too that chains alone still have.
    pub fn num_sequences(&self) -> usize {
        let served = self.repository.served();
        let mut all: Vec<&Served> = served.iter().flat_map(|served| served.programs()).collect();
        all.sort_by_key(|&served| std::ptr::from_ref(served));
        all.dedup_by_key(|served| std::ptr::from_ref(*served));
        all.iter().map(|served| served.num_sequences()).sum()
    }

    /// Waits until no inference call is left, and no sequence that one may go on with.
    pub async fn idle(&self) {
        loop {
            self.calls.gone().await;
            // In this order: a call that begins or ends a sequence is counted until that is.
            if self.num_sequences() == 0 {
                return;
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Room for an inference call, at once or not at all; [`Room::admit`] has then to be asked.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the server drains and no sequence may go on, or has its hands full.
    pub fn enter(&self) -> Result<Room> {
        let is_late = self.is_stopping();
        if is_late && self.num_sequences() == 0 {
            return Err(stopping());
        }
        let place = self.calls.enter().ok_or_else(|| {
            let most = self.calls.most();
            let message = format!("the server has {most} inference calls in flight, its most");
            Error::Unavailable(message)
        })?;
        Ok(Room { place, is_late })
    }
}

/// Time between two looks at sequences that may end without a call.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Why no call is taken.
pub fn stopping() -> Error {
    Error::Unavailable("Server is stopping, scheduler for new requests is closed".into())
}

/// A call's room in the server, until it is dropped.
#[derive(Debug)]
pub struct Room {
    #[expect(dead_code, reason = "counted until it is dropped")]
    place: Place,
    /// It came when the server had begun to drain.
    is_late: bool,
}

impl Room {
    /// Whether a call may have it, of which is asked if need be whether it goes on with a sequence.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the server drains and it does not.
    pub fn admit(&self, goes_on: impl FnOnce() -> bool) -> Result<()> {
        match self.is_late && !goes_on() {
            true => Err(stopping()),
            false => Ok(()),
        }
    }
}
