//! Frames: the live values of sub-batches between segments.
//!
//! A frame holds a sub-batch's members and the values that live at its cursor, packed rows in batch
//! order, each at its planned place in the frame's arena. A launch whose members are those of its sub-batch's frame works in place.
//! Any other member list (a merge, an exit, a split) gets a new frame whose rows are gathered from
//! wherever the members' rows are, so the scheduler need not tell the device what happened. A frame
//! in which nothing is alive, at the end of a block, gives its arena back.
//!
//! Invariant: an open request's `home` names the one frame that holds its rows, and a frame lives
//! as long as a request calls it home.

use lazybatch_graph::{Dim, TensorType};
use lazybatch_sla::{Launch, ModelId, RequestId, Slot, SubBatchId};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::arena::BlockPlan;
use super::buffers::{Aligned, Arenas, Buf};
use super::model::Model;
use super::slots::{Home, Slots};

/// A member of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Mem {
    /// The request.
    pub request: RequestId,
    /// Its slot.
    pub slot: Slot,
    /// Its pass.
    pub step: usize,
    /// Length of its own sequence.
    pub len: usize,
    /// Samples.
    pub samples: usize,
    /// Rows it takes where rows are positions: its length, or the padded one.
    pub rows: usize,
    /// Its first row.
    pub row_start: usize,
    /// Its first sample.
    pub sample_start: usize,
    /// Computed, but without effect.
    pub idle: bool,
}

impl Mem {
    /// First row and number of rows in a value with that leading dimension.
    pub fn span(&self, lead: Option<Dim>) -> (usize, usize) {
        match lead {
            Some(Dim::Rows) => (self.row_start, self.rows),
            _ => (self.sample_start, self.samples),
        }
    }

    /// Rows that are its own, not padding.
    pub fn own(&self, lead: Option<Dim>) -> usize {
        match lead {
            Some(Dim::Rows) => self.len.min(self.rows),
            _ => self.samples,
        }
    }
}

/// Live values of a sub-batch at a cursor.
#[derive(Debug, Default)]
pub struct Frame {
    sub_batch: Option<SubBatchId>,
    model: Option<ModelId>,
    block: u32,
    /// Position of the node that comes next.
    pub next: u32,
    /// Members in batch order.
    pub members: Vec<Mem>,
    /// Rows of all members.
    pub rows: usize,
    /// Samples of all members.
    pub samples: usize,
    /// Values by number within the block: parts of the arena.
    pub values: Vec<Option<Buf>>,
    arena: Aligned,
    /// Elements that the arena was taken for.
    needed: usize,
    residents: usize,
}

impl Frame {
    /// Number of rows of a value of that type.
    pub fn num_rows(&self, ty: &TensorType) -> usize {
        match ty.lead() {
            Some(Dim::Rows) => self.rows,
            _ => self.samples,
        }
    }

    /// Drops the values of a launch that failed; only a block's head may follow.
    pub fn fail(&mut self, arenas: &mut Arenas) {
        self.clear(arenas);
        self.next = u32::MAX;
    }

    /// Drops all values and gives the arena back.
    pub fn clear(&mut self, arenas: &mut Arenas) {
        self.values.fill_with(|| None);
        arenas.give(std::mem::take(&mut self.arena), self.needed);
        self.needed = 0;
    }

    /// Makes room for the values of a block; those of another one must be gone.
    fn enter(&mut self, plan: &BlockPlan, arenas: &mut Arenas) {
        if self.needed > 0 {
            return;
        }
        self.needed = plan.arena.elems(self.rows, self.samples);
        self.arena = arenas.take(self.needed);
        self.values.resize_with(plan.places.len(), || None);
    }

    /// The memory of a value.
    ///
    /// # Safety
    /// Nothing may be alive there.
    pub unsafe fn make(&mut self, plan: &BlockPlan, value: usize) -> Buf {
        let (start, len) = plan.range(value, self.rows, self.samples);
        // SAFETY: the values of a frame die before its arena goes; the rest is the caller's.
        unsafe { self.arena.part(start, len) }
    }

    /// The member that a row belongs to.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn member_at(&self, lead: Option<Dim>, row: usize) -> &Mem {
        let before = |m: &Mem| {
            let (start, num) = m.span(lead);
            start + num <= row
        };
        &self.members[self.members.partition_point(before)]
    }

    /// Whether `buf` is the memory of a value.
    pub fn is_at(&self, plan: &BlockPlan, value: usize, buf: &Buf) -> bool {
        let (start, len) = plan.range(value, self.rows, self.samples);
        buf.len() == len && buf.as_ptr() == self.arena.start().wrapping_add(start)
    }
}

/// All frames of a device.
#[derive(Debug, Default)]
pub struct Frames {
    slab: Slab<Frame>,
    by_sub_batch: FxHashMap<SubBatchId, usize>,
    spare: Vec<Frame>,
    /// Most members that a frame had: what every list of members has room for.
    most_members: usize,
}

