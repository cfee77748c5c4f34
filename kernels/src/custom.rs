//! Nodes that a user brings.
//!
//! A [`CustomKernel`] is registered by name in a [`KernelRegistry`] that is handed to a device; an
//! [`Op::Custom`](lazybatch_graph::Op::Custom) of that name runs it. A kernel gets packed rows with
//! the offsets of the members; kernels of nodes that are not `batchable` see one member per call, as do
//! all where members are padded: no call has rows that are no member's own.
//! A member for which a kernel panics or returns an error fails alone: a call for several members that
//! does is made again for each of them.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use lazybatch_graph::{CustomOp, TensorType};

/// What a custom kernel is bound to at load.
#[derive(Clone, Debug)]
pub struct CustomNode<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// The op with its output dims.
    pub op: &'a CustomOp,
    /// Types of the operands.
    pub operands: Vec<&'a TensorType>,
}

/// An operand of a call.
#[derive(Clone, Copy, Debug)]
pub struct CustomOperand<'a> {
    /// Row-major elements; of an i32 operand, the bits.
    pub data: &'a [f32],
    /// Elements of one row; of a weight, all.
    pub row_elems: usize,
    /// Whether it is a weight, equal for all rows.
    pub is_weight: bool,
}

impl<'a> CustomOperand<'a> {
    /// The elements of an i32 operand.
    pub fn ids(&self) -> &'a [i32] {
        bytemuck::cast_slice(self.data)
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.row_elems..][..self.row_elems]
    }
}

/// One call of a kernel.
#[derive(Debug)]
pub struct CustomCall<'a> {
    /// Operands in the node's order.
    pub operands: &'a [CustomOperand<'a>],
    /// Rows of member `i` are `offsets[i]..offsets[i + 1]`.
    pub offsets: &'a [usize],
    /// All rows of the output, to be written wholly.
    pub output: &'a mut [f32],
}

impl CustomCall<'_> {
    /// Number of packed rows.
    pub fn num_rows(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }
}

/// A node's computation. A row's result may depend on its member's rows only.
pub trait CustomKernel: Send + Sync {
    /// Refuses a node that the kernel cannot compute, saying why.
    ///
    /// # Errors
    /// What the kernel would need.
    fn validate(&self, node: &CustomNode<'_>) -> Result<(), String>;

    /// Computes all rows.
    ///
    /// # Errors
    /// What went wrong; the member fails with it.
    fn run(&self, call: &mut CustomCall<'_>) -> Result<(), String>;
}

/// Kernels by name.
#[derive(Clone, Default)]
pub struct KernelRegistry {
    kernels: IndexMap<String, Arc<dyn CustomKernel>>,
}

impl KernelRegistry {
    /// No kernels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kernel, replacing one of the same name.
    pub fn register(
        &mut self,
        name: impl Into<String>,
        kernel: Arc<dyn CustomKernel>,
    ) -> &mut Self {
        self.kernels.insert(name.into(), kernel);
        self
    }

    /// The kernel of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn CustomKernel>> {
        self.kernels.get(name).cloned()
    }
}

impl fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kernels.keys()).finish()
    }
}
