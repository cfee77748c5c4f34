//! Runs programs: warps step by step, blocks one after another, every access checked.
//!
//! Invariants:
//! 1. Every instruction runs for all lanes of a group that are at the same position; of groups at
//!    different positions the one furthest behind runs, so that they meet again.
//! 2. A check that finds something ends the launch; nothing that it would have written is undone.

mod access;
mod atomics;
mod block;
mod calls;
mod collective;
mod launch;
mod matrix;
mod memory;
mod shadow;
mod warp;

pub use launch::{Launch, MAX_THREADS, Options, SHARED_BYTES, SHARED_BYTES_OPTIN, Stats, launch};
pub use memory::{Allocation, BadAddress, FRESH, Memory};
