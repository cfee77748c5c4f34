//! The engine: a pure scheduler core, its policies, and the drivers around them.

pub mod core;
pub mod driver;
pub mod policy;
