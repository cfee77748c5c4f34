//! Segments: runs of consecutive nodes that are launched as one.
//!
//! A segment is the quantum of scheduling: merge, preemption and exit happen at its ends. Each
//! block is covered by its segments, in order and without gaps.

use std::ops::Range;

use crate::ids::{BlockId, NodeId};
use crate::program::Program;

/// The segments of a program, by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    blocks: Vec<Vec<Range<usize>>>,
}

impl Segments {
    /// One segment per node.
    pub fn per_node(program: &Program) -> Self {
        Self::every(program, 1)
    }

    /// Segments of `num_nodes` nodes each, the last of a block having what is left.
    ///
    /// # Panics
    /// If `num_nodes` is zero.
    pub fn every(program: &Program, num_nodes: usize) -> Self {
        assert!(num_nodes > 0, "a segment has nodes");
        let cut = |len: usize| {
            (0..len)
                .step_by(num_nodes)
                .map(|at| at..len.min(at + num_nodes))
                .collect()
        };
        Self {
            blocks: program.blocks.iter().map(|b| cut(b.nodes.len())).collect(),
        }
    }

    /// Given runs, by block; `None` unless they cover every block in order.
    pub fn of(program: &Program, blocks: Vec<Vec<Range<usize>>>) -> Option<Self> {
        let covers = |runs: &Vec<Range<usize>>, len: usize| {
            let follows =
                |end: usize, r: &Range<usize>| (r.start == end && r.end > end).then_some(r.end);
            runs.iter().try_fold(0, follows) == Some(len)
        };
        let mut pairs = blocks.iter().zip(&program.blocks);
        let all = pairs.all(|(runs, block)| covers(runs, block.nodes.len()));
        (all && blocks.len() == program.blocks.len()).then_some(Self { blocks })
    }

    /// One segment per block.
    pub fn per_block(program: &Program) -> Self {
        let longest = program
            .blocks
            .iter()
            .map(|b| b.nodes.len())
            .max()
            .unwrap_or(1);
        Self::every(program, longest.max(1))
    }

    /// The shortest runs of nodes whose predicted times add up to at least `min_ns`. What is left
    /// at the end of a block joins its last run, so only a block that is shorter as a whole has a
    /// segment below `min_ns`.
    pub fn by_time(
        program: &Program,
        mut predict_ns: impl FnMut(NodeId) -> u64,
        min_ns: u64,
    ) -> Self {
        let mut cut = |nodes: &[NodeId]| {
            let mut runs: Vec<Range<usize>> = Vec::new();
            let (mut start, mut sum) = (0, 0u64);
            for (at, &node) in nodes.iter().enumerate() {
                sum = sum.saturating_add(predict_ns(node));
                if sum >= min_ns {
                    runs.push(start..at + 1);
                    (start, sum) = (at + 1, 0);
                }
            }
            if start < nodes.len() {
                match runs.last_mut() {
                    Some(last) => last.end = nodes.len(),
                    None => runs.push(start..nodes.len()),
                }
            }
            runs
        };
        Self {
            blocks: program.blocks.iter().map(|b| cut(&b.nodes)).collect(),
        }
    }

    /// The segments of `block`: ranges of positions in its node list.
    ///
    /// # Panics
    /// If the program has no such block.
    pub fn block(&self, block: BlockId) -> &[Range<usize>] {
        &self.blocks[block.index()]
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Number of segments of all blocks.
    pub fn num_segments(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }

    /// The segment of `block` that holds the node at `position`; `None` behind the last node.
    ///
    /// # Panics
    /// If the program has no such block.
    pub fn segment_at(&self, block: BlockId, position: usize) -> Option<usize> {
        let segments = self.block(block);
        let at = segments.partition_point(|s| s.end <= position);
        (at < segments.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::ProgramBuilder;
    use crate::dtype::DType;
    use crate::program::Repeat;

    fn chain(lengths: &[usize]) -> Program {
        let mut b = ProgramBuilder::new("chain");
        let input = b.input("x", DType::F32, &[1]);
        for (k, &len) in lengths.iter().enumerate() {
            b.begin_block(&format!("b{k}"), Repeat::Once);
            let mut x = b.read_input(&format!("x{k}"), input);
            for n in 1..len {
                x = b.scale(&format!("s{k}.{n}"), x, 2.0);
            }
        }
        b.finish().unwrap()
    }

    /// Compares the ranges of each block, and looks every position up.
    fn check(program: &Program, segments: &Segments, expected: &[&str]) {
        assert_eq!(segments.num_blocks(), expected.len());
        let mut total = 0;
        for (k, expected) in expected.iter().enumerate() {
            let ranges = segments.block(BlockId::new(k));
            let shown: Vec<String> = ranges.iter().map(|r| format!("{r:?}")).collect();
            assert_eq!(shown.join(" "), *expected);
            let nodes = program.blocks[k].nodes.len();
            for position in 0..nodes {
                let at = segments.segment_at(BlockId::new(k), position).unwrap();
                assert!(ranges[at].contains(&position));
            }
            assert_eq!(segments.segment_at(BlockId::new(k), nodes), None);
            total += ranges.len();
        }
        assert_eq!(segments.num_segments(), total);
    }

    #[test]
    fn cuts_by_count() {
        let program = chain(&[5, 2]);
        check(
            &program,
            &Segments::every(&program, 2),
            &["0..2 2..4 4..5", "0..2"],
        );
        check(
            &program,
            &Segments::per_node(&program),
            &["0..1 1..2 2..3 3..4 4..5", "0..1 1..2"],
        );
        check(&program, &Segments::per_block(&program), &["0..5", "0..2"]);
    }

    #[test]
    fn given_runs_must_cover_all_blocks() {
        let program = chain(&[3, 2]);
        let of = |blocks: &[&str]| {
            let run = |text: &str| {
                let (start, end) = text.split_once("..").unwrap();
                start.parse().unwrap()..end.parse().unwrap()
            };
            let block = |text: &&str| text.split_whitespace().map(run).collect();
            Segments::of(&program, blocks.iter().map(block).collect())
        };
        let right = ["0..2 2..3", "0..2"];
        check(&program, &of(&right).unwrap(), &right);
        for wrong in [
            &["0..2", "0..2"][..],
            &["0..4", "0..2"],
            &["0..2 1..3", "0..2"],
            &["0..0 0..3", "0..2"],
            &["0..3"],
            &["0..3", "0..2", "0..2"],
            &["", "0..2"],
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn cuts_by_time() {
        let program = chain(&[6, 2]);
        let times = [1, 4, 9, 2, 2, 3, 1, 1];
        let by = |min| Segments::by_time(&program, |n| times[n.index()], min);
        check(&program, &by(5), &["0..2 2..3 3..6", "0..2"]);
        check(&program, &by(4), &["0..2 2..3 3..6", "0..2"]);
        check(&program, &by(8), &["0..6", "0..2"]);
        check(
            &program,
            &by(0),
            &["0..1 1..2 2..3 3..4 4..5 5..6", "0..1 1..2"],
        );
    }
}
