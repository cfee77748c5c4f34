//! The op set.
//!
//! Conventions. `x: [r, ...]` is an activation with `r` packed rows, row-major; `[k, n]` without a
//! leading `r` is a weight. All arithmetic is f32. "Row-wise" ops never look across rows. An op in
//! a loop block (`PerInputStep`, `UntilStop`) sees one row per member and pass; the *position* of a
//! row is then the member's step; in a `Once` block it is the row's index within its member.
//! Operands are listed in the order in which a node carries them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::chain::Step;
use crate::ids::{InputId, OutputId, StateId};
use crate::tensor_op::TensorOp;

/// Elementwise activation, fused into a producer or standing alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
    /// x * 0.5 * (1 + erf(x / sqrt 2)), with erf by a fixed polynomial ([`crate::math`]).
    Gelu,
    /// tanh(x).
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// x * sigmoid(x).
    Silu,
}

/// Elementwise binary operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bin {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a * b.
    Mul,
}

/// Which position of a sequence state (or sequence input) a loop pass touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// Every position, in order: legal in `Once` blocks only; rows are `Rows`.
    All,
    /// The member's current step.
    Step,
    /// `length - 1 - step`, for backward recurrences.
    Reverse,
    /// One behind the last position written so far (writes), as a KV cache grows.
    End,
}

/// Two-dimensional window of a convolution or pooling, NCHW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Zero padding: top, left, bottom, right.
    pub pad: [usize; 4],
}

impl Window {
    /// A square window with equal stride and padding on all sides.
    pub const fn square(kernel: usize, stride: usize, pad: usize) -> Self {
        Self {
            kernel: [kernel; 2],
            stride: [stride; 2],
            pad: [pad; 4],
        }
    }

    /// Output height and width for an input of `h` x `w`:
    /// `(h + pad_top + pad_bottom - kernel) / stride + 1`, rounded down; `None` if the window does
    /// not fit.
    pub fn output(&self, h: usize, w: usize) -> Option<[usize; 2]> {
        let one = |n: usize, k: usize, s: usize, a: usize, b: usize| {
            (n + a + b)
                .checked_sub(k)
                .filter(|_| s > 0)
                .map(|m| m / s + 1)
        };
        Some([
            one(h, self.kernel[0], self.stride[0], self.pad[0], self.pad[2])?,
            one(w, self.kernel[1], self.stride[1], self.pad[1], self.pad[3])?,
        ])
    }
}

/// Pooling reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Largest element; padding counts as minus infinity.
    Max,
    /// Mean over the elements that are not padding.
    Average,
}

/// Heads of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query` (grouped-query attention).
    pub kv: usize,
    /// Features of one head.
    pub dim: usize,
    /// Factor on the scores, usually `1 / sqrt(dim)`.
    #[serde(with = "crate::floats")]
    pub scale: f32,
}

/// Which keys a query of the same sequence sees, by how far away they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seen {
    /// None behind it: position `i` sees `0..=i`.
    pub causal: bool,
    /// None that is more than so many positions away, on either side.
    #[serde(default)]
    pub window: Option<usize>,
}

impl Seen {
    /// All keys.
    pub const ALL: Self = Self {
        causal: false,
        window: None,
    };

    /// Those that are not behind the query.
    pub const CAUSAL: Self = Self {
        causal: true,
        window: None,
    };

    /// Positions that the query at `at` sees in a sequence of `len`; a query behind the end sees none
    /// that the window does not reach.
    pub fn keys(self, at: usize, len: usize) -> Range<usize> {
        let start = self.window.map_or(0, |most| at.saturating_sub(most));
        let end = match (self.causal, self.window) {
            (true, _) => at.saturating_add(1),
            (false, Some(most)) => at.saturating_add(most).saturating_add(1),
            (false, None) => len,
        };
        start.min(len)..end.min(len)
    }

    /// Positions of a sequence of `len` that count as looked at for each query: all, or those in a
    /// window. What a causal query does not see counts too.
    pub fn num_keys(self, len: usize) -> usize {
        let sides = if self.causal { 1 } else { 2 };
        let within = |most: usize| most.saturating_mul(sides).saturating_add(1);
        self.window.map_or(len, |most| within(most).min(len))
    }
}

