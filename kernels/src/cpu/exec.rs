//! Runs the nodes of a segment in a frame.
//!
//! Nodes run one after another; inside a node, work is split over rows, columns, members or heads,
//! never over a sum. Kernels read values through a [`NodeView`] and write their results where the
//! plan of the block puts them (see [`crate::arena`]); effects on states, outputs and stop
//! flags go through [`Env`]. Running a node allocates nothing, but for custom and general nodes.

use lazybatch_graph::{Dim, Node, NodeId, Op, Repeat, TensorType};
use lazybatch_sla::RequestId;
use smallvec::SmallVec;

use super::buffers::{Arenas, Buf, Scratch};
use super::gemm::PackedB;
use super::layout::turn;
use super::level::Level;
use super::model::Model;
use super::open::{Emitted, Open};
use super::ops::{self, conv::Filters};
use super::pool::Pool;
use super::states::StatePools;
use crate::arena::BlockPlan;
use crate::error::Fault;
use crate::frames::{self, Mem};
use crate::host_nodes::{Faults, has_failed};
use crate::slots::Slots;

/// A frame whose values are in memory.
pub type Frame = frames::Frame<Arenas>;

/// Results of a node.
pub type Outs = SmallVec<[Buf; 2]>;

/// What kernels may change.
#[derive(Debug)]
pub struct Env<'a> {
    /// Threads.
    pub pool: &'a mut Pool,
    /// Floating-point operations from which a node is spread over threads.
    pub parallel_flops: usize,
    /// Instructions.
    pub level: Level,
    /// What nodes work in.
    pub scratch: &'a mut Scratch,
    /// Memory for the results of the node that runs, until it takes it.
    pub results: SmallVec<[Option<Buf>; 2]>,
    /// Fill memory with NaN before it is used, for tests.
    pub poison: bool,
    /// Open requests.
    pub slots: &'a mut Slots<Open>,
    /// Sequence states of the model.
    pub states: &'a mut StatePools,
    /// What was emitted, in order.
    pub emits: &'a mut Vec<Emitted>,
    /// Members whose loop has ended.
    pub stopped: &'a mut SmallVec<[RequestId; 4]>,
    /// Members that failed alone: from the next node on they idle.
    pub faults: &'a mut Faults,
}

impl Env<'_> {
    /// `len` elements with any content, until the node ends.
    pub fn temporary(&mut self, len: usize) -> Buf {
        let mut buf = self.scratch.take(len);
        if self.poison {
            buf.fill(f32::NAN);
        }
        buf
    }

    /// Fails a member alone, unless it has no effect anyway; its rows may have any content.
    pub fn fault(&mut self, mem: &Mem, why: impl FnOnce() -> Fault) {
        if !mem.idle && !self.has_failed(mem) {
            self.faults.push((mem.request, why()));
        }
    }

    /// Whether a member failed in this launch.
    pub fn has_failed(&self, mem: &Mem) -> bool {
        has_failed(self.faults, mem.request)
    }

    /// Whether that much work is worth waking other threads.
    pub fn parallel(&self, flops: usize) -> bool {
        self.pool.threads() > 1 && flops >= self.parallel_flops
    }

    /// Runs `f` on ranges that cover `0..num`, in parallel if it is worth it.
    pub fn split<F: Fn(std::ops::Range<usize>) + Sync>(&mut self, num: usize, flops: usize, f: F) {
        let parallel = self.parallel(flops);
        split(self.pool, parallel, num, f);
    }
}

/// Runs `f` on ranges that cover `0..num`, on the pool if `parallel`.
pub fn split<F: Fn(std::ops::Range<usize>) + Sync>(
    pool: &mut Pool,
    parallel: bool,
    num: usize,
    f: F,
) {
    let tasks = 4 * pool.threads();
    split_in(pool, parallel, num, tasks, f);
}

/// As [`split`], in at most `tasks` ranges.
pub fn split_in<F: Fn(std::ops::Range<usize>) + Sync>(
    pool: &mut Pool,
    parallel: bool,
    num: usize,
    tasks: usize,
    f: F,
) {
    if !parallel || num < 2 {
        f(0..num);
        return;
    }
    let tasks = tasks.min(num);
    pool.run(tasks, |t| f(num * t / tasks..num * (t + 1) / tasks));
}

/// A node with its operands.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    /// The model.
    pub model: &'a Model,
    /// The frame it runs in.
    pub frame: &'a Frame,
    /// The node's id.
    pub id: NodeId,
    /// The node.
    pub node: &'a Node,
    /// Repeat rule of its block.
    pub repeat: Repeat,
}

