//! A loaded model: weights in device memory in the form their kernels take, and where values lie.

use lazybatch_graph::{Node, NodeId, Op, Program, SharedProgram, StateKind, WeightDecl, WeightId};
use lazybatch_kernels::Error;
use lazybatch_kernels::arena::{BlockPlan, Extent, NodeMemory};
use lazybatch_kernels::cpu::{ProgramMemory, WeightType};
use lazybatch_kernels::frames::Places;
use lazybatch_kernels::host_nodes::{self, HostNode};
use lazybatch_kernels::validate::{WeightForm, check_program, weight_elements};

use crate::context::{Context, DevicePtr};
use crate::error::CudaError;
use crate::kernels::conv::is_direct;
use crate::kernels::conv_matrix::Filters;
use crate::kernels::gemm_matrix::packed_per_row;
use crate::kernels::positions::rope_turns;
use crate::kernels::state_attention::{SPLIT, workspace_bytes};
use crate::kernels::{SOURCES, Source, Stored, Weights, families_of};
use crate::memory::ELEM;
use crate::options::CudaOptions;
use crate::weights::{self, Arrival, Uploads};

/// A weight in the forms that nodes use.
#[derive(Debug, Default)]
pub struct Weight {
    /// Row-major f32 (or ids), as read by anything but a product.
    pub plain: Option<DevicePtr>,
    /// As the right side of a product.
    pub right: Option<Weights>,
    /// As filters of a convolution by matrix instructions.
    pub filters: Option<(Filters, Weights)>,
    /// On the host, for nodes that run there.
    pub host: Option<Vec<f32>>,
}

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    /// The program.
    pub program: SharedProgram,
    /// By weight id.
    pub weights: Vec<Weight>,
    /// Where values lie.
    pub places: Places,
    /// What requests hold.
    pub memory: ProgramMemory,
    /// By node id.
    pub host_nodes: Vec<Option<HostNode>>,
    /// By node id: turns per position of rotary embeddings.
    pub turns: Vec<Option<DevicePtr>>,
    /// The type to which operands of matrix instructions are rounded, where they are used.
    pub matrix: Option<Stored>,
    /// Bytes of all weights as they are held.
    pub weight_bytes: usize,
    /// The weights on their way. Ends before their memory does.
    pub arrival: Arrival,
    /// Where the weights begin.
    base: DevicePtr,
    _memory: crate::context::DeviceMemory,
}

impl Model {
    /// Starts to upload the weights, resolves host nodes, plans where values lie.
    ///
    /// # Errors
    /// An op that the device does not run, a weight that cannot be held, no memory.
    pub fn load(
        device: &str,
        context: &Context,
        program: SharedProgram,
        options: &CudaOptions,
    ) -> Result<Self, Error> {
        check_program(device, &program)?;
        for node in &program.nodes {
            check_node(device, &program, node)?;
        }
        let host_nodes = host_nodes::resolve(device, &program, &options.registry)?;
        let failed = |error: CudaError| weights::refused(device, &error);
        let mut uploads = Uploads::default();
        let mut turns: Vec<Option<DevicePtr>> = vec![None; program.nodes.len()];
        let mut weights: Vec<Weight> = program.weights.iter().map(|_| Weight::default()).collect();
        for (i, node) in program.nodes.iter().enumerate() {
            if let Op::Rope { dim, theta, .. } = node.op {
                let table = rope_turns(dim, theta);
                turns[i] = Some(uploads.push(bytemuck::cast_slice(&table).to_vec()));
            }
            for (operand, &value) in node.inputs.iter().enumerate() {
                let form = WeightForm::of(&node.op, operand);
                let Some(weight) = program.as_weight(value) else {
                    if form != WeightForm::Plain {
                        return Err(Error::Unsupported {
                            device: device.to_owned(),
                            node: node.name.clone(),
                            op: weights::op_name(&node.op),
                            why: format!("operand {operand} to be a weight"),
                        });
                    }
                    continue;
                };
                let to = &mut weights[weight.index()];
                let is_host = host_nodes[i].is_some();
                prepare(&program, weight, form, is_host, options, &mut uploads, to)?;
            }
        }
        let weight_bytes = uploads.bytes();
        let what = format!("the weights of {}", program.name);
        let (memory, arrival) = uploads.run(context, &what).map_err(failed)?;
        let base = memory.at();
        let placed = |at: &mut DevicePtr| *at = base.add(at.0 as usize);
        turns.iter_mut().flatten().for_each(placed);
        for weight in &mut weights {
            weight.plain.iter_mut().for_each(placed);
            if let Some((_, filters)) = &mut weight.filters {
                placed(&mut filters.at);
            }
            if let Some(right) = &mut weight.right {
                placed(&mut right.at);
                if let Stored::Int8 { scales } = &mut right.stored {
                    placed(scales);
                }
            }
        }
        let mut local = vec![usize::MAX; program.values.len()];
        let need = |id: NodeId| node_memory(&program, id, options);
        let blocks = (0..program.blocks.len())
            .map(|b| BlockPlan::of(&program, b, &mut local, &need))
            .collect::<Vec<_>>();
        Ok(Self {
            memory: ProgramMemory::planned(&program, &blocks),
            places: Places { blocks, local },
            program,
            weights,
            host_nodes,
            turns,
            matrix: options.matrix(),
            weight_bytes,
            arrival,
            base,
            _memory: memory,
        })
    }

