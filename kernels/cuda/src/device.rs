//! The device: residency, open requests, launches in flight.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lazybatch_graph::{OutputId, Program, SharedProgram, Tensor};
use lazybatch_kernels::cpu::WeightType;
use lazybatch_kernels::frames::{FrameMemory, Frames};
use lazybatch_kernels::plans::{Opened, PlanInfo, Plans, segment_name};
use lazybatch_kernels::slots::Slots;
use lazybatch_kernels::validate::stage_inputs;
use lazybatch_kernels::{Completion, Device, DeviceInfo, Error, MemoryBound, OpenRequest, Plan};
use lazybatch_sla::{Launch, ModelId, Slot, Ticket, Time};
use smallvec::SmallVec;

use crate::context::{Context, DevicePtr, Stream};
use crate::error::CudaError;
use crate::exec::{self, Effects, Fault, Issue, Walk};
use crate::gemm::Products;
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
use crate::weights::{self, refused};

/// Runs launches on an NVIDIA GPU, in one stream.
pub struct CudaDevice {
    name: String,
    options: CudaOptions,
    models: BTreeMap<ModelId, Resident>,
    plans: Plans,
    slots: Slots<Open>,
    frames: Frames<Arena>,
    flights: VecDeque<Flight>,
    /// Opened, but their vector states are not set yet.
    fresh: Vec<Slot>,
    /// What made the device unusable.
    lost: Option<String>,
    arena: Arena,
    pool: HostPool,
    /// One for each launch in flight.
    stages: Vec<Stage>,
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

/// A launch that was issued, or failed at it.
struct Flight {
    ticket: Ticket,
    segment: String,
    stage: usize,
    effects: Effects,
    failed: Option<String>,
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
    }
    name
}

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
        let stages = (0..options.depth.max(1))
            .map(|_| Stage::new(&context, options.table_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            name: name(&context.name()?, &options),
            models: BTreeMap::new(),
            plans: Plans::default(),
            slots: Slots::default(),
            frames: Frames::default(),
            flights: VecDeque::new(),
            fresh: Vec::new(),
            lost: None,
            arena: Arena::new(&context, options.arena_bytes)?,
            pool: HostPool::new(&context, options.host_bytes)?,
            stages,
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

    /// Walks and issues a launch; what it leaves to be done goes to `effects`.
    fn run(&mut self, launch: &Launch, stage: usize, effects: &mut Effects) -> Result<(), Fault> {
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
            ..
        } = self;
        let resident = models.get(&launch.model).ok_or("the model is not loaded")?;
        let (model, block) = (&resident.model, launch.block as usize);
        let plan = &model.places.blocks[block];
        let stage = &mut stages[stage];
        stage.clear();
        arena.spans.clear();
        let key = frames.enter(launch, &model.program, &model.places, arena)?;
        let mut frame = frames.take(key);
        let go = || {
            let needed = plan.scratch.elems(frame.rows, frame.samples);
            let scratch = arena.take(needed)?;
            let at = scratch.at;
            // What comes later in the stream may use it again.
            arena.give(scratch, needed);
            let mut spans = std::mem::take(&mut arena.spans);
            spans.extend(fresh);
            let moves = exec::copy_spans(stage, spans)?;
            let mut walk = Walk::new(
                model,
                &resident.states,
                (slots, pool),
                stage,
                &mut frame,
                effects,
                (at, needed),
                (options.deterministic, options.poison),
                block,
            );
            walk.run(launch.first_node as usize, launch.end_node as usize)?;
            let commands = walk.commands;
            stage.upload(stream)?;
            let mut issue = Issue {
                kernels,
                stream,
                products,
                host,
                model,
                members: &frame.members,
            };
            moves(&mut issue)?;
            for (id, command) in commands {
                command(&mut issue).map_err(|fault| fault.at(&model.program.node(id).name))?;
            }
            Ok(())
        };
        let result: Result<(), Fault> = go();
        if result.is_err() {
            frame.fail(arena);
        } else if plan.live_before[launch.end_node as usize].is_empty() {
            frame.clear(arena);
        }
        frames.put_back(key, frame);
        if result.is_ok() {
            self.fresh.clear();
        }
        result
    }

    /// A stage that no launch in flight uses.
    fn free_stage(&self) -> Option<usize> {
        (0..self.stages.len()).find(|s| self.flights.iter().all(|f| f.stage != *s))
    }

    fn launch_error(&self, segment: &str, why: &str) -> Error {
        Error::Launch {
            device: self.name.clone(),
            segment: segment.to_owned(),
            why: why.to_owned(),
        }
    }

    /// Whether the oldest launch is over; notes why it is if the device is lost.
    fn front_is_over(&mut self) -> Option<bool> {
        let flight = self.flights.front()?;
        if self.lost.is_some() {
            return Some(true);
        }
        match self.stages[flight.stage].over.is_over() {
            Ok(is_over) => Some(is_over),
            Err(error) => {
                self.note(&error);
                let why = error.to_string();
                if let Some(flight) = self.flights.front_mut() {
                    flight.failed.get_or_insert(why);
                }
                Some(true)
            }
        }
    }

    /// Takes in what a launch that is over has left.
    fn complete(&mut self, flight: &Flight) -> SmallVec<[lazybatch_sla::RequestId; 4]> {
        for emitted in &flight.effects.emitted {
            if let Some(open) = self.slots.get_mut(emitted.slot) {
                open.outputs[emitted.output].written = Some(emitted.elems);
            }
        }
        let stage = &self.stages[flight.stage];
        let mut stopped = SmallVec::new();
        for stop in &flight.effects.stops {
            if stage.flag(stop.flag) && !stopped.contains(&stop.request) {
                stopped.push(stop.request);
            }
        }
        stopped
    }
}

