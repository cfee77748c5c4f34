//! The oracle: every op written as its definition says, in double precision.
//!
//! [`ReferenceDevice`] runs one member after another, keeps each request's values in the request
//! itself, and so has nothing to merge, pad or share: what it computes cannot depend on a batch.
//! It is slow on purpose. Its results are compared within a tolerance, never bit for bit.

mod attention;
mod cells;
mod device;
mod eval;
mod image;
pub mod math;

pub use device::ReferenceDevice;
