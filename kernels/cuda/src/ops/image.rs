//! Nodes of images, `[c, h, w]`.

use lazybatch_graph::{Act, Pool, Window};

use crate::context::DevicePtr;
use crate::exec::Walk;
use crate::kernels::conv::{Conv, is_direct};
use crate::kernels::{Epilogue, Weights};

/// Channels, height and width of operand 0.
fn image(w: &Walk<'_>) -> Result<[usize; 3], String> {
    let dims = w.ty(0).fixed_dims();
    dims[..]
        .try_into()
        .map_err(|_| format!("expected images [c, h, w], got {}", w.ty(0)))
}

/// Convolution.
pub fn conv2d(
    w: &mut Walk<'_>,
    window: Window,
    groups: usize,
    bias: bool,
    residual: bool,
    act: Option<Act>,
) -> Result<(), String> {
    let [channels, height, width] = image(w)?;
    let operand = |is: bool, i: usize| if is { w.arg(i) } else { DevicePtr::NULL };
    let filters = w.ty(1).fixed_dims()[0];
    let matrix = w.filters(1).filter(|_| !is_direct(filters, groups));
    let weights = matrix.unwrap_or_else(|| Weights::f32(w.arg(1)));
    let call = Conv {
        x: w.arg(0),
        weights,
        out: w.out(0),
        rows: w.num_rows(w.ty(0)),
        channels,
        size: [height, width],
        filters,
        window,
        groups,
        epilogue: Epilogue {
            bias: operand(bias, 2),
            act,
            residual: operand(residual, 2 + usize::from(bias)),
        },
    };
    w.issue(move |i| match matrix {
        Some(_) => i.kernels.conv2d_matrix(i.stream, &call),
        None => i.kernels.conv2d(i.stream, &call),
    });
    Ok(())
}

/// Inference-time batch normalisation.
pub fn batch_norm(w: &mut Walk<'_>, eps: f32) -> Result<(), String> {
    let [channels, height, width] = image(w)?;
    let (rows, plane) = (w.num_rows(w.ty(0)), height * width);
    let (x, out) = (w.arg(0), w.out(0));
    let stats = [1, 2, 3, 4].map(|i| w.arg(i));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.batch_norm(s, x, stats, eps, out, rows, channels, plane)
    });
    Ok(())
}

/// Pooling.
pub fn pool2d(w: &mut Walk<'_>, pool: Pool, window: Window) -> Result<(), String> {
    let [channels, height, width] = image(w)?;
    let planes = w.num_rows(w.ty(0)) * channels;
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.pool2d(s, pool, &window, x, out, planes, [height, width])
    });
    Ok(())
}

/// Mean over the image.
pub fn global_average_pool(w: &mut Walk<'_>) -> Result<(), String> {
    let [channels, height, width] = image(w)?;
    let (planes, plane) = (w.num_rows(w.ty(0)) * channels, height * width);
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| {
        i.kernels
            .global_average_pool(i.stream, x, out, planes, plane)
    });
    Ok(())
}
