//! Layers whose weights come from files.
//!
//! A weight of the program has the architecture's name of its tensor. A tensor that is missing or
//! misshapen is noted and a placeholder stands for it, so that one run tells everything.

use std::collections::BTreeMap;

use super::layout;
use super::tensors::Tensors;
use crate::builder::{Fused, ProgramBuilder};
use crate::error::Error;
use crate::ids::ValueId;
use crate::op::Act;
use crate::program::Program;
use crate::tensor::Tensor;

/// A builder beside the tensors that it takes.
pub(super) struct Layers<'a> {
    /// The program so far.
    pub(super) b: ProgramBuilder,
    tensors: Tensors<'a>,
    declared: BTreeMap<String, ValueId>,
}

/// A linear layer's surroundings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around {
    /// A tensor `.bias` is added.
    pub(super) bias: bool,
    /// Activation on the sum.
    pub(super) act: Option<Act>,
    /// Added last.
    pub(super) residual: Option<ValueId>,
    /// Features of a head whose rotary halves are to be interleaved.
    pub(super) halves: Option<usize>,
}

impl Around {
    /// With a bias.
    pub(super) fn bias() -> Self {
        Self {
            bias: true,
            ..Self::default()
        }
    }
}

impl<'a> Layers<'a> {
    /// Nothing is built yet.
    pub(super) fn new(b: ProgramBuilder, tensors: Tensors<'a>) -> Self {
        Self {
            b,
            tensors,
            declared: BTreeMap::new(),
        }
    }

    /// The weight `weight`, made of the tensor `tensor` of `dims`; `dims_out` are the dims of what
    /// `lay` makes of it.
    fn declare(
        &mut self,
        weight: &str,
        tensor: &str,
        (dims, dims_out): (&[usize], &[usize]),
        lay: impl FnOnce(Tensor) -> Tensor,
    ) -> ValueId {
        if let Some(&value) = self.declared.get(weight) {
            return value;
        }
        let value = match self.tensors.take(tensor, dims) {
            Some(tensor) => self.b.data(weight, lay(tensor)),
            None => self.b.constant(weight, dims_out, 0.0),
        };
        self.declared.insert(weight.to_owned(), value);
        value
    }

    /// A weight as it is stored.
    pub(super) fn weight(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.declare(name, name, (dims, dims), |tensor| tensor)
    }

    /// A matrix stored as `[columns, rows]`, as a weight `[rows, columns]`.
    pub(super) fn matrix(&mut self, name: &str, [rows, columns]: [usize; 2]) -> ValueId {
        let dims = (&[columns, rows][..], &[rows, columns][..]);
        self.declare(name, name, dims, |t| layout::transposed(&t))
    }

    /// The table `name [vocab, d]` as an output layer `[d, vocab]`: a turned copy.
    pub(super) fn tied(&mut self, name: &str, [vocab, d]: [usize; 2]) -> ValueId {
        let (copy, dims) = (format!("{name}.turned"), (&[vocab, d][..], &[d, vocab][..]));
        self.declare(&copy, name, dims, |t| layout::transposed(&t))
    }

    /// Rows `first..first + num` of the stored `name [all, d]`.
    pub(super) fn some_rows(
        &mut self,
        name: &str,
        [all, d]: [usize; 2],
        (first, num): (usize, usize),
    ) -> ValueId {
        let dims = (&[all, d][..], &[num, d][..]);
        self.declare(name, name, dims, |t| layout::rows(&t, first, num))
    }

    /// The only row of interest of the stored `name [all, d]`, as `[d]`.
    pub(super) fn one_row(&mut self, name: &str, [all, d]: [usize; 2], row: usize) -> ValueId {
        self.declare(name, name, (&[all, d], &[d]), |t| {
            let mut one = layout::rows(&t, row, 1);
            one.dims = vec![d];
            one
        })
    }

    /// A weight computed from a stored tensor of `dims`.
    pub(super) fn computed(
        &mut self,
        name: &str,
        dims: &[usize],
        dims_out: &[usize],
        compute: impl FnOnce(Tensor) -> Tensor,
    ) -> ValueId {
        self.declare(name, name, (dims, dims_out), compute)
    }

    /// A weight that no file has.
    pub(super) fn given(&mut self, name: &str, tensor: Tensor) -> ValueId {
        self.b.data(name, tensor)
    }

    /// Linear node `node` with `name.weight [n, features of x]` and what is `around` it.
    pub(super) fn linear(
        &mut self,
        node: &str,
        name: &str,
        x: ValueId,
        n: usize,
        around: Around,
    ) -> ValueId {
        let k = self.b.features(x);
        let weight = format!("{name}.weight");
        let order = |t: Tensor| match around.halves {
            Some(dim) => layout::reordered(&t, |at| layout::interleaved(at, dim)),
            None => t,
        };
        let w = self.declare(&weight, &weight, (&[n, k], &[k, n]), |t| {
            layout::transposed(&order(t))
        });
        let bias = around.bias.then(|| {
            let bias = format!("{name}.bias");
            self.declare(&bias, &bias, (&[n], &[n]), order)
        });
        let fused = Fused {
            bias,
            act: around.act,
            residual: around.residual,
        };
        self.b.linear(node, x, w, fused)
    }

    /// Layer normalisation `node` with `name.weight` and `name.bias`.
    pub(super) fn layer_norm(&mut self, node: &str, name: &str, x: ValueId, eps: f32) -> ValueId {
        let d = self.b.features(x);
        let gamma = self.weight(&format!("{name}.weight"), &[d]);
        let beta = self.weight(&format!("{name}.bias"), &[d]);
        self.b.layer_norm(node, x, gamma, beta, eps)
    }

    /// Root-mean-square normalisation `node` with `name.weight`.
    pub(super) fn rms_norm(&mut self, node: &str, name: &str, x: ValueId, eps: f32) -> ValueId {
        let d = self.b.features(x);
        let gamma = self.weight(&format!("{name}.weight"), &[d]);
        self.b.rms_norm(node, x, gamma, eps)
    }

    /// The program.
    ///
    /// # Errors
    /// What the builder found; else all that is wrong with the tensors.
    pub(super) fn finish(self, manifest: &str) -> Result<Program, Error> {
        // Sizes that do not fit each other would make every later tensor look wrong.
        let program = self.b.finish()?;
        self.tensors.finish(manifest)?;
        Ok(program)
    }
}
