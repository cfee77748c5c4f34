//! What a request may hold on a device: bounds that are known when a model is loaded.

use std::fmt;
use std::ops::Add;
use std::sync::Arc;

use lazybatch_graph::{DType, Dim, InputDecl, Op, OutputId, Program, Repeat};

use crate::validate::{is_sequence, passes};

/// Most bytes that one request holds from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMemory {
    /// Inputs, as the device computes with them.
    pub inputs: u64,
    /// Outputs, with as many steps as the program allows.
    pub outputs: u64,
    /// States, as many rows as it can write.
    pub states: u64,
    /// Its share of the values of its sub-batch; twice, as a merge gathers them from one place in
    /// another.
    pub activations: u64,
}

/// The most that a request of a model holds, by its length and samples.
pub type MemoryBound = Arc<dyn Fn(u32, u32) -> RequestMemory + Send + Sync>;

impl RequestMemory {
    /// All together.
    pub fn total(&self) -> u64 {
        [self.outputs, self.states, self.activations]
            .into_iter()
            .fold(self.inputs, u64::saturating_add)
    }
}

impl fmt::Display for RequestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: inputs {}, outputs {}, states {}, activations {}",
            bytes(self.total()),
            bytes(self.inputs),
            bytes(self.outputs),
            bytes(self.states),
            bytes(self.activations)
        )
    }
}

/// Bytes as people read them: `17 B`, `3.4 KiB`.
pub fn bytes(num: u64) -> String {
    let mut size = num as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{num} B")
    } else {
        format!("{size:.1} {unit}")
    }
}

/// Bytes of a request, by its length and samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Linear {
    /// For each position of its sequence.
    pub per_row: u64,
    /// For each of its samples.
    pub per_sample: u64,
}

impl Linear {
    /// Bytes of a request.
    pub fn of(self, input_len: u64, samples: u64) -> u64 {
        let rows = self.per_row.saturating_mul(input_len);
        rows.saturating_add(self.per_sample.saturating_mul(samples))
    }
}

impl Add for Linear {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            per_row: self.per_row.saturating_add(other.per_row),
            per_sample: self.per_sample.saturating_add(other.per_sample),
        }
    }
}

/// What grows an output.
#[derive(Clone, Copy, Debug)]
enum Growth {
    /// A row for each position.
    Positions,
    /// A row for each sample.
    Samples,
    /// A row for each pass.
    Passes(Repeat),
}

/// Most rows that a request emits to an output.
#[derive(Clone, Debug, Default)]
pub struct OutputBound(Vec<Growth>);

impl OutputBound {
    /// The bound of a program's output.
    pub fn of(program: &Program, output: OutputId) -> Self {
        if !program.output(output).ty.dims.contains(&Dim::Len) {
            return Self(vec![Growth::Samples]);
        }
        let mut growths = Vec::new();
        for block in &program.blocks {
            for node in block.nodes.iter().map(|&id| program.node(id)) {
                if !matches!(node.op, Op::Emit { output: to } if to == output) {
                    continue;
                }
                let lead = program.value(node.inputs[0]).ty.lead();
                growths.push(match (block.repeat, lead) {
                    (Repeat::Once, Some(Dim::Rows)) => Growth::Positions,
                    (Repeat::Once, _) => Growth::Samples,
                    (repeat, _) => Growth::Passes(repeat),
                });
            }
        }
        Self(growths)
    }

    /// Rows of a request.
    pub fn rows(&self, input_len: usize, samples: usize) -> usize {
        let rows = |growth: &Growth| match *growth {
            Growth::Positions => input_len,
            Growth::Samples => samples,
            Growth::Passes(Repeat::UntilStop { max }) => max as usize,
            Growth::Passes(repeat) => passes(repeat, input_len),
        };
        self.0.iter().map(rows).sum()
    }
}

/// Bytes of an input that is staged: of what the device computes with, or of what came if that is
/// more.
pub fn input_bytes(decl: &InputDecl) -> Linear {
    let elems = decl.ty.row_elems() as u64;
    let size = match decl.ty.dtype {
        // Ids may come as i64.
        DType::I32 => size_of::<i64>(),
        other => other.size().max(size_of::<f32>()),
    };
    let bytes = elems * size as u64;
    if is_sequence(decl) {
        Linear {
            per_row: bytes,
            per_sample: 0,
        }
    } else {
        Linear {
            per_row: 0,
            per_sample: bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        let texts = [0, 1023, 1024, 3_500_000, 5 << 30].map(bytes);
        assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "3.3 MiB", "5.0 GiB"]);
    }
}
