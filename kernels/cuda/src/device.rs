//! The device: residency, open requests, launches in flight.

mod flights;
mod residency;
mod warm;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use lazybatch_graph::{NodeId, OutputId, Program, SharedProgram, Tensor};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::frames::{Frames, Mem};
use lazybatch_kernels::host_nodes::Faults;
use lazybatch_kernels::plans::{Opened, PlanInfo, Plans, segment_name};
use lazybatch_kernels::slots::Slots;
use lazybatch_kernels::validate::stage_inputs;
use lazybatch_kernels::{
    Completion, Device, DeviceInfo, Error, MemoryBound, OpenRequest, Plan, Residency,
};
use lazybatch_sla::{Launch, ModelId, Nanos, RequestId, Slot, Time};

use crate::context::{Context, DeviceMemory, DevicePtr, Stream};
use crate::error::CudaError;
use crate::exec::{self, Effects, Fault, Issue, Play, Walk};
use crate::gemm::Products;
use crate::graphs::{GraphCounts, Graphs, Padded};
use crate::host::HostScratch;
use crate::kernels::Kernels;
use crate::kernels::rows::Span;
use crate::memory::{Arena, ELEM, HostPool};
use crate::model::{self, Model};
use crate::open::{Open, padded};
use crate::options::CudaOptions;
use crate::probe;
use crate::states::{Pool, States};
use crate::tables::Stage;
use crate::times::{LaunchTime, Times};
use crate::weights::{self, refused};
use flights::Flight;
use warm::Mode;

/// Runs launches on an NVIDIA GPU, in one stream.
pub struct CudaDevice {
    name: String,
    options: CudaOptions,
    models: BTreeMap<ModelId, Resident>,
    plans: Plans,
    /// Segments of models that are loaded whose graphs were captured ahead, where there was room.
    warmed: BTreeSet<(ModelId, u32, u32, u32)>,
    slots: Slots<Open>,
    frames: Frames<Arena>,
    flights: VecDeque<Flight>,
    /// Opened, but their vector states are not set yet.
    fresh: Vec<Slot>,
    /// What made the device unusable.
    lost: Option<String>,
    /// Whether what a lost device may still do was waited for.
    has_drained: bool,
    times: Times,
    arena: Arena,
    pool: HostPool,
    /// One for each launch in flight.
    stages: Vec<Stage>,
    _tables: DeviceMemory,
    graphs: Graphs,
    products: Products,
    host: HostScratch,
    kernels: Kernels,
    stream: Stream,
    context: Context,
}

struct Resident {
    model: Model,
    states: States,
    max_open: u32,
}

/// Name of the GPU, how weights are stored if not as they are, and whose products.
fn name(gpu: &str, options: &CudaOptions) -> String {
    let words: Vec<String> = gpu
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let mut name = words.join("-");
    if !name.starts_with("cuda") {
        name.insert_str(0, "cuda-");
    }
    if options.weights != WeightType::F32 {
        name = format!("{name}-{}", options.weights);
    }
    if !options.deterministic {
        name.push_str("-cublaslt");
    } else if options.matrix().is_some() {
        name.push_str("-matrix");
    }
    name
}

/// The slot of rows of nobody.
const NOBODY: Slot = Slot(u32::MAX);

/// Bytes of the arena, unless it is told or an eighth of the free memory is less.
const MOST_ARENA: usize = 1 << 30;

/// Bytes of a model's states, unless they are told or a quarter of the free memory is less.
const MOST_STATES: usize = 2 << 30;

/// What was told, if it is not 0.
fn or(told: usize, chosen: usize) -> usize {
    if told == 0 { chosen } else { told }
}

