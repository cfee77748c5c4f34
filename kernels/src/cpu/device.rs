//! The cpu device: residency, open requests, launches.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazybatch_graph::{OutputId, Program, SharedProgram, StateDecl, StateKind, Tensor};
use lazybatch_sla::{Launch, ModelId, RequestId, Slot, Time};
use smallvec::SmallVec;

use super::buffers::{Aligned, Arenas, Buf, Buffers, Scratch};
use super::cache::{CacheReport, WeightCache};
use super::exec::{self, Env};
use super::gemm::WeightType;
use super::model::Model;
use super::open::{Emitted, Open, Output};
use super::options::CpuOptions;
use super::parts::Parts;
use super::pool::Pool;
use super::states::StatePools;
use crate::custom::KernelRegistry;
use crate::device::{Completion, Device, DeviceInfo, OpenRequest, Packed, Packer, Plan};
use crate::error::Error;
use crate::frames::Frames;
use crate::host_nodes::{Faults, has_failed, panic_text};
use crate::memory::MemoryBound;
use crate::plans::{PlanInfo, Plans, segment_name};
use crate::slots::Slots;
use crate::validate::{check_program, stage_inputs};

/// Runs launches in place on the processor.
pub struct CpuDevice {
    name: String,
    options: CpuOptions,
    pool: Pool,
    /// Memory of vector states.
    buffers: Buffers,
    /// Memory of frames.
    arenas: Arenas,
    /// Memory of nodes while they run.
    scratch: Scratch,
    models: BTreeMap<ModelId, Resident>,
    plans: Plans,
    slots: Slots<Open>,
    frames: Frames<Arenas>,
    parts: Parts,
    /// What the launch that runs has emitted.
    emits: Vec<Emitted>,
    packer: Arc<CpuPacker>,
    completions: VecDeque<Completion>,
    fail_next: u32,
}

/// Packs weights on any thread.
struct CpuPacker {
    device: String,
    registry: KernelRegistry,
    weights: WeightType,
    max_open: usize,
    state_bytes: usize,
    cache: Option<Mutex<WeightCache>>,
    warm_bytes: usize,
    /// Elements of the largest arena and the largest working memory that were made ready.
    ready: [AtomicUsize; 2],
}

/// Memory for the first launches of a model: an arena, and what nodes work in. Empty where there was as
/// much before.
#[derive(Default)]
struct Room {
    arena: Aligned,
    scratch: Aligned,
}

impl CpuPacker {
    fn room(&self, model: &Model, samples: u32) -> Room {
        let (arena, scratch) = model.extents(samples as usize);
        let most = self.warm_bytes / size_of::<f32>();
        let made = |elems: usize, ready: &AtomicUsize| {
            let elems = elems.min(most);
            match ready.fetch_max(elems, Ordering::Relaxed) < elems {
                true => Aligned::touched(elems),
                false => Aligned::default(),
            }
        };
        let [arenas, scratches] = &self.ready;
        Room {
            arena: made(arena, arenas),
            scratch: made(scratch, scratches),
        }
    }

