//! Host tensors of the element types that ONNX has.
//!
//! Wider than [`crate::DType`], which names what devices store: shape arithmetic and masks of
//! imported graphs need booleans and all integers. Strings and complex numbers are left out.
//!
//! Kernels compute in one of two wide domains: f64 for floats, i128 for integers and booleans.
//! Rounding an f64 result of one `+ - * /` or square root to f32 or f16 gives the bits that the
//! narrow type's own arithmetic gives, since f64 has more than twice their digits.

use std::fmt;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::Error;
use crate::{DType, Tensor};

/// Stands for "no source element" in [`Data::take`].
pub const NONE: usize = usize::MAX;

/// One row per element type: variant, Rust type, name, code in the file format, domain.
macro_rules! elem_types {
    ($($name:ident $ty:ty, $text:literal, $code:literal, $domain:ident;)*) => {
        /// Element type of an [`Array`].
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(rename_all = "lowercase")]
        pub enum Elem {
            $(#[doc = concat!("`", $text, "`")] $name,)*
        }

        impl Elem {
            /// All of them.
            pub const ALL: &'static [Elem] = &[$(Elem::$name,)*];

            /// The type that the format numbers `code`; `None` for strings, complex numbers and
            /// the eight-bit floats.
            pub fn from_code(code: i64) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The lower-case name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$name => size_of::<$ty>(),)*
                }
            }
        }

        /// Elements, row-major.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Data {
            $(#[doc = concat!("`", $text, "` elements")] $name(Vec<$ty>),)*
        }

        impl Data {
            /// Their type.
            pub fn elem(&self) -> Elem {
                match self {
                    $(Self::$name(_) => Elem::$name,)*
                }
            }

            /// How many.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$name(v) => v.len(),)*
                }
            }

            /// `num` zeros.
            pub fn zeros(elem: Elem, num: usize) -> Self {
                match elem {
                    $(Elem::$name => Self::$name(vec![<$ty>::default(); num]),)*
                }
            }

            /// The elements at the positions `from`, zero at [`NONE`].
            ///
            /// # Panics
            /// If a position is neither [`NONE`] nor below [`Data::len`].
            pub fn take(&self, from: &[usize]) -> Self {
                match self {
                    $(Self::$name(v) => Self::$name(
                        from.iter()
                            .map(|&i| if i == NONE { <$ty>::default() } else { v[i] })
                            .collect(),
                    ),)*
                }
            }

            /// Sets element `i` to element `j` of `other`.
            ///
            /// # Panics
            /// If the types differ or a position is out of bounds.
            pub fn set(&mut self, i: usize, other: &Self, j: usize) {
                match (self, other) {
                    $((Self::$name(v), Self::$name(w)) => v[i] = w[j],)*
                    (v, w) => panic!("{} elements into {}", w.elem(), v.elem()),
                }
            }

            /// Appends the elements of `other`.
            ///
            /// # Panics
            /// If the types differ.
            pub fn append(&mut self, other: &Self) {
                match (self, other) {
                    $((Self::$name(v), Self::$name(w)) => v.extend_from_slice(w),)*
                    (v, w) => panic!("{} elements into {}", w.elem(), v.elem()),
                }
            }

            /// Whether type, number and bits of the elements are those of `other`: what is no number is
            /// the same as itself.
            pub fn is_same(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$name(v), Self::$name(w)) => {
                        let same = |(&x, &y)| $domain::is_same(x, y);
                        v.len() == w.len() && v.iter().zip(w).all(same)
                    })*
                    _ => false,
                }
            }

            /// The elements as f64; exact but for 64-bit integers above 2^53.
            pub fn to_f64(&self) -> Vec<f64> {
                match self {
                    $(Self::$name(v) => v.iter().map(|&x| $domain::to_f64(x)).collect(),)*
                }
            }

            /// The elements as i128; floats are cut towards zero.
            pub fn to_i128(&self) -> Vec<i128> {
                match self {
                    $(Self::$name(v) => v.iter().map(|&x| $domain::to_i128(x)).collect(),)*
                }
            }
        }
    };
}

