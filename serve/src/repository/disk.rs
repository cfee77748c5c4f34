//! What lies in the repository's folder: models, their versions, and whether they have changed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::proto::model_version_policy::PolicyChoice;

/// Files of a model with their sizes and dates.
pub(super) type Fingerprint = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// What is in the repository's folder.
#[derive(Default)]
pub(super) struct Folders {
    /// Names of those that may be models, in order.
    pub(super) models: Vec<String>,
    /// Names of what cannot be looked at, each with why; it may be a model.
    pub(super) unknown: Vec<(String, io::Error)>,
}

impl Folders {
    /// Looks into the repository's folder.
    ///
    /// # Errors
    /// A folder that cannot be read: what is in it is not known then.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        for entry in std::fs::read_dir(root)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            // What it says of itself can be had where the folder is not to be entered.
            let is_folder = entry.file_type().and_then(|kind| {
                Ok(kind.is_dir() || (kind.is_symlink() && leads_to_folder(&entry.path())?))
            });
            match is_folder {
                Ok(true) => found.models.push(name),
                Ok(false) => {}
                Err(error) => found.unknown.push((name, error)),
            }
        }
        found.models.sort();
        found.unknown.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Whether there is, or may be, a model of that name.
    pub(super) fn may_have(&self, name: &str) -> bool {
        let mut unknown = self.unknown.iter();
        self.models.iter().any(|n| n == name) || unknown.any(|(n, _)| n == name)
    }
}

