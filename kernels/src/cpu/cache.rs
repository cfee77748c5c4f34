//! Packed weights on disk.
//!
//! With [`CpuOptions::weight_cache`](super::CpuOptions::weight_cache) set, a weight that had to be
//! packed is written to a file of that folder, and the next load maps the file instead. A file's
//! name is a hash of everything that its content depends on: the elements (or what they are made
//! from), their dims, the form, the weight type, the SIMD level and the version of the layout. The
//! folder may be deleted at any time, and shared by any number of processes.
//!
//! Invariants:
//! 1. What is mapped has the bits that packing would give: length and checksum are verified before
//!    a file is used. A damaged one is reported, ignored, and replaced.
//! 2. A file appears whole or not at all: it is written under another name first.
//! 3. A cache that cannot be read or written costs time, never a load.
//!
//! Layout of a file, little-endian: 24 bytes of tag, the key (u128), the number of elements (u64),
//! the checksum of the elements (u128), the elements. Hashes are XXH3 of 128 bits, which guards
//! against accidents; whoever may write to the folder is trusted.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use lazybatch_graph::{Bytes, WeightDecl, WeightSource};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::gemm::WeightType;
use super::level::Level;
use super::stored::Stored;

/// Start of every file; to be changed with every change of a packed layout.
const TAG: &[u8; 24] = b"lazybatch-weight/1\0\0\0\0\0\0";
/// Bytes in front of the elements: a cache line.
const HEADER: usize = 64;
/// Fewest bytes that are worth a file: less is packed as fast as a file is opened.
const SMALLEST: usize = 32 << 10;

/// What the cache did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Weights that were mapped.
    pub mapped: usize,
    /// Weights that were packed and written.
    pub written: usize,
    /// What was wrong with files, or with the folder.
    pub warnings: Vec<String>,
}

/// How a weight is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The right side of a product.
    Right(WeightType),
    /// Filters of a convolution in so many groups.
    Filters {
        /// Channel groups.
        groups: usize,
    },
}

/// What a packed weight depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u128);

/// The cache of a device.
#[derive(Debug)]
pub struct WeightCache {
    folder: PathBuf,
    level: Level,
    warn: fn(&str),
    report: CacheReport,
}

impl WeightCache {
    /// The cache in `folder`, which need not exist.
    pub fn new(folder: PathBuf, level: Level, warn: fn(&str)) -> Self {
        Self {
            folder,
            level,
            warn,
            report: CacheReport::default(),
        }
    }

    /// What it did so far.
    pub fn report(&self) -> &CacheReport {
        &self.report
    }

    /// The key of a weight, or none if it is not worth a file; `len` is the number of its packed
    /// elements.
    pub fn key(&self, weight: &WeightDecl, packing: Packing, len: usize) -> Option<Key> {
        if len * size_of::<f32>() < SMALLEST {
            return None;
        }
        let mut hash = Xxh3::new();
        let facts = format!(
            "{TAG:?} {} {packing:?} {len} {} {:?}",
            self.level.name(),
            weight.ty,
            weight.ty.fixed_dims(),
        );
        hash.update(facts.as_bytes());
        match &weight.source {
            WeightSource::Data(tensor) => {
                hash.update(format!("data {} {:?} ", tensor.dtype, tensor.dims).as_bytes());
                hash.update(tensor.data.as_slice());
            }
            WeightSource::Constant(value) => {
                hash.update(format!("constant {}", value.to_bits()).as_bytes());
            }
            WeightSource::Seeded { seed, bound } => {
                hash.update(format!("seeded {seed} {}", bound.to_bits()).as_bytes());
            }
        }
        Some(Key(hash.digest128()))
    }

    /// The `len` elements under `key`, if they are there and whole.
    pub fn find(&mut self, key: Key, len: usize) -> Option<Stored> {
        let path = self.path(key);
        match read(&path, key, len) {
            Ok(stored) => {
                self.report.mapped += 1;
                Some(stored)
            }
            Err(Unusable::Missing) => None,
            Err(Unusable::Damaged(why)) => {
                self.warn(format!(
                    "weight cache: {}: {why}; packed again",
                    path.display()
                ));
                None
            }
        }
    }

    /// Writes the elements of `parts`, one part after another, under `key`.
    pub fn keep(&mut self, key: Key, parts: &[&[f32]]) {
        match write(&self.folder, &self.path(key), key, parts) {
            Ok(()) => self.report.written += 1,
            Err(e) => {
                let expected = "expected a folder that can be written";
                self.warn(format!(
                    "weight cache: {}: {expected}, got: {e}",
                    self.folder.display()
                ));
            }
        }
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{:032x}.weight", key.0))
    }

    fn warn(&mut self, text: String) {
        // The same trouble with every weight is said once.
        if !self.report.warnings.contains(&text) {
            (self.warn)(&text);
            self.report.warnings.push(text);
        }
    }
}

/// Why a file is of no use.
enum Unusable {
    Missing,
    Damaged(String),
}

fn read(path: &Path, key: Key, len: usize) -> Result<Stored, Unusable> {
    let file = match Bytes::map(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Unusable::Missing),
        Err(e) => return Err(Unusable::Damaged(e.to_string())),
    };
    let bytes = file.as_slice();
    let damaged = |what: &str, expected: String, got: String| {
        Err(Unusable::Damaged(format!(
            "{what}: expected {expected}, got {got}"
        )))
    };
    let size = HEADER + len * size_of::<f32>();
    if bytes.len() != size {
        return damaged("length", format!("{size} bytes"), bytes.len().to_string());
    }
    let (found, elements) = bytes.split_at(HEADER);
    let expected = header(key, len, xxh3_128(elements));
    if found[..48] != expected[..48] {
        return damaged("header", "that of its name".into(), "another".into());
    }
    if found != expected {
        return damaged("checksum", "that of its elements".into(), "another".into());
    }
    Ok(Stored::Mapped {
        file,
        start: HEADER,
        len,
    })
}

fn header(key: Key, len: usize, checksum: u128) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..24].copy_from_slice(TAG);
    bytes[24..40].copy_from_slice(&key.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&(len as u64).to_le_bytes());
    bytes[48..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A name that no other writer has, in this process or elsewhere.
fn fresh_name() -> String {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    format!("{process:016x}-{number}.new")
}

fn write(folder: &Path, path: &Path, key: Key, parts: &[&[f32]]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut hash = Xxh3::new();
    for part in parts {
        hash.update(bytemuck::cast_slice(part));
    }
    let len = parts.iter().map(|p| p.len()).sum();
    let fresh = path.with_extension(fresh_name());
    // Nothing is forced to the disk: after a crash of the system a file may be damaged, which shows.
    let written = File::create_new(&fresh)
        .and_then(|mut file| {
            file.write_all(&header(key, len, hash.digest128()))?;
            let mut parts = parts.iter();
            parts.try_for_each(|part| file.write_all(bytemuck::cast_slice(part)))
        })
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // What was written so far is of no use; the first error is what matters.
        let _ = fs::remove_file(&fresh);
    }
    written
}
