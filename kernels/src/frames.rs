//! Frames: the live values of sub-batches between segments, wherever a device keeps them.
//!
//! A frame holds a sub-batch's members and the values that live at its cursor, packed rows in batch
//! order, each at its planned place in the frame's arena. A launch whose members are those of its
//! sub-batch's frame works in place.
//! Any other member list (a merge, an exit, a split) gets a new frame whose rows are gathered from
//! wherever the members' rows are, so the scheduler need not tell the device what happened. A frame
//! in which nothing is alive, at the end of a block, gives its arena back.
//!
//! Some memories have one place in which all launches work ([`FrameMemory::ONE_PLACE`]). The frame that
//! worked there last stays until another one is to run: then what is alive in it moves aside, and comes
//! back when it goes on.
//!
//! Invariant: a slot's home names the one frame that holds the rows of its request, and a frame lives
//! as long as a slot calls it home.

use std::fmt;
use std::ops::Range;

use lazybatch_graph::{Dim, Program, TensorType};
use lazybatch_sla::{Launch, ModelId, RequestId, Slot, SubBatchId};
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::arena::{BlockPlan, LINE};

/// Memory of frames on a device.
pub trait FrameMemory {
    /// Memory of one frame.
    type Arena: Default;
    /// A value in it.
    type Value;
    /// Whether all launches work in one place, so that where they work does not depend on other frames.
    const ONE_PLACE: bool = false;

    /// Rows and samples that a frame of `members` with so many gets room for: as many, or more, of
    /// which nobody is.
    fn room(&self, members: usize, rows: usize, samples: usize) -> (usize, usize) {
        let _ = members;
        (rows, samples)
    }

    /// Memory of at least `len` elements with any content.
    ///
    /// # Errors
    /// That there is none.
    fn take(&mut self, len: usize) -> Result<Self::Arena, String>;

    /// Takes memory back that was asked for as `len` elements, above zero.
    fn give(&mut self, arena: Self::Arena, len: usize);

    /// Memory of at least `len` elements beside the one place.
    ///
    /// # Errors
    /// That there is none.
    fn take_aside(&mut self, len: usize) -> Result<Self::Arena, String> {
        self.take(len)
    }

    /// Copies `len` elements ahead of all that [`Self::copy`] and [`Self::clear`] do for the next launch,
    /// and whether it runs or not.
    fn carry(&mut self, to: &mut Self::Value, from: &Self::Value, len: usize) {
        self.copy(to, 0, (from, 0), len);
    }

    /// Elements `start..start + len` of an arena.
    ///
    /// # Safety
    /// Nothing may be alive there, and the arena must outlive the value.
    unsafe fn part(arena: &mut Self::Arena, start: usize, len: usize) -> Self::Value;

    /// Copies `len` elements from `from_at` to `at`.
    fn copy(&mut self, to: &mut Self::Value, at: usize, from: (&Self::Value, usize), len: usize);

    /// Zeros `len` elements at `at`.
    fn clear(&mut self, to: &mut Self::Value, at: usize, len: usize);
}

/// Where the values of a program lie, by block.
#[derive(Debug, Default)]
pub struct Places {
    /// By block id.
    pub blocks: Vec<BlockPlan>,
    /// By value id: its number within its block.
    pub local: Vec<usize>,
}

/// Where the live values of a slot's request are: a frame, and the member's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Home {
    /// Key of the frame.
    frame: usize,
    /// Index of the member.
    index: usize,
}

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
pub struct Frame<M: FrameMemory> {
    sub_batch: Option<SubBatchId>,
    model: Option<ModelId>,
    block: u32,
    /// Position of the node that comes next.
    pub next: u32,
    /// Members in batch order.
    pub members: Vec<Mem>,
    /// Rows of all members, and those of nobody behind them.
    pub rows: usize,
    /// Samples of all members, and those of nobody behind them.
    pub samples: usize,
    /// Values by number within the block: parts of the arena.
    pub values: Vec<Option<M::Value>>,
    /// Elements of each value that was made.
    lens: Vec<usize>,
    arena: M::Arena,
    /// The arena has only what is alive, beside the one place.
    is_aside: bool,
    /// Elements that the arena was taken for.
    needed: usize,
    residents: usize,
}

