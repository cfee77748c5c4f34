//! Ops that are known and not run, with the reason.

/// Groups of ops and why they are not run.
pub const REFUSED: &[(&str, &[&str])] = &[
    (
        "random: outputs would differ from run to run",
        &[
            "Bernoulli",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        ],
    ),
    (
        "values are sequences or optionals, not tensors",
        &[
            "ConcatFromSequence",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
        ],
    ),
    (
        "values are strings",
        &[
            "RegexFullMatch",
            "StringConcat",
            "StringNormalizer",
            "StringSplit",
            "ImageDecoder",
        ],
    ),
    ("for training", &["Adagrad", "Adam", "Gradient", "Momentum"]),
    (
        "not written yet",
        &[
            "AffineGrid",
            "Attention",
            "CenterCropPad",
            "Col2Im",
            "DeformConv",
            "MaxRoiPool",
            "MelWeightMatrix",
            "RMSNormalization",
            "RoiAlign",
            "RotaryEmbedding",
            "STFT",
            "Swish",
            "TensorScatter",
        ],
    ),
];

/// Why the op `name` is not run.
pub fn reason(name: &str) -> &'static str {
    REFUSED
        .iter()
        .find(|(_, names)| names.contains(&name))
        .map_or("no op of this name is known", |(why, _)| why)
}
