//! Kernels as a warp runs them: every name resolved to a row of the register file, calls inlined.

use super::ast::Space;
use super::forms::Form;

/// Index of a row of a warp's register file.
pub type Reg = u32;

/// Where a result goes, and which bits its register has.
#[derive(Clone, Copy, Debug)]
pub struct Dest {
    /// The row.
    pub reg: Reg,
    /// Bits that the register holds.
    pub mask: u64,
}

/// An address: a register, or none, and an offset.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The row of the base.
    pub base: Option<Reg>,
    /// Added to it.
    pub offset: i64,
}

impl Address {
    /// The address of a lane whose base register holds `base`.
    pub fn at(&self, base: u64) -> u64 {
        base.wrapping_add_signed(self.offset)
    }
}

/// A load or a store.
#[derive(Clone, Debug)]
pub struct Access {
    /// Space that the address is in.
    pub space: Space,
    /// The address.
    pub address: Address,
    /// Bytes of an element.
    pub unit: usize,
    /// Whether a loaded element keeps its sign.
    pub is_signed: bool,
    /// Volatile, relaxed and acquiring accesses do not race with each other.
    pub is_strong: bool,
}

/// What an atomic does with the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum AtomicOp {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Exch,
    Cas,
}

/// Which lane a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum ShuffleMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// What a vote answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

/// How a reduction over lanes or threads joins values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum ReduceOp {
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    /// Threads for which the predicate holds.
    Popc,
}

/// An instruction that lanes of a warp do together; it waits for the lanes of its mask.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "the fields are the operands, in the words of PTX"
)]
pub enum Collective {
    /// `shfl.sync`.
    Shuffle {
        mode: ShuffleMode,
        dest: Option<Dest>,
        found: Option<Dest>,
        value: Reg,
        by: Reg,
        clamp: Reg,
    },
    /// `vote.sync`.
    Vote {
        mode: VoteMode,
        dest: Dest,
        value: Reg,
        is_negated: bool,
    },
    /// `match.any.sync`, or `match.all.sync` with a second result.
    Match {
        is_all: bool,
        dest: Dest,
        all: Option<Dest>,
        value: Reg,
    },
    /// `redux.sync`.
    Reduce {
        op: ReduceOp,
        dest: Dest,
        value: Reg,
    },
    /// `bar.warp.sync`.
    Sync,
}

/// Types that a matrix product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum MmaType {
    F16,
    Bf16,
    Tf32,
}

/// A call of the device's runtime, by where its parameters lie in the thread's own memory.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "the fields are the parameters of the C functions"
)]
pub enum RuntimeCall {
    /// `vprintf`.
    Print {
        format: u64,
        arguments: u64,
        result: u64,
    },
    /// `__assertfail`.
    Assert { message: u64, file: u64, line: u64 },
}

/// What an instruction does.
#[derive(Clone)]
#[allow(
    missing_docs,
    reason = "the fields are the operands, in the words of PTX"
)]
pub enum Op {
    /// Computes on registers.
    Alu {
        form: &'static Form,
        dests: [Option<Dest>; 2],
        sources: [Reg; 4],
    },
    /// Words out of a register, low ones first, `bits` each.
    Unpack {
        dests: Vec<Option<Dest>>,
        source: Reg,
        bits: u32,
    },
    /// Words into a register, low ones first, `bits` each.
    Pack {
        dest: Dest,
        sources: Vec<Reg>,
        bits: u32,
    },
    /// Memory into registers.
    Load {
        access: Access,
        dests: Vec<Option<Dest>>,
    },
    /// Registers into memory.
    Store { access: Access, sources: Vec<Reg> },
    /// An atomic; without a result it is a `red`.
    Atomic {
        access: Access,
        ty: super::types::Type,
        op: AtomicOp,
        dest: Option<Dest>,
        value: Reg,
        other: Reg,
    },
    /// Lanes together.
    Collective { mask: Reg, collective: Collective },
    /// `bar.sync` and its kin, for threads of a block.
    Barrier {
        id: Reg,
        threads: Option<Reg>,
        waits: bool,
        reduce: Option<(ReduceOp, Dest, Reg, bool)>,
    },
    /// `cp.async`: `bytes` from global into shared memory, of which `source_bytes` are read.
    CopyAsync {
        dest: Address,
        source: Address,
        bytes: usize,
        source_bytes: Option<Reg>,
    },
    /// `cp.async.commit_group`.
    CopyCommit,
    /// `cp.async.wait_group N`; `None` waits for all, committed or not.
    CopyWait(Option<u32>),
    /// `ldmatrix`: as many 8x8 matrices of 16-bit values as there are results.
    LoadMatrix {
        address: Address,
        space: Space,
        dests: Vec<Dest>,
        is_transposed: bool,
    },
    /// `mma.sync` of shape m16n8kK.
    Mma {
        k: usize,
        ty: MmaType,
        is_f16_sum: bool,
        dests: Vec<Dest>,
        a: Vec<Reg>,
        b: Vec<Reg>,
        c: Vec<Reg>,
    },
    /// Lanes that are here.
    ActiveMask(Dest),
    /// A counter that grows.
    Clock(Dest),
    /// Whether an address is in a space.
    IsSpace {
        dest: Dest,
        space: Space,
        address: Reg,
    },
    /// Orders memory; `is_gpu` beyond the block.
    Fence { is_gpu: bool },
    /// To a position of the code.
    Branch(usize),
    /// To one of several positions.
    BranchIndexed { index: Reg, targets: Vec<usize> },
    /// Ends the thread.
    Exit,
    /// Calls the device's runtime.
    Runtime(RuntimeCall),
    /// Ends the kernel with an error.
    Trap,
    /// Nothing that the emulator can see.
    Nop,
}

/// An instruction with its guard and its line.
#[derive(Clone)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// Register that must hold, or must not if negated.
    pub guard: Option<(Reg, bool)>,
    /// Line of the module's text, from 1.
    pub line: u32,
}

/// Registers whose values a launch gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    NumWarps,
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
    DynamicShared,
    TotalShared,
    Zero,
    One,
}

/// A variable in shared memory.
#[derive(Clone, Debug)]
pub struct SharedVariable {
    /// Its name.
    pub name: String,
    /// First byte. Variables lie apart, so that running over one's end meets nothing.
    pub offset: u64,
    /// Size; for the array that a launch sizes, 0.
    pub bytes: u64,
    /// Whether a launch sizes it.
    pub is_dynamic: bool,
}

/// A kernel.
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its instructions.
    pub code: Vec<Inst>,
    /// Rows of a warp's register file.
    pub num_rows: usize,
    /// Rows that hold constants.
    pub constants: Vec<(Reg, u64)>,
    /// Rows that a launch fills.
    pub specials: Vec<(Reg, Special)>,
    /// Offset and size of each parameter.
    pub params: Vec<(usize, usize)>,
    /// Variables in shared memory.
    pub shared: Vec<SharedVariable>,
    /// Bytes of shared memory that the kernel itself declares.
    pub static_shared: u64,
    /// Bytes of memory of each thread.
    pub local_bytes: usize,
    /// Most threads of a block that the kernel allows; 0 for no bound.
    pub max_threads: u32,
    /// Registers that the kernel declares, in 32-bit words.
    pub num_registers: u32,
}

impl Program {
    /// Bytes of all parameters.
    pub fn param_bytes(&self) -> usize {
        self.params
            .last()
            .map_or(0, |(offset, bytes)| offset + bytes)
    }
}
