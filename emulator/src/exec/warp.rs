//! A warp: its registers, its groups of lanes, and one step of one of them.

use super::block::World;
use super::{collective, matrix};
use crate::ptx::forms::{LANES, Row};
use crate::ptx::program::{Dest, Inst, Op, Program, Reg, Special};
use crate::report::{Fault, Kind};

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// Other lanes of a collective.
    Lanes,
    /// Other threads at the barrier `id`; `threads` of them, or all.
    Barrier {
        id: u32,
        threads: Option<u32>,
    },
}

/// Lanes at the same position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) pc: usize,
    pub(super) mask: u32,
    pub(super) wait: Wait,
}

/// Why a warp's turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// All its lanes have ended or wait.
    Over,
    /// It let others go first.
    Yield,
    /// It may go on.
    Continue,
}

/// Steps after which a warp with several groups runs another than the one furthest behind, so that
/// lanes that spin do not keep those that they wait for.
const FAIR_STEPS: u64 = 1 << 14;

/// A warp.
pub(super) struct Warp {
    /// Position in its block.
    pub(super) index: usize,
    pub(super) rows: Vec<Row>,
    pub(super) groups: Vec<Group>,
    /// Lanes that have not ended.
    pub(super) live: u32,
    /// Lanes that there are.
    pub(super) lanes: u32,
    steps: u64,
    /// Asynchronous copies that are under way.
    pub(super) copies: Vec<super::access::Copy>,
    /// Groups of copies that each lane has committed.
    pub(super) committed: Row,
}

/// Lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

impl Warp {
    pub(super) fn new(program: &Program, index: usize) -> Self {
        let mut rows = vec![[0; LANES]; program.num_rows];
        for (reg, value) in &program.constants {
            rows[*reg as usize] = [*value; LANES];
        }
        Self {
            index,
            rows,
            groups: Vec::new(),
            live: 0,
            lanes: 0,
            steps: 0,
            copies: Vec::new(),
            committed: [0; LANES],
        }
    }

    /// Makes it ready for a block of `threads` threads.
    pub(super) fn start(
        &mut self,
        program: &Program,
        threads: usize,
        special: &dyn Fn(Special, usize) -> u64,
    ) {
        let first = self.index * LANES;
        let num_lanes = (threads - first).min(LANES);
        self.lanes = u32::MAX >> (LANES - num_lanes);
        self.live = self.lanes;
        self.groups.clear();
        self.groups.push(Group {
            pc: 0,
            mask: self.lanes,
            wait: Wait::No,
        });
        self.steps = 0;
        self.copies.clear();
        self.committed = [0; LANES];
        for (reg, which) in &program.specials {
            let row = &mut self.rows[*reg as usize];
            for (lane, value) in row.iter_mut().enumerate() {
                *value = special(*which, first + lane);
            }
        }
    }

    pub(super) fn row(&self, reg: Reg) -> &Row {
        &self.rows[reg as usize]
    }

    /// Writes a result in the lanes of `mask`.
    pub(super) fn set(&mut self, dest: Dest, mask: u32, values: &Row) {
        let row = &mut self.rows[dest.reg as usize];
        if mask == u32::MAX {
            for (to, from) in row.iter_mut().zip(values) {
                *to = from & dest.mask;
            }
        } else {
            for lane in lanes(mask) {
                row[lane] = values[lane] & dest.mask;
            }
        }
    }

    pub(super) fn set_lane(&mut self, dest: Dest, lane: usize, value: u64) {
        self.rows[dest.reg as usize][lane] = value & dest.mask;
    }

    /// Lanes whose register holds, among `mask`.
    pub(super) fn holds(&self, reg: Reg, is_negated: bool, mask: u32) -> u32 {
        let mut bits = 0;
        for (lane, value) in self.row(reg).iter().enumerate() {
            bits |= ((*value & 1) as u32) << lane;
        }
        mask & if is_negated { !bits } else { bits }
    }

    /// The group to run: of those that do not wait the one furthest behind, after meeting others.
    fn pick(&mut self) -> Option<usize> {
        if self.groups.len() == 1 {
            return (self.groups[0].wait == Wait::No).then_some(0);
        }
        self.merge();
        let ready = |(_, group): &(usize, &Group)| group.wait == Wait::No;
        let mut found = self.groups.iter().enumerate().filter(ready);
        let is_fair = self.steps / FAIR_STEPS % 2 == 1;
        let by_pc = |(_, group): &(usize, &Group)| group.pc;
        let picked = if is_fair {
            found.nth_back(0)
        } else {
            found.min_by_key(by_pc)
        };
        picked.map(|(i, _)| i)
    }

