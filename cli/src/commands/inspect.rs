//! `lazybatch inspect`.

use lazybatch_graph::{Segments, dump};

use crate::args::InspectArgs;
use crate::models::Model;
use crate::output;

/// Runs the command.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let model = Model::load(&args.model)?;
    let segments = Segments::per_node(&model.program);
    output::text(dump(&model.program, Some(&segments)))
}
