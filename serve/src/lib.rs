//! The serving front end: an engine behind the Open Inference Protocol (KServe v2), over HTTP and
//! gRPC, with the extensions that Triton's clients use.
//!
//! - [`config`]: `config.pbtxt`, read strictly, completed from the model's file.
//! - [`repository`]: folders of models, their versions, loading and unloading; [`files`]: what
//!   configurations name in them.
//! - [`model`]: a version that is served, in the engine of all or one of its own; [`chain`]: one that
//!   calls others.
//! - [`warmup`]: what it runs before it is ready.
//! - [`infer`]: requests and answers, whatever they came over.
//! - [`cache`]: answers to inputs that were seen before; [`calls`], [`memory`]: how many run, what
//!   requests hold, and the bounds on both.
//! - [`http`], [`grpc`]: what they come over; [`metrics`] beside them, with figures of
//!   [`machine`] and [`gpus`].
//! - [`listen`]: connections, plain and encrypted; [`descriptors`]: what they take; [`rounds`]: when they
//!   are looked at under too many requests; [`security`]: who may call.
//! - [`watch`], [`dashboard`], [`explained`]: what the engines do, live, as traces, and why.
//! - [`telemetry`]: spans of calls, sent to a collector; [`traces`]: traces of calls, in files.
//! - [`server`]: ports, start and end.
//! - [`Allocator`]: for the programs that serve.

mod allocator;
pub mod cache;
pub mod calls;
pub mod chain;
mod changes;
mod closing;
pub mod config;
pub mod dashboard;
pub mod descriptors;
pub mod dtype;
pub mod error;
pub mod explained;
mod fields;
pub mod files;
pub mod gpus;
pub mod grpc;
mod heads;
pub mod host;
pub mod http;
pub mod infer;
pub mod listen;
pub mod machine;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod proto;
pub mod repository;
mod responses;
pub mod rounds;
pub mod security;
pub mod server;
pub mod settings;
pub mod shm;
pub mod state;
pub mod stats;
pub mod telemetry;
pub mod traces;
mod wakes;
pub mod warmup;
pub mod watch;

pub use allocator::Allocator;
pub use config::Cut;
pub use error::Error;
pub use gpus::{Gpu, Gpus};
pub use host::{Host, Text};
pub use repository::{ALL, Control};
pub use rounds::Rounds;
pub use security::{Security, TlsFiles};
pub use server::{Bound, Options, Server};
pub use settings::Switches;
pub use telemetry::Otlp;
pub use traces::TraceDir;
