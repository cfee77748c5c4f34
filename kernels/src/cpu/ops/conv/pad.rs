//! Images with their padding around them.

use lazybatch_graph::{Node, Op, Program};

use super::{Filters, Geometry};
use crate::cpu::arena::Extent;
use crate::cpu::buffers::Buf;
use crate::cpu::exec::Env;
use crate::cpu::pool::Shards;

/// What a convolution takes while it runs.
pub fn temporaries(program: &Program, node: &Node) -> Extent {
    let Op::Conv2d { window, groups, .. } = &node.op else {
        return Extent::default();
    };
    let ty = &program.value(node.inputs[0]).ty;
    let dims = ty.fixed_dims();
    let ([top, left, bottom, right], [c, h, w]) = (window.pad, [dims[0], dims[1], dims[2]]);
    let filters = program.value(node.inputs[1]).ty.fixed_dims();
    let is_depthwise = Filters::form(&filters, *groups).is_ok_and(|form| form.is_depthwise());
    if window.pad == [0; 4] || is_depthwise {
        return Extent::default();
    }
    Extent::piece(ty, (h + top + bottom) * (w + left + right) * c)
}

/// `x` with zeros around each image.
pub fn padded(env: &mut Env<'_>, g: &Geometry, x: &[f32]) -> Buf {
    let ([c, h, w], [top, left, bottom, right]) = (g.input, g.window.pad);
    let (lines, line) = (h + top + bottom, (w + left + right) * c);
    let rows = x.len() / (h * w * c) * lines;
    let mut out = env.temporary(rows * line);
    let shards = Shards::new(&mut out);
    env.split(rows, rows * line, |range| {
        for row in range {
            let (image, y) = (row / lines, row % lines);
            // SAFETY: each row is one item.
            let to = unsafe { shards.slice(row * line, line) };
            if y < top || y >= top + h {
                to.fill(0.0);
                continue;
            }
            let (before, to) = to.split_at_mut(left * c);
            let (inside, behind) = to.split_at_mut(w * c);
            before.fill(0.0);
            inside.copy_from_slice(&x[(image * h + y - top) * w * c..][..w * c]);
            behind.fill(0.0);
        }
    });
    out
}
