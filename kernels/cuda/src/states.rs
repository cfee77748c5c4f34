//! States of a model's open requests, in device memory.
//!
//! A vector state is a pool of rows, one for each sample of an open request, and one row more that
//! holds the initial value; a request has the same rows in all pools. A sequence state is a pool of
//! pages. Both are bounded when the model is loaded.

use lazybatch_graph::{Program, StateKind};
use lazybatch_kernels::pages::Pages;

use crate::context::{Context, DeviceMemory, DevicePtr};
use crate::error::CudaError;
use crate::memory::ELEM;

/// The pool of one state.
#[derive(Clone, Copy, Debug)]
pub enum Pool {
    /// `[rows + 1, elems]`.
    Vector {
        /// First element.
        at: DevicePtr,
        /// Elements of a row.
        elems: usize,
        /// Bits of the initial value of every element.
        init: u32,
    },
    /// `[pages, 16, features]`.
    Sequence {
        /// First element.
        at: DevicePtr,
        /// Elements of a row.
        features: usize,
    },
}

/// All states of a model.
#[derive(Debug)]
pub struct States {
    /// By state id.
    pub pools: Vec<Pool>,
    /// Who has which pages.
    pub pages: Pages,
    /// Rows of vector states that are free.
    pub rows: Vec<u32>,
    /// The row that holds initial values.
    pub init_row: u32,
    /// Requests of the greatest length that fit.
    pub fit: usize,
    _memory: DeviceMemory,
}

impl States {
    /// Pools for at most `max_open` requests within `budget` bytes. Their content is written by
    /// whoever makes them.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        context: &Context,
        program: &Program,
        max_open: usize,
        budget: usize,
    ) -> Result<Self, CudaError> {
        let vector: usize = program
            .states
            .iter()
            .map(|s| match &s.kind {
                StateKind::Vector { dims, .. } => pitch(dims.iter().product()) * ELEM,
                StateKind::Sequence { .. } => 0,
            })
            .sum();
        let max_open = match (budget / 2).checked_div(vector) {
            Some(rows) => max_open.min(rows.saturating_sub(1)),
            None => max_open,
        };
        let paged = budget.saturating_sub(vector * (max_open + 1));
        let (pages, sizes, fit) = Pages::new(program, max_open, paged);
        let mut bytes = 0;
        let mut place = |elems: usize| {
            let at = bytes;
            bytes += (elems * ELEM).next_multiple_of(256);
            at
        };
        let mut places = Vec::with_capacity(sizes.len());
        for (state, size) in program.states.iter().zip(&sizes) {
            places.push(match &state.kind {
                StateKind::Vector { dims, .. } => {
                    let elems: usize = dims.iter().product();
                    place((fit + 1) * elems)
                }
                StateKind::Sequence { .. } => place(size.elems()),
            });
        }
        let what = format!("the states of {}", program.name);
        let memory = DeviceMemory::new(context, &what, bytes)?;
        let pools = program.states.iter().zip(places).map(|(state, at)| {
            let at = memory.at().add(at);
            match &state.kind {
                StateKind::Vector { dims, init } => Pool::Vector {
                    at,
                    elems: dims.iter().product(),
                    init: if state.dtype.is_float() {
                        init.to_bits()
                    } else {
                        *init as i32 as u32
                    },
                },
                StateKind::Sequence { features, .. } => Pool::Sequence {
                    at,
                    features: *features,
                },
            }
        });
        Ok(Self {
            pools: pools.collect(),
            pages,
            rows: (0..fit as u32).rev().collect(),
            init_row: fit as u32,
            fit,
            _memory: memory,
        })
    }
}

/// Elements that a row takes when memory is counted.
fn pitch(elems: usize) -> usize {
    elems.next_multiple_of(64)
}
