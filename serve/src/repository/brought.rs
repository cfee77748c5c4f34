//! What a client brings with a load: a configuration, and files that take the place of the model's
//! folder.
//!
//! Files lie in a folder of their own in the system's one for temporary files, which goes with the
//! model: with an unload, or the next load.
//!
//! Source: the model repository extension of the protocol, parameters `config` and `file:PATH`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::files::file_in;

/// What names of parameters that are files begin with; behind it comes the path in the model's folder.
pub const FILE: &str = "file:";

/// What a load call says beside the model's name. The folder goes with the last copy.
#[derive(Clone, Debug, Default)]
pub struct Brought {
    config: Option<Arc<str>>,
    files: Option<Arc<TempDir>>,
}

impl Brought {
    /// A JSON text in the place of the model's configuration.
    pub fn of_config(config: Option<String>) -> Self {
        Self {
            config: config.map(Arc::from),
            files: None,
        }
    }

    /// The text, if there is one.
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// The folder in the place of the model's, if files came along.
    pub fn folder(&self) -> Option<&Path> {
        self.files.as_deref().map(TempDir::path)
    }

    /// Writes a file to the folder; `parameter` is its name in the call.
    ///
    /// # Errors
    /// A path that leads out of the folder, no configuration beside it, what cannot be read or
    /// written.
    pub fn write(&mut self, parameter: &str, content: &mut impl Read) -> Result<()> {
        let what = || format!("parameter '{parameter}'");
        if self.config.is_none() {
            let expected = "parameter 'config' beside it";
            return Err(Error::expected(what(), expected, "none"));
        }
        let path = parameter.strip_prefix(FILE).unwrap_or(parameter);
        file_in(Path::new("the model's folder"), &what(), path)?;
        let kept = |e: io::Error| Error::Internal(format!("{}: cannot be kept: {e}", what()));
        let folder = match self.files.take() {
            Some(folder) => folder,
            None => {
                let mut named = tempfile::Builder::new();
                Arc::new(named.prefix("lazybatch-load-").tempdir().map_err(kept)?)
            }
        };
        let path = self.files.insert(folder).path().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(kept)?;
        }
        let mut file = File::create(&path).map_err(kept)?;
        io::copy(content, &mut file).map_err(|e| match e.kind() {
            // What decodes says so of what it reads.
            io::ErrorKind::InvalidData => Error::expected(what(), "base64", e),
            _ => kept(e),
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_their_folder_and_go_with_it() {
        let mut none = Brought::default();
        let told = none.write("file:1/a", &mut &b"x"[..]).unwrap_err();
        assert_eq!(
            told.to_string(),
            "parameter 'file:1/a': expected parameter 'config' beside it, got none"
        );
        let mut brought = Brought::of_config(Some("{}".into()));
        assert!(brought.folder().is_none());
        for name in ["file:", "file:../a", "file:/a", "file:1/../../a"] {
            let told = brought.write(name, &mut &b"x"[..]).unwrap_err().to_string();
            assert!(told.starts_with(&format!("parameter '{name}'")), "{told}");
        }
        assert!(brought.folder().is_none());
        brought.write("file:1/a", &mut &b"x"[..]).unwrap();
        brought.write("file:b", &mut &b"yz"[..]).unwrap();
        let folder = brought.folder().unwrap().to_owned();
        assert_eq!(fs::read(folder.join("1/a")).unwrap(), b"x");
        assert_eq!(fs::read(folder.join("b")).unwrap(), b"yz");
        // A file is no folder.
        let told = brought.write("file:b/c", &mut &b""[..]).unwrap_err();
        assert!(matches!(told, Error::Internal(_)), "{told}");
        drop(brought);
        assert!(!folder.exists());
    }
}
