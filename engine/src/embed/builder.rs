//! Describes and starts an engine.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use lazybatch_graph::SharedProgram;
use lazybatch_kernels::Device;
use lazybatch_sla::class::EXPECTED_WEIGHT;
use lazybatch_sla::{Class, ModelId};

use super::memory::Limit;
use super::model::{Classes, Draft, Maker, ModelOptions, has_weight};
use super::outbox;
use super::submit::{Bounded, Overall};
use super::{BuildError, Engine, Shared};
use crate::core::{Core, CoreConfig, ModelSpec};
use crate::driver::figures::Stats;
use crate::driver::guard::Guarded;
use crate::driver::models::Models;
use crate::driver::seat::Seat;
use crate::driver::sequences::SequenceOptions;
use crate::driver::threaded::{Clock, Driver, DriverState};
use crate::driver::{Observer, Without};
use crate::explain::{Explainer, OnRequest};
use crate::policy;
use crate::timeline::Names;
use crate::watch::{Recorder, Tape};

/// Launches in flight on a device that runs beside the thread that issues them.
const BESIDE: u32 = 2;

/// See [`Engine::builder`].
pub struct Builder {
    device: Option<Box<dyn Device>>,
    models: Vec<(String, SharedProgram, ModelOptions)>,
    policy: String,
    classes: Vec<Class>,
    max_queue: usize,
    memory: Option<u64>,
    depth: Option<u32>,
    notes: bool,
    explained: usize,
    on_request: bool,
    measure_decisions: bool,
    time_decisions: bool,
    sequences: SequenceOptions,
    observer: Box<dyn Observer + Send>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            device: None,
            models: Vec::new(),
            policy: "adaptive".into(),
            classes: vec![Class::default()],
            max_queue: 4096,
            memory: None,
            depth: None,
            notes: false,
            explained: 0,
            on_request: false,
            measure_decisions: false,
            time_decisions: false,
            sequences: SequenceOptions::default(),
            observer: Box::new(()),
        }
    }
}

impl Builder {
    /// The device that runs everything. Needed.
    #[must_use]
    pub fn device(mut self, device: impl Device + 'static) -> Self {
        self.device = Some(Box::new(device));
        self
    }

    /// As [`Builder::device`], for a device that is boxed already.
    #[must_use]
    pub fn boxed_device(mut self, device: Box<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// Adds a model.
    #[must_use]
    pub fn model(
        mut self,
        name: &str,
        program: impl Into<SharedProgram>,
        options: ModelOptions,
    ) -> Self {
        self.models
            .push((name.to_string(), program.into(), options));
        self
    }

    /// Policy specification, such as `greedy`, `graph:5`, `lazy`, `adaptive` (the default).
    #[must_use]
    pub fn policy(mut self, spec: &str) -> Self {
        self.policy = spec.to_string();
        self
    }

    /// Adds an SLA class, which requests name in [`super::Options::class`]. One of the name
    /// `default` is that of requests that name none.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        let known = self.classes.into_iter().chain([class]);
        self.classes = Class::by_id(known);
        self
    }

