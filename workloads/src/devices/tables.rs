//! From a model and prices of nodes to latency tables.
//!
//! Points lie at 1, 2, 4, ... up to max batch, or up to max batch times the longest input that the
//! program takes for tables by rows. A table by rows does not know how its rows are spread over
//! members: they are priced as members of the length that a row belongs to on average,
//! `E[s^2] / E[s]`, and one member with the rest. Decoder steps look at `E[s t] / E[t]` input
//! positions and at `E[t (t + 1) / 2] / E[t]` of their own. All expectations are over the model's
//! own distribution of lengths.

use lazybatch_graph::{Block, BlockId, Dim, Liveness, NodeId, Program, Repeat};
use lazybatch_sla::profile::{BlockProfile, By, ModelProfile, NodeProfile, RepeatRule};

use super::MAX_BATCH;
use super::work::{ELEMENT_BYTES, NodeWork, Pricing, Reach, is_fused};
use crate::error::Result;
use crate::lengths::Lengths;
use crate::zoo::Served;

/// Consecutive nodes of a block that are one entry of a profile.
struct Group {
    by: By,
    nodes: Vec<NodeId>,
    /// The node that gives the entry its name, once there is one that is not fused.
    main: Option<NodeId>,
}

/// Profile of a model whose launches take `price` nanoseconds per node.
pub(super) fn model(model: &Served<'_>, price: impl Fn(&NodeWork) -> f64) -> Result<ModelProfile> {
    let program = model.program;
    let lengths = Lengths::load(model.lengths)?;
    let reach = Reach::of(&lengths);
    let pricing = Pricing::new(program, reach);
    let liveness = Liveness::of(program);
    let max_len = program.length_input.and_then(|i| program.input(i).max_len);
    let max_rows = u64::from(MAX_BATCH) * max_len.unwrap_or(1) as u64;
    let blocks = program.blocks.iter().enumerate().map(|(b, block)| {
        let mut first = 0;
        let nodes = groups(&pricing, program, block).into_iter().map(|group| {
            let boundary = liveness.at(BlockId::new(b), first);
            first += group.nodes.len();
            let merge_bytes = boundary.values.iter().map(|v| {
                let ty = &program.value(*v).ty;
                let width = if ty.dtype.is_float() {
                    ELEMENT_BYTES
                } else {
                    4
                };
                let rows = if ty.lead() == Some(Dim::Rows) {
                    reach.mean_input
                } else {
                    1
                };
                ty.row_elems() as u64 * width * rows
            });
            let merge_bytes: u64 = merge_bytes.sum();
            let last = match group.by {
                By::Rows => max_rows,
                By::Members => u64::from(MAX_BATCH),
            };
            let ns = |x: u64| {
                group
                    .nodes
                    .iter()
                    .map(|n| price(&pricing.work(*n, x)))
                    .sum()
            };
            let weight_bytes: u64 = group.nodes.iter().map(|n| pricing.weight_bytes(*n)).sum();
            NodeProfile {
                name: program
                    .node(group.main.unwrap_or(group.nodes[0]))
                    .name
                    .clone(),
                by: group.by,
                latency_us: points(last).map(|x| (x, micros(ns(x)))).collect(),
                num_nodes: (group.nodes.len() > 1).then_some(group.nodes.len() as u32),
                merge_bytes_per_member: merge_bytes as f64,
                weight_bytes: (weight_bytes > 0).then_some(weight_bytes),
                load_us: None,
                host_access_us: None,
            }
        });
        let nodes = nodes.collect();
        let (repeat, stride, max_steps) = match block.repeat {
            Repeat::Once => (RepeatRule::Once, None, None),
            Repeat::PerInputStep { stride } => (RepeatRule::PerInputStep, Some(stride), None),
            Repeat::UntilStop { max } => (RepeatRule::UntilStop, None, Some(max)),
        };
        BlockProfile {
            name: block.name.clone(),
            repeat,
            stride: stride.filter(|&s| s != 1),
            max_steps,
            nodes,
        }
    });
    Ok(ModelProfile {
        name: model.name.into(),
        max_batch: MAX_BATCH,
        sla_ms: Some(model.sla.as_ms()),
        output_len_p90: model
            .max_output_len
            .map(|max| lengths.output_p90().min(max)),
        blocks: blocks.collect(),
    })
}

/// One entry for each node that computes, with the fused ones behind it; those at the start of a
/// block go with the first. Nodes of different axes stay apart.
fn groups(pricing: &Pricing<'_>, program: &Program, block: &Block) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for &id in &block.nodes {
        let by = if pricing.is_by_rows(id, block.repeat) {
            By::Rows
        } else {
            By::Members
        };
        let main = (!is_fused(&program.node(id).op)).then_some(id);
        match groups.last_mut() {
            Some(group) if group.by == by && (main.is_none() || group.main.is_none()) => {
                group.nodes.push(id);
                group.main = group.main.or(main);
            }
            _ => groups.push(Group {
                by,
                nodes: vec![id],
                main,
            }),
        }
    }
    groups
}

/// 1, 2, 4, ... below `last`, and `last`.
fn points(last: u64) -> impl Iterator<Item = u64> {
    let powers = (0..u64::BITS)
        .map(|p| 1 << p)
        .take_while(move |x| *x < last);
    powers.chain([last])
}

/// Microseconds of whole nanoseconds.
fn micros(ns: f64) -> f64 {
    ns.round() / 1e3
}
