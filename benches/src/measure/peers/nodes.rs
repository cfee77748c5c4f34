//! Where the time of a row goes: its nodes one by one, told each or by the kind of their op, beside the
//! least time that their arithmetic and their traffic would take.

use std::collections::BTreeMap;

use anyhow::bail;
use lazybatch_benches::clock;
use lazybatch_benches::lockstep::Lockstep;
use lazybatch_benches::record::{Recorder, merge, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_graph::cost::node_cost;
use lazybatch_graph::{Dim, NodeId};
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::cpu::peak::{flops_per_step, multiply_adds};
use serde_json::{Value, json};

/// Steps of a measurement of the peak.
const PEAK_STEPS: usize = 100_000;

/// What a line tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// All nodes of a kind.
    Kinds,
    /// One node.
    Each,
}

impl Lines {
    /// Reads the value of option `key`; nothing is to be told of nodes where it is `false`.
    ///
    /// # Errors
    /// Any other value than `true`, `false` and `each`.
    pub fn named(key: &str, value: &str) -> anyhow::Result<Option<Self>> {
        Ok(match value {
            "true" => Some(Self::Kinds),
            "each" => Some(Self::Each),
            "false" => None,
            _ => bail!("{key}: expected true, false or each, got {value}"),
        })
    }
}

/// Nodes that share a line, in the order of lines: the first one's place in the program where each has
/// its own, and their name.
type Key = (usize, String);

/// What the nodes of one line take in one run of all requests.
#[derive(Default)]
struct Kind {
    op: String,
    nodes: usize,
    launches: usize,
    /// Of each repetition.
    ns: Vec<f64>,
    flops: u64,
    bytes: u64,
}

/// Writes a line for each kind of node, or for each node, in the program of a row.
///
/// # Errors
/// What the device refuses or fails, or a file that cannot be written.
pub fn record(
    row: &Value,
    batch: &mut Lockstep,
    lines: Lines,
    (threads, repeats): (usize, usize),
    recorder: &Recorder,
) -> anyhow::Result<()> {
    let program = batch.program().clone();
    let [rows, attended] = batch.rows();
    let op = |id: NodeId| {
        let kind = format!("{:?}", program.node(id).op);
        let end = kind.find([' ', '(', '{']).unwrap_or(kind.len());
        kind[..end].to_string()
    };
    let key = |block: usize, node: usize| -> Key {
        let id = program.blocks[block].nodes[node];
        match lines {
            Lines::Kinds => (0, op(id)),
            Lines::Each => (id.index(), program.node(id).name.clone()),
        }
    };
    let mut kinds: BTreeMap<Key, Kind> = BTreeMap::new();
    for (block, nodes) in program.blocks.iter().enumerate() {
        for (node, id) in nodes.nodes.iter().enumerate() {
            let (kind, cost) = (
                kinds.entry(key(block, node)).or_default(),
                node_cost(&program, *id),
            );
            // A loop has a row of each request in every pass.
            let per_launch = if cost.per == Dim::Rows && !nodes.repeat.is_loop() {
                rows
            } else {
                batch.requests() as u64
            };
            kind.op = op(*id);
            kind.nodes += 1;
            kind.flops += cost.flops(per_launch, attended);
            kind.bytes += cost.bytes(per_launch, attended);
        }
    }
    batch.run_nodes(|_, _, _| ())?;
    let mut peaks = Vec::new();
    for _ in 0..repeats {
        let level = Level::detect();
        let (ns, _) = clock::time(|| multiply_adds(level, PEAK_STEPS, 0.999, 0.001));
        peaks.push((PEAK_STEPS * flops_per_step(level)) as f64 / ns);
        kinds.values_mut().for_each(|kind| kind.launches = 0);
        let mut taken: BTreeMap<Key, f64> = BTreeMap::new();
        batch.run_nodes(|block, node, ns| {
            let key = key(block, node);
            if let Some(kind) = kinds.get_mut(&key) {
                kind.launches += 1;
            }
            *taken.entry(key).or_default() += ns;
        })?;
        for (key, kind) in &mut kinds {
            kind.ns.push(taken.get(key).copied().unwrap_or(0.0));
        }
    }
    let peak = Spread::of(peaks).median();
    for ((_, name), kind) in kinds {
        let passes = kind.launches as f64 / kind.nodes as f64;
        let ns = Spread::of(kind.ns);
        let (flops, bytes) = (kind.flops as f64 * passes, kind.bytes as f64 * passes);
        let mut figures = row.clone();
        if lines == Lines::Each {
            figures["node"] = json!(name);
        }
        let fields = json!({
            "op": kind.op,
            "nodes": kind.nodes,
            "launches": kind.launches,
            "threads": threads,
            "gflops": rounded(flops / ns.median()),
            "gbytes_per_second": rounded(bytes / ns.median()),
            "share_of_one_threads_peak": rounded(flops / ns.median() / peak),
        });
        merge(&mut figures, fields);
        recorder.line(figures, "ns", &ns)?;
    }
    Ok(())
}
