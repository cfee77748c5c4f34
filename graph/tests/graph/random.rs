//! Random small programs: what holds for all of them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lazybatch_graph::cost::costs;
use lazybatch_graph::{
    Act, BlockId, DType, Fused, Liveness, MultiHead, Op, Program, ProgramBuilder, Repeat, Segments,
    TensorType, ValueId, Window, dump, optimize, verify,
};
use proptest::prelude::*;

/// One step of growth: what to add, and which earlier values it takes (modulo what there is).
type Step = (u8, usize, usize);

/// Grows a block of row nodes from `x` and returns a value `[.., 8]`.
fn grow(b: &mut ProgramBuilder, prefix: &str, x: ValueId, steps: &[Step]) -> ValueId {
    let mut values = vec![x];
    b.scope(prefix, |b| {
        for (i, &(kind, first, second)) in steps.iter().enumerate() {
            let x = values[first % values.len()];
            let y = values[second % values.len()];
            let name = format!("step{i}");
            let once = b.ty(x).lead() == Some(lazybatch_graph::Dim::Rows);
            values.push(match kind % 10 {
                0 => b.add(&name, x, y),
                1 => b.mul(&name, x, y),
                2 => b.unary(&name, Act::Relu, x),
                3 => b.dense(&name, x, 8, None),
                4 => b.dense_with(&name, x, 8, Fused::default()),
                5 => {
                    let bias = b.constant(&format!("{name}.bias"), &[8], 0.1);
                    b.add(&name, x, bias)
                }
                6 => b.norm(&name, x, 1e-5),
                7 if once => b.self_attention(&name, x, MultiHead::new(2), Some(y)),
                7 => b.lstm(&name, x, 8),
                8 => b.ffn(&name, x, 16, Act::Gelu, Some(y)),
                _ => {
                    let both = b.concat(&name, &[x, y]);
                    b.slice(&format!("{name}.half"), both, 4, 8)
                }
            });
        }
    });
    *values.last().unwrap()
}

/// An encoder in one piece, a recurrent block and a decoder, each grown at random.
fn sequence_model(steps: &[Vec<Step>; 3]) -> Program {
    let mut b = ProgramBuilder::new("random").with_seed(7);
    let ids = b.sequence_ids("ids", 12, 20);
    let pooled = b.output("pooled", DType::F32, &[8]);
    let each = b.output_sequence("each", DType::F32, &[8]);
    let tokens = b.output_sequence("tokens", DType::I32, &[]);
    b.begin_block("once", Repeat::Once);
    let i = b.read_input("ids", ids);
    let x = b.embed("embed", i, 20, 8);
    let x = grow(&mut b, "once", x, &steps[0]);
    let memory = b.cross_memory("memory", x, 8, 12);
    let mean = b.mean_rows("mean", x);
    b.emit("pooled", pooled, mean);
    b.begin_block("steps", Repeat::PerInputStep { stride: 1 });
    let i = b.read_input("id", ids);
    let x = b.embed("embed2", i, 20, 8);
    let x = grow(&mut b, "steps", x, &steps[1]);
    b.emit("each", each, x);
    let last = b.vector_state("last", DType::I32, &[], 1.0);
    b.begin_block("loop", Repeat::UntilStop { max: 9 });
    let t = b.vec_read("token", last);
    let x = b.embed("embed3", t, 30, 8);
    let x = grow(&mut b, "loop", x, &steps[2]);
    let x = b.cross_attention("cross", x, 4, memory, Some(x));
    let logits = b.dense("out", x, 30, None);
    let best = b.arg_max("best", logits);
    b.vec_write("keep", last, best);
    b.emit("tokens", tokens, best);
    b.stop("stop", best, 2);
    b.finish().unwrap()
}

fn image_model(steps: &[Step]) -> Program {
    let mut b = ProgramBuilder::new("image");
    let image = b.input("image", DType::F32, &[4, 6, 6]);
    let y = b.output("y", DType::F32, &[4]);
    b.begin_block("main", Repeat::Once);
    let mut values = vec![b.read_input("image", image)];
    for (i, &(kind, first, second)) in steps.iter().enumerate() {
        let (x, y) = (values[first % values.len()], values[second % values.len()]);
        let name = format!("step{i}");
        let window = Window::square(3, 1, 1);
        values.push(match kind % 5 {
            0 => b.add(&name, x, y),
            1 => b.bn(&name, x, 1e-5),
            2 => b.unary(&name, Act::Relu6, x),
            3 => b.conv(&name, x, 4, window, 1, Fused::default()),
            _ => b.conv(&name, x, 4, window, 4, Fused::default()),
        });
    }
    let x = *values.last().unwrap();
    let x = b.global_average_pool("pool", x);
    b.emit("y", y, x);
    b.finish().unwrap()
}

/// Types that reach the outputs, and kinds of effects, in order.
fn effects(program: &Program) -> Vec<(String, TensorType)> {
    let emits = program
        .nodes
        .iter()
        .filter(|n| matches!(n.op, Op::Emit { .. } | Op::Stop { .. }));
    emits
        .map(|n| (n.op.to_string(), program.value(n.inputs[0]).ty.clone()))
        .collect()
}

fn check(program: &Program) -> Result<(), TestCaseError> {
    verify(program).unwrap();
    let better = optimize(program.clone()).unwrap();
    prop_assert_eq!(effects(program), effects(&better));
    prop_assert!(better.nodes.len() <= program.nodes.len());
    let again = optimize(better.clone()).unwrap();
    prop_assert_eq!(dump(&better, None), dump(&again, None));
    for program in [program, &better] {
        prop_assert_eq!(dump(program, None), dump(&program.clone(), None));
        let live = Liveness::of(program);
        for (k, block) in program.blocks.iter().enumerate() {
            let boundaries = live.block(BlockId::new(k));
            prop_assert_eq!(boundaries.len(), block.nodes.len() + 1);
            let ends = [boundaries.first().unwrap(), boundaries.last().unwrap()];
            prop_assert!(
                ends.iter()
                    .all(|b| b.bytes(1, 1) == 0 && b.values.is_empty())
            );
            // A node's activations live in front of it.
            for (position, &node) in block.nodes.iter().enumerate() {
                for &value in &program.node(node).inputs {
                    let lives = boundaries[position].values.contains(&value);
                    prop_assert_eq!(lives, program.as_weight(value).is_none());
                }
            }
        }
        for segments in [
            Segments::every(program, 3),
            Segments::by_time(program, |n| n.index() as u64 % 5, 7),
        ] {
            for (k, block) in program.blocks.iter().enumerate() {
                let ranges = segments.block(BlockId::new(k));
                let covered: Vec<usize> = ranges.iter().cloned().flatten().collect();
                prop_assert_eq!(covered, (0..block.nodes.len()).collect::<Vec<_>>());
            }
        }
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((any::<u8>(), any::<usize>(), any::<usize>()), 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sequence_programs_hold(a in steps(), b in steps(), c in steps()) {
        let program = sequence_model(&[a, b, c]);
        check(&program)?;
        // Arithmetic is moved between nodes, never lost: it can only shrink by what was dead.
        let sum = |p: &Program| costs(p).iter().map(|c| c.flops(1, 1)).sum::<u64>();
        prop_assert!(sum(&optimize(program.clone()).unwrap()) <= sum(&program));
    }

    #[test]
    fn image_programs_hold(steps in steps()) {
        check(&image_model(&steps))?;
    }
}