impl CudaDevice {
    /// A device without models, on the GPU that the options name.
    ///
    /// # Errors
    /// A library that is missing, no such GPU, no memory, weights that it does not hold.
    pub fn new(options: CudaOptions) -> Result<Self, CudaError> {
        probe::driver()?;
        probe::nvrtc()?;
        if !options.deterministic {
            probe::cublaslt()?;
        }
        if options.weights == WeightType::Int8Dynamic {
            return Err(CudaError::Argument {
                kernel: "weights",
                expected: "f32, f16, bf16 or int8".into(),
                got: options.weights.to_string(),
            });
        }
        let context = Context::new(options.ordinal)?;
        let (free, _) = context.memory()?;
        let options = CudaOptions {
            arena_bytes: or(options.arena_bytes, (free / 8).min(MOST_ARENA)),
            state_bytes: or(options.state_bytes, (free / 4).min(MOST_STATES)),
            ..options
        };
        let stream = Stream::new(&context)?;
        let tables = DeviceMemory::new(&context, "the tables of launches", options.table_bytes)?;
        let stages = (0..options.depth.max(1))
            .map(|_| Stage::new(&context, &tables))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            name: name(&context.name()?, &options),
            models: BTreeMap::new(),
            plans: Plans::default(),
            warmed: BTreeSet::new(),
            slots: Slots::default(),
            frames: Frames::default(),
            flights: VecDeque::new(),
            fresh: Vec::new(),
            lost: None,
            has_drained: false,
            times: Times::new(&context, options.depth.max(1), options.times)?,
            arena: Arena::new(&context, options.arena_bytes)?,
            pool: HostPool::new(&context, options.host_bytes)?,
            stages,
            _tables: tables,
            graphs: Graphs::new(
                options.graphs,
                options.eager_first,
                options.max_graphs,
                options.depth,
            ),
            products: Products::new(&context, options.deterministic)?,
            host: HostScratch::new(&context)?,
            kernels: Kernels::new(&context, options.kernel_cache.clone())?,
            stream,
            context,
            options,
        })
    }

    /// Frames in use: none once all requests are closed.
    pub fn num_frames(&self) -> usize {
        self.frames.len()
    }

    /// How launches were run so far.
    pub fn graph_counts(&self) -> GraphCounts {
        self.graphs.counts()
    }

    /// Why the first graph that was asked for and not made was not: its launches run one by one.
    pub fn graph_failure(&self) -> Option<&str> {
        self.graphs.failure()
    }

    /// What launches that are over took on the device, in the order in which they were issued, since
    /// this was last asked; none without [`CudaOptions::times`].
    pub fn take_times(&mut self) -> Vec<LaunchTime> {
        self.times.take()
    }

    /// Bytes of a model's weights as they are held here.
    pub fn weight_bytes(&self, model: ModelId) -> Option<usize> {
        self.models.get(&model).map(|r| r.model.weight_bytes)
    }

    fn program(&self, model: ModelId) -> Option<&Program> {
        self.models.get(&model).map(|r| &*r.model.program)
    }

    /// Fails if the device is lost; makes its context current else.
    fn ready(&mut self) -> Result<(), Error> {
        if self.lost.is_none()
            && let Err(error) = self.context.bind()
        {
            self.lost = Some(error.to_string());
        }
        match &self.lost {
            None => Ok(()),
            Some(why) => Err(Error::Lost {
                device: self.name.clone(),
                why: why.clone(),
            }),
        }
    }

    /// Notes an error; it may mean that the device is lost.
    fn note(&mut self, error: &CudaError) -> String {
        if error.is_sticky() && self.lost.is_none() {
            self.lost = Some(error.to_string());
        }
        error.to_string()
    }

    fn refuse(&mut self, error: &CudaError) -> Error {
        self.note(error);
        refused(&self.name, error)
    }

    /// Copies that set the states of requests that were opened since the last launch.
    fn initial_states(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for slot in &self.fresh {
            let Some(open) = self.slots.get(*slot) else {
                continue;
            };
            let states = &self.models[&open.opened.model].states;
            for pool in &states.pools {
                let Pool::Vector { at, elems, .. } = *pool else {
                    continue;
                };
                let row = |row: u32| at.add(row as usize * elems * ELEM);
                spans.extend(open.rows.iter().map(|r| Span {
                    from: row(states.init_row),
                    to: row(*r),
                    copied: elems as u32,
                    zeroed: 0,
                }));
            }
        }
        spans
    }

    /// Walks and issues a launch; what it leaves to be done goes to `effects`. In other modes than
    /// [`Mode::Run`] nothing is issued.
    fn run(
        &mut self,
        launch: &Launch,
        stage: usize,
        effects: &mut Effects,
        mode: Mode,
    ) -> Result<(), Fault> {
        let fresh = self.initial_states();
        let Self {
            options,
            models,
            slots,
            frames,
            arena,
            pool,
            stages,
            products,
            host,
            kernels,
            stream,
            graphs,
            times,
            lost,
            ..
        } = self;
        let resident = models.get(&launch.model).ok_or("the model is not loaded")?;
        let (model, block) = (&resident.model, launch.block as usize);
        let plan = &model.places.blocks[block];
        let stage = &mut stages[stage];
        stage.clear();
        arena.spans.clear();
        arena.rounds = options.graphs && model.host_nodes.iter().all(Option::is_none);
        let rounds = arena.rounds;
        let entered = frames.enter(launch, &model.program, &model.places, arena);
        for (to, from, bytes) in arena.carried.drain(..) {
            // SAFETY: both ends are pieces of the arena of at least that size, and what is there later is
            // written later in the stream.
            let carried = unsafe { stream.copy(to, from, bytes) };
            if let Err(error) = carried {
                // Also values of others.
                lost.get_or_insert_with(|| error.to_string());
                return Err(error.into());
            }
        }
        let key = entered?;
        let mut frame = frames.take(key);
        let num_members = frame.members.len();
        let mut faults = Faults::new();
        if rounds {
            add_nobody(&mut frame);
        }
        let go = || {
            let needed = plan.scratch.elems(frame.rows, frame.samples);
            let at = arena.lend(needed)?;
            let mut spans = std::mem::take(&mut arena.spans);
            spans.extend(fresh);
            let issue = Issue {
                kernels,
                stream,
                products,
            };
            stream.start_record();
            let mut walk = Walk::new(
                model,
                &resident.states,
                (slots, pool),
                stage,
                &mut frame,
                effects,
                (at, needed),
                (options.deterministic, options.poison, rounds),
                issue,
                block,
            );
            let walked = walk.run(launch.first_node as usize, launch.end_node as usize);
            let owners = walk.owners;
            let record = stream.end_record();
            walked?;
            let mut play = Play {
                stream,
                products,
                host,
                model,
                members: &frame.members[..num_members],
                faults: &mut faults,
            };
            if mode == Mode::Capture {
                return graphs.capture_ahead(stream, record, |record| play.run(record, &owners));
            } else if mode == Mode::Note {
                return Ok(());
            }
            // Behind the tables of nodes, whose places are to come again.
            let (num, most) = (spans.len(), exec::most_elems(&spans));
            let moves = stage.push(spans)?;
            stage.upload(stream)?;
            times.begin(stream)?;
            kernels.copy_spans(stream, moves, num, most)?;
            graphs.run(stream, record, |record| play.run(record, &owners))
        };
        let result: Result<(), Fault> = go();
        frame.members.truncate(num_members);
        effects.leave_out(faults, &frame.members);
        if result.is_err() {
            frame.fail(arena);
        } else if plan.live_before[launch.end_node as usize].is_empty() {
            frame.clear(arena);
        }
        frames.put_back(key, frame);
        if result.is_ok() && mode == Mode::Run {
            self.fresh.clear();
        }
        result
    }

    fn launch_error(&self, segment: &str, why: &str) -> Error {
        Error::Launch {
            device: self.name.clone(),
            segment: segment.to_owned(),
            why: why.to_owned(),
        }
    }
}