    /// Joins groups at the same position.
    fn merge(&mut self) {
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let same_wait = self.groups[i].wait == self.groups[j].wait;
                let lanes_meet = matches!(self.groups[i].wait, Wait::No | Wait::Lanes)
                    && matches!(self.groups[j].wait, Wait::No | Wait::Lanes);
                if self.groups[i].pc == self.groups[j].pc && (same_wait || lanes_meet) {
                    let other = self.groups.swap_remove(j);
                    self.groups[i].mask |= other.mask;
                    if !same_wait {
                        self.groups[i].wait = Wait::No;
                    }
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Runs until the lanes have ended or wait.
    pub(super) fn run(&mut self, world: &mut World<'_>) -> Result<Turn, (usize, Box<Fault>)> {
        loop {
            let Some(picked) = self.pick() else {
                if collective::meet(self, world) {
                    continue;
                }
                return Ok(Turn::Over);
            };
            let pc = self.groups[picked].pc;
            self.steps += 1;
            world.count_step().map_err(|fault| (pc, fault))?;
            if self.step(picked, world).map_err(|fault| (pc, fault))? == Turn::Yield {
                return Ok(Turn::Yield);
            }
        }
    }

    /// One instruction of one group.
    fn step(&mut self, picked: usize, world: &mut World<'_>) -> Result<Turn, Box<Fault>> {
        let Group { pc, mask, .. } = self.groups[picked];
        let program = world.program;
        let inst: &Inst = &program.code[pc];
        let active = match inst.guard {
            None => mask,
            Some((reg, is_negated)) => self.holds(reg, is_negated, mask),
        };
        match &inst.op {
            Op::Branch(target) => {
                self.split(picked, active, *target);
                return Ok(Turn::Continue);
            }
            Op::Exit => {
                self.exit(picked, active);
                return Ok(Turn::Continue);
            }
            _ if active == 0 => {
                self.groups[picked].pc += 1;
                return Ok(Turn::Continue);
            }
            Op::BranchIndexed { index, targets } => {
                self.branch_indexed(picked, active, *index, targets)?;
                return Ok(Turn::Continue);
            }
            Op::Collective { .. } | Op::Barrier { .. } | Op::Mma { .. } | Op::LoadMatrix { .. } => {
                if active != mask {
                    // Lanes that do not take part go on by themselves.
                    self.groups[picked] = Group {
                        pc: pc + 1,
                        mask: mask & !active,
                        wait: Wait::No,
                    };
                    self.groups.push(Group {
                        pc,
                        mask: active,
                        wait: Wait::No,
                    });
                    return Ok(Turn::Continue);
                }
                return self.together(picked, &inst.op, world);
            }
            op => self.apart(op, active, world)?,
        }
        self.groups[picked].pc += 1;
        Ok(Turn::Continue)
    }

    /// Instructions that lanes do on their own.
    fn apart(&mut self, op: &Op, active: u32, world: &mut World<'_>) -> Result<(), Box<Fault>> {
        match op {
            Op::Alu {
                form,
                dests,
                sources,
            } => {
                let rows = sources.map(|reg| &self.rows[reg as usize]);
                let mut results = [[0; LANES]; 2];
                form.run(&rows, &mut results);
                for (dest, values) in dests.iter().zip(&results) {
                    if let Some(dest) = dest {
                        self.set(*dest, active, values);
                    }
                }
            }
            Op::Unpack {
                dests,
                source,
                bits,
            } => {
                let values = *self.row(*source);
                for (n, dest) in dests.iter().enumerate() {
                    if let Some(dest) = dest {
                        let part = values.map(|v| v >> (n as u32 * bits));
                        self.set(*dest, active, &part);
                    }
                }
            }
            Op::Pack {
                dest,
                sources,
                bits,
            } => {
                let mut packed = [0; LANES];
                for (n, source) in sources.iter().enumerate() {
                    let mask = u64::MAX >> (64 - bits);
                    for (to, from) in packed.iter_mut().zip(self.row(*source)) {
                        *to |= (from & mask) << (n as u32 * bits);
                    }
                }
                self.set(*dest, active, &packed);
            }
            Op::Load { access, dests } => world.load(self, access, dests, active)?,
            Op::Store { access, sources } => world.store(self, access, sources, active)?,
            Op::Atomic {
                access,
                ty,
                op,
                dest,
                value,
                other,
            } => {
                world.atomic(self, access, (*ty, *op), *dest, (*value, *other), active)?;
            }
            Op::CopyAsync {
                dest,
                source,
                bytes,
                source_bytes,
            } => {
                world.copy_async(self, (*dest, *source), *bytes, *source_bytes, active)?;
            }
            Op::CopyCommit => {
                for lane in lanes(active) {
                    self.committed[lane] += 1;
                }
            }
            Op::CopyWait(left) => world.copy_wait(self, *left, active),
            Op::ActiveMask(dest) => self.set(*dest, active, &[active.into(); LANES]),
            Op::Clock(dest) => self.set(*dest, active, &[world.steps(); LANES]),
            Op::IsSpace {
                dest,
                space,
                address,
            } => {
                let answers = self
                    .row(*address)
                    .map(|at| u64::from(World::is_in(*space, at)));
                self.set(*dest, active, &answers);
            }
            Op::Fence { is_gpu } => world.fence(*is_gpu),
            Op::Runtime(call) => world.call_runtime(self, call, active)?,
            Op::Trap => {
                let lane = active.trailing_zeros() as usize;
                return Err(Fault::new(Kind::Trap, lane, "the kernel ended itself"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Instructions that the whole group does.
    fn together(
        &mut self,
        picked: usize,
        op: &Op,
        world: &mut World<'_>,
    ) -> Result<Turn, Box<Fault>> {
        let mask = self.groups[picked].mask;
        match op {
            Op::Collective {
                mask: members,
                collective,
            } => {
                collective::run(self, picked, *members, collective, world)?;
            }
            Op::Barrier {
                id, threads, waits, ..
            } => {
                let lane = mask.trailing_zeros() as usize;
                let id = self.row(*id)[lane] as u32;
                let threads = threads.map(|reg| self.row(reg)[lane] as u32);
                if id >= 16 {
                    return Err(Fault::new(
                        Kind::BadMask,
                        lane,
                        format!("barrier {id}: expected less than 16"),
                    ));
                }
                if *waits {
                    self.groups[picked].wait = Wait::Barrier { id, threads };
                } else {
                    world.arrive(self.index, id, mask);
                    self.groups[picked].pc += 1;
                    return Ok(Turn::Yield);
                }
            }
            _ => {
                let missing = self.live & !mask;
                if missing != 0 {
                    self.groups[picked].wait = Wait::Lanes;
                    return Ok(Turn::Continue);
                }
                if mask != u32::MAX {
                    let lane = (!mask).trailing_zeros() as usize;
                    let what = "a matrix instruction needs all 32 lanes, and some have ended";
                    return Err(Fault::new(Kind::BadMask, lane, what));
                }
                matrix::run(self, op, world)?;
                self.groups[picked].pc += 1;
            }
        }
        Ok(Turn::Continue)
    }

    /// Sends the active lanes to `target` and the others on.
    fn split(&mut self, picked: usize, active: u32, target: usize) {
        let group = &mut self.groups[picked];
        if active == group.mask {
            group.pc = target;
        } else {
            group.pc += 1;
            group.mask &= !active;
            if active != 0 {
                self.groups.push(Group {
                    pc: target,
                    mask: active,
                    wait: Wait::No,
                });
            }
        }
    }

    fn branch_indexed(
        &mut self,
        picked: usize,
        active: u32,
        index: Reg,
        targets: &[usize],
    ) -> Result<(), Box<Fault>> {
        let indices = *self.row(index);
        let rest = self.groups[picked].mask & !active;
        let mut left = active;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let same = lanes(left)
                .filter(|l| indices[*l] == indices[lane])
                .fold(0, |m, l| m | 1 << l);
            let Some(target) = targets.get(indices[lane] as usize) else {
                let what = format!(
                    "index {} of an indexed branch with {} targets",
                    indices[lane],
                    targets.len()
                );
                return Err(Fault::new(Kind::OutOfBounds, lane, what));
            };
            self.groups.push(Group {
                pc: *target,
                mask: same,
                wait: Wait::No,
            });
            left &= !same;
        }
        if rest == 0 {
            self.groups.swap_remove(picked);
        } else {
            self.groups[picked].pc += 1;
            self.groups[picked].mask = rest;
        }
        Ok(())
    }

    fn exit(&mut self, picked: usize, active: u32) {
        self.live &= !active;
        let group = &mut self.groups[picked];
        group.pc += 1;
        group.mask &= !active;
        if group.mask == 0 {
            self.groups.swap_remove(picked);
        }
        // Those that waited for the lanes that ended may go on.
        for group in &mut self.groups {
            if group.wait == Wait::Lanes {
                group.wait = Wait::No;
            }
        }
    }
}
