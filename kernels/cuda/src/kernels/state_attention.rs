//! Attention over paged sequence states: one query row against all that its sequence holds.
//!
//! Source: Vaswani et al. 2017 (scaled dot product), Bahdanau et al. 2015 (additive); pages as in
//! Kwon et al. 2023. Keys are taken in splits of [`SPLIT`] from the first on; the results of the
//! splits are joined in order. Whether blocks share the splits of a row among them changes no bits.

use lazybatch_graph::{Heads, Op, StateKind};

use super::attention::takes_heads;
use super::states::Paged;
use super::{Kernels, Source, Takes, expect, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "state_attention.cu",
    text: include_str!("../../cuda/state_attention.cu"),
    kernels: &[
        "additive_attention",
        "join_splits",
        "state_attention_128",
        "state_attention_256",
        "state_attention_32",
        "state_attention_512",
        "state_attention_64",
    ],
    takes: |program, node| match node.op {
        Op::StateAttention { heads, .. } => takes_heads(heads, MOST_DIM),
        Op::AdditiveAttention { values, .. } => match program.state(values).kind {
            StateKind::Sequence { features, .. } if features > MOST_VALUES => {
                let expected = format!("values of at most {MOST_VALUES} features");
                Takes::Not(format!("{expected}, got {features}"))
            }
            _ => Takes::Yes,
        },
        _ => Takes::No,
    },
};

/// Most features of a head.
const MOST_DIM: usize = 512;

/// Most features of the values of additive attention.
const MOST_VALUES: usize = 8192;

/// Keys of a split.
pub const SPLIT: usize = 128;

/// What the query rows look at.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Keys by sequence.
    pub keys: Paged,
    /// Values by sequence.
    pub values: Paged,
    /// `[rows]` i32: the sequence of each query row; null if row `r` is of sequence `r`.
    pub sequences: DevicePtr,
    /// `[sequences]` i32: positions held, both of keys and of values.
    pub lens: DevicePtr,
    /// The longest of them, or more.
    pub max_len: usize,
}

/// Bytes of workspace with which [`Kernels::state_attention`] spreads long sequences over blocks.
pub fn workspace_bytes(rows: usize, heads: Heads, max_len: usize) -> usize {
    rows * heads.query * max_len.div_ceil(SPLIT) * (heads.dim + 2) * 4
}

impl Kernels {
    /// `out[r]` = scaled dot-product attention of `q[r]` over the states of its sequence; `q`,
    /// `out: [rows, query * dim]`; keys and values have `kv * dim` features. A row whose sequence
    /// holds nothing becomes zero. `workspace` has [`workspace_bytes`], or is null: then one block
    /// does all of a row.
    ///
    /// # Errors
    /// Heads that do not go together, sizes out of range, or what the driver answers.
    pub fn state_attention(
        &self,
        stream: &Stream,
        q: DevicePtr,
        memory: &Memory,
        heads: Heads,
        out: DevicePtr,
        rows: usize,
        workspace: DevicePtr,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "state_attention";
        let Heads {
            query,
            kv,
            dim,
            scale,
        } = heads;
        let fits = kv > 0 && query.is_multiple_of(kv) && kv <= 65_535;
        expect(
            KERNEL,
            fits,
            "query heads divided by kv heads",
            format_args!("{query}, {kv}"),
        )?;
        let name = match dim {
            1..=32 => "state_attention_32",
            33..=64 => "state_attention_64",
            65..=128 => "state_attention_128",
            129..=256 => "state_attention_256",
            257..=512 => "state_attention_512",
            _ => return expect(KERNEL, false, "heads of 1 to 512 features", dim),
        };
        for (what, paged) in [("keys", memory.keys), ("values", memory.values)] {
            let got = format_args!("{what} of {}", paged.width);
            let expected = format!("states of {} features", kv * dim);
            expect(KERNEL, paged.width == kv * dim, &expected, got)?;
        }
        if rows == 0 || query == 0 {
            return Ok(());
        }
        let rows = size(KERNEL, "rows", rows)?;
        size(KERNEL, "positions", memory.max_len)?;
        let num_splits = if workspace.is_null() {
            1
        } else {
            memory.max_len.div_ceil(SPLIT).max(1)
        };
        expect(
            KERNEL,
            num_splits <= 65_535,
            "at most 65535 splits",
            num_splits,
        )?;
        let workspace = if num_splits == 1 {
            DevicePtr::NULL
        } else {
            workspace
        };
        let (splits, query, kv, dim) = (num_splits as u32, query as u32, kv as u32, dim as u32);
        let grid = Grid {
            blocks: [rows, kv, splits],
            ..Grid::row(1, 128)
        };
        let Memory {
            keys,
            values,
            sequences,
            lens,
            ..
        } = *memory;
        let (k_stride, v_stride) = (keys.max_pages, values.max_pages);
        launch!(
            self,
            stream,
            name,
            grid,
            q,
            keys.pool,
            keys.pages,
            k_stride,
            values.pool,
            values.pages,
            v_stride,
            sequences,
            lens,
            out,
            workspace,
            query,
            kv,
            dim,
            scale
        )?;
        if num_splits == 1 {
            return Ok(());
        }
        let grid = Grid {
            blocks: [rows, query, 1],
            ..Grid::row(1, dim.next_multiple_of(32))
        };
        launch!(
            self,
            stream,
            "join_splits",
            grid,
            workspace,
            sequences,
            lens,
            out,
            dim,
            splits
        )
    }

    /// Additive attention: scores `sum over i of v[i] * tanh(q[r, i] + key[i])`, softmax over the
    /// sequence of row `r`, sum of its values by these weights. `q: [rows, keys.width]`, `v:
    /// [keys.width]`, `out: [rows, values.width]`. A row whose sequence holds nothing becomes zero.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn additive_attention(
        &self,
        stream: &Stream,
        q: DevicePtr,
        v: DevicePtr,
        memory: &Memory,
        out: DevicePtr,
        rows: usize,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "additive_attention";
        let Memory {
            keys,
            values,
            sequences,
            lens,
            ..
        } = *memory;
        // The sums lie in shared memory.
        let most = 8192;
        expect(
            KERNEL,
            values.width <= most,
            "values of at most 8192 features",
            values.width,
        )?;
        if rows == 0 || values.width == 0 {
            return Ok(());
        }
        let rows = size(KERNEL, "rows", rows)?;
        let grid = Grid {
            shared_bytes: values.width as u32 * 4,
            ..Grid::row(rows, 128)
        };
        let (d, width) = (size(KERNEL, "features", keys.width)?, values.width as u32);
        let (k_stride, v_stride) = (keys.max_pages, values.max_pages);
        launch!(
            self,
            stream,
            KERNEL,
            grid,
            q,
            v,
            keys.pool,
            keys.pages,
            k_stride,
            d,
            values.pool,
            values.pages,
            v_stride,
            width,
            sequences,
            lens,
            out
        )
    }
}
