//! A module as it is written, with names made unique across scopes.

use super::types::Type;

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Any of the others, by address.
    Generic,
    /// Device memory.
    Global,
    /// Read-only device memory.
    Const,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Parameters.
    Param,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Unique name.
    pub name: String,
    /// Its space.
    pub space: Space,
    /// Type of its elements.
    pub ty: Type,
    /// Alignment in bytes.
    pub align: usize,
    /// Size in bytes; 0 for the extern array that a launch sizes.
    pub bytes: usize,
    /// Initial bytes, as far as they are given.
    pub init: Vec<u8>,
    /// Whether it is defined elsewhere, or sized by a launch.
    pub is_extern: bool,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, variable, function or label.
    Name(String),
    /// `!p`.
    Not(String),
    /// An integer, or a float's bits in the type of the instruction.
    Integer(u64),
    /// Bits of a single precision float.
    Single(u32),
    /// Bits of a double precision float.
    Double(u64),
    /// `{a, b, c, d}`.
    Vector(Vec<Operand>),
    /// `[base + offset]`.
    Address(Option<String>, i64),
    /// `p|q`.
    Pair(String, String),
    /// `(a, b)` of a call.
    Group(Vec<Operand>),
    /// `_`, a result that is dropped.
    Sink,
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Register that must hold, and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// Name with all suffixes.
    pub opcode: String,
    /// Operands in their order.
    pub operands: Vec<Operand>,
    /// Line, from 1.
    pub line: u32,
}

/// A part of a function's body.
#[derive(Clone, Debug)]
pub enum Statement {
    /// A place to branch to.
    Label(String),
    /// An instruction.
    Instruction(Instruction),
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel.
    pub is_entry: bool,
    /// Whether it has a body here.
    pub has_body: bool,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// Results in order.
    pub returns: Vec<Variable>,
    /// Registers by name.
    pub registers: Vec<(String, Type)>,
    /// Variables of all its scopes.
    pub variables: Vec<Variable>,
    /// Instructions and labels.
    pub body: Vec<Statement>,
    /// Most threads of a block, from `.maxntid` or `.reqntid`; 0 for no bound.
    pub max_threads: u32,
    /// Line of its head.
    pub line: u32,
}

/// A module.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Variables outside functions.
    pub variables: Vec<Variable>,
    /// Kernels and functions.
    pub functions: Vec<Function>,
}
