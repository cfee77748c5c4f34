//! Weights in reduced precision.
//!
//! A packed weight is stored as f32, f16, bf16 or int8 and widened to f32 in registers, so the
//! chain of an output element is that of the rounded weights, in the order of `k`, whatever the
//! level and the number of rows. The rules:
//!
//! 1. f16 and bf16 round to nearest, ties to even; subnormal numbers are kept. A finite weight that
//!    would become infinite is refused. Infinity and NaN stay what they are.
//! 2. int8 has one scale per column: the largest magnitude over 127, at least the smallest normal
//!    f32. A weight becomes `w / scale`, rounded to nearest, ties to even. The chain runs over the
//!    integers; its end is multiplied by the scale, before the bias. Infinity and NaN are refused.
//! 3. int8-dynamic has int8 weights, and rows that are rounded likewise, with one scale per row. See
//!    [`dynamic`](super::dynamic).

use std::fmt;
use std::str::FromStr;

use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};

use super::dynamic::{self, DynamicB};
use super::pack::{pack_b, packed_len};
use super::tile::{DEPTH, NR};
use crate::cpu::buffers::Aligned;
use crate::cpu::stored::Stored;

/// Largest magnitude of an int8 weight or activation.
pub const INT8_MAX: f32 = 127.0;

/// How the weights of products are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// As they are.
    #[default]
    F32,
    /// Half precision.
    F16,
    /// The upper half of f32.
    Bf16,
    /// Integers with one scale per column; arithmetic in f32.
    Int8,
    /// As `Int8`, and rows are rounded to integers too, with one scale per row.
    Int8Dynamic,
}

impl WeightType {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Int8,
        Self::Int8Dynamic,
    ];

    /// Lower-case name, as the command line takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int8Dynamic => "int8-dynamic",
        }
    }

    /// Whether the ends of chains are multiplied by scales, so that no chain continues another.
    pub const fn is_scaled(self) -> bool {
        matches!(self, Self::Int8 | Self::Int8Dynamic)
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|w| w.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("expected one of {names}, got {name}")
        })
    }
}

/// A right-hand matrix in panels.
#[derive(Clone, Debug)]
pub struct PackedB {
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    weights: WeightType,
    /// Panels; for int8 the scales of all panels' columns behind them, for int8-dynamic also the
    /// sums of columns.
    data: Stored,
}

/// A borrowed right-hand matrix in panels.
#[derive(Clone, Copy, Debug)]
pub struct BView<'a> {
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Panels.
    pub data: &'a [f32],
}

/// A borrowed right-hand matrix of any weight type that is multiplied in f32.
#[derive(Clone, Copy, Debug)]
pub struct Right<'a> {
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Steps of the chains, at most `k`: what is behind is not multiplied.
    pub steps: usize,
    /// Elements.
    pub panels: Panels<'a>,
    /// Rows in front of those of `panels`, counted by `k`, where they are packed on their own: the
    /// chains begin with them.
    pub above: Option<BView<'a>>,
    /// What the ends of the chains are multiplied by, per column.
    pub scales: Option<&'a [f32]>,
}

/// Elements of a [`Right`] side.
#[derive(Clone, Copy, Debug)]
pub enum Panels<'a> {
    /// f32.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper half of f32.
    Bf16(&'a [bf16]),
    /// Integers.
    Int8(&'a [i8]),
}

impl<'a> From<BView<'a>> for Right<'a> {
    fn from(b: BView<'a>) -> Self {
        Self {
            k: b.k,
            n: b.n,
            steps: b.k,
            panels: Panels::F32(b.data),
            above: None,
            scales: None,
        }
    }
}

impl<'a> Right<'a> {
    /// `above` on top of `below`, if one product can have both: they are stored as f32, and a tile's
    /// chains go through all of it.
    pub fn stacked(above: &'a PackedB, below: &'a PackedB) -> Option<Self> {
        let (AnyB::Float(top), AnyB::Float(right)) = (above.view(), below.view()) else {
            return None;
        };
        let (Panels::F32(data), Panels::F32(_)) = (top.panels, right.panels) else {
            return None;
        };
        let (k, n) = (top.k, top.n);
        (n == right.n && k + right.k <= DEPTH).then_some(Self {
            k: k + right.k,
            steps: k + right.k,
            above: Some(BView { k, n, data }),
            ..right
        })
    }

    /// Rows that are packed on their own.
    pub fn num_above(&self) -> usize {
        self.above.map_or(0, |b| b.k)
    }
}

