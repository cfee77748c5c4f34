//! One method per op.
//!
//! Each takes the node's name first, then its operands in the op's order, then its attributes.

use smallvec::SmallVec;

use super::ProgramBuilder;
use crate::ids::{InputId, OutputId, StateId, ValueId};
use crate::op::{Act, At, Bin, CustomOp, Heads, Op, Pool, Seen, Window};
use crate::program::Repeat;
use crate::tensor_op::TensorOp;

/// What a linear or convolution node does behind its product. All off by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fused {
    /// Weight added to each row or channel.
    pub bias: Option<ValueId>,
    /// Activation; before the residual in a linear node, behind it in a convolution.
    pub act: Option<Act>,
    /// Activation added to the result.
    pub residual: Option<ValueId>,
}

impl Fused {
    /// A bias alone.
    pub fn bias(bias: ValueId) -> Self {
        Self {
            bias: Some(bias),
            ..Self::default()
        }
    }

    /// The same with an activation.
    pub fn act(self, act: Act) -> Self {
        Self {
            act: Some(act),
            ..self
        }
    }

    /// The same with a residual.
    pub fn residual(self, residual: ValueId) -> Self {
        Self {
            residual: Some(residual),
            ..self
        }
    }

    fn operands(&self, x: ValueId, w: ValueId) -> Vec<ValueId> {
        [x, w]
            .into_iter()
            .chain(self.bias)
            .chain(self.residual)
            .collect()
    }
}

impl ProgramBuilder {
    fn node1(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        self.node(name, op, inputs)[0]
    }

    /// Reads an input: every row in a `Once` block, the current one in a loop.
    pub fn read_input(&mut self, name: &str, input: InputId) -> ValueId {
        let once = self
            .program
            .blocks
            .last()
            .is_none_or(|b| b.repeat == Repeat::Once);
        self.read_input_at(name, input, if once { At::All } else { At::Step })
    }

    /// Reads an input at a position.
    pub fn read_input_at(&mut self, name: &str, input: InputId, at: At) -> ValueId {
        self.node1(name, Op::Input { input, at }, &[])
    }

    /// `act(x w + bias) + residual`.
    pub fn linear(&mut self, name: &str, x: ValueId, w: ValueId, fused: Fused) -> ValueId {
        let Fused {
            bias,
            act,
            residual,
        } = fused;
        let op = Op::Linear {
            bias: bias.is_some(),
            act,
            residual: residual.is_some(),
        };
        self.node1(name, op, &fused.operands(x, w))
    }

    /// Elementwise `a op b`.
    pub fn binary(&mut self, name: &str, op: Bin, a: ValueId, b: ValueId) -> ValueId {
        self.node1(name, Op::Binary(op), &[a, b])
    }

