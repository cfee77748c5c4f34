//! Pages of sequence states: how many a request needs, and who has which.
//!
//! A sequence state's rows lie in pages of sixteen positions of one pool per state declaration. A
//! request's pages are reserved when it opens, for the most rows that it can ever write, so no
//! launch runs out of them; merges never copy them. What is in the pages is the device's.

use lazybatch_graph::{At, Op, Program, Repeat, StateKind};

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

/// A state's pool, before it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSize {
    /// Pages.
    pub pages: usize,
    /// Elements of a row.
    pub features: usize,
}

impl PoolSize {
    /// Elements of the pool.
    pub fn elems(self) -> usize {
        self.pages * PAGE * self.features
    }
}

/// Free pages of a model's sequence states; none for vector states.
#[derive(Debug, Default)]
pub struct Pages {
    /// By state id.
    free: Vec<Vec<u32>>,
    /// By state id: how many rows a request can write.
    bounds: Vec<RowBound>,
}

impl Pages {
    /// Pages for at most `max_open` requests of the greatest length within `budget` bytes; the size of each state's pool, and how many such requests fit.
    pub fn new(program: &Program, max_open: usize, budget: usize) -> (Self, Vec<PoolSize>, usize) {
        let bounds = row_bounds(program);
        let longest = program
            .length_input
            .and_then(|input| program.input(input).max_len)
            .unwrap_or(1 << 16);
        let one: Vec<PoolSize> = program
            .states
            .iter()
            .zip(&bounds)
            .map(|(s, b)| match s.kind {
                StateKind::Sequence { features, .. } => PoolSize {
                    pages: b.rows(longest).div_ceil(PAGE),
                    features,
                },
                StateKind::Vector { .. } => PoolSize::default(),
            })
            .collect();
        let each: usize = one.iter().map(|p| p.elems() * size_of::<f32>()).sum();
        let fit = budget
            .checked_div(each)
            .map_or(max_open, |n| n.min(max_open));
        let all: Vec<PoolSize> = one
            .into_iter()
            .map(|p| PoolSize {
                pages: fit * p.pages,
                ..p
            })
            .collect();
        let free = all.iter().map(|p| (0..p.pages as u32).rev().collect());
        let free = free.collect();
        (Self { free, bounds }, all, fit)
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
        for (state, (need, free)) in needs.iter().zip(&self.free).enumerate() {
            if *need > free.len() {
                return Err((state, *need, free.len()));
            }
        }
        let reserved = needs.into_iter().zip(&mut self.free).map(|(need, free)| {
            let rest = free.len() - need;
            SeqState {
                pages: free.split_off(rest),
                len: 0,
            }
        });
        Ok(reserved.collect())
    }

    /// Gives a request's pages back.
    pub fn release(&mut self, sequences: &mut [SeqState]) {
        for (seq, free) in sequences.iter_mut().zip(&mut self.free) {
            free.append(&mut seq.pages);
            seq.len = 0;
        }
    }
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
