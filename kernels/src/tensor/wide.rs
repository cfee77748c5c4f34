//! The two domains that kernels compute in: f64 for floats, i128 for integers.

use lazybatch_graph::onnx::{Array, Data, Elem};

/// A number that products are summed in.
pub trait Num: Copy {
    /// Zero.
    const ZERO: Self;
    /// `self + a * b`; integers wrap around.
    #[must_use]
    fn add_mul(self, a: Self, b: Self) -> Self;
}

impl Num for f64 {
    const ZERO: Self = 0.0;
    fn add_mul(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl Num for i128 {
    const ZERO: Self = 0;
    fn add_mul(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// Elements in the domain of their type.
pub enum Wide {
    /// Floats.
    F(Vec<f64>),
    /// Integers and booleans.
    I(Vec<i128>),
}

impl Wide {
    /// The elements of `x`.
    pub fn of(x: &Array) -> Self {
        Self::of_data(x.data())
    }

    /// `data` in its domain.
    pub fn of_data(data: &Data) -> Self {
        if data.elem().is_float() {
            Self::F(data.to_f64())
        } else {
            Self::I(data.to_i128())
        }
    }

    /// Back to elements of type `elem`.
    pub fn into_data(self, elem: Elem) -> Data {
        match self {
            Self::F(v) => Data::from_f64(elem, v),
            Self::I(v) => Data::from_i128(elem, v),
        }
    }
}

/// Rounds to the nearest integer, ties to even, and keeps within the range of the integer type
/// `elem`; NaN becomes zero.
pub fn quantized(elem: Elem, v: f64) -> i128 {
    let (min, max) = elem.int_range().unwrap_or((i128::MIN, i128::MAX));
    (v.round_ties_even() as i128).clamp(min, max)
}
