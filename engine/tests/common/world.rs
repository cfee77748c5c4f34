//! Models and arrivals in integer nanoseconds, with arithmetic of their own.

use super::*;

/// Axis of a node's table and its `(x, nanoseconds)` points.
#[derive(Clone, Debug)]
pub struct Node {
    pub by_rows: bool,
    pub points: Vec<(u64, u64)>,
}

impl Node {
    /// A node that takes `ns` whatever the batch.
    pub fn constant(ns: u64) -> Self {
        Self {
            by_rows: false,
            points: vec![(1, ns)],
        }
    }

    /// A node of `fixed + each x members` nanoseconds.
    pub fn linear(fixed: u64, each: u64) -> Self {
        Self {
            by_rows: false,
            points: vec![(1, fixed + each), (2, fixed + 2 * each)],
        }
    }

    /// Latency of one execution, from the text of the format: linear between points, the first
    /// value below them, the last slope beyond them, half up, never below zero.
    pub fn latency(&self, members: u64, rows: u64) -> u64 {
        let x = i128::from(if self.by_rows { rows } else { members });
        let points: Vec<(i128, i128)> = self
            .points
            .iter()
            .map(|&(x, y)| (i128::from(x), i128::from(y)))
            .collect();
        if points.len() == 1 || x <= points[0].0 {
            return self.points[0].1;
        }
        let mut piece = points.len() - 2;
        for i in 0..points.len() - 1 {
            if x <= points[i + 1].0 {
                piece = i;
                break;
            }
        }
        let ((x0, y0), (x1, y1)) = (points[piece], points[piece + 1]);
        // y0 + (y1 - y0) (x - x0) / (x1 - x0) as a fraction, plus one half, rounded down.
        let (num, den) = (y0 * (x1 - x0) + (y1 - y0) * (x - x0), x1 - x0);
        let (num, den) = (2 * num + den, 2 * den);
        let floor = if num >= 0 {
            num / den
        } else {
            -((-num + den - 1) / den)
        };
        floor.max(0) as u64
    }
}

/// Repeat rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rep {
    Once,
    PerStep(u32),
    Until(Option<u32>),
}

#[derive(Clone, Debug)]
pub struct Block {
    pub rep: Rep,
    pub nodes: Vec<Node>,
}

impl Block {
    /// True number of passes.
    pub fn passes(&self, input_len: u32, output_len: u32) -> u32 {
        match self.rep {
            Rep::Once => 1,
            Rep::PerStep(stride) => input_len.div_ceil(stride),
            Rep::Until(max) => output_len.min(max.unwrap_or(u32::MAX)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    pub max_batch: u32,
    pub p90: u32,
    pub blocks: Vec<Block>,
}

impl Model {
    /// Time of one request alone, launch costs included.
    pub fn alone(&self, dispatch: u64, input_len: u32, output_len: u32) -> u64 {
        self.blocks
            .iter()
            .map(|b| {
                let pass: u64 = b
                    .nodes
                    .iter()
                    .map(|n| n.latency(1, u64::from(input_len)) + dispatch)
                    .sum();
                u64::from(b.passes(input_len, output_len)) * pass
            })
            .sum()
    }
}

#[derive(Clone, Debug)]
pub struct World {
    pub models: Vec<Model>,
    pub dispatch: u64,
}

impl World {
    /// One model of one chain.
    pub fn chain(max_batch: u32, nodes: Vec<Node>) -> Self {
        Self {
            models: vec![Model {
                max_batch,
                p90: 1,
                blocks: vec![Block {
                    rep: Rep::Once,
                    nodes,
                }],
            }],
            dispatch: 0,
        }
    }

    /// The profile that the engine reads.
    pub fn profile(&self) -> Profile {
        let us = |ns: u64| ns as f64 / 1000.0;
        let node = |(i, n): (usize, &Node)| NodeProfile {
            name: format!("n{i}"),
            by: if n.by_rows { By::Rows } else { By::Members },
            latency_us: n.points.iter().map(|&(x, ns)| (x, us(ns))).collect(),
            num_nodes: None,
            merge_bytes_per_member: 0.0,
            weight_bytes: None,
            load_us: None,
            host_access_us: None,
        };
        let block = |(i, b): (usize, &Block)| BlockProfile {
            name: format!("block{i}"),
            repeat: match b.rep {
                Rep::Once => RepeatRule::Once,
                Rep::PerStep(_) => RepeatRule::PerInputStep,
                Rep::Until(_) => RepeatRule::UntilStop,
            },
            stride: match b.rep {
                Rep::PerStep(stride) => Some(stride),
                _ => None,
            },
            max_steps: match b.rep {
                Rep::Until(max) => max,
                _ => None,
            },
            nodes: b.nodes.iter().enumerate().map(node).collect(),
        };
        let model = |(i, m): (usize, &Model)| ModelProfile {
            name: format!("model{i}"),
            max_batch: m.max_batch,
            sla_ms: None,
            output_len_p90: Some(m.p90),
            blocks: m.blocks.iter().enumerate().map(block).collect(),
        };
        let profile = Profile {
            format: FORMAT.into(),
            device: "test".into(),
            copy_gbps: 0.0,
            dispatch_us: us(self.dispatch),
            issue_us: 0.0,
            models: self.models.iter().enumerate().map(model).collect(),
        };
        profile.check("test").expect("a valid profile");
        profile
    }
}

/// One line of an arrivals file.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: u64,
    pub model: usize,
    pub input_len: u32,
    pub output_len: u32,
    pub sla: Option<u64>,
    pub samples: u32,
    pub sequence: Option<u64>,
    pub priority: u8,
    pub class: u32,
    /// It is delayed behind that.
    pub delay: Option<u64>,
}

impl Arrival {
    pub fn new(at: u64, model: usize, input_len: u32, output_len: u32, sla: Option<u64>) -> Self {
        Self {
            at,
            model,
            input_len,
            output_len,
            sla,
            samples: 1,
            sequence: None,
            priority: 0,
            class: 0,
            delay: None,
        }
    }
}
