//! What nodes take of memory on this device.

use lazybatch_graph::{NodeId, Op, Program};

use super::gemm::WeightType;
use super::layout::Layouts;
use super::ops;
use crate::arena::{Extent, NodeMemory};

/// Answers for the nodes of a program, with weights of products stored in a type.
#[derive(Debug)]
pub struct Needs<'a> {
    program: &'a Program,
    weights: WeightType,
    /// How images lie in memory.
    pub layouts: Layouts,
}

impl<'a> Needs<'a> {
    /// For `program`.
    pub fn of(program: &'a Program, weights: WeightType) -> Self {
        Self {
            program,
            weights,
            layouts: Layouts::of(program),
        }
    }

    /// What a node takes: copies of operands in another layout, and what its kernel wants.
    pub fn node(&self, id: NodeId) -> NodeMemory {
        let node = self.program.node(id);
        let turned = self.layouts.turned(id);
        let in_place = match node.op {
            Op::Reshape { .. } => Some(0),
            Op::Conv2d {
                groups: 1,
                residual: true,
                ..
            } => Some(node.inputs.len() - 1),
            _ => None,
        };
        let copies = turned.iter().map(|&i| {
            let ty = &self.program.value(node.inputs[i]).ty;
            Extent::piece(ty, ty.row_elems())
        });
        let own = ops::temporaries(self.program, node, self.weights);
        NodeMemory {
            in_place: in_place.filter(|_| turned.is_empty()),
            scratch: copies.fold(own, Extent::and),
        }
    }
}
