//! Positions of elements: strides, broadcasting, and the lists of source elements with which data
//! movement is written.

use lazybatch_graph::onnx::{Array, Data};

/// Row-major strides of `dims`, in elements.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i].max(1);
    }
    strides
}

/// For each element of a row-major tensor of `dims`: the sum of its coordinates times `strides`.
pub fn walk(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    if dims.contains(&0) {
        return Vec::new();
    }
    let mut list = vec![0];
    for (&n, &stride) in dims.iter().zip(strides) {
        let mut next = Vec::with_capacity(list.len() * n);
        for &base in &list {
            next.extend((0..n).map(|i| base + i * stride));
        }
        list = next;
    }
    list
}

/// The dimensions that all of `dims` are broadcast to, if they fit together.
pub fn broadcast(dims: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = dims.iter().map(|d| d.len()).max().unwrap_or(0);
    let mut common = vec![1; rank];
    for d in dims {
        for (c, &n) in common[rank - d.len()..].iter_mut().zip(*d) {
            match (*c, n) {
                (a, b) if a == b => {}
                (_, 1) => {}
                (1, b) => *c = b,
                _ => return None,
            }
        }
    }
    Some(common)
}

/// For each element of a tensor of `to`: the element of one of `from` that is broadcast there.
pub fn spread(from: &[usize], to: &[usize]) -> Vec<usize> {
    let own = strides(from);
    let lead = to.len() - from.len();
    let strides: Vec<usize> = (0..to.len())
        .map(|i| match i.checked_sub(lead) {
            Some(j) if from[j] != 1 => own[j],
            _ => 0,
        })
        .collect();
    walk(to, &strides)
}

/// `x` broadcast to `to`, which its dimensions fit.
pub fn expand(x: &Array, to: &[usize]) -> Data {
    if x.dims() == to {
        x.data().clone()
    } else {
        x.data().take(&spread(x.dims(), to))
    }
}

/// Elements before, along and behind `axis`: `[outer, n, inner]`.
pub fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (
        dims[..axis].iter().product(),
        dims[axis],
        dims[axis + 1..].iter().product(),
    )
}

/// `x` with its axes in the order `perm`.
pub fn transpose(x: &Array, perm: &[usize]) -> Array {
    let own = strides(x.dims());
    let dims: Vec<usize> = perm.iter().map(|&p| x.dims()[p]).collect();
    let strides: Vec<usize> = perm.iter().map(|&p| own[p]).collect();
    let data = x.data().take(&walk(&dims, &strides));
    Array::new(dims, data)
}

/// Calls `f` with the coordinates of each element of a tensor of `dims`, in order.
pub fn each_coord(dims: &[usize], mut f: impl FnMut(&[usize])) {
    if dims.contains(&0) {
        return;
    }
    let mut at = vec![0; dims.len()];
    loop {
        f(&at);
        let mut axis = dims.len();
        loop {
            let Some(next) = axis.checked_sub(1) else {
                return;
            };
            axis = next;
            at[axis] += 1;
            if at[axis] < dims[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(broadcast(&[&[3, 1], &[4]]), Some(vec![3, 4]));
        assert_eq!(broadcast(&[&[3, 2], &[3]]), None);
        assert_eq!(broadcast(&[&[0], &[1]]), Some(vec![0]));
        assert_eq!(spread(&[2, 1], &[2, 3]), [0, 0, 0, 1, 1, 1]);
        assert_eq!(spread(&[3], &[2, 3]), [0, 1, 2, 0, 1, 2]);
        assert_eq!(spread(&[], &[2]), [0, 0]);
    }

    #[test]
    fn coordinates_count_up() {
        let mut seen = Vec::new();
        each_coord(&[2, 2], |at| seen.push((at[0], at[1])));
        assert_eq!(seen, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        let mut num = 0;
        each_coord(&[], |_| num += 1);
        each_coord(&[3, 0], |_| num += 1);
        assert_eq!(num, 1);
    }
}
