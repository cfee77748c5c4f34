//! The `lazybatch` binary.
//!
//! Parses the command line, calls the libraries, prints. Exit status: 0 done, 2 wrong usage or bad
//! input, 1 anything else.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod failure;
mod gpus;
mod huge;
mod layers;
mod models;
mod output;
mod progress;
mod serve_args;

use std::process::ExitCode;

use crate::args::Command;

/// A server allocates and frees on many threads for each request.
#[global_allocator]
static ALLOCATOR: lazybatch_serve::Allocator = lazybatch_serve::Allocator;

fn main() -> ExitCode {
    let mut cli = match layers::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return failed(&error),
    };
    cli.command.join_policies();
    // A panic, a bug that has told of itself on the way, ends with status 1 too.
    let Ok(done) = std::panic::catch_unwind(|| run(&cli.command)) else {
        return ExitCode::FAILURE;
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Says why, and with which status it ends.
fn failed(error: &anyhow::Error) -> ExitCode {
    output::aside(format_args!("lazybatch: {}", failure::message(error)));
    if failure::is_bad_input(error) {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    command.check_classes()?;
    match command {
        Command::Compare(args) => commands::compare::run(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Sweep(args) => commands::sweep::run(args),
        Command::Generalise(args) => commands::generalise::run(args),
        Command::Profile(args) => commands::profile::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Serve(args) => commands::serve::run(args),
    }
}
