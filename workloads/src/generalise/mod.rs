//! Does a policy do well on what nobody tuned it for? Random models under random arrivals.
//!
//! [`Case`] is one model with its arrivals, drawn from a seed; [`run()`] simulates policies on a
//! range of seeds in parallel; [`summary`] says on how many of them the judged policy came close to
//! the best other one; [`mod@file`] is the file with all of it, [`mod@report`] the page. docs/generalisation.md
//! defines every number.
//!
//! Invariants:
//! 1. A case depends on its seed alone, and all policies see the same arrivals.
//! 2. Results do not depend on the number of threads.
//! 3. Policies may be tuned on [`DEVELOPMENT`] seeds only; [`FINAL`] ones are for the last word.

use std::ops::Range;

pub mod case;
pub mod file;
pub mod report;
pub mod run;
pub mod shared;
pub mod summary;

pub use case::Case;
pub use run::{CaseResult, JudgedBy, Standing, run};
pub use summary::Summary;

/// Seeds to look at while a policy is made.
pub const DEVELOPMENT: Range<u64> = 0..100;
/// Seeds for the final table only: nothing may be changed because of one of them.
pub const FINAL: Range<u64> = 1000..1200;
/// How far J of the judged policy may lie above the best other's, as a share.
pub const TOLERANCE: f64 = 0.05;
/// How far its goodput may lie below the highest of the others, as a share, where goodput judges.
pub const GOODPUT_TOLERANCE: f64 = 0.02;
