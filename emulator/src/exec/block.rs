//! A block: its warps in turn from barrier to barrier, and what they share.

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rustc_hash::{FxHashMap, FxHashSet};

use super::collective::reduce;
use super::memory::{Memory, Region};
use super::shadow::{Conflict, Mark};
use super::warp::{Turn, Wait, Warp, lanes};
use crate::ptx::ast::Space;
use crate::ptx::decode::{DEVICE_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE};
use crate::ptx::forms::LANES;
use crate::ptx::program::{Op, Program, SharedVariable};
use crate::report::{Fault, Kind};

/// Barriers of a block.
const NUM_BARRIERS: usize = 16;

/// What the warps of a block share.
pub(super) struct World<'a> {
    pub(super) program: &'a Program,
    pub(super) memory: &'a mut Memory,
    pub(super) params: &'a [u8],
    /// Number of the launch, to tell marks of others.
    pub(super) launch: u32,
    /// Index of the block among all of the grid.
    pub(super) block: u32,
    pub(super) shared: Region,
    /// Variables of shared memory, the one that the launch sizes with its size.
    pub(super) shared_variables: Vec<SharedVariable>,
    /// Memory of each thread, one after another.
    pub(super) local: Region,
    /// Counts synchronisations.
    pub(super) clock: u32,
    /// Clock after each thread's last barrier, and after its last `bar.warp.sync`.
    barrier_clock: Vec<u32>,
    warp_clock: Vec<u32>,
    /// Threads that came to each barrier without waiting.
    arrived: [u32; NUM_BARRIERS],
    /// Whether the block ordered its writes for other blocks.
    has_fenced: bool,
    /// Blocks whose writes this one was ordered after.
    acquired: FxHashSet<u32>,
    /// For an address that blocks handed something over at, those blocks.
    pub(super) released: &'a mut FxHashMap<u64, FxHashSet<u32>>,
    steps: u64,
    max_steps: u64,
}

