//! Joins programs into one, as the steps of an ensemble.
//!
//! [`join`] takes programs and the names of the tensors between them, and gives one program whose
//! blocks are those of the steps, one step behind the other, so that requests batch at nodes of all
//! steps. Nothing is computed differently: nodes keep their ops and operands, and what a step would
//! read from its input it reads from where the step before left it.
//!
//! - A step's first block becomes one with the last block before it where both run once; between
//!   nodes of one block a tensor is the value itself.
//! - From block to block a tensor goes through a per-request state.
//! - Steps with the same program share its weights.
//! - What no output depends on is removed.
//!
//! Steps that sample share one input for that, the joined program's last.
//!
//! [`Wires`] are what is checked of names alone; a server may use them for steps that are no programs.
//!
//! A request has one length. So a step can read a sequence only if that has as many rows as the
//! ensemble's own sequences have positions; a sequence that a decoder made is no input of a step.

mod assemble;
#[cfg(test)]
mod tests;
mod wires;
mod wiring;

use std::collections::BTreeMap;

pub use wires::{Ports, Source, Wires};

use crate::error::Error;
use crate::passes;
use crate::program::Program;
use crate::sampling::SAMPLING_INPUT;
use crate::verify::verify;

/// A program, and the tensors that its inputs and outputs are.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Name of the step, its own; the names of its nodes, weights and states begin with it.
    pub name: String,
    /// What it runs.
    pub program: &'a Program,
    /// The tensor that each input reads, by input.
    pub inputs: BTreeMap<String, String>,
    /// The tensor that each output makes, by output; those that are not listed are dropped.
    pub outputs: BTreeMap<String, String>,
}

/// Joins `steps` into a program called `name` with the inputs and outputs of these names. Steps may
/// stand in any order. The facts of the steps (their metadata) are left out.
///
/// # Errors
/// [`Error::Join`] for wiring that is not sound, [`Error::Apart`] where it is and one program cannot
/// express it; both name step and tensor.
pub fn join(
    name: &str,
    inputs: &[String],
    steps: &[Step<'_>],
    outputs: &[String],
) -> Result<Program, Error> {
    let (mut inputs, mut steps) = (inputs.to_vec(), steps.to_vec());
    if share_sampling(&mut steps) {
        inputs.push(SAMPLING_INPUT.to_owned());
    }
    let wiring = wiring::wiring(name, &inputs, &steps, outputs)?;
    let mut program = assemble::assemble(name, &inputs, &steps, outputs, &wiring);
    verify(&program)?;
    let dead_code = passes::find("dead_code").expect("among the passes");
    passes::apply(dead_code, &mut program)?;
    Ok(program)
}

/// Gives steps that sample one input for that where none is named; whether there are such. They draw
/// the same random numbers.
fn share_sampling(steps: &mut [Step<'_>]) -> bool {
    let mut is_shared = false;
    for step in steps {
        let sampling = step.program.sampling().map(|id| step.program.input(id));
        let Some(own) = sampling.filter(|d| !step.inputs.contains_key(&d.name)) else {
            continue;
        };
        let shared = SAMPLING_INPUT.to_owned();
        step.inputs.insert(own.name.clone(), shared);
        is_shared = true;
    }
    is_shared
}
