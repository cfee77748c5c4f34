//! Memory that a client on the same machine shares by name.
//!
//! A POSIX shared memory object is a file of a memory file system; it is read and written as one,
//! so that a client that changes or cuts it meanwhile spoils its own tensors and nothing else. A symbolic
//! link there is no object: it could lead to any file of the server.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, RwLock};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::memory::Tab;

/// Where shared memory objects are.
const FOLDER: &str = "/dev/shm";
/// Most regions at once.
pub const MAX_REGIONS: usize = 1024;
/// Most bytes of a region's name.
const MOST_NAME: usize = 1024;

/// A registered region.
#[derive(Debug)]
pub struct Registered {
    /// Name of the object.
    pub key: String,
    /// First byte in the object.
    pub offset: u64,
    /// Number of bytes.
    pub byte_size: u64,
    file: File,
}

/// A part of a region.
#[derive(Clone, Debug)]
pub struct Region {
    name: String,
    of: Arc<Registered>,
    offset: u64,
    byte_size: u64,
}

/// The regions that clients have registered.
#[derive(Debug, Default)]
pub struct Regions(RwLock<BTreeMap<String, Arc<Registered>>>);

impl Regions {
    fn map(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Registered>>> {
        self.0
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn map_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Arc<Registered>>> {
        self.0
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Registers `byte_size` bytes at `offset` of the object `key` under `name`.
    ///
    /// # Errors
    /// A name that is taken, an object that is not there or too small.
    pub fn register(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<()> {
        let fail = |why: String| {
            Error::Invalid(format!(
                "Unable to open shared memory region: '{key}': {why}"
            ))
        };
        if name.is_empty() {
            let what = "name of a shared memory region";
            return Err(Error::expected(what, "one", "none"));
        }
        if name.len() > MOST_NAME {
            let what = "name of a shared memory region";
            let (expected, got) = (format!("at most {MOST_NAME} bytes"), name.len());
            return Err(Error::expected(what, expected, format!("{got} bytes")));
        }
        let plain = key.strip_prefix('/').unwrap_or(key);
        if plain.is_empty() || plain.contains('/') || plain.starts_with('.') {
            return Err(fail("expected the name of a shared memory object".into()));
        }
        let file = open(plain).map_err(|e| fail(e.to_string()))?;
        let metadata = file.metadata().map_err(|e| fail(e.to_string()))?;
        let end = offset
            .checked_add(byte_size)
            .filter(|&end| end <= metadata.len());
        if !metadata.is_file() || byte_size == 0 || end.is_none() {
            let kind = match metadata.is_file() {
                true => format!("an object of {} bytes", metadata.len()),
                false => "no object of memory".into(),
            };
            return Err(fail(format!(
                "expected 1 byte or more at offset {offset} within it, got {byte_size} of {kind}"
            )));
        }
        let mut map = self.map_mut();
        if map.contains_key(name) {
            let message = format!("shared memory region '{name}' already in manager");
            return Err(Error::Exists(message));
        }
        if map.len() >= MAX_REGIONS {
            let message = format!("expected at most {MAX_REGIONS} shared memory regions");
            return Err(Error::Unavailable(message));
        }
        let registered = Registered {
            key: key.to_owned(),
            offset,
            byte_size,
            file,
        };
        map.insert(name.to_owned(), Arc::new(registered));
        Ok(())
    }

    /// Forgets a region, or all of them if `name` is empty. One that is not there is no error.
    pub fn unregister(&self, name: &str) {
        let mut map = self.map_mut();
        if name.is_empty() {
            map.clear();
        } else {
            map.remove(name);
        }
    }

    /// The region called `name`, or all of them if it is empty.
    ///
    /// # Errors
    /// No such region.
    pub fn status(&self, name: &str) -> Result<Vec<(String, Arc<Registered>)>> {
        let map = self.map();
        if name.is_empty() {
            return Ok(map.iter().map(|(n, r)| (n.clone(), r.clone())).collect());
        }
        let found = map.get(name).ok_or_else(|| unknown(name))?;
        Ok(vec![(name.to_owned(), found.clone())])
    }

    /// `byte_size` bytes at `offset` of the region called `name`.
    ///
    /// # Errors
    /// No such region, or a part beyond its end.
    pub fn part(&self, name: &str, offset: u64, byte_size: u64) -> Result<Region> {
        let of = self.map().get(name).cloned().ok_or_else(|| unknown(name))?;
        let end = offset.checked_add(byte_size);
        if end.is_none_or(|end| end > of.byte_size) {
            return Err(Error::Invalid(format!(
                "Invalid offset + byte size for shared memory region: '{name}': expected at most \
                 {} bytes, got {byte_size} at offset {offset}",
                of.byte_size
            )));
        }
        Ok(Region {
            name: name.to_owned(),
            of,
            offset,
            byte_size,
        })
    }
}

/// The object of that name.
fn open(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    let opened = options
        .custom_flags(libc::O_NOFOLLOW)
        .open(Path::new(FOLDER).join(name));
    opened.map_err(|e| match e.raw_os_error() {
        // It is a link.
        Some(libc::ELOOP) => io::Error::from_raw_os_error(libc::ENOENT),
        _ => e,
    })
}

fn unknown(name: &str) -> Error {
    Error::NotFound(format!("Unable to find shared memory region: '{name}'"))
}

/// Why no region of a GPU can be registered.
pub fn no_cuda() -> Error {
    Error::Unsupported("this server has no CUDA shared memory".into())
}

/// There is no region of a GPU of that name, whatever it is.
pub fn unknown_cuda(name: &str) -> Error {
    Error::NotFound(format!(
        "Unable to find cuda shared memory region: '{name}'"
    ))
}

impl Region {
    /// Name of the region, offset and size of the part.
    pub fn place(&self) -> (&str, u64, u64) {
        (&self.name, self.offset, self.byte_size)
    }

    fn fail(&self, e: &io::Error) -> Error {
        Error::Invalid(format!("shared memory region '{}': {e}", self.name))
    }

    /// Its bytes as the tensor `what`, which go on `tab`.
    ///
    /// # Errors
    /// An object that has become too small, more bytes than a tensor or all requests may have.
    pub fn read(&self, what: &str, tab: &Tab) -> Result<Bytes> {
        let size = usize::try_from(self.byte_size).unwrap_or(usize::MAX);
        tab.check_tensor(what, size)?;
        tab.add(size)?;
        let mut bytes = vec![0; size];
        let at = self.of.offset + self.offset;
        let read = self.of.file.read_exact_at(&mut bytes, at);
        read.map_err(|e| self.fail(&e))?;
        Ok(bytes.into())
    }

    /// Looks whether an output of `size` bytes goes into it.
    ///
    /// # Errors
    /// More bytes than it has.
    pub fn check(&self, size: usize) -> Result<()> {
        if size as u64 > self.byte_size {
            let what = format!("shared memory region '{}'", self.name);
            let expected = format!("at least {size} bytes for the output");
            return Err(Error::expected(what, expected, self.byte_size));
        }
        Ok(())
    }

    /// Puts `bytes` at its start.
    ///
    /// # Errors
    /// More bytes than it has, or an object that cannot be written.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.check(bytes.len())?;
        let at = self.of.offset + self.offset;
        let written = self.of.file.write_all_at(bytes, at);
        written.map_err(|e| self.fail(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn tensors_go_through_a_region() {
        let file = tempfile::Builder::new()
            .prefix("lazybatch")
            .tempfile_in(FOLDER)
            .unwrap();
        file.as_file().set_len(64).unwrap();
        let key = file.path().file_name().unwrap().to_str().unwrap();
        let regions = Regions::default();
        let long = regions.register(&"r".repeat(MOST_NAME + 1), key, 8, 32);
        let told = long.unwrap_err().to_string();
        assert!(
            told.ends_with("at most 1024 bytes, got 1025 bytes"),
            "{told}"
        );
        regions.register("r", key, 8, 32).unwrap();
        assert!(
            regions.register("r", key, 0, 8).is_err(),
            "the name is taken"
        );
        assert!(regions.register("s", key, 60, 8).is_err(), "too large");
        let part = regions.part("r", 16, 4).unwrap();
        part.write(b"abcd").unwrap();
        assert!(part.write(b"abcde").is_err());
        let tab = Arc::new(Memory::new(100, 16)).tab();
        let read = |part: &Region| part.read("input 'x'", &tab);
        let around = regions.part("r", 15, 6).unwrap();
        assert_eq!(&read(&around).unwrap()[..], b"\0abcd\0");
        let large = read(&regions.part("r", 0, 17).unwrap()).unwrap_err();
        assert!(
            large.to_string().contains("limit for one tensor"),
            "{large}"
        );
        assert!(regions.part("r", 30, 4).is_err());
        assert!(regions.part("r", u64::MAX, 4).is_err());
        file.as_file().set_len(8).unwrap();
        assert!(read(&part).is_err(), "cut by its owner");
        regions.unregister("r");
        assert!(matches!(regions.status("r"), Err(Error::NotFound(_))));
    }

    #[test]
    fn keys_name_objects_and_no_other_files() {
        let regions = Regions::default();
        for key in ["../etc/passwd", "/", "a/b", ".."] {
            assert!(regions.register("r", key, 0, 1).is_err(), "{key}");
        }
    }

    #[test]
    fn links_are_no_objects() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64).unwrap();
        let object = tempfile::Builder::new()
            .prefix("lazybatch")
            .tempfile_in(FOLDER)
            .unwrap();
        object.as_file().set_len(64).unwrap();
        let links = tempfile::Builder::new()
            .prefix("lazybatch")
            .tempdir_in(FOLDER)
            .unwrap();
        let name = links.path().file_name().unwrap().to_str().unwrap();
        let regions = Regions::default();
        for (i, to) in [file.path(), object.path()].into_iter().enumerate() {
            let key = format!("{name}-link-{i}");
            let link = Path::new(FOLDER).join(&key);
            std::os::unix::fs::symlink(to, &link).unwrap();
            let told = |key: &str| {
                let refused = regions.register("r", key, 0, 8).unwrap_err();
                refused.to_string().replace(key, "KEY")
            };
            let (of_link, of_none) = (told(&key), told(&format!("{name}-none")));
            std::fs::remove_file(&link).unwrap();
            assert_eq!(of_link, of_none);
        }
    }
}
