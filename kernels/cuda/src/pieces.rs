//! Which grains of the arena a piece gets.

use std::ops::Range;

/// Pieces of a row of grains: one at a time from the first grain on, others at the end of the shortest gap
/// that holds them, so that there is much room for the first.
#[derive(Debug)]
pub struct Pieces {
    /// Gaps, ascending, none beside another.
    gaps: Vec<Range<usize>>,
}

impl Pieces {
    /// All of so many grains are free.
    pub fn new(num: usize) -> Self {
        let all = 0..num;
        let gaps = Some(all).filter(|all| !all.is_empty());
        Self {
            gaps: gaps.into_iter().collect(),
        }
    }

    /// Grains that are free, in all.
    pub fn free(&self) -> usize {
        self.gaps.iter().map(Range::len).sum()
    }

    /// Takes the first `len` grains, above zero; `None` if they are not free.
    pub fn take_first(&mut self, len: usize) -> Option<Range<usize>> {
        self.take_at(0, len)
    }

    /// Takes the last `len` grains of the shortest gap that has so many, above zero; `None` if none has.
    pub fn take_last(&mut self, len: usize) -> Option<Range<usize>> {
        let gaps = self.gaps.iter().filter(|gap| gap.len() >= len);
        let end = gaps.min_by_key(|gap| gap.len())?.end;
        self.take_at(end - len, len)
    }

    /// Whether all of these grains are.
    pub fn is_free(&self, grains: &Range<usize>) -> bool {
        let at = self.gaps.partition_point(|gap| gap.end <= grains.start);
        let gap = self.gaps.get(at);
        gap.is_some_and(|gap| gap.start <= grains.start && grains.end <= gap.end)
    }

    /// These grains, if they are free.
    fn take_at(&mut self, start: usize, len: usize) -> Option<Range<usize>> {
        let at = self.gaps.partition_point(|gap| gap.end <= start);
        let gap = self.gaps.get(at)?.clone();
        let piece = start..start + len;
        if gap.start > piece.start || piece.end > gap.end {
            return None;
        }
        let left = [gap.start..piece.start, piece.end..gap.end];
        let left = left.into_iter().filter(|gap| !gap.is_empty());
        self.gaps.splice(at..=at, left);
        Some(piece)
    }

    /// Takes a piece back.
    pub fn give(&mut self, piece: &Range<usize>) {
        let at = self.gaps.partition_point(|gap| gap.start < piece.start);
        self.gaps.insert(at, piece.clone());
        // With the one behind it, then with the one in front.
        for first in [Some(at), at.checked_sub(1)].into_iter().flatten() {
            if let [a, b, ..] = &self.gaps[first..]
                && a.end == b.start
            {
                self.gaps[first].end = b.end;
                self.gaps.remove(first + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_is_first_and_others_fill_gaps_from_the_end() {
        let mut pieces = Pieces::new(100);
        assert_eq!(pieces.take_first(30), Some(0..30));
        assert_eq!(pieces.take_first(1), None);
        assert_eq!(pieces.take_last(20), Some(80..100));
        assert_eq!(pieces.take_last(10), Some(70..80));
        assert_eq!(pieces.take_last(5), Some(65..70));
        pieces.give(&(70..80));
        // The shortest gap that holds it, from its end on.
        assert_eq!(pieces.take_last(4), Some(76..80));
        assert_eq!(pieces.take_last(20), Some(45..65));
        assert!(pieces.is_free(&(30..45)) && !pieces.is_free(&(30..46)));
        pieces.give(&(0..30));
        assert_eq!((pieces.take_first(46), pieces.free()), (None, 45 + 6));
        assert_eq!(pieces.take_first(45), Some(0..45));
    }

    proptest! {
        /// Pieces lie apart and inside, whatever is taken and given back; what has room is taken, and in
        /// the end all is one gap.
        #[test]
        fn pieces_lie_apart(num in 1usize..400, asked in prop::collection::vec((1usize..60, 0u32..5, any::<prop::sample::Index>()), 1..80)) {
            let mut pieces = Pieces::new(num);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (len, what, which) in asked {
                if what < 2 && !taken.is_empty() {
                    pieces.give(&taken.swap_remove(which.index(taken.len())));
                    continue;
                }
                let mut is_free = vec![true; num];
                for piece in &taken {
                    is_free[piece.clone()].fill(false);
                }
                let longest = is_free.split(|free| !free).map(<[bool]>::len).max();
                prop_assert_eq!(pieces.free(), is_free.iter().filter(|f| **f).count());
                for start in 0..num {
                    let all = is_free.get(start..start + len);
                    let all = all.is_some_and(|all| all.iter().all(|f| *f));
                    prop_assert_eq!(pieces.is_free(&(start..start + len)), all);
                }
                let (piece, has_room) = if what == 2 {
                    (pieces.take_first(len), is_free.iter().take_while(|f| **f).count() >= len)
                } else {
                    (pieces.take_last(len), longest.unwrap_or(0) >= len)
                };
                prop_assert_eq!(piece.is_some(), has_room);
                if let Some(piece) = piece {
                    prop_assert!(piece.len() == len && is_free[piece.clone()].iter().all(|f| *f));
                    taken.push(piece);
                }
            }
            for piece in taken {
                pieces.give(&piece);
            }
            prop_assert_eq!(pieces.take_first(num), Some(0..num));
        }
    }
}
