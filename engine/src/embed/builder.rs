//! Describes and starts an engine.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};

use lazybatch_graph::{Program, SharedProgram};
use lazybatch_kernels::Device;
use lazybatch_sla::profile::{FORMAT, ModelProfile};
use lazybatch_sla::{Account, Class, LatencyTable, ModelId, Nanos, Profile};
use tokio::sync::Semaphore;

use super::memory::{Bound, Limit, UNIT};
use super::{BuildError, Engine, Served, Shared};
use crate::core::{BlockSpec, Core, CoreConfig, ModelSpec};
use crate::driver::Observer;
use crate::driver::sequences::SequenceOptions;
use crate::driver::threaded::{Clock, Command, Driver, DriverState, Plans, Stats};
use crate::explain::Explainer;
use crate::policy;

/// How a model is served.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Measured latencies, one profile node per segment. Policies that predict need it; without
    /// one every segment is taken to cost the same.
    pub profile: Option<ModelProfile>,
    /// Node positions of each segment, per block; those of the profile, or one a node, if `None`.
    pub segments: Option<Vec<Vec<Range<u32>>>>,
    /// Most samples of one launch; the profile's, or 64.
    pub max_batch: Option<u32>,
    /// SLA target of requests that state none; the profile's if `None`.
    pub sla: Option<Nanos>,
    /// Predicted output length; the profile's, or the program's bound.
    pub output_len_p90: Option<u32>,
}

/// See [`Engine::builder`].
pub struct Builder {
    device: Option<Box<dyn Device>>,
    models: Vec<(String, SharedProgram, ModelOptions)>,
    policy: String,
    classes: Vec<Class>,
    max_queue: usize,
    memory: Option<u64>,
    depth: u32,
    notes: bool,
    explained: usize,
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
            depth: 1,
            notes: false,
            explained: 0,
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

    /// Launches in flight per lane; 1 if not stated.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
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

    /// The core's configuration, as [`Builder::build`] will use it with `num_lanes` lanes.
    ///
    /// # Errors
    /// Options that do not fit their program.
    pub fn core_config(&self, num_lanes: u32) -> Result<CoreConfig, BuildError> {
        let models: Result<Vec<_>, _> = self
            .models
            .iter()
            .map(|(name, program, o)| spec(name, program, o))
            .collect();
        Ok(CoreConfig {
            models: models?,
            classes: self.classes.clone(),
            lane_depths: vec![self.depth; num_lanes as usize],
            max_queue: usize::MAX,
            notes: self.notes || self.explained > 0,
            reasons: self.explained > 0,
        })
    }

