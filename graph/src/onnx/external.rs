//! Data that tensors keep in other files, beside the model.
//!
//! A place is relative and stays within the folder of the model, links followed. All that is read is
//! bounded by the limit of bytes of a file: many tensors may name the same bytes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;

use super::proto::TensorProto;
use super::{Error, Limits};

/// What lies beside a model.
#[derive(Default)]
pub struct Beside {
    /// Folder of the model; none where there are only its bytes.
    folder: Option<PathBuf>,
    maps: RefCell<BTreeMap<PathBuf, Mmap>>,
    taken: Cell<usize>,
}

impl Beside {
    /// What lies beside the model file at `path`.
    pub fn of(path: &Path) -> Self {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        Self {
            folder: Some(folder.unwrap_or(Path::new(".")).to_owned()),
            ..Self::default()
        }
    }

    /// Hands the `size` bytes of tensor `t` to `read`.
    ///
    /// # Errors
    /// [`Error::Invalid`] at `place` for a place that is not within the folder, or that has not as many
    /// bytes.
    pub fn with<T>(
        &self,
        place: &str,
        t: &TensorProto,
        size: usize,
        limits: &Limits,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Error> {
        let bad = |what: &str, expected: &dyn std::fmt::Display, got: &dyn std::fmt::Display| {
            Error::invalid(place, what, expected, got)
        };
        let Some(folder) = self.folder.as_deref().filter(|_| t.data_location == 1) else {
            let expected = "data in the file itself";
            return Err(bad("data location", &expected, &"an external file"));
        };
        let entry = |key: &str| {
            let found = t.external_data.iter().find(|e| e.key == key);
            found.map(|e| e.value.as_str())
        };
        let number = |key: &str| {
            let number = entry(key).map(str::parse::<usize>);
            number.transpose().map_err(|_| {
                let got = entry(key).unwrap_or_default();
                bad(&format!("external {key}"), &"a number of bytes", &got)
            })
        };
        let location = entry("location").unwrap_or_default();
        let offset = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?.filter(|&n| n != size) {
            let expected = format!("{size}, the bytes of its elements");
            return Err(bad("external length", &expected, &length));
        }
        let taken = self.taken.get().saturating_add(size);
        if taken > limits.file_bytes {
            let expected = format!("at most {}", limits.file_bytes);
            return Err(bad("bytes in external files so far", &expected, &taken));
        }
        self.taken.set(taken);
        let path = within(folder, location).map_err(|got| {
            let expected = "a file within the folder of the model";
            bad(
                "external location",
                &expected,
                &format!("{location:?}: {got}"),
            )
        })?;
        let mut maps = self.maps.borrow_mut();
        if !maps.contains_key(&path) && size > 0 {
            let map = crate::mmap::map(&path).map_err(|e| {
                let got = format!("{location:?}: {e}");
                bad("external location", &"a file that can be mapped", &got)
            })?;
            maps.insert(path.clone(), map);
        }
        let all = maps.get(&path).map_or(&[][..], |map| &map[..]);
        let end = offset.checked_add(size);
        match end.and_then(|end| all.get(offset..end)) {
            Some(bytes) => Ok(read(bytes)),
            None if size == 0 => Ok(read(&[])),
            None => {
                let expected = format!("{size} bytes from byte {offset} on");
                let got = format!("{} bytes in all", all.len());
                Err(bad(&format!("external file {location:?}"), &expected, &got))
            }
        }
    }
}

/// The file at `location`, which is within `folder` whatever links there are.
fn within(folder: &Path, location: &str) -> Result<PathBuf, String> {
    let mut parts = Path::new(location).components();
    let inside = parts.all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside || location.is_empty() || location.contains('\\') {
        return Err("not a relative path below it".into());
    }
    let real = |path: &Path| path.canonicalize().map_err(|e| e.to_string());
    let (folder, path) = (real(folder)?, real(&folder.join(location))?);
    if !path.starts_with(&folder) {
        return Err("a link out of it".into());
    }
    if !path.is_file() {
        return Err("not a file".into());
    }
    Ok(path)
}
