//! Kernels by family. Each takes a node's view and returns its results.

use lazybatch_graph::{Node, Op, Program};

use super::gemm::WeightType;
use crate::arena::{Extent, LINE};

pub mod attention;
pub mod conv;
pub mod data;
pub mod elementwise;
pub mod host;
pub mod image;
pub mod linear;
pub mod rowwise;
pub mod sample;
pub mod state;
pub mod top_k;

/// What a node's kernel takes while it runs, with weights of products stored as `weights`.
pub fn temporaries(program: &Program, node: &Node, weights: WeightType) -> Extent {
    match node.op {
        Op::LstmCell { .. } | Op::GruCell { .. } => {
            linear::cell_temporaries(program, node, weights)
        }
        Op::Conv2d { .. } => conv::temporaries(program, node),
        Op::BatchNorm { .. } => {
            let channels = program.value(node.inputs[1]).ty.row_elems();
            Extent {
                fixed: 2 * channels.next_multiple_of(LINE),
                ..Extent::default()
            }
        }
        _ => Extent::default(),
    }
}
