//! Which grains of the arena a piece gets.

use std::ops::Range;

/// Parts of the whole at whose starts pieces lie where they can.
const PARTS: usize = 16;

/// Pieces of a row of grains.
///
/// A piece starts at the first free multiple of a sixteenth of the whole behind which it has room,
/// else of half of that, and so on down to a single grain: wherever there is a gap that is long enough,
/// one of these fits. While there are few pieces, and none is longer than a sixteenth, the `n`th that
/// lives starts where any `n`th does.
#[derive(Debug)]
pub struct Pieces {
    num: usize,
    /// Gaps, ascending, none beside another.
    gaps: Vec<Range<usize>>,
}

impl Pieces {
    /// All of so many grains are free.
    pub fn new(num: usize) -> Self {
        let all = 0..num;
        let gaps = Some(all).filter(|all| !all.is_empty());
        Self {
            num,
            gaps: gaps.into_iter().collect(),
        }
    }

    /// Grains that are free, in all.
    pub fn free(&self) -> usize {
        self.gaps.iter().map(Range::len).sum()
    }

    /// Takes `len` grains in one piece, above zero; `None` if no gap has so many.
    pub fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let mut multiple = (self.num / PARTS).max(1);
        loop {
            let mut gaps = self.gaps.iter().enumerate();
            let found = gaps.find_map(|(i, gap)| {
                let start = gap.start.next_multiple_of(multiple);
                (start + len <= gap.end).then_some((i, start))
            });
            match found {
                Some((i, start)) => {
                    let gap = self.gaps[i].clone();
                    let left = [gap.start..start, start + len..gap.end];
                    let left = left.into_iter().filter(|gap| !gap.is_empty());
                    self.gaps.splice(i..=i, left);
                    return Some(start..start + len);
                }
                None if multiple == 1 => return None,
                None => multiple /= 2,
            }
        }
    }

    /// Where the last `len` grains start that are free in one piece.
    pub fn last(&self, len: usize) -> Option<usize> {
        let mut gaps = self.gaps.iter().rev();
        gaps.find(|gap| gap.len() >= len).map(|gap| gap.end - len)
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
    fn where_a_piece_starts_does_not_depend_on_how_long_others_are() {
        for first in [1, 3, 60] {
            let mut pieces = Pieces::new(1024);
            assert_eq!(pieces.take(first), Some(0..first));
            assert_eq!(pieces.take(7), Some(64..71));
            assert_eq!(pieces.take(9), Some(128..137));
            pieces.give(&(64..71));
            assert_eq!(pieces.take(20), Some(64..84));
        }
        let mut pieces = Pieces::new(1024);
        assert_eq!(pieces.take(65), Some(0..65));
        assert_eq!(pieces.take(1), Some(128..129));
        assert_eq!(pieces.last(24), Some(1000));
    }

    #[test]
    fn a_gap_that_is_long_enough_is_found_wherever_it_starts() {
        let mut pieces = Pieces::new(33);
        // The last one fits at no even grain.
        let all = [1, 1, 29].map(|len| pieces.take(len).unwrap());
        assert_eq!(all, [0..1, 2..3, 4..33]);
        assert_eq!((pieces.take(1), pieces.take(2)), (Some(1..2), None));
        assert_eq!((pieces.free(), pieces.last(1)), (1, Some(3)));
        assert_eq!(pieces.take(1), Some(3..4));
        assert_eq!(pieces.last(1), None);
    }

    proptest! {
        /// Pieces lie apart and inside, whatever is taken and given back; what fits a gap is taken, and
        /// in the end all is one gap.
        #[test]
        fn pieces_lie_apart(num in 1usize..400, asked in prop::collection::vec((1usize..60, any::<bool>(), any::<prop::sample::Index>()), 1..80)) {
            let mut pieces = Pieces::new(num);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (len, is_back, which) in asked {
                if is_back && !taken.is_empty() {
                    pieces.give(&taken.swap_remove(which.index(taken.len())));
                    continue;
                }
                let mut is_free = vec![true; num];
                for piece in &taken {
                    is_free[piece.clone()].fill(false);
                }
                let longest = is_free.split(|free| !free).map(<[bool]>::len).max();
                prop_assert_eq!(pieces.free(), is_free.iter().filter(|f| **f).count());
                let last = (0..(num + 1).saturating_sub(len)).rev().find(|s| is_free[*s..*s + len].iter().all(|f| *f));
                prop_assert_eq!(pieces.last(len), last);
                match pieces.take(len) {
                    Some(piece) => {
                        prop_assert!(piece.len() == len && is_free[piece.clone()].iter().all(|f| *f));
                        taken.push(piece);
                    }
                    None => prop_assert!(longest.unwrap_or(0) < len),
                }
            }
            for piece in taken {
                pieces.give(&piece);
            }
            prop_assert_eq!(pieces.take(num), Some(0..num));
        }
    }
}