/// Conversions of floats.
mod float {
    pub(super) fn to_f64(x: impl Into<f64>) -> f64 {
        x.into()
    }
    pub(super) fn to_i128(x: impl Into<f64>) -> i128 {
        x.into() as i128
    }
    pub(super) fn is_same<T: Into<f64>>(x: T, y: T) -> bool {
        x.into().to_bits() == y.into().to_bits()
    }
}

/// Conversions of integers and booleans.
mod int {
    pub(super) fn to_f64(x: impl Into<i128>) -> f64 {
        x.into() as f64
    }
    pub(super) fn to_i128(x: impl Into<i128>) -> i128 {
        x.into()
    }
    pub(super) fn is_same<T: PartialEq>(x: T, y: T) -> bool {
        x == y
    }
}

elem_types! {
    Bool bool, "bool", 9, int;
    U8 u8, "u8", 2, int;
    U16 u16, "u16", 4, int;
    U32 u32, "u32", 12, int;
    U64 u64, "u64", 13, int;
    I8 i8, "i8", 3, int;
    I16 i16, "i16", 5, int;
    I32 i32, "i32", 6, int;
    I64 i64, "i64", 7, int;
    F16 f16, "f16", 10, float;
    BF16 bf16, "bf16", 16, float;
    F32 f32, "f32", 1, float;
    F64 f64, "f64", 11, float;
}

impl Elem {
    /// Whether the elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Smallest and largest value of an integer type; 0 and 1 of a boolean. Floats give none.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        let (min, max) = match self {
            Self::Bool => (0, 1),
            Self::U8 => (0, u8::MAX as i128),
            Self::U16 => (0, u16::MAX as i128),
            Self::U32 => (0, u32::MAX as i128),
            Self::U64 => (0, u64::MAX as i128),
            Self::I8 => (i8::MIN as i128, i8::MAX as i128),
            Self::I16 => (i16::MIN as i128, i16::MAX as i128),
            Self::I32 => (i32::MIN as i128, i32::MAX as i128),
            Self::I64 => (i64::MIN as i128, i64::MAX as i128),
            _ => return None,
        };
        Some((min, max))
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Data {
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rounds to a float type (nearest, ties to even), cuts towards zero and saturates for an
    /// integer type, compares with zero for booleans.
    pub fn from_f64(elem: Elem, v: Vec<f64>) -> Self {
        let v = v.into_iter();
        match elem {
            Elem::Bool => Self::Bool(v.map(|x| x != 0.0).collect()),
            Elem::U8 => Self::U8(v.map(|x| x as u8).collect()),
            Elem::U16 => Self::U16(v.map(|x| x as u16).collect()),
            Elem::U32 => Self::U32(v.map(|x| x as u32).collect()),
            Elem::U64 => Self::U64(v.map(|x| x as u64).collect()),
            Elem::I8 => Self::I8(v.map(|x| x as i8).collect()),
            Elem::I16 => Self::I16(v.map(|x| x as i16).collect()),
            Elem::I32 => Self::I32(v.map(|x| x as i32).collect()),
            Elem::I64 => Self::I64(v.map(|x| x as i64).collect()),
            Elem::F16 => Self::F16(v.map(|x| f16::from_f32(to_odd(x))).collect()),
            Elem::BF16 => Self::BF16(v.map(|x| bf16::from_f32(to_odd(x))).collect()),
            Elem::F32 => Self::F32(v.map(|x| x as f32).collect()),
            Elem::F64 => Self::F64(v.collect()),
        }
    }

    /// Wraps around for an integer type, compares with zero for booleans, rounds for floats.
    pub fn from_i128(elem: Elem, v: Vec<i128>) -> Self {
        let v = v.into_iter();
        match elem {
            Elem::Bool => Self::Bool(v.map(|x| x != 0).collect()),
            Elem::U8 => Self::U8(v.map(|x| x as u8).collect()),
            Elem::U16 => Self::U16(v.map(|x| x as u16).collect()),
            Elem::U32 => Self::U32(v.map(|x| x as u32).collect()),
            Elem::U64 => Self::U64(v.map(|x| x as u64).collect()),
            Elem::I8 => Self::I8(v.map(|x| x as i8).collect()),
            Elem::I16 => Self::I16(v.map(|x| x as i16).collect()),
            Elem::I32 => Self::I32(v.map(|x| x as i32).collect()),
            Elem::I64 => Self::I64(v.map(|x| x as i64).collect()),
            _ => Self::from_f64(elem, v.map(|x| x as f64).collect()),
        }
    }
}

