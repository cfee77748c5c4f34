//! Type rules of ops on images, NCHW.

use super::{Args, Types, one};
use crate::dtype::DType;
use crate::error::Error;
use crate::op::Window;
use crate::shape::TensorType;

/// Output height and width, or an error that shows the window.
fn output(args: &Args<'_>, window: &Window, h: usize, w: usize) -> Result<[usize; 2], Error> {
    let zero = window.kernel.contains(&0) || window.stride.contains(&0);
    match window.output(h, w) {
        Some(size) if !zero => Ok(size),
        _ => args.cx.fail(
            "window",
            format!("a kernel that fits {h}x{w} and a positive stride"),
            format!("{window:?}"),
        ),
    }
}

pub(super) fn conv2d(
    args: &Args<'_>,
    window: &Window,
    groups: usize,
    bias: bool,
    residual: bool,
) -> Result<Types, Error> {
    args.count(2 + usize::from(bias) + usize::from(residual))?;
    let (lead, [c, h, w]) = args.activation(0, "x")?;
    let [m, per_group, kh, kw] = args.weight(1, "w")?;
    if groups == 0 || !c.is_multiple_of(groups) || !m.is_multiple_of(groups) {
        return args.cx.fail(
            "groups",
            format!("a divisor of {c} and {m} channels"),
            groups,
        );
    }
    if per_group != c / groups || [kh, kw] != window.kernel {
        let expected = format!(
            "[{m}, {}, {}, {}]",
            c / groups,
            window.kernel[0],
            window.kernel[1]
        );
        return args.cx.fail("w", expected, args.types[1]);
    }
    let [oh, ow] = output(args, window, h, w)?;
    if bias {
        args.weight_of(2, "bias", [m])?;
    }
    if residual {
        let ty = TensorType::activation(DType::F32, lead, &[m, oh, ow]);
        args.exactly(2 + usize::from(bias), "residual", &ty)?;
    }
    one(lead, &[m, oh, ow])
}

pub(super) fn batch_norm(args: &Args<'_>) -> Result<Types, Error> {
    args.count(5)?;
    let (lead, [c, h, w]) = args.activation(0, "x")?;
    for (i, name) in ["gamma", "beta", "mean", "var"].into_iter().enumerate() {
        args.weight_of(i + 1, name, [c])?;
    }
    one(lead, &[c, h, w])
}

pub(super) fn pool2d(args: &Args<'_>, window: &Window) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [c, h, w]) = args.activation(0, "x")?;
    let [oh, ow] = output(args, window, h, w)?;
    // A window that lies in the padding entirely would have no largest element and no mean.
    if (0..4).any(|side| window.pad[side] >= window.kernel[side % 2]) {
        return args.cx.fail(
            "window",
            "padding below the kernel's size",
            format!("{window:?}"),
        );
    }
    one(lead, &[c, oh, ow])
}

pub(super) fn global_average_pool(args: &Args<'_>) -> Result<Types, Error> {
    args.count(1)?;
    let (lead, [c, _, _]) = args.activation(0, "x")?;
    one(lead, &[c])
}
