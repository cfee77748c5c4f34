//! DLRM: click prediction from dense and categorical features.
//!
//! A bottom network over 13 numbers, a bag of embeddings for each of 26 categories, pairwise dot
//! products, and a top network with a sigmoid at its end. Table sizes are those of the Criteo
//! Kaggle data; `CUT` limits them, as the reference's `--max-ind-range` does, so that the model
//! fits a small machine.
//! Source: Naumov et al., "Deep learning recommendation model for personalization and
//! recommendation systems"; the reference implementation's `dlrm_s_criteo_kaggle.sh`: bottom
//! 13-512-256-64-16, top 512-256-1, embeddings of 16.

use lazybatch_graph::{Act, DType, Error, Program, ProgramBuilder, Repeat, ValueId};

/// Dense features.
pub const DENSE: usize = 13;
/// Features of an embedding.
const D: usize = 16;

/// Categories of the Criteo Kaggle data.
pub const TABLES: [usize; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27,
    14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Sizes of a DLRM.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Name of the model.
    pub name: &'static str,
    /// Most rows of a table.
    pub max_rows: usize,
}

impl Config {
    /// All rows: 540,201,232 parameters in tables.
    pub const KAGGLE: Self = Self {
        name: "dlrm-kaggle",
        max_rows: usize::MAX,
    };
    /// At most 100,000 rows.
    pub const CUT: Self = Self {
        name: "dlrm",
        max_rows: 100_000,
    };

    /// Builds it: inputs `dense [13]`, `c0 [1]` to `c25 [1]`, output `click [1]`.
    ///
    /// # Errors
    /// A bug of the builder.
    pub fn build(&self) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new(self.name);
        let dense = b.input("dense", DType::F32, &[DENSE]);
        let rows = TABLES.map(|n| n.min(self.max_rows));
        let ids: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(i, &bound)| b.input_ids(&format!("c{i}"), &[1], bound))
            .collect();
        let click = b.output("click", DType::F32, &[1]);
        b.begin_block("main", Repeat::Once);
        let x = b.read_input("dense", dense);
        let bottom = mlp(&mut b, "bottom", x, &[512, 256, 64, D]);
        let mut features = vec![bottom];
        for (i, (id, rows)) in ids.into_iter().zip(rows).enumerate() {
            let id = b.read_input(&format!("c{i}"), id);
            let table = b.seeded_within(&format!("table{i}"), &[rows, D], 1.0);
            features.push(b.embedding_bag(&format!("bag{i}"), id, table));
        }
        let all = b.concat("features", &features);
        let all = b.reshape("vectors", all, &[features.len(), D]);
        let dots = b.interaction("interaction", all);
        let x = b.concat("top.input", &[bottom, dots]);
        let x = mlp(&mut b, "top", x, &[512, 256]);
        let y = b.dense("top.2", x, 1, Some(Act::Sigmoid));
        b.emit("click", click, y);
        b.finish()
    }
}

fn mlp(b: &mut ProgramBuilder, name: &str, mut x: ValueId, widths: &[usize]) -> ValueId {
    for (i, &n) in widths.iter().enumerate() {
        x = b.dense(&format!("{name}.{i}"), x, n, Some(Act::Relu));
    }
    x
}
