//! Operands and attributes that ONNX defines for each op, by opset. What a node has beside them no kernel
//! reads, so that a model with such means something else than would be computed.
//!
//! Source: the schemas of ONNX 1.23, up to opset 25.

use lazybatch_graph::onnx::Node;

/// For ops of any number of operands.
const MANY: usize = usize::MAX;

/// From an opset on: most operands, and the names of the attributes, by spaces.
type Form = (i64, usize, &'static str);

/// Ops that have the same forms, by spaces, and these by opset, ascending. The first stands for whatever
/// is older too: where an op is not known before some opset, its entry says so.
const FORMS: &[(&str, &[Form])] = &[
    (
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cos Cosh Det DynamicQuantizeLinear \
         Erf Exp Floor GlobalAveragePool GlobalMaxPool HardSwish Identity IsNaN Log Mish Neg \
         NonZero Not Reciprocal Relu Round Sigmoid Sign Sin Sinh Size Softplus Softsign Sqrt Tan \
         Tanh",
        &[(1, 1, "")],
    ),
    (
        "Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Expand Greater GreaterOrEqual Less \
         LessOrEqual MatMul Mul Or PRelu Pow Sub Tile Xor",
        &[(1, 2, "")],
    ),
    (
        "ArgMax ArgMin",
        &[
            (1, 1, "axis keepdims"),
            (12, 1, "axis keepdims select_last_index"),
        ],
    ),
    (
        "AveragePool",
        &[
            (1, 1, "auto_pad count_include_pad kernel_shape pads strides"),
            (
                10,
                1,
                "auto_pad ceil_mode count_include_pad kernel_shape pads strides",
            ),
            (
                19,
                1,
                "auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides",
            ),
        ],
    ),
    (
        "BatchNormalization",
        &[
            (1, 5, "epsilon momentum spatial"),
            (9, 5, "epsilon momentum"),
            (14, 5, "epsilon momentum training_mode"),
        ],
    ),
    ("BitShift", &[(1, 2, "direction")]),
    (
        "BlackmanWindow HammingWindow HannWindow",
        &[(1, 1, "output_datatype periodic")],
    ),
    (
        "Cast",
        &[
            (1, 1, "to"),
            (19, 1, "saturate to"),
            (24, 1, "round_mode saturate to"),
        ],
    ),
    (
        "CastLike",
        &[
            (1, 2, ""),
            (19, 2, "saturate"),
            (24, 2, "round_mode saturate"),
        ],
    ),
    ("Celu Elu LeakyRelu ThresholdedRelu", &[(1, 1, "alpha")]),
    ("Clip", &[(1, 1, "max min"), (11, 3, "")]),
    ("Compress Gather GatherElements", &[(1, 2, "axis")]),
    ("Concat", &[(1, MANY, "axis")]),
    (
        "Constant",
        &[
            (1, 0, "value"),
            (11, 0, "sparse_value value"),
            (
                12,
                0,
                "sparse_value value value_float value_floats value_int value_ints value_string \
                 value_strings",
            ),
        ],
    ),
    ("ConstantOfShape", &[(1, 1, "value")]),
    (
        "Conv",
        &[(1, 3, "auto_pad dilations group kernel_shape pads strides")],
    ),
    (
        "ConvInteger",
        &[(1, 4, "auto_pad dilations group kernel_shape pads strides")],
    ),
    (
        "ConvTranspose",
        &[(
            1,
            3,
            "auto_pad dilations group kernel_shape output_padding output_shape pads strides",
        )],
    ),
    ("CumSum", &[(1, 2, "exclusive reverse")]),
    (
        "DFT",
        &[(1, 2, "axis inverse onesided"), (20, 3, "inverse onesided")],
    ),
    (
        "DepthToSpace",
        &[(1, 1, "blocksize"), (11, 1, "blocksize mode")],
    ),
    (
        "DequantizeLinear",
        &[
            (1, 3, ""),
            (13, 3, "axis"),
            (21, 3, "axis block_size"),
            (23, 3, "axis block_size output_dtype"),
        ],
    ),
    ("Dropout", &[(1, 1, "ratio"), (12, 3, "seed")]),
    ("Einsum", &[(1, MANY, "equation")]),
    ("EyeLike", &[(1, 1, "dtype k")]),
    ("Flatten Hardmax LogSoftmax Softmax", &[(1, 1, "axis")]),
    (
        "GRU",
        &[
            (
                1,
                6,
                "activation_alpha activation_beta activations clip direction hidden_size \
                 linear_before_reset",
            ),
            (
                14,
                6,
                "activation_alpha activation_beta activations clip direction hidden_size layout \
                 linear_before_reset",
            ),
        ],
    ),
    ("GatherND", &[(1, 2, ""), (12, 2, "batch_dims")]),
    ("Gelu", &[(1, 1, "approximate")]),
    ("Gemm", &[(1, 3, "alpha beta transA transB")]),
    ("GlobalLpPool", &[(1, 1, "p")]),
    ("GridSample", &[(1, 2, "align_corners mode padding_mode")]),
    (
        "GroupNormalization",
        &[
            (1, 3, "epsilon num_groups"),
            (21, 3, "epsilon num_groups stash_type"),
        ],
    ),
    ("HardSigmoid", &[(1, 1, "alpha beta")]),
    ("If", &[(1, 1, "else_branch then_branch")]),
    ("InstanceNormalization", &[(1, 3, "epsilon")]),
    ("IsInf", &[(1, 1, "detect_negative detect_positive")]),
    ("LRN", &[(1, 1, "alpha beta bias size")]),
    (
        "LSTM",
        &[
            (
                1,
                8,
                "activation_alpha activation_beta activations clip direction hidden_size \
                 input_forget",
            ),
            (
                14,
                8,
                "activation_alpha activation_beta activations clip direction hidden_size \
                 input_forget layout",
            ),
        ],
    ),
    ("LayerNormalization", &[(1, 3, "axis epsilon stash_type")]),
    ("Loop", &[(1, MANY, "body")]),
    ("LpNormalization", &[(1, 1, "axis p")]),
    (
        "LpPool",
        &[
            (1, 1, "auto_pad kernel_shape p pads strides"),
            (
                18,
                1,
                "auto_pad ceil_mode dilations kernel_shape p pads strides",
            ),
        ],
    ),
    ("MatMulInteger", &[(1, 4, "")]),
    ("Max Mean Min Sum", &[(1, MANY, "")]),
    (
        "MaxPool",
        &[
            (1, 1, "auto_pad kernel_shape pads strides"),
            (8, 1, "auto_pad kernel_shape pads storage_order strides"),
            (
                10,
                1,
                "auto_pad ceil_mode dilations kernel_shape pads storage_order strides",
            ),
        ],
    ),
    ("MaxUnpool", &[(1, 3, "kernel_shape pads strides")]),
    ("MeanVarianceNormalization", &[(1, 1, "axes")]),
    ("Mod", &[(1, 2, "fmod")]),
    (
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        &[(1, 3, "ignore_index reduction")],
    ),
    ("NonMaxSuppression", &[(1, 5, "center_point_box")]),
    ("OneHot Scatter", &[(1, 3, "axis")]),
    (
        "Pad",
        &[(1, 1, "mode pads value"), (11, 3, "mode"), (18, 4, "mode")],
    ),
    (
        "QLinearConv",
        &[(1, 9, "auto_pad dilations group kernel_shape pads strides")],
    ),
    ("QLinearMatMul", &[(1, 8, "")]),
    (
        "QuantizeLinear",
        &[
            (1, 3, ""),
            (13, 3, "axis"),
            (19, 3, "axis saturate"),
            (21, 3, "axis block_size output_dtype saturate"),
            (23, 3, "axis block_size output_dtype precision saturate"),
        ],
    ),
    (
        "RNN",
        &[
            (
                1,
                6,
                "activation_alpha activation_beta activations clip direction hidden_size",
            ),
            (
                14,
                6,
                "activation_alpha activation_beta activations clip direction hidden_size layout",
            ),
        ],
    ),
    ("Range Where", &[(1, 3, "")]),
    (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd \
         ReduceSumSquare",
        &[
            (1, 1, "axes keepdims"),
            (18, 2, "keepdims noop_with_empty_axes"),
        ],
    ),
    (
        "ReduceSum",
        &[
            (1, 1, "axes keepdims"),
            (13, 2, "keepdims noop_with_empty_axes"),
        ],
    ),
    ("Reshape", &[(1, 2, ""), (14, 2, "allowzero")]),
    (
        "Resize",
        &[
            (1, 2, "mode"),
            (
                11,
                4,
                "coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value \
                 mode nearest_mode",
            ),
            (
                18,
                4,
                "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside \
                 extrapolation_value keep_aspect_ratio_policy mode nearest_mode",
            ),
        ],
    ),
    ("ReverseSequence", &[(1, 2, "batch_axis time_axis")]),
    (
        "Scan",
        &[(
            1,
            2147483647,
            "body num_scan_inputs scan_input_axes scan_input_directions scan_output_axes \
                 scan_output_directions",
        )],
    ),
    (
        "ScatterElements",
        &[(1, 3, "axis"), (16, 3, "axis reduction")],
    ),
    ("ScatterND", &[(1, 3, ""), (16, 3, "reduction")]),
    ("Selu", &[(1, 1, "alpha gamma")]),
    ("Shape", &[(1, 1, ""), (15, 1, "end start")]),
    ("Shrink", &[(1, 1, "bias lambd")]),
    ("Slice", &[(1, 1, "axes ends starts"), (10, 5, "")]),
    ("SpaceToDepth", &[(1, 1, "blocksize")]),
    (
        "Split",
        &[
            (1, 1, "axis split"),
            (13, 2, "axis"),
            (18, 2, "axis num_outputs"),
        ],
    ),
    ("Squeeze Unsqueeze", &[(1, 1, "axes"), (13, 2, "")]),
    (
        "TfIdfVectorizer",
        &[(
            1,
            1,
            "max_gram_length max_skip_count min_gram_length mode ngram_counts ngram_indexes \
                 pool_int64s pool_strings weights",
        )],
    ),
    (
        "TopK",
        &[
            (1, 1, "axis k"),
            (10, 2, "axis"),
            (11, 2, "axis largest sorted"),
        ],
    ),
    ("Transpose", &[(1, 1, "perm")]),
    ("Trilu", &[(1, 2, "upper")]),
    ("Unique", &[(1, 1, "axis sorted")]),
    ("Upsample", &[(1, 1, "mode scales"), (9, 2, "mode")]),
];

/// What is not defined of `node`, an op of the default domain, at `opset`; ops that are not known have
/// nothing that is.
pub fn undefined(node: &Node, opset: i64) -> Option<String> {
    let mut all = FORMS.iter();
    let (_, forms) = all.find(|(ops, _)| ops.split(' ').any(|op| op == node.op))?;
    let form = forms.iter().rev().find(|(since, ..)| *since <= opset);
    let (_, most, attrs) = form.or(forms.first())?;
    let known = || attrs.split(' ').filter(|name| !name.is_empty());
    if let Some(name) = node.attrs.keys().find(|name| !known().any(|k| k == *name)) {
        let expected = match known().count() {
            0 => "none".to_owned(),
            1 => format!("{attrs} alone"),
            _ => format!("some of {}", known().collect::<Vec<_>>().join(", ")),
        };
        return Some(format!(
            "attributes: expected {expected} at opset {opset}, got {name}"
        ));
    }
    let num = node.inputs.iter().rposition(|name| !name.is_empty());
    let num = num.map_or(0, |i| i + 1);
    (num > *most).then(|| format!("operands: expected at most {most} at opset {opset}, got {num}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::FAMILIES;

    #[test]
    fn every_op_has_forms_in_one_place() {
        let mut listed: Vec<&str> = FORMS.iter().flat_map(|(ops, _)| ops.split(' ')).collect();
        listed.sort_unstable();
        let ops = FAMILIES.iter().flat_map(|family| family.ops);
        let mut known: Vec<&str> = ops.map(|op| op.name).collect();
        known.extend(["If", "Loop", "Scan"]);
        known.sort_unstable();
        assert_eq!(listed, known);
        for (ops, forms) in FORMS {
            assert!(
                forms.is_sorted_by(|a, b| a.0 < b.0) && !forms.is_empty(),
                "{ops}"
            );
        }
    }
}
