//! A model of an engine: how it is made on a device, and what its requests are held against.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use lazybatch_graph::{Program, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::{Device, Packed, RequestMemory};
use lazybatch_sla::class::{EXPECTED_WEIGHT, WEIGHTS};
use lazybatch_sla::profile::{FORMAT, MAX_BATCH, ModelProfile, ProfileError, RepeatRule};
use lazybatch_sla::{Account, Class, ClassId, ModelId, Nanos, Profile, RequestId, Time};

use super::memory::{Bound, Limit};
use super::submit::{Bounded, Overall, completed};
use super::unseen::Unseen;
use super::{Answer, BuildError, Handle, Held, Options, RequestError, Shared, StepStream};
use crate::core::{Counters, ModelSpec};
use crate::driver::command::Command;
pub use crate::driver::figures::Figures;
use crate::driver::sequences::{Bounds, SequenceOptions};
use crate::driver::tally::Sizes;
use crate::driver::threaded::Plans;
use crate::explain::Explanation;
use crate::measure::{SegmentLength, measure, measure_segments};

/// A launch that takes no longer may keep the thread of whoever asks for it: about what it takes to wake
/// another one and to be woken by it.
const QUICK: Nanos = Nanos(50_000);

/// How a model is served.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Measured latencies, one profile node per segment. Policies that predict, `adaptive` among them,
    /// need them or [`ModelOptions::examples`]; without either every segment is taken to cost the same
    /// in any batch.
    pub profile: Option<ModelProfile>,
    /// Inputs of some requests like those that will come, a tensor per declared input, in lengths that
    /// are as frequent as there. Where there is no profile, [`super::Builder::build`] measures one with
    /// them, which takes some seconds for a model of milliseconds; segments are then as long as the
    /// device needs them, unless stated.
    pub examples: Vec<Vec<Tensor>>,
    /// Node positions of each segment, per block; those of the profile, or one a node, if `None`.
    pub segments: Option<Vec<Vec<Range<u32>>>>,
    /// Most samples of one launch, at most 65,536; the profile's, or 64.
    pub max_batch: Option<u32>,
    /// SLA target of requests that state none; the profile's if `None`.
    pub sla: Option<Nanos>,
    /// Predicted output length; the profile's, or the program's bound.
    pub output_len_p90: Option<u32>,
    /// SLA classes of its own, beside one called `default`; the engine's if there are none.
    pub classes: Vec<Class>,
    /// Most of its requests that wait; only the engine's bound if `None`.
    pub max_queue: Option<usize>,
    /// The same of its requests of a priority level, beside the bound of all; none for levels that
    /// are not here.
    pub max_queue_by_level: BTreeMap<u8, usize>,
    /// Most bytes that its accepted requests may hold together; only the engine's limit if `None`.
    pub memory: Option<u64>,
    /// Bounds on its sequences; if `None` the engine's where it carries state, else starts and ends are free.
    pub sequences: Option<SequenceOptions>,
}

/// A model that runs, or did.
pub(crate) struct Served {
    pub id: ModelId,
    pub name: String,
    pub program: SharedProgram,
    pub max_batch: u32,
    pub sla: Option<Nanos>,
    pub bound: Option<Bound>,
    /// What bounds the requests of all models.
    pub overall: Arc<Overall>,
    /// Its own limit, beside that.
    pub limit: Option<Limit>,
    /// Its own bounded queue, beside that of all.
    pub queue: Option<Bounded>,
    /// Bounded queues of its priority levels, beside that.
    pub level_queues: BTreeMap<u8, Bounded>,
    /// Its classes; the one for requests that name none first.
    pub classes: Vec<(Class, ClassId)>,
    /// What its sequences have to keep to, if it keeps any.
    pub sequences: Option<Bounds>,
    /// A launch of it is over within microseconds, on the thread that issues it.
    pub is_quick: bool,
    /// Requests that its driver has not taken in.
    pub unseen: Unseen,
    /// What it counted, once it has gone.
    pub gone: OnceLock<ModelStats>,
}

