//! The first elements of a row in order.

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView, Outs};
use crate::cpu::pool::Shards;

/// Place of a row's element in the order: larger ones come first. No two are alike.
fn rank(x: &[f32], at: u32, largest: bool) -> u64 {
    let value = x[at as usize];
    let key = if value.is_nan() {
        0
    } else {
        // Adding zero makes both zeros the same. Negative numbers fall as their bits rise.
        let bits = (if largest { value } else { -value } + 0.0).to_bits();
        if bits >> 31 == 1 {
            !bits
        } else {
            bits | 1 << 31
        }
    };
    u64::from(key) << 32 | u64::from(!at)
}

/// Moves the entry at `at` of a heap down to its place; the first is the last in order.
fn sift(heap: &mut [u32], mut at: usize, rank: impl Fn(u32) -> u64) {
    loop {
        let mut child = 2 * at + 1;
        if child >= heap.len() {
            return;
        }
        if child + 1 < heap.len() && rank(heap[child + 1]) < rank(heap[child]) {
            child += 1;
        }
        if rank(heap[at]) <= rank(heap[child]) {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

/// Indices of the first `ids.len()` elements of a row, in order.
pub(super) fn choose(x: &[f32], largest: bool, ids: &mut [u32]) {
    let rank = |at: u32| rank(x, at, largest);
    let k = ids.len();
    for (i, id) in ids.iter_mut().enumerate() {
        *id = i as u32;
    }
    for at in (0..k / 2).rev() {
        sift(ids, at, rank);
    }
    for at in k as u32..x.len() as u32 {
        if rank(at) > rank(ids[0]) {
            ids[0] = at;
            sift(ids, 0, rank);
        }
    }
    for end in (1..k).rev() {
        ids.swap(0, end);
        sift(&mut ids[..end], 0, rank);
    }
}

/// The `k` largest or smallest elements of the last dimension, and their indices.
pub fn top_k(env: &mut Env<'_>, v: NodeView<'_>, k: usize, largest: bool) -> Outs {
    let (mut values, mut ids): (Buf, Buf) = (v.alloc(env, 0), v.alloc(env, 1));
    let (x, d) = (v.arg(0), v.last_dim(0));
    let rows = x.len() / d.max(1);
    let (to_values, to_ids) = (Shards::new(&mut values), Shards::new(&mut ids));
    env.split(rows, rows * d * 4, |range| {
        for row in range {
            // SAFETY: ranges of rows are disjoint.
            let (values, ids) = unsafe { (to_values.slice(row * k, k), to_ids.slice(row * k, k)) };
            let x = &x[row * d..][..d];
            let ids: &mut [u32] = bytemuck::cast_slice_mut(ids);
            choose(x, largest, ids);
            for (value, &id) in values.iter_mut().zip(&*ids) {
                *value = x[id as usize];
            }
        }
    });
    smallvec::smallvec![values, ids]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(x: &[f32], k: usize, largest: bool) -> Vec<u32> {
        let mut ids = vec![u32::MAX; k];
        choose(x, largest, &mut ids);
        ids
    }

    #[test]
    fn equals_come_by_index_and_what_is_no_number_last() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let x = [0.0, nan, 2.0, -0.0, -inf, 2.0, inf, -nan, 0.0];
        assert_eq!(chosen(&x, 9, true), [6, 2, 5, 0, 3, 8, 4, 1, 7]);
        assert_eq!(chosen(&x, 9, false), [4, 0, 3, 8, 2, 5, 6, 1, 7]);
        assert_eq!(chosen(&x, 4, true), [6, 2, 5, 0]);
        assert_eq!(chosen(&[nan, nan], 1, false), [0]);
    }

    #[test]
    fn fewer_are_the_first_of_all() {
        let x: Vec<f32> = (0..200u32).map(|i| (i * 37 % 64) as f32 - 20.0).collect();
        for largest in [true, false] {
            let mut all: Vec<u32> = (0..200).collect();
            all.sort_by(|&a, &b| {
                let (a, b) = (x[a as usize], x[b as usize]);
                if largest {
                    b.total_cmp(&a)
                } else {
                    a.total_cmp(&b)
                }
            });
            for k in [1, 2, 3, 64, 199, 200] {
                assert_eq!(chosen(&x, k, largest), all[..k], "{k} {largest}");
            }
        }
    }
}
