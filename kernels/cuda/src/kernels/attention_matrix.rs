//! Attention within members of packed rows by matrix instructions (tensor cores).
//!
//! Source: as [`super::attention`], with the products of 16 queries at a time; the shape of a
//! warp's tiles as in Dao, "FlashAttention-2", 2023.

use lazybatch_graph::{Heads, Op};

use super::attention::Attention;
use super::{Kernels, Source, Stored, Takes, launch};
use crate::context::Stream;
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "attention_matrix.cu",
    text: include_str!("../../cuda/attention_matrix.cu"),
    kernels: &[
        "attention_matrix_bf16_128",
        "attention_matrix_bf16_32",
        "attention_matrix_bf16_64",
        "attention_matrix_f16_128",
        "attention_matrix_f16_32",
        "attention_matrix_f16_64",
        "attention_matrix_terms_bf16_128",
        "attention_matrix_terms_bf16_32",
        "attention_matrix_terms_bf16_64",
        "attention_matrix_terms_f16_128",
        "attention_matrix_terms_f16_32",
        "attention_matrix_terms_f16_64",
    ],
    // Beside the kernels that take all heads.
    takes: |_, node| match node.op {
        Op::Attention { heads, .. } => Takes::those(takes_heads(heads)),
        _ => Takes::No,
    },
};

/// Queries of a block.
const QUERIES: u32 = 64;

/// Whether these kernels take heads of that size: the sums of wider ones need more registers than a
/// thread has.
pub fn takes_heads(heads: Heads) -> bool {
    (1..=128).contains(&heads.dim)
}

impl Kernels {
    /// [`Self::attention`] with queries, keys, values and the shares of keys rounded to f16 or bf16
    /// (`rounded`); sums are f32. A row's bits depend on its member's rows alone; they are not those
    /// of [`Self::attention`].
    ///
    /// # Errors
    /// Heads that do not go together or are wider than 128, another type, sizes out of range, or what
    /// the driver answers.
    pub fn attention_matrix(
        &self,
        stream: &Stream,
        a: &Attention,
        rounded: Stored,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "attention_matrix";
        let refused = |expected: &str, got: String| CudaError::Argument {
            kernel: KERNEL,
            expected: expected.to_owned(),
            got,
        };
        let is_bf16 = match rounded {
            Stored::F16 => false,
            Stored::Bf16 => true,
            other => return Err(refused("f16 or bf16", format!("{other:?}"))),
        };
        let by_width = match (is_bf16, a.has_terms()) {
            (false, false) => [
                "attention_matrix_f16_32",
                "attention_matrix_f16_64",
                "attention_matrix_f16_128",
            ],
            (true, false) => [
                "attention_matrix_bf16_32",
                "attention_matrix_bf16_64",
                "attention_matrix_bf16_128",
            ],
            (false, true) => [
                "attention_matrix_terms_f16_32",
                "attention_matrix_terms_f16_64",
                "attention_matrix_terms_f16_128",
            ],
            (true, true) => [
                "attention_matrix_terms_bf16_32",
                "attention_matrix_terms_bf16_64",
                "attention_matrix_terms_bf16_128",
            ],
        };
        let name = match a.heads.dim {
            1..=32 => by_width[0],
            33..=64 => by_width[1],
            65..=128 => by_width[2],
            dim => return Err(refused("heads of 1 to 128 features", dim.to_string())),
        };
        let Some(grid) = a.grid(KERNEL, QUERIES)? else {
            return Ok(());
        };
        let (query, kv, dim) = a.sizes();
        let (before, after) = a.reach();
        let (cap, bias, columns) = a.terms(KERNEL)?;
        launch!(
            self,
            stream,
            name,
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
