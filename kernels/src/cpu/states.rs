//! Paged sequence states in memory; see [`crate::pages`].
//!
//! Invariant: rows below a sequence's `len` are written, or zero where they were skipped.

use lazybatch_graph::Program;

use super::buffers::Aligned;
use crate::pages::{PAGE, Pages, SeqState};

/// Pages of one state declaration.
#[derive(Debug, Default)]
pub struct PagePool {
    data: Aligned,
    features: usize,
}

/// The pools of a model, by state; empty ones for vector states.
#[derive(Debug, Default)]
pub struct StatePools {
    /// By state id.
    pub pools: Vec<PagePool>,
    /// Who has which pages.
    pub pages: Pages,
}

impl StatePools {
    /// Pools for at most `max_open` requests of the greatest length within `budget` bytes; how
    /// many such requests fit is the second result.
    pub fn new(program: &Program, max_open: usize, budget: usize) -> (Self, usize) {
        let (pages, sizes, fit) = Pages::new(program, max_open, budget);
        let pools = sizes.into_iter().map(|size| PagePool {
            data: Aligned::zeroed(size.elems()),
            features: size.features,
        });
        let pools = pools.collect();
        (Self { pools, pages }, fit)
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
