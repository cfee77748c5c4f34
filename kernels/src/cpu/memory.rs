//! What requests of a program hold on this device.

use lazybatch_graph::{OutputId, Program, StateKind};

use super::Needs;
use super::buffers::Buffers;
use super::gemm::WeightType;
use crate::arena::{BlockPlan, Extent};
use crate::memory::{Linear, OutputBound, RequestMemory, input_bytes};
use crate::pages::{PAGE, RowBound, row_bounds};

/// Bytes of an element.
const ELEM: u64 = size_of::<f32>() as u64;

/// Memory of a block's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockMemory {
    /// Name of the block.
    pub name: String,
    /// Bytes of the arena in which they share places.
    pub arena: Linear,
    /// Bytes that they would take with a place each.
    pub separate: Linear,
}

/// What requests of a program hold.
#[derive(Clone, Debug)]
pub struct ProgramMemory {
    /// By block.
    pub blocks: Vec<BlockMemory>,
    inputs: Linear,
    /// Rows of each output, and bytes of a row.
    outputs: Vec<(OutputBound, u64)>,
    /// Elements of vector states, per sample.
    vectors: Vec<usize>,
    /// Rows of sequence states, and bytes of a row.
    sequences: Vec<(RowBound, u64)>,
    longest: Option<usize>,
}

impl ProgramMemory {
    /// What requests hold, whatever the weights are stored as.
    pub fn of(program: &Program) -> Self {
        let needs = Needs::of(program, WeightType::F32);
        let mut local = vec![usize::MAX; program.values.len()];
        let plans = (0..program.blocks.len())
            .map(|b| BlockPlan::of(program, b, &mut local, &|id| needs.node(id)))
            .collect::<Vec<_>>();
        Self::planned(program, &plans)
    }

    /// As [`Self::of`], where the blocks are planned.
    pub fn planned(program: &Program, plans: &[BlockPlan]) -> Self {
        let blocks = program.blocks.iter().zip(plans).map(|(block, plan)| {
            let linear = |e: Extent| Linear {
                per_row: e.per_row as u64 * ELEM,
                per_sample: e.per_sample as u64 * ELEM,
            };
            BlockMemory {
                name: block.name.clone(),
                arena: linear(plan.arena),
                separate: linear(plan.sum),
            }
        });
        let inputs = program.inputs.iter().map(input_bytes);
        let outputs = program.outputs.iter().enumerate().map(|(o, decl)| {
            let bound = OutputBound::of(program, OutputId::new(o));
            (bound, decl.ty.row_elems() as u64 * ELEM)
        });
        let bounds = row_bounds(program);
        let mut vectors = Vec::new();
        let mut sequences = Vec::new();
        for (state, bound) in program.states.iter().zip(bounds) {
            match &state.kind {
                StateKind::Vector { dims, .. } => vectors.push(dims.iter().product()),
                StateKind::Sequence { features, .. } => {
                    sequences.push((bound, *features as u64 * ELEM));
                }
            }
        }
        Self {
            blocks: blocks.collect(),
            inputs: inputs.fold(Linear::default(), std::ops::Add::add),
            outputs: outputs.collect(),
            vectors,
            sequences,
            longest: program
                .length_input
                .and_then(|input| program.input(input).max_len),
        }
    }

    /// Most positions of a request; `None` for programs without a sequence.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Most rows that a request of that length emits to an output.
    pub fn output_rows(&self, output: usize, input_len: usize, samples: usize) -> usize {
        self.outputs[output].0.rows(input_len, samples)
    }

    /// Most bytes that a request of that length and samples holds. In a padded batch every member is
    /// as long as the longest.
    pub fn request(&self, input_len: usize, samples: usize) -> RequestMemory {
        let (len, num) = (input_len as u64, samples as u64);
        let outputs = self.outputs.iter();
        let vectors = self.vectors.iter();
        let sequences = self.sequences.iter();
        let pages = |(bound, row): &(RowBound, u64)| {
            let pages = bound.rows(input_len).div_ceil(PAGE) as u64;
            (pages * PAGE as u64).saturating_mul(*row)
        };
        RequestMemory {
            inputs: self.inputs.of(len, num),
            outputs: outputs
                .map(|(bound, row)| (bound.rows(input_len, samples) as u64).saturating_mul(*row))
                .fold(0, u64::saturating_add),
            states: vectors
                .map(|elems| Buffers::held(elems * samples) as u64 * ELEM)
                .chain(sequences.map(pages))
                .fold(0, u64::saturating_add),
            activations: self
                .blocks
                .iter()
                .map(|b| b.arena.of(len, num))
                .max()
                .unwrap_or(0)
                .saturating_mul(2),
        }
    }
}