/// What a node computes. See the module's conventions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The request's input. `Once`: `[rows, ...]` for an input `[len, ...]`, `[batch, ...]` for one
    /// without `len`. Loops: the row at `at` (`Step` or `Reverse`), `[batch, ...]`; all of an input
    /// without `len`, in every pass. Loops that run until they stop read no sequences.
    /// With `PerInputStep { stride: k }` the row at `step * k`. No operands.
    Input {
        /// Which input.
        input: InputId,
        /// Which position.
        at: At,
    },
    /// `x [r, .., k]`, `w [k, n]`, then `bias [n]` if `bias`, then `residual [r, .., n]` if
    /// `residual`: `act(x w + bias) + residual`, `[r, .., n]`. One chain of fused multiply-adds per element, in
    /// order of `k`, from zero; then bias, activation, residual.
    Linear {
        /// A bias operand follows.
        bias: bool,
        /// Activation on `x w + bias`.
        act: Option<Act>,
        /// A residual operand follows; added last.
        residual: bool,
    },
    /// `a`, `b` of equal type, or `b` a weight that spans one row (`[fixed dims of a]`) or its last
    /// dimension: elementwise, `a`'s type.
    Binary(Bin),
    /// `x`: elementwise.
    Unary(Act),
    /// `x`: times a constant.
    Scale(#[serde(with = "crate::floats")] f32),
    /// `x`, then what the steps read, each of `x`'s type or a weight as that of `Binary`: the steps
    /// one behind another, element by element, from 1 to [`MOST_STEPS`](crate::chain::MOST_STEPS).
    /// `x`'s type.
    Elementwise(Vec<Step>),
    /// `x [r, .., d]`, `gamma [d]`, `beta [d]`: `(x - mean) / sqrt(var + eps) * gamma + beta`,
    /// biased variance over the last dimension.
    LayerNorm {
        /// Added to the variance.
        #[serde(with = "crate::floats")]
        eps: f32,
    },
    /// `x [r, .., d]`, `y` alike, `gamma [d]`, `beta [d]`: two outputs, `s = x + y` and
    /// `layer_norm(s)`.
    AddLayerNorm {
        /// Added to the variance.
        #[serde(with = "crate::floats")]
        eps: f32,
    },
    /// `x [r, d]`, `gamma [d]`: `x / sqrt(mean(x^2) + eps) * gamma`.
    RmsNorm {
        /// Added to the mean square.
        #[serde(with = "crate::floats")]
        eps: f32,
    },
    /// `x [r, .., d]`: softmax over the last dimension, with the row's maximum subtracted.
    Softmax,
    /// `ids [r] i32`, `table [v, d]`: `[r, d]`. Ids outside `0..v` are refused at the edge.
    Embedding,
    /// `x [r, d]`, `table [p, d]`: adds the table's row at the row's position.
    AddPosition,
    /// `x [r, heads * dim]`: rotary embedding at the row's position; pairs `(2i, 2i + 1)` of each
    /// head turn by `position * theta^(-2i / dim)`. With `past`, in loops: the position is the number
    /// of rows that this sequence state holds, so that a decoder goes on behind its prompt.
    Rope {
        /// Heads in a row.
        heads: usize,
        /// Features of one head (even).
        dim: usize,
        /// Base of the frequencies, usually 10000.
        #[serde(with = "crate::floats")]
        theta: f32,
        /// Sequence state whose rows come before this one.
        past: Option<StateId>,
    },
    /// `Once` blocks: `q [rows, query * dim]`, `k [rows, kv * dim]`, `v [rows, kv * dim]`, then
    /// `bias [query, 2 m - 1]` if `bias`: scaled dot-product attention within each member, among the
    /// positions that are `seen`. With `cap`, scaled scores `s` are then `cap * tanh(s / cap)`. A bias is
    /// added by distance, last: head `h` of query `i` adds `bias[h, m - 1 + j - i]` for key `j`; sequences
    /// have at most `m` positions. Minus infinity hides, but may not stand at distance 0.
    Attention {
        /// Heads and scale.
        heads: Heads,
        /// Which keys a query sees.
        #[serde(flatten)]
        seen: Seen,
        /// What scaled scores stay below in magnitude; a positive number.
        #[serde(default, with = "crate::floats::option")]
        cap: Option<f32>,
        /// A bias operand follows.
        #[serde(default)]
        bias: bool,
    },
    /// `q [r, query * dim]`: attention over everything that the sequence states hold for the row's
    /// member (self-attention on a KV cache after `SeqWrite`, or cross-attention).
    StateAttention {
        /// Heads and scale.
        heads: Heads,
        /// Sequence state of keys, `kv * dim` features.
        keys: StateId,
        /// Sequence state of values, `kv * dim` features.
        values: StateId,
    },
    /// `query [r, d]`, `v [d]`: additive attention (Bahdanau): scores `sum(v * tanh(query + key))`,
    /// softmax, weighted sum of the values: `[r, values' features]`.
    AdditiveAttention {
        /// Sequence state of projected keys, `d` features.
        keys: StateId,
        /// Sequence state of values.
        values: StateId,
    },
    /// `x [r, k]`, `w_ih [k, 4h]`, `w_hh [h, 4h]`, `bias [4h]`: one LSTM step on states `h`, `c`
    /// (`[h]` each, updated): gates in order i, f, g, o; `c' = sig(f) c + sig(i) tanh(g)`,
    /// `h' = sig(o) tanh(c')`. Output `h' [r, h]`. With a projection weight `w_proj [h, p]` (if
    /// `proj`), the state `h` and the output have `p` features and `w_hh` is `[p, 4h]`.
    LstmCell {
        /// Hidden state.
        h: StateId,
        /// Cell state.
        c: StateId,
        /// A projection operand follows.
        proj: bool,
        /// Operand 0 is `x w_ih [r, 4h]`, computed ahead, and there is no operand `w_ih`. The
        /// product with `h` continues its chains, so the bits are the same.
        #[serde(default)]
        ahead: bool,
    },
    /// `x [r, k]`, `w_ih [k, 3h]`, `w_hh [h, 3h]`, `b_ih [3h]`, `b_hh [3h]`: one GRU step on state
    /// `h` (updated): gates in order r, z, n; `n = tanh(x_n + r * h_n)`, `h' = (1 - z) n + z h`.
    /// Output `h' [r, h]`.
    GruCell {
        /// Hidden state.
        h: StateId,
        /// Operand 0 is `x w_ih + b_ih [r, 3h]`, computed ahead, and there are no operands `w_ih`
        /// and `b_ih`.
        #[serde(default)]
        ahead: bool,
    },
    /// `x [r, c, h, w]`, `w [m, c / groups, kh, kw]`, then `bias [m]` if `bias`, then `residual
    /// [r, m, oh, ow]` if `residual`: `act(conv(x, w) + bias + residual)` (note the order: the
    /// residual of a CNN comes before its activation). `groups == c` is a depthwise convolution.
    Conv2d {
        /// Window, stride, padding.
        window: Window,
        /// Channel groups.
        groups: usize,
        /// A bias operand follows.
        bias: bool,
        /// A residual operand follows; added before the activation.
        residual: bool,
        /// Activation, last.
        act: Option<Act>,
    },
    /// `x [r, c, h, w]`, `gamma`, `beta`, `mean`, `var` `[c]`: inference-time batch normalisation.
    BatchNorm {
        /// Added to the variance.
        #[serde(with = "crate::floats")]
        eps: f32,
    },
    /// `x [r, c, h, w]`: pooling.
    Pool2d {
        /// Reduction.
        pool: Pool,
        /// Window, stride, padding.
        window: Window,
    },
    /// `x [r, c, h, w]`: mean over `h` and `w`: `[r, c]`.
    GlobalAveragePool,
    /// `x`: the same row under other fixed dims of equal product.
    Reshape {
        /// New fixed dims.
        dims: Vec<usize>,
    },
    /// Two or more operands `[r, d_i...]`, equal but for their first fixed dim: concatenated
    /// there (features of a row, channels of an image).
    Concat,
    /// `x [r, d]`: features `start..start + len`.
    Slice {
        /// First feature.
        start: usize,
        /// Number of features.
        len: usize,
    },
    /// `x [r, f, d]`: DLRM's pairwise dot products `z_i . z_j`, `j < i`, in row order of the lower
    /// triangle: `[r, f (f - 1) / 2]`.
    Interaction,
    /// `ids [r, n] i32`, `table [v, d]`: sum of the `n` rows: `[r, d]`.
    EmbeddingBag,
    /// `x [rows, d]` (`Once`): mean over each member's rows: `[batch, d]`.
    MeanRows,
    /// `x [rows, d]` (`Once`): each member's first row: `[batch, d]`.
    FirstRow,
    /// `x [rows, d]` (`Once`): each member's last row: `[batch, d]`.
    LastRow,
    /// `x [r, d]`: index of the largest element, the lowest among equals: `[r] i32`. Elements that are
    /// no numbers are passed over, but a first one is the answer, as each other is compared with it.
    ArgMax,
    /// `logits [r, v]`, `how [r, 4] i32` (the words of a [`crate::Sampling`]): a token `[r] i32`.
    /// The largest, the lowest among equals, with a temperature of 0 or a `top_k` of 1, or where that
    /// score is not finite; scores that are no numbers, the first too, are passed over.
    /// Else one of the first `top_k` in the order of `TopK` (all for 0, or where there are no more):
    /// token `i` has the weight `floor(2^31 exp((x_i - max) / temperature))`, none where that is no
    /// number; `random` (64 bits) times the sum of weights over `2^64`, rounded down, is the number of
    /// weights, in order of `i`, that lie before the token. Sums are whole numbers, so their order
    /// does not matter. `random` is [`crate::sampling::random`] of the seed, and of the member's step
    /// plus 1 in loops; in `Once` blocks of the row's index among `Rows`, of 0 among samples.
    /// Quotient and `exp` are those of f32, so a draw within their rounding of a boundary between two
    /// tokens may differ between devices.
    Sample,
    /// `x [r, .., d]`: the `k` largest elements of the last dimension, in falling order, or the
    /// smallest, in rising order: two outputs, the elements `[r, .., k]` and their indices
    /// `[r, .., k] i32`. Among equals (zeros of either sign are) the lower index comes first; what
    /// is no number comes behind all that are.
    TopK {
        /// How many, 1 to `d`.
        k: usize,
        /// The largest, not the smallest.
        largest: bool,
    },
    /// The vector state's content: `[batch, dims...]`.
    VecRead {
        /// Which state.
        state: StateId,
    },
    /// `x [batch, dims...]`: overwrites the vector state. No output.
    VecWrite {
        /// Which state.
        state: StateId,
    },
    /// The sequence state's rows: `[rows, d]` with `All` (the state must hold `length` rows), or
    /// `[batch, d]` with `Step`, `Reverse` (zero where the position was not written).
    SeqRead {
        /// Which state.
        state: StateId,
        /// Which position.
        at: At,
    },
    /// `x [rows, d]` with `All`, else `[batch, d]`: writes the sequence state. No output.
    SeqWrite {
        /// Which state.
        state: StateId,
        /// Which position.
        at: At,
    },
    /// `x`: appends each member's rows to a `[len, ...]` output, or sets an output without `len`.
    /// No output value.
    Emit {
        /// Which output.
        output: OutputId,
    },
    /// `ids [batch] i32`, in `UntilStop` blocks: for a member whose id equals `token` this is the last
    /// pass. Nodes behind it may run for that member in this pass, or not: none of them emits, or
    /// writes what a later block reads. No output.
    Stop {
        /// The stop token.
        token: i32,
    },
    /// An op of an imported model that has no variant of its own.
    Tensor(Box<TensorOp>),
    /// A user's node: looked up by name in the device's registry of custom kernels.
    Custom(CustomOp),
}

