//! What a node costs: arithmetic and memory traffic, from its op and types alone.
//!
//! Costs are linear in rows, and for attention in pairs of a query row and a key row. They feed
//! simulated devices and first guesses; measured profiles replace them where there are any.
//! A multiply-add counts as two operations; an exponential, logarithm or square root as one.
//!
//! A node's *rows* are the samples of the sub-batch, or the positions of all its sequences, as
//! [`NodeCost::per`] says.

use crate::ids::{NodeId, ValueId};
use crate::op::Op;
use crate::program::{Program, StateKind};
use crate::shape::Dim;

/// What one launch of a node costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCost {
    /// What a row is: `Rows` (a sequence position) or `Batch` (a sample).
    pub per: Dim,
    /// Floating-point operations per row.
    pub flops_per_row: u64,
    /// Floating-point operations per pair of a row and a position it attends to; of those there are
    /// [`Seen::num_keys`](crate::Seen::num_keys) for each row of an attention within a window.
    pub flops_per_pair: u64,
    /// Bytes of weights read however many rows there are (embedding tables do not count: their
    /// reads grow with rows).
    pub weight_bytes: u64,
    /// Bytes of activations, states and table rows read and written per row.
    pub bytes_per_row: u64,
    /// Bytes of states read per pair of a row and a position it attends to.
    pub bytes_per_pair: u64,
}

impl NodeCost {
    /// Operations for `rows` rows that attend to `len` positions each.
    pub const fn flops(&self, rows: u64, len: u64) -> u64 {
        rows * (self.flops_per_row + len * self.flops_per_pair)
    }

    /// Bytes moved for `rows` rows that attend to `len` positions each.
    pub const fn bytes(&self, rows: u64, len: u64) -> u64 {
        self.weight_bytes + rows * (self.bytes_per_row + len * self.bytes_per_pair)
    }

    /// Time by the roofline: the larger of arithmetic and traffic, nothing for the launch itself.
    pub fn roofline_ns(&self, rows: u64, len: u64, flops_per_ns: f64, bytes_per_ns: f64) -> f64 {
        let compute = self.flops(rows, len) as f64 / flops_per_ns;
        let traffic = self.bytes(rows, len) as f64 / bytes_per_ns;
        compute.max(traffic)
    }
}

/// Cost of the node at `id`.
pub fn node_cost(program: &Program, id: NodeId) -> NodeCost {
    let node = program.node(id);
    let lead = |v: &ValueId| program.value(*v).ty.lead();
    let leads = node.inputs.iter().chain(&node.outputs).filter_map(lead);
    // A reduction over rows reads rows and writes samples: it costs per row.
    let per = leads.fold(
        Dim::Batch,
        |a, b| if b == Dim::Rows { Dim::Rows } else { a },
    );
    let (flops_per_row, flops_per_pair) = flops(program, id);
    let (mut weight_bytes, mut bytes_per_row) = (0, 0);
    let is_lookup = matches!(node.op, Op::Embedding | Op::EmbeddingBag | Op::AddPosition);
    for &v in &node.inputs {
        let bytes = program.value(v).ty.row_bytes() as u64;
        match program.as_weight(v) {
            Some(_) if is_lookup => bytes_per_row += table_bytes(program, id),
            Some(_) => weight_bytes += bytes,
            None => bytes_per_row += bytes,
        }
    }
    for &v in &node.outputs {
        bytes_per_row += program.value(v).ty.row_bytes() as u64;
    }
    bytes_per_row += state_bytes(program, id);
    let bytes_per_pair = pair_bytes(program, &node.op);
    NodeCost {
        per,
        flops_per_row,
        flops_per_pair,
        weight_bytes,
        bytes_per_row,
        bytes_per_pair,
    }
}

/// Costs of all nodes, by node id.
pub fn costs(program: &Program) -> Vec<NodeCost> {
    (0..program.nodes.len())
        .map(|n| node_cost(program, NodeId::new(n)))
        .collect()
}

/// Bytes of table rows that one row looks up.
fn table_bytes(program: &Program, id: NodeId) -> u64 {
    let node = program.node(id);
    let table = &program.value(node.inputs[1]).ty;
    let width = table.row_bytes() / table.fixed_dims()[0].max(1);
    let lookups = match node.op {
        Op::EmbeddingBag => program.value(node.inputs[0]).ty.row_elems(),
        _ => 1,
    };
    (width * lookups) as u64
}

