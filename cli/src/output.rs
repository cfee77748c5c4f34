//! Standard output, and files that the user named.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::failure::BadInput;

/// Prints text. A reader that has gone away (`| head`) ends the process quietly.
///
/// # Errors
/// Any other fault of standard output.
pub fn text(text: impl fmt::Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        done => Ok(done?),
    }
}

/// As [`text`], with a newline at the end.
///
/// # Errors
/// As [`text`].
pub fn line(line: impl fmt::Display) -> anyhow::Result<()> {
    text(format_args!("{line}\n"))
}

/// Refuses output files that cannot be written, before there is anything to write: `(option,
/// file)`.
///
/// # Errors
/// [`BadInput`] about the first of them.
pub fn check<'a>(
    files: impl IntoIterator<Item = (&'static str, Option<&'a Path>)>,
) -> anyhow::Result<()> {
    for (option, path) in files {
        let Some(path) = path else { continue };
        let existed = path.exists();
        if existed && !path.is_file() && !path.is_dir() {
            // A terminal or a pipe: opening it could have effects.
            continue;
        }
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|e| unwritable(option, path, &e))?;
        if !existed {
            std::fs::remove_file(path).map_err(|e| unwritable(option, path, &e))?;
        }
    }
    Ok(())
}

fn unwritable(option: &str, path: &Path, e: &std::io::Error) -> BadInput {
    let path = path.display();
    BadInput(format!(
        "{option}: expected a file that can be written, got {path}: {e}"
    ))
}

/// Writes a whole file that the user named.
///
/// # Errors
/// [`BadInput`] if it cannot be written.
pub fn write(option: &'static str, path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).map_err(|e| unwritable(option, path, &e).into())
}

/// Creates a file that the user named.
///
/// # Errors
/// [`BadInput`] if it cannot be written.
pub fn create(option: &'static str, path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path).map_err(|e| unwritable(option, path, &e).into())
}
