//! Files of traces: JSON arrays in one folder, written by a thread of their own.
//!
//! Invariants:
//! 1. A file is a whole array between two writes.
//! 2. What waits to be written is bounded, and so is all that is written; what does not fit is
//!    dropped, counted, and logged once.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::{Error, Result};

/// Writes that wait.
const MOST_WAITING: usize = 16;

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
            tracing::warn!(%why, "traces are dropped; this is logged once");
        }
    }
}

/// Writes traces.
pub(super) struct Writer {
    to: Mutex<Option<SyncSender<Text>>>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
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
        let own = counts.clone();
        let thread = thread::Builder::new().name("traces".into());
        let thread = thread.spawn(move || files.run(&from, &own));
        let thread = thread.map_err(|e| Error::Internal(format!("a thread for traces: {e}")))?;
        Ok(Self {
            to: Mutex::new(Some(to)),
            counts,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Hands traces to the thread, or drops them where too many wait.
    pub fn write(&self, text: Text) {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let num = text.num;
        let sent = to.as_ref().is_some_and(|to| to.try_send(text).is_ok());
        if !sent {
            self.counts.lose(num, "too many wait to be written");
        }
    }

    /// Waits until all is written; what comes then is dropped.
    pub fn end(&self) {
        drop(
            self.to
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A thread that panicked has been told of.
            let _ = thread.join();
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
    /// The one without a number, if this run has begun it.
    plain: Option<File>,
}

impl Files {
    fn run(mut self, from: &Receiver<Text>, counts: &Counts) {
        for text in from {
            let num = text.num;
            match self.write(text) {
                Ok(()) => _ = counts.written.fetch_add(num, Ordering::Relaxed),
                Err(why) => counts.lose(num, why),
            }
        }
    }

    fn write(&mut self, text: Text) -> io::Result<()> {
        let bytes = text.members.len() as u64 + 4;
        if self.bytes + bytes > self.dir.max_bytes {
            return Err(io::Error::other("as many bytes are written as may be"));
        }
        self.bytes += bytes;
        let path = self.dir.folder.join(&text.file);
        let known = self.known.entry(text.file).or_default();
        let whole = || format!("[\n{}\n]", text.members);
        if text.is_numbered {
            let mut numbered = path.into_os_string();
            numbered.push(format!(".{}", known.next));
            known.next += 1;
            return fs::write(numbered, whole());
        }
        let Some(file) = &mut known.plain else {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).open(path)?;
            file.write_all(whole().as_bytes())?;
            known.plain = Some(file);
            return Ok(());
        };
        file.seek(SeekFrom::End(-2))?;
        file.write_all(format!(",\n{}\n]", text.members).as_bytes())
    }
}
