//! The order of nodes: every value before those that read it.
//!
//! The format asks for such an order, and some converters append nodes that others read. Nodes keep
//! their order in the file as far as what they read allows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::Error;
use super::proto::{GraphProto, NodeProto};

/// Positions of `nodes` in an order in which values come before those that read them; `is_there` are
/// values that no node has to compute first.
///
/// # Errors
/// Nodes that wait for each other, by name.
pub fn of(
    place: &str,
    nodes: &[NodeProto],
    is_there: impl Fn(&str) -> bool,
) -> Result<Vec<usize>, Error> {
    let mut makers: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|o| !o.is_empty()) {
            makers.entry(output).or_insert(i);
        }
    }
    let mut waits = vec![0_usize; nodes.len()];
    let mut readers = vec![Vec::new(); nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        let mut names = BTreeSet::new();
        reads(node, &mut names);
        let before = names.into_iter().filter(|name| !is_there(name));
        let before: BTreeSet<usize> = before.filter_map(|n| makers.get(n).copied()).collect();
        waits[i] = before.len();
        for maker in before {
            readers[maker].push(i);
        }
    }
    let ready = (0..nodes.len()).filter(|&i| waits[i] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &reader in &readers[i] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() == nodes.len() {
        return Ok(order);
    }
    // What waits for a cycle without being in one is told of too, only the first few are named.
    let left = (0..nodes.len()).filter(|&i| waits[i] > 0);
    let names: Vec<String> = left.take(4).map(|i| name_of(i, &nodes[i])).collect();
    let num = nodes.len() - order.len();
    let got = match num - names.len() {
        0 => format!("nodes that wait for each other: {}", names.join(", ")),
        more => format!(
            "nodes that wait for each other: {} and {more} more",
            names.join(", ")
        ),
    };
    let expected = "an order in which values come before those that read them";
    Err(Error::invalid(place, "nodes", expected, got))
}

/// The name of the node at position `i` of its graph in the file.
pub fn name_of(i: usize, node: &NodeProto) -> String {
    if node.name.is_empty() {
        format!("{}#{i}", node.op_type)
    } else {
        node.name.clone()
    }
}

/// Adds the names that a node reads, its subgraphs included.
fn reads<'a>(node: &'a NodeProto, names: &mut BTreeSet<&'a str>) {
    names.extend(node.input.iter().map(String::as_str));
    for body in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
        of_body(body, names);
    }
}

fn of_body<'a>(body: &'a GraphProto, names: &mut BTreeSet<&'a str>) {
    let mut inner = BTreeSet::new();
    inner.extend(body.output.iter().map(|o| o.name.as_str()));
    for node in &body.node {
        reads(node, &mut inner);
    }
    // A name that the body itself defines is not one of those around it.
    let own = body.node.iter().flat_map(|n| &n.output);
    let own = own.chain(body.input.iter().map(|i| &i.name));
    for name in own.chain(body.initializer.iter().map(|t| &t.name)) {
        inner.remove(name.as_str());
    }
    names.extend(inner);
}