impl<M: FrameMemory> Default for Frame<M> {
    fn default() -> Self {
        Self {
            sub_batch: None,
            model: None,
            block: 0,
            next: 0,
            members: Vec::new(),
            rows: 0,
            samples: 0,
            values: Vec::new(),
            lens: Vec::new(),
            arena: M::Arena::default(),
            is_aside: false,
            needed: 0,
            residents: 0,
        }
    }
}

impl<M: FrameMemory> fmt::Debug for Frame<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("members", &self.members)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl<M: FrameMemory> Frame<M> {
    /// Number of rows of a value of that type.
    pub fn num_rows(&self, ty: &TensorType) -> usize {
        match ty.lead() {
            Some(Dim::Rows) => self.rows,
            _ => self.samples,
        }
    }

    /// Drops the values of a launch that failed; only a block's head may follow.
    pub fn fail(&mut self, memory: &mut M) {
        self.clear(memory);
        self.next = u32::MAX;
    }

    /// Drops all values and gives the arena back.
    pub fn clear(&mut self, memory: &mut M) {
        self.values.fill_with(|| None);
        self.is_aside = false;
        if self.needed > 0 {
            memory.give(std::mem::take(&mut self.arena), self.needed);
            self.needed = 0;
        }
    }

    /// Makes room for the values of a block; those of another one must be gone.
    fn enter(&mut self, plan: &BlockPlan, memory: &mut M) -> Result<(), String> {
        if self.needed > 0 {
            return Ok(());
        }
        let needed = plan.arena.elems(self.rows, self.samples);
        self.arena = memory.take(needed)?;
        self.needed = needed;
        self.values.resize_with(plan.places.len(), || None);
        self.lens.resize(plan.places.len(), 0);
        Ok(())
    }

    /// Leaves the one place: what is alive moves to memory of its own.
    ///
    /// # Errors
    /// That there is none. Nothing has moved then.
    fn stand_aside(&mut self, memory: &mut M) -> Result<(), String> {
        if self.needed == 0 || self.is_aside {
            return Ok(());
        }
        if self.values.iter().all(Option::is_none) {
            self.clear(memory);
            return Ok(());
        }
        let room = |len: usize| len.next_multiple_of(LINE);
        let lens = self.values.iter().zip(&self.lens);
        let alive = lens.filter(|(value, _)| value.is_some());
        let needed = alive.map(|(_, len)| room(*len)).sum();
        let mut aside = memory.take_aside(needed)?;
        let mut start = 0;
        for (value, &len) in self.values.iter_mut().zip(&self.lens) {
            let Some(value) = value else {
                continue;
            };
            // SAFETY: each has a part of its own, and goes before the arena.
            let mut to = unsafe { M::part(&mut aside, start, len) };
            memory.carry(&mut to, value, len);
            *value = to;
            start += room(len);
        }
        memory.give(std::mem::replace(&mut self.arena, aside), self.needed);
        (self.needed, self.is_aside) = (needed, true);
        Ok(())
    }

    /// Takes the one place again, if it stands aside.
    ///
    /// # Errors
    /// That there is no memory. Nothing has moved then.
    fn come_back(&mut self, plan: &BlockPlan, memory: &mut M) -> Result<(), String> {
        if !self.is_aside {
            return Ok(());
        }
        let needed = plan.arena.elems(self.rows, self.samples);
        let place = memory.take(needed)?;
        let aside = std::mem::replace(&mut self.arena, place);
        for local in 0..self.values.len() {
            let Some(value) = self.values[local].take() else {
                continue;
            };
            // SAFETY: values that are alive together have places apart.
            let mut to = unsafe { self.make(plan, local) };
            memory.carry(&mut to, &value, self.lens[local]);
            self.values[local] = Some(to);
        }
        memory.give(aside, std::mem::replace(&mut self.needed, needed));
        self.is_aside = false;
        Ok(())
    }

    /// The memory of a value.
    ///
    /// # Safety
    /// Nothing may be alive there.
    pub unsafe fn make(&mut self, plan: &BlockPlan, value: usize) -> M::Value {
        let (start, len) = plan.range(value, self.rows, self.samples);
        self.lens[value] = len;
        // SAFETY: the values of a frame die before its arena goes; the rest is the caller's.
        unsafe { M::part(&mut self.arena, start, len) }
    }

