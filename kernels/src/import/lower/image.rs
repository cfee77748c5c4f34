//! Convolutions, pools and batch normalisation over fixed planes.
//!
//! One axis of positions counts as a plane of height 1. Axes that hold the sequence have no native
//! form.

use lazybatch_graph::onnx::{Elem, Node};
use lazybatch_graph::{Layout, Op, Part, Pool, Window};

use super::{Lower, Native, float, floats, int, ints, one, text};
use crate::import::items::{Act, Arg};

/// Channels, height and width of an image, and whether it has a height.
struct Plane {
    dims: [usize; 3],
    is_2d: bool,
}

impl Lower<'_> {
    pub(super) fn image(&mut self, node: &Node) -> Native {
        let Some(x) = self.act(node, 0).filter(|x| x.elem == Elem::F32) else {
            return Ok(None);
        };
        let Some(plane) = plane(&x) else {
            return Ok(None);
        };
        let sizes = &self.fact(node, 0)?.sizes;
        let Some(layout) = crate::import::layout::plain(sizes) else {
            return Ok(None);
        };
        let mut out: Vec<usize> = sizes[1..].iter().flatten().map(|s| s.k).collect();
        if out.len() == 1 {
            out.push(1);
        }
        if out.len() == 2 {
            out.insert(1, 1);
        }
        match node.op.as_str() {
            "Conv" => self.conv(node, &x, &plane, layout, out),
            "BatchNormalization" => self.batch_norm(node, &x, &plane),
            "MaxPool" | "AveragePool" => self.pool(node, &x, &plane, layout, out),
            "GlobalAveragePool" => {
                let x = self.items.shaped(&x, &plane.dims);
                let dims = vec![plane.dims[0]];
                let args = vec![Arg::Item(x.src)];
                let like = Act { layout, dims, ..x };
                one(self.emit(node, Op::GlobalAveragePool, args, like))
            }
            _ => {
                let window = Window {
                    kernel: [plane.dims[1], plane.dims[2]],
                    stride: [1, 1],
                    pad: [0; 4],
                };
                self.pooled(node, &x, &plane, layout, out, Pool::Max, window)
            }
        }
    }

    /// Window of a convolution or pool; none for dilations and rounding up.
    fn window(&self, node: &Node, kernel: [usize; 2], plane: &Plane) -> Option<Window> {
        let pair = |name: &str, default: usize| -> Option<[usize; 2]> {
            let v = match ints(node, name) {
                None => return Some([default; 2]),
                Some(v) => v.iter().map(|&n| usize::try_from(n).ok()),
            };
            match v.collect::<Option<Vec<_>>>()?[..] {
                [h, w] if plane.is_2d => Some([h, w]),
                [w] if !plane.is_2d => Some([1, w]),
                _ => None,
            }
        };
        if pair("dilations", 1)? != [1, 1] || int(node, "ceil_mode", 0) != 0 {
            return None;
        }
        // Windows far larger than their plane are no business of native kernels.
        let most = |side: usize| plane.dims[side + 1].max(16).saturating_mul(4);
        if (0..2).any(|s| kernel[s] > most(s)) {
            return None;
        }
        let stride = pair("strides", 1)?;
        if stride.contains(&0) {
            return None;
        }
        let pad = match text(node, "auto_pad") {
            "" | "NOTSET" => {
                let v: Option<Vec<usize>> = ints(node, "pads")
                    .unwrap_or(&[])
                    .iter()
                    .map(|&n| usize::try_from(n).ok())
                    .collect();
                match v?[..] {
                    [] => [0; 4],
                    [t, l, b, r] if plane.is_2d => [t, l, b, r],
                    [l, r] if !plane.is_2d => [0, l, 0, r],
                    _ => return None,
                }
            }
            "VALID" => [0; 4],
            mode @ ("SAME_UPPER" | "SAME_LOWER") => {
                let mut pad = [0; 4];
                for side in 0..2 {
                    let n = plane.dims[side + 1];
                    let covered = (n.div_ceil(stride[side]) - 1) * stride[side] + kernel[side];
                    let total = covered.saturating_sub(n);
                    let less = total / 2;
                    let (before, behind) = if mode == "SAME_UPPER" {
                        (less, total - less)
                    } else {
                        (total - less, less)
                    };
                    pad[side] = before;
                    pad[side + 2] = behind;
                }
                pad
            }
            _ => return None,
        };
        let fits = (0..2).all(|s| pad[s].max(pad[s + 2]) <= most(s));
        fits.then_some(Window {
            kernel,
            stride,
            pad,
        })
    }

    fn conv(
        &mut self,
        node: &Node,
        x: &Act,
        plane: &Plane,
        layout: Layout,
        out: Vec<usize>,
    ) -> Native {
        let Some(w) = self.constant(node, 1) else {
            return Ok(None);
        };
        let [m, per_group, kh, kw] = match (w.dims(), plane.is_2d) {
            ([m, c, kh, kw], true) => [*m, *c, *kh, *kw],
            ([m, c, kw], false) => [*m, *c, 1, *kw],
            _ => return Ok(None),
        };
        let Some(window) = self.window(node, [kh, kw], plane) else {
            return Ok(None);
        };
        let weight = self.weight(node, 1, "", &[m, per_group, kh, kw], || floats(&w));
        let mut args = vec![weight];
        let bias = !self.absent(node, 2);
        if bias {
            let Some(b) = self.constant(node, 2).filter(|b| b.len() == m) else {
                return Ok(None);
            };
            args.push(self.weight(node, 2, "", &[m], || floats(&b)));
        }
        let x = self.items.shaped(x, &plane.dims);
        args.insert(0, Arg::Item(x.src));
        let op = Op::Conv2d {
            window,
            groups: int(node, "group", 1).max(1) as usize,
            bias,
            residual: false,
            act: None,
        };
        let like = Act {
            layout,
            dims: out,
            ..x
        };
        one(self.emit(node, op, args, like))
    }

    fn batch_norm(&mut self, node: &Node, x: &Act, plane: &Plane) -> Native {
        let wanted = node.outputs.iter().filter(|o| !o.is_empty()).count();
        let c = plane.dims[0];
        if int(node, "training_mode", 0) != 0 || wanted != 1 {
            return Ok(None);
        }
        let mut args = Vec::new();
        for i in 1..5 {
            let Some(v) = self.constant(node, i).filter(|v| v.len() == c) else {
                return Ok(None);
            };
            args.push(self.weight(node, i, "", &[c], || floats(&v)));
        }
        let x = self.items.shaped(x, &plane.dims);
        args.insert(0, Arg::Item(x.src));
        let eps = float(node, "epsilon", 1e-5);
        one(self.emit(node, Op::BatchNorm { eps }, args, x))
    }

    fn pool(
        &mut self,
        node: &Node,
        x: &Act,
        plane: &Plane,
        layout: Layout,
        out: Vec<usize>,
    ) -> Native {
        let wanted = node.outputs.iter().filter(|o| !o.is_empty()).count();
        let kernel = match ints(node, "kernel_shape") {
            Some([h, w]) if plane.is_2d => [*h as usize, *w as usize],
            Some([w]) if !plane.is_2d => [1, *w as usize],
            _ => return Ok(None),
        };
        let Some(window) = self.window(node, kernel, plane).filter(|_| wanted == 1) else {
            return Ok(None);
        };
        let pool = if node.op == "MaxPool" {
            Pool::Max
        } else if int(node, "count_include_pad", 0) == 0 || window.pad == [0; 4] {
            Pool::Average
        } else {
            return Ok(None);
        };
        self.pooled(node, x, plane, layout, out, pool, window)
    }

    fn pooled(
        &mut self,
        node: &Node,
        x: &Act,
        plane: &Plane,
        layout: Layout,
        out: Vec<usize>,
        pool: Pool,
        window: Window,
    ) -> Native {
        let in_padding = (0..4).any(|side| window.pad[side] >= window.kernel[side % 2]);
        let fits = window.output(plane.dims[1], plane.dims[2]) == Some([out[1], out[2]]);
        if in_padding || !fits {
            return Ok(None);
        }
        let x = self.items.shaped(x, &plane.dims);
        let args = vec![Arg::Item(x.src)];
        let like = Act {
            layout,
            dims: out,
            ..x
        };
        one(self.emit(node, Op::Pool2d { pool, window }, args, like))
    }
}

/// `x` as an image, if it is one: batch, channels, and one or two fixed axes (or none, for a
/// normalisation).
fn plane(x: &Act) -> Option<Plane> {
    let n = |axis: &[Part]| {
        let plain = axis.iter().all(|p| matches!(p, Part::Fixed(_)));
        plain.then(|| crate::import::layout::size(axis).k)
    };
    let axes: Vec<&[Part]> = x.layout.0.iter().map(Vec::as_slice).collect();
    let (dims, is_2d) = match axes[..] {
        [_, c, h, w] => ([n(c)?, n(h)?, n(w)?], true),
        [_, c, w] => ([n(c)?, 1, n(w)?], false),
        [_, c] => ([n(c)?, 1, 1], false),
        _ => return None,
    };
    let lead = axes[0]
        .iter()
        .all(|p| !matches!(p, Part::Fixed(n) if *n != 1));
    lead.then_some(Plane { dims, is_2d })
}
