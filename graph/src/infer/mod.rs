//! The type rule of every op, shared by the builder and the verifier.
//!
//! [`infer`] derives the types of a node's results from its op, its operands' types and its place.
//! It knows nothing of operand order between nodes, names or uses: that is [`mod@crate::verify`]'s.
//! A type without a leading `batch` or `rows` is a weight's, so types alone tell weights from
//! activations.
//!
//! `Binary`, `Unary`, `Scale` and `Reshape` also accept a weight in the place of their activation; such
//! nodes compute constants. [`crate::passes`] folds them away, and devices take no program that has
//! some ([`crate::verify::verify_rows`]).

mod image;
mod rows;
mod state;

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::error::Error;
use crate::op::Op;
use crate::program::{Program, Repeat};
use crate::shape::{Dim, TensorType};

/// Types of a node's results.
pub type Types = SmallVec<[TensorType; 2]>;

/// Where a node stands.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The program, for its declarations.
    pub program: &'a Program,
    /// Repeat rule of the node's block.
    pub repeat: Repeat,
    /// The node's name, for messages.
    pub node: &'a str,
}

impl Context<'_> {
    /// Most positions that a row of this block can have: the longest input in `Once` blocks, the
    /// most passes in loops; `None` for a `Once` block of a model without sequences.
    pub fn max_positions(&self) -> Option<usize> {
        let max_len = self
            .program
            .length_input
            .and_then(|i| self.program.input(i).max_len);
        match self.repeat {
            Repeat::Once => max_len,
            Repeat::PerInputStep { stride } => max_len.map(|n| n.div_ceil(stride.max(1) as usize)),
            Repeat::UntilStop { max } => Some(max as usize),
        }
    }

    pub(crate) fn fail<T>(
        &self,
        what: impl Into<String>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Result<T, Error> {
        Err(Error::Node {
            node: self.node.to_owned(),
            what: what.into(),
            expected: expected.into(),
            got: got.to_string(),
        })
    }
}

/// Types of the results of `op` on `operands` at the place `cx`, in the op's order.
///
/// # Errors
/// [`Error::Node`] that names the node, what is wrong, what was expected and what came.
pub fn infer(op: &Op, operands: &[&TensorType], cx: &Context<'_>) -> Result<Types, Error> {
    let args = Args {
        cx,
        types: operands,
    };
    match op {
        Op::Input { input, at } => state::input(&args, *input, *at),
        Op::Linear { bias, residual, .. } => rows::linear(&args, *bias, *residual),
        Op::Binary(_) => rows::binary(&args),
        Op::Elementwise(steps) => rows::elementwise(&args, steps),
        Op::Unary(_) | Op::Scale(_) => {
            args.count(1)?;
            args.float(0, "operand")?;
            Ok(smallvec![operands[0].clone()])
        }
        Op::LayerNorm { .. } => rows::layer_norm(&args),
        Op::AddLayerNorm { .. } => rows::add_layer_norm(&args),
        Op::RmsNorm { .. } => rows::rms_norm(&args),
        Op::Softmax => {
            args.count(1)?;
            args.wide(0, "x")?;
            Ok(smallvec![operands[0].clone()])
        }
        Op::Embedding => rows::embedding(&args),
        Op::EmbeddingBag => rows::embedding_bag(&args),
        Op::AddPosition => rows::add_position(&args),
        Op::Rope {
            heads, dim, past, ..
        } => {
            if let Some(past) = past {
                state::past(&args, *past)?;
            }
            rows::rope(&args, *heads, *dim)
        }
        Op::Attention {
            heads, cap, bias, ..
        } => rows::attention(&args, heads, *cap, *bias),
        Op::StateAttention {
            heads,
            keys,
            values,
        } => state::state_attention(&args, heads, *keys, *values),
        Op::AdditiveAttention { keys, values } => state::additive_attention(&args, *keys, *values),
        Op::LstmCell { h, c, proj, ahead } => state::lstm_cell(&args, *h, *c, *proj, *ahead),
        Op::GruCell { h, ahead } => state::gru_cell(&args, *h, *ahead),
        Op::Conv2d {
            window,
            groups,
            bias,
            residual,
            ..
        } => image::conv2d(&args, window, *groups, *bias, *residual),
        Op::BatchNorm { .. } => image::batch_norm(&args),
        Op::Pool2d { window, .. } => image::pool2d(&args, window),
        Op::GlobalAveragePool => image::global_average_pool(&args),
        Op::Reshape { dims } => rows::reshape(&args, dims),
        Op::Concat => rows::concat(&args),
        Op::Slice { start, len } => rows::slice(&args, *start, *len),
        Op::Interaction => rows::interaction(&args),
        Op::MeanRows | Op::FirstRow | Op::LastRow => rows::reduce_rows(&args),
        Op::ArgMax => rows::arg_max(&args),
        Op::Sample => rows::sample(&args),
        Op::TopK { k, .. } => rows::top_k(&args, *k),
        Op::VecRead { state } => state::vec_read(&args, *state),
        Op::VecWrite { state } => state::vec_write(&args, *state),
        Op::SeqRead { state, at } => state::seq_read(&args, *state, *at),
        Op::SeqWrite { state, at } => state::seq_write(&args, *state, *at),
        Op::Emit { output } => state::emit(&args, *output),
        Op::Stop { .. } => state::stop(&args),
        Op::Tensor(op) => op.infer(operands, cx).map(Types::from_vec),
        Op::Custom(custom) => {
            if operands.is_empty() {
                return cx.fail("custom node", "at least one operand", "none");
            }
            let lead = args.lead(0, "first operand")?;
            Ok(smallvec![TensorType::activation(
                DType::F32,
                lead,
                &custom.output_dims
            )])
        }
    }
}

