//! The engine: a pure scheduler core, its policies, and the drivers around them.

pub mod core;
pub mod driver;
pub mod embed;
pub mod journal;
pub mod policy;
pub mod timeline;

pub use embed::{
    Answer, BuildError, Builder, Engine, Handle, ModelOptions, Options, RequestError, Step,
    StepStream,
};
