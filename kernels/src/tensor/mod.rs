//! General kernels of ONNX ops on host tensors: one family per file, one registry.
//!
//! An [`OpEntry`] says which op it is, the opset versions whose definitions it follows, the
//! element types of its first input, and evaluates a [`Call`]. The kernels are plain loops in
//! f64 (floats) or i128 (integers), made to be right for every rank and type; what has to be fast
//! is found by pattern in the imported graph and runs as a node of its own.
//!
//! Invariants:
//! 1. No kernel panics, whatever the operands and attributes are: sizes go through
//!    [`Call::num`] and [`Call::work`], attributes and shape operands through the getters of
//!    [`Call`], which keep them within 32 bits.
//! 2. A kernel allocates no more than the limits of its call allow per tensor, and takes the steps
//!    of its loops from the [`Meter`] of its call.
//!
//! Source: operator documentation of ONNX 1.17 (Operators.md, Changelog.md).

mod binary;
mod call;
mod cast;
mod compare;
mod conv;
mod detect;
mod gather;
mod grid_sample;
mod index;
mod integer;
mod loss;
mod matmul;
mod meter;
mod movement;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod refused;
mod resize;
mod scatter;
mod schema;
mod shape;
mod signal;
mod softmax;
mod sort;
mod text;
mod unary;
mod wide;
mod window;

use std::fmt;

use lazybatch_graph::onnx::{Array, Elem, Error};

pub use call::Call;
pub use index::transpose;
pub use meter::Meter;
pub use refused::{REFUSED, reason};
pub use schema::undefined;

/// What a kernel gives: its outputs in order.
pub type Outputs = Result<Vec<Array>, Error>;

/// One op.
pub struct OpEntry {
    /// Its name in the default domain.
    pub name: &'static str,
    /// Opsets that define it and that its kernel follows, ascending.
    pub versions: &'static [i64],
    /// Element types of the first input.
    pub types: Types,
    /// Computes the outputs.
    pub eval: fn(&Call) -> Outputs,
}

/// A family of ops: one file of this module.
pub struct Family {
    /// What its ops have in common.
    pub name: &'static str,
    /// Its ops.
    pub ops: &'static [OpEntry],
}

/// All families.
pub const FAMILIES: &[Family] = &[
    family("element by element, one operand", unary::OPS),
    family("element by element, several operands", binary::OPS),
    family("comparison and logic", compare::OPS),
    family("reduction", reduce::OPS),
    family("matrix product", matmul::OPS),
    family("integer matrix product and convolution", integer::OPS),
    family("convolution", conv::OPS),
    family("pooling", pool::OPS),
    family("normalization", norm::OPS),
    family("softmax", softmax::OPS),
    family("loss", loss::OPS),
    family("shape and constants", shape::OPS),
    family("data movement", movement::OPS),
    family("gather", gather::OPS),
    family("scatter", scatter::OPS),
    family("order", sort::OPS),
    family("conversion and quantization", cast::OPS),
    family("recurrent layers", recurrent::OPS),
    family("resizing", resize::OPS),
    family("sampling on a grid", grid_sample::OPS),
    family("regions and boxes", detect::OPS),
    family("signal", signal::OPS),
    family("text", text::OPS),
];

const fn family(name: &'static str, ops: &'static [OpEntry]) -> Family {
    Family { name, ops }
}

const fn op(
    name: &'static str,
    versions: &'static [i64],
    types: Types,
    eval: fn(&Call) -> Outputs,
) -> OpEntry {
    OpEntry {
        name,
        versions,
        types,
        eval,
    }
}

/// The op `name` of the default domain.
pub fn find(name: &str) -> Option<&'static OpEntry> {
    FAMILIES
        .iter()
        .flat_map(|family| family.ops)
        .find(|op| op.name == name)
}

/// A set of element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u16);

impl Types {
    /// f16, bf16, f32, f64.
    pub const FLOATS: Self = Self::of(&[Elem::F16, Elem::BF16, Elem::F32, Elem::F64]);
    /// Signed integers.
    pub const SIGNED: Self = Self::of(&[Elem::I8, Elem::I16, Elem::I32, Elem::I64]);
    /// Unsigned integers.
    pub const UNSIGNED: Self = Self::of(&[Elem::U8, Elem::U16, Elem::U32, Elem::U64]);
    /// Integers.
    pub const INTS: Self = Self::SIGNED.or(Self::UNSIGNED);
    /// Integers and floats.
    pub const NUMBERS: Self = Self::INTS.or(Self::FLOATS);
    /// Booleans.
    pub const BOOL: Self = Self::of(&[Elem::Bool]);
    /// i8 and u8.
    pub const BYTES: Self = Self::of(&[Elem::I8, Elem::U8]);
    /// i32 and i64.
    pub const INDEX: Self = Self::of(&[Elem::I32, Elem::I64]);
    /// i64.
    pub const I64: Self = Self::of(&[Elem::I64]);
    /// All.
    pub const ALL: Self = Self::NUMBERS.or(Self::BOOL);

    /// The set of `elems`.
    pub const fn of(elems: &[Elem]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < elems.len() {
            bits |= 1 << elems[i] as u16;
            i += 1;
        }
        Self(bits)
    }

    /// The union with `other`.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `elem` is one of them.
    pub const fn has(self, elem: Elem) -> bool {
        self.0 & (1 << elem as u16) != 0
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (Self::ALL, "all"),
            (Self::NUMBERS, "numbers"),
            (Self::INTS, "integers"),
            (Self::FLOATS, "floats"),
            (Self::SIGNED.or(Self::FLOATS), "signed integers, floats"),
            (Self::INTS.or(Self::BOOL), "integers, bool"),
            (Self::UNSIGNED, "unsigned integers"),
        ];
        if let Some((_, name)) = named.iter().find(|(types, _)| types == self) {
            return f.write_str(name);
        }
        let names = Elem::ALL.iter().filter(|e| self.has(**e)).map(|e| e.name());
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}
