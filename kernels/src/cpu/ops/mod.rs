//! Kernels by family. Each takes a node's view and returns its results.

pub mod attention;
pub mod conv;
pub mod custom;
pub mod data;
pub mod general;
pub mod image;
pub mod linear;
pub mod rowwise;
pub mod state;
