//! A small classifier with every kind of layer that the larger ones have, for tests.

use lazybatch_graph::{Act, DType, Error, Pool, Program, ProgramBuilder, Repeat, Window};

use super::parts::conv_bn;

/// Added to variances.
const EPS: f32 = 1e-5;

/// Builds it.
///
/// # Errors
/// A bug of the builder.
pub fn build() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("cnn-tiny");
    let relu = Some(Act::Relu);
    let same = Window::square(3, 1, 1);
    let image = b.input("image", DType::F32, &[3, 16, 16]);
    let probabilities = b.output("probabilities", DType::F32, &[10]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let x = conv_bn(
        &mut b,
        "stem",
        x,
        (8, Window::square(3, 2, 1), 1),
        EPS,
        None,
        relu,
    );
    let h = conv_bn(
        &mut b,
        "depth",
        x,
        (8, same, 8),
        EPS,
        None,
        Some(Act::Relu6),
    );
    let x = conv_bn(
        &mut b,
        "point",
        h,
        (8, Window::square(1, 1, 0), 1),
        EPS,
        Some(x),
        relu,
    );
    let x = b.pool2d("pool", x, Pool::Max, Window::square(2, 2, 0));
    let short = conv_bn(
        &mut b,
        "short",
        x,
        (12, Window::square(1, 2, 0), 1),
        EPS,
        None,
        None,
    );
    let x = conv_bn(
        &mut b,
        "down",
        x,
        (12, Window::square(3, 2, 1), 1),
        EPS,
        Some(short),
        relu,
    );
    let x = b.global_average_pool("average", x);
    let x = b.dense("fc", x, 10, None);
    let x = b.softmax("softmax", x);
    b.emit("probabilities", probabilities, x);
    b.finish()
}
