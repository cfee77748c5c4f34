//! A launch: its limits, and its blocks one after another in a random order.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::block::{self, Setting, World};
use super::memory::Memory;
use super::warp::Warp;
use crate::module::Module;
use crate::ptx::forms::LANES;
use crate::ptx::program::{Program, Special};
use crate::report::{Fault, Kind, Place, Report};

/// Threads of a block at most.
pub const MAX_THREADS: u32 = 1024;
/// Bytes of shared memory that a block may have unasked.
pub const SHARED_BYTES: u32 = 48 << 10;
/// Bytes of shared memory that a block may ask for.
pub const SHARED_BYTES_OPTIN: u32 = 163 << 10;
/// Most threads along each axis of a block.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Most blocks along each axis of a grid.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// A launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub dynamic_shared: u32,
    /// Bytes that the kernel may have beyond what it declares, from its attributes.
    pub max_dynamic_shared: u32,
    /// Parameters as bytes, laid out as the kernel declares them.
    pub params: Vec<u8>,
}

impl Launch {
    /// Whether a device would take the launch.
    ///
    /// # Errors
    /// The limit that it breaks.
    pub fn check(&self, program: &Program) -> Result<(), String> {
        let launch = self;
        for axis in 0..3 {
            let name = ["x", "y", "z"][axis];
            let (block, grid) = (launch.block[axis], launch.grid[axis]);
            if block == 0 || block > MAX_BLOCK[axis] {
                return Err(format!(
                    "threads along {name}: expected 1 to {}, got {block}",
                    MAX_BLOCK[axis]
                ));
            }
            if grid == 0 || grid > MAX_GRID[axis] {
                return Err(format!(
                    "blocks along {name}: expected 1 to {}, got {grid}",
                    MAX_GRID[axis]
                ));
            }
        }
        let threads: u32 = launch.block.iter().product();
        let bound = if program.max_threads == 0 {
            MAX_THREADS
        } else {
            program.max_threads.min(MAX_THREADS)
        };
        if threads > bound {
            return Err(format!(
                "threads of a block: expected at most {bound}, got {threads}"
            ));
        }
        let room = u64::from(launch.max_dynamic_shared);
        let room = room.max(u64::from(SHARED_BYTES).saturating_sub(program.static_shared));
        if u64::from(launch.dynamic_shared) > room {
            return Err(format!(
                "bytes of shared memory beyond the kernel's own {}: expected at most {room}, got {}",
                program.static_shared, launch.dynamic_shared
            ));
        }
        if launch.params.len() < program.param_bytes() {
            return Err(format!(
                "bytes of parameters: expected {}, got {}",
                program.param_bytes(),
                launch.params.len()
            ));
        }
        let num_blocks: u64 = launch.grid.iter().map(|n| u64::from(*n)).product();
        if num_blocks > 1 << 24 {
            return Err(format!(
                "blocks of a grid: the emulator takes at most {}, got {num_blocks}",
                1 << 24
            ));
        }
        Ok(())
    }
}

/// What a run depends on besides its input.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides the order of blocks and warps.
    pub seed: u64,
    /// Instructions of a warp that a block may run.
    pub max_steps: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            max_steps: 1 << 32,
        }
    }
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Instructions of a warp.
    pub steps: u64,
}

/// Runs a kernel to its end; `number` tells launches apart.
///
/// # Errors
/// What a check finds, with its place.
pub fn launch(
    module: &Module,
    program: &Program,
    memory: &mut Memory,
    launch: &Launch,
    number: u32,
    options: Options,
) -> Result<Stats, Box<Report>> {
    launch.check(program).map_err(|what| {
        Box::new(Report {
            kind: Kind::LaunchLimits,
            kernel: program.name.clone(),
            place: None,
            what,
        })
    })?;
    let [bx, by, bz] = launch.block;
    let threads = (bx * by * bz) as usize;
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed ^ u64::from(number) << 32);
    let num_blocks = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>();
    let mut order: Vec<u32> = (0..num_blocks as u32).collect();
    order.shuffle(&mut rng);

    let mut warps: Vec<Warp> = (0..threads.div_ceil(LANES))
        .map(|i| Warp::new(program, i))
        .collect();
    let mut shared_variables = program.shared.clone();
    for variable in shared_variables.iter_mut().filter(|v| v.is_dynamic) {
        variable.bytes = launch.dynamic_shared.into();
    }
    let mut released = FxHashMap::default();
    let setting = Setting {
        program,
        memory,
        params: &launch.params,
        // Numbers of launches start at 1 for the shadow, where 0 is none.
        launch: number.wrapping_add(1).max(1),
        shared_variables,
        threads,
        released: &mut released,
        max_steps: options.max_steps,
    };
    let mut world = World::new(setting);
    let mut stats = Stats::default();
    for index in order {
        let at = position(index, launch.grid);
        world.start(index);
        for warp in &mut warps {
            let special =
                |which: Special, thread: usize| special(which, thread, launch, program, at);
            warp.start(program, threads, &special);
        }
        let result = block::run(&mut warps, &mut world, &mut rng);
        stats.steps += world.steps();
        if let Err((warp, pc, fault)) = result {
            let Fault { kind, lane, what } = *fault;
            let line = program.code[pc].line;
            let thread = position((warp * LANES + lane) as u32, launch.block);
            let place = Place {
                block: at,
                thread,
                line,
                instruction: module.line(line).to_owned(),
            };
            return Err(Box::new(Report {
                kind,
                kernel: program.name.clone(),
                place: Some(place),
                what,
            }));
        }
    }
    Ok(stats)
}

/// Position of the `index`th of `shape`, first axis fastest.
fn position(index: u32, [x, y, _]: [u32; 3]) -> [u32; 3] {
    [index % x, index / x % y, index / x / y]
}

fn special(which: Special, thread: usize, launch: &Launch, program: &Program, at: [u32; 3]) -> u64 {
    let lane = (thread % LANES) as u32;
    let threads: u32 = launch.block.iter().product();
    let value: u32 = match which {
        Special::Tid(axis) => position(thread as u32, launch.block)[axis],
        Special::Ntid(axis) => launch.block[axis],
        Special::Ctaid(axis) => at[axis],
        Special::Nctaid(axis) => launch.grid[axis],
        Special::LaneId => lane,
        Special::WarpId => (thread / LANES) as u32,
        Special::NumWarps => threads.div_ceil(LANES as u32),
        Special::LaneMaskEq => 1 << lane,
        Special::LaneMaskLt => (1 << lane) - 1,
        Special::LaneMaskLe => u32::MAX >> (31 - lane),
        Special::LaneMaskGt => !(u32::MAX >> (31 - lane)),
        Special::LaneMaskGe => !((1 << lane) - 1),
        Special::DynamicShared => launch.dynamic_shared,
        Special::TotalShared => launch.dynamic_shared + program.static_shared as u32,
        Special::Zero => 0,
        Special::One => 1,
    };
    value.into()
}