/// Bytes of vector states that one row reads and writes.
fn state_bytes(program: &Program, id: NodeId) -> u64 {
    let vector = |state: crate::ids::StateId| match &program.state(state).kind {
        StateKind::Vector { dims, .. } => (dims.iter().product::<usize>() * 4) as u64,
        StateKind::Sequence { .. } => 0,
    };
    match program.node(id).op {
        Op::LstmCell { h, c, .. } => 2 * (vector(h) + vector(c)),
        Op::GruCell { h, .. } => 2 * vector(h),
        // Reads and writes of whole states move as much as their operand or result.
        _ => 0,
    }
}

fn pair_bytes(program: &Program, op: &Op) -> u64 {
    match op {
        Op::StateAttention { keys, values, .. } | Op::AdditiveAttention { keys, values } => {
            let features = |s: &crate::ids::StateId| match program.state(*s).kind {
                StateKind::Sequence { features, .. } => features as u64,
                StateKind::Vector { .. } => 0,
            };
            4 * (features(keys) + features(values))
        }
        _ => 0,
    }
}

/// Operations per row and per pair.
fn flops(program: &Program, id: NodeId) -> (u64, u64) {
    let node = program.node(id);
    let elems = |v: ValueId| program.value(v).ty.row_elems() as u64;
    let input = |i: usize| node.inputs.get(i).map_or(0, |&v| elems(v));
    let output = node.outputs.first().map_or(0, |&v| elems(v));
    let per_row = match &node.op {
        Op::Linear {
            bias,
            act,
            residual,
        } => {
            let epilogue = u64::from(*bias) + u64::from(act.is_some()) + u64::from(*residual);
            let columns = program.value(node.inputs[1]).ty.fixed_dims()[1].max(1) as u64;
            2 * input(1) * (output / columns) + output * epilogue
        }
        Op::Conv2d {
            bias,
            act,
            residual,
            ..
        } => {
            let channels = program.value(node.inputs[1]).ty.fixed_dims()[0].max(1) as u64;
            let epilogue = u64::from(*bias) + u64::from(act.is_some()) + u64::from(*residual);
            output * (2 * input(1) / channels + epilogue)
        }
        Op::Binary(_) | Op::Unary(_) | Op::Scale(_) | Op::AddPosition => output,
        Op::Elementwise(steps) => steps.len() as u64 * output,
        Op::LayerNorm { .. } => 8 * output,
        Op::AddLayerNorm { .. } => 9 * output,
        Op::RmsNorm { .. } => 4 * output,
        Op::Softmax => 4 * output,
        Op::Rope { .. } => 3 * output,
        Op::BatchNorm { .. } => 4 * output,
        Op::LstmCell { proj, ahead, .. } => {
            let [w_hh, bias, w_proj] = if *ahead { [1, 2, 3] } else { [2, 3, 4] };
            let given = if *ahead { 0 } else { input(1) };
            let projection = if *proj { 2 * input(w_proj) } else { 0 };
            2 * (given + input(w_hh)) + 3 * input(bias) + projection
        }
        Op::GruCell { ahead: true, .. } => 2 * input(1) + 3 * input(2),
        Op::GruCell { .. } => 2 * (input(1) + input(2)) + 3 * input(3),
        Op::Pool2d { window, .. } => output * (window.kernel[0] * window.kernel[1]) as u64,
        // A difference, a quotient, an exponential and a sum.
        Op::Sample => 4 * input(0),
        Op::GlobalAveragePool | Op::MeanRows | Op::ArgMax | Op::TopK { .. } | Op::EmbeddingBag => {
            input(0)
                * if matches!(node.op, Op::EmbeddingBag) {
                    output
                } else {
                    1
                }
        }
        Op::Interaction => {
            let vectors = program.value(node.inputs[0]).ty.fixed_dims();
            2 * output * vectors.last().map_or(0, |&d| d as u64)
        }
        Op::Tensor(op) => op.flops_per_row,
        Op::Custom(custom) => custom.flops_per_row,
        Op::Attention { .. }
        | Op::StateAttention { .. }
        | Op::AdditiveAttention { .. }
        | Op::Input { .. }
        | Op::Embedding
        | Op::Reshape { .. }
        | Op::Concat
        | Op::Slice { .. }
        | Op::FirstRow
        | Op::LastRow
        | Op::VecRead { .. }
        | Op::VecWrite { .. }
        | Op::SeqRead { .. }
        | Op::SeqWrite { .. }
        | Op::Emit { .. }
        | Op::Stop { .. } => 0,
    };
    let per_pair = match &node.op {
        // Scores and weighted sum are two operations per feature each, softmax four per head.
        // A bias is one more, a cap a quotient, a tanh and a product.
        Op::Attention {
            heads, cap, bias, ..
        } => {
            let more = usize::from(*bias) + 3 * usize::from(cap.is_some());
            (4 * heads.query * heads.dim + (4 + more) * heads.query) as u64
        }
        Op::StateAttention { heads, .. } => (4 * heads.query * heads.dim + 4 * heads.query) as u64,
        // Add, tanh, multiply-add per key feature; multiply-add per value feature; softmax.
        Op::AdditiveAttention { .. } => 4 * input(0) + 2 * output + 4,
        _ => 0,
    };
    (per_row, per_pair)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{MultiHead, ProgramBuilder};
    use crate::dtype::DType;
    use crate::op::{Act, Heads, Seen, Window};
    use crate::program::Repeat;

    fn cost_of(program: &Program, name: &str) -> NodeCost {
        let at = program.nodes.iter().position(|n| n.name == name).unwrap();
        node_cost(program, NodeId::new(at))
    }

    #[test]
    fn products_count_two_operations_per_multiply_add() {
        let mut b = ProgramBuilder::new("products");
        let image = b.input("image", DType::F32, &[4, 6, 6]);
        b.begin_block("main", Repeat::Once);
        let x = b.read_input("image", image);
        let window = Window::square(3, 1, 0);
        let c = b.conv("conv", x, 8, window, 2, crate::builder::Fused::default());
        let r = b.reshape("flat", c, &[128]);
        b.dense("fc", r, 10, Some(Act::Relu));
        let program = b.finish().unwrap();
        let conv = cost_of(&program, "conv");
        assert_eq!(conv.flops_per_row, 8 * 4 * 4 * 2 * (2 * 3 * 3));
        assert_eq!(conv.weight_bytes, 4 * 8 * 2 * 9);
        assert_eq!(conv.bytes_per_row, 4 * (4 * 36 + 8 * 16));
        let fc = cost_of(&program, "fc");
        assert_eq!(fc.flops(3, 0), 3 * (2 * 128 * 10 + 10 + 10));
        assert_eq!(fc.bytes(3, 0), 4 * (128 * 10 + 10) + 3 * 4 * (128 + 10));
        assert_eq!(fc.per, Dim::Batch);
    }

    #[test]
    fn attention_costs_per_pair_and_tables_per_lookup() {
        let mut b = ProgramBuilder::new("attention");
        let ids = b.sequence_ids("ids", 8, 100);
        b.begin_block("main", Repeat::Once);
        let i = b.read_input("ids", ids);
        let x = b.embed("embed", i, 100, 16);
        let y = b.self_attention("attn", x, MultiHead::new(2), None);
        let heads = Heads {
            query: 2,
            kv: 2,
            dim: 8,
            scale: 1.0,
        };
        let bias = b.constant("bias", &[2, 15], 0.5);
        let y = b.attention("biased", [y, y, y], heads, Seen::ALL, Some(bias));
        b.mean_rows("mean", y);
        let program = b.finish().unwrap();
        let scores = cost_of(&program, "attn.scores");
        assert_eq!(
            (scores.flops_per_row, scores.flops_per_pair),
            (0, 4 * 16 + 4 * 2)
        );
        assert_eq!(scores.flops(5, 7), 5 * 7 * 72);
        let biased = cost_of(&program, "biased");
        assert_eq!(
            (biased.flops_per_pair, biased.weight_bytes),
            (72 + 2, 4 * 2 * 15)
        );
        let embed = cost_of(&program, "embed");
        assert_eq!((embed.weight_bytes, embed.bytes_per_row), (0, 4 + 64 + 64));
        assert_eq!(cost_of(&program, "mean").per, Dim::Rows);
    }

    #[test]
    fn cells_count_both_products() {
        let mut b = ProgramBuilder::new("cells");
        let x = b.sequence("x", DType::F32, &[6], 10);
        b.begin_block("each", Repeat::PerInputStep { stride: 1 });
        let x = b.read_input("x", x);
        b.lstm("lstm", x, 5);
        let program = b.finish().unwrap();
        let lstm = cost_of(&program, "lstm");
        assert_eq!(lstm.flops_per_row, 2 * (6 * 20 + 5 * 20) + 3 * 20);
        assert_eq!(lstm.bytes_per_row, 4 * (6 + 5 + 2 * (5 + 5)));
    }
}