    /// Becomes the frame of some members of `whole`, at the head of its block, where nothing is alive.
    ///
    /// # Errors
    /// That there is no memory.
    pub fn begin_part(
        &mut self,
        whole: &Self,
        members: Range<usize>,
        plan: &BlockPlan,
        memory: &mut M,
    ) -> Result<(), String> {
        self.clear(memory);
        (self.model, self.block, self.next) = (whole.model, whole.block, 0);
        (self.rows, self.samples) = (0, 0);
        self.members.clear();
        // As many as any part will have, so that no later one makes room.
        self.members.reserve(whole.members.capacity());
        for mem in &whole.members[members] {
            self.members.push(Mem {
                row_start: self.rows,
                sample_start: self.samples,
                ..*mem
            });
            self.rows += mem.rows;
            self.samples += mem.samples;
        }
        self.enter(plan, memory)
    }

    /// Copies what is alive in `part`, the frame of the members from `first` on, to its place here, where
    /// nothing else is alive. Rows of nobody behind the members' keep what was there.
    pub fn end_part(
        &mut self,
        part: &Self,
        first: usize,
        program: &Program,
        places: &Places,
        memory: &mut M,
    ) {
        let plan = &places.blocks[self.block as usize];
        for &value in &plan.live_before[part.next as usize] {
            let (ty, local) = (&program.value(value).ty, places.local[value.index()]);
            // SAFETY: values that are alive together have places apart, and this frame has no other.
            let mut made = self.values[local]
                .take()
                .unwrap_or_else(|| unsafe { self.make(plan, local) });
            let from = part.values[local].as_ref().expect("live at this cursor");
            for (mem, source) in self.members[first..].iter().zip(&part.members) {
                copy_rows(memory, ty, (&mut made, mem), (from, source));
            }
            self.values[local] = Some(made);
        }
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

    /// The frame's arena.
    pub fn arena(&self) -> &M::Arena {
        &self.arena
    }
}

/// All frames of a device.
#[derive(Debug)]
pub struct Frames<M: FrameMemory> {
    slab: Slab<Frame<M>>,
    /// By slot.
    homes: Vec<Option<Home>>,
    by_sub_batch: FxHashMap<SubBatchId, usize>,
    spare: Vec<Frame<M>>,
    /// The frame in the one place, if there is such a place.
    in_place: Option<usize>,
    /// Most members that a frame had: what every list of members has room for.
    most_members: usize,
}

impl<M: FrameMemory> Default for Frames<M> {
    fn default() -> Self {
        Self {
            slab: Slab::new(),
            homes: Vec::new(),
            by_sub_batch: FxHashMap::default(),
            spare: Vec::new(),
            in_place: None,
            most_members: 0,
        }
    }
}

impl<M: FrameMemory> Frames<M> {
    /// The frame to run `launch` in, its live values in place; returns its key.
    ///
    /// # Errors
    /// A member that is not at the launch's cursor, or no memory. Nothing of the launch has moved then,
    /// though the frame in the one place may stand aside.
    pub fn enter(
        &mut self,
        launch: &Launch,
        program: &Program,
        places: &Places,
        memory: &mut M,
    ) -> Result<usize, String> {
        let plan = &places.blocks[launch.block as usize];
        let same = self.by_sub_batch.get(&launch.sub_batch).copied();
        let same = same.filter(|key| self.is_same(*key, launch));
        if let Some(other) = self.in_place.filter(|_| self.in_place != same) {
            self.slab[other].stand_aside(memory)?;
            self.in_place = None;
        }
        if let Some(key) = same {
            let frame = &mut self.slab[key];
            let at_cursor = (frame.block, frame.next) == (launch.block, launch.first_node);
            if launch.first_node == 0 {
                frame.clear(memory);
            } else if !at_cursor {
                return Err(format!(
                    "sub-batch {} stands at node {} of block {}",
                    launch.sub_batch, frame.next, frame.block
                ));
            }
            frame.come_back(plan, memory)?;
            frame.block = launch.block;
            frame.enter(plan, memory)?;
            self.in_place = Some(key).filter(|_| M::ONE_PLACE);
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
        (frame.rows, frame.samples) = memory.room(frame.members.len(), frame.rows, frame.samples);
        let entered = frame.enter(plan, memory).and_then(|()| {
            if launch.first_node == 0 {
                return Ok(());
            }
            self.gather(&mut frame, launch, program, places, memory)
        });
        if let Err(why) = entered {
            frame.clear(memory);
            self.spare.push(frame);
            return Err(why);
        }
        frame.residents = frame.members.len();
        let key = self.slab.insert(frame);
        for (index, m) in launch.members.iter().enumerate() {
            self.leave(m.slot, memory);
            if self.homes.len() <= m.slot.index() {
                self.homes.resize(m.slot.index() + 1, None);
            }
            self.homes[m.slot.index()] = Some(Home { frame: key, index });
        }
        self.by_sub_batch.insert(launch.sub_batch, key);
        self.in_place = Some(key).filter(|_| M::ONE_PLACE);
        Ok(key)
    }

    fn home(&self, slot: Slot) -> Option<Home> {
        self.homes.get(slot.index()).copied().flatten()
    }

    fn is_same(&self, key: usize, launch: &Launch) -> bool {
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
                        && self.home(m.slot) == Some(Home { frame: key, index })
                })
    }