    /// Whether all weights of a node are in device memory.
    ///
    /// # Errors
    /// The failure of their copies.
    pub fn has_arrived(&self, node: NodeId) -> Result<bool, CudaError> {
        let inputs = self.program.node(node).inputs.iter();
        let weights = inputs.filter_map(|&value| self.program.as_weight(value));
        let forms = weights.flat_map(|id| {
            let weight = &self.weights[id.index()];
            let scales = match weight.right {
                Some(Weights {
                    stored: Stored::Int8 { scales },
                    ..
                }) => Some(scales),
                _ => None,
            };
            let filters = weight.filters.map(|(_, w)| w);
            let [right, filters] = [weight.right, filters].map(|w| w.map(|w| w.at));
            [weight.plain, right, filters, scales]
        });
        for at in forms.chain([self.turns[node.index()]]).flatten() {
            if !self.arrival.is_there((at.0 - self.base.0) as usize)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The families of kernels that the nodes of a program use. Nodes that none takes are refused when
/// the model is loaded.
pub fn families(program: &Program, options: &CudaOptions) -> Vec<&'static Source> {
    let mut files = vec!["rows.cu"];
    if !options.deterministic {
        // What comes before and behind a library's products.
        files.push("elementwise.cu");
    }
    for node in &program.nodes {
        let of_node = families_of(program, node).unwrap_or_default();
        files.extend(of_node.iter().map(|source| source.file));
    }
    if options.matrix().is_none() {
        files.retain(|file| !file.ends_with("_matrix.cu"));
    }
    let used = SOURCES.iter().filter(|s| files.contains(&s.file));
    used.copied().collect()
}

/// Refuses what no kernel here takes, and what does not run on the host either.
fn check_node(device: &str, program: &Program, node: &Node) -> Result<(), Error> {
    let is_host = matches!(node.op, Op::Tensor(_) | Op::Custom(_));
    let why = match families_of(program, node) {
        Ok(families) if families.is_empty() && !is_host => "an op with a kernel".to_owned(),
        Ok(_) => return Ok(()),
        Err(why) => why,
    };
    Err(Error::Unsupported {
        device: device.to_owned(),
        node: node.name.clone(),
        op: weights::op_name(&node.op),
        why,
    })
}

/// Puts a weight in the form that an operand takes. Places count from the start of all weights.
fn prepare(
    program: &Program,
    id: WeightId,
    form: WeightForm,
    is_host: bool,
    options: &CudaOptions,
    uploads: &mut Uploads,
    weight: &mut Weight,
) -> Result<(), Error> {
    let decl = program.weight(id);
    let fail = |why: String| Error::Weight {
        model: program.name.clone(),
        weight: decl.name.clone(),
        why,
    };
    let filters = if is_host {
        None
    } else {
        filters(decl, form, options)
    };
    let have = match (is_host, form) {
        (true, _) => weight.host.is_some(),
        (false, WeightForm::Right) => weight.right.is_some(),
        (false, _) => match (&filters, &weight.filters) {
            (Some((new, _)), Some((held, _))) if new != held => {
                let expected = "expected one number of groups in all convolutions of it";
                return Err(fail(expected.into()));
            }
            (Some(_), held) => held.is_some(),
            (None, _) => weight.plain.is_some(),
        },
    };
    if have {
        return Ok(());
    }
    let elems = weight_elements(decl).map_err(fail)?;
    match (is_host, form) {
        (true, _) => weight.host = Some(elems),
        (false, WeightForm::Right) => {
            let [k, n] = decl.ty.fixed_dims()[..] else {
                return Err(fail(format!("a product needs [k, n], this is {}", decl.ty)));
            };
            let right = weights::right(
                (options.weights, options.matrix().is_some()),
                &elems,
                k,
                n,
                uploads,
            );
            weight.right = Some(right.map_err(fail)?);
        }
        (false, _) => match filters {
            Some((filters, stored)) => {
                let held = weights::filters(stored, &elems, &filters, uploads).map_err(fail)?;
                weight.filters = Some((filters, held));
            }
            None => weight.plain = Some(uploads.push(bytemuck::cast_slice(&elems).to_vec())),
        },
    }
    Ok(())
}

/// How filters lie for matrix instructions, and their type, if a weight is used so.
fn filters(
    decl: &WeightDecl,
    form: WeightForm,
    options: &CudaOptions,
) -> Option<(Filters, Stored)> {
    let WeightForm::Filters { groups } = form else {
        return None;
    };
    let dims: [usize; 4] = decl.ty.fixed_dims()[..].try_into().ok()?;
    let stored = options.matrix().filter(|_| !is_direct(dims[0], groups))?;
    Some((Filters::new(dims, groups), stored))
}

/// What a node takes of memory on this device.
fn node_memory(program: &Program, id: NodeId, options: &CudaOptions) -> NodeMemory {
    let node = program.node(id);
    let columns = |operand: usize| program.value(node.inputs[operand]).ty.fixed_dims();
    let in_place = match node.op {
        Op::Reshape { .. } | Op::Unary(_) | Op::Scale(_) | Op::Softmax | Op::Rope { .. } => Some(0),
        Op::AddPosition | Op::Binary(_) | Op::Elementwise(_) => Some(0),
        _ => None,
    };
    // What a library takes besides: rows of a state one behind another, and left sides rounded; and
    // matrix instructions left sides in tiles.
    let is_library = !options.deterministic;
    let is_half = matches!(options.weights, WeightType::F16 | WeightType::Bf16);
    let is_matrix = options.matrix().is_some();
    let rounded = |k: usize| match (is_library && is_half, is_matrix) {
        (true, _) => Some(k.div_ceil(2)),
        (false, true) => Some(packed_per_row(k)),
        (false, false) => None,
    };
    let row = |operand: usize| program.value(node.inputs[operand]).ty.row_elems();
    // Elements for each row or sample.
    let pieces: Vec<usize> = match &node.op {
        Op::Linear { .. } => {
            let k = columns(1)[0].max(1);
            rounded(k)
                .map(|each| row(0) / k * each)
                .into_iter()
                .collect()
        }
        Op::LstmCell { proj, ahead, .. } => {
            let w_hh = columns(1 + usize::from(!ahead));
            let packed = is_library.then_some(w_hh[0]);
            let whole = proj.then_some(w_hh[1] / 4);
            let halves = [rounded(row(0)), rounded(w_hh[0]), rounded(w_hh[1] / 4)];
            let all = [Some(w_hh[1]), packed, whole].into_iter().chain(halves);
            all.flatten().collect()
        }
        Op::GruCell { ahead, .. } => {
            let w_hh = columns(1 + usize::from(!ahead));
            let packed = is_library.then_some(w_hh[0]);
            let own = (!ahead).then_some(w_hh[1]);
            let halves = [rounded(row(0)), rounded(w_hh[0])];
            let all = [Some(w_hh[1]), packed, own].into_iter().chain(halves);
            all.flatten().collect()
        }
        Op::StateAttention { heads, keys, .. } => {
            let longest = match program.state(*keys).kind {
                StateKind::Sequence { max_len, .. } => max_len,
                StateKind::Vector { .. } => 0,
            };
            let is_split = longest > SPLIT;
            let bytes = workspace_bytes(1, *heads, longest);
            is_split.then_some(bytes / ELEM).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let ty = node.inputs.first().map(|&v| &program.value(v).ty);
    let scratch = ty.map_or_else(Extent::default, |ty| {
        let each = pieces.iter().map(|&elems| Extent::piece(ty, elems));
        each.fold(Extent::default(), Extent::and)
    });
    NodeMemory { in_place, scratch }
}
