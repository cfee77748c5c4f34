//! Dry runs: all the work of a command, and no figure of it.
//!
//! It is how commands that measure run on an emulated GPU, whose times say nothing about a GPU.
//! What they write is no profile and no results file, and is refused as one.

use std::path::Path;

use serde_json::{Map, Value};

use crate::output;

/// The value of `format` in what a dry run writes.
const FORMAT: &str = "lazybatch-dry/1";

/// What every file of a dry run says.
pub fn file(command: &str, device: &str, is_emulator: bool, model: &str) -> Map<String, Value> {
    let entries: [(&str, Value); 5] = [
        ("format", FORMAT.into()),
        ("command", command.into()),
        ("device", device.into()),
        ("emulator", is_emulator.into()),
        ("model", model.into()),
    ];
    entries
        .map(|(key, value)| (key.into(), value))
        .into_iter()
        .collect()
}

/// Writes it.
///
/// # Errors
/// A file that cannot be written.
pub fn write(option: &'static str, path: &Path, file: Map<String, Value>) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(&Value::Object(file))?;
    output::write(option, path, &format!("{text}\n"))?;
    output::line(format_args!(
        "{}: a dry run, without figures",
        path.display()
    ))
}
