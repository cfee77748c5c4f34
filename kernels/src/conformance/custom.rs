//! Problems of custom nodes: what they run is handed to the device that is checked.

use std::sync::Arc;

use lazybatch_graph::{CustomOp, DType, ProgramBuilder, Repeat};

use super::problems::{LONGEST, Problem, problem};
use crate::custom::{CustomCall, CustomKernel, CustomNode, KernelRegistry};

/// A custom op of the suite; its kernel is registered by whoever runs it.
pub fn custom_problem(registry: KernelRegistry, batchable: bool) -> Problem {
    let mut p = problem(format!("custom-batchable-{batchable}"), 1e-5, move || {
        let mut b = ProgramBuilder::new("custom").with_seed(3);
        let x = b.sequence("x", DType::F32, &[6], LONGEST);
        let y = b.output_sequence("y", DType::F32, &[6]);
        b.begin_block("block", Repeat::Once);
        let x = b.read_input("x", x);
        let op = CustomOp {
            name: "shift".into(),
            output_dims: vec![6],
            flops_per_row: 6,
            batchable,
        };
        let bias = b.seeded_within("bias", &[6], 1.0);
        let v = b.custom("custom", op, &[x, bias]);
        b.emit("emit", y, v);
        b.finish().expect("a valid problem")
    });
    p.registry = registry;
    p
}

/// A custom op whose kernel, in the problem's registry, looks at all rows of a member.
pub fn custom_means(batchable: bool) -> Problem {
    let name = format!("custom-means-batchable-{batchable}");
    let mut p = problem(name, 1e-5, move || {
        let mut b = ProgramBuilder::new("means");
        let x = b.sequence("x", DType::F32, &[5], LONGEST);
        let y = b.output_sequence("y", DType::F32, &[5]);
        b.begin_block("block", Repeat::Once);
        let x = b.read_input("x", x);
        let op = CustomOp {
            name: "means".into(),
            output_dims: vec![5],
            flops_per_row: 10,
            batchable,
        };
        let v = b.custom("custom", op, &[x]);
        b.emit("emit", y, v);
        b.finish().expect("a valid problem")
    });
    p.registry.register("means", Arc::new(Means));
    p
}

/// Rows less the mean of their member's rows.
struct Means;

impl CustomKernel for Means {
    fn validate(&self, node: &CustomNode<'_>) -> Result<(), String> {
        match node.operands.len() {
            1 => Ok(()),
            _ => Err("one operand".into()),
        }
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        let x = call.operands[0];
        for member in call.offsets.windows(2) {
            let rows = member[0]..member[1];
            for i in 0..x.row_elems {
                let sum: f32 = rows.clone().map(|r| x.row(r)[i]).sum();
                let mean = sum / rows.len() as f32;
                for r in rows.clone() {
                    call.output[r * x.row_elems + i] = x.row(r)[i] - mean;
                }
            }
        }
        Ok(())
    }
}