impl Served {
    /// The class that a request names, `default` if it names none.
    ///
    /// # Errors
    /// [`RequestError::UnknownClass`].
    pub fn class(&self, named: Option<&str>) -> Result<&(Class, ClassId), RequestError> {
        let name = named.unwrap_or("default");
        let found = self.classes.iter().find(|(c, _)| c.name == name);
        found.ok_or_else(|| {
            let names = self.classes.iter().map(|(c, _)| c.name.as_str());
            RequestError::UnknownClass {
                got: name.into(),
                expected: names.collect::<Vec<_>>().join(", "),
            }
        })
    }
}

/// Running figures of a model.
#[derive(Clone, Debug)]
pub struct ModelStats {
    /// Counts of the core; decisions are those that launched it.
    pub counters: Counters,
    /// Outcomes and latencies.
    pub account: Account,
    /// Launches by how many samples they had.
    pub sizes: Sizes,
}

/// A model described, checked against its program.
pub(crate) struct Draft {
    pub name: String,
    pub program: SharedProgram,
    pub options: ModelOptions,
    pub spec: ModelSpec,
    /// One node a segment.
    pub profile: Arc<ModelProfile>,
    /// Made ready for the device, where that is done already.
    pub packed: Option<Packed>,
}

/// What making a model needs beside the device.
pub(crate) struct Maker {
    pub classes: Classes,
    /// Launches in flight per lane.
    pub depth: u32,
    /// Batches may be padded.
    pub pads: bool,
    /// What bounds the requests of all models.
    pub overall: Arc<Overall>,
    /// Where the model states none.
    pub sequences: SequenceOptions,
}

impl Maker {
    /// Loads a model as `id` and prepares all that its launches need.
    pub fn make(
        &mut self,
        device: &mut dyn Device,
        id: ModelId,
        mut draft: Draft,
    ) -> Result<(Served, Plans, ModelSpec), BuildError> {
        let stops = |r: Repeat| matches!(r, Repeat::UntilStop { .. });
        let may_stop = draft.program.blocks.iter().any(|b| stops(b.repeat));
        let most = device.max_depth();
        if self.depth > most && (may_stop || device.is_asynchronous()) {
            return Err(BuildError::Model {
                model: draft.name,
                what: "depth".into(),
                expected: format!(
                    "at most {most} launches in flight on {}",
                    device.info().name
                ),
                got: self.depth.to_string(),
            });
        }
        match draft.packed.take() {
            Some(packed) => device.attach(id, packed)?,
            None => {
                device.load(id, draft.program.clone())?;
                device.warm(id, draft.spec.max_batch);
            }
        }
        let made = self.prepared(device, id, draft);
        if made.is_err() {
            device.unload(id);
        }
        made
    }

    fn prepared(
        &mut self,
        device: &mut dyn Device,
        id: ModelId,
        draft: Draft,
    ) -> Result<(Served, Plans, ModelSpec), BuildError> {
        let Draft {
            name,
            program,
            options,
            mut spec,
            ..
        } = draft;
        if let Some(most) = device.max_open(id) {
            // Whoever is admitted finds its pages.
            spec.max_in_flight = spec.max_in_flight.min(most);
        }
        let longest = program.length_input.and_then(|i| program.input(i).max_len);
        let padded = longest.filter(|_| self.pads);
        let padded = padded.map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        let bound = device.memory(id).map(|of| Bound::new(of, padded));
        let limit = options.memory.map(Limit::new);
        let shortest = u32::from(program.length_input.is_some());
        for limit in limit.iter().chain(&self.overall.limit) {
            limit.check(&name, bound.as_ref(), shortest)?;
        }
        let plans = prepare(device, id, &spec)?;
        if options.profile.is_none() {
            tracing::warn!(
                model = name,
                "no profile and no examples to measure one by: policies take all segments for equally long"
            );
        }
        // Without a profile its table says nothing.
        let is_quick = options.profile.is_some() && is_quick(device, &program, &spec);
        let stated = options.profile.as_ref().and_then(ModelProfile::sla);
        let has_state = !program.carries.is_empty();
        let sequences = options.sequences.or(has_state.then_some(self.sequences));
        let sequences = sequences.map(|options| Bounds::new(options, has_state));
        let served = Served {
            id,
            name,
            program,
            max_batch: spec.max_batch,
            sla: options.sla.or(stated),
            bound,
            overall: self.overall.clone(),
            limit,
            queue: options.max_queue.map(Bounded::new),
            level_queues: {
                let levels = options.max_queue_by_level.iter();
                levels.map(|(&l, &most)| (l, Bounded::new(most))).collect()
            },
            classes: self.classes.take(&options.classes),
            sequences,
            is_quick,
            unseen: Unseen::default(),
            gone: OnceLock::new(),
        };
        Ok((served, plans, spec))
    }
}

