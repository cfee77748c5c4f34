//! Scored pieces: the tokenizer of llama2.c, which merges greedily by score.
//!
//! File: i32 length of the longest piece, then for each id f32 score, i32 length, bytes. Ids 0, 1,
//! 2 are unknown, start and end; 3 to 258 stand for single bytes, written `<0x0A>`.
//! Source: karpathy/llama2.c, `run.c`, `build_tokenizer`, `encode`, `decode`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use crate::error::{Error, Result};

/// First id of the single bytes.
const FIRST_BYTE: usize = 3;
/// Most bytes of a piece: more is a mistake.
const MAX_PIECE: usize = 4096;

/// Pieces by id, and back.
#[derive(Clone, Debug)]
pub struct Pieces {
    pieces: Vec<(Vec<u8>, f32)>,
    ids: HashMap<Vec<u8>, usize>,
    longest: usize,
}

/// Two neighbours that make a piece. The greatest is the one that merges next: that of the highest
/// score, the first among equals.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: Score,
    /// Where the left one is.
    at: Reverse<usize>,
    /// Ids of both: where one of them has merged since, there is another in its place, or none.
    ids: [usize; 2],
    makes: usize,
}

/// A finite score. 0 and -0 are equals.
struct Score(f32);

impl Score {
    fn of(score: f32) -> Self {
        Self(score + 0.0)
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The place of no piece.
const NONE: usize = usize::MAX;

/// Pieces that merge: of each its id and its neighbours, by where it begins in what they were first.
struct Merging<'p> {
    of: &'p Pieces,
    ids: Vec<usize>,
    before: Vec<usize>,
    behind: Vec<usize>,
    pairs: BinaryHeap<Pair>,
    /// What two pieces are together.
    joined: Vec<u8>,
}

impl<'p> Merging<'p> {
    fn new(of: &'p Pieces, ids: Vec<usize>) -> Self {
        let num = ids.len();
        let mut merging = Self {
            of,
            before: (0..num)
                .map(|at| at.checked_sub(1).unwrap_or(NONE))
                .collect(),
            behind: (1..num).chain([NONE]).collect(),
            ids,
            pairs: BinaryHeap::with_capacity(num),
            joined: Vec::new(),
        };
        (0..num).for_each(|at| merging.look(at));
        merging
    }

    /// Looks whether the piece at `at` and the one behind it make a piece.
    fn look(&mut self, at: usize) {
        let Some(&right) = self.ids.get(self.behind[at]) else {
            return;
        };
        let ids = [self.ids[at], right];
        self.joined.clear();
        ids.iter()
            .for_each(|&id| self.joined.extend(&self.of.pieces[id].0));
        if let Some(&makes) = self.of.ids.get(&self.joined) {
            self.pairs.push(Pair {
                score: Score::of(self.of.pieces[makes].1),
                at: Reverse(at),
                ids,
                makes,
            });
        }
    }

