//! The head of a block in parts of a launch.
//!
//! What the first nodes of an image model make of many images is larger than the caches: each node would
//! write it to memory, and the next would read it from there. So the nodes up to the last one whose
//! operands and results are that large run for one half of the samples and then for the other, and each
//! half does likewise: every node runs for as many members as the caches hold. What is alive behind
//! those nodes is gathered, and the others run for all. A launch that ends among them runs as a whole, as
//! what it leaves would be copied.
//!
//! Which nodes these are depends on the samples of a launch alone. Only values by sample count: those by
//! row are small beside the weights that they are multiplied with.
//!
//! Invariants:
//! 1. A launch in parts gives the bits of one as a whole, as outputs do not depend on the batch.
//! 2. The arenas of parts that are in use at once take no more than the launch's own: what would need
//!    more is not halved.

use std::ops::Range;

use lazybatch_graph::{Dim, Program, Repeat};

use super::buffers::Arenas;
use super::exec::{self, Env, Frame};
use super::model::Model;

/// Which nodes of the blocks of a program are large.
#[derive(Debug)]
pub struct Sizes {
    /// By block and position: bytes of a node's operands and results, by sample.
    bytes: Vec<Vec<usize>>,
}

impl Sizes {
    /// Of `program`.
    pub fn of(program: &Program) -> Self {
        let blocks = program.blocks.iter().map(|block| {
            if block.repeat != Repeat::Once {
                return Vec::new();
            }
            let nodes = block.nodes.iter().map(|&id| {
                let node = program.node(id);
                let values = node.inputs.iter().chain(&node.outputs);
                let types = values.map(|&value| &program.value(value).ty);
                let by_sample = types.filter(|ty| ty.lead() == Some(Dim::Batch));
                by_sample.map(|ty| ty.row_elems() * size_of::<f32>()).sum()
            });
            nodes.collect()
        });
        Self {
            bytes: blocks.collect(),
        }
    }

    /// The nodes of a block that a launch of that many samples runs in parts: up to the last one that
    /// takes more than `most` bytes.
    fn head(&self, block: usize, samples: usize, most: usize) -> usize {
        let is_large = |bytes: &usize| bytes.saturating_mul(samples) > most;
        let last = self.bytes[block].iter().rposition(is_large);
        last.map_or(0, |last| last + 1)
    }
}

/// Frames of parts, by how often the launch is halved.
#[derive(Debug, Default)]
pub struct Parts(Vec<Frame>);

impl Parts {
    /// Runs the nodes of a block from its head to `end` in parts of which no node takes more than `most`
    /// bytes, as far as members can be told apart.
    ///
    /// # Errors
    /// The node and the cause, or that there is no memory; values of the frame are then incomplete.
    pub fn run(
        &mut self,
        env: &mut Env<'_>,
        arenas: &mut Arenas,
        model: &Model,
        frame: &mut Frame,
        (block, end): (usize, usize),
        most: usize,
    ) -> Result<(), String> {
        let halvings = usize::BITS - frame.members.len().leading_zeros();
        if self.0.len() < halvings as usize {
            self.0.resize_with(halvings as usize, Frame::default);
        }
        let mut launch = InParts {
            env,
            arenas,
            model,
            block,
            most,
        };
        let whole = model.places.blocks[block].arena;
        let room = whole.elems(frame.rows, frame.samples);
        launch.run(frame, end, room, &mut self.0)
    }

    /// Drops what a launch that ended early left.
    pub fn clear(&mut self, arenas: &mut Arenas) {
        self.0.iter_mut().for_each(|part| part.clear(arenas));
    }
}

/// A launch that runs in parts.
struct InParts<'a, 'e> {
    env: &'a mut Env<'e>,
    arenas: &'a mut Arenas,
    model: &'a Model,
    block: usize,
    most: usize,
}

impl InParts<'_, '_> {
    /// Runs `frame` up to `end`; its parts may take `room` elements of arenas at once.
    fn run(
        &mut self,
        frame: &mut Frame,
        end: usize,
        room: usize,
        spare: &mut [Frame],
    ) -> Result<(), String> {
        let model = self.model;
        let head = model.sizes.head(self.block, frame.samples, self.most);
        let mut done = 0;
        if let Some((part, spare)) = spare.split_first_mut()
            && (1..=end).contains(&head)
            && let Some((halves, needed)) = self.halves(frame)
            && needed <= room
        {
            let plan = &model.places.blocks[self.block];
            for half in halves {
                let first = half.start;
                part.begin_part(frame, half, plan, self.arenas)?;
                let result = self.run(part, head, room - needed, spare);
                if result.is_ok() {
                    frame.end_part(part, first, &model.program, &model.places, self.arenas);
                }
                part.clear(self.arenas);
                result?;
            }
            done = head;
        }
        exec::run(self.env, model, frame, self.block, done, end)
    }

    /// The members up to half of the samples and those behind, and the elements that the arena of the
    /// larger half takes; nothing of a single member.
    fn halves(&self, frame: &Frame) -> Option<([Range<usize>; 2], usize)> {
        let num = frame.members.len();
        if num < 2 {
            return None;
        }
        let members = &frame.members;
        let middle = members.partition_point(|m| m.sample_start + m.samples <= frame.samples / 2);
        let middle = middle.clamp(1, num - 1);
        let (rows, samples) = (members[middle].row_start, members[middle].sample_start);
        let arena = self.model.places.blocks[self.block].arena;
        let rest = arena.elems(frame.rows - rows, frame.samples - samples);
        let needed = arena.elems(rows, samples).max(rest);
        Some(([0..middle, middle..num], needed))
    }
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::{Act, DType, ProgramBuilder};

    use super::*;

    #[test]
    fn the_head_ends_behind_the_last_large_node() {
        let mut b = ProgramBuilder::new("shrinking");
        let x = b.input("x", DType::F32, &[100]);
        let y = b.output("y", DType::F32, &[10]);
        b.begin_block("main", Repeat::Once);
        // 400 bytes written, 800 read and written, 440 and 80 likewise, 40 read.
        let mut h = b.read_input("read", x);
        h = b.unary("large", Act::Relu, h);
        h = b.dense("shrink", h, 10, None);
        h = b.unary("small", Act::Relu, h);
        b.emit("emit", y, h);
        let sizes = Sizes::of(&b.finish().expect("a valid program"));
        for (samples, most, head) in [
            (1, 800, 0),
            (1, 799, 2),
            (2, 800, 3),
            (2, 880, 2),
            (4, 159, 5),
            (4, usize::MAX, 0),
            (usize::MAX, 1 << 40, 5),
        ] {
            assert_eq!(
                sizes.head(0, samples, most),
                head,
                "{samples}, {most} bytes"
            );
        }
    }

    #[test]
    fn loops_and_rows_have_no_large_nodes() {
        let mut b = ProgramBuilder::new("rows");
        let x = b.sequence("x", DType::F32, &[8], 16);
        let y = b.output_sequence("y", DType::F32, &[8]);
        b.begin_block("main", Repeat::Once);
        let x = b.read_input("x", x);
        b.emit("emit", y, x);
        let sizes = Sizes::of(&b.finish().expect("a valid program"));
        assert_eq!(sizes.head(0, 1000, 0), 0);
    }
}
