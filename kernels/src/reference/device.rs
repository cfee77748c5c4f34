//! The reference device.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use lazybatch_graph::{
    DType, Def, Op, OutputId, Program, SharedProgram, StateKind, Tensor, ValueId,
};
use lazybatch_sla::{Launch, Member, ModelId, RequestId, Slot, Time};

use super::eval;
use crate::custom::KernelRegistry;
use crate::device::{Completion, Device, DeviceInfo, OpenRequest, Plan};
use crate::error::{Error, Fault};
use crate::host_nodes::panic_text;
use crate::plans::{PlanInfo, Plans};
use crate::validate::{check_program, stage_inputs, unstage};

/// Runs launches member by member in double precision.
#[derive(Debug, Default)]
pub struct ReferenceDevice {
    registry: KernelRegistry,
    models: BTreeMap<ModelId, Loaded>,
    open: BTreeMap<Slot, Request>,
    plans: Plans,
    completions: VecDeque<Completion>,
}

/// A model with its weights.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The program.
    pub program: SharedProgram,
    /// By weight id.
    pub weights: Vec<Vec<f64>>,
    /// Kernels of custom nodes.
    pub registry: KernelRegistry,
}

/// An open request.
#[derive(Debug)]
pub(super) struct Request {
    /// The request.
    pub request: RequestId,
    /// Its model.
    pub model: ModelId,
    /// Length of its input sequence.
    pub len: usize,
    /// Samples.
    pub samples: usize,
    /// Inputs by id.
    pub inputs: Vec<Vec<f64>>,
    /// Vector states by id.
    pub vectors: Vec<Vec<f64>>,
    /// Sequence states by id; rows never written are `None`.
    pub sequences: Vec<Vec<Option<Vec<f64>>>>,
    /// Outputs by id.
    pub outputs: Vec<Option<Vec<f64>>>,
    /// Values of the block it is in.
    pub values: BTreeMap<ValueId, Vec<f64>>,
}

impl Request {
    /// Elements of each output so far.
    fn emitted(&self) -> Vec<Option<usize>> {
        let outputs = self.outputs.iter();
        outputs.map(|o| o.as_ref().map(Vec::len)).collect()
    }

    /// Takes back what was emitted since there were so many elements.
    fn take_back(&mut self, before: &[Option<usize>]) {
        for (output, before) in self.outputs.iter_mut().zip(before) {
            match before {
                Some(len) => output.iter_mut().for_each(|o| o.truncate(*len)),
                None => *output = None,
            }
        }
    }
}

impl ReferenceDevice {
    /// A device without models.
    pub fn new(registry: KernelRegistry) -> Self {
        Self {
            registry,
            ..Self::default()
        }
    }

    fn run_member(&mut self, launch: &Launch, member: &Member) -> Result<bool, Fault> {
        let model = self
            .models
            .get(&launch.model)
            .ok_or("the model is not loaded")?;
        let request = self
            .open
            .get_mut(&member.slot)
            .ok_or("a slot that is not open")?;
        if request.request != member.request {
            return Err(format!("{} holds {}", member.slot, request.request).into());
        }
        if member.idle {
            return Ok(false);
        }
        if launch.first_node == 0 {
            request.values.clear();
        }
        let block = &model.program.blocks[launch.block as usize];
        let mut stopped = false;
        for pos in launch.first_node..launch.end_node {
            let node = model.program.node(block.nodes[pos as usize]);
            let (repeat, step) = (block.repeat, member.step as usize);
            let run = || eval::run(model, request, node, repeat, step);
            // What a panic leaves behind belongs to this request, which fails.
            let done = catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|panic| Err(panic_text(&*panic).into()));
            let (values, stop) = done.map_err(|mut fault| {
                fault.name(&node.name);
                fault
            })?;
            stopped |= stop;
            for (&id, value) in node.outputs.iter().zip(values) {
                request.values.insert(id, value);
            }
        }
        Ok(stopped)
    }
}

/// Staged elements as numbers: ids are the bits of i32.
fn numbers(dtype: DType, data: &[f32]) -> Vec<f64> {
    if dtype.is_float() {
        data.iter().map(|&v| f64::from(v)).collect()
    } else {
        data.iter().map(|v| f64::from(v.to_bits() as i32)).collect()
    }
}

fn emitted(program: &Program, request: &Request, output: OutputId, from: usize) -> Option<Tensor> {
    let data = request.outputs.get(output.index())?.as_ref()?;
    let ty = &program.output(output).ty;
    let row = ty.row_elems();
    let grows = ty.dims.contains(&lazybatch_graph::Dim::Len);
    let rows = data.len() / row.max(1);
    let first = if grows { from.min(rows) } else { 0 };
    let staged: Vec<f32> = data[first * row..]
        .iter()
        .map(|&v| {
            if ty.dtype.is_float() {
                v as f32
            } else {
                f32::from_bits(v as i32 as u32)
            }
        })
        .collect();
    let dims = std::iter::once(rows - first)
        .chain(ty.fixed_dims())
        .collect();
    Some(unstage(ty.dtype, dims, &staged))
}