/// What a launch hands to each block.
pub(super) struct Setting<'a> {
    pub(super) program: &'a Program,
    pub(super) memory: &'a mut Memory,
    pub(super) params: &'a [u8],
    pub(super) launch: u32,
    pub(super) shared_variables: Vec<SharedVariable>,
    pub(super) threads: usize,
    pub(super) released: &'a mut FxHashMap<u64, FxHashSet<u32>>,
    pub(super) max_steps: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(setting: Setting<'a>) -> Self {
        let program = setting.program;
        let threads = setting.threads.next_multiple_of(LANES);
        let end = setting
            .shared_variables
            .iter()
            .map(|v| v.offset + v.bytes)
            .max();
        Self {
            program,
            memory: setting.memory,
            params: setting.params,
            launch: setting.launch,
            block: 0,
            shared: Region::fresh(end.unwrap_or(0) as usize),
            shared_variables: setting.shared_variables,
            local: Region::fresh(program.local_bytes * threads),
            clock: 0,
            barrier_clock: vec![0; threads],
            warp_clock: vec![0; threads],
            arrived: [0; NUM_BARRIERS],
            has_fenced: false,
            acquired: FxHashSet::default(),
            released: setting.released,
            steps: 0,
            max_steps: setting.max_steps,
        }
    }

    /// Makes it ready for the next block.
    pub(super) fn start(&mut self, block: u32) {
        self.block = block;
        let (shared, local) = (self.shared.bytes().len(), self.local.bytes().len());
        self.shared.reset(shared);
        self.local.reset(local);
        self.clock = 0;
        self.barrier_clock.fill(0);
        self.warp_clock.fill(0);
        self.arrived = [0; NUM_BARRIERS];
        self.has_fenced = false;
        self.acquired.clear();
        self.steps = 0;
    }

    /// Steps of this block so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn count_step(&mut self) -> Result<(), Box<Fault>> {
        self.steps += 1;
        if self.steps > self.max_steps {
            let what = format!(
                "a block ran {} instructions of a warp without an end",
                self.max_steps
            );
            return Err(Fault::new(Kind::NoEnd, 0, what));
        }
        Ok(())
    }

    /// Whether a generic address lies in a space.
    pub(super) fn is_in(space: Space, address: u64) -> bool {
        match space {
            Space::Shared => (SHARED_BASE..LOCAL_BASE).contains(&address),
            Space::Local => (LOCAL_BASE..PARAM_BASE).contains(&address),
            Space::Param => (PARAM_BASE..DEVICE_BASE).contains(&address),
            Space::Global => address >= DEVICE_BASE,
            Space::Const | Space::Generic => false,
        }
    }

    /// Notes that lanes of a warp have synchronised.
    pub(super) fn warp_synced(&mut self, warp: usize, mask: u32) {
        self.clock += 1;
        for lane in lanes(mask) {
            self.warp_clock[warp * LANES + lane] = self.clock;
        }
    }

    /// Notes a fence.
    pub(super) fn fence(&mut self, is_gpu: bool) {
        self.has_fenced |= is_gpu;
    }

    /// Counts threads that come to a barrier and go on.
    pub(super) fn arrive(&mut self, warp: usize, id: u32, mask: u32) {
        self.arrived[id as usize] += counted(mask);
        for lane in lanes(mask) {
            self.barrier_clock[warp * LANES + lane] = self.clock + 1;
        }
    }

    /// Notes an atomic access to device memory: it may hand over what others wrote before.
    pub(super) fn hand_over(&mut self, address: u64, writes: bool) {
        if let Some(blocks) = self.released.get(&address) {
            self.acquired.extend(blocks);
        }
        if writes && self.has_fenced {
            let blocks = self.released.entry(address).or_default();
            blocks.insert(self.block & 0xff_ffff);
            blocks.extend(&self.acquired);
        }
    }

    /// Whether what `earlier` did is ordered before what `thread` does now.
    fn is_ordered(&self, earlier: Mark, now: Mark) -> bool {
        if !earlier.same_block(now) {
            return self.acquired.contains(&earlier.block());
        }
        let (a, b, clock) = (earlier.thread(), now.thread(), earlier.clock());
        let both = |clocks: &[u32]| clocks[a] > clock && clocks[b] > clock;
        a == b || both(&self.barrier_clock) || (a / LANES == b / LANES && both(&self.warp_clock))
    }

    pub(super) fn mark(&self, thread: usize, is_strong: bool) -> Mark {
        Mark::new(self.block, thread, self.clock, is_strong)
    }

    /// Records an access to shared memory, or to an allocation.
    pub(super) fn touch(
        &mut self,
        allocation: Option<usize>,
        offset: usize,
        len: usize,
        is_write: bool,
        mark: Mark,
    ) -> Option<Conflict> {
        let mut shadow = std::mem::take(match allocation {
            None => &mut self.shared.shadow,
            Some(idx) => &mut self.memory.region(idx)?.shadow,
        });
        let found = shadow.touch(self.launch, offset, len, is_write, mark, |earlier| {
            self.is_ordered(earlier, mark)
        });
        match allocation {
            None => self.shared.shadow = shadow,
            Some(idx) => self.memory.region(idx)?.shadow = shadow,
        }
        found
    }
}

/// Threads that a group counts for at a barrier: warps count whole.
fn counted(mask: u32) -> u32 {
    if mask == 0 { 0 } else { LANES as u32 }
}

/// Where a fault is: warp, position.
pub(super) type Located = (usize, usize, Box<Fault>);

/// Runs all warps of a block to their ends.
pub(super) fn run(
    warps: &mut [Warp],
    world: &mut World<'_>,
    rng: &mut ChaCha8Rng,
) -> Result<(), Located> {
    let mut order: Vec<usize> = (0..warps.len()).collect();
    loop {
        order.shuffle(rng);
        let mut has_run = false;
        for i in &order {
            let warp = &mut warps[*i];
            if warp.groups.iter().any(|group| group.wait == Wait::No) {
                has_run = true;
                let turn = warp.run(world).map_err(|(pc, fault)| (*i, pc, fault))?;
                debug_assert!(turn != Turn::Continue);
            }
            release_counted(warps, world);
        }
        if warps.iter().all(|warp| warp.live == 0) {
            return Ok(());
        }
        if !has_run && !release_all(warps, world)? {
            return Err(deadlock(warps, world));
        }
    }
}

/// Lets the threads of counted barriers go where enough have come.
fn release_counted(warps: &mut [Warp], world: &mut World<'_>) {
    for id in 0..NUM_BARRIERS as u32 {
        let waits = |group: &super::warp::Group| match group.wait {
            Wait::Barrier {
                id: at,
                threads: Some(threads),
            } if at == id => Some(threads),
            _ => None,
        };
        let mut come = world.arrived[id as usize];
        let mut wanted = None;
        for group in warps.iter().flat_map(|warp| &warp.groups) {
            if let Some(threads) = waits(group) {
                come += counted(group.mask);
                wanted = Some(threads);
            }
        }
        if wanted.is_some_and(|wanted| come >= wanted) {
            world.arrived[id as usize] = 0;
            release(warps, world, |group| waits(group).is_some());
        }
    }
}

