//! How images lie in memory.
//!
//! A program speaks of images `[c, h, w]`. Kernels of images hold them channels last, `[h, w, c]`:
//! a convolution is then a product of rows (pixels) with packed weights like any other, and the
//! lanes of pooling and depthwise convolution are channels. Every value has one layout, given by
//! its op and known at load; an operand that a node wants in the other layout is turned for that
//! node alone. In a chain of convolutions only the first image and the last are turned.

use lazybatch_graph::{Op, Program, TensorType};
use smallvec::SmallVec;

use super::exec::{Env, split};
use super::pool::Shards;

/// Pixels that are turned at once.
const PIXELS: usize = 256;

/// Layouts of a program's values.
#[derive(Debug)]
pub struct Layouts {
    /// By value: whether its images lie channels last.
    last: Vec<bool>,
    /// By node: operands that it takes in the other layout, each value once.
    turned: Vec<SmallVec<[usize; 2]>>,
}

/// Channels and pixels of an image that has a layout at all: with one channel or one pixel both
/// are the same.
fn image(ty: &TensorType) -> Option<[usize; 2]> {
    match ty.fixed_dims()[..] {
        [c, h, w] if c > 1 && h * w > 1 => Some([c, h * w]),
        _ => None,
    }
}

impl Layouts {
    /// Chooses layouts: convolutions and pooling work channels last, elementwise ops and
    /// concatenation keep what comes, everything else takes images as the program has them.
    pub fn of(program: &Program) -> Self {
        let mut last = vec![false; program.values.len()];
        let mut turned = vec![SmallVec::new(); program.nodes.len()];
        for &id in program.blocks.iter().flat_map(|b| &b.nodes) {
            let node = program.node(id);
            let is_weight = |i: usize| program.as_weight(node.inputs[i]).is_some();
            let wants = match node.op {
                Op::Conv2d { .. }
                | Op::Pool2d { .. }
                | Op::BatchNorm { .. }
                | Op::GlobalAveragePool => true,
                Op::Unary(_) | Op::Scale(_) => last[node.inputs[0].index()],
                Op::Binary(_) | Op::Elementwise(_) if (0..node.inputs.len()).any(is_weight) => {
                    false
                }
                Op::Binary(_) | Op::Elementwise(_) | Op::Concat => {
                    node.inputs.iter().any(|v| last[v.index()])
                }
                _ => false,
            };
            for (i, &value) in node.inputs.iter().enumerate() {
                let ty = &program.value(value).ty;
                let is_new = !node.inputs[..i].contains(&value);
                if !is_weight(i) && is_new && image(ty).is_some() && last[value.index()] != wants {
                    turned[id.index()].push(i);
                }
            }
            for value in &node.outputs {
                last[value.index()] = wants && image(&program.value(*value).ty).is_some();
            }
        }
        Self { last, turned }
    }

    /// Operands that the node takes in the other layout.
    pub fn turned(&self, node: lazybatch_graph::NodeId) -> &[usize] {
        &self.turned[node.index()]
    }

    /// Whether the value's images lie channels last.
    pub fn is_last(&self, value: lazybatch_graph::ValueId) -> bool {
        self.last[value.index()]
    }
}

/// Writes the images of `x` to `out` in the other layout.
///
/// # Panics
/// If `ty` is not that of images.
pub fn turn(env: &mut Env<'_>, ty: &TensorType, is_last: bool, x: &[f32], out: &mut [f32]) {
    let [c, pixels] = image(ty).expect("only images are turned");
    let parts = pixels.div_ceil(PIXELS);
    let num = x.len() / (c * pixels) * parts;
    let parallel = env.parallel(8 * x.len());
    let shards = Shards::new(out);
    split(env.pool, parallel, num, |range| {
        for item in range {
            let base = item / parts * c * pixels;
            let first = item % parts * PIXELS;
            let num = PIXELS.min(pixels - first);
            let from = &x[base..][..c * pixels];
            if is_last {
                for ch in 0..c {
                    // SAFETY: each item writes its own pixels of every channel.
                    let to = unsafe { shards.slice(base + ch * pixels + first, num) };
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = from[(first + i) * c + ch];
                    }
                }
            } else {
                // SAFETY: as above.
                let to = unsafe { shards.slice(base + first * c, num * c) };
                for ch in 0..c {
                    let plane = &from[ch * pixels + first..][..num];
                    for (i, &v) in plane.iter().enumerate() {
                        to[i * c + ch] = v;
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazybatch_graph::{Act, DType, Pool, ProgramBuilder, Repeat, Window};

    #[test]
    fn only_the_ends_of_a_chain_are_turned() {
        let mut b = ProgramBuilder::new("chain");
        let image = b.input("image", DType::F32, &[3, 8, 8]);
        let y = b.output("y", DType::F32, &[5, 4, 4]);
        b.begin_block("main", Repeat::Once);
        let x = b.read_input("image", image);
        let fused = lazybatch_graph::Fused::default;
        let a = b.conv("a", x, 5, Window::square(3, 1, 1), 1, fused());
        let r = b.unary("relu", Act::Relu, a);
        let s = b.add("sum", r, a);
        let p = b.pool2d("pool", s, Pool::Max, Window::square(2, 2, 0));
        b.emit("y", y, p);
        let m = b.global_average_pool("mean", p);
        b.reshape("flat", m, &[5, 1]);
        let program = b.finish().expect("valid");
        let layouts = Layouts::of(&program);
        let turned: Vec<(&str, &[usize])> = (0..program.nodes.len())
            .map(|i| {
                let id = lazybatch_graph::NodeId::new(i);
                (program.node(id).name.as_str(), layouts.turned(id))
            })
            .filter(|(_, turned)| !turned.is_empty())
            .collect();
        assert_eq!(turned, [("a", &[0][..]), ("y", &[0][..])]);
    }
}
