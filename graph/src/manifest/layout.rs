//! Lays a tensor's elements out anew, whatever their dtype.

use crate::dtype::DType;
use crate::tensor::{Bytes, Tensor};

/// Side of the squares in which a matrix is turned, so that both sides stay in cache.
const SQUARE: usize = 32;

fn with(dtype: DType, dims: Vec<usize>, bytes: Vec<u8>) -> Tensor {
    Tensor {
        dtype,
        dims,
        data: Bytes::Owned(bytes.into()),
    }
}

/// A matrix `[rows, columns]` as `[columns, rows]`.
pub(super) fn transposed(tensor: &Tensor) -> Tensor {
    let [rows, columns] = tensor.dims[..] else {
        unreachable!("a matrix, by its checked shape")
    };
    let (from, size) = (tensor.data.as_slice(), tensor.dtype.size());
    let mut to = vec![0; from.len()];
    for top in (0..rows).step_by(SQUARE) {
        for left in (0..columns).step_by(SQUARE) {
            for r in top..rows.min(top + SQUARE) {
                for c in left..columns.min(left + SQUARE) {
                    let (a, b) = ((r * columns + c) * size, (c * rows + r) * size);
                    to[b..b + size].copy_from_slice(&from[a..a + size]);
                }
            }
        }
    }
    with(tensor.dtype, vec![columns, rows], to)
}

/// The tensor whose row `i` is row `order(i)` of `tensor`.
pub(super) fn reordered(tensor: &Tensor, order: impl Fn(usize) -> usize) -> Tensor {
    let rows = tensor.dims.first().copied().unwrap_or(1);
    let from = tensor.data.as_slice();
    let row = from.len() / rows.max(1);
    let mut to = Vec::with_capacity(from.len());
    for i in 0..rows {
        to.extend_from_slice(&from[order(i) * row..][..row]);
    }
    with(tensor.dtype, tensor.dims.clone(), to)
}

/// Rows `first..first + num`.
pub(super) fn rows(tensor: &Tensor, first: usize, num: usize) -> Tensor {
    let row = tensor.data.as_slice().len() / tensor.dims[0].max(1);
    let data = match &tensor.data {
        Bytes::Owned(bytes) => Bytes::Owned(bytes[first * row..(first + num) * row].into()),
        Bytes::Shared(bytes) => Bytes::Shared(bytes.slice(first * row..(first + num) * row)),
        Bytes::Mapped { map, offset, .. } => Bytes::Mapped {
            map: map.clone(),
            offset: offset + first * row,
            len: num * row,
        },
    };
    let mut dims = tensor.dims.clone();
    dims[0] = num;
    Tensor {
        dtype: tensor.dtype,
        dims,
        data,
    }
}

/// Where a row of heads of `dim` features goes so that rotary pairs `(i, i + dim / 2)` of each head
/// become `(2i, 2i + 1)`: row `at` of the new order is this row of the old one.
pub(super) fn interleaved(at: usize, dim: usize) -> usize {
    let (head, feature) = (at / dim, at % dim);
    head * dim + feature / 2 + feature % 2 * (dim / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize) -> Tensor {
        let data: Vec<f32> = (0..rows * columns).map(|n| n as f32).collect();
        Tensor::from_f32(&[rows, columns], &data)
    }

    #[test]
    fn a_matrix_turns() {
        for (rows, columns) in [(1, 1), (3, 70), (33, 32), (64, 5)] {
            let turned = transposed(&matrix(rows, columns));
            assert_eq!(turned.dims, [columns, rows]);
            let data = turned.to_f32();
            for r in 0..rows {
                for c in 0..columns {
                    assert_eq!(data[c * rows + r], (r * columns + c) as f32);
                }
            }
        }
        let halves = [half::f16::from_f32(1.0), half::f16::from_f32(2.0)];
        let bytes = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
        let narrow = Tensor::from_bytes(DType::F16, vec![1, 2], bytes).unwrap();
        let turned = transposed(&narrow);
        assert_eq!((turned.dtype, &turned.dims[..]), (DType::F16, &[2, 1][..]));
        assert_eq!(turned.to_f32(), [1.0, 2.0]);
    }

    #[test]
    fn halves_interleave_within_each_head() {
        let order: Vec<usize> = (0..12).map(|at| interleaved(at, 6)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let moved = reordered(&matrix(12, 2), |at| order[at]);
        assert_eq!(moved.to_f32()[..6], [0.0, 1.0, 6.0, 7.0, 2.0, 3.0]);
    }

    #[test]
    fn rows_are_cut_out() {
        let some = rows(&matrix(4, 3), 1, 2);
        assert_eq!(some.dims, [2, 3]);
        assert_eq!(some.to_f32(), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    }
}