/// All classes of an engine, by id, and how many models use each of those beyond its own.
pub(crate) struct Classes {
    all: Vec<Class>,
    /// By id, beyond the engine's own.
    users: Vec<u32>,
}

impl Classes {
    /// With the engine's own.
    pub fn new(own: Vec<Class>) -> Self {
        Self {
            all: own,
            users: Vec::new(),
        }
    }

    /// By id.
    pub fn all(&self) -> &[Class] {
        &self.all
    }

    fn num_own(&self) -> usize {
        self.all.len() - self.users.len()
    }

    /// The classes of a model that states `stated`, with their ids: those of equal content, or ones
    /// that no model uses any more, or new ones.
    fn take(&mut self, stated: &[Class]) -> Vec<(Class, ClassId)> {
        let num_own = self.num_own();
        if stated.is_empty() {
            let own = self.all[..num_own].iter().cloned();
            return own.zip((0..).map(ClassId)).collect();
        }
        let classes = Class::by_id(stated.iter().cloned());
        classes
            .into_iter()
            .map(|class| {
                let is_used = |i: usize| i < num_own || self.users[i - num_own] > 0;
                let equal = (0..self.all.len()).find(|&i| is_used(i) && self.all[i] == class);
                let id = equal.or_else(|| (0..self.all.len()).find(|&i| !is_used(i)));
                let id = id.unwrap_or(self.all.len());
                if id == self.all.len() {
                    self.all.push(class.clone());
                    self.users.push(0);
                } else {
                    self.all[id] = class.clone();
                }
                if id >= num_own {
                    self.users[id - num_own] += 1;
                }
                (class, ClassId(id as u32))
            })
            .collect()
    }

    /// A model has gone.
    pub fn give_back(&mut self, classes: &[(Class, ClassId)]) {
        let num_own = self.num_own();
        for (_, id) in classes {
            if let Some(i) = id.index().checked_sub(num_own) {
                self.users[i] -= 1;
            }
        }
    }
}

/// A model that was loaded into a running engine. Dropping it unloads the model: requests that were
/// taken end first.
pub struct ModelHandle {
    shared: Arc<Shared>,
    served: Arc<Served>,
}

impl ModelHandle {
    pub(crate) fn new(shared: Arc<Shared>, served: Arc<Served>) -> Self {
        Self { shared, served }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.served.name
    }

    /// Its id, which another model may have once this one has gone.
    pub fn id(&self) -> ModelId {
        self.served.id
    }

    /// Time on the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Whether a request may name that class, or none.
    ///
    /// # Errors
    /// [`RequestError::UnknownClass`], as when the request is submitted.
    pub fn check_class(&self, class: Option<&str>) -> Result<(), RequestError> {
        self.served.class(class).map(drop)
    }

    /// Whether a request may find a place in the queue just now, whatever it is. For callers that
    /// would do much before they submit it, which finds out for certain.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`], as when it is submitted now.
    pub fn check_room(&self) -> Result<(), RequestError> {
        self.shared.check_room(&self.served)
    }