impl Frames {
    /// The frame to run `launch` in, its live values in place; returns its key.
    ///
    /// # Errors
    /// A member that is not at the launch's cursor. Nothing has moved then.
    pub fn enter(
        &mut self,
        launch: &Launch,
        model: &Model,
        slots: &mut Slots,
        arenas: &mut Arenas,
    ) -> Result<usize, String> {
        if let Some(&key) = self.by_sub_batch.get(&launch.sub_batch)
            && self.is_same(key, launch, slots)
        {
            let frame = &mut self.slab[key];
            let at_cursor = (frame.block, frame.next) == (launch.block, launch.first_node);
            if launch.first_node == 0 {
                frame.clear(arenas);
            } else if !at_cursor {
                return Err(format!(
                    "sub-batch {} stands at node {} of block {}",
                    launch.sub_batch, frame.next, frame.block
                ));
            }
            frame.block = launch.block;
            frame.enter(&model.blocks[launch.block as usize], arenas);
            for (mem, m) in frame.members.iter_mut().zip(&launch.members) {
                mem.step = m.step as usize;
                mem.idle = m.idle;
            }
            return Ok(key);
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        self.most_members = self.most_members.max(launch.members.len());
        frame.members.clear();
        frame.members.reserve(self.most_members);
        fill(&mut frame, launch);
        frame.enter(&model.blocks[launch.block as usize], arenas);
        if launch.first_node > 0
            && let Err(why) = self.gather(&mut frame, launch, model, slots)
        {
            frame.clear(arenas);
            self.spare.push(frame);
            return Err(why);
        }
        frame.residents = frame.members.len();
        let key = self.slab.insert(frame);
        for (index, m) in launch.members.iter().enumerate() {
            let home = slots
                .open_mut(m.slot)
                .home
                .replace(Home { frame: key, index });
            if let Some(old) = home {
                self.leave(old, arenas);
            }
        }
        self.by_sub_batch.insert(launch.sub_batch, key);
        Ok(key)
    }

    fn is_same(&self, key: usize, launch: &Launch, slots: &Slots) -> bool {
        let frame = &self.slab[key];
        frame.model == Some(launch.model)
            && frame.members.len() == launch.members.len()
            && frame
                .members
                .iter()
                .zip(&launch.members)
                .enumerate()
                .all(|(index, (mem, m))| {
                    mem.request == m.request
                        && mem.slot == m.slot
                        && mem.rows == rows_of(launch, m)
                        && slots.open(m.slot).home == Some(Home { frame: key, index })
                })
    }

    fn gather(
        &self,
        frame: &mut Frame,
        launch: &Launch,
        model: &Model,
        slots: &Slots,
    ) -> Result<(), String> {
        let cursor = (Some(launch.model), launch.block, launch.first_node);
        for mem in &frame.members {
            let home = slots.open(mem.slot).home;
            let here = home.is_some_and(|h| {
                let f = &self.slab[h.frame];
                (f.model, f.block, f.next) == cursor && f.members[h.index].request == mem.request
            });
            if !here {
                return Err(format!(
                    "{} is not at node {}",
                    mem.request, launch.first_node
                ));
            }
        }
        let plan = &model.blocks[launch.block as usize];
        for &value in &plan.live_before[launch.first_node as usize] {
            let ty = &model.program.value(value).ty;
            let (lead, row, local) = (ty.lead(), ty.row_elems(), model.local[value.index()]);
            // SAFETY: values that are alive together have places apart, and this frame has no other.
            let mut buf = unsafe { frame.make(plan, local) };
            for mem in &frame.members {
                let home = slots.open(mem.slot).home.expect("checked above");
                let source = &self.slab[home.frame];
                let from = source.values[local].as_ref().expect("live at this cursor");
                let (src, have) = source.members[home.index].span(lead);
                let (dst, want) = mem.span(lead);
                let copy = have.min(want);
                buf[dst * row..(dst + copy) * row]
                    .copy_from_slice(&from[src * row..(src + copy) * row]);
                buf[(dst + copy) * row..(dst + want) * row].fill(0.0);
            }
            frame.values[local] = Some(buf);
        }
        Ok(())
    }

    /// Ends a request's stay in its home.
    pub fn leave(&mut self, home: Home, arenas: &mut Arenas) {
        let frame = &mut self.slab[home.frame];
        frame.residents -= 1;
        if frame.residents > 0 {
            return;
        }
        let mut frame = self.slab.remove(home.frame);
        frame.clear(arenas);
        if let Some(sub_batch) = frame.sub_batch
            && self.by_sub_batch.get(&sub_batch) == Some(&home.frame)
        {
            self.by_sub_batch.remove(&sub_batch);
        }
        self.spare.push(frame);
    }

    /// Takes a frame out to run in it; [`Frames::put_back`] must follow.
    pub fn take(&mut self, key: usize) -> Frame {
        std::mem::take(&mut self.slab[key])
    }

    /// Puts a frame back.
    pub fn put_back(&mut self, key: usize, frame: Frame) {
        self.slab[key] = frame;
    }

    /// Number of frames in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }
}

/// Members and sizes of a frame without any, for `launch`.
fn fill(frame: &mut Frame, launch: &Launch) {
    frame.sub_batch = Some(launch.sub_batch);
    frame.model = Some(launch.model);
    frame.block = launch.block;
    frame.next = launch.first_node;
    frame.rows = 0;
    frame.samples = 0;
    for m in &launch.members {
        let mem = Mem {
            request: m.request,
            slot: m.slot,
            step: m.step as usize,
            len: m.input_len as usize,
            samples: m.samples as usize,
            rows: rows_of(launch, m),
            row_start: frame.rows,
            sample_start: frame.samples,
            idle: m.idle,
        };
        frame.rows += mem.rows;
        frame.samples += mem.samples;
        frame.members.push(mem);
    }
}

fn rows_of(launch: &Launch, member: &lazybatch_sla::Member) -> usize {
    launch.padded_len.unwrap_or(member.input_len) as usize
}
