//! Which grains of the arena a piece gets.

use std::ops::Range;

/// Places at which short pieces start where they can, one behind another from the first grain on.
const PLACES: usize = 4;
/// A place is so large a part of the whole.
const PART: usize = 32;

/// Pieces of a row of grains.
///
/// A piece that is no longer than a place starts at the first place with room for it: while none is
/// longer and there are no more pieces than places, where one starts does not depend on how long the
/// others are. Any other is in the shortest gap that holds it (best fit), so what places cost is bounded
/// by the part of the whole that they are.
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
        let part = self.num / PART;
        let places = (0..PLACES).map(|place| place * part);
        places
            .filter(|_| len <= part)
            .find_map(|start| self.take_at(start, len))
            .or_else(|| self.take_best(len))
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

    /// The first grains of the shortest gap that has so many.
    fn take_best(&mut self, len: usize) -> Option<Range<usize>> {
        let gaps = self.gaps.iter().filter(|gap| gap.len() >= len);
        let start = gaps.min_by_key(|gap| gap.len())?.start;
        self.take_at(start, len)
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
    fn where_a_short_piece_starts_does_not_depend_on_how_long_others_are() {
        for first in [1, 3, 32] {
            let mut pieces = Pieces::new(1024);
            assert_eq!(pieces.take(first), Some(0..first));
            assert_eq!(pieces.take(7), Some(32..39));
            assert_eq!(pieces.take(9), Some(64..73));
            pieces.give(&(32..39));
            assert_eq!(pieces.take(20), Some(32..52));
        }
    }

    #[test]
    fn others_are_in_the_shortest_gap_that_holds_them() {
        let mut pieces = Pieces::new(1024);
        let short: Vec<_> = (0..4).map(|_| pieces.take(30).unwrap()).collect();
        assert_eq!(short.last(), Some(&(96..126)));
        // Longer than a place, and one more than places.
        assert_eq!(pieces.take(33), Some(126..159));
        assert_eq!(pieces.take(2), Some(30..32));
        assert_eq!((pieces.last(24), pieces.free()), (Some(1000), 1024 - 155));
        assert_eq!(pieces.take(866), None);
        assert_eq!(pieces.take(865), Some(159..1024));
        assert_eq!((pieces.last(2), pieces.last(3)), (Some(94), None));
    }

    /// Frames of up to sixteen members that come, merge and end, live in at most half, and three quarters
    /// where they merge: how often there was no room.
    fn failures(take: fn(&mut Pieces, usize) -> Option<Range<usize>>, member: usize) -> usize {
        let num = 1 << 14;
        let mut pieces = Pieces::new(num);
        let (mut live, mut failed, mut state) = (Vec::<Range<usize>>::new(), 0, 7u64);
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..20_000 {
            let all: usize = live.iter().map(Range::len).sum();
            let (what, last) = (random(4), live.len());
            let mut len = random(16) * member + 1 + random(member);
            let merged = match what {
                2 if last > 1 => 2,
                0 | 1 if all + len <= num / 2 => 0,
                _ => {
                    if last > 0 {
                        pieces.give(&live.swap_remove(random(last)));
                    }
                    continue;
                }
            };
            if merged > 0 {
                len = live[last - 1].len() + live[last - 2].len();
                if all + len > num / 4 * 3 {
                    continue;
                }
            }
            match take(&mut pieces, len) {
                Some(piece) => {
                    for gone in live.drain(last - merged..) {
                        pieces.give(&gone);
                    }
                    live.push(piece);
                }
                None => failed += 1,
            }
        }
        failed
    }

    #[test]
    fn places_leave_about_as_much_room_as_best_fit() {
        for member in [32, 64, 128, 256] {
            let best = failures(Pieces::take_best, member);
            let with_places = failures(Pieces::take, member);
            println!("{member}: {best} by best fit, {with_places} with places");
            assert!(
                best > 0 && with_places <= best + best / 2,
                "{member}: {best}, {with_places}"
            );
        }
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
