//! Filters of a convolution in the form that its kernel takes.

use crate::cpu::buffers::Aligned;
use crate::cpu::gemm::{AnyB, PackedB, Right};

/// Packed filters.
#[derive(Debug)]
pub enum Filters {
    /// One matrix `[kh kw c, m]` per channel group.
    Products(Vec<PackedB>),
    /// `[kh kw, m]`: one filter of one channel each.
    Depthwise(Aligned),
}

impl Filters {
    /// Packs `w [m, c, kh, kw]` for `groups` channel groups.
    ///
    /// # Errors
    /// What `w` should be.
    pub fn pack(w: &[f32], dims: &[usize], groups: usize) -> Result<Self, String> {
        let [m, c, kh, kw] = dims[..] else {
            return Err(format!(
                "a convolution needs [m, c, kh, kw], this is {dims:?}"
            ));
        };
        if groups == 0 || m == 0 || !m.is_multiple_of(groups) {
            return Err(format!("{m} filters in {groups} groups"));
        }
        let taps = kh * kw;
        if c == 1 && groups == m && groups > 1 {
            let mut all = Aligned::zeroed(taps * m);
            for (i, filter) in w.chunks_exact(taps).enumerate() {
                for (tap, &x) in filter.iter().enumerate() {
                    all[tap * m + i] = x;
                }
            }
            return Ok(Self::Depthwise(all));
        }
        let each = m / groups;
        let mut matrix = vec![0.0; taps * c * each];
        let products = w.chunks_exact(each * c * taps).map(|filters| {
            for (i, filter) in filters.chunks_exact(c * taps).enumerate() {
                for (at, &x) in filter.iter().enumerate() {
                    let (channel, tap) = (at / taps, at % taps);
                    matrix[(tap * c + channel) * each + i] = x;
                }
            }
            PackedB::pack(&matrix, taps * c, each)
        });
        Ok(Self::Products(products.collect()))
    }

    /// One group's matrix for a product.
    ///
    /// # Panics
    /// Never: filters are packed as f32.
    pub fn right(group: &PackedB) -> Right<'_> {
        match group.view() {
            AnyB::Float(right) => right,
            AnyB::Dynamic(_) => unreachable!("filters are f32"),
        }
    }

    /// Whether they were packed for that many groups.
    pub fn is_for(&self, groups: usize) -> bool {
        match self {
            Self::Products(all) => all.len() == groups,
            Self::Depthwise(_) => groups > 1,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Products(all) => all.iter().map(PackedB::bytes).sum(),
            Self::Depthwise(taps) => taps.len() * 4,
        }
    }
}
