//! Passes: rewrites that leave a program computing the same with fewer, larger nodes.
//!
//! Each pass is one file with one function; [`PASSES`] lists them in the order in which
//! [`optimize`] runs them, [`ON_REQUEST`] those that it does not run. Adding a pass is a file and a
//! line. The verifier runs after each.
//!
//! A fused node stands where the last of its parts stood and keeps the name of its first part; a
//! sum fused with a norm stands in the place of the sum and takes the name of the norm.
//!
//! Bits on the CPU device are kept by all passes but two. `fold_batch_norm` rounds the folded weights;
//! `fuse_conv` takes a residual into a convolution, whose chains then begin at residual plus bias
//! instead of having them added. What `fold_constants` computes has the bits of the CPU's kernels
//! ([`crate::math`]); other devices have functions of their own, so theirs may differ in the last ones.

mod dead_code;
mod edit;
mod fold_batch_norm;
mod fold_constants;
mod fuse_conv;
mod fuse_elementwise;
mod fuse_linear;
mod fuse_norm;
mod project_ahead;

pub(crate) use dead_code::{reads, written};
pub(crate) use edit::states_of;

use crate::error::Error;
use crate::program::Program;
use crate::verify::verify;

/// A rewrite of programs.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Its name, as messages print it.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Rewrites a verified program into one that verifies.
    pub run: fn(&mut Program),
}

/// All passes in the order in which they run.
#[rustfmt::skip]
pub const PASSES: &[Pass] = &[
    Pass { name: "fold_constants", summary: "computes nodes whose operands are all weights", run: fold_constants::run },
    Pass { name: "dead_code", summary: "removes what no output and no stop depends on", run: dead_code::run },
    Pass { name: "fuse_linear", summary: "linear + bias + activation + residual into one node", run: fuse_linear::run },
    Pass { name: "fold_batch_norm", summary: "batch normalisation into the weights of its convolution", run: fold_batch_norm::run },
    Pass { name: "fuse_conv", summary: "convolution + residual + activation into one node", run: fuse_conv::run },
    Pass { name: "fuse_norm", summary: "residual sum + layer norm into one node", run: fuse_norm::run },
    Pass { name: "fuse_elementwise", summary: "elementwise nodes that follow one another into one node", run: fuse_elementwise::run },
];

/// Passes that trade one thing for another, so that who asks for a program decides; [`apply`] runs
/// one, behind [`optimize`]. They leave the bits, on the CPU device.
#[rustfmt::skip]
pub const ON_REQUEST: &[Pass] = &[
    Pass { name: "project_ahead", summary: "input products of recurrent cells in front of their loop, for memory per position", run: project_ahead::run },
];

/// The pass called `name`, of [`PASSES`] or [`ON_REQUEST`].
pub fn find(name: &str) -> Option<&'static Pass> {
    PASSES.iter().chain(ON_REQUEST).find(|p| p.name == name)
}

/// Runs all of [`PASSES`].
///
/// # Errors
/// What [`verify`] finds in `program`. An error behind a pass is a bug of that pass and names it.
pub fn optimize(mut program: Program) -> Result<Program, Error> {
    verify(&program)?;
    for pass in PASSES {
        apply(pass, &mut program)?;
    }
    Ok(program)
}

/// Runs one pass and verifies its result.
///
/// # Errors
/// A bug of the pass, which the message names.
pub fn apply(pass: &Pass, program: &mut Program) -> Result<(), Error> {
    (pass.run)(program);
    verify(program).map_err(|error| Error::Structure {
        program: program.name.clone(),
        what: format!("after pass {}: {error}", pass.name),
    })
}
