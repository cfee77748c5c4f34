//! A loaded model: weights in the form their kernels take, and where values lie.

use std::sync::Arc;

use lazybatch_graph::{Op, SharedProgram, WeightDecl, WeightId, WeightSource};

use super::Needs;
use super::buffers::Aligned;
use super::cache::{Packing, WeightCache};
use super::gemm::{PackedB, WeightType};
use super::layout::Layouts;
use super::memory::ProgramMemory;
use super::ops::conv::Filters;
use super::stored::Stored;
use crate::arena::BlockPlan;
use crate::custom::{CustomKernel, CustomNode, KernelRegistry};
use crate::error::Error;
use crate::frames::Places;
use crate::general::General;

/// A weight in the forms that nodes use.
#[derive(Debug, Default)]
pub struct Weight {
    /// Row-major, as read by anything but a product.
    pub plain: Option<Aligned>,
    /// Packed as the right side of a product.
    pub right: Option<PackedB>,
    /// Packed as the filters of a convolution.
    pub filters: Option<Filters>,
}

/// A loaded model.
pub struct Model {
    /// The program.
    pub program: SharedProgram,
    /// By weight id.
    pub weights: Vec<Weight>,
    /// Where values lie.
    pub places: Places,
    /// What requests hold.
    pub memory: ProgramMemory,
    /// How images lie in memory.
    pub layouts: Layouts,
    /// By node id.
    pub customs: Vec<Option<Arc<dyn CustomKernel>>>,
    /// By node id.
    pub general: Vec<Option<General>>,
    /// Bytes of all weights as they are held.
    pub weight_bytes: usize,
}

/// How a node uses a weight operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Right,
    Filters { groups: usize },
}

fn form(op: &Op, operand: usize) -> Form {
    match op {
        Op::Linear { .. } if operand == 1 => Form::Right,
        Op::LstmCell { ahead: false, .. } if matches!(operand, 1 | 2 | 4) => Form::Right,
        Op::LstmCell { ahead: true, .. } if matches!(operand, 1 | 3) => Form::Right,
        Op::GruCell { ahead: false, .. } if matches!(operand, 1 | 2) => Form::Right,
        Op::GruCell { ahead: true, .. } if operand == 1 => Form::Right,
        Op::Conv2d { groups, .. } if operand == 1 => Form::Filters { groups: *groups },
        _ => Form::Plain,
    }
}

impl Model {
    /// Converts and packs the weights (those of products as `right`) or finds them in the `cache`,
    /// resolves custom kernels, plans where values lie.
    ///
    /// # Errors
    /// An op that the device does not run, a weight without data or that `right` cannot hold.
    pub fn load(
        device: &str,
        program: SharedProgram,
        registry: &KernelRegistry,
        right: WeightType,
        mut cache: Option<&mut WeightCache>,
    ) -> Result<Self, Error> {
        let mut weights: Vec<Weight> = program.weights.iter().map(|_| Weight::default()).collect();
        let mut customs = vec![None; program.nodes.len()];
        let mut general = Vec::with_capacity(program.nodes.len());
        for (i, node) in program.nodes.iter().enumerate() {
            let unsupported = |op: &str, why: String| Error::Unsupported {
                device: device.to_owned(),
                node: node.name.clone(),
                op: op.to_owned(),
                why,
            };
            if let Op::Custom(op) = &node.op {
                let kernel = registry.get(&op.name).ok_or_else(|| {
                    unsupported(&op.name, "a kernel of this name in the registry".into())
                })?;
                let operands = node.inputs.iter().map(|&v| &program.value(v).ty).collect();
                let bound = CustomNode {
                    name: &node.name,
                    op,
                    operands,
                };
                kernel
                    .validate(&bound)
                    .map_err(|why| unsupported(&op.name, why))?;
                customs[i] = Some(kernel);
            }
            general.push(match &node.op {
                Op::Tensor(op) => {
                    let made = General::new(&node.name, op);
                    Some(made.map_err(|why| unsupported(&op.op, why))?)
                }
                _ => None,
            });
            for (operand, &value) in node.inputs.iter().enumerate() {
                let form = form(&node.op, operand);
                let Some(weight) = program.as_weight(value) else {
                    if form != Form::Plain {
                        let why = format!("operand {operand} to be a weight");
                        return Err(unsupported("product", why));
                    }
                    continue;
                };
                let cache = cache.as_deref_mut();
                let prepared = &mut weights[weight.index()];
                prepare(&program, weight, form, right, cache, prepared)?;
            }
        }
        let mut local = vec![usize::MAX; program.values.len()];
        let needs = Needs::of(&program, right);
        let blocks = (0..program.blocks.len())
            .map(|b| BlockPlan::of(&program, b, &mut local, &|id| needs.node(id)))
            .collect::<Vec<_>>();
        let weight_bytes = weights
            .iter()
            .map(|w| {
                w.plain.as_ref().map_or(0, |p| p.len() * 4)
                    + w.right.as_ref().map_or(0, PackedB::bytes)
                    + w.filters.as_ref().map_or(0, Filters::bytes)
            })
            .sum();
        Ok(Self {
            layouts: needs.layouts,
            memory: ProgramMemory::planned(&program, &blocks),
            program,
            weights,
            places: Places { blocks, local },
            customs,
            general,
            weight_bytes,
        })
    }
}