    fn cache(&self) -> Option<MutexGuard<'_, WeightCache>> {
        let cache = self.cache.as_ref()?;
        Some(cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn resident(&self, program: SharedProgram) -> Result<Resident, Error> {
        check_program(&self.device, &program)?;
        let mut cache = self.cache();
        let (registry, weights) = (&self.registry, self.weights);
        let model = Model::load(
            &self.device,
            program,
            registry,
            weights,
            cache.as_deref_mut(),
        )?;
        drop(cache);
        let (states, fit) = StatePools::new(&model.program, self.max_open, self.state_bytes);
        if fit == 0 {
            return Err(Error::OutOfMemory {
                device: self.device.clone(),
                what: format!("state memory for one request of {}", model.program.name),
                needed: 1,
                available: 0,
            });
        }
        let is_paged = |s: &StateDecl| matches!(s.kind, StateKind::Sequence { .. });
        let has_pages = model.program.states.iter().any(is_paged);
        let max_open = has_pages.then(|| u32::try_from(fit).unwrap_or(u32::MAX));
        Ok(Resident {
            model,
            states,
            max_open,
        })
    }
}

impl Packer for CpuPacker {
    fn pack(&self, program: SharedProgram, samples: u32) -> Result<Packed, Error> {
        let resident = self.resident(program)?;
        Ok(Packed(Box::new(PackedModel {
            device: self.device.clone(),
            room: self.room(&resident.model, samples),
            resident,
        })))
    }
}

/// A model ready for a device of that name.
struct PackedModel {
    device: String,
    resident: Resident,
    room: Room,
}

struct Resident {
    model: Model,
    states: StatePools,
    /// Requests of the greatest length that the pools of sequence states hold; `None` without any.
    max_open: Option<u32>,
}

/// Instructions, threads, and how weights are stored if not as they are.
fn name(options: &CpuOptions, threads: usize) -> String {
    let name = format!("cpu-{}-{threads}t", options.level.name());
    match options.weights {
        WeightType::F32 => name,
        weights => format!("{name}-{weights}"),
    }
}

impl CpuDevice {
    /// A device without models.
    pub fn new(options: CpuOptions) -> Self {
        let pool = Pool::new(options.threads);
        let cache = |folder| Mutex::new(WeightCache::new(folder, options.level, options.warn));
        let name = name(&options, pool.threads());
        let packer = CpuPacker {
            device: name.clone(),
            registry: options.registry.clone(),
            weights: options.weights,
            max_open: options.max_open,
            state_bytes: options.state_bytes,
            cache: options.weight_cache.clone().map(cache),
            warm_bytes: options.warm_bytes,
            ready: Default::default(),
        };
        Self {
            packer: Arc::new(packer),
            name,
            buffers: Buffers::default(),
            arenas: Arenas::default(),
            scratch: Scratch::default(),
            pool,
            options,
            models: BTreeMap::new(),
            plans: Plans::default(),
            slots: Slots::default(),
            frames: Frames::default(),
            parts: Parts::default(),
            emits: Vec::new(),
            completions: VecDeque::new(),
            fail_next: 0,
        }
    }

    /// Makes the next `num` launches fail, for tests.
    pub fn fail_next_launches(&mut self, num: u32) {
        self.fail_next = num;
    }

    /// Arenas and vector states that were ever allocated: constant once warm.
    pub fn num_buffers(&self) -> usize {
        self.arenas.allocated() + self.buffers.allocated()
    }

    /// What the cache of packed weights did; nothing without one.
    pub fn weight_cache(&self) -> CacheReport {
        let cache = self.packer.cache();
        cache.map_or_else(CacheReport::default, |c| c.report().clone())
    }

    /// Bytes of arenas that frames need now, and the most that they ever needed at once.
    pub fn needed_arena_bytes(&self) -> [usize; 2] {
        self.arenas.needed_bytes()
    }

    /// Bytes of all arenas, in use or not.
    pub fn arena_bytes(&self) -> usize {
        self.arenas.bytes()
    }

    /// Frames in use: none once all requests are closed.
    pub fn num_frames(&self) -> usize {
        self.frames.len()
    }

    /// Bytes of a model's weights as they are held here.
    pub fn weight_bytes(&self, model: ModelId) -> Option<usize> {
        self.models.get(&model).map(|r| r.model.weight_bytes)
    }

    fn furnish(&mut self, room: Room) {
        self.arenas.add(room.arena);
        // SAFETY: no node runs, and temporaries do not outlive their node.
        unsafe { self.scratch.replace(room.scratch) };
    }

    fn program(&self, model: ModelId) -> Option<&Program> {
        self.models.get(&model).map(|r| &*r.model.program)
    }

    fn launch_error(&self, launch: &Launch, why: String) -> Error {
        Error::Launch {
            device: self.name.clone(),
            segment: segment_name(self.program(launch.model), launch),
            why,
        }
    }

    fn check(&self, plan: Plan, launch: &Launch) -> Result<(), String> {
        let open = |slot| self.slots.get(slot).map(Open::opened);
        self.plans
            .check(plan, launch, self.program(launch.model), open)
    }

    fn run(&mut self, launch: &Launch) -> Completion {
        let mut done = Completion::of(launch.ticket);
        let mut faults = Faults::new();
        let ran = self.run_members(launch, &mut done.stopped, &mut faults);
        self.take_back(ran.is_err(), &faults);
        if let Err(why) = ran {
            done.stopped.clear();
            done.result = Err(self.launch_error(launch, why));
            return done;
        }
        done.stopped.retain(|id| !has_failed(&faults, *id));
        let faults = faults.into_iter();
        let faults = faults.map(|(id, fault)| {
            let segment = segment_name(self.program(launch.model), launch);
            (id, fault.error(&self.name, segment))
        });
        done.faults.extend(faults);
        done
    }

