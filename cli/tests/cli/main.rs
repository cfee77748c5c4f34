//! The program, by its command lines.

#[path = "../common/mod.rs"]
mod common;

mod bad_files;
mod bad_input;
mod bundle;
mod compare;
mod contract;
mod cuda;
mod deploy;
mod folder;
mod generalise;
mod manifest;
mod outputs;
mod replay;
mod serve;
mod sweep;
