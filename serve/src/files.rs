//! Files that a configuration names in its model's folder.
//!
//! A configuration may come with a call, so what it names is looked for in that folder and nowhere
//! else.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// A file of that name in a folder, not outside of it; `what` names it. Links that lie in the folder
/// are its owner's, and are followed.
///
/// # Errors
/// A name that leads elsewhere.
pub fn file_in(folder: &Path, what: &str, file: &str) -> Result<PathBuf> {
    let is_plain = |c: Component<'_>| matches!(c, Component::Normal(_));
    if file.is_empty() || !Path::new(file).components().all(is_plain) {
        let what = format!("{what}: file in {}", folder.display());
        return Err(Error::expected(what, "a name", format!("'{file}'")));
    }
    Ok(folder.join(file))
}

/// Looks whether something that is there is a file to be read: who opens a pipe waits for its other end.
///
/// # Errors
/// What is not there, or is no such file.
pub fn regular(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_folder() {
        let folder = Path::new("/models/m");
        for file in ["labels.txt", "a/b.json", "..txt"] {
            assert_eq!(file_in(folder, "x", file), Ok(folder.join(file)));
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(regular(folder.path()).is_err() && regular(Path::new("/dev/null")).is_err());
        let file = folder.path().join("file");
        assert_eq!(regular(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, "").unwrap();
        assert!(regular(&file).is_ok());
        let folder = Path::new("/models/m");
        for file in ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "/"] {
            let told = file_in(folder, "label_filename", file).unwrap_err();
            let expected =
                format!("label_filename: file in /models/m: expected a name, got '{file}'");
            assert_eq!(told, Error::Invalid(expected));
        }
    }
}