    /// Takes back what those who failed have emitted in the launch that has just run; all did if the
    /// launch failed as a whole.
    fn take_back(&mut self, all: bool, faults: &Faults) {
        if !all && faults.is_empty() {
            self.emits.clear();
            return;
        }
        for emit in self.emits.drain(..).rev() {
            let open = self.slots.open_mut(emit.slot);
            if all || has_failed(faults, open.request) {
                open.outputs[emit.output.index()].take_back(emit.before);
            }
        }
    }

    fn run_members(
        &mut self,
        launch: &Launch,
        stopped: &mut SmallVec<[RequestId; 4]>,
        faults: &mut Faults,
    ) -> Result<(), String> {
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return Err("a failure asked for by a test".into());
        }
        let resident = self
            .models
            .get_mut(&launch.model)
            .ok_or("the model is not loaded")?;
        let (model, states) = (&resident.model, &mut resident.states);
        let key = self
            .frames
            .enter(launch, &model.program, &model.places, &mut self.arenas)?;
        let mut frame = self.frames.take(key);
        let plan = &model.places.blocks[launch.block as usize];
        // SAFETY: no node runs, and temporaries do not outlive their node.
        let grown = unsafe {
            self.scratch
                .grow(plan.scratch.elems(frame.rows, frame.samples))
        };
        let mut env = Env {
            pool: &mut self.pool,
            parallel_flops: self.options.parallel_flops,
            level: self.options.level,
            scratch: &mut self.scratch,
            results: SmallVec::new(),
            poison: self.options.poison,
            slots: &mut self.slots,
            states,
            emits: &mut self.emits,
            stopped,
            faults,
        };
        let [block, first, end] =
            [launch.block, launch.first_node, launch.end_node].map(|n| n as usize);
        // A panic leaves values of the launch behind and states of its members half-written; both
        // belong to requests that fail now.
        let result = grown.and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| match first {
                0 => self.parts.run(
                    &mut env,
                    &mut self.arenas,
                    model,
                    &mut frame,
                    (block, end),
                    self.options.part_bytes,
                ),
                _ => exec::run(&mut env, model, &mut frame, block, first, end),
            }))
            .unwrap_or_else(|panic| Err(panic_text(&*panic)))
        });
        if result.is_err() {
            self.parts.clear(&mut self.arenas);
            frame.fail(&mut self.arenas);
        } else if plan.live_before[end].is_empty() {
            frame.clear(&mut self.arenas);
        }
        self.frames.put_back(key, frame);
        result
    }
}

