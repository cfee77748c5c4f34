//! Matrix products with one accumulation order per output element.
//!
//! `C = act(A B + bias) + residual`, row-major, with `B` packed in panels of sixteen columns and
//! blocks of 256 rows. Each element of `C` is one chain of fused multiply-adds in the order of `k`
//! from zero; a later block of `k` continues from the stored accumulator. The chain is the same
//! for every number of rows, position, tile shape, thread count and SIMD level, so a row's bits do
//! not depend on the rows beside it. Work is split over rows and columns, never over `k`.
//!
//! `B` may be stored in fewer bits: see [`WeightType`].
//!
//! Layout of packed `B [k, n]`: `[k / 256][n / 16][256][16]`, the last column panel padded with
//! zeros, the last row block shorter.

mod driver;
mod dynamic;
mod element;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod part;
mod portable;
#[cfg(test)]
mod tests;
mod tile;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod unroll;
mod view;
mod weights;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_int8;

pub use driver::{Epilogue, Start, gemm, gemm_packed, gemm_range};
pub use dynamic::DynamicB;
pub use pack::{pack_b, pack_b_transposed, packed_len};
pub use part::MOST_ROWS;
pub use tile::NR;
pub use view::{AView, Axis};
pub use weights::{AnyB, BView, PackedB, Panels, Right, WeightType};
