//! VGG-16, 224 x 224.
//!
//! Thirteen 3 x 3 convolutions in five stages and three fully connected layers: 138,357,544
//! parameters.
//! Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
//! recognition", table 1, configuration D; torchvision `vgg16` for the parameter count.

use lazybatch_graph::{Act, DType, Error, Fused, Pool, Program, ProgramBuilder, Repeat, Window};

/// Builds it.
///
/// # Errors
/// A bug of the builder.
pub fn build() -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("vgg16");
    let image = b.input("image", DType::F32, &[3, 224, 224]);
    let logits = b.output("logits", DType::F32, &[1000]);
    b.begin_block("main", Repeat::Once);
    let mut x = b.read_input("image", image);
    for (stage, (layers, channels)) in [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]
        .into_iter()
        .enumerate()
    {
        for layer in 0..layers {
            let name = format!("conv{stage}.{layer}");
            let bias = b.seeded_within(&format!("{name}.bias"), &[channels], 0.02);
            let fused = Fused::bias(bias).act(Act::Relu);
            x = b.conv(&name, x, channels, Window::square(3, 1, 1), 1, fused);
        }
        x = b.pool2d(
            &format!("pool{stage}"),
            x,
            Pool::Max,
            Window::square(2, 2, 0),
        );
    }
    x = b.reshape("flat", x, &[512 * 7 * 7]);
    x = b.dense("fc0", x, 4096, Some(Act::Relu));
    x = b.dense("fc1", x, 4096, Some(Act::Relu));
    x = b.dense("fc2", x, 1000, None);
    b.emit("logits", logits, x);
    b.finish()
}