    /// Merges as long as there are neighbours that make a piece.
    fn run(mut self) -> Vec<i32> {
        while let Some(pair) = self.pairs.pop() {
            let Reverse(at) = pair.at;
            let right = self.behind[at];
            // A merge makes a longer piece, so the same ids are the same pieces.
            if self.ids[at] != pair.ids[0] || self.ids.get(right) != Some(&pair.ids[1]) {
                continue;
            }
            self.ids[at] = pair.makes;
            self.ids[right] = NONE;
            let behind = self.behind[right];
            self.behind[at] = behind;
            if let Some(before) = self.before.get_mut(behind) {
                *before = at;
            }
            if self.before[at] != NONE {
                self.look(self.before[at]);
            }
            self.look(at);
        }
        let left = self.ids.into_iter().filter(|&id| id != NONE);
        left.map(|id| id as i32).collect()
    }
}

impl Pieces {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or ends early.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// Reads the content of a file; `file` names it in messages.
    ///
    /// # Errors
    /// Content that ends early, or lacks the ids of single bytes.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let bad = |expected: &str, got: String| Error::File {
            file: file.to_owned(),
            expected: expected.to_owned(),
            got,
        };
        let mut rest = bytes;
        let mut take = |num: usize| -> Result<Vec<u8>> {
            let at = bytes.len() - rest.len();
            let Some((taken, behind)) = rest.split_at_checked(num) else {
                let got = format!("the end of the file {} bytes behind", rest.len());
                return Err(bad(&format!("{num} bytes at {at}"), got));
            };
            rest = behind;
            Ok(taken.to_vec())
        };
        let word = |bytes: Vec<u8>| -> [u8; 4] { std::array::from_fn(|i| bytes[i]) };
        take(4)?;
        let mut pieces = Vec::new();
        let mut at = 4;
        while at < bytes.len() {
            let score = f32::from_le_bytes(word(take(4)?));
            let len = i32::from_le_bytes(word(take(4)?));
            let num = usize::try_from(len).ok().filter(|&n| n <= MAX_PIECE);
            let Some(num) = num.filter(|_| score.is_finite()) else {
                let expected = "a finite score and a length of at most 4096";
                let got = format!("{score} and {len} for piece {}", pieces.len());
                return Err(bad(expected, got));
            };
            pieces.push((take(num)?, score));
            at += 8 + num;
        }
        if pieces.len() < FIRST_BYTE + 256 {
            let expected = "3 special pieces, 256 single bytes and more";
            return Err(bad(expected, format!("{} pieces", pieces.len())));
        }
        // Of equal pieces the first one counts.
        let mut ids = HashMap::new();
        for (id, (piece, _)) in pieces.iter().enumerate() {
            ids.entry(piece.clone()).or_insert(id);
        }
        let longest = pieces.iter().map(|(piece, _)| piece.len()).max();
        Ok(Self {
            longest: longest.unwrap_or(1).max(1),
            pieces,
            ids,
        })
    }

    /// Bytes of the longest piece: a text has at least one id for so many of its bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Number of ids.
    pub fn vocab(&self) -> usize {
        self.pieces.len()
    }

    /// Ids of a text: a space before it, each character by its piece or its bytes, then the
    /// neighbours that make the piece of the highest score merge, the first among equals, as long
    /// as there are any.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        if text.is_empty() {
            return Vec::new();
        }
        Merging::new(self, self.first(text)).run()
    }

    /// Ids before anything has merged.
    fn first(&self, text: &str) -> Vec<usize> {
        let mut ids: Vec<usize> = Vec::new();
        let spaced = format!(" {text}");
        let mut buffer = [0; 4];
        for c in spaced.chars() {
            let piece = c.encode_utf8(&mut buffer).as_bytes();
            match self.ids.get(piece) {
                Some(&id) => ids.push(id),
                None => ids.extend(piece.iter().map(|&b| FIRST_BYTE + usize::from(b))),
            }
        }
        ids
    }

    /// The text of ids: special ones say nothing, single bytes are themselves, bytes that are no
    /// UTF-8 show as the replacement character.
    pub fn decode(&self, ids: &[i32]) -> String {
        let mut text = Vec::new();
        for id in ids {
            let id = usize::try_from(*id).unwrap_or(usize::MAX);
            match id.checked_sub(FIRST_BYTE) {
                None => {}
                Some(byte @ 0..256) => text.push(byte as u8),
                Some(_) => text.extend(self.pieces.get(id).map_or(&b"?"[..], |p| &p.0)),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn file(pieces: &[(&str, f32)]) -> Vec<u8> {
        let mut bytes = 7i32.to_le_bytes().to_vec();
        let mut add = |piece: &str, score: f32| {
            bytes.extend(score.to_le_bytes());
            bytes.extend((piece.len() as i32).to_le_bytes());
            bytes.extend(piece.as_bytes());
        };
        for special in ["<unk>", "\n<s>\n", "\n</s>\n"] {
            add(special, 0.0);
        }
        for byte in 0..256 {
            add(&format!("<0x{byte:02X}>"), 0.0);
        }
        for (piece, score) in pieces {
            add(piece, *score);
        }
        bytes
    }

    /// The same by looking at all pairs for every merge.
    fn plain(pieces: &Pieces, text: &str) -> Vec<i32> {
        let mut ids = pieces.first(text);
        loop {
            let mut best: Option<(usize, usize, f32)> = None;
            for (at, pair) in ids.windows(2).enumerate() {
                let joined = [&pieces.pieces[pair[0]].0[..], &pieces.pieces[pair[1]].0].concat();
                let Some(&id) = pieces.ids.get(&joined) else {
                    continue;
                };
                let score = pieces.pieces[id].1;
                if best.is_none_or(|(_, _, top)| score > top) {
                    best = Some((at, id, score));
                }
            }
            let Some((at, id, _)) = best else { break };
            ids[at] = id;
            ids.remove(at + 1);
        }
        ids.into_iter().map(|id| id as i32).collect()
    }

    #[test]
    fn merges_are_those_of_looking_at_all_pairs() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let letters = ["a", "b", "c", " ", "é", "<", "0"];
        let word = |rng: &mut ChaCha8Rng, most: usize| -> String {
            let len = rng.random_range(1..=most);
            (0..len)
                .filter_map(|_| letters.choose(rng).copied())
                .collect()
        };
        for _ in 0..200 {
            // Few scores, so that many are equal, 0 of both signs among them.
            let scores = [-2.0, -1.0, -0.0, 0.0, 1.0];
            let mut own: Vec<(String, f32)> = letters[..4]
                .iter()
                .map(|letter| ((*letter).to_owned(), -9.0))
                .collect();
            for _ in 0..30 {
                own.push((word(&mut rng, 5), *scores.choose(&mut rng).unwrap()));
            }
            let own: Vec<_> = own.iter().map(|(w, score)| (&w[..], *score)).collect();
            let pieces = Pieces::parse("p.bin", &file(&own)).unwrap();
            for _ in 0..20 {
                let text = word(&mut rng, 60);
                assert_eq!(
                    pieces.encode(&text),
                    plain(&pieces, &text),
                    "{text:?} {own:?}"
                );
            }
        }
    }

    #[test]
    fn a_long_text_is_merged_whole() {
        let pieces = Pieces::parse("p.bin", &file(&SOME)).unwrap();
        let ids = pieces.encode(&"ab".repeat(500_000));
        assert_eq!(pieces.decode(&ids).len(), 1_000_001);
    }

    const SOME: [(&str, f32); 8] = [
        (" ", -1.0),
        ("a", -2.0),
        ("b", -3.0),
        ("ab", -6.0),
        (" a", -5.0),
        ("ba", -4.0),
        ("aba", -7.0),
        (" ab", -8.0),
    ];

    #[test]
    fn the_best_score_merges_first() {
        let pieces = Pieces::parse("p.bin", &file(&SOME)).unwrap();
        let text = |ids: &[i32]| -> Vec<&str> {
            let at = |id: &i32| SOME[*id as usize - 259].0;
            ids.iter().map(at).collect()
        };
        // "ba" beats " a", then nothing joins " " and "a", so they do, and the rest stays.
        assert_eq!(text(&pieces.encode("aba")), [" a", "ba"]);
        assert_eq!(text(&pieces.encode("ab")), [" ab"]);
        assert_eq!(text(&pieces.encode("b a")), [" ", "b", " a"]);
        assert!(pieces.encode("").is_empty());
        // Characters without a piece are bytes.
        assert_eq!(pieces.encode("é"), [259, 3 + 0xc3, 3 + 0xa9]);
        assert_eq!(pieces.decode(&pieces.encode("é a\n")), " é a\n");
        assert_eq!(
            pieces.decode(&[1, 260, 2, 3 + 0xff, -1, 9999]),
            "a\u{fffd}??"
        );
    }

    #[test]
    fn damaged_files_are_refused() {
        let whole = file(&SOME);
        assert_eq!(Pieces::parse("p.bin", &whole).unwrap().vocab(), 259 + 8);
        for len in [0, 3, 4, 6, 17, whole.len() - 1] {
            let error = Pieces::parse("p.bin", &whole[..len]).unwrap_err();
            assert!(error.to_string().starts_with("p.bin: expected "), "{error}");
        }
        let mut long = whole.clone();
        long[8..12].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(Pieces::parse("p.bin", &long).is_err());
        let mut negative = whole;
        negative[8..12].copy_from_slice(&(-1i32).to_le_bytes());
        assert!(Pieces::parse("p.bin", &negative).is_err());
    }
}
