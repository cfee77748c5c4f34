//! Attention within members of packed rows: encoders and prefill.
//!
//! Source: Vaswani et al. 2017; the running maximum of the softmax as in Milakov and Gimelshein
//! 2018. Keys come in tiles of 32 from a member's first row on, whatever else is in the launch.

use lazybatch_graph::{Heads, Op, Seen};

use super::{Kernels, Source, Takes, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "attention.cu",
    text: include_str!("../../cuda/attention.cu"),
    kernels: &[
        "attention_128",
        "attention_256",
        "attention_32",
        "attention_64",
        "attention_terms_128",
        "attention_terms_256",
        "attention_terms_32",
        "attention_terms_64",
    ],
    takes: |_, node| match node.op {
        Op::Attention { heads, .. } => takes_heads(heads, MOST_DIM),
        _ => Takes::No,
    },
};

/// Whether heads have at most so many features.
pub(super) fn takes_heads(heads: Heads, most: usize) -> Takes {
    match heads.dim {
        dim if dim > 0 && dim <= most => Takes::Yes,
        dim => Takes::Not(format!("heads of 1 to {most} features, got {dim}")),
    }
}

/// Most features of a head.
const MOST_DIM: usize = 256;

/// What is added to scores by the distance of a key from its query.
#[derive(Clone, Copy, Debug)]
pub struct Bias {
    /// `[query, columns]`; distance 0 stands in the middle.
    pub table: DevicePtr,
    /// Distances: an odd number, one less than twice the most rows of a member or more.
    pub columns: usize,
}

/// Operands of [`Kernels::attention`].
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// `[rows, query * dim]`.
    pub q: DevicePtr,
    /// `[rows, kv * dim]`.
    pub k: DevicePtr,
    /// `[rows, kv * dim]`.
    pub v: DevicePtr,
    /// `[rows, query * dim]`.
    pub out: DevicePtr,
    /// Table of [`super::Member`]s.
    pub members: DevicePtr,
    /// Members.
    pub num_members: usize,
    /// Most rows (padding included) of a member.
    pub max_rows: usize,
    /// Heads and scale; at most 256 features each.
    pub heads: Heads,
    /// Which keys a query sees.
    pub seen: Seen,
    /// What scaled scores stay below.
    pub cap: Option<f32>,
    /// Added to them last.
    pub bias: Option<Bias>,
}

/// How far from its own position a query sees: kernels add these to positions of 32 bits.
const FAR: u32 = 1 << 30;

impl Attention {
    /// Blocks with so many queries of one head of one member; none if there is nothing to compute.
    pub(super) fn grid(
        &self,
        kernel: &'static str,
        queries: u32,
    ) -> Result<Option<Grid>, CudaError> {
        let Heads { query, kv, .. } = self.heads;
        let fits = kv > 0 && query.is_multiple_of(kv) && query <= 65_535;
        let got = format_args!("{query}, {kv}");
        expect(kernel, fits, "query heads divided by kv heads", got)?;
        if self.num_members == 0 || self.max_rows == 0 || query == 0 {
            return Ok(None);
        }
        let members = self.num_members;
        expect(kernel, members <= 65_535, "at most 65535 members", members)?;
        let rows = size(kernel, "rows of a member", self.max_rows)?;
        Ok(Some(Grid {
            blocks: [rows.div_ceil(queries), query as u32, members as u32],
            ..Grid::row(1, 128)
        }))
    }

    /// Query heads, key heads and features, as kernels take them; [`Self::grid`] checks the first.
    pub(super) const fn sizes(&self) -> (u32, u32, u32) {
        let Heads { query, kv, dim, .. } = self.heads;
        (query as u32, kv as u32, dim as u32)
    }

    /// Whether scores are more than scaled products.
    pub(super) const fn has_terms(&self) -> bool {
        self.cap.is_some() || self.bias.is_some()
    }

    /// The cap, the bias and its columns; zeros where there is none.
    pub(super) fn terms(&self, kernel: &'static str) -> Result<(f32, DevicePtr, u32), CudaError> {
        let cap = self.cap.unwrap_or(0.0);
        let Some(bias) = self.bias else {
            return Ok((cap, DevicePtr::NULL, 0));
        };
        let columns = size(kernel, "distances", bias.columns)?;
        let expected = "an odd number of distances";
        expect(kernel, columns % 2 == 1, expected, columns)?;
        Ok((cap, bias.table, columns))
    }

    /// Positions that a query sees before and behind its own.
    pub(super) fn reach(&self) -> (u32, u32) {
        let most = self
            .seen
            .window
            .map_or(FAR, |most| most.min(FAR as usize) as u32);
        (most, if self.seen.causal { 0 } else { most })
    }
}

impl Kernels {
    /// Scaled dot-product attention of each member's rows over its own rows. The padding rows of a
    /// member become zero.
    ///
    /// # Errors
    /// Heads that do not go together, sizes out of range, or what the driver answers.
    pub fn attention(&self, stream: &Stream, a: &Attention) -> Result<(), CudaError> {
        const KERNEL: &str = "attention";
        // The kernels without and with a cap or a bias, and the queries of a block.
        let (names, queries) = match a.heads.dim {
            1..=32 => (["attention_32", "attention_terms_32"], 16),
            33..=64 => (["attention_64", "attention_terms_64"], 16),
            65..=128 => (["attention_128", "attention_terms_128"], 16),
            129..=256 => (["attention_256", "attention_terms_256"], 8),
            dim => return expect(KERNEL, false, "heads of 1 to 256 features", dim),
        };
        let Some(grid) = a.grid(KERNEL, queries)? else {
            return Ok(());
        };
        let (query, kv, dim) = a.sizes();
        let (before, after) = a.reach();
        let (cap, bias, columns) = a.terms(KERNEL)?;
        launch!(
            self,
            stream,
            names[usize::from(a.has_terms())],
            grid,
            a.q,
            a.k,
            a.v,
            a.out,
            a.members,
            query,
            kv,
            dim,
            a.heads.scale,
            before,
            after,
            cap,
            bias,
            columns
        )
    }
}
