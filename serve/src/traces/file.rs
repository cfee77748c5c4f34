//! Files of traces: JSON arrays in one folder, written by a thread of their own.
//!
//! Invariants:
//! 1. A file is a whole array between two writes, also after one that failed.
//! 2. What waits to be written is bounded, and so is all that is written, and by how many names; what
//!    does not fit is dropped, counted, and logged once.
//! 3. No file is open between two writes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::{Error, Result};

/// Writes that wait.
const MOST_WAITING: usize = 16;
/// Bytes of writes that wait; more than a write may have.
const MOST_WAITING_BYTES: usize = 8 << 20;
/// Names of files in a run; numbers behind them do not count.
const MOST_NAMES: usize = 1024;
/// How long the end waits for what is still to be written.
const PATIENCE: Duration = Duration::from_secs(5);
/// The end of a file.
const CLOSE: &str = "\n]";

/// Where traces go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceDir {
    /// A folder that is there.
    pub folder: PathBuf,
    /// Most bytes that one run of the server writes.
    pub max_bytes: u64,
}

/// Traces that go to a file.
pub(super) struct Text {
    /// Its name.
    pub file: String,
    /// Whether they have a file of their own, whose name ends in a number.
    pub is_numbered: bool,
    /// Members of an array, with commas between them.
    pub members: String,
    /// How many traces these are.
    pub num: u64,
}

/// Traces that were written, and that were not.
#[derive(Debug, Default)]
pub struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    /// Traces that are in files.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Traces that were lost.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lose(&self, num: u64, why: impl std::fmt::Display) {
        if self.dropped.fetch_add(num, Ordering::Relaxed) == 0 {
            let why = why.to_string();
            tracing::warn!(why, "traces are dropped; this is logged once");
        }
    }
}