/// `x` cut to single precision, with the last digit set if anything was cut: rounding that to a type of
/// fewer digits gives what rounding `x` does, where the nearest f32 might have become a tie.
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() {
        return near;
    }
    let is_above = f64::from(near).abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(is_above)) | 1)
}

/// A dense row-major tensor of any [`Elem`].
///
/// Invariant: the number of elements is the product of the dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dims: Vec<usize>,
    data: Data,
}

impl Array {
    /// A tensor from its parts.
    ///
    /// # Panics
    /// If the number of elements is not the product of `dims`.
    pub fn new(dims: Vec<usize>, data: Data) -> Self {
        let num = dims.iter().product::<usize>();
        assert_eq!(data.len(), num, "elements of {dims:?}");
        Self { dims, data }
    }

    /// A tensor of f64 values rounded to `elem`, as [`Data::from_f64`] does.
    pub fn from_f64(elem: Elem, dims: Vec<usize>, v: Vec<f64>) -> Self {
        Self::new(dims, Data::from_f64(elem, v))
    }

    /// A vector of i64.
    pub fn vector(v: Vec<i64>) -> Self {
        Self::new(vec![v.len()], Data::I64(v))
    }

    /// A tensor without dimensions.
    pub fn scalar(data: Data) -> Self {
        Self::new(Vec::new(), data)
    }

    /// Whether dimensions, type and bits of the elements are those of `other`.
    pub fn is_same(&self, other: &Self) -> bool {
        self.dims == other.dims && self.data.is_same(&other.data)
    }

    /// Dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Element type.
    pub fn elem(&self) -> Elem {
        self.data.elem()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The same elements in other dimensions.
    ///
    /// # Panics
    /// If their product differs.
    #[must_use]
    pub fn reshaped(&self, dims: Vec<usize>) -> Self {
        Self::new(dims, self.data.clone())
    }

    /// As a tensor that programs and devices hold.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an element type that [`DType`] does not have.
    pub fn to_tensor(&self) -> Result<Tensor, Error> {
        let (dtype, bytes) = match &self.data {
            Data::F32(v) => (DType::F32, bytemuck::cast_slice::<_, u8>(v).to_vec()),
            Data::I32(v) => (DType::I32, bytemuck::cast_slice(v).to_vec()),
            Data::I64(v) => (DType::I64, bytemuck::cast_slice(v).to_vec()),
            Data::I8(v) => (DType::I8, bytemuck::cast_slice(v).to_vec()),
            Data::F16(v) => (DType::F16, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Data::BF16(v) => (
                DType::BF16,
                v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            ),
            other => {
                let known = "f32, f16, bf16, i8, i32 or i64 elements";
                return Err(Error::invalid(
                    "tensor",
                    "element type",
                    known,
                    other.elem(),
                ));
            }
        };
        Tensor::from_bytes(dtype, self.dims.clone(), bytes)
            .map_err(|e| Error::invalid("tensor", "size", "bytes of its dimensions", e))
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.elem(), self.dims)
    }
}
