//! Prints a program as stable text, for people (`lazybatch inspect`) and snapshots.
//!
//! One line per declaration, block, segment and node. A node's line shows its op, its operands
//! (activations by producer: `n3`, or `n3.1` for its second result; weights by name) with types,
//! its results' types, and behind the bar its costs and the bytes that live across the boundary in
//! front of it, which is what a merge at that cursor copies. Figures are per sample, or per
//! sequence position (`row`); `pair` is a row and a position it attends to. Zeros are left out.

use std::fmt::{self, Write as _};

use crate::cost::{NodeCost, node_cost};
use crate::ids::{BlockId, NodeId, ValueId};
use crate::liveness::{Boundary, Liveness};
use crate::op::{Act, At, Bin, Op, Pool};
use crate::program::{Def, Program, Repeat, StateKind};
use crate::segment::Segments;
use crate::shape::Dim;

/// The text of `program`, with segments if they are given.
pub fn dump(program: &Program, segments: Option<&Segments>) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_dump(&mut text, program, segments);
    text
}

fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn write_dump(f: &mut String, program: &Program, segments: Option<&Segments>) -> fmt::Result {
    writeln!(
        f,
        "program {}: {}, {}, {}",
        program.name,
        plural(program.nodes.len(), "node"),
        plural(program.blocks.len(), "block"),
        plural(program.num_parameters(), "parameter"),
    )?;
    declarations(f, program)?;
    let liveness = Liveness::of(program);
    for (k, block) in program.blocks.iter().enumerate() {
        let id = BlockId::new(k);
        writeln!(f, "block {id} {}: {}", block.name, block.repeat)?;
        for (position, &node) in block.nodes.iter().enumerate() {
            if let Some(segments) = segments {
                let starts = segments.block(id).iter().position(|s| s.start == position);
                if let Some(segment) = starts {
                    writeln!(f, "  segment {segment}")?;
                }
            }
            node_line(f, program, node, liveness.at(id, position))?;
        }
    }
    Ok(())
}

fn declarations(f: &mut String, program: &Program) -> fmt::Result {
    for (i, input) in program.inputs.iter().enumerate() {
        write!(f, "input in{i} {}: {}", input.name, input.ty)?;
        if let Some(max) = input.max_len {
            write!(f, ", len <= {max}")?;
        }
        if let Some(bound) = input.id_bound {
            write!(f, ", ids < {bound}")?;
        }
        if input.is_sampling {
            f.write_str(", how tokens are chosen")?;
        }
        writeln!(f)?;
    }
    for (i, output) in program.outputs.iter().enumerate() {
        writeln!(f, "output out{i} {}: {}", output.name, output.ty)?;
    }
    for carry in &program.carries {
        writeln!(f, "carry {} -> {}", carry.output, carry.input)?;
    }
    for (i, state) in program.states.iter().enumerate() {
        match &state.kind {
            StateKind::Vector { dims, init } => {
                writeln!(
                    f,
                    "state s{i} {}: {}{dims:?} = {init}",
                    state.name, state.dtype
                )?;
            }
            StateKind::Sequence { features, max_len } => {
                let dtype = state.dtype;
                writeln!(
                    f,
                    "state s{i} {}: {dtype}[len <= {max_len}, {features}]",
                    state.name
                )?;
            }
        }
    }
    Ok(())
}

fn node_line(f: &mut String, program: &Program, id: NodeId, live: &Boundary) -> fmt::Result {
    let node = program.node(id);
    write!(f, "  {id} {} = {} (", node.name, node.op)?;
    for (i, &value) in node.inputs.iter().enumerate() {
        let separator = if i > 0 { ", " } else { "" };
        write!(
            f,
            "{separator}{} {}",
            operand(program, value),
            program.value(value).ty
        )?;
    }
    f.write_char(')')?;
    for (i, &value) in node.outputs.iter().enumerate() {
        write!(
            f,
            "{} {}",
            if i > 0 { "," } else { " ->" },
            program.value(value).ty
        )?;
    }
    let figures = figures(&node_cost(program, id), live);
    if !figures.is_empty() {
        write!(f, " | {}", figures.join(", "))?;
    }
    writeln!(f)
}

fn operand(program: &Program, value: ValueId) -> String {
    match program.value(value).def {
        Def::Weight(w) => program.weight(w).name.clone(),
        Def::Node { node, output: 0 } => node.to_string(),
        Def::Node { node, output } => format!("{node}.{output}"),
    }
}

fn figures(cost: &NodeCost, live: &Boundary) -> Vec<String> {
    let row = if cost.per == Dim::Rows {
        "row"
    } else {
        "sample"
    };
    [
        ("flops ", cost.flops_per_row, "/", row),
        ("flops ", cost.flops_per_pair, "/", "pair"),
        ("weights ", cost.weight_bytes, " B", ""),
        ("moves ", cost.bytes_per_row, " B/", row),
        ("moves ", cost.bytes_per_pair, " B/", "pair"),
        ("live ", live.bytes_per_sample, " B/", "sample"),
        ("live ", live.bytes_per_row, " B/", "row"),
    ]
    .into_iter()
    .filter(|(_, n, _, _)| *n > 0)
    .map(|(what, n, unit, per)| format!("{what}{n}{unit}{per}"))
    .collect()
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once => f.write_str("once"),
            Self::PerInputStep { stride: 1 } => f.write_str("per input step"),
            Self::PerInputStep { stride } => write!(f, "per {stride} input steps"),
            Self::UntilStop { max } => write!(f, "until stop, at most {max}"),
        }
    }
}

