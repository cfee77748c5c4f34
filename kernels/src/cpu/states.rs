//! Paged sequence states.
//!
//! A sequence state's rows lie in pages of sixteen positions of one pool per state declaration. A
//! request's pages are reserved when it opens, for the most rows that it can ever write, so no
//! launch runs out of them; merges never copy them.
//!
//! Invariant: rows below a sequence's `len` are written, or zero where they were skipped.

use lazybatch_graph::{At, Op, Program, Repeat, StateKind};

use super::buffers::Aligned;
use crate::validate::passes;

/// Positions of a page.
pub const PAGE: usize = 16;

/// One request's rows of one state.
#[derive(Clone, Debug, Default)]
pub struct SeqState {
    /// Pages in order.
    pub pages: Vec<u32>,
    /// One behind the last position written.
    pub len: usize,
}

/// Pages of one state declaration.
#[derive(Debug, Default)]
pub struct PagePool {
    data: Aligned,
    free: Vec<u32>,
    features: usize,
}

/// The pools of a model, by state; empty ones for vector states.
#[derive(Debug, Default)]
pub struct StatePools {
    /// By state id.
    pub pools: Vec<PagePool>,
    /// By state id: how many rows a request can write.
    bounds: Vec<RowBound>,
}

/// Most rows that a request writes to a sequence state.
#[derive(Clone, Debug, Default)]
pub struct RowBound {
    max_len: usize,
    /// Writers at a position of the input: repeat rules of their blocks.
    by_input: Vec<Repeat>,
    /// Positions of writers whose number of passes does not depend on the input.
    fixed: usize,
    /// Appending writers that add as many rows as there are passes over the input.
    appends: Vec<Repeat>,
    /// Rows that other appending writers add.
    grows: usize,
}

impl RowBound {
    /// Rows of a request.
    pub fn rows(&self, input_len: usize) -> usize {
        let at = self
            .by_input
            .iter()
            .map(|r| passes(*r, input_len))
            .max()
            .unwrap_or(0);
        let appended: usize = self.appends.iter().map(|r| passes(*r, input_len)).sum();
        (at.max(self.fixed) + appended + self.grows).min(self.max_len)
    }
}

/// Most rows that a request writes to each state; none to vector states.
pub fn row_bounds(program: &Program) -> Vec<RowBound> {
    let mut bounds: Vec<RowBound> = program
        .states
        .iter()
        .map(|s| match s.kind {
            StateKind::Sequence { max_len, .. } => RowBound {
                max_len,
                ..RowBound::default()
            },
            StateKind::Vector { .. } => RowBound::default(),
        })
        .collect();
    for block in &program.blocks {
        for &node in &block.nodes {
            if let Op::SeqWrite { state, at } = program.node(node).op {
                let bound = &mut bounds[state.index()];
                match (block.repeat, at) {
                    (Repeat::UntilStop { max }, At::End) => bound.grows += max as usize,
                    (Repeat::UntilStop { max }, _) => bound.fixed = bound.fixed.max(max as usize),
                    (Repeat::Once, At::End) => bound.grows += 1,
                    (repeat, At::End) => bound.appends.push(repeat),
                    (repeat, _) => bound.by_input.push(repeat),
                }
            }
        }
    }
    bounds
}

impl StatePools {
    /// Pools for at most `max_open` requests of the greatest length within `budget` bytes; how
    /// many such requests fit is the second result.
    pub fn new(program: &Program, max_open: usize, budget: usize) -> (Self, usize) {
        let bounds = row_bounds(program);
        let longest = program
            .length_input
            .and_then(|input| program.input(input).max_len)
            .unwrap_or(1 << 16);
        let pages: Vec<(usize, usize)> = program
            .states
            .iter()
            .zip(&bounds)
            .map(|(s, b)| match s.kind {
                StateKind::Sequence { features, .. } => (b.rows(longest).div_ceil(PAGE), features),
                StateKind::Vector { .. } => (0, 0),
            })
            .collect();
        let each: usize = pages.iter().map(|(n, f)| n * PAGE * f * 4).sum();
        let fit = budget
            .checked_div(each)
            .map_or(max_open, |n| n.min(max_open));
        let pools = pages
            .into_iter()
            .map(|(n, features)| PagePool {
                data: Aligned::zeroed(fit * n * PAGE * features),
                free: (0..(fit * n) as u32).rev().collect(),
                features,
            })
            .collect();
        (Self { pools, bounds }, fit)
    }

    /// Reserves the pages of a request, all or none.
    ///
    /// # Errors
    /// The state without room, pages needed and pages left.
    pub fn reserve(&mut self, input_len: usize) -> Result<Vec<SeqState>, (usize, usize, usize)> {
        let needs: Vec<usize> = self
            .bounds
            .iter()
            .map(|b| b.rows(input_len).div_ceil(PAGE))
            .collect();
        for (state, (need, pool)) in needs.iter().zip(&self.pools).enumerate() {
            if *need > pool.free.len() {
                return Err((state, *need, pool.free.len()));
            }
        }
        let reserved = needs.into_iter().zip(&mut self.pools).map(|(need, pool)| {
            let rest = pool.free.len() - need;
            SeqState {
                pages: pool.free.split_off(rest),
                len: 0,
            }
        });
        Ok(reserved.collect())
    }

    /// Gives a request's pages back.
    pub fn release(&mut self, sequences: &mut [SeqState]) {
        for (seq, pool) in sequences.iter_mut().zip(&mut self.pools) {
            pool.free.append(&mut seq.pages);
            seq.len = 0;
        }
    }
}

impl PagePool {
    /// Features of a row.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The row at `pos` of a sequence.
    pub fn row(&self, seq: &SeqState, pos: usize) -> &[f32] {
        let page = seq.pages[pos / PAGE] as usize;
        &self.data[(page * PAGE + pos % PAGE) * self.features..][..self.features]
    }

    /// Rows `16 * i ..` of a sequence, as far as they are written.
    pub fn page(&self, seq: &SeqState, i: usize) -> &[f32] {
        let rows = PAGE.min(seq.len - i * PAGE);
        &self.data[seq.pages[i] as usize * PAGE * self.features..][..rows * self.features]
    }

    /// Writes the row at `pos`; rows skipped before it become zero.
    ///
    /// # Errors
    /// If no page was reserved for the position.
    pub fn write(&mut self, seq: &mut SeqState, pos: usize, row: &[f32]) -> Result<(), String> {
        if pos / PAGE >= seq.pages.len() {
            return Err(format!(
                "position {pos} behind the {} reserved",
                seq.pages.len() * PAGE
            ));
        }
        for skipped in seq.len..pos {
            self.row_mut(seq, skipped).fill(0.0);
        }
        self.row_mut(seq, pos).copy_from_slice(row);
        seq.len = seq.len.max(pos + 1);
        Ok(())
    }

    fn row_mut(&mut self, seq: &SeqState, pos: usize) -> &mut [f32] {
        let page = seq.pages[pos / PAGE] as usize;
        &mut self.data[(page * PAGE + pos % PAGE) * self.features..][..self.features]
    }
}
