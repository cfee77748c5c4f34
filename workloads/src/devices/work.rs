//! What one launch of a node does, in terms that a device model prices: matrix products, other
//! operations, and traffic.
//!
//! Invariants (tested for every model of the zoo): operations of products and other operations
//! together are those of [`lazybatch_graph::cost`], and so is the traffic, but for the width of an
//! element.

use lazybatch_graph::cost::node_cost;
use lazybatch_graph::{At, Dim, NodeId, Op, Program, Repeat, StateId};
use smallvec::{SmallVec, smallvec};

use crate::lengths::Lengths;

/// Bytes of an element on a modelled device: half precision.
pub const ELEMENT_BYTES: u64 = 2;
/// Bytes of an element in the costs of [`lazybatch_graph::cost`].
const COST_ELEMENT_BYTES: u64 = 4;

/// `count` independent products of the same shape: `[m, k] x [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows that stream through.
    pub m: u64,
    /// Inner dimension.
    pub k: u64,
    /// Columns.
    pub n: u64,
    /// How many of them, none of which shares an operand with another: groups of a convolution,
    /// heads of an attention.
    pub count: u64,
}

impl Product {
    /// Operations, a multiply-add being two.
    pub const fn flops(&self) -> u64 {
        2 * self.m * self.k * self.n * self.count
    }
}

/// What one launch of a node does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeWork {
    /// Matrix products.
    pub products: SmallVec<[Product; 4]>,
    /// Operations outside of them.
    pub other_flops: u64,
    /// Bytes of weights, read however large the batch is.
    pub weight_bytes: u64,
    /// Bytes of operands that are no weights.
    pub input_bytes: u64,
    /// All other bytes: results, states, rows of tables.
    pub other_bytes: u64,
}

impl NodeWork {
    /// All operations.
    pub fn flops(&self) -> u64 {
        self.other_flops + self.products.iter().map(Product::flops).sum::<u64>()
    }

    /// All bytes, each once.
    pub const fn bytes(&self) -> u64 {
        self.weight_bytes + self.input_bytes + self.other_bytes
    }
}

/// Lengths that a program is priced for, in positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Length of a member's input, as a row sees it: `E[s^2] / E[s]`.
    pub input: u64,
    /// Input positions that a decoder step looks at: `E[s t] / E[t]`.
    pub source: u64,
    /// Own positions that a decoder step looks at: `E[t (t + 1) / 2] / E[t]`.
    pub target: u64,
    /// Mean input length, rounded up.
    pub mean_input: u64,
}

impl Reach {
    /// Of a distribution of input lengths `s` and output lengths `t`, each at least 1 and rounded
    /// to the nearest.
    pub fn of(lengths: &Lengths) -> Self {
        let (mut n, mut s1, mut s2, mut t1, mut st, mut tt) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for ((s, t), count) in lengths.counts() {
            let (s, t, c) = (f64::from(s), f64::from(t), count as f64);
            n += c;
            s1 += c * s;
            s2 += c * s * s;
            t1 += c * t;
            st += c * s * t;
            tt += c * t * (t + 1.0) / 2.0;
        }
        let ratio = |a: f64, b: f64| {
            if b > 0.0 {
                (a / b).round().max(1.0) as u64
            } else {
                1
            }
        };
        Self {
            input: ratio(s2, s1),
            source: ratio(st, t1),
            target: ratio(tt, t1),
            mean_input: (s1 / n).ceil().max(1.0) as u64,
        }
    }
}

/// Prices the nodes of one program.
pub struct Pricing<'a> {
    program: &'a Program,
    reach: Reach,
}

impl<'a> Pricing<'a> {
    /// Of `program` with members of such lengths.
    pub fn new(program: &'a Program, reach: Reach) -> Self {
        Self { program, reach }
    }

    /// Whether the node's batch axis is rows: it stands in a `once` block and sees all positions.
    pub fn is_by_rows(&self, id: NodeId, repeat: Repeat) -> bool {
        repeat == Repeat::Once && node_cost(self.program, id).per == Dim::Rows
    }

    /// What a launch with `rows` rows (or members, one row each) does. Rows of a sequence belong
    /// to members of the usual length and one shorter member with what is left over.
    pub fn work(&self, id: NodeId, rows: u64) -> NodeWork {
        let program = self.program;
        let node = program.node(id);
        let cost = node_cost(program, id);
        let full = self.reach.input;
        let members = [(rows / full, full), (1, rows % full)];
        let pairs = match &node.op {
            Op::Attention { seen, .. } => {
                let each = |(n, len): &(u64, u64)| n * len * seen.num_keys(*len as usize) as u64;
                members.iter().map(each).sum()
            }
            Op::StateAttention { keys, .. } | Op::AdditiveAttention { keys, .. } => {
                rows * self.attended(*keys)
            }
            _ => 0,
        };
        let products = self.products(id, rows, &members);
        let of_products: u64 = products.iter().map(Product::flops).sum();
        let flops = rows * cost.flops_per_row + pairs * cost.flops_per_pair;
        let operands = node
            .inputs
            .iter()
            .filter(|v| program.as_weight(**v).is_none());
        let input_bytes: u64 = operands
            .map(|v| rows * program.value(*v).ty.row_bytes() as u64)
            .sum();
        let moved = rows * cost.bytes_per_row + pairs * cost.bytes_per_pair;
        NodeWork {
            products,
            other_flops: flops - of_products,
            weight_bytes: narrow(cost.weight_bytes),
            input_bytes: narrow(input_bytes),
            other_bytes: narrow(moved - input_bytes),
        }
    }

