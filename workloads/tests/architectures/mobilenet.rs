//! MobileNetV2 on small pictures against convolutions as they are defined.

use lazybatch_graph::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::naive::Weights;
use crate::{answers, assert_close, program};

/// Table 2 of the paper: expansion, channels, repeats, first stride.
const BLOCKS: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

/// A picture: channels of height times width.
#[derive(Clone)]
struct Picture {
    side: usize,
    channels: Vec<Vec<f64>>,
}

/// A convolution with its norm: names, kernel side, stride, whether each channel is on its own.
struct Conv {
    name: String,
    norm: String,
    from: usize,
    to: usize,
    side: usize,
    stride: usize,
    depthwise: bool,
    act: bool,
}

/// All convolutions in order, and after which of them the input of an earlier one is added: pairs
/// of positions.
fn layers() -> (Vec<Conv>, Vec<(usize, usize)>) {
    let mut all = Vec::new();
    let mut sums = Vec::new();
    let mut add = |name: &str, norm: &str, [from, to, side, stride]: [usize; 4], act: bool| {
        all.push(Conv {
            name: name.into(),
            norm: norm.into(),
            from,
            to,
            side,
            stride,
            depthwise: side == 3 && from == to && from != 3,
            act,
        });
        all.len()
    };
    let mut num = add("features.0.0", "features.0.1", [3, 32, 3, 2], true);
    let (mut channels, mut at) = (32, 1);
    for [expand, out, repeats, first] in BLOCKS {
        for i in 0..repeats {
            let stride = if i == 0 { first } else { 1 };
            let wide = channels * expand;
            let name = |part: String| format!("features.{at}.conv.{part}");
            let mut part = 0;
            let before = num;
            if expand > 1 {
                add(
                    &name("0.0".into()),
                    &name("0.1".into()),
                    [channels, wide, 1, 1],
                    true,
                );
                part = 1;
            }
            let (conv, norm) = (name(format!("{part}.0")), name(format!("{part}.1")));
            add(&conv, &norm, [wide, wide, 3, stride], true);
            let (conv, norm) = (name(format!("{}", part + 1)), name(format!("{}", part + 2)));
            num = add(&conv, &norm, [wide, out, 1, 1], false);
            if stride == 1 && channels == out {
                sums.push((before, num));
            }
            (channels, at) = (out, at + 1);
        }
    }
    add("features.18.0", "features.18.1", [320, 1280, 1, 1], true);
    (all, sums)
}

fn convolved(w: &Weights, c: &Conv, x: &Picture) -> Picture {
    let kernel = w.flat(&format!("{}.weight", c.name));
    let [scale, shift, mean, var] = ["weight", "bias", "running_mean", "running_var"]
        .map(|part| w.flat(&format!("{}.{part}", c.norm)));
    let border = c.side / 2;
    let side = (x.side + 2 * border - c.side) / c.stride + 1;
    let inputs = if c.depthwise { 1 } else { c.from };
    let channel = |o: usize| -> Vec<f64> {
        let mut plane = vec![0.0; side * side];
        for input in 0..inputs {
            let from = &x.channels[if c.depthwise { o } else { input }];
            for (at, sum) in plane.iter_mut().enumerate() {
                for k in 0..c.side * c.side {
                    let row = (at / side * c.stride + k / c.side).wrapping_sub(border);
                    let column = (at % side * c.stride + k % c.side).wrapping_sub(border);
                    if row < x.side && column < x.side {
                        let weight = kernel[(o * inputs + input) * c.side * c.side + k];
                        *sum += weight * from[row * x.side + column];
                    }
                }
            }
        }
        let normed = |x: &f64| (x - mean[o]) / (var[o] + 1e-5).sqrt() * scale[o] + shift[o];
        let act = |x: f64| if c.act { x.clamp(0.0, 6.0) } else { x };
        plane.iter().map(|x| act(normed(x))).collect()
    };
    Picture {
        side,
        channels: (0..c.to).map(channel).collect(),
    }
}

fn expected(w: &Weights, picture: Picture) -> Vec<f64> {
    let (layers, sums) = layers();
    // What came out of the first n convolutions, sums included.
    let mut seen = vec![picture];
    for (i, conv) in layers.iter().enumerate() {
        let mut y = convolved(w, conv, &seen[i]);
        if let Some((before, _)) = sums.iter().find(|(_, after)| *after == i + 1) {
            for (y, x) in y.channels.iter_mut().zip(&seen[*before].channels) {
                y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
            }
        }
        seen.push(y);
    }
    let last = seen.pop().unwrap();
    let mean = |c: &Vec<f64>| c.iter().sum::<f64>() / c.len() as f64;
    let pooled = vec![last.channels.iter().map(mean).collect()];
    w.apply("classifier.1", &pooled).remove(0)
}

#[test]
fn logits_are_those_of_the_definition() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (side, classes) = (33, 7);
    let mut w = Weights::new(4);
    for c in layers().0 {
        let inputs = if c.depthwise { 1 } else { c.from };
        let bound = (6.0 / (inputs * c.side * c.side) as f32).sqrt();
        let dims = [c.to, inputs, c.side, c.side];
        w.within(format!("{}.weight", c.name), &dims, -bound, bound);
        w.norm(&c.norm, c.to);
        w.within(format!("{}.running_mean", c.norm), &[c.to], -0.3, 0.3);
        w.within(format!("{}.running_var", c.norm), &[c.to], 0.5, 1.5);
    }
    w.linear("classifier.1", classes, 1280);
    let text = format!(
        "format = 'lazybatch-model/1'\nname = 'm'\narchitecture = 'mobilenet-v2'\nweights = 'w'\n\
         [sizes]\nside = {side}\nclasses = {classes}\n"
    );
    let program = program(&text, &w);
    let pictures: Vec<Vec<f32>> = (0..3)
        .map(|_| {
            (0..3 * side * side)
                .map(|_| rng.random_range(-2.0..2.0))
                .collect()
        })
        .collect();
    let requests: Vec<Vec<Tensor>> = pictures
        .iter()
        .map(|p| vec![Tensor::from_f32(&[1, 3, side, side], p)])
        .collect();
    for (got, picture) in answers(&program, &requests).iter().zip(&pictures) {
        let channels = picture.chunks(side * side);
        let channels = channels.map(|c| c.iter().map(|&x| f64::from(x)).collect());
        let picture = Picture {
            side,
            channels: channels.collect(),
        };
        assert_close(&got[0], &expected(&w, picture), 1e-4, "logits");
    }
}