/// Vector states of a request as they are at first, by state; those of sequences are elsewhere.
///
/// # Errors
/// The state that there is no memory for, and its elements.
fn vectors(
    buffers: &mut Buffers,
    program: &Program,
    samples: usize,
) -> Result<Vec<Buf>, (String, usize)> {
    let mut all = Vec::with_capacity(program.states.len());
    for state in &program.states {
        let StateKind::Vector { dims, init } = &state.kind else {
            all.push(Buf::default());
            continue;
        };
        let num = dims.iter().fold(samples, |num, n| num.saturating_mul(*n));
        let Ok(mut buf) = buffers.take(num) else {
            all.into_iter().for_each(|buf| buffers.give(buf));
            return Err((state.name.clone(), num));
        };
        let init = if state.dtype.is_float() {
            *init
        } else {
            f32::from_bits(*init as i32 as u32)
        };
        buf.fill(init);
        all.push(buf);
    }
    Ok(all)
}

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.clone(),
            num_lanes: 1,
            is_virtual: false,
        }
    }

    fn load(&mut self, id: ModelId, program: SharedProgram) -> Result<(), Error> {
        let resident = self.packer.resident(program)?;
        self.models.insert(id, resident);
        Ok(())
    }

    fn packer(&self) -> Option<Arc<dyn Packer>> {
        Some(self.packer.clone())
    }

    fn attach(&mut self, id: ModelId, packed: Packed) -> Result<(), Error> {
        let refuse = |got: String| Error::Input {
            model: id.to_string(),
            input: "packed model".into(),
            expected: format!("what a packer of {} made", self.name),
            got,
        };
        let packed = packed.0.downcast::<PackedModel>();
        let packed = packed.map_err(|_| refuse("that of another kind of device".into()))?;
        if packed.device != self.name {
            return Err(refuse(format!("that of {}", packed.device)));
        }
        self.furnish(packed.room);
        self.models.insert(id, packed.resident);
        Ok(())
    }

    fn warm(&mut self, model: ModelId, samples: u32) {
        if let Some(resident) = self.models.get(&model) {
            let room = self.packer.room(&resident.model, samples);
            self.furnish(room);
        }
    }

    fn unload(&mut self, id: ModelId) {
        let is_open = self.slots.iter().any(|open| open.model == id);
        assert!(!is_open, "open requests of a model that is unloaded");
        self.plans.forget(id);
        let Some(resident) = self.models.remove(&id) else {
            return;
        };
        // To give much memory back takes a while, in which the others' launches would wait.
        let goes = std::thread::Builder::new().name("lazybatch-unload".into());
        // Where there is no thread for it, it goes with the closure, here.
        drop(goes.spawn(move || drop(resident)));
        if self.models.is_empty() {
            self.buffers.clear();
        }
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
        self.plans
            .prepare(program, info)
            .map_err(|why| Error::Launch {
                device: self.name.clone(),
                segment: format!("{model} k{block}[{first_node}..{end_node}]"),
                why,
            })
    }

    fn max_open(&self, model: ModelId) -> Option<u32> {
        self.models.get(&model)?.max_open
    }

    fn memory(&self, model: ModelId) -> Option<MemoryBound> {
        let memory = self.models.get(&model)?.model.memory.clone();
        Some(Arc::new(move |len, samples| {
            memory.request(len as usize, samples as usize)
        }))
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
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
        let program = &resident.model.program;
        let inputs = stage_inputs(program, request)?;
        let samples = request.samples as usize;
        let vectors = vectors(&mut self.buffers, program, samples);
        let vectors = vectors.map_err(|(state, elems)| Error::OutOfMemory {
            device: self.name.clone(),
            what: format!("state {state} of {}", program.name),
            needed: elems.saturating_mul(size_of::<f32>()),
            available: 0,
        })?;
        let reserved = resident.states.pages.reserve(request.input_len as usize);
        let sequences = match reserved {
            Ok(sequences) => sequences,
            Err((state, needed, available)) => {
                vectors.into_iter().for_each(|v| self.buffers.give(v));
                return Err(Error::OutOfMemory {
                    device: self.name.clone(),
                    what: format!(
                        "pages of state {} of {}",
                        program.states[state].name, program.name
                    ),
                    needed,
                    available,
                });
            }
        };
        let outputs = program.outputs.iter().enumerate().map(|(o, decl)| {
            let memory = &resident.model.memory;
            let rows = memory.output_rows(o, request.input_len as usize, samples);
            Output::with_room(rows.saturating_mul(decl.ty.row_elems()))
        });
        let outputs = outputs.collect();
        let open = Open {
            request: request.request,
            model: request.model,
            input_len: request.input_len as usize,
            samples,
            inputs,
            outputs,
            vectors,
            sequences,
        };
        self.slots.insert(request.slot, open);
        Ok(())
    }

    fn enqueue(&mut self, _now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        self.check(plan, launch)
            .map_err(|why| self.launch_error(launch, why))?;
        let completion = self.run(launch);
        self.completions.push_back(completion);
        Ok(())
    }

    fn poll(&mut self, _now: Time) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn next_completion(&self) -> Option<Time> {
        None
    }

    fn emitted(&self, slot: Slot, output: OutputId, from: usize) -> Option<Tensor> {
        let open = self.slots.get(slot)?;
        open.emitted(&self.models.get(&open.model)?.model.program, output, from)
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        let Some(mut open) = self.slots.remove(slot) else {
            return Vec::new();
        };
        self.frames.leave(slot, &mut self.arenas);
        let resident = self
            .models
            .get_mut(&open.model)
            .expect("models of open requests stay");
        resident.states.pages.release(&mut open.sequences);
        for buf in open.vectors.drain(..) {
            self.buffers.give(buf);
        }
        let program = &resident.model.program;
        let outputs = (0..program.outputs.len()).map(OutputId::new);
        outputs.map(|o| open.take(program, o)).collect()
    }
}

impl std::fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