    /// Bytes of a node's weights, tables of embeddings included.
    pub fn weight_bytes(&self, id: NodeId) -> u64 {
        let weights = self.program.node(id).inputs.iter();
        let weights = weights.filter(|v| self.program.as_weight(**v).is_some());
        narrow(
            weights
                .map(|v| self.program.value(*v).ty.row_bytes() as u64)
                .sum(),
        )
    }

    /// Positions that a row looks at in a sequence state: what grows while the loop runs is the
    /// request's own output, everything else covers the input; a cache that goes on behind its
    /// prompt has both.
    fn attended(&self, keys: StateId) -> u64 {
        let (mut covers, mut grows) = (false, false);
        for node in &self.program.nodes {
            match node.op {
                Op::SeqWrite { state, at } if state == keys && at == At::End => grows = true,
                Op::SeqWrite { state, .. } if state == keys => covers = true,
                _ => {}
            }
        }
        let of_target = if grows { self.reach.target } else { 0 };
        let of_source = if covers { self.reach.source } else { 0 };
        of_target + of_source
    }

    /// The matrix products. Attention of one row a member over a state is none: nothing is used
    /// twice, and its time is its traffic.
    fn products(&self, id: NodeId, rows: u64, members: &[(u64, u64)]) -> SmallVec<[Product; 4]> {
        let node = self.program.node(id);
        let dims = |i: usize| self.program.value(node.inputs[i]).ty.fixed_dims();
        let one = |m: u64, w: &[usize]| Product {
            m,
            k: w[0] as u64,
            n: w[1] as u64,
            count: 1,
        };
        match &node.op {
            Op::Linear { .. } => {
                let w = dims(1);
                let each = self.program.value(node.inputs[0]).ty.row_elems() / w[0];
                smallvec![one(rows * each as u64, &w)]
            }
            Op::LstmCell { proj, ahead, .. } => {
                let next = 1 + usize::from(!ahead);
                let mut products: SmallVec<[Product; 4]> =
                    (1..=next).map(|w| one(rows, &dims(w))).collect();
                if *proj {
                    products.push(one(rows, &dims(next + 2)));
                }
                products
            }
            Op::GruCell { ahead: true, .. } => smallvec![one(rows, &dims(1))],
            Op::GruCell { .. } => smallvec![one(rows, &dims(1)), one(rows, &dims(2))],
            Op::Conv2d { groups, .. } => {
                let w = dims(1);
                let out = self.program.value(node.outputs[0]).ty.fixed_dims();
                let groups = *groups as u64;
                smallvec![Product {
                    m: rows * (out[1] * out[2]) as u64,
                    k: w[1..].iter().product::<usize>() as u64,
                    n: w[0] as u64 / groups,
                    count: groups,
                }]
            }
            Op::Attention { heads, seen, .. } => {
                let (count, dim) = (heads.query as u64, heads.dim as u64);
                let some = members.iter().filter(|(n, len)| n * len > 0);
                some.flat_map(|&(n, len)| {
                    let keys = seen.num_keys(len as usize) as u64;
                    let scores = Product {
                        m: len,
                        k: dim,
                        n: keys,
                        count: n * count,
                    };
                    let sums = Product {
                        k: keys,
                        n: dim,
                        ..scores
                    };
                    [scores, sums]
                })
                .collect()
            }
            _ => SmallVec::new(),
        }
    }
}

/// Bytes on a device of what the costs count in f32.
const fn narrow(bytes: u64) -> u64 {
    bytes * ELEMENT_BYTES / COST_ELEMENT_BYTES
}

/// Whether a node only moves or scales elements, so that a runtime fuses it with its neighbour.
pub fn is_fused(op: &Op) -> bool {
    matches!(
        op,
        Op::Input { .. }
            | Op::Reshape { .. }
            | Op::Concat
            | Op::Slice { .. }
            | Op::Scale(_)
            | Op::Elementwise(_)
            | Op::AddPosition
            | Op::Binary(_)
            | Op::Unary(_)
            | Op::FirstRow
            | Op::LastRow
            | Op::VecRead { .. }
            | Op::VecWrite { .. }
            | Op::SeqRead { .. }
            | Op::SeqWrite { .. }
            | Op::Emit { .. }
            | Op::Stop { .. }
    )
}
