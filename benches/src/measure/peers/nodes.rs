//! Where the time of a row goes: its nodes one by one, by the kind of their op, beside the least time
//! that their arithmetic and their traffic would take.

use std::collections::BTreeMap;

use lazybatch_benches::clock;
use lazybatch_benches::lockstep::Lockstep;
use lazybatch_benches::record::{Recorder, merge, rounded};
use lazybatch_benches::spread::Spread;
use lazybatch_graph::Dim;
use lazybatch_graph::cost::node_cost;
use lazybatch_kernels::cpu::level::Level;
use lazybatch_kernels::cpu::peak::{flops_per_step, multiply_adds};
use serde_json::{Value, json};

/// Steps of a measurement of the peak.
const PEAK_STEPS: usize = 100_000;

/// What the nodes of one kind take in one run of all requests.
#[derive(Default)]
struct Kind {
    nodes: usize,
    launches: usize,
    /// Of each repetition.
    ns: Vec<f64>,
    flops: u64,
    bytes: u64,
}

/// Writes a line for each kind of node in the program of a row.
///
/// # Errors
/// What the device refuses or fails, or a file that cannot be written.
pub fn record(
    row: &Value,
    batch: &mut Lockstep,
    (threads, repeats): (usize, usize),
    recorder: &Recorder,
) -> anyhow::Result<()> {
    let program = batch.program().clone();
    let [rows, attended] = batch.rows();
    let name = |block: usize, node: usize| {
        let node = program.node(program.blocks[block].nodes[node]);
        let kind = format!("{:?}", node.op);
        let end = kind.find([' ', '(', '{']).unwrap_or(kind.len());
        kind[..end].to_string()
    };
    let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
    for (block, nodes) in program.blocks.iter().enumerate() {
        for (node, id) in nodes.nodes.iter().enumerate() {
            let (kind, cost) = (
                kinds.entry(name(block, node)).or_default(),
                node_cost(&program, *id),
            );
            // A loop has a row of each request in every pass.
            let per_launch = if cost.per == Dim::Rows && !nodes.repeat.is_loop() {
                rows
            } else {
                batch.requests() as u64
            };
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
        let mut taken: BTreeMap<String, f64> = BTreeMap::new();
        batch.run_nodes(|block, node, ns| {
            let name = name(block, node);
            if let Some(kind) = kinds.get_mut(&name) {
                kind.launches += 1;
            }
            *taken.entry(name).or_default() += ns;
        })?;
        for (name, kind) in &mut kinds {
            kind.ns.push(taken.get(name).copied().unwrap_or(0.0));
        }
    }
    let peak = Spread::of(peaks).median();
    for (name, kind) in kinds {
        let passes = kind.launches as f64 / kind.nodes as f64;
        let ns = Spread::of(kind.ns);
        let (flops, bytes) = (kind.flops as f64 * passes, kind.bytes as f64 * passes);
        let mut figures = row.clone();
        let fields = json!({
            "op": name,
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
