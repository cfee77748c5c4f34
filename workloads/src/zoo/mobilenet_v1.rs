//! MobileNetV1 1.0, 224 x 224.
//!
//! A strided convolution and thirteen depthwise separable layers: 4,231,976 trainable parameters.
//! Strided layers pad below and on the right only, as the reference does.
//! Source: Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision
//! applications", table 1; Keras `MobileNet` for padding and the parameter count.

use lazybatch_graph::{Act, DType, Error, Program, ProgramBuilder, Repeat, Window};

use super::parts::conv_bn;

/// Added to variances.
const EPS: f32 = 1e-3;

/// Output channels and stride of the separable layers.
const LAYERS: [(usize, usize); 13] = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
];

fn window(stride: usize) -> Window {
    let pad = if stride == 1 { [1; 4] } else { [0, 0, 1, 1] };
    Window {
        kernel: [3; 2],
        stride: [stride; 2],
        pad,
    }
}

/// Builds it.
///
/// # Errors
/// A bug of the builder.
pub fn build() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("mobilenet-v1");
    let act = Some(Act::Relu6);
    let image = b.input("image", DType::F32, &[3, 224, 224]);
    let logits = b.output("logits", DType::F32, &[1000]);
    b.begin_block("main", Repeat::Once);
    let x = b.read_input("image", image);
    let mut x = conv_bn(&mut b, "stem", x, (32, window(2), 1), EPS, None, act);
    let mut channels = 32;
    for (i, (out, stride)) in LAYERS.into_iter().enumerate() {
        let depth = (channels, window(stride), channels);
        x = conv_bn(&mut b, &format!("depth{i}"), x, depth, EPS, None, act);
        let point = (out, Window::square(1, 1, 0), 1);
        x = conv_bn(&mut b, &format!("point{i}"), x, point, EPS, None, act);
        channels = out;
    }
    x = b.global_average_pool("pool", x);
    x = b.dense("fc", x, 1000, None);
    b.emit("logits", logits, x);
    b.finish()
}
