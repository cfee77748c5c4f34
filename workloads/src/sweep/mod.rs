//! Sweeps: a grid of simulations, scored, compared and judged.
//!
//! A [`Grid`] is read from a TOML file or built in. [`cases::Lab`] turns it into cases (a setting,
//! a model or set of models, a rate), [`run`] simulates every policy and seed of every case in
//! parallel, [`points`] compares the policies cell by cell, [`aggregate`] and [`judge`] sum up,
//! and [`Sweep`] is the file with all of it. docs/sweeps.md defines every number.
//!
//! Invariants:
//! 1. All policies of a case and seed see the same arrivals.
//! 2. The results depend on the grid alone: not on the number of threads, and not on whether the
//!    sweep ran in one go or was resumed.
//! 3. `oracle` is simulated and shown, never compared against: it knows what no scheduler can.

pub mod aggregate;
pub mod bound;
pub mod cases;
pub mod file;
pub mod grid;
pub mod judge;
pub mod kept;
pub mod moments;
pub mod points;
pub mod report;
pub mod resume;
pub mod run;
pub mod score;
pub mod text;

#[cfg(test)]
mod fixture;

pub use file::Sweep;
pub use grid::Grid;
pub use score::Run;