impl<'a> NodeView<'a> {
    /// Type of operand `i`.
    pub fn ty(&self, i: usize) -> &'a TensorType {
        &self.model.program.value(self.node.inputs[i]).ty
    }

    /// Type of result `i`.
    pub fn out_ty(&self, i: usize) -> &'a TensorType {
        &self.model.program.value(self.node.outputs[i]).ty
    }

    /// Last fixed dimension of operand `i`.
    pub fn last_dim(&self, i: usize) -> usize {
        self.ty(i).fixed_dims().last().copied().unwrap_or(1)
    }

    /// Elements of operand `i`.
    pub fn arg(&self, i: usize) -> &'a [f32] {
        let value = self.node.inputs[i];
        match self.model.program.as_weight(value) {
            Some(w) => self.model.weights[w.index()]
                .plain
                .as_ref()
                .expect("prepared at load"),
            None => self.frame.values[self.model.places.local[value.index()]]
                .as_ref()
                .expect("operands are alive"),
        }
    }

    /// Elements of an i32 operand.
    pub fn ids(&self, i: usize) -> &'a [i32] {
        bytemuck::cast_slice(self.arg(i))
    }

    /// Operand `i` as the right side of a product.
    pub fn right(&self, i: usize) -> &'a PackedB {
        let w = self
            .model
            .program
            .as_weight(self.node.inputs[i])
            .expect("checked at load");
        self.model.weights[w.index()]
            .right
            .as_ref()
            .expect("prepared at load")
    }

    /// Operand `i` as the filters of a convolution.
    pub fn filters(&self, i: usize) -> &'a Filters {
        let w = self
            .model
            .program
            .as_weight(self.node.inputs[i])
            .expect("checked at load");
        self.model.weights[w.index()]
            .filters
            .as_ref()
            .expect("prepared at load")
    }

    /// The memory for result `i`, with any content.
    ///
    /// # Panics
    /// If it was taken already: a result has one place.
    pub fn alloc(&self, env: &mut Env<'_>, i: usize) -> Buf {
        let mut buf = env.results[i].take().expect("a result is made once");
        if env.poison {
            buf.fill(f32::NAN);
        }
        buf
    }

    /// Position of the `i`-th row of a member.
    pub fn position(&self, mem: &Mem, i: usize) -> usize {
        if self.repeat.is_loop() { mem.step } else { i }
    }

    /// Members with first row and number of rows under a leading dimension.
    pub fn spans(&self, lead: Option<Dim>) -> impl Iterator<Item = (&'a Mem, usize, usize)> + 'a {
        self.frame.members.iter().map(move |m| {
            let (start, num) = m.span(lead);
            (m, start, num)
        })
    }
}

/// Runs nodes `first..end` of a block.
///
/// # Errors
/// The node and the cause; values of the frame are then incomplete.
pub fn run(
    env: &mut Env<'_>,
    model: &Model,
    frame: &mut Frame,
    block: usize,
    first: usize,
    end: usize,
) -> Result<(), String> {
    let program = &model.program;
    let plan = &model.places.blocks[block];
    // In a part of this launch.
    idle_failed(env, frame);
    for pos in first..end {
        let id = program.blocks[block].nodes[pos];
        let node = program.node(id);
        let repeat = program.blocks[block].repeat;
        // SAFETY: temporaries die with their node: results are in the arena, as is checked below.
        unsafe { env.scratch.reset() };
        let originals = turn_operands(env, model, frame, id);
        let reuse = plan.in_place[pos].and_then(|i| {
            let local = model.places.local[node.inputs[i].index()];
            frame.values[local].take()
        });
        env.results.clear();
        let locals = node.outputs.iter().map(|v| model.places.local[v.index()]);
        if reuse.is_none() {
            for local in locals.clone() {
                // SAFETY: the plan gives a result memory that no living value has.
                let buf = unsafe { frame.make(plan, local) };
                env.results.push(Some(buf));
            }
        }
        let failed = env.faults.len();
        let outs = match (&node.op, reuse) {
            (Op::Reshape { .. }, Some(buf)) => smallvec::smallvec![buf],
            (_, reuse) => {
                let view = NodeView {
                    model,
                    frame,
                    id,
                    node,
                    repeat,
                };
                run_node(env, view, reuse).map_err(|why| format!("node {}: {why}", node.name))?
            }
        };
        if env.faults.len() > failed {
            for (_, fault) in &mut env.faults[failed..] {
                fault.name(&node.name);
            }
            idle_failed(env, frame);
        }
        for (local, original) in originals {
            frame.values[local] = Some(original);
        }
        for (local, buf) in locals.zip(outs) {
            assert!(is_at(frame, plan, local, &buf), "a result of {}", node.name);
            frame.values[local] = Some(buf);
        }
        for &dead in &plan.dead_after[pos] {
            frame.values[dead] = None;
        }
    }
    frame.next = end as u32;
    Ok(())
}

/// Who failed has no effect from here on.
fn idle_failed(env: &Env<'_>, frame: &mut Frame) {
    if env.faults.is_empty() {
        return;
    }
    for mem in &mut frame.members {
        mem.idle |= env.has_failed(mem);
    }
}

/// Whether `buf` is the memory of a value.
fn is_at(frame: &Frame, plan: &BlockPlan, value: usize, buf: &Buf) -> bool {
    let (start, len) = plan.range(value, frame.rows, frame.samples);
    buf.len() == len && buf.as_ptr() == frame.arena().start().wrapping_add(start)
}

