//! Workloads: who asks for what and when, and what came of it.
//!
//! - [`arrivals`]: requests with their times and lengths, from seeded processes.
//! - [`traces`]: the same read from files, and written to them.
//! - [`lengths`]: joint distributions of input and output lengths.
//! - [`results`]: summaries, tables and files of finished requests.
//! - [`sweep`]: grids of simulations, scored and compared.
//! - [`generalise`]: random models under random arrivals.
//! - [`zoo`]: models by name.
//! - [`text`]: text for models that compute with token ids.
//! - [`bound`]: what no schedule of given arrivals can beat.
//! - [`devices`]: latency profiles of those models on devices that are not at hand.
//! - [`report`]: one self-contained HTML file about a comparison.
//!
//! No clock is read and no network is used. Every random choice comes from a seed handed in.
//!
//! ```
//! use lazybatch_sla::Nanos;
//! use lazybatch_workloads::arrivals::{Limit, Process, Stream, Workload};
//! use lazybatch_workloads::lengths::Lengths;
//!
//! let lengths = Lengths::load("translation-short")?;
//! let stream = Stream::new("gnmt", Process::Poisson { rate_rps: 500.0 }, lengths);
//! let workload = Workload::single(stream, Limit::Duration(Nanos::from_ms(1000)));
//! let arrivals = workload.generate(1)?;
//! assert_eq!(arrivals, workload.generate(1)?);
//! # Ok::<(), lazybatch_workloads::Error>(())
//! ```

pub mod arrivals;
pub mod bound;
pub mod devices;
pub mod error;
pub mod experiment;
pub mod generalise;
pub mod lengths;
pub mod report;
pub mod results;
pub mod sweep;
pub mod text;
pub mod traces;
pub mod zoo;

pub use arrivals::Arrival;
pub use error::{Error, Result};