    /// Loads the models and starts the driver thread.
    ///
    /// # Errors
    /// What the policy registry, the device or a model's options refuse.
    ///
    /// # Panics
    /// If no device was given.
    pub fn build(self) -> Result<Engine, BuildError> {
        let policy = policy::build(&self.policy)?;
        let needs_output_len = policy::find(&self.policy)?.needs_output_len;
        let num_lanes = self.device.as_ref().expect("a device").info().num_lanes;
        let mut config = self.core_config(num_lanes)?;
        let mut device = self.device.expect("a device");
        let is_virtual = device.info().is_virtual;
        let mut plans = Vec::new();
        let mut bounds = Vec::new();
        for (m, (_, program, _)) in self.models.iter().enumerate() {
            let id = ModelId(m as u32);
            device.load(id, program.clone())?;
            let spec = &mut config.models[m];
            if let Some(most) = device.max_open(id) {
                // Whoever is admitted finds its pages.
                spec.max_in_flight = spec.max_in_flight.min(most);
            }
            let longest = program.length_input.and_then(|i| program.input(i).max_len);
            let padded = longest.filter(|_| policy.pads());
            let padded = padded.map(|len| u32::try_from(len).unwrap_or(u32::MAX));
            bounds.push(device.memory(id).map(|of| Bound::new(of, padded)));
            plans.push(prepare(
                device.as_mut(),
                ModelId(m as u32),
                &config.models[m],
            )?);
        }
        let memory = self.memory.map(|bytes| limit(bytes, &self.models, &bounds));
        let memory = memory.transpose()?;
        let served = self
            .models
            .iter()
            .zip(&config.models)
            .zip(bounds)
            .map(|(((name, program, options), spec), memory)| Served {
                memory,
                name: name.clone(),
                program: program.clone(),
                max_batch: spec.max_batch,
                sla: options
                    .sla
                    .or(options.profile.as_ref().and_then(ModelProfile::sla)),
            })
            .collect();
        let stats = Arc::new(Mutex::new(Stats {
            accounts: vec![Account::default(); self.models.len()],
            ..Stats::default()
        }));
        let (tx, rx) = mpsc::channel::<Command>();
        let clock = Clock::start();
        let programs = self
            .models
            .into_iter()
            .map(|(_, program, _)| program)
            .collect();
        let explainer = Explainer::new(self.explained);
        let explainer = (self.explained > 0).then(|| Arc::new(Mutex::new(explainer)));
        let observer: Box<dyn Observer + Send> = match &explainer {
            Some(explainer) => Box::new((self.observer, explainer.clone())),
            None => self.observer,
        };
        let time_decisions = self.time_decisions;
        let state = DriverState::new(self.sequences);
        let driver_stats = stats.clone();
        let thread = std::thread::Builder::new()
            .name("lazybatch-driver".into())
            .spawn(move || {
                Driver {
                    core: Core::new(config, policy),
                    device,
                    programs,
                    plans,
                    commands: rx,
                    clock,
                    observer,
                    stats: driver_stats,
                    time_decisions,
                    state,
                }
                .run();
            })?;
        let shared = Shared {
            models: served,
            classes: self.classes,
            commands: tx,
            queue: Arc::new(Semaphore::new(self.max_queue.min(Semaphore::MAX_PERMITS))),
            max_queue: self.max_queue,
            memory,
            next_id: AtomicU64::new(0),
            accepting: AtomicBool::new(true),
            clock,
            stats,
            needs_output_len,
            is_virtual,
            explainer,
        };
        Ok(Engine {
            shared: Arc::new(shared),
            thread: Some(thread),
        })
    }
}

/// The limit of an engine; every model's smallest request fits it.
fn limit(
    bytes: u64,
    models: &[(String, SharedProgram, ModelOptions)],
    bounds: &[Option<Bound>],
) -> Result<Limit, BuildError> {
    let known = models
        .iter()
        .zip(bounds)
        .map(|((name, program, _), bound)| {
            let fail = |expected: String, got: String| BuildError::Model {
                model: name.clone(),
                what: "memory limit".into(),
                expected,
                got,
            };
            let Some(bound) = bound else {
                let expected = "a device that states what requests hold";
                return Err(fail(expected.into(), "one that does not".into()));
            };
            let shortest = u32::from(program.length_input.is_some());
            let least = bound.request(shortest, 1).total().next_multiple_of(UNIT);
            if least > bytes {
                let expected = format!("at least {least} bytes, for its smallest request");
                return Err(fail(expected, format!("{bytes} bytes")));
            }
            Ok(bound.clone())
        });
    Ok(Limit::new(bytes, known.collect::<Result<_, _>>()?))
}

fn prepare(device: &mut dyn Device, model: ModelId, spec: &ModelSpec) -> Result<Plans, BuildError> {
    let buckets = device.buckets().to_vec();
    let mut plans = Vec::new();
    for (b, block) in spec.blocks.iter().enumerate() {
        let mut of_block = Vec::new();
        for range in &block.segments {
            let mut of_segment = Vec::new();
            for &bucket in &buckets {
                let plan = device.prepare(model, b as u32, range.start, range.end, bucket)?;
                of_segment.push((bucket, plan));
            }
            of_block.push(of_segment);
        }
        plans.push(of_block);
    }
    Ok(plans)
}

