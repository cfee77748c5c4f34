//! How long segments are: as short as launches allow.
//!
//! A segment is the quantum of scheduling, so a short one lets others in early; but each launch has
//! a cost that is no work of the model. On a device that computes in place that is little beside
//! [`SHORTEST_US`]. On one that runs beside the host it is the time in which the host issues the
//! launch, which is measured, and segments are so long that it is at most [`DISPATCH_SHARE`] of
//! them.
//!
//! What is measured is a launch of one node, and all of it but its issue is taken for that node's
//! work. Where a launch has more that is paid once (its start on the device, a copy of tables), a
//! segment of many nodes is shorter than their sum, and the share higher. A longer segment also takes
//! the host longer, as it walks more nodes.

use lazybatch_graph::{NodeId, Program, Segments};

/// Shortest segment, in microseconds at batch 1: a decision is a few percent of it.
pub const SHORTEST_US: f64 = 50.0;

/// Most that issuing a launch may be of its segment's time.
pub const DISPATCH_SHARE: f64 = 0.03;

/// How segments are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SegmentLength {
    /// As the device needs it.
    #[default]
    ByDevice,
    /// At least so many microseconds at batch 1; 0 for one node each.
    Us(f64),
    /// So many nodes each, at least one.
    Nodes(u32),
}

impl SegmentLength {
    /// The shortest segment in nanoseconds where issuing a launch takes the host `dispatch_ns`; 0 where
    /// time does not matter.
    pub fn shortest_ns(self, dispatch_ns: u64) -> u64 {
        match self {
            Self::Us(us) => (us * 1e3) as u64,
            Self::Nodes(_) => 0,
            Self::ByDevice => {
                let by_share = (dispatch_ns as f64 / DISPATCH_SHARE).ceil() as u64;
                by_share.max((SHORTEST_US * 1e3) as u64)
            }
        }
    }

    /// Cuts a program. `alone_ns` is what a launch of a node alone takes at batch 1, of which
    /// `dispatch_ns` is issuing it: a segment pays for that once.
    pub fn cut(
        self,
        program: &Program,
        alone_ns: impl Fn(NodeId) -> u64,
        dispatch_ns: u64,
    ) -> Segments {
        match self {
            Self::Us(0.0) => return Segments::per_node(program),
            Self::Nodes(num) => return Segments::every(program, num.max(1) as usize),
            Self::Us(_) | Self::ByDevice => {}
        }
        let work_ns = |node| alone_ns(node).saturating_sub(dispatch_ns);
        let shortest = self.shortest_ns(dispatch_ns).saturating_sub(dispatch_ns);
        Segments::by_time(program, work_ns, shortest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_graph::{BlockId, DType, ProgramBuilder, Repeat};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

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

    /// Time of a segment: its launch once, and the work of its nodes.
    fn time(work: &[u64], dispatch: u64) -> u64 {
        dispatch + work.iter().sum::<u64>()
    }

    #[test]
    fn issuing_is_a_small_share_wherever_the_block_is_long_enough() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (mut cut, mut short) = (0, 0);
        for _ in 0..200 {
            let lengths: Vec<usize> = (0..3).map(|_| rng.random_range(1..60)).collect();
            let program = chain(&lengths);
            let dispatch = rng.random_range(500..20_000);
            let work: Vec<u64> = (0..program.nodes.len())
                .map(|_| rng.random_range(100..200_000))
                .collect();
            let alone = |n: NodeId| work[n.index()] + dispatch;
            let segments = SegmentLength::ByDevice.cut(&program, alone, dispatch);
            for (k, block) in program.blocks.iter().enumerate() {
                let of_block: Vec<u64> = block.nodes.iter().map(|n| work[n.index()]).collect();
                let ranges = segments.block(BlockId::new(k));
                if time(&of_block, dispatch) as f64 * DISPATCH_SHARE < dispatch as f64 {
                    assert_eq!(ranges.len(), 1, "a block that is too short is not cut");
                    short += 1;
                    continue;
                }
                cut += ranges.len() - 1;
                for range in ranges {
                    let took = time(&of_block[range.clone()], dispatch);
                    assert!(
                        dispatch as f64 <= DISPATCH_SHARE * took as f64 + 1.0,
                        "{dispatch} of {took}"
                    );
                    // Without its last node it would be too short, unless it ends the block.
                    let less = time(&of_block[range.start..range.end - 1], dispatch);
                    let shortest = SegmentLength::ByDevice.shortest_ns(dispatch);
                    assert!(less < shortest || range.end == of_block.len());
                }
            }
        }
        assert!(cut > 100 && short > 10, "{cut} cuts, {short} short blocks");
    }

    #[test]
    fn lengths_are_those_of_the_device_or_as_told() {
        let by_device = SegmentLength::ByDevice;
        assert_eq!(by_device.shortest_ns(0), 50_000, "a device in place");
        assert_eq!(by_device.shortest_ns(900), 50_000);
        assert_eq!(by_device.shortest_ns(6_000), 200_000);
        assert_eq!(SegmentLength::Us(80.0).shortest_ns(6_000), 80_000);

        let program = chain(&[10]);
        let count = |length: SegmentLength| {
            let segments = length.cut(&program, |_| 26_000, 6_000);
            segments.num_segments()
        };
        // 20 us of work each: ten nodes are 200 us and a launch.
        assert_eq!(count(by_device), 1);
        assert_eq!(count(SegmentLength::Us(46.0)), 5);
        assert_eq!(count(SegmentLength::Us(0.0)), 10);
    }
}
