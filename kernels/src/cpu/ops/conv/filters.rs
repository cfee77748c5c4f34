//! Filters of a convolution in the form that its kernel takes.

use crate::cpu::buffers::Aligned;
use crate::cpu::gemm::{AnyB, PackedB, Right, WeightType};
use crate::cpu::stored::Stored;

/// Packed filters.
#[derive(Debug)]
pub enum Filters {
    /// One matrix `[kh kw c, m]` per channel group.
    Products(Vec<PackedB>),
    /// `[kh kw, m]`: one filter of one channel each.
    Depthwise {
        /// The matrix.
        taps: Stored,
        /// As many as there are groups, and channels.
        filters: usize,
    },
}

/// Sizes of packed filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiltersForm {
    taps: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    is_depthwise: bool,
}

impl FiltersForm {
    /// Inner dimension and columns of a group's matrix.
    fn matrix(&self) -> (usize, usize) {
        (self.taps * self.channels, self.filters / self.groups)
    }

    /// Whether each filter is one of one channel.
    pub fn is_depthwise(&self) -> bool {
        self.is_depthwise
    }

    /// Elements of memory that hold them.
    pub fn held(&self) -> usize {
        if self.is_depthwise {
            return self.taps * self.filters;
        }
        let (k, n) = self.matrix();
        self.groups * PackedB::held(WeightType::F32, k, n)
    }
}

impl Filters {
    /// How filters `[m, c, kh, kw]` are packed for `groups` channel groups.
    ///
    /// # Errors
    /// What the dimensions should be.
    pub fn form(dims: &[usize], groups: usize) -> Result<FiltersForm, String> {
        let [m, c, kh, kw] = dims[..] else {
            return Err(format!(
                "a convolution needs [m, c, kh, kw], this is {dims:?}"
            ));
        };
        if groups == 0 || m == 0 || !m.is_multiple_of(groups) {
            return Err(format!("{m} filters in {groups} groups"));
        }
        let taps = kh * kw;
        Ok(FiltersForm {
            taps,
            channels: c,
            filters: m,
            groups,
            is_depthwise: c == 1 && groups == m && groups > 1,
        })
    }

    /// Packs `w [m, c, kh, kw]` for `groups` channel groups.
    ///
    /// # Errors
    /// What `w` should be.
    pub fn pack(w: &[f32], dims: &[usize], groups: usize) -> Result<Self, String> {
        let form = Self::form(dims, groups)?;
        let (m, c, taps) = (form.filters, form.channels, form.taps);
        if form.is_depthwise {
            let mut all = Aligned::zeroed(taps * m);
            for (i, filter) in w.chunks_exact(taps).enumerate() {
                for (tap, &x) in filter.iter().enumerate() {
                    all[tap * m + i] = x;
                }
            }
            return Ok(Self::Depthwise {
                taps: all.into(),
                filters: m,
            });
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

    /// Filters that were packed before: `data` is what [`Self::parts`] gave, one behind the other.
    ///
    /// # Panics
    /// If `data` does not have [`FiltersForm::held`] elements.
    pub fn stored(form: &FiltersForm, data: &Stored) -> Self {
        assert_eq!(data.len(), form.held(), "packed filters {form:?}");
        if form.is_depthwise {
            return Self::Depthwise {
                taps: data.clone(),
                filters: form.filters,
            };
        }
        let (k, n) = form.matrix();
        let each = PackedB::held(WeightType::F32, k, n);
        let group = |i| PackedB::stored(WeightType::F32, k, n, data.part(i * each, each));
        Self::Products((0..form.groups).map(group).collect())
    }

    /// The memory that holds them.
    pub fn parts(&self) -> Vec<&[f32]> {
        match self {
            Self::Products(all) => all.iter().map(PackedB::data).collect(),
            Self::Depthwise { taps, .. } => vec![taps],
        }
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
            Self::Depthwise { filters, .. } => *filters == groups,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Products(all) => all.iter().map(PackedB::bytes).sum(),
            Self::Depthwise { taps, .. } => taps.len() * 4,
        }
    }
}
