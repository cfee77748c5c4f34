//! ONNX models: reading files into a checked graph of named values.
//!
//! [`Model::decode`] turns bytes into a [`Model`] or an error, never a panic, within [`Limits`].
//! It checks names, order, attributes and tensors; it knows no op. What ops mean is in the crate
//! of kernels, which evaluates graphs op by op on [`Array`]s; this crate computes nothing.
//!
//! Data that a model keeps in files beside it is read by [`Model::open`], within its folder alone.
//!
//! Not read: sparse tensors, strings, complex numbers, functions that the
//! model brings along, training information.
//!
//! Source: onnx.proto and the operator documentation of ONNX 1.17.

pub mod array;
mod error;
mod external;
pub mod ir;
pub mod limits;
mod order;
pub mod proto;
mod read;
mod scan;
mod tensor;

pub use array::{Array, Data, Elem, NONE};
pub use error::{Error, Refused};
pub use ir::{Attr, Dim, Graph, Model, Node, ValueInfo, ValueType};
pub use limits::{Limit, Limits, MAX_RANK};
pub use read::{OPSETS, decode_tensor};

#[cfg(test)]
mod tests;