/// Adds members that nobody is, to whom the rows and samples of a frame belong that are no
/// member's. They idle.
fn add_nobody(frame: &mut exec::Frame) {
    let mut next = frame.members.iter().fold((0, 0), |(rows, samples), m| {
        (rows + m.rows, samples + m.samples)
    });
    let padded = Padded::of(frame.members.len(), next.0, next.1);
    for left in (1..=padded.members - frame.members.len()).rev() {
        let rows = (frame.rows - next.0) / left;
        let samples = (frame.samples - next.1) / left;
        frame.members.push(Mem {
            request: RequestId(u64::MAX),
            slot: NOBODY,
            step: 0,
            len: 0,
            samples,
            rows,
            row_start: next.0,
            sample_start: next.1,
            idle: true,
        });
        next = (next.0 + rows, next.1 + samples);
    }
}

/// Most requests of the greatest length whose inputs, outputs and values have room.
fn room_for(model: &Model, pool: &HostPool, options: &CudaOptions) -> usize {
    let program = &model.program;
    let longest = match program.length_input {
        Some(input) => program.input(input).max_len.unwrap_or(1 << 16),
        None => 0,
    };
    let host = host_elems(model, longest, 1) * ELEM + 256;
    let values = usize::try_from(model.memory.request(longest, 1).activations);
    let mut values = values.unwrap_or(usize::MAX).max(1);
    if options.graphs {
        // What sizes are rounded up by.
        values = values.saturating_add(values / 4);
    }
    (pool.bytes() / host).min(options.arena_bytes / values)
}