/// A model as the scheduler sees it.
fn spec(name: &str, program: &Program, options: &ModelOptions) -> Result<ModelSpec, BuildError> {
    let fail = |what: &str, expected: String, got: String| BuildError::Model {
        model: name.to_string(),
        what: what.to_string(),
        expected,
        got,
    };
    let segments = match (&options.segments, &options.profile) {
        (Some(segments), _) => segments.clone(),
        (None, Some(profile)) => profile.program_segments(),
        (None, None) => program
            .blocks
            .iter()
            .map(|b| (0..b.nodes.len() as u32).map(|n| n..n + 1).collect())
            .collect(),
    };
    if segments.len() != program.blocks.len() {
        let expected = format!("segments of {} blocks", program.blocks.len());
        return Err(fail("segments", expected, segments.len().to_string()));
    }
    for (block, ranges) in program.blocks.iter().zip(&segments) {
        let mut end = 0;
        let covers = ranges.iter().all(|r| {
            let follows = r.start == end && r.end > r.start;
            end = r.end;
            follows
        });
        if !covers || end as usize != block.nodes.len() {
            let expected = format!("runs that cover the {} nodes", block.nodes.len());
            return Err(fail(
                &format!("segments of {}", block.name),
                expected,
                format!("{ranges:?}"),
            ));
        }
    }
    let profile = options
        .profile
        .clone()
        .unwrap_or_else(|| flat(name, program, &segments));
    let whole = Profile {
        format: FORMAT.into(),
        device: "engine".into(),
        copy_gbps: 0.0,
        dispatch_us: 0.0,
        models: vec![profile],
    };
    whole
        .check("options")
        .map_err(|e| fail("profile", e.expected.clone(), e.got.clone()))?;
    let profile = &whole.models[0];
    let counts: Vec<_> = profile.blocks.iter().map(|b| b.nodes.len()).collect();
    let wanted: Vec<_> = segments.iter().map(Vec::len).collect();
    if counts != wanted {
        let expected = format!("one node a segment, {wanted:?} by block");
        return Err(fail("profile", expected, format!("{counts:?}")));
    }
    let by_node = lazybatch_sla::segments_of(profile, 1);
    let max_batch = options.max_batch.unwrap_or(profile.max_batch).max(1);
    let sized = ModelProfile {
        max_batch,
        ..profile.clone()
    };
    Ok(ModelSpec {
        name: name.to_string(),
        blocks: program
            .blocks
            .iter()
            .zip(segments)
            .map(|(b, segments)| BlockSpec {
                name: b.name.clone(),
                repeat: b.repeat,
                segments,
            })
            .collect(),
        max_batch,
        max_in_flight: max_batch.saturating_mul(2),
        table: Arc::new(LatencyTable::new(&sized, &by_node, 0.0, 0.0)),
        output_len_p90: options
            .output_len_p90
            .or(profile.output_len_p90)
            .unwrap_or_else(|| longest_output(program)),
        resident: true,
    })
}

fn longest_output(program: &Program) -> u32 {
    let bound = |b: &lazybatch_graph::Block| match b.repeat {
        lazybatch_graph::Repeat::UntilStop { max } => max,
        _ => 1,
    };
    program.blocks.iter().map(bound).max().unwrap_or(1)
}

/// A profile in which every segment costs one microsecond.
fn flat(name: &str, program: &Program, segments: &[Vec<Range<u32>>]) -> ModelProfile {
    use lazybatch_graph::Repeat;
    use lazybatch_sla::profile::{BlockProfile, By, NodeProfile, RepeatRule};
    let node = |s: usize| NodeProfile {
        name: format!("segment{s}"),
        by: By::Members,
        latency_us: vec![(1, 1.0)],
        num_nodes: None,
        merge_bytes_per_member: 0.0,
        weight_bytes: None,
        load_us: None,
        host_access_us: None,
    };
    let blocks = program.blocks.iter().zip(segments).map(|(b, ranges)| {
        let (repeat, stride, max_steps) = match b.repeat {
            Repeat::Once => (RepeatRule::Once, None, None),
            Repeat::PerInputStep { stride } => (RepeatRule::PerInputStep, Some(stride), None),
            Repeat::UntilStop { max } => (RepeatRule::UntilStop, None, Some(max)),
        };
        BlockProfile {
            name: b.name.clone(),
            repeat,
            stride,
            max_steps,
            nodes: (0..ranges.len()).map(node).collect(),
        }
    });
    ModelProfile {
        name: name.to_string(),
        max_batch: 64,
        sla_ms: None,
        output_len_p90: None,
        blocks: blocks.collect(),
    }
}