/// Most requests of the greatest length whose inputs, outputs and values have room.
fn room_for(model: &Model, pool: &HostPool, arena_bytes: usize) -> usize {
    let program = &model.program;
    let longest = match program.length_input {
        Some(input) => program.input(input).max_len.unwrap_or(1 << 16),
        None => 0,
    };
    let host = host_elems(model, longest, 1) * ELEM + 256;
    let values = usize::try_from(model.memory.request(longest, 1).activations);
    let values = values.unwrap_or(usize::MAX).max(1);
    (pool.bytes() / host).min(arena_bytes / values)
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

    fn load(&mut self, id: ModelId, program: SharedProgram) -> Result<(), Error> {
        self.ready()?;
        let families = model::families(&program, self.options.deterministic);
        if let Err(error) = self.kernels.load(&families) {
            return Err(self.refuse(&error));
        }
        let (name, options) = (&self.name, &self.options);
        let model = Model::load(name, &self.context, &self.stream, program, options)?;
        let (most, budget) = (options.max_open, options.state_bytes);
        let most = most.min(room_for(&model, &self.pool, options.arena_bytes));
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
        let plan = self.plans.prepare(program, info);
        plan.map_err(|why| {
            let segment = format!("{model} k{block}[{first_node}..{end_node}]");
            self.launch_error(&segment, &why)
        })
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
        let lens = staged.iter().map(Vec::len);
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
        let mut effects = Effects::default();
        let mut failed = match self.run(launch, stage, &mut effects) {
            Ok(()) => None,
            Err(Fault::Node(why)) => Some(why),
            Err(Fault::Cuda(error)) => Some(self.note(&error)),
            Err(Fault::At(node, error)) => {
                self.note(&error);
                Some(format!("node {node}: {error}"))
            }
        };
        // What was issued before a failure runs on.
        if let Err(error) = self.stages[stage].over.record(&self.stream) {
            failed = failed.or_else(|| Some(error.to_string()));
            self.note(&error);
        }
        self.flights.push_back(Flight {
            ticket: launch.ticket,
            segment,
            stage,
            effects,
            failed,
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
        let flight = self.flights.pop_front()?;
        let cause = flight.failed.as_deref().or(self.lost.as_deref());
        let result = match cause {
            Some(why) => Err(self.launch_error(&flight.segment, why)),
            None => Ok(()),
        };
        let stopped = match &result {
            Ok(()) => self.complete(&flight),
            Err(_) => SmallVec::new(),
        };
        Some(Completion {
            ticket: flight.ticket,
            stopped,
            result,
        })
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
