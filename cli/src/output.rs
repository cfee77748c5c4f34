//! Standard output, words beside it, and files that the user named.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::failure::BadInput;

/// Whether the reader of standard output has gone away.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints text. Behind a reader that has gone away (`| head`) nothing more is printed, and the
/// command goes on to the files that it was asked for.
///
/// # Errors
/// Any other fault of standard output.
pub fn text(text: impl fmt::Display) -> anyhow::Result<()> {
    if CLOSED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        done => done.context("standard output"),
    }
}

/// As [`text`], with a newline at the end.
///
/// # Errors
/// As [`text`].
pub fn line(line: impl fmt::Display) -> anyhow::Result<()> {
    text(format_args!("{line}\n"))
}

/// Says something beside the results, on standard error. Where that takes nothing, nobody hears it, and
/// the command goes on.
pub fn aside(line: impl fmt::Display) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// The files that a command reads and those that it is going to write, each with the option that
/// names it.
#[derive(Default)]
pub struct Files {
    read: Vec<(&'static str, PathBuf)>,
    written: Vec<(&'static str, PathBuf)>,
}

impl Files {
    /// Adds a file that is read. What is not there is none: options take names too.
    pub fn reads(&mut self, option: &'static str, path: Option<impl Into<PathBuf>>) -> &mut Self {
        self.read.extend(path.map(|path| (option, path.into())));
        self
    }

    /// Adds a file that is written.
    pub fn writes(&mut self, option: &'static str, path: Option<impl Into<PathBuf>>) -> &mut Self {
        self.written.extend(path.map(|path| (option, path.into())));
        self
    }

    /// Refuses outputs that are each other or an input, and those that cannot be written, before
    /// there is anything to write.
    ///
    /// # Errors
    /// [`BadInput`] about the first of them.
    pub fn check(&self) -> anyhow::Result<()> {
        let mut taken = BTreeMap::new();
        for (option, path) in &self.read {
            if let Some(file) = identity(path).filter(|file| file.is_file()) {
                taken.insert(file, format!("{option} reads"));
            }
        }
        for (option, path) in &self.written {
            let Some(file) = identity(path) else { continue };
            if let Some(other) = taken.insert(file, format!("{option} writes")) {
                let got = path.display();
                return Err(BadInput(format!(
                    "{option}: expected a file of its own, got {got}, which {other}"
                ))
                .into());
            }
        }
        for (option, path) in &self.written {
            try_file(path).map_err(|e| unwritable(option, path, &e))?;
        }
        Ok(())
    }
}

/// Whether there is something that is neither file nor folder: a terminal, a pipe, a device.
pub fn is_special(path: &Path) -> bool {
    path.exists() && !path.is_file() && !path.is_dir()
}

/// The one name of a file, whether it is there yet or not; `None` for what several outputs may share
/// (a terminal, a pipe) or what cannot be written anyway.
fn identity(path: &Path) -> Option<PathBuf> {
    // The links of open files lead to no path that could be followed by hand.
    if is_special(path) {
        return None;
    }
    let file = behind_links(path);
    if let Ok(whole) = file.canonicalize() {
        return whole.is_file().then_some(whole);
    }
    let folder = folder(&file).canonicalize().ok()?;
    Some(folder.join(file.file_name()?))
}

/// What is written at `path`: behind links, though nothing may be there yet.
fn behind_links(path: &Path) -> PathBuf {
    // As many as the system follows.
    const MOST: usize = 40;
    let mut file = path.to_owned();
    for _ in 0..MOST {
        match std::fs::read_link(&file) {
            Ok(next) => file = folder(&file).join(next),
            Err(_) => break,
        }
    }
    file
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Whether a file can be written; nothing is changed about it.
///
/// # Errors
/// Why it cannot.
pub fn try_file(path: &Path) -> std::io::Result<()> {
    if is_special(path) {
        // A terminal or a pipe: opening it could have effects.
        return Ok(());
    }
    let file = behind_links(path);
    if file.symlink_metadata().is_ok() {
        return OpenOptions::new().append(true).open(&file).map(drop);
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file)?;
    std::fs::remove_file(&file)
}

/// Refuses a folder that cannot be made, before there is anything to put into it; nothing is left of
/// the try.
///
/// # Errors
/// [`BadInput`] that says why.
pub fn try_folder(option: &str, path: &Path) -> anyhow::Result<()> {
    // What a relative path begins with need not be there yet.
    let there = folder(path).ancestors().find(|folder| folder.exists());
    let there = there.unwrap_or(Path::new("."));
    let probe = there.join(format!(".try-{}", std::process::id()));
    let made = std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe));
    made.map_err(|e| {
        let got = format!("{}: {e}", path.display());
        BadInput(format!(
            "{option}: expected a folder that can be written, got {got}"
        ))
        .into()
    })
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
/// A file that cannot be written, though [`Files::check`] found that it can.
pub fn write(option: &'static str, path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| place(option, path))
}

/// Creates a file that the user named.
///
/// # Errors
/// As [`write()`].
pub fn create(option: &'static str, path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path).with_context(|| place(option, path))
}

/// Where that lies which is to become the file `path` until it is whole: `FILE.partial`. `None` for what
/// is no file, a pipe say, beside which nothing is put.
pub fn partial(path: &Path) -> Option<PathBuf> {
    if is_special(path) {
        return None;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    Some(name.into())
}

/// A file that the user named, which is written on the way and has its name only when it is whole: a
/// failure or an interruption leaves `FILE.partial`, and `FILE` as it was.
pub struct Growing {
    option: &'static str,
    path: PathBuf,
}

impl Growing {
    /// Of the file at `path`.
    pub fn new(option: &'static str, path: &Path) -> Self {
        let path = path.to_owned();
        Self { option, path }
    }

    /// Creates what is written until then.
    ///
    /// # Errors
    /// As [`create`].
    pub fn create(&self) -> anyhow::Result<std::fs::File> {
        let partial = partial(&self.path);
        create(self.option, partial.as_deref().unwrap_or(&self.path))
    }

    /// Writes what there is until now, in place of what was. Into what is no file only the whole goes.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn put(&self, text: &str) -> anyhow::Result<()> {
        partial(&self.path).map_or(Ok(()), |partial| write(self.option, &partial, text))
    }

    /// Names it: all of it is written.
    ///
    /// # Errors
    /// A file that cannot be replaced.
    pub fn done(self) -> anyhow::Result<()> {
        let Some(partial) = partial(&self.path) else {
            return Ok(());
        };
        let whole = behind_links(&self.path);
        // What a link leads to may lie on another disk.
        let copied =
            || std::fs::copy(&partial, &whole).and_then(|_| std::fs::remove_file(&partial));
        std::fs::rename(&partial, &whole)
            .or_else(|_| copied())
            .with_context(|| place(self.option, &self.path))
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// As [`Growing::done`].
    pub fn whole(self, text: &str) -> anyhow::Result<()> {
        match partial(&self.path) {
            Some(_) => self.put(text).and_then(|()| self.done()),
            None => write(self.option, &self.path, text),
        }
    }
}

/// How messages name a file that an option names.
pub fn place(option: &str, path: &Path) -> String {
    format!("{option}: {}", path.display())
}
