//! A loaded model: weights in the form their kernels take, and where values lie.

use lazybatch_graph::{SharedProgram, WeightDecl, WeightId};

use super::Needs;
use super::buffers::Aligned;
use super::cache::{Packing, WeightCache};
use super::gemm::{PackedB, WeightType};
use super::layout::Layouts;
use super::memory::ProgramMemory;
use super::ops::conv::Filters;
use super::parts::Sizes;
use super::stored::Stored;
use crate::arena::{BlockPlan, Extent};
use crate::custom::KernelRegistry;
use crate::error::Error;
use crate::frames::Places;
use crate::host_nodes::{self, HostNode};
use crate::validate::{WeightForm, weight_elements};

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
    /// What nodes read and write.
    pub sizes: Sizes,
    /// What requests hold.
    pub memory: ProgramMemory,
    /// How images lie in memory.
    pub layouts: Layouts,
    /// By node id.
    pub host_nodes: Vec<Option<HostNode>>,
    /// Bytes of all weights as they are held.
    pub weight_bytes: usize,
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
        let host_nodes = host_nodes::resolve(device, &program, registry)?;
        for node in &program.nodes {
            let unsupported = |op: &str, why: String| Error::Unsupported {
                device: device.to_owned(),
                node: node.name.clone(),
                op: op.to_owned(),
                why,
            };
            for (operand, &value) in node.inputs.iter().enumerate() {
                let form = WeightForm::of(&node.op, operand);
                let Some(weight) = program.as_weight(value) else {
                    if form != WeightForm::Plain {
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
            sizes: Sizes::of(&program),
            program,
            weights,
            places: Places { blocks, local },
            host_nodes,
            weight_bytes,
        })
    }
}

/// Positions of a request whose program does not bound them, where memory is made ready.
const USUAL_LEN: usize = 128;

impl Model {
    /// Elements of an arena and of working memory that hold any launch of up to `samples` samples, of
    /// the greatest length.
    pub fn extents(&self, samples: usize) -> (usize, usize) {
        let len = match self.program.length_input {
            None => 1,
            Some(_) => self.memory.longest().unwrap_or(USUAL_LEN),
        };
        let rows = samples.saturating_mul(len);
        let most = |of: fn(&BlockPlan) -> Extent| {
            let blocks = self.places.blocks.iter().map(of);
            let elems = blocks.map(|e| e.saturating_elems(rows, samples));
            elems.max().unwrap_or(0)
        };
        (most(|b| b.arena), most(|b| b.scratch))
    }
}

/// Puts a weight in the form that an operand takes, from the cache if it is there.
fn prepare(
    program: &SharedProgram,
    id: WeightId,
    form: WeightForm,
    right: WeightType,
    cache: Option<&mut WeightCache>,
    weight: &mut Weight,
) -> Result<(), Error> {
    let have = match form {
        WeightForm::Plain => weight.plain.is_some(),
        WeightForm::Right => weight.right.is_some(),
        WeightForm::Filters { groups } => weight.filters.as_ref().is_some_and(|f| f.is_for(groups)),
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
        WeightForm::Plain => {
            let elems = weight_elements(decl).map_err(fail)?;
            weight.plain = Some(Aligned::from_slice(&elems));
        }
        WeightForm::Right => {
            let [k, n] = dims[..] else {
                return Err(fail(format!("a product needs [k, n], this is {}", decl.ty)));
            };
            let packed = cached(
                cache,
                decl,
                (Packing::Right(right), PackedB::held(right, k, n)),
                |data| PackedB::stored(right, k, n, data),
                || PackedB::pack_as(right, &weight_elements(decl)?, k, n),
                |packed| vec![packed.data()],
            );
            weight.right = Some(packed.map_err(fail)?);
        }
        WeightForm::Filters { .. } if weight.filters.is_some() => {
            return Err(fail(
                "expected one number of groups in all convolutions of it".into(),
            ));
        }
        WeightForm::Filters { groups } => {
            let form = Filters::form(&dims, groups).map_err(fail)?;
            let packed = cached(
                cache,
                decl,
                (Packing::Filters { groups }, form.held()),
                |data| Filters::stored(&form, &data),
                || Filters::pack(&weight_elements(decl)?, &dims, groups),
                Filters::parts,
            );
            weight.filters = Some(packed.map_err(fail)?);
        }
    }
    Ok(())
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