/// Puts copies in the layout that a node wants in the place of its operands; returns these with
/// their places.
fn turn_operands(
    env: &mut Env<'_>,
    model: &Model,
    frame: &mut Frame,
    id: NodeId,
) -> SmallVec<[(usize, Buf); 2]> {
    let mut originals = SmallVec::new();
    for &i in model.layouts.turned(id) {
        let value = model.program.node(id).inputs[i];
        let local = model.places.local[value.index()];
        let original = frame.values[local].take().expect("operands are alive");
        let mut copy = env.temporary(original.len());
        let ty = &model.program.value(value).ty;
        turn(env, ty, model.layouts.is_last(value), &original, &mut copy);
        frame.values[local] = Some(copy);
        originals.push((local, original));
    }
    originals
}

/// Runs a node; a convolution may put its result into `reuse`.
fn run_node(env: &mut Env<'_>, v: NodeView<'_>, reuse: Option<Buf>) -> Result<Outs, String> {
    let one = |buf: Buf| -> Outs { smallvec::smallvec![buf] };
    Ok(match &v.node.op {
        Op::Input { input, at } => one(ops::data::input(env, v, *input, *at)),
        Op::Linear {
            bias,
            act,
            residual,
        } => one(ops::linear::linear(env, v, *bias, *act, *residual)),
        Op::Binary(op) => one(ops::rowwise::binary(env, v, *op)),
        Op::Unary(act) => one(ops::rowwise::unary(env, v, *act)),
        Op::Elementwise(steps) => one(ops::elementwise::elementwise(env, v, steps)),
        Op::Scale(factor) => one(ops::rowwise::scale(env, v, *factor)),
        Op::LayerNorm { eps } => one(ops::rowwise::layer_norm(env, v, *eps)),
        Op::AddLayerNorm { eps } => ops::rowwise::add_layer_norm(env, v, *eps),
        Op::RmsNorm { eps } => one(ops::rowwise::rms_norm(env, v, *eps)),
        Op::Softmax => one(ops::rowwise::softmax(env, v)),
        Op::Embedding => one(ops::data::embedding(env, v)),
        Op::AddPosition => one(ops::data::add_position(env, v)),
        Op::Rope {
            heads,
            dim,
            theta,
            past,
        } => one(ops::rowwise::rope(env, v, *heads, *dim, *theta, *past)),
        Op::Attention {
            heads,
            seen,
            cap,
            bias,
        } => one(ops::attention::attention(
            env, v, *heads, *seen, *cap, *bias,
        )),
        Op::StateAttention {
            heads,
            keys,
            values,
        } => one(ops::attention::state_attention(
            env, v, *heads, *keys, *values,
        )),
        Op::AdditiveAttention { keys, values } => {
            one(ops::attention::additive_attention(env, v, *keys, *values))
        }
        Op::LstmCell { h, c, proj, ahead } => one(ops::linear::lstm(env, v, *h, *c, *proj, *ahead)),
        Op::GruCell { h, ahead } => one(ops::linear::gru(env, v, *h, *ahead)),
        Op::Conv2d {
            window,
            groups,
            bias,
            residual,
            act,
        } => one(ops::conv::conv2d(
            env, v, window, *groups, *bias, *residual, *act, reuse,
        )),
        Op::BatchNorm { eps } => one(ops::image::batch_norm(env, v, *eps)),
        Op::Pool2d { pool, window } => one(ops::image::pool2d(env, v, *pool, window)),
        Op::GlobalAveragePool => one(ops::image::global_average(env, v)),
        Op::Reshape { .. } => one(ops::data::copy(env, v)),
        Op::Concat => one(ops::data::concat(env, v)),
        Op::Slice { start, len } => one(ops::data::slice(env, v, *start, *len)),
        Op::Interaction => one(ops::rowwise::interaction(env, v)),
        Op::EmbeddingBag => one(ops::data::embedding_bag(env, v)),
        Op::MeanRows => one(ops::data::mean_rows(env, v)),
        Op::FirstRow => one(ops::data::one_row(env, v, |_| 0)),
        Op::LastRow => one(ops::data::one_row(env, v, |own| own - 1)),
        Op::ArgMax => one(ops::rowwise::arg_max(env, v)),
        Op::Sample => one(ops::sample::sample(env, v)),
        Op::TopK { k, largest } => ops::top_k::top_k(env, v, *k, *largest),
        Op::VecRead { state } => one(ops::state::vec_read(env, v, *state)),
        Op::VecWrite { state } => ops::state::vec_write(env, v, *state),
        Op::SeqRead { state, at } => one(ops::state::seq_read(env, v, *state, *at)),
        Op::SeqWrite { state, at } => ops::state::seq_write(env, v, *state, *at),
        Op::Emit { output } => ops::state::emit(env, v, *output),
        Op::Stop { token } => ops::state::stop(env, v, *token),
        Op::Tensor(_) | Op::Custom(_) => ops::host::host(env, v)?,
    })
}
