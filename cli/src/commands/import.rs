//! `lazybatch import`.

use lazybatch_graph::folder;
use lazybatch_kernels::import::{Options, TOLERANCE, import};

use crate::args::ImportArgs;
use crate::{output, progress};

/// Runs the command.
pub fn run(args: &ImportArgs) -> anyhow::Result<()> {
    folder::check_target(&args.out)?;
    let options = Options {
        name: args.name.clone(),
        batch: args.batch_axis.clone(),
        sequence: args.sequence_axis.clone(),
        max_len: args.max_len,
        masks: args.mask.clone(),
        fixed: args.set.clone(),
        sizes: args.size.clone(),
        carried: args.carry.clone(),
    };
    let bar = progress::bar(2, "import");
    let program = import(&args.file, &options)?;
    bar.inc(1);
    folder::save(&program, &args.out)?;
    bar.finish_and_clear();
    output::line(format_args!(
        "{}: {}, {} nodes in {} blocks, {} parameters; outputs agree with the graph within {TOLERANCE:e}",
        args.out.display(),
        program.name,
        program.nodes.len(),
        program.blocks.len(),
        program.num_parameters(),
    ))
}
