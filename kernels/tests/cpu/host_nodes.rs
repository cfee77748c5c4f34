//! Host nodes as devices call them: one of a batch that fails takes nobody along, whoever idles beside it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lazybatch_graph::{CustomOp, DType, Op, Program, ProgramBuilder, Repeat};
use lazybatch_kernels::frames::Mem;
use lazybatch_kernels::host_nodes::{Faults, resolve};
use lazybatch_kernels::{CustomCall, CustomKernel, CustomNode, KernelRegistry};
use lazybatch_sla::{RequestId, Slot};

/// Doubles rows; refuses those below 0, and calls for more than `most` members.
struct Double {
    most: usize,
}

impl CustomKernel for Double {
    fn validate(&self, _: &CustomNode<'_>) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String> {
        if call.offsets.len() > self.most + 1 {
            return Err("too many".into());
        }
        for (to, &x) in call.output.iter_mut().zip(call.operands[0].data) {
            if x < 0.0 {
                return Err(format!("{x} is below 0"));
            }
            *to = 2.0 * x;
        }
        Ok(())
    }
}

fn program() -> Program {
    let mut b = ProgramBuilder::new("double");
    let x = b.sequence("x", DType::F32, &[1], 8);
    let y = b.output_sequence("y", DType::F32, &[1]);
    b.begin_block("block", Repeat::Once);
    let x = b.read_input("x", x);
    let op = CustomOp {
        name: "double".into(),
        output_dims: vec![1],
        flops_per_row: 1,
        batchable: true,
    };
    let v = b.custom("custom", op, &[x]);
    b.emit("emit", y, v);
    b.finish().unwrap()
}

/// Members of two rows each, of which `own` are theirs.
fn members(own: &[usize]) -> Vec<Mem> {
    let one = |(i, &len): (usize, &usize)| Mem {
        request: RequestId(i as u64),
        slot: Slot(i as u32),
        step: 0,
        len,
        samples: 1,
        rows: 2,
        row_start: 2 * i,
        sample_start: i,
        idle: false,
    };
    own.iter().enumerate().map(one).collect()
}

/// Runs the node on `x`, whose rows are those of the members, one behind the other.
fn run(
    most: usize,
    members: &[Mem],
    x: &[f32],
    faults: &mut Faults,
) -> (Result<(), String>, Vec<f32>) {
    let mut registry = KernelRegistry::new();
    registry.register("double", Arc::new(Double { most }));
    let program = program();
    let nodes = resolve("test", &program, &registry).unwrap();
    let at = program
        .nodes
        .iter()
        .position(|n| matches!(n.op, Op::Custom(_)));
    let at = at.unwrap();
    let mut out = vec![f32::NAN; x.len()];
    let node = nodes[at].as_ref().unwrap();
    let data = (&[x][..], &mut [&mut out[..]][..]);
    let ran = node.run(&program, &program.nodes[at], members, data, faults);
    (ran, out)
}

const ANY: usize = 100;

#[test]
fn a_batch_that_fails_by_rows_of_nobody_that_counts_goes_on_for_the_others() {
    let x = [1.0, 2.0, -1.0, -1.0, 3.0, 4.0];
    let want = [2.0, 4.0, 0.0, 0.0, 6.0, 8.0];
    let mut idles = members(&[2, 2, 2]);
    idles[1].idle = true;
    let mut faults = Faults::new();
    let (ran, out) = run(ANY, &idles, &x, &mut faults);
    assert_eq!((ran, &out[..]), (Ok(()), &want[..]));
    assert!(faults.is_empty(), "{faults:?}");
    // One that an earlier node failed for keeps what was said of it.
    let mut faults: Faults = vec![(RequestId(1), "before".into())];
    let (ran, out) = run(ANY, &members(&[2, 2, 2]), &x, &mut faults);
    assert_eq!((ran, &out[..]), (Ok(()), &want[..]));
    assert_eq!(faults, [(RequestId(1), "before".into())]);
}

#[test]
fn a_batch_that_fails_for_none_of_its_members_fails_them_all() {
    let mut faults = Faults::new();
    let (ran, _) = run(2, &members(&[2, 2, 2]), &[1.0; 6], &mut faults);
    assert_eq!(ran, Err("too many".into()));
    let (ran, out) = run(2, &members(&[2, 2]), &[1.0; 4], &mut faults);
    assert_eq!((ran, &out[..]), (Ok(()), &[2.0; 4][..]));
    let x = [1.0, 1.0, 1.0, -2.0, 1.0, 1.0];
    let (ran, _) = run(ANY, &members(&[2, 2, 2]), &x, &mut faults);
    assert_eq!(ran, Ok(()));
    assert_eq!(faults, [(RequestId(1), "-2 is below 0".into())]);
}

#[test]
fn kernels_see_neither_padding_nor_rows_of_nobody() {
    // The second member has a row of its own and one of padding; behind them are rows of nobody.
    let x = [1.0, 2.0, 3.0, -1.0, -1.0, -1.0];
    let mut faults = Faults::new();
    let (ran, out) = run(1, &members(&[2, 1]), &x, &mut faults);
    assert_eq!(
        (ran, &out[..]),
        (Ok(()), &[2.0, 4.0, 6.0, 0.0, 0.0, 0.0][..])
    );
    assert!(faults.is_empty(), "{faults:?}");
}
