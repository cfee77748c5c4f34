//! ResNet-50, 224 x 224.
//!
//! Bottleneck blocks (3, 4, 6, 3) of width 64, 128, 256, 512, with the stride in the 3 x 3
//! convolution (the "v1.5" of MLPerf and torchvision): 25,557,032 parameters.
//! Source: He et al., "Deep residual learning for image recognition", table 1; torchvision
//! `resnet50` for the parameter count.

use lazybatch_graph::{Act, DType, Error, Pool, Program, ProgramBuilder, Repeat, ValueId, Window};

use super::parts::conv_bn;

/// Added to variances.
const EPS: f32 = 1e-5;

/// Builds it.
///
/// # Errors
/// A bug of the builder.
pub fn build() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("resnet50");
    let image = b.input("image", DType::F32, &[3, 224, 224]);
    let logits = b.output("logits", DType::F32, &[1000]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let mut x = conv_bn(
        &mut b,
        "stem",
        x,
        (64, Window::square(7, 2, 3), 1),
        EPS,
        None,
        Some(Act::Relu),
    );
    x = b.pool2d("stem.pool", x, Pool::Max, Window::square(3, 2, 1));
    for (stage, (blocks, width)) in [(3, 64), (4, 128), (6, 256), (3, 512)]
        .into_iter()
        .enumerate()
    {
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            x = b.scope(&format!("stage{stage}.{block}"), |b| {
                bottleneck(b, x, width, stride, block == 0)
            });
        }
    }
    x = b.global_average_pool("pool", x);
    x = b.dense("fc", x, 1000, None);
    b.emit("logits", logits, x);
    b.finish()
}

fn bottleneck(
    b: &mut ProgramBuilder,
    x: ValueId,
    width: usize,
    stride: usize,
    first: bool,
) -> ValueId {
    let one = |stride| Window::square(1, stride, 0);
    let relu = Some(Act::Relu);
    let skip = if first {
        conv_bn(b, "skip", x, (4 * width, one(stride), 1), EPS, None, None)
    } else {
        x
    };
    let h = conv_bn(b, "reduce", x, (width, one(1), 1), EPS, None, relu);
    let h = conv_bn(
        b,
        "conv",
        h,
        (width, Window::square(3, stride, 1), 1),
        EPS,
        None,
        relu,
    );
    conv_bn(
        b,
        "expand",
        h,
        (4 * width, one(1), 1),
        EPS,
        Some(skip),
        relu,
    )
}
