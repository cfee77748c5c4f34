//! Values that are rounded to whole numbers, or compared, behind ops that move elements or compute each
//! from its own: there the last bit of a number decides.

use std::collections::BTreeSet;

use lazybatch_graph::onnx::Node;

use super::int;

/// Whether an op may give quite another element for one that differs in its last bit.
fn steps(node: &Node) -> bool {
    match node.op.as_str() {
        "Floor"
        | "Ceil"
        | "Round"
        | "Mod"
        | "Sign"
        | "Equal"
        | "Less"
        | "LessOrEqual"
        | "Greater"
        | "GreaterOrEqual"
        | "ArgMax"
        | "ArgMin"
        | "TopK"
        | "Unique"
        | "QuantizeLinear"
        | "DynamicQuantizeLinear" => true,
        // To anything but f32, f16, f64 and bf16.
        "Cast" => !matches!(int(node, "to", 1), 1 | 10 | 11 | 16),
        _ => false,
    }
}

/// Whether an op computes each element from its own one, or moves them.
fn passes_on(node: &Node) -> bool {
    matches!(
        node.op.as_str(),
        "Add"
            | "Sub"
            | "Mul"
            | "Div"
            | "Neg"
            | "Abs"
            | "Relu"
            | "Clip"
            | "Min"
            | "Max"
            | "Cast"
            | "Identity"
            | "Reshape"
            | "Flatten"
            | "Transpose"
            | "Squeeze"
            | "Unsqueeze"
            | "Concat"
            | "Split"
            | "Slice"
            | "Gather"
            | "Expand"
    )
}

/// Names of such values.
pub(super) fn stepped(nodes: &[Node]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for node in nodes.iter().rev() {
        let leads = || node.outputs.iter().any(|o| found.contains(o.as_str()));
        if steps(node) || (passes_on(node) && leads()) {
            found.extend(node.inputs.iter().map(String::as_str));
        }
    }
    found
}