/// Puts a weight in the form that an operand takes, from the cache if it is there.
fn prepare(
    program: &SharedProgram,
    id: WeightId,
    form: Form,
    right: WeightType,
    cache: Option<&mut WeightCache>,
    weight: &mut Weight,
) -> Result<(), Error> {
    let have = match form {
        Form::Plain => weight.plain.is_some(),
        Form::Right => weight.right.is_some(),
        Form::Filters { groups } => weight.filters.as_ref().is_some_and(|f| f.is_for(groups)),
    };
    if have {
        return Ok(());
    }
    let decl = program.weight(id);
    let dims = decl.ty.fixed_dims();
    let fail = |why: String| Error::Weight {
        model: program.name.clone(),
        weight: decl.name.clone(),
        why,
    };
    match form {
        Form::Plain => {
            let elems = elements(decl).map_err(fail)?;
            weight.plain = Some(Aligned::from_slice(&elems));
        }
        Form::Right => {
            let [k, n] = dims[..] else {
                return Err(fail(format!("a product needs [k, n], this is {}", decl.ty)));
            };
            let packed = cached(
                cache,
                decl,
                (Packing::Right(right), PackedB::held(right, k, n)),
                |data| PackedB::stored(right, k, n, data),
                || PackedB::pack_as(right, &elements(decl)?, k, n),
                |packed| vec![packed.data()],
            );
            weight.right = Some(packed.map_err(fail)?);
        }
        Form::Filters { .. } if weight.filters.is_some() => {
            return Err(fail(
                "expected one number of groups in all convolutions of it".into(),
            ));
        }
        Form::Filters { groups } => {
            let form = Filters::form(&dims, groups).map_err(fail)?;
            let packed = cached(
                cache,
                decl,
                (Packing::Filters { groups }, form.held()),
                |data| Filters::stored(&form, &data),
                || Filters::pack(&elements(decl)?, &dims, groups),
                Filters::parts,
            );
            weight.filters = Some(packed.map_err(fail)?);
        }
    }
    Ok(())
}

/// The elements of a weight, ids as the bits of i32.
fn elements(decl: &WeightDecl) -> Result<Vec<f32>, String> {
    let num = decl.ty.row_elems();
    let elems = match &decl.source {
        WeightSource::Data(t) if !decl.ty.dtype.is_float() && !t.dtype.is_float() => t
            .to_i32()
            .into_iter()
            .map(|id| f32::from_bits(id as u32))
            .collect(),
        other => other.to_f32(num),
    };
    if elems.len() != num {
        let got = elems.len();
        return Err(format!(
            "{} needs {num} elements, its source has {got}",
            decl.ty
        ));
    }
    Ok(elems)
}

/// A packed weight of `len` elements: from the cache, or else by `pack`, and then kept there.
fn cached<T>(
    cache: Option<&mut WeightCache>,
    decl: &WeightDecl,
    (packing, len): (Packing, usize),
    stored: impl FnOnce(Stored) -> T,
    pack: impl FnOnce() -> Result<T, String>,
    parts: impl Fn(&T) -> Vec<&[f32]>,
) -> Result<T, String> {
    let Some(cache) = cache else {
        return pack();
    };
    let Some(key) = cache.key(decl, packing, len) else {
        return pack();
    };
    if let Some(data) = cache.find(key, len) {
        return Ok(stored(data));
    }
    let packed = pack()?;
    cache.keep(key, &parts(&packed));
    Ok(packed)
}