    /// `a + b`.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.binary(name, Bin::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.binary(name, Bin::Sub, a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.binary(name, Bin::Mul, a, b)
    }

    /// Elementwise activation.
    pub fn unary(&mut self, name: &str, act: Act, x: ValueId) -> ValueId {
        self.node1(name, Op::Unary(act), &[x])
    }

    /// `x * factor`.
    pub fn scale(&mut self, name: &str, x: ValueId, factor: f32) -> ValueId {
        self.node1(name, Op::Scale(factor), &[x])
    }

    /// Layer normalisation of each row.
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: ValueId,
        gamma: ValueId,
        beta: ValueId,
        eps: f32,
    ) -> ValueId {
        self.node1(name, Op::LayerNorm { eps }, &[x, gamma, beta])
    }

    /// `(x + y, layer_norm(x + y))`.
    pub fn add_layer_norm(
        &mut self,
        name: &str,
        x: ValueId,
        y: ValueId,
        gamma: ValueId,
        beta: ValueId,
        eps: f32,
    ) -> (ValueId, ValueId) {
        let outputs = self.node(name, Op::AddLayerNorm { eps }, &[x, y, gamma, beta]);
        (outputs[0], outputs[1])
    }

    /// Root-mean-square normalisation of each row.
    pub fn rms_norm(&mut self, name: &str, x: ValueId, gamma: ValueId, eps: f32) -> ValueId {
        self.node1(name, Op::RmsNorm { eps }, &[x, gamma])
    }

    /// Softmax of each row.
    pub fn softmax(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::Softmax, &[x])
    }

    /// Rows of `table` by id.
    pub fn embedding(&mut self, name: &str, ids: ValueId, table: ValueId) -> ValueId {
        self.node1(name, Op::Embedding, &[ids, table])
    }

    /// Sums of rows of `table` by ids.
    pub fn embedding_bag(&mut self, name: &str, ids: ValueId, table: ValueId) -> ValueId {
        self.node1(name, Op::EmbeddingBag, &[ids, table])
    }

    /// Adds the row of `table` at each row's position.
    pub fn add_position(&mut self, name: &str, x: ValueId, table: ValueId) -> ValueId {
        self.node1(name, Op::AddPosition, &[x, table])
    }

    /// Rotary embedding at each row's position.
    pub fn rope(
        &mut self,
        name: &str,
        x: ValueId,
        heads: usize,
        dim: usize,
        theta: f32,
    ) -> ValueId {
        let past = None;
        let op = Op::Rope {
            heads,
            dim,
            theta,
            past,
        };
        self.node1(name, op, &[x])
    }

    /// Rotary embedding at the position behind the rows of a sequence state, in a loop.
    pub fn rope_behind(
        &mut self,
        name: &str,
        x: ValueId,
        (heads, dim, theta): (usize, usize, f32),
        past: StateId,
    ) -> ValueId {
        let past = Some(past);
        let op = Op::Rope {
            heads,
            dim,
            theta,
            past,
        };
        self.node1(name, op, &[x])
    }

    /// Attention within each member, of scores without a cap.
    pub fn attention(
        &mut self,
        name: &str,
        qkv: [ValueId; 3],
        heads: Heads,
        seen: Seen,
        bias: Option<ValueId>,
    ) -> ValueId {
        let op = Op::Attention {
            heads,
            seen,
            cap: None,
            bias: bias.is_some(),
        };
        let operands: SmallVec<[ValueId; 4]> = qkv.into_iter().chain(bias).collect();
        self.node1(name, op, &operands)
    }

    /// Attention over sequence states.
    pub fn state_attention(
        &mut self,
        name: &str,
        q: ValueId,
        heads: Heads,
        keys: StateId,
        values: StateId,
    ) -> ValueId {
        self.node1(
            name,
            Op::StateAttention {
                heads,
                keys,
                values,
            },
            &[q],
        )
    }

    /// Additive attention over sequence states.
    pub fn additive_attention(
        &mut self,
        name: &str,
        query: ValueId,
        v: ValueId,
        keys: StateId,
        values: StateId,
    ) -> ValueId {
        self.node1(name, Op::AdditiveAttention { keys, values }, &[query, v])
    }

    /// One LSTM step; `w` is `w_ih`, `w_hh`, `bias`, then the projection if there is one.
    pub fn lstm_cell(
        &mut self,
        name: &str,
        x: ValueId,
        w: [ValueId; 3],
        proj: Option<ValueId>,
        h: StateId,
        c: StateId,
    ) -> ValueId {
        let inputs: Vec<ValueId> = std::iter::once(x).chain(w).chain(proj).collect();
        self.node1(
            name,
            Op::LstmCell {
                h,
                c,
                proj: proj.is_some(),
                ahead: false,
            },
            &inputs,
        )
    }

    /// One GRU step; `w` is `w_ih`, `w_hh`, `b_ih`, `b_hh`.
    pub fn gru_cell(&mut self, name: &str, x: ValueId, w: [ValueId; 4], h: StateId) -> ValueId {
        let op = Op::GruCell { h, ahead: false };
        self.node1(name, op, &[x, w[0], w[1], w[2], w[3]])
    }

    /// `act(conv(x, w) + bias + residual)`.
    pub fn conv2d(
        &mut self,
        name: &str,
        x: ValueId,
        w: ValueId,
        window: Window,
        groups: usize,
        fused: Fused,
    ) -> ValueId {
        let Fused {
            bias,
            act,
            residual,
        } = fused;
        let op = Op::Conv2d {
            window,
            groups,
            bias: bias.is_some(),
            residual: residual.is_some(),
            act,
        };
        self.node1(name, op, &fused.operands(x, w))
    }

    /// Batch normalisation; `w` is `gamma`, `beta`, `mean`, `var`.
    pub fn batch_norm(&mut self, name: &str, x: ValueId, w: [ValueId; 4], eps: f32) -> ValueId {
        self.node1(name, Op::BatchNorm { eps }, &[x, w[0], w[1], w[2], w[3]])
    }

    /// Pooling.
    pub fn pool2d(&mut self, name: &str, x: ValueId, pool: Pool, window: Window) -> ValueId {
        self.node1(name, Op::Pool2d { pool, window }, &[x])
    }

    /// Mean of each channel.
    pub fn global_average_pool(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::GlobalAveragePool, &[x])
    }

    /// The same row under other dims.
    pub fn reshape(&mut self, name: &str, x: ValueId, dims: &[usize]) -> ValueId {
        self.node1(
            name,
            Op::Reshape {
                dims: dims.to_vec(),
            },
            &[x],
        )
    }

    /// Concatenation along the first fixed dim.
    pub fn concat(&mut self, name: &str, parts: &[ValueId]) -> ValueId {
        self.node1(name, Op::Concat, parts)
    }

    /// Features `start..start + len`.
    pub fn slice(&mut self, name: &str, x: ValueId, start: usize, len: usize) -> ValueId {
        self.node1(name, Op::Slice { start, len }, &[x])
    }

    /// Pairwise dot products.
    pub fn interaction(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::Interaction, &[x])
    }

    /// Mean over each member's rows.
    pub fn mean_rows(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::MeanRows, &[x])
    }

    /// Each member's first row.
    pub fn first_row(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::FirstRow, &[x])
    }

    /// Each member's last row.
    pub fn last_row(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::LastRow, &[x])
    }

    /// Index of each row's largest element.
    pub fn arg_max(&mut self, name: &str, x: ValueId) -> ValueId {
        self.node1(name, Op::ArgMax, &[x])
    }

    /// A token of each row of scores, chosen as `how [r, 4] i32` says.
    pub fn sample(&mut self, name: &str, logits: ValueId, how: ValueId) -> ValueId {
        self.node1(name, Op::Sample, &[logits, how])
    }

    /// The `k` largest elements of the last dimension, or the smallest, and their indices.
    pub fn top_k(&mut self, name: &str, x: ValueId, k: usize, largest: bool) -> [ValueId; 2] {
        let outputs = self.node(name, Op::TopK { k, largest }, &[x]);
        [outputs[0], outputs[1]]
    }

    /// Content of a vector state.
    pub fn vec_read(&mut self, name: &str, state: StateId) -> ValueId {
        self.node1(name, Op::VecRead { state }, &[])
    }

    /// Overwrites a vector state.
    pub fn vec_write(&mut self, name: &str, state: StateId, x: ValueId) {
        self.node(name, Op::VecWrite { state }, &[x]);
    }

    /// Rows of a sequence state.
    pub fn seq_read(&mut self, name: &str, state: StateId, at: At) -> ValueId {
        self.node1(name, Op::SeqRead { state, at }, &[])
    }

    /// Writes rows of a sequence state.
    pub fn seq_write(&mut self, name: &str, state: StateId, at: At, x: ValueId) {
        self.node(name, Op::SeqWrite { state, at }, &[x]);
    }

    /// Hands rows to an output.
    pub fn emit(&mut self, name: &str, output: OutputId, x: ValueId) {
        self.node(name, Op::Emit { output }, &[x]);
    }

    /// Leaves the loop when an id equals `token`.
    pub fn stop(&mut self, name: &str, ids: ValueId, token: i32) {
        self.node(name, Op::Stop { token }, &[ids]);
    }

    /// An op of an imported model.
    pub fn tensor(
        &mut self,
        name: &str,
        op: TensorOp,
        inputs: &[ValueId],
    ) -> SmallVec<[ValueId; 2]> {
        self.node(name, Op::Tensor(Box::new(op)), inputs)
    }

    /// A user's node.
    pub fn custom(&mut self, name: &str, op: CustomOp, inputs: &[ValueId]) -> ValueId {
        self.node1(name, Op::Custom(op), inputs)
    }
}
