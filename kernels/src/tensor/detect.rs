//! Boxes of detectors.

use lazybatch_graph::onnx::{Array, Data};

use super::{Call, OpEntry, Outputs, Types, op};

/// The ops.
pub const OPS: &[OpEntry] = &[op(
    "NonMaxSuppression",
    &[10, 11],
    Types::FLOATS,
    non_max_suppression,
)];

/// A box by its corners, `[y1, x1, y2, x2]`, the smaller first.
fn corners(b: &[f64], centred: bool) -> [f64; 4] {
    if centred {
        let (x, y, w, h) = (b[0], b[1], b[2], b[3]);
        [y - h / 2.0, x - w / 2.0, y + h / 2.0, x + w / 2.0]
    } else {
        [
            b[0].min(b[2]),
            b[1].min(b[3]),
            b[0].max(b[2]),
            b[1].max(b[3]),
        ]
    }
}

/// Area that two boxes share over the area that they cover.
fn overlap(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let area = |b: &[f64; 4]| (b[2] - b[0]).max(0.0) * (b[3] - b[1]).max(0.0);
    let shared = [
        a[0].max(b[0]),
        a[1].max(b[1]),
        a[2].min(b[2]),
        a[3].min(b[3]),
    ];
    let common = area(&shared);
    let total = area(a) + area(b) - common;
    if total > 0.0 { common / total } else { 0.0 }
}

/// Boxes `[n, b, 4]`, scores `[n, c, b]`; gives `[k, 3]`: image, class and box of those kept.
fn non_max_suppression(call: &Call) -> Outputs {
    let (boxes, scores) = (call.ranked(0, 3)?, call.ranked(1, 3)?);
    let (n, num) = (boxes.dims()[0], boxes.dims()[1]);
    let classes = scores.dims()[1];
    call.expect_dims(0, boxes, &[n, num, 4])?;
    call.expect_dims(1, scores, &[n, classes, num])?;
    let optional = |i: usize| call.opt(i).map(|_| call.scalar(i)).transpose();
    let most = optional(2)?.unwrap_or(0.0).max(0.0) as usize;
    let most_overlap = optional(3)?.unwrap_or(0.0);
    let least = optional(4)?;
    let centred = call.flag("center_point_box", false)?;
    call.work(&[
        n.max(1),
        classes.max(1),
        num.max(1),
        most.clamp(1, num.max(1)),
    ])?;
    let (b, s) = (boxes.data().to_f64(), scores.data().to_f64());
    let mut kept = Vec::new();
    for (image, class) in (0..n).flat_map(|i| (0..classes).map(move |c| (i, c))) {
        let score = |k: usize| s[(image * classes + class) * num + k];
        let place = |k: usize| corners(&b[(image * num + k) * 4..][..4], centred);
        let mut order: Vec<usize> = (0..num)
            .filter(|&k| least.is_none_or(|least| score(k) > least))
            .collect();
        order.sort_by(|&i, &j| score(j).total_cmp(&score(i)).then(i.cmp(&j)));
        let mut chosen: Vec<[f64; 4]> = Vec::new();
        for k in order {
            if chosen.len() >= most {
                break;
            }
            let own = place(k);
            if chosen
                .iter()
                .all(|other| overlap(other, &own) <= most_overlap)
            {
                chosen.push(own);
                kept.extend([image as i64, class as i64, k as i64]);
            }
        }
    }
    Ok(vec![Array::new(vec![kept.len() / 3, 3], Data::I64(kept))])
}
