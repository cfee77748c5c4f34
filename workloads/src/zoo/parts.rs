//! What several models share.

use lazybatch_graph::{
    Act, At, Fused, LstmState, Op, Program, ProgramBuilder, StateId, ValueId, Window,
};

/// Metadata key: names of weights that publications do not count as parameters, by line.
const NOT_COUNTED: &str = "not_counted";

/// Notes that a weight is a copy or a fixed table.
pub(super) fn not_counted(b: &mut ProgramBuilder, weight: &str) {
    let mut names = b
        .all_metadata()
        .get(NOT_COUNTED)
        .cloned()
        .unwrap_or_default();
    names.push_str(weight);
    names.push('\n');
    b.metadata(NOT_COUNTED, names);
}

/// Parameters as publications count them: without the running statistics of batch norms, tied
/// copies and fixed tables. Meant for programs before [`lazybatch_graph::optimize`], which folds
/// batch norms away.
pub fn num_parameters(program: &Program) -> usize {
    let names = program.metadata.get(NOT_COUNTED).map_or("", String::as_str);
    let fixed: Vec<&str> = names.lines().collect();
    let mut counted: Vec<bool> = program
        .weights
        .iter()
        .map(|w| !fixed.contains(&w.name.as_str()))
        .collect();
    for node in program
        .nodes
        .iter()
        .filter(|n| matches!(n.op, Op::BatchNorm { .. }))
    {
        for w in node.inputs[3..]
            .iter()
            .filter_map(|&v| program.as_weight(v))
        {
            counted[w.index()] = false;
        }
    }
    let sizes = program.weights.iter().zip(counted).filter(|(_, c)| *c);
    sizes.map(|(w, _)| w.ty.row_elems()).sum()
}

/// Convolution, batch norm, then residual and activation if there are any.
pub(super) fn conv_bn(
    b: &mut ProgramBuilder,
    name: &str,
    x: ValueId,
    (channels, window, groups): (usize, Window, usize),
    eps: f32,
    residual: Option<ValueId>,
    act: Option<Act>,
) -> ValueId {
    let mut x = b.conv(name, x, channels, window, groups, Fused::default());
    x = b.bn(&format!("{name}.bn"), x, eps);
    if let Some(residual) = residual {
        x = b.add(&format!("{name}.add"), x, residual);
    }
    match act {
        Some(act) => b.unary(&format!("{name}.act"), act, x),
        None => x,
    }
}

/// An LSTM whose cell runs several times in one pass, with shared weights and state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unrolled {
    weights: [ValueId; 3],
    state: LstmState,
}

impl Unrolled {
    /// Declares weights and states.
    pub(super) fn new(b: &mut ProgramBuilder, name: &str, k: usize, hidden: usize) -> Self {
        Self {
            weights: b.lstm_weights(name, k, hidden),
            state: b.lstm_state(name, hidden),
        }
    }

    /// One step; returns `h`.
    pub(super) fn step(&self, b: &mut ProgramBuilder, name: &str, x: ValueId) -> ValueId {
        b.lstm_cell(name, x, self.weights, None, self.state.h, self.state.c)
    }

    /// Its states.
    pub(super) fn state(&self) -> LstmState {
        self.state
    }
}

/// Cuts a row into `parts` of equal width; a row in one part stays as it is.
pub(super) fn split(b: &mut ProgramBuilder, name: &str, x: ValueId, parts: usize) -> Vec<ValueId> {
    if parts == 1 {
        return vec![x];
    }
    let width = b.features(x) / parts;
    (0..parts)
        .map(|i| b.slice(&format!("{name}.{i}"), x, i * width, width))
        .collect()
}

/// Joins rows; a single one stays as it is.
pub(super) fn join(b: &mut ProgramBuilder, name: &str, parts: &[ValueId]) -> ValueId {
    match parts {
        [one] => *one,
        _ => b.concat(name, parts),
    }
}

/// Writes this pass's row to a state at the pass's own position.
pub(super) fn keep(b: &mut ProgramBuilder, name: &str, state: StateId, x: ValueId) {
    b.seq_write(name, state, At::Step, x);
}