/// The operands of one node, with checks that name what is wrong.
struct Args<'a> {
    cx: &'a Context<'a>,
    types: &'a [&'a TensorType],
}

impl Args<'_> {
    fn count(&self, expected: usize) -> Result<(), Error> {
        if self.types.len() == expected {
            return Ok(());
        }
        self.cx
            .fail("number of operands", expected.to_string(), self.types.len())
    }

    /// The leading dimension of an activation.
    fn lead(&self, i: usize, what: &str) -> Result<Dim, Error> {
        match self.types[i].lead() {
            Some(lead @ (Dim::Batch | Dim::Rows)) => Ok(lead),
            _ => self
                .cx
                .fail(what, "an activation [batch or rows, ...]", self.types[i]),
        }
    }

    /// An f32 operand of any shape.
    fn float(&self, i: usize, what: &str) -> Result<(), Error> {
        if self.types[i].dtype == DType::F32 {
            return Ok(());
        }
        self.cx.fail(what, "dtype f32", self.types[i])
    }

    /// Leading and fixed dims of an f32 activation with `N` fixed dims.
    fn activation<const N: usize>(&self, i: usize, what: &str) -> Result<(Dim, [usize; N]), Error> {
        self.float(i, what)?;
        self.typed::<N>(i, what)
    }

    /// Leading dim of an f32 activation with at least one fixed dim, the last of them, and those in
    /// front of it.
    fn wide(&self, i: usize, what: &str) -> Result<(Dim, SmallVec<[usize; 4]>, usize), Error> {
        self.float(i, what)?;
        let lead = self.lead(i, what)?;
        let mut dims = self.types[i].fixed_dims();
        match dims.pop() {
            Some(last) => Ok((lead, dims, last)),
            None => {
                let expected = format!("1 or more dimensions behind {lead}");
                self.cx.fail(what, expected, self.types[i])
            }
        }
    }

    /// Leading and fixed dims of an i32 activation with `N` fixed dims.
    fn ids<const N: usize>(&self, i: usize, what: &str) -> Result<(Dim, [usize; N]), Error> {
        if self.types[i].dtype != DType::I32 {
            return self.cx.fail(what, "dtype i32", self.types[i]);
        }
        self.typed::<N>(i, what)
    }

    fn typed<const N: usize>(&self, i: usize, what: &str) -> Result<(Dim, [usize; N]), Error> {
        let lead = self.lead(i, what)?;
        match <[usize; N]>::try_from(self.types[i].fixed_dims().as_slice()) {
            Ok(dims) => Ok((lead, dims)),
            Err(_) => self
                .cx
                .fail(what, format!("{N} dimensions behind {lead}"), self.types[i]),
        }
    }

    /// Dims of a floating-point weight with `N` dims.
    fn weight<const N: usize>(&self, i: usize, what: &str) -> Result<[usize; N], Error> {
        let ty = self.types[i];
        if ty.lead().is_some() || !ty.dtype.is_float() {
            return self
                .cx
                .fail(what, format!("a float weight of {N} dimensions"), ty);
        }
        match <[usize; N]>::try_from(ty.fixed_dims().as_slice()) {
            Ok(dims) => Ok(dims),
            Err(_) => self
                .cx
                .fail(what, format!("a float weight of {N} dimensions"), ty),
        }
    }

    /// A floating-point weight of exactly `dims`.
    fn weight_of<const N: usize>(
        &self,
        i: usize,
        what: &str,
        dims: [usize; N],
    ) -> Result<(), Error> {
        if self.weight::<N>(i, what)? == dims {
            return Ok(());
        }
        self.cx
            .fail(what, format!("a float weight {dims:?}"), self.types[i])
    }

    /// An operand of exactly type `ty`.
    fn exactly(&self, i: usize, what: &str, ty: &TensorType) -> Result<(), Error> {
        if self.types[i] == ty {
            return Ok(());
        }
        self.cx.fail(what, ty.to_string(), self.types[i])
    }
}

/// A single f32 result.
fn one(lead: Dim, dims: &[usize]) -> Result<Types, Error> {
    Ok(smallvec![TensorType::activation(DType::F32, lead, dims)])
}