impl fmt::Display for Bin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
        })
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Relu => "relu",
            Self::Relu6 => "relu6",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
        })
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Step => "step",
            Self::Reverse => "reverse",
            Self::End => "end",
        })
    }
}

/// The words after a linear or convolution's name.
fn fused(f: &mut fmt::Formatter<'_>, bias: bool, act: Option<Act>, residual: bool) -> fmt::Result {
    if bias {
        f.write_str(" bias")?;
    }
    if let Some(act) = act {
        write!(f, " {act}")?;
    }
    if residual {
        f.write_str(" residual")?;
    }
    Ok(())
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { input, at } => write!(f, "input {input} {at}"),
            Self::Linear {
                bias,
                act,
                residual,
            } => {
                f.write_str("linear")?;
                fused(f, *bias, *act, *residual)
            }
            Self::Binary(bin) => write!(f, "{bin}"),
            Self::Elementwise(steps) => {
                f.write_str("elementwise")?;
                steps.iter().try_for_each(|step| write!(f, " {step}"))
            }
            Self::Unary(act) => write!(f, "{act}"),
            Self::Scale(factor) => write!(f, "scale {factor}"),
            Self::LayerNorm { eps } => write!(f, "layer_norm {eps:e}"),
            Self::AddLayerNorm { eps } => write!(f, "add_layer_norm {eps:e}"),
            Self::RmsNorm { eps } => write!(f, "rms_norm {eps:e}"),
            Self::Softmax => f.write_str("softmax"),
            Self::Embedding => f.write_str("embedding"),
            Self::AddPosition => f.write_str("add_position"),
            Self::Rope {
                heads,
                dim,
                theta,
                past,
            } => {
                write!(f, "rope {heads}x{dim} {theta}")?;
                match past {
                    Some(state) => write!(f, " behind {state}"),
                    None => Ok(()),
                }
            }
            Self::Attention {
                heads,
                seen,
                cap,
                bias,
            } => {
                let (query, kv, dim) = (heads.query, heads.kv, heads.dim);
                write!(f, "attention {query}/{kv}x{dim}")?;
                if seen.causal {
                    f.write_str(" causal")?;
                }
                if let Some(most) = seen.window {
                    write!(f, " within {most}")?;
                }
                if let Some(cap) = cap {
                    write!(f, " cap {cap}")?;
                }
                f.write_str(if *bias { " bias" } else { "" })
            }
            Self::StateAttention {
                heads,
                keys,
                values,
            } => {
                let (query, kv, dim) = (heads.query, heads.kv, heads.dim);
                write!(f, "state_attention {query}/{kv}x{dim} {keys} {values}")
            }
            Self::AdditiveAttention { keys, values } => {
                write!(f, "additive_attention {keys} {values}")
            }
            Self::LstmCell { h, c, proj, ahead } => {
                let proj = if *proj { " proj" } else { "" };
                let ahead = if *ahead { " ahead" } else { "" };
                write!(f, "lstm_cell{proj}{ahead} {h} {c}")
            }
            Self::GruCell { h, ahead } => {
                write!(f, "gru_cell{} {h}", if *ahead { " ahead" } else { "" })
            }
            Self::Conv2d {
                window,
                groups,
                bias,
                residual,
                act,
            } => {
                let [kh, kw] = window.kernel;
                write!(
                    f,
                    "conv2d {kh}x{kw}/{} pad {}",
                    window.stride[0], window.pad[0]
                )?;
                if *groups > 1 {
                    write!(f, " groups {groups}")?;
                }
                // The residual comes before the activation.
                fused(f, *bias, None, *residual)?;
                fused(f, false, *act, false)
            }
            Self::BatchNorm { eps } => write!(f, "batch_norm {eps:e}"),
            Self::Pool2d { pool, window } => {
                let kind = if *pool == Pool::Max { "max" } else { "average" };
                let [kh, kw] = window.kernel;
                write!(
                    f,
                    "pool2d {kind} {kh}x{kw}/{} pad {}",
                    window.stride[0], window.pad[0]
                )
            }
            Self::GlobalAveragePool => f.write_str("global_average_pool"),
            Self::Reshape { dims } => write!(f, "reshape {dims:?}"),
            Self::Concat => f.write_str("concat"),
            Self::Slice { start, len } => write!(f, "slice {start}..{}", start + len),
            Self::Interaction => f.write_str("interaction"),
            Self::EmbeddingBag => f.write_str("embedding_bag"),
            Self::MeanRows => f.write_str("mean_rows"),
            Self::FirstRow => f.write_str("first_row"),
            Self::LastRow => f.write_str("last_row"),
            Self::ArgMax => f.write_str("arg_max"),
            Self::Sample => f.write_str("sample"),
            Self::TopK { k, largest } => {
                let which = if *largest { "largest" } else { "smallest" };
                write!(f, "top_k {k} {which}")
            }
            Self::VecRead { state } => write!(f, "vec_read {state}"),
            Self::VecWrite { state } => write!(f, "vec_write {state}"),
            Self::SeqRead { state, at } => write!(f, "seq_read {state} {at}"),
            Self::SeqWrite { state, at } => write!(f, "seq_write {state} {at}"),
            Self::Emit { output } => write!(f, "emit {output}"),
            Self::Stop { token } => write!(f, "stop {token}"),
            Self::Tensor(op) => write!(f, "tensor {}", op.op),
            Self::Custom(custom) => write!(f, "custom {}", custom.name),
        }
    }
}