/// A packed weight, by how it is multiplied.
#[derive(Clone, Copy, Debug)]
pub enum AnyB<'a> {
    /// In f32.
    Float(Right<'a>),
    /// In integers.
    Dynamic(DynamicB<'a>),
}

impl PackedB {
    /// Packs a row-major `[k, n]` matrix as it is.
    ///
    /// # Panics
    /// If `w` does not have `k * n` elements.
    pub fn pack(w: &[f32], k: usize, n: usize) -> Self {
        Self::pack_as(WeightType::F32, w, k, n).expect("f32 holds every f32")
    }

    /// Packs a row-major `[k, n]` matrix, rounded to `weights`.
    ///
    /// # Errors
    /// An element that `weights` cannot hold, or too long a chain of integers.
    ///
    /// # Panics
    /// If `w` does not have `k * n` elements.
    pub fn pack_as(weights: WeightType, w: &[f32], k: usize, n: usize) -> Result<Self, String> {
        assert_eq!(w.len(), k * n, "elements of a [{k}, {n}] matrix");
        let mut data = Aligned::zeroed_whole(held(weights, k, n));
        match weights {
            WeightType::F32 => pack_b(w, n, k, n, &mut data),
            WeightType::F16 => pack_rounded(w, k, n, &mut data, |i, x| {
                let y = f16::from_f32(x);
                finite(weights, (i, x), y.is_infinite(), f16::MAX.to_f32()).map(|()| y.to_bits())
            })?,
            WeightType::Bf16 => pack_rounded(w, k, n, &mut data, |i, x| {
                let y = bf16::from_f32(x);
                finite(weights, (i, x), y.is_infinite(), bf16::MAX.to_f32()).map(|()| y.to_bits())
            })?,
            WeightType::Int8 => {
                let (q, scales) = quantise(w, n)?;
                let (panels, tail) = data.split_at_mut(packed_len(k, n) / 4);
                pack_b(&q, n, k, n, bytemuck::cast_slice_mut(panels));
                tail[..n].copy_from_slice(&scales);
            }
            WeightType::Int8Dynamic => {
                let (q, scales) = quantise(w, n)?;
                dynamic::pack(&q, &scales, k, n, &mut data)?;
            }
        }
        let packed = Self {
            k,
            n,
            weights,
            data: data.into(),
        };
        Ok(packed)
    }

    /// A matrix that was packed before: `data` is what [`Self::data`] gave.
    ///
    /// # Panics
    /// If `data` does not have [`Self::held`] elements.
    pub fn stored(weights: WeightType, k: usize, n: usize, data: Stored) -> Self {
        assert_eq!(
            data.len(),
            Self::held(weights, k, n),
            "a packed [{k}, {n}] matrix"
        );
        Self {
            k,
            n,
            weights,
            data,
        }
    }

    /// Elements of memory that hold a `[k, n]` matrix.
    pub fn held(weights: WeightType, k: usize, n: usize) -> usize {
        held(weights, k, n)
    }

    /// The memory that holds it.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// How it is stored.
    pub fn weights(&self) -> WeightType {
        self.weights
    }

    /// The matrix.
    pub fn view(&self) -> AnyB<'_> {
        let (k, n) = (self.k, self.n);
        let num = packed_len(k, n);
        let (panels, scales) = match self.weights {
            WeightType::F32 => (Panels::F32(&self.data), None),
            WeightType::F16 => (Panels::F16(self.halves().reinterpret_cast()), None),
            WeightType::Bf16 => (Panels::Bf16(self.halves().reinterpret_cast()), None),
            WeightType::Int8 => {
                let (panels, scales) = self.data.split_at(num / 4);
                (Panels::Int8(bytemuck::cast_slice(panels)), Some(scales))
            }
            WeightType::Int8Dynamic => return AnyB::Dynamic(DynamicB::of(&self.data, k, n)),
        };
        AnyB::Float(Right {
            k,
            n,
            steps: k,
            panels,
            above: None,
            scales,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() * 4
    }

    fn halves(&self) -> &[u16] {
        bytemuck::cast_slice(&self.data)
    }
}

/// f32 elements that hold a `[k, n]` matrix.
fn held(weights: WeightType, k: usize, n: usize) -> usize {
    let (num, columns) = (packed_len(k, n), n.div_ceil(NR) * NR);
    match weights {
        WeightType::F32 => num,
        WeightType::F16 | WeightType::Bf16 => num / 2,
        WeightType::Int8 => num / 4 + columns,
        WeightType::Int8Dynamic => dynamic::held(k, n),
    }
}

/// Packs the elements as 16 bits each.
fn pack_rounded(
    w: &[f32],
    k: usize,
    n: usize,
    data: &mut Aligned,
    round: impl Fn(usize, f32) -> Result<u16, String>,
) -> Result<(), String> {
    let rounded: Vec<u16> = (0..)
        .zip(w)
        .map(|(i, &x)| round(i, x))
        .collect::<Result<_, _>>()?;
    pack_b(&rounded, n, k, n, bytemuck::cast_slice_mut(data));
    Ok(())
}

/// Refuses a finite element that became infinite.
fn finite(
    weights: WeightType,
    (i, x): (usize, f32),
    infinite: bool,
    most: f32,
) -> Result<(), String> {
    if infinite && x.is_finite() {
        return Err(format!(
            "element {i}: expected a magnitude up to {most:e} for {weights}, got {x:e}"
        ));
    }
    Ok(())
}

/// The scale of elements whose largest magnitude is `most`.
pub fn int8_scale(most: f32) -> f32 {
    (most / INT8_MAX).max(f32::MIN_POSITIVE)
}

/// Integers and scales of the columns of a row-major matrix with `n` columns.
fn quantise(w: &[f32], n: usize) -> Result<(Vec<i8>, Vec<f32>), String> {
    if let Some(i) = w.iter().position(|x| !x.is_finite()) {
        let got = w[i];
        return Err(format!(
            "element {i}: expected a finite number for int8, got {got}"
        ));
    }
    let mut most = vec![0.0f32; n];
    for row in w.chunks_exact(n.max(1)) {
        for (m, x) in most.iter_mut().zip(row) {
            *m = m.max(x.abs());
        }
    }
    let scales: Vec<f32> = most.into_iter().map(int8_scale).collect();
    let q = |(i, x): (usize, &f32)| (x / scales[i % n]).round_ties_even() as i8;
    Ok((w.iter().enumerate().map(q).collect(), scales))
}