/// Whether a link leads to a folder, as far as that can be seen.
///
/// # Errors
/// What is there and cannot be looked at.
fn leads_to_folder(link: &Path) -> io::Result<bool> {
    match std::fs::metadata(link) {
        Ok(there) => Ok(there.is_dir()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether a name is that of a folder right in the repository; others lead out of it.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// A version's number as folders and calls write it: digits alone, none of them a zero in front.
pub(super) fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Version numbers of a model's folder, ascending.
///
/// # Errors
/// A folder that cannot be read.
pub(super) fn versions(folder: &Path) -> Result<Vec<u64>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| Error::expected(folder.display(), "a readable folder", e))?;
    let mut there: Vec<u64> = Vec::new();
    for entry in entries {
        let unread = |e| Error::expected(folder.display(), "a readable folder", e);
        let entry = entry.map_err(unread)?;
        let number = entry.file_name().to_str().and_then(number);
        if let Some(version) = number.filter(|&v| v > 0)
            && leads_to_folder(&entry.path()).map_err(unread)?
        {
            there.push(version);
        }
    }
    there.sort_unstable();
    Ok(there)
}

/// Those that its policy chooses: the latest if it does not say.
pub(super) fn chosen(folder: &Path, config: &Config) -> Result<Vec<u64>> {
    let mut there = versions(folder)?;
    let policy = config.proto.version_policy.as_ref();
    let policy = policy.and_then(|p| p.policy_choice.as_ref());
    let chosen: Vec<u64> = match policy {
        Some(PolicyChoice::All(_)) => there,
        Some(PolicyChoice::Specific(specific)) => {
            let got = format!("{there:?}");
            there.retain(|&v| i64::try_from(v).is_ok_and(|v| specific.versions.contains(&v)));
            if there.is_empty() {
                let wanted = format!("one of {:?}", specific.versions);
                return Err(Error::expected("version_policy.specific", wanted, got));
            }
            there
        }
        Some(PolicyChoice::Latest(latest)) => {
            let num = latest.num_versions.max(1) as usize;
            there.split_off(there.len().saturating_sub(num))
        }
        None => there.split_off(there.len().saturating_sub(1)),
    };
    if chosen.is_empty() {
        return Err(Error::expected(
            "versions",
            "a folder named by a number above 0",
            "none",
        ));
    }
    Ok(chosen)
}

/// Sizes and dates of a model's files, two folders deep, and its folders, as the versions of an ensemble
/// are empty ones; of what is there and cannot be read, those that `before` has.
pub(super) fn fingerprint(folder: &Path, before: &Fingerprint) -> Fingerprint {
    let is_gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    let mut found = Fingerprint::new();
    let keep = |found: &mut Fingerprint, path: &Path| {
        let had = before.iter().filter(|(file, _)| file.starts_with(path));
        found.extend(had.map(|(file, told)| (file.clone(), *told)));
    };
    let mut open = vec![(folder.to_owned(), 0)];
    while let Some((dir, depth)) = open.pop() {
        let entries =
            match std::fs::read_dir(&dir).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
                Ok(entries) => entries,
                Err(e) if is_gone(&e) => continue,
                Err(_) => {
                    keep(&mut found, &dir);
                    continue;
                }
            };
        for path in entries.iter().map(std::fs::DirEntry::path) {
            match path.metadata() {
                Ok(meta) if meta.is_dir() && depth < 2 => {
                    // Its date is that of what lies in it.
                    found.insert(path.clone(), (0, None));
                    open.push((path, depth + 1));
                }
                Ok(meta) => drop(found.insert(path, (meta.len(), meta.modified().ok()))),
                Err(e) if is_gone(&e) => {}
                Err(_) => keep(&mut found, &path),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_chooses_among_folders_named_by_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["1", "3", "12", "0", "x", "-2", "+40", "050"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("20"), "a file").unwrap();
        let choose = |text: &str| {
            let config = Config::parse("c", text).unwrap();
            chosen(folder.path(), &config)
        };
        assert_eq!(choose("").unwrap(), [12]);
        assert_eq!(
            choose("version_policy { latest { num_versions: 2 } }").unwrap(),
            [3, 12]
        );
        assert_eq!(choose("version_policy { all {} }").unwrap(), [1, 3, 12]);
        assert_eq!(
            choose("version_policy { specific { versions: [1, 12] } }").unwrap(),
            [1, 12]
        );
        assert_eq!(
            choose("version_policy { specific { versions: [7, 12] } }").unwrap(),
            [12],
            "those that are there"
        );
        let told = choose("version_policy { specific { versions: 7 } }").unwrap_err();
        assert_eq!(
            told.to_string(),
            "version_policy.specific: expected one of [7], got [1, 3, 12]"
        );
        let empty = tempfile::tempdir().unwrap();
        assert!(chosen(empty.path(), &Config::default()).is_err());
    }

    #[test]
    fn a_change_of_a_file_changes_the_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("1").join("model.onnx");
        std::fs::create_dir_all(folder.path().join("1")).unwrap();
        let told = || fingerprint(folder.path(), &Fingerprint::new());
        let before = told();
        std::fs::write(&file, "a").unwrap();
        let one = told();
        std::fs::write(&file, "ab").unwrap();
        let two = told();
        std::fs::create_dir(folder.path().join("2")).unwrap();
        let three = told();
        assert!(before != one && one != two && two != three);
        assert_eq!(three, told());
    }

    #[test]
    fn what_cannot_be_read_is_no_change_and_what_is_gone_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir_all(model.join("1")).unwrap();
        std::fs::write(model.join("1").join("model.onnx"), "a").unwrap();
        std::fs::write(folder.path().join("other"), "b").unwrap();
        let before = fingerprint(&model, &Fingerprint::new());
        // A file is no folder that can be read, whoever asks.
        std::fs::rename(&model, folder.path().join("away")).unwrap();
        std::fs::write(&model, "no folder").unwrap();
        assert_eq!(fingerprint(&model, &before), before);
        std::fs::remove_file(&model).unwrap();
        assert!(fingerprint(&model, &before).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_looked_at_is_told_beside_the_models() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b", "a", ".hidden"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        std::fs::write(root.path().join("file"), "no model").unwrap();
        std::os::unix::fs::symlink("loop", root.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.path().join("gone")).unwrap();
        let found = Folders::read(root.path()).unwrap();
        assert_eq!(found.models, ["a", "b"]);
        let unknown: Vec<_> = found.unknown.iter().map(|(name, _)| name).collect();
        assert_eq!(unknown, ["loop"]);
        assert!(found.may_have("a") && found.may_have("loop") && !found.may_have("gone"));
        assert!(Folders::read(&root.path().join("none")).is_err());
    }
}