    fn gather(
        &self,
        frame: &mut Frame<M>,
        launch: &Launch,
        program: &Program,
        places: &Places,
        memory: &mut M,
    ) -> Result<(), String> {
        let cursor = (Some(launch.model), launch.block, launch.first_node);
        for mem in &frame.members {
            let here = self.home(mem.slot).is_some_and(|h| {
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
        let plan = &places.blocks[launch.block as usize];
        for &value in &plan.live_before[launch.first_node as usize] {
            let ty = &program.value(value).ty;
            let (row, local) = (ty.row_elems(), places.local[value.index()]);
            // SAFETY: values that are alive together have places apart, and this frame has no other.
            let mut made = unsafe { frame.make(plan, local) };
            let mut end = 0;
            for mem in &frame.members {
                let home = self.home(mem.slot).expect("checked above");
                let source = &self.slab[home.frame];
                let from = source.values[local].as_ref().expect("live at this cursor");
                let source = &source.members[home.index];
                end = copy_rows(memory, ty, (&mut made, mem), (from, source));
            }
            let nobody = frame.num_rows(ty) - end;
            if nobody > 0 {
                memory.clear(&mut made, end * row, nobody * row);
            }
            frame.values[local] = Some(made);
        }
        Ok(())
    }

    /// Ends the stay of a slot's request in its home, if it has one.
    pub fn leave(&mut self, slot: Slot, memory: &mut M) {
        let home = self.homes.get_mut(slot.index()).and_then(Option::take);
        let Some(home) = home else {
            return;
        };
        let frame = &mut self.slab[home.frame];
        frame.residents -= 1;
        if frame.residents > 0 {
            return;
        }
        let mut frame = self.slab.remove(home.frame);
        frame.clear(memory);
        self.in_place.take_if(|key| *key == home.frame);
        if let Some(sub_batch) = frame.sub_batch
            && self.by_sub_batch.get(&sub_batch) == Some(&home.frame)
        {
            self.by_sub_batch.remove(&sub_batch);
        }
        self.spare.push(frame);
    }

    /// Takes a frame out to run in it; [`Frames::put_back`] must follow.
    pub fn take(&mut self, key: usize) -> Frame<M> {
        std::mem::take(&mut self.slab[key])
    }

    /// Puts a frame back.
    pub fn put_back(&mut self, key: usize, frame: Frame<M>) {
        self.slab[key] = frame;
    }

    /// Number of frames in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no frame is in use.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }
}

/// Copies a member's rows of a value from the frame where it is `source` to that where it is `mem`;
/// returns where they end there. Rows that it has there only are zero.
fn copy_rows<M: FrameMemory>(
    memory: &mut M,
    ty: &TensorType,
    (to, mem): (&mut M::Value, &Mem),
    (from, source): (&M::Value, &Mem),
) -> usize {
    let (lead, row) = (ty.lead(), ty.row_elems());
    let (src, have) = source.span(lead);
    let (dst, want) = mem.span(lead);
    let copied = have.min(want);
    memory.copy(to, dst * row, (from, src * row), copied * row);
    memory.clear(to, (dst + copied) * row, (want - copied) * row);
    dst + want
}

/// Members and sizes of a frame without any, for `launch`.
fn fill<M: FrameMemory>(frame: &mut Frame<M>, launch: &Launch) {
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