    /// As [`super::Engine::submit`].
    ///
    /// # Errors
    /// Those of [`super::Engine::submit`].
    pub async fn submit(
        &self,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<Answer, RequestError> {
        self.shared.submit(&self.served, inputs, options).await
    }

    /// As [`super::Engine::try_submit`].
    ///
    /// # Errors
    /// Those of [`super::Engine::try_submit`].
    pub fn try_submit(
        &self,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<Handle, RequestError> {
        self.shared.try_submit(&self.served, inputs, options)
    }

    /// As [`ModelHandle::try_submit`], but the engine need not take it in before [`Held`] is
    /// dropped; without one, another's is still there, or the engine is at work and finds it by
    /// itself. For callers that take in many requests on
    /// threads that share processors with the engine: they drop it when they have no more.
    ///
    /// # Errors
    /// Those of [`super::Engine::try_submit`].
    pub fn try_submit_held(
        &self,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<(Handle, Option<Held>), RequestError> {
        self.shared.try_submit_held(&self.served, inputs, options)
    }

    /// As [`super::Engine::try_submit_stream`].
    ///
    /// # Errors
    /// Those of [`super::Engine::try_submit_stream`].
    pub fn try_submit_stream(
        &self,
        inputs: Vec<Tensor>,
        options: Options,
    ) -> Result<StepStream, RequestError> {
        self.shared.try_submit_stream(&self.served, inputs, options)
    }

    /// A request with these options was refused by whoever would have submitted it. If it is of a
    /// sequence that carries state, what follows in that fails with the cause until it is started
    /// again, as behind one that is refused when it is submitted.
    pub fn refused(&self, options: &Options, cause: &str) {
        self.shared.refused(&self.served, options, cause.to_owned());
    }

    /// As [`super::Engine::explain`].
    pub fn explain(&self, id: RequestId) -> Option<Explanation> {
        self.shared.explain(id)
    }

    /// The most that a request of that length and samples holds from its start to its end; `None` on
    /// devices that do not know.
    pub fn request_memory(&self, input_len: u32, samples: u32) -> Option<RequestMemory> {
        Some(self.served.bound.as_ref()?.request(input_len, samples))
    }

    /// Its sequences that may go on: those that began, and neither ended, nor were idle for too long, nor
    /// broke. A request that changes it is counted before it is answered.
    pub fn num_sequences(&self) -> usize {
        let bounds = self.served.sequences.as_ref();
        bounds.map_or(0, Bounds::num)
    }

    /// Its running figures.
    pub fn stats(&self) -> ModelStats {
        let stats = self.shared.stats.lock().expect("no holder panics");
        if let Some(gone) = self.served.gone.get() {
            return gone.clone();
        }
        let m = self.served.id.index();
        ModelStats {
            counters: stats.models[m],
            account: stats.accounts[m].clone(),
            sizes: stats.sizes[m].clone(),
        }
    }

    /// Those of its running figures that cost little to tell.
    pub fn figures(&self) -> Figures {
        let queue = self.served.queue.as_ref();
        let waiting = queue.map_or(0, Bounded::num_taken);
        let now = self.now();
        let stats = self.shared.stats.lock().expect("no holder panics");
        if let Some(gone) = self.served.gone.get() {
            return Figures {
                counters: gone.counters,
                sizes: gone.sizes.clone(),
                in_flight: 0,
                waiting,
                oldest: None,
            };
        }
        let m = self.served.id.index();
        let load = stats.loads[m];
        let unseen = self.served.unseen.oldest().unwrap_or(Time::MAX);
        let oldest = load.oldest.unwrap_or(Time::MAX).min(unseen);
        Figures {
            counters: stats.models[m],
            sizes: stats.sizes[m].clone(),
            in_flight: load.in_flight,
            waiting,
            oldest: (waiting > 0 && oldest < Time::MAX).then(|| now.since(oldest)),
        }
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        self.shared.forget(&self.served);
        // An engine that is gone has unloaded it already.
        let unload = Command::Unload(self.served.clone());
        drop(self.shared.outbox.send(unload));
    }
}

impl ModelOptions {
    /// With latencies, where there are examples to measure them with: on `device`, which must be empty.
    ///
    /// # Errors
    /// Options or examples that do not fit the program, a device of virtual time, and what the device
    /// refuses.
    pub(crate) fn measured(
        mut self,
        device: &mut dyn Device,
        name: &str,
        program: &SharedProgram,
    ) -> Result<Self, BuildError> {
        if self.profile.is_some() || self.examples.is_empty() {
            return Ok(self);
        }
        if device.info().is_virtual {
            return Err(self.unmeasured(name, "a profile, as the device's time is simulated"));
        }
        let max_batch = Draft::new(name, program.clone(), self.clone())?
            .spec
            .max_batch;
        let examples = self.examples.iter().cloned();
        let pool: Vec<_> = examples.map(|e| completed(program, e)).collect();
        let measured = match &self.segments {
            Some(segments) => measure_segments(device, program, &pool, max_batch, segments),
            None => measure(device, program, &pool, max_batch, SegmentLength::ByDevice),
        };
        let mut profile = measured?.profile;
        profile.name = name.to_string();
        self.profile = Some(profile);
        Ok(self)
    }

    /// Why its examples cannot be measured.
    pub(crate) fn unmeasured(&self, name: &str, expected: &str) -> BuildError {
        BuildError::Model {
            model: name.to_string(),
            what: "examples".into(),
            expected: expected.into(),
            got: format!("{} examples and no profile", self.examples.len()),
        }
    }
}

impl Draft {
    /// Checks that the options fit the program.
    ///
    /// # Errors
    /// The option that does not.
    pub fn new(
        name: &str,
        program: SharedProgram,
        options: ModelOptions,
    ) -> Result<Self, BuildError> {
        let (spec, profile) = spec(name, &program, &options)?;
        Ok(Self {
            name: name.to_string(),
            program,
            options,
            spec,
            profile: Arc::new(profile),
            packed: None,
        })
    }
}

/// Whether its weight is one that shares can be computed with.
pub(super) fn has_weight(class: &Class) -> bool {
    WEIGHTS.contains(&class.weight)
}

/// A model as the scheduler sees it, and the latencies that it goes by.
fn spec(
    name: &str,
    program: &Program,
    options: &ModelOptions,
) -> Result<(ModelSpec, ModelProfile), BuildError> {
    let fail = |what: &str, expected: String, got: String| BuildError::Model {
        model: name.to_string(),
        what: what.to_string(),
        expected,
        got,
    };
    if let Some(class) = options.classes.iter().find(|c| !has_weight(c)) {
        let what = format!("class {}: weight", class.name);
        return Err(fail(
            &what,
            EXPECTED_WEIGHT.into(),
            class.weight.to_string(),
        ));
    }
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
    if let Some(most) = options.max_batch.filter(|&most| most > MAX_BATCH) {
        let expected = format!("at most {MAX_BATCH}");
        return Err(fail("max_batch", expected, most.to_string()));
    }
    let profile = options
        .profile
        .clone()
        .unwrap_or_else(|| flat(name, program, &segments));
    let profile = checked(profile).map_err(|e| fail("profile", e.expected, e.got))?;
    let counts: Vec<_> = profile.blocks.iter().map(|b| b.nodes.len()).collect();
    let wanted: Vec<_> = segments.iter().map(Vec::len).collect();
    if counts != wanted {
        let expected = format!("one node a segment, {wanted:?} by block");
        return Err(fail("profile", expected, format!("{counts:?}")));
    }
    let mut sized = ModelProfile {
        name: name.to_string(),
        max_batch: options.max_batch.unwrap_or(profile.max_batch).max(1),
        ..profile.clone()
    };
    let output_len = options.output_len_p90.or(profile.output_len_p90);
    let output_len = output_len.unwrap_or_else(|| longest_output(program));
    // A profile may name and bound its blocks in its own way.
    for (own, block) in sized.blocks.iter_mut().zip(&program.blocks) {
        own.name.clone_from(&block.name);
        (own.repeat, own.stride, own.max_steps) = rule(block.repeat);
    }
    // And has to be one that a journal of it can be read back with.
    let sized = checked(sized).map_err(|e| fail("profile", e.expected, e.got))?;
    let spec = ModelSpec::of_segments(&sized, segments, output_len);
    Ok((spec, sized))
}

/// The profile, if it is one of a model that a file may have.
fn checked(profile: ModelProfile) -> Result<ModelProfile, ProfileError> {
    let mut whole = Profile {
        format: FORMAT.into(),
        device: "engine".into(),
        copy_gbps: 0.0,
        dispatch_us: 0.0,
        issue_us: 0.0,
        models: vec![profile],
    };
    whole.check("options")?;
    Ok(whole.models.remove(0))
}

/// Whether the largest batch of a model, from its begin to its end, keeps the thread that issues its
/// launches for no longer than [`QUICK`], by its table.
fn is_quick(device: &dyn Device, program: &Program, spec: &ModelSpec) -> bool {
    let is_short = program.length_input.is_none() && !spec.has_loops();
    let blocks = 0..spec.blocks.len() as u32;
    let pass = |b| {
        spec.table
            .pass(b, 0, spec.max_batch, u64::from(spec.max_batch))
            .0
    };
    device.works_in_place() && is_short && blocks.map(pass).sum::<u64>() <= QUICK.0
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

fn longest_output(program: &Program) -> u32 {
    let bound = |b: &lazybatch_graph::Block| match b.repeat {
        Repeat::UntilStop { max } => max,
        _ => 1,
    };
    program.blocks.iter().map(bound).max().unwrap_or(1)
}

/// A repeat rule as profiles state it: the rule, its stride, its bound.
fn rule(repeat: Repeat) -> (RepeatRule, Option<u32>, Option<u32>) {
    match repeat {
        Repeat::Once => (RepeatRule::Once, None, None),
        Repeat::PerInputStep { stride } => (RepeatRule::PerInputStep, Some(stride), None),
        Repeat::UntilStop { max } => (RepeatRule::UntilStop, None, Some(max)),
    }
}

/// A profile in which every segment costs one microsecond.
fn flat(name: &str, program: &Program, segments: &[Vec<Range<u32>>]) -> ModelProfile {
    use lazybatch_sla::profile::{BlockProfile, By, NodeProfile};
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
        let (repeat, stride, max_steps) = rule(b.repeat);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, priority: u8) -> Class {
        Class {
            priority,
            ..Class::new(name)
        }
    }

    #[test]
    fn classes_of_models_share_ids_where_they_are_equal_and_leave_them_behind() {
        let mut classes = Classes::new(vec![Class::default()]);
        let ids = |taken: &[(Class, ClassId)]| taken.iter().map(|(_, id)| id.0).collect::<Vec<_>>();
        let own = classes.take(&[]);
        assert_eq!(ids(&own), [0]);
        let a = classes.take(&[class("gold", 1)]);
        let b = classes.take(&[class("gold", 1), class("bulk", 0)]);
        assert_eq!((ids(&a), ids(&b)), (vec![0, 1], vec![0, 1, 2]));
        classes.give_back(&a);
        // Another one still uses it.
        let c = classes.take(&[class("gold", 2)]);
        assert_eq!(ids(&c), [0, 3]);
        classes.give_back(&b);
        let d = classes.take(&[class("silver", 2)]);
        assert_eq!(ids(&d), [0, 1]);
        assert_eq!(classes.all()[1].name, "silver");
        assert_eq!(classes.all().len(), 4);
    }
}
