//! Layouts under reshapes and transpositions.
//!
//! Sizes of 1 hold no part, so that axes without one come and go freely.

use lazybatch_graph::{Layout, Part};

use super::trace::Size;

/// The layout without sizes of 1, neighbouring fixed parts of an axis put together.
pub(super) fn canonical(layout: &Layout) -> Layout {
    let axes = layout.0.iter().map(|axis| {
        let mut parts: Vec<Part> = Vec::new();
        for &part in axis {
            match (part, parts.last_mut()) {
                (Part::Fixed(1), _) => {}
                (Part::Fixed(n), Some(Part::Fixed(m))) => *m *= n,
                _ => parts.push(part),
            }
        }
        parts
    });
    Layout(axes.collect())
}

/// Size of an axis.
pub(super) fn size(axis: &[Part]) -> Size {
    axis.iter().fold(Size::ONE, |size, part| match part {
        Part::Batch => Size {
            b: size.b + 1,
            ..size
        },
        Part::Len => Size {
            s: size.s + 1,
            ..size
        },
        Part::Fixed(n) => Size {
            k: size.k.saturating_mul(*n),
            ..size
        },
    })
}

/// Whether the axes have these sizes.
pub(super) fn agrees(layout: &Layout, sizes: &[Option<Size>]) -> bool {
    layout.0.len() == sizes.len()
        && layout
            .0
            .iter()
            .zip(sizes)
            .all(|(axis, s)| Some(size(axis)) == *s)
}

/// The layout of axes that are a number, the batch or the sequence alone.
pub(super) fn plain(sizes: &[Option<Size>]) -> Option<Layout> {
    let axes = sizes.iter().map(|size| match (*size)? {
        Size { k: 0, .. } => None,
        Size { k: 1, b: 0, s: 0 } => Some(Vec::new()),
        Size { k, b: 0, s: 0 } => Some(vec![Part::Fixed(k)]),
        Size { k: 1, b: 1, s: 0 } => Some(vec![Part::Batch]),
        Size { k: 1, b: 0, s: 1 } => Some(vec![Part::Len]),
        _ => None,
    });
    axes.collect::<Option<_>>().map(Layout)
}

/// The same elements in the same order under axes of other sizes. Only fixed parts can be cut.
pub(super) fn reshape(layout: &Layout, sizes: &[Option<Size>]) -> Option<Layout> {
    let mut parts: Vec<Part> = canonical(layout).parts().collect();
    parts.reverse();
    let mut axes = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut open = (*size)?;
        let mut axis = Vec::new();
        while open != Size::ONE {
            let mut part = parts.pop()?;
            match part {
                Part::Batch => open.b = open.b.checked_sub(1)?,
                Part::Len => open.s = open.s.checked_sub(1)?,
                Part::Fixed(n) if open.k > 0 && open.k.is_multiple_of(n) => open.k /= n,
                Part::Fixed(n) if open.k > 1 && n.is_multiple_of(open.k) => {
                    parts.push(Part::Fixed(n / open.k));
                    part = Part::Fixed(open.k);
                    open.k = 1;
                }
                Part::Fixed(_) => return None,
            }
            axis.push(part);
        }
        axes.push(axis);
    }
    parts.is_empty().then_some(Layout(axes))
}

/// Axes in another order, and whether the fixed parts of a row keep theirs.
pub(super) fn permute(layout: &Layout, perm: &[usize]) -> Option<(Layout, bool)> {
    let has_fixed = |axis: &Vec<Part>| size(axis).k != 1;
    let moved: Option<Vec<_>> = perm.iter().map(|&i| layout.0.get(i).cloned()).collect();
    let order: Vec<usize> = perm
        .iter()
        .copied()
        .filter(|&i| layout.0.get(i).is_some_and(has_fixed))
        .collect();
    Some((Layout(moved?), order.is_sorted()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Part::{Batch, Fixed, Len};

    fn sizes(of: &[(usize, u32, u32)]) -> Vec<Option<Size>> {
        of.iter().map(|&(k, b, s)| Some(Size { k, b, s })).collect()
    }

    #[test]
    fn heads_are_split_off_and_put_back() {
        let x = Layout(vec![vec![Batch], vec![Len], vec![Fixed(24)]]);
        let split = reshape(&x, &sizes(&[(1, 1, 0), (1, 0, 1), (3, 0, 0), (8, 0, 0)])).unwrap();
        assert_eq!(
            split.0,
            [vec![Batch], vec![Len], vec![Fixed(3)], vec![Fixed(8)]]
        );
        let (heads, kept) = permute(&split, &[0, 2, 1, 3]).unwrap();
        assert!(kept, "the row keeps its order");
        let flat = reshape(&heads, &sizes(&[(3, 1, 0), (1, 0, 1), (8, 0, 0)])).unwrap();
        assert_eq!(flat.0, [vec![Batch, Fixed(3)], vec![Len], vec![Fixed(8)]]);
        let (back, kept) = permute(&heads, &[0, 2, 1, 3]).unwrap();
        assert!(kept);
        let whole = reshape(&back, &sizes(&[(1, 1, 0), (1, 0, 1), (24, 0, 0)])).unwrap();
        assert_eq!(canonical(&whole), x);
    }

    #[test]
    fn a_reshape_that_cuts_the_sequence_is_none() {
        let x = Layout(vec![vec![Batch], vec![Len], vec![Fixed(8)]]);
        assert_eq!(
            reshape(&x, &sizes(&[(1, 1, 0), (8, 0, 0), (1, 0, 1)])),
            None
        );
        assert_eq!(reshape(&x, &sizes(&[(2, 0, 1), (4, 1, 0)])), None);
        assert!(reshape(&x, &sizes(&[(1, 1, 1), (1, 0, 0), (8, 0, 0)])).is_some());
    }

    #[test]
    fn swapped_fixed_parts_are_told() {
        let x = Layout(vec![vec![Batch], vec![Fixed(4)], vec![Fixed(4)]]);
        assert!(!permute(&x, &[0, 2, 1]).unwrap().1);
        assert!(permute(&x, &[1, 0, 2]).unwrap().1);
    }
}
