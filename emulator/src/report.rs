//! What is wrong with a run, and where.

use std::fmt;

/// Kinds of what the checks find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An address that no allocation holds.
    OutOfBounds,
    /// An address in memory that was given back.
    UseAfterFree,
    /// A read of memory that nothing has written.
    Unwritten,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// Threads of a block that do not all come to a barrier.
    BarrierDivergence,
    /// Threads that wait for each other without end.
    Deadlock,
    /// Two accesses to the same bytes that nothing orders.
    Race,
    /// A launch that no device takes.
    LaunchLimits,
    /// A lane that its own member mask does not name, and the like.
    BadMask,
    /// A write to memory that is only for reading.
    ReadOnly,
    /// A block that ran longer than any kernel should.
    NoEnd,
    /// The kernel's own trap.
    Trap,
    /// An assertion of the kernel.
    Assert,
    /// An argument of a library call that is wrong.
    Argument,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfBounds => "out of bounds",
            Self::UseAfterFree => "use after free",
            Self::Unwritten => "read of unwritten memory",
            Self::Misaligned => "misaligned access",
            Self::BarrierDivergence => "barrier in divergent code",
            Self::Deadlock => "deadlock",
            Self::Race => "race",
            Self::LaunchLimits => "launch limits",
            Self::BadMask => "bad member mask",
            Self::ReadOnly => "write to read-only memory",
            Self::NoEnd => "no end",
            Self::Trap => "trap",
            Self::Assert => "failed assertion",
            Self::Argument => "bad argument",
        })
    }
}

/// What is wrong, without its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind.
    pub kind: Kind,
    /// Lane of the warp that it is about.
    pub lane: usize,
    /// In words.
    pub what: String,
}

impl Fault {
    /// A fault of a lane.
    pub fn new(kind: Kind, lane: usize, what: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            kind,
            lane,
            what: what.into(),
        })
    }
}

/// Where in a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the block.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: [u32; 3],
    /// Line of the module's text, from 1.
    pub line: u32,
    /// Text of that line.
    pub instruction: String,
}

/// A finding with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Kind.
    pub kind: Kind,
    /// Kernel, or library call.
    pub kernel: String,
    /// Where in the kernel; none for the launch itself.
    pub place: Option<Place>,
    /// In words.
    pub what: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  kernel {}", self.kind, self.what, self.kernel)?;
        if let Some(Place {
            block: [bx, by, bz],
            thread: [tx, ty, tz],
            line,
            instruction,
        }) = &self.place
        {
            write!(f, ", block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})")?;
            write!(f, "\n  PTX line {line}: {instruction}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}