/// A node that the user brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomOp {
    /// Name under which its kernel is registered.
    pub name: String,
    /// Fixed dims of a row of its only output, f32; its leading dim is that of the first operand.
    pub output_dims: Vec<usize>,
    /// Floating-point operations per row, for the cost model.
    pub flops_per_row: u64,
    /// Whether rows may be computed in one launch with rows of other requests.
    pub batchable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_reach_as_far_on_both_sides_as_there_are_positions() {
        let near = |causal, most| Seen {
            causal,
            window: Some(most),
        };
        for (seen, at, keys) in [
            (Seen::ALL, 3, 0..9),
            (Seen::CAUSAL, 3, 0..4),
            (near(false, 2), 0, 0..3),
            (near(false, 2), 4, 2..7),
            (near(false, 2), 8, 6..9),
            (near(true, 2), 4, 2..5),
            (near(true, 0), 4, 4..5),
            (near(false, usize::MAX), 4, 0..9),
            // Behind the end.
            (Seen::CAUSAL, 12, 0..9),
            (near(false, 2), 12, 9..9),
        ] {
            assert_eq!(seen.keys(at, 9), keys, "{seen:?}, {at}");
        }
        let num = |seen: Seen| [1, 9, 100].map(|len| seen.num_keys(len));
        assert_eq!(num(Seen::CAUSAL), [1, 9, 100]);
        assert_eq!(num(near(false, 8)), [1, 9, 17]);
        assert_eq!(num(near(true, 8)), [1, 9, 9]);
    }
}
