//! Values that are rounded to whole numbers, or compared, behind any ops but those whose results carry
//! errors of rounding anyhow: there the last bit of a number decides.

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
        | "IsInf"
        | "Equal"
        | "Less"
        | "LessOrEqual"
        | "Greater"
        | "GreaterOrEqual"
        | "ThresholdedRelu"
        | "Shrink"
        | "Hardmax"
        | "ArgMax"
        | "ArgMin"
        | "TopK"
        | "Unique"
        | "OneHot"
        | "GridSample"
        | "NonMaxSuppression"
        | "QLinearConv"
        | "QLinearMatMul"
        | "QuantizeLinear"
        | "DynamicQuantizeLinear" => true,
        // The place of the largest.
        "MaxPool" => node.outputs.get(1).is_some_and(|o| !o.is_empty()),
        // To anything but f32, f16, f64 and bf16.
        "Cast" => !matches!(int(node, "to", 1), 1 | 10 | 11 | 16),
        "CastLike" => true,
        _ => false,
    }
}

/// Whether the last bits of a result are those of sums in some order, whatever those of the operands are,
/// or say nothing of their elements. All other ops hand on what they are given.
fn is_rough(node: &Node) -> bool {
    matches!(
        node.op.as_str(),
        "MatMul"
            | "Gemm"
            | "Einsum"
            | "Det"
            | "Conv"
            | "ConvTranspose"
            | "Softmax"
            | "LogSoftmax"
            | "BatchNormalization"
            | "GroupNormalization"
            | "InstanceNormalization"
            | "LayerNormalization"
            | "LpNormalization"
            | "MeanVarianceNormalization"
            | "LRN"
            | "GRU"
            | "LSTM"
            | "RNN"
            | "DFT"
            | "Shape"
            | "Size"
    )
}

/// Names of such values.
pub(super) fn stepped(nodes: &[Node]) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for node in nodes.iter().rev() {
        let leads = || node.outputs.iter().any(|o| found.contains(o.as_str()));
        if steps(node) || (!is_rough(node) && leads()) {
            found.extend(node.inputs.iter().map(String::as_str));
        }
    }
    found
}