/// Lets the threads go that wait at a barrier for the whole block, if all are at the same one.
fn release_all(warps: &mut [Warp], world: &mut World<'_>) -> Result<bool, Located> {
    let waits =
        |group: &super::warp::Group| matches!(group.wait, Wait::Barrier { threads: None, .. });
    let mut first: Option<(usize, usize, Wait)> = None;
    for (i, warp) in warps.iter().enumerate() {
        if let (None, Some(group)) = (first, warp.groups.iter().find(|group| waits(group))) {
            first = Some((i, group.pc, group.wait));
        }
    }
    let Some((at, pc, wait)) = first else {
        return Ok(false);
    };
    // The thread to name is one that came while another of its block did not.
    for warp in warps.iter() {
        let here = warp
            .groups
            .iter()
            .filter(|g| waits(g) && g.pc == pc && g.wait == wait);
        let here = here.fold(0, |mask, group| mask | group.mask);
        let Some(missing) = lanes(warp.lanes & !here).next() else {
            continue;
        };
        let thread = warp.index * LANES + missing;
        let elsewhere = warp
            .groups
            .iter()
            .find(|group| group.mask >> missing & 1 == 1);
        let line = |pc: usize| world.program.code[pc].line;
        let what = match elsewhere {
            None => format!("thread {thread} ended without coming to it"),
            Some(group) => format!("thread {thread} waits on line {} instead", line(group.pc)),
        };
        let what = format!(
            "a barrier for all threads of the block on line {}; {what}",
            line(pc)
        );
        let lane = warps[at]
            .groups
            .iter()
            .find(|g| waits(g))
            .map_or(0, |g| g.mask.trailing_zeros());
        return Err((
            at,
            pc,
            Fault::new(Kind::BarrierDivergence, lane as usize, what),
        ));
    }
    release(warps, world, waits);
    Ok(true)
}

fn release(warps: &mut [Warp], world: &mut World<'_>, goes: impl Fn(&super::warp::Group) -> bool) {
    world.clock += 1;
    let mut votes = Vec::new();
    for warp in warps.iter() {
        for group in warp.groups.iter().filter(|group| goes(group)) {
            if let Op::Barrier {
                reduce: Some((op, _, value, is_negated)),
                ..
            } = &world.program.code[group.pc].op
            {
                let ayes = warp.holds(*value, *is_negated, group.mask);
                votes.extend(lanes(group.mask).map(|lane| (*op, ayes >> lane & 1)));
            }
        }
    }
    let joined = votes
        .first()
        .map(|(op, _)| reduce(*op, votes.iter().map(|(_, vote)| *vote)));
    for warp in warps {
        for i in 0..warp.groups.len() {
            let group = warp.groups[i];
            if !goes(&group) {
                continue;
            }
            for lane in lanes(group.mask) {
                world.barrier_clock[warp.index * LANES + lane] = world.clock;
            }
            if let (
                Op::Barrier {
                    reduce: Some((_, dest, ..)),
                    ..
                },
                Some(joined),
            ) = (&world.program.code[group.pc].op, joined)
            {
                warp.set(*dest, group.mask, &[joined.into(); LANES]);
            }
            warp.groups[i].wait = Wait::No;
            warp.groups[i].pc += 1;
        }
    }
}

fn deadlock(warps: &[Warp], world: &World<'_>) -> Located {
    let stuck = warps
        .iter()
        .enumerate()
        .find_map(|(i, warp)| warp.groups.first().map(|group| (i, *group)));
    let Some((i, group)) = stuck else {
        return (0, 0, Fault::new(Kind::Deadlock, 0, "no thread can go on"));
    };
    let lane = group.mask.trailing_zeros() as usize;
    let others = warps[i].groups.iter().filter(|other| other.pc != group.pc);
    let lines: Vec<String> = others
        .map(|other| world.program.code[other.pc].line.to_string())
        .collect();
    let what = match group.wait {
        Wait::Barrier { id, threads } => {
            format!(
                "barrier {id} waits for {} threads, of which too few come",
                threads.unwrap_or(0)
            )
        }
        _ => format!(
            "lanes {:#010x} wait for lanes of their mask that do not come",
            group.mask
        ),
    };
    let what = if lines.is_empty() {
        what
    } else {
        format!("{what}; others wait on lines {}", lines.join(", "))
    };
    (i, group.pc, Fault::new(Kind::Deadlock, lane, what))
}