/// Writes traces.
pub(super) struct Writer {
    to: Mutex<Option<SyncSender<Text>>>,
    /// Bytes that were handed over and not written yet.
    waiting: Arc<AtomicUsize>,
    counts: Arc<Counts>,
    /// Nothing comes, but it closes when the thread ends.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Writer {
    /// Into the folder.
    ///
    /// # Errors
    /// No such folder, or no thread.
    pub fn open(dir: &TraceDir) -> Result<Self> {
        if !dir.folder.is_dir() {
            let what = "the folder of traces";
            return Err(Error::expected(what, "a folder", dir.folder.display()));
        }
        let (to, from) = sync_channel(MOST_WAITING);
        let counts = Arc::new(Counts::default());
        let files = Files {
            dir: dir.clone(),
            known: BTreeMap::new(),
            bytes: 0,
        };
        let waiting = Arc::new(AtomicUsize::new(0));
        let (ends, ended) = oneshot::channel::<()>();
        let (own, own_waiting) = (counts.clone(), waiting.clone());
        thread::Builder::new()
            .name("traces".into())
            .spawn(move || {
                files.run(&from, &own_waiting, &own);
                drop(ends);
            })
            .map_err(|e| Error::Internal(format!("a thread for traces: {e}")))?;
        Ok(Self {
            to: Mutex::new(Some(to)),
            waiting,
            counts,
            ended: Mutex::new(Some(ended)),
        })
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Hands traces to the thread, or drops them where too many wait.
    pub fn write(&self, text: Text) {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let (num, bytes) = (text.num, text.members.len());
        // The thread takes away no more than was added here, before it can see the text.
        let fits = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= MOST_WAITING_BYTES;
        let sent = fits && to.as_ref().is_some_and(|to| to.try_send(text).is_ok());
        if !sent {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.lose(num, "too many wait to be written");
        }
    }

    /// Waits until all is written, but not for a disk that hangs; what comes then is dropped.
    pub async fn end(&self) {
        drop(
            self.to
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(ended) = ended else { return };
        // It closes also with a thread that panicked, which has been told of.
        if timeout(PATIENCE, ended).await.is_err() {
            tracing::warn!("ended with traces that are not written");
        }
    }
}

/// What the thread knows of the files of this run.
struct Files {
    dir: TraceDir,
    known: BTreeMap<String, Known>,
    bytes: u64,
}

#[derive(Default)]
struct Known {
    /// The number of the next numbered file.
    next: u64,
    /// How long the one without a number is as a whole array, if this run has begun it.
    plain: Option<u64>,
}

impl Files {
    fn run(mut self, from: &Receiver<Text>, waiting: &AtomicUsize, counts: &Counts) {
        for text in from {
            let (num, bytes) = (text.num, text.members.len());
            match self.write(text) {
                Ok(()) => _ = counts.written.fetch_add(num, Ordering::Relaxed),
                Err(why) => counts.lose(num, why),
            }
            waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn write(&mut self, text: Text) -> io::Result<()> {
        let bytes = text.members.len() as u64 + 4;
        if self.bytes + bytes > self.dir.max_bytes {
            return Err(io::Error::other("as many bytes are written as may be"));
        }
        if self.known.len() >= MOST_NAMES && !self.known.contains_key(&text.file) {
            return Err(io::Error::other("as many files are named as may be"));
        }
        let path = self.dir.folder.join(&text.file);
        let known = self.known.entry(text.file).or_default();
        if text.is_numbered {
            let mut numbered = path.into_os_string();
            numbered.push(format!(".{}", known.next));
            known.next += 1;
            begin(Path::new(&numbered), &text.members)?;
        } else {
            let begun = known.plain.map(|good| reopen(&path, good)).transpose()?;
            known.plain = Some(match (known.plain, begun.flatten()) {
                (Some(good), Some(file)) => append(file, good, &text.members)?,
                _ => begin(&path, &text.members)?,
            });
        }
        self.bytes += bytes;
        Ok(())
    }
}

/// Makes a file of these members alone: its length. An error leaves none behind.
fn begin(path: &Path, members: &str) -> io::Result<u64> {
    let whole = format!("[\n{members}{CLOSE}");
    let mut file = File::create(path)?;
    if let Err(why) = file.write_all(whole.as_bytes()) {
        // That it cannot be removed either says no more than why it was to be.
        let _ = fs::remove_file(path);
        return Err(why);
    }
    Ok(whole.len() as u64)
}

/// A file that was begun and is still there, with all of its `good` bytes.
fn reopen(path: &Path, good: u64) -> io::Result<Option<File>> {
    let file = match OpenOptions::new().write(true).open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    Ok((file.metadata()?.len() >= good).then_some(file))
}

/// Adds members to an array of `good` bytes: its length then. After an error it is as it was.
fn append(mut file: File, good: u64, members: &str) -> io::Result<u64> {
    let end = good.saturating_sub(CLOSE.len() as u64);
    let mut put = |text: &str| {
        file.set_len(good)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(text.as_bytes())
    };
    let tail = format!(",\n{members}{CLOSE}");
    if let Err(why) = put(&tail) {
        // Where this fails too, the next write puts it right.
        let _ = put(CLOSE);
        return Err(why);
    }
    Ok(end + tail.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path, max_bytes: u64) -> Files {
        Files {
            dir: TraceDir {
                folder: folder.to_owned(),
                max_bytes,
            },
            known: BTreeMap::new(),
            bytes: 0,
        }
    }

    fn text(file: &str, is_numbered: bool, members: &str) -> Text {
        Text {
            file: file.into(),
            is_numbered,
            members: members.into(),
            num: 1,
        }
    }

    #[test]
    fn a_file_is_a_whole_array_after_each_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "of a run before").unwrap();
        let mut files = files(folder.path(), 1 << 20);
        let mut write = |members| files.write(text("a", false, members)).unwrap();
        let is = |whole: &str| assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        write("1");
        is("[\n1\n]");
        write("2,\n3");
        is("[\n1,\n2,\n3\n]");
        // What a failed write left behind goes with the next one.
        fs::write(&path, "[\n1,\n2,\n3,\n4, torn").unwrap();
        write("4");
        is("[\n1,\n2,\n3,\n4\n]");
        // Taken away, it is begun again.
        fs::remove_file(&path).unwrap();
        write("5");
        is("[\n5\n]");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_write_that_fails_leaves_no_file_and_costs_no_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), 1 << 20);
        for (name, is_numbered) in [("full", false), ("full.0", true)] {
            let path = folder.path().join(name);
            std::os::unix::fs::symlink("/dev/full", &path).unwrap();
            files.write(text("full", is_numbered, "1")).unwrap_err();
            assert!(fs::symlink_metadata(&path).is_err(), "{name}");
        }
        assert_eq!(files.bytes, 0);
        files.write(text("full", false, "1")).unwrap();
        assert_eq!(files.bytes, 5);
    }

    #[test]
    fn names_of_a_run_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path(), 1 << 20);
        for num in 0..MOST_NAMES {
            files.write(text(&format!("n{num}"), false, "1")).unwrap();
        }
        files.write(text("more", false, "1")).unwrap_err();
        files.write(text("more", true, "1")).unwrap_err();
        // Those that there are go on.
        files.write(text("n0", false, "2")).unwrap();
        files.write(text("n0", true, "2")).unwrap();
        let made = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(made, MOST_NAMES + 1);
    }
}
