//! All state of the driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::graph::{Graph, NodeIdx};
use super::inject::{self, Faults};
use super::order::Order;
use super::queue::{Queue, Work};
use super::{Answer, Code};
use crate::exec::{Memory, Options};
use crate::module::Module;

/// Environment variable: decides all random orders.
const SEED: &str = "LAZYBATCH_EMULATOR_SEED";
/// Environment variable: most instructions of a warp in one block.
const STEPS: &str = "LAZYBATCH_EMULATOR_STEPS";

/// A stream.
#[derive(Default)]
pub(super) struct Stream {
    /// Its last operation.
    pub(super) last: Option<u64>,
    /// Operations of others that its next one comes after.
    pub(super) waits: Vec<u64>,
    /// Whether it and the legacy stream wait for each other.
    pub(super) is_blocking: bool,
    pub(super) priority: i32,
    pub(super) capture: Option<Capture>,
}

/// A stream's part in a graph that is being recorded.
pub(super) struct Capture {
    pub(super) graph: u64,
    /// Nodes that its next one comes after.
    pub(super) after: Vec<NodeIdx>,
    /// Whether the recording began with this stream.
    pub(super) is_origin: bool,
}

/// An event.
#[derive(Default)]
pub(super) struct Event {
    /// The operation that records it.
    pub(super) operation: Option<u64>,
    /// When it was recorded, in instructions of a warp.
    pub(super) time: Option<u64>,
    /// Recorded into a graph: which, and after which nodes.
    pub(super) captured: Option<(u64, Vec<NodeIdx>)>,
}

/// A kernel of a module.
pub(super) struct Function {
    pub(super) module: Arc<Module>,
    pub(super) kernel: usize,
    /// Shared memory that a launch may ask for.
    pub(super) max_dynamic_shared: u32,
}

/// All state.
pub(crate) struct Driver {
    pub(crate) memory: Memory,
    /// What the matrix libraries' handles stand for.
    pub(crate) blas: crate::blas::State,
    pub(super) queue: Queue,
    pub(super) order: Order,
    pub(super) rng: ChaCha8Rng,
    pub(super) options: Options,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) modules: BTreeMap<u64, Arc<Module>>,
    pub(super) functions: BTreeMap<u64, Function>,
    pub(super) graphs: BTreeMap<u64, Graph>,
    /// Memory of the host that was allocated here: address to size.
    pub(super) host: BTreeMap<u64, usize>,
    /// Handles that are not distinguished further: contexts and pools.
    pub(super) others: BTreeMap<u64, u32>,
    pub(super) primary_users: u32,
    pub(super) num_launches: u32,
    /// Instructions of a warp that have run.
    pub(super) clock: u64,
    /// The error that a fault left behind.
    pub(super) broken: Option<Code>,
    /// Errors that were asked for.
    faults: Faults,
    next_handle: u64,
}

/// The legacy stream's handle.
pub(super) const LEGACY: u64 = 0;

impl Driver {
    pub(super) fn new() -> Self {
        let number = |name: &str| {
            std::env::var(name)
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
        };
        let seed = number(SEED).unwrap_or(0);
        let max_steps = number(STEPS).unwrap_or(Options::default().max_steps);
        let faults = std::env::var(inject::VARIABLE).unwrap_or_default();
        let faults = Faults::parse(&faults);
        if let Err(why) = &faults {
            eprintln!("CUDA emulator: {}: {why}", inject::VARIABLE);
        }
        let legacy = Stream {
            is_blocking: true,
            ..Stream::default()
        };
        Self {
            memory: Memory::new(),
            blas: crate::blas::State::default(),
            queue: Queue::default(),
            order: Order::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            options: Options { seed, max_steps },
            streams: BTreeMap::from([(LEGACY, legacy)]),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            graphs: BTreeMap::new(),
            host: BTreeMap::new(),
            others: BTreeMap::new(),
            primary_users: 0,
            num_launches: 0,
            clock: 0,
            broken: faults.is_err().then_some(Code::Unknown),
            faults: faults.unwrap_or_default(),
            next_handle: 0x1000,
        }
    }

    /// A handle that nothing else has.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// The code that this call is to give, if one was asked for.
    pub(super) fn injected(&mut self, name: &str) -> Option<Code> {
        let code = self.faults.take(name)?;
        if code.is_sticky() {
            self.queue.clear();
            self.broken = Some(code);
        }
        Some(code)
    }

    /// The error that a fault left behind, if there was one.
    pub(super) fn health(&self) -> Answer {
        self.broken.map_or(Ok(()), Err)
    }

    /// A stream's key: 1 is the legacy stream too, 2 that of the calling thread.
    pub(super) fn stream_key(&self, handle: u64) -> Result<u64, Code> {
        let key = if handle <= 2 { LEGACY } else { handle };
        if self.streams.contains_key(&key) {
            Ok(key)
        } else {
            Err(Code::InvalidHandle)
        }
    }

    /// The stream of that handle.
    pub(super) fn stream(&mut self, handle: u64) -> Result<&mut Stream, Code> {
        let key = self.stream_key(handle)?;
        self.streams.get_mut(&key).ok_or(Code::InvalidHandle)
    }

    /// Queues work on a stream, or records it where the stream is being captured.
    pub(crate) fn enqueue(&mut self, stream: u64, work: Work) -> Answer {
        self.health()?;
        let key = self.stream_key(stream)?;
        if self.stream(key)?.capture.is_some() {
            return self.record_node(key, work);
        }
        let after = self.order_of(key);
        let operation = self.ask(&after, work);
        let stream = self.stream(key)?;
        stream.last = Some(operation);
        stream.waits.clear();
        Ok(())
    }

    /// Queues work that comes after some operations.
    pub(super) fn ask(&mut self, after: &[u64], work: Work) -> u64 {
        let waiting = after
            .iter()
            .copied()
            .filter(|o| self.queue.is_waiting(*o))
            .collect();
        let operation = self.queue.push(waiting, work);
        self.order.push(operation, after);
        operation
    }

    /// Operations that the next one of a stream comes after.
    pub(super) fn order_of(&self, key: u64) -> Vec<u64> {
        let mut after = Vec::new();
        let Some(stream) = self.streams.get(&key) else {
            return after;
        };
        after.extend(stream.last);
        after.extend(&stream.waits);
        if key == LEGACY {
            let blocking = self.streams.values().filter(|s| s.is_blocking);
            after.extend(blocking.filter_map(|s| s.last));
        } else if stream.is_blocking {
            after.extend(self.streams.get(&LEGACY).and_then(|s| s.last));
        }
        after
    }

    /// Waits until a stream has nothing to do.
    pub(super) fn synchronize(&mut self, stream: u64) -> Answer {
        let key = self.stream_key(stream)?;
        if self.stream(key)?.capture.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        let order = self.order_of(key);
        self.wait_for(&order)
    }
}