/// Elements of inputs and outputs of a request.
fn host_elems(model: &Model, input_len: usize, samples: usize) -> usize {
    let program = &model.program;
    let inputs = program.inputs.iter().map(|decl| {
        let is_sequence = lazybatch_kernels::validate::is_sequence(decl);
        let rows = if is_sequence { input_len } else { samples };
        padded(rows * decl.ty.row_elems())
    });
    let outputs = output_rooms(model, input_len, samples).map(padded);
    inputs.chain(outputs).sum()
}

/// Most elements of each output of a request.
fn output_rooms(
    model: &Model,
    input_len: usize,
    samples: usize,
) -> impl Iterator<Item = usize> + '_ {
    let outputs = model.program.outputs.iter().enumerate();
    outputs.map(move |(o, decl)| {
        let rows = model.memory.output_rows(o, input_len, samples);
        rows.saturating_mul(decl.ty.row_elems())
    })
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            num_lanes: 1,
            is_virtual: false,
        }
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn max_depth(&self) -> u32 {
        self.options.depth.max(1) as u32
    }

    fn residency(&self, model: ModelId, node: NodeId) -> Residency {
        self.whereabouts(model, node)
    }

    fn remarks(&self) -> Vec<String> {
        let GraphCounts {
            replayed,
            eager,
            new,
            captured,
        } = self.graphs.counts();
        let mut all = vec![format!(
            "{replayed} launches by graphs, {eager} kernel by kernel ({new} new), {captured} graphs captured"
        )];
        let failure = self.graph_failure();
        all.extend(failure.map(|why| format!("a graph was not captured: {why}")));
        all
    }

    fn load(&mut self, id: ModelId, program: SharedProgram) -> Result<(), Error> {
        self.ready()?;
        let families = model::families(&program, &self.options);
        if let Err(error) = self.kernels.load(&families) {
            return Err(self.refuse(&error));
        }
        let (name, options) = (&self.name, &self.options);
        let model = Model::load(name, &self.context, program, options)?;
        let (most, budget) = (options.max_open, options.state_bytes);
        let most = most.min(room_for(&model, &self.pool, options));
        let states = match States::new(&self.context, &model.program, most, budget) {
            Ok(states) => states,
            Err(error) => return Err(self.refuse(&error)),
        };
        if states.fit == 0 {
            return Err(Error::OutOfMemory {
                device: self.name.clone(),
                what: format!("memory for one request of {}", model.program.name),
                needed: 1,
                available: 0,
            });
        }
        if let Err(error) = set_initial_rows(&self.context, &self.stream, &states) {
            return Err(self.refuse(&error));
        }
        if let Err(error) = model.arrival.before(&self.stream) {
            return Err(self.refuse(&error));
        }
        let max_open = u32::try_from(states.fit).unwrap_or(u32::MAX);
        let resident = Resident {
            model,
            states,
            max_open,
        };
        self.models.insert(id, resident);
        Ok(())
    }

    fn unload(&mut self, id: ModelId) {
        let is_open = self.slots.iter().any(|open| open.opened.model == id);
        assert!(!is_open, "open requests of a model that is unloaded");
        self.models.remove(&id);
        self.plans.forget(id);
        self.graphs.give_room_ahead();
        self.warmed.retain(|(model, ..)| *model != id);
    }

    fn buckets(&self) -> &[u32] {
        &[u32::MAX]
    }

    fn prepare(
        &mut self,
        model: ModelId,
        block: u32,
        first_node: u32,
        end_node: u32,
        _bucket: u32,
    ) -> Result<Plan, Error> {
        let info = PlanInfo {
            model,
            block,
            first: first_node,
            end: end_node,
        };
        let program = self.models.get(&model).map(|r| &*r.model.program);
        let plan = self.plans.prepare(program, info).map_err(|why| {
            let segment = format!("{model} k{block}[{first_node}..{end_node}]");
            self.launch_error(&segment, &why)
        })?;
        if self.warmed.insert((model, block, first_node, end_node)) {
            self.warm(&info);
        }
        Ok(plan)
    }

    fn max_open(&self, model: ModelId) -> Option<u32> {
        Some(self.models.get(&model)?.max_open)
    }

    fn memory(&self, model: ModelId) -> Option<MemoryBound> {
        let memory = self.models.get(&model)?.model.memory.clone();
        Some(Arc::new(move |len, samples| {
            memory.request(len as usize, samples as usize)
        }))
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        self.ready()?;
        let unknown = || Error::Input {
            model: request.model.to_string(),
            input: "model".into(),
            expected: "a loaded model".into(),
            got: request.model.to_string(),
        };
        let resident = self.models.get_mut(&request.model).ok_or_else(unknown)?;
        assert!(
            self.slots.get(request.slot).is_none(),
            "{} is in use",
            request.slot
        );
        let (model, states) = (&resident.model, &mut resident.states);
        let program = &model.program;
        let staged = stage_inputs(program, request)?;
        let (len, samples) = (request.input_len as usize, request.samples as usize);
        let out_of = |what: String, needed: usize, available: usize| Error::OutOfMemory {
            device: self.name.clone(),
            what,
            needed,
            available,
        };
        let has_vectors = states
            .pools
            .iter()
            .any(|p| matches!(p, Pool::Vector { .. }));
        let num_rows = if has_vectors { samples } else { 0 };
        if num_rows > states.rows.len() {
            let what = format!("rows of vector states of {}", program.name);
            return Err(out_of(what, num_rows, states.rows.len()));
        }
        let room = self.pool.take(host_elems(model, len, samples));
        let room = room.map_err(|(needed, available)| {
            out_of("page-locked memory".into(), needed, available)
        })?;
        let sequences = match states.pages.reserve(len) {
            Ok(sequences) => sequences,
            Err((state, needed, available)) => {
                self.pool.give(&room);
                let state = &program.states[state].name;
                let what = format!("pages of state {state} of {}", program.name);
                return Err(out_of(what, needed, available));
            }
        };
        let rest = states.rows.len() - num_rows;
        let rows = states.rows.split_off(rest);
        let lens = staged.iter().map(|data| data.len());
        let (inputs, outputs) = Open::places(&room, lens, output_rooms(model, len, samples));
        for (input, data) in inputs.iter().zip(&staged) {
            self.pool.write(input.at, data);
        }
        if !rows.is_empty() {
            self.fresh.push(request.slot);
        }
        let open = Open {
            opened: Opened {
                request: request.request,
                model: request.model,
                input_len: len,
                samples,
            },
            room,
            inputs,
            outputs,
            rows,
            sequences,
        };
        self.slots.insert(request.slot, open);
        Ok(())
    }

    fn enqueue(&mut self, _now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        let segment = segment_name(self.program(launch.model), launch);
        self.ready()?;
        let opened = |slot| self.slots.get(slot).map(|open| open.opened);
        let program = self.program(launch.model);
        if let Err(why) = self.plans.check(plan, launch, program, opened) {
            return Err(self.launch_error(&segment, &why));
        }
        let Some(stage) = self.free_stage() else {
            let why = format!("{} launches are in flight", self.flights.len());
            return Err(self.launch_error(&segment, &why));
        };
        let changed = self.without_ended(launch);
        let has_waited = changed.is_some() || self.has_host_nodes(launch);
        let launch = changed.as_ref().unwrap_or(launch);
        let mut effects = Effects::default();
        let mut failed = match self.run(launch, stage, &mut effects, Mode::Run) {
            Ok(()) => None,
            Err(Fault::Node(why)) => Some(why),
            Err(Fault::Cuda(error)) => Some(self.note(&error)),
            Err(Fault::At(node, error)) => {
                self.note(&error);
                Some(format!("node {node}: {error}"))
            }
        };
        // What was issued before a failure runs on.
        if let Err(error) = self.times.end(&self.stream) {
            self.stream.synchronize().ok();
            failed = failed.or_else(|| Some(error.to_string()));
            self.note(&error);
        }
        self.flights.push_back(Flight {
            ticket: launch.ticket,
            model: launch.model,
            block: launch.block,
            segment,
            stage,
            effects,
            failed,
            has_waited,
        });
        Ok(())
    }

    fn poll(&mut self, _now: Time) -> Option<Completion> {
        if self.flights.is_empty() {
            return None;
        }
        // An error here is one of the flight that is looked at next.
        let _ = self.ready();
        if !self.front_is_over()? {
            return None;
        }
        let mut flight = self.flights.pop_front()?;
        let mut busy = None;
        if self.lost.is_none() {
            match self.times.complete() {
                Ok(time) => busy = time.map(|t| Nanos((t.busy_us * 1e3) as u64)),
                Err(error) => {
                    self.note(&error);
                    flight.failed.get_or_insert(error.to_string());
                }
            }
        }
        let cause = flight.failed.as_deref().or(self.lost.as_deref());
        let result = match cause {
            Some(why) => Err(self.launch_error(&flight.segment, why)),
            None => Ok(()),
        };
        let mut done = Completion {
            result,
            busy,
            has_waited: flight.has_waited,
            ..Completion::of(flight.ticket)
        };
        if done.result.is_ok() {
            self.has_launched(flight.model);
            done.stopped = self.complete(&flight);
            let faults = std::mem::take(&mut flight.effects.faults).into_iter();
            let told =
                faults.map(|(id, fault)| (id, fault.error(&self.name, flight.segment.clone())));
            done.faults = told.collect();
        }
        Some(done)
    }

    fn next_completion(&self) -> Option<Time> {
        None
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        let open = self.slots.get(slot)?;
        let program = self.program(open.opened.model)?;
        open.emitted(program, &self.pool, output, from)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        let Some(mut open) = self.slots.remove(slot) else {
            return Vec::new();
        };
        self.frames.leave(slot, &mut self.arena);
        self.fresh.retain(|s| *s != slot);
        let Some(resident) = self.models.get_mut(&open.opened.model) else {
            return Vec::new();
        };
        resident.states.pages.release(&mut open.sequences);
        resident.states.rows.append(&mut open.rows);
        let program = &resident.model.program;
        let outputs = (0..program.outputs.len()).map(OutputId::new);
        let outputs = outputs
            .map(|o| open.emitted(program, &self.pool, o, 0))
            .collect();
        self.pool.give(&open.room);
        outputs
    }
}

/// Writes the rows that hold initial values.
fn set_initial_rows(context: &Context, stream: &Stream, states: &States) -> Result<(), CudaError> {
    let pieces = states.pools.iter().filter_map(|pool| match *pool {
        Pool::Vector { at, elems, init } => {
            let row: DevicePtr = at.add(states.init_row as usize * elems * ELEM);
            Some((row, init.to_le_bytes().repeat(elems)))
        }
        Pool::Sequence { .. } => None,
    });
    weights::upload(context, stream, pieces)
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nothing is freed while kernels may still use it.
        if self.context.bind().is_ok() {
            self.stream.synchronize().ok();
        }
    }
}