    /// Most requests that wait; 4096 if not stated.
    #[must_use]
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// Most bytes that accepted requests may hold together from their start to their end, waiting
    /// ones included; no limit if not stated. Weights, the pools that are made at load, and what
    /// threads work in do not count.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Launches in flight per lane. If not stated, 1, and 2 on a device that runs beside the thread
    /// that issues them: the next launch is then there when one ends. Models whose requests stop by
    /// themselves are refused beyond [`Device::max_depth`].
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Sees every event, launch and action of the driver; `notes` adds those of the batch table.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + Send + 'static, notes: bool) -> Self {
        self.observer = Box::new(observer);
        self.notes = notes;
        self
    }

    /// Keeps why open requests, and the last `num` that ended, took their time, for
    /// [`Engine::explain`]. Decisions then cost several times as much.
    #[must_use]
    pub fn explain(mut self, num: usize) -> Self {
        self.explained = num;
        self.on_request = false;
        self
    }

    /// As [`Builder::explain`], but only for requests with [`super::Options::explain`]; decisions
    /// cost more only while one of them is open.
    #[must_use]
    pub fn explain_on_request(mut self, num: usize) -> Self {
        self.explained = num;
        self.on_request = num > 0;
        self
    }

    /// Bounds on the state that is kept between requests of a sequence.
    #[must_use]
    pub fn sequences(mut self, options: SequenceOptions) -> Self {
        self.sequences = options;
        self
    }

    /// Times every decision with a real choice into [`Stats::decision_ns`].
    #[must_use]
    pub fn time_decisions(mut self, on: bool) -> Self {
        self.time_decisions = on;
        self
    }

    /// Times every decision with a real choice into the counts of [`Stats::decisions`].
    #[must_use]
    pub fn measure_decisions(mut self, on: bool) -> Self {
        self.measure_decisions = on;
        self
    }

    /// The depth that is stated, or else that for the device.
    fn chosen_depth(&self) -> u32 {
        let is_beside = self.device.as_ref().is_some_and(|d| d.is_asynchronous());
        self.depth.unwrap_or(if is_beside { BESIDE } else { 1 })
    }

    /// Measures the latencies of models that have examples and no profile, one after another.
    /// [`Builder::build`] does it too.
    ///
    /// # Errors
    /// Options or examples that do not fit their program, and what the device refuses.
    ///
    /// # Panics
    /// If no device was given.
    pub fn measure(mut self) -> Result<Self, BuildError> {
        let device = self.device.as_deref_mut().expect("a device");
        for (name, program, options) in &mut self.models {
            *options = std::mem::take(options).measured(device, name, program)?;
        }
        Ok(self)
    }

    /// The core's configuration, as [`Builder::build`] will use it with `num_lanes` lanes, but for
    /// what the device bounds, and what it measures if [`Builder::measure`] has not.
    ///
    /// # Errors
    /// Options that do not fit their program.
    pub fn core_config(&self, num_lanes: u32) -> Result<CoreConfig, BuildError> {
        let models = self.models.iter();
        let drafts = models.map(|(name, program, o)| Draft::new(name, program.clone(), o.clone()));
        let specs: Result<Vec<_>, _> = drafts.map(|d| d.map(|d| d.spec)).collect();
        Ok(self.config(specs?, num_lanes))
    }

    fn config(&self, models: Vec<ModelSpec>, num_lanes: u32) -> CoreConfig {
        let explains_all = self.explained > 0 && !self.on_request;
        CoreConfig {
            models,
            classes: self.classes.clone(),
            lane_depths: vec![self.chosen_depth(); num_lanes as usize],
            is_in_place: self.device.as_ref().is_some_and(|d| d.works_in_place()),
            max_queue: usize::MAX,
            notes: self.notes || explains_all,
            reasons: explains_all,
        }
    }

    /// Looks at what types allow and means nothing.
    fn check(&self) -> Result<(), BuildError> {
        if self.depth == Some(0) {
            return Err(BuildError::Option {
                what: "depth".into(),
                expected: "1 or more".into(),
                got: "0".into(),
            });
        }
        match self.classes.iter().find(|c| !has_weight(c)) {
            None => Ok(()),
            Some(class) => Err(BuildError::Option {
                what: format!("class {}: weight", class.name),
                expected: EXPECTED_WEIGHT.into(),
                got: class.weight.to_string(),
            }),
        }
    }

    /// Loads the models and starts the driver thread. More can be loaded by [`Engine::load`].
    ///
    /// # Errors
    /// What the policy registry, the device or a model's options refuse.
    ///
    /// # Panics
    /// If no device was given.
    pub fn build(mut self) -> Result<Engine, BuildError> {
        let policy = policy::build(&self.policy)?;
        self.check()?;
        self = self.measure()?;
        self.depth = Some(self.chosen_depth());
        let needs_output_len = policy::find(&self.policy)?.needs_output_len;
        let mut device = self.device.take().expect("a device");
        let (info, packer) = (device.info(), device.packer());
        let overall = Overall {
            queue: Bounded::new(self.max_queue),
            limit: self.memory.map(Limit::new),
        };
        let mut maker = Maker {
            classes: Classes::new(self.classes.clone()),
            depth: self.chosen_depth(),
            pads: policy.pads(),
            overall: Arc::new(overall),
            sequences: self.sequences,
        };
        let (mut served, mut plans, mut specs) = (Vec::new(), Vec::new(), Vec::new());
        for (m, (name, program, options)) in
            std::mem::take(&mut self.models).into_iter().enumerate()
        {
            let draft = Draft::new(&name, program, options)?;
            let (one, of_one, spec) = maker.make(device.as_mut(), ModelId(m as u32), draft)?;
            served.push(Arc::new(one));
            plans.push(of_one);
            specs.push(spec);
        }
        let num = served.len();
        let config = CoreConfig {
            classes: maker.classes.all().to_vec(),
            is_in_place: device.works_in_place(),
            ..self.config(specs, info.num_lanes)
        };
        let stats = Arc::new(Mutex::new(Stats::of_models(num)));
        let (outbox, inbox) = outbox::line();
        let clock = Clock::start();
        let explainer = Explainer::new(self.explained);
        let explainer = (self.explained > 0).then(|| Arc::new(Mutex::new(explainer)));
        let tape = Arc::new(Tape::new(Names::new(&config)));
        let recorder = Recorder(tape.clone());
        let observer: Box<dyn Observer + Send> = match self.on_request {
            true => {
                let (inner, notes) = (self.observer, self.notes);
                Box::new((Without { inner, notes }, recorder))
            }
            false => Box::new((self.observer, recorder)),
        };
        let mut on_request = None;
        let observer: Box<dyn Observer + Send> = match &explainer {
            Some(explainer) if self.on_request => {
                let one = OnRequest::new(explainer.clone(), self.notes);
                on_request = Some(one.clone());
                Box::new((observer, one))
            }
            Some(explainer) => Box::new((observer, explainer.clone())),
            None => Box::new(observer),
        };
        let (time_decisions, measure_decisions) = (self.time_decisions, self.measure_decisions);
        let (driver_stats, driver_tape) = (stats.clone(), tape.clone());
        let models = served.clone();
        let failed = Arc::new(OnceLock::new());
        let seat = Arc::new(Seat::new(Driver {
            core: Core::new(config, policy),
            device: Guarded::new(device, failed.clone()),
            models: Models::new(models, plans, maker),
            commands: inbox,
            clock,
            observer,
            stats: driver_stats,
            time_decisions,
            measure_decisions,
            on_request,
            tape: driver_tape,
            failed,
            state: DriverState::default(),
        }));
        let driver = seat.clone();
        let thread = std::thread::Builder::new()
            .name("lazybatch-driver".into())
            .spawn(move || driver.run())?;
        let shared = Shared {
            models: RwLock::new(served),
            outbox,
            seat,
            next_id: AtomicU64::new(0),
            accepting: AtomicBool::new(true),
            clock,
            stats,
            needs_output_len,
            is_virtual: info.is_virtual,
            explainer,
            tape,
            packer,
        };
        Ok(Engine {
            shared: Arc::new(shared),
            thread: Some(thread),
        })
    }
}