impl Device for ReferenceDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "reference".into(),
            num_lanes: 1,
            is_virtual: false,
        }
    }

    fn load(&mut self, id: ModelId, program: SharedProgram) -> Result<(), Error> {
        check_program("reference", &program)?;
        for node in &program.nodes {
            if let Op::Custom(op) = &node.op
                && self.registry.get(&op.name).is_none()
            {
                return Err(Error::Unsupported {
                    device: "reference".into(),
                    node: node.name.clone(),
                    op: op.name.clone(),
                    why: "a kernel of this name in the registry".into(),
                });
            }
        }
        let mut weights = Vec::with_capacity(program.weights.len());
        for w in &program.weights {
            let elems = w
                .source
                .try_to_f32(w.ty.row_elems())
                .map_err(|e| Error::Weight {
                    model: program.name.clone(),
                    weight: w.name.clone(),
                    why: e.to_string(),
                })?;
            weights.push(elems.into_iter().map(f64::from).collect());
        }
        self.models.insert(
            id,
            Loaded {
                program,
                weights,
                registry: self.registry.clone(),
            },
        );
        Ok(())
    }

    fn unload(&mut self, id: ModelId) {
        self.plans.forget(id);
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
        let program = self.models.get(&model).map(|m| &*m.program);
        self.plans.prepare(program, info).map_err(|why| {
            let segment = format!("{model} k{block}[{first_node}..{end_node}]");
            Fault::from(why).error("reference", segment)
        })
    }

    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), Error> {
        let model = self
            .models
            .get(&request.model)
            .ok_or_else(|| Error::Input {
                model: request.model.to_string(),
                input: "model".into(),
                expected: "a loaded model".into(),
                got: request.model.to_string(),
            })?;
        let program = &model.program;
        let staged = stage_inputs(program, request)?;
        let inputs = program
            .inputs
            .iter()
            .zip(&staged)
            .map(|(d, x)| numbers(d.ty.dtype, x));
        let samples = request.samples as usize;
        let vectors = program.states.iter().map(|s| match &s.kind {
            StateKind::Vector { dims, init } => {
                vec![f64::from(*init); samples * dims.iter().product::<usize>()]
            }
            StateKind::Sequence { .. } => Vec::new(),
        });
        let open = Request {
            request: request.request,
            model: request.model,
            len: request.input_len as usize,
            samples,
            inputs: inputs.collect(),
            vectors: vectors.collect(),
            sequences: vec![Vec::new(); program.states.len()],
            outputs: vec![None; program.outputs.len()],
            values: BTreeMap::new(),
        };
        self.open.insert(request.slot, open);
        Ok(())
    }

    fn enqueue(&mut self, _now: Time, plan: Plan, launch: &Launch) -> Result<(), Error> {
        let fail = |fault: Fault| {
            let (first, end) = (launch.first_node, launch.end_node);
            fault.error("reference", format!("k{}[{first}..{end}]", launch.block))
        };
        if !self.plans.is_of(plan, launch) {
            return Err(fail("the plan is for another segment".into()));
        }
        let mut completion = Completion::of(launch.ticket);
        for member in &launch.members {
            let before = self.open.get(&member.slot).map(Request::emitted);
            match self.run_member(launch, member) {
                Ok(true) => completion.stopped.push(member.request),
                Ok(false) => {}
                Err(fault) => {
                    if let (Some(request), Some(before)) = (self.open.get_mut(&member.slot), before)
                    {
                        request.take_back(&before);
                    }
                    completion.faults.push((member.request, fail(fault)));
                }
            }
        }
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
        let request = self.open.get(&slot)?;
        emitted(
            &self.models.get(&request.model)?.program,
            request,
            output,
            from,
        )
    }

    fn close(&mut self, slot: Slot) -> Vec<Option<Tensor>> {
        let Some(request) = self.open.remove(&slot) else {
            return Vec::new();
        };
        let program = &self.models[&request.model].program;
        (0..program.outputs.len())
            .map(|o| emitted(program, &request, OutputId::new(o), 0))
            .collect()
    }
}

impl Loaded {
    /// An operand's elements.
    pub fn operand<'a>(&'a self, request: &'a Request, value: ValueId) -> &'a [f64] {
        match self.program.value(value).def {
            Def::Weight(w) => &self.weights[w.index()],
            Def::Node { .. } => &request.values[&value],
        }
    }
}
