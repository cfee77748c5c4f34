//! MobileNetV2 1.0: inverted residual blocks of expansion, depthwise convolution and projection.
//!
//! Input `image [3, side, side]`, output `logits [classes]`.
//! Sources: Sandler et al., "MobileNetV2", 2018, table 2; tensor names and paddings of torchvision's
//! `mobilenet_v2`.

use super::Source;
use super::layers::{Around, Layers};
use crate::builder::Fused;
use crate::dtype::DType;
use crate::error::Error;
use crate::ids::ValueId;
use crate::op::{Act, Window};
use crate::program::Repeat;

/// Expansion, output channels, number and first stride of the blocks.
const BLOCKS: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];
/// Channels of the first convolution and of the last.
const ENDS: [usize; 2] = [32, 1280];

/// A convolution without bias and its batch norm.
struct Conv<'a> {
    node: &'a str,
    tensor: &'a str,
    norm: &'a str,
    channels: usize,
    window: Window,
    groups: usize,
    act: bool,
}

/// Builds it.
pub(super) fn build(source: &Source<'_>, l: &mut Layers<'_>) -> Result<(), Error> {
    let side = source.sizes.number_if("side", 32..=4096)?.unwrap_or(224);
    let classes = source.sizes.size_if("classes")?.unwrap_or(1000);
    let eps = source.options.positive_or("eps", 1e-5)?;
    let image = l.b.input("image", DType::F32, &[3, side, side]);
    let logits = l.b.output("logits", DType::F32, &[classes]);
    l.b.begin_block("main", Repeat::Once);
    let x = l.b.read_input("image", image);
    let stem = Conv {
        node: "stem",
        tensor: "features.0.0",
        norm: "features.0.1",
        channels: ENDS[0],
        window: Window::square(3, 2, 1),
        groups: 1,
        act: true,
    };
    let mut x = conv(l, x, &stem, eps);
    let mut at = 1;
    for (expand, channels, num, stride) in BLOCKS {
        for i in 0..num {
            let stride = if i == 0 { stride } else { 1 };
            x = inverted_residual(l, x, at, (expand, channels, stride), eps);
            at += 1;
        }
    }
    let last = Conv {
        node: "last",
        tensor: &format!("features.{at}.0"),
        norm: &format!("features.{at}.1"),
        channels: ENDS[1],
        window: Window::square(1, 1, 0),
        ..stem
    };
    x = conv(l, x, &last, eps);
    x = l.b.global_average_pool("pool", x);
    x = l.linear("classifier", "classifier.1", x, classes, Around::bias());
    l.b.emit("logits", logits, x);
    Ok(())
}

fn channels_of(l: &Layers<'_>, x: ValueId) -> usize {
    l.b.ty(x).fixed_dims().first().copied().unwrap_or(1)
}

fn inverted_residual(
    l: &mut Layers<'_>,
    x: ValueId,
    at: usize,
    (expand, channels, stride): (usize, usize, usize),
    eps: f32,
) -> ValueId {
    let before = channels_of(l, x);
    let wide = before * expand;
    let name = |part: &str| format!("features.{at}.conv.{part}");
    let node = |part: &str| format!("block{at}.{part}");
    let mut y = x;
    let mut part = 0;
    if expand > 1 {
        let up = Conv {
            node: &node("expand"),
            tensor: &name("0.0"),
            norm: &name("0.1"),
            channels: wide,
            window: Window::square(1, 1, 0),
            groups: 1,
            act: true,
        };
        y = conv(l, y, &up, eps);
        part = 1;
    }
    let depth = Conv {
        node: &node("depth"),
        tensor: &name(&format!("{part}.0")),
        norm: &name(&format!("{part}.1")),
        channels: wide,
        window: Window::square(3, stride, 1),
        groups: wide,
        act: true,
    };
    y = conv(l, y, &depth, eps);
    let down = Conv {
        node: &node("project"),
        tensor: &name(&format!("{}", part + 1)),
        norm: &name(&format!("{}", part + 2)),
        channels,
        window: Window::square(1, 1, 0),
        groups: 1,
        act: false,
    };
    y = conv(l, y, &down, eps);
    if stride == 1 && before == channels {
        y = l.b.add(&node("add"), y, x);
    }
    y
}

fn conv(l: &mut Layers<'_>, x: ValueId, c: &Conv<'_>, eps: f32) -> ValueId {
    let [kh, kw] = c.window.kernel;
    let dims = [c.channels, channels_of(l, x) / c.groups, kh, kw];
    let w = l.weight(&format!("{}.weight", c.tensor), &dims);
    let x =
        l.b.conv2d(c.node, x, w, c.window, c.groups, Fused::default());
    let norm = ["weight", "bias", "running_mean", "running_var"];
    let norm = norm.map(|part| l.weight(&format!("{}.{part}", c.norm), &[c.channels]));
    let x = l.b.batch_norm(&format!("{}.norm", c.node), x, norm, eps);
    match c.act {
        true => l.b.unary(&format!("{}.act", c.node), Act::Relu6, x),
        false => x,
    }
}
