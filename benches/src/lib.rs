//! What benches and measurements share: fixtures, a clock, spreads, and records of results.
//!
//! Criterion benches (`cargo bench -p lazybatch-benches`) are for working on the code; the binary
//! `lazybatch-measure` writes the figures that `benches/results/` keeps. Both time the same
//! fixtures.

pub mod clock;
pub mod contention;
pub mod core_load;
pub mod lockstep;
pub mod matmul;
pub mod metered;
pub mod peer;
pub mod planned;
pub mod record;
pub mod reused;
pub mod serving;
pub mod spread;
pub mod steady;
pub mod tiny;
pub mod turns;

/// Policies whose steps and decisions are timed.
pub const POLICIES: [&str; 9] = [
    "serial",
    "graph:5",
    "greedy",
    "lazy",
    "oracle",
    "continuous",
    "cellular",
    "edf",
    "triton:delay=5",
];
