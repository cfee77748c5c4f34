//! The embedded device.
//!
//! [`CpuDevice`] runs launches in place on the calling thread and a pool. Weights are packed when
//! a model is loaded, activations are packed rows in arenas that are planned then too, sequence
//! states are paged.
//!
//! Invariants:
//! 1. *Batched equals alone*: every output element is computed by one chain of operations that
//!    depends on its own member only. Chains are never split over threads, tiles change no chain,
//!    reductions over a row follow an order fixed by the row's length.
//! 2. Elementwise functions give a lane the bits that its input determines.
//! 3. Idle members and padded rows are computed and leave no trace.
//! 4. Once warm, a launch allocates nothing, but for custom and general nodes, and for the list of
//!    more than four members that stop at once.
//! 5. Weights that are stored rounded change results, not these rules: see [`WeightType`].
//!
//! It does not schedule, and its sums are f32; see [`crate::reference`] for an oracle.

pub mod buffers;
mod cache;
mod device;
mod exec;
pub mod gemm;
mod layout;
pub mod level;
pub mod math;
mod memory;
mod model;
mod needs;
mod open;
mod ops;
mod options;
mod parts;
pub mod peak;
pub mod pool;
mod states;
mod stored;

pub use cache::CacheReport;
pub use device::CpuDevice;
pub use gemm::WeightType;
pub use memory::{BlockMemory, ProgramMemory};
pub(crate) use needs::Needs;
pub use options::CpuOptions;
