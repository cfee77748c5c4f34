//! Maps files into memory: the only unsafe code of this crate.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// Maps the file at `path` for reading.
///
/// # Errors
/// What opening or mapping it fails with; an empty file cannot be mapped on every system.
pub(crate) fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "a directory"));
    }
    #[allow(
        unsafe_code,
        reason = "mapping a file is unsafe in every crate that offers it"
    )]
    // SAFETY: The map is read-only and private to its owner. Weight files are replaced, not edited
    // in place, by those who write them; a file that shrinks under us ends the process by a signal.
    unsafe {
        Mmap::map(&file)
    }
}
