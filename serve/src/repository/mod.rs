//! The model repository: `<root>/<model>/config.pbtxt` and `<root>/<model>/<version>/`.
//!
//! All versions run in one engine, so that node-level batching, priorities and fair shares span them,
//! unless one asks for an engine of its own. A load replaces all versions of a model at once, when all new
//! ones are ready: requests that an old one has taken end on it, and it goes when the last of them has.
//!
//! An ensemble is made of other models' programs, or calls them as a chain, and of the files in which
//! those lie: a change of one of them is a change of the ensemble.
//!
//! Invariants:
//! 1. A model that is served stays so while another load of it runs, and if that load fails.
//! 2. Loads and unloads run one after another.
//! 3. A folder that cannot be read is no change: what is served stays so until it can be.

mod brought;
mod disk;
pub(crate) mod ensemble;
mod follow;
pub(crate) mod load;
mod texts;
pub(crate) mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use lazybatch_engine::Monitor;

use crate::cache::Cache;
use crate::config::Config;
use crate::error::{Error, Result, caught};
use crate::explained::Explained;
use crate::files::regular;
use crate::host::Host;
use crate::memory::Memory;
use crate::model::{Served, Shared, empty_engine};
pub use brought::{Brought, FILE};
use disk::{Fingerprint, Folders, chosen, fingerprint, is_plain, versions};
use ensemble::Part;
use version::Version;

/// Name of a model's configuration.
const CONFIG_FILE: &str = "config.pbtxt";

/// In the place of a model's name: all that are there.
pub const ALL: &str = "*";

/// Who decides which models are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// All that are there at the start.
    None,
    /// Those named, or with [`ALL`] alone all that are there at the start, and those that clients load.
    Explicit(Vec<String>),
    /// All that are there, looked for again and again.
    Poll,
}

/// One line of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// Model.
    pub name: String,
    /// Version; empty for a model that was never loaded, or of which none is known.
    pub version: String,
    /// `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING` while requests of what was unloaded run, or empty for
    /// a model that was never loaded.
    pub state: &'static str,
    /// Why it is not ready.
    pub reason: String,
}

/// A version, as far as it is known.
#[derive(Clone)]
enum State {
    Ready(Arc<Served>),
    Unavailable(String),
    /// Unloaded; there while requests that it has taken run.
    Unloaded(Weak<Served>),
}

impl State {
    /// The state and why it is not ready, as the index tells them.
    fn told(&self, is_loading: bool) -> (&'static str, String) {
        match self {
            Self::Ready(_) => ("READY", String::new()),
            _ if is_loading => ("LOADING", String::new()),
            Self::Unavailable(reason) => ("UNAVAILABLE", reason.clone()),
            Self::Unloaded(served) if served.strong_count() > 0 => ("UNLOADING", String::new()),
            Self::Unloaded(_) => ("UNAVAILABLE", "unloaded".into()),
        }
    }

    /// Unloads it; what it was.
    fn unload(&mut self) -> Option<Arc<Served>> {
        let Self::Ready(served) = self else {
            return None;
        };
        let served = served.clone();
        *self = Self::Unloaded(Arc::downgrade(&served));
        Some(served)
    }
}

#[derive(Default)]
struct Entry {
    versions: BTreeMap<u64, State>,
    /// Why it has none.
    reason: String,
    /// Whether a load of it runs.
    is_loading: bool,
    /// Whether it was loaded as itself, and not as a step of an ensemble alone.
    is_own: bool,
    /// Whether it was asked for at the start, and nobody has unloaded it since.
    is_wanted: bool,
    /// Of its own files and those of its steps, when they were last looked at.
    fingerprint: Fingerprint,
    /// Of those that what is served came from; `None` if a client brought the configuration alone.
    source: Option<Fingerprint>,
    /// What a client brought in the place of its folder.
    brought: Option<Brought>,
    /// All that came along with the load of what is served.
    last: Brought,
    /// Models that it is made of, theirs among them; none but for ensembles.
    steps: BTreeSet<String>,
}

impl Entry {
    /// Its versions that are ready.
    fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<Served>> {
        self.versions.values().filter_map(|s| match s {
            State::Ready(served) => Some(served),
            State::Unavailable(_) | State::Unloaded(_) => None,
        })
    }

    fn is_ready(&self) -> bool {
        self.ready().next().is_some()
    }
}

/// The models of a folder.
pub struct Repository {
    root: PathBuf,
    host: Arc<dyn Host>,
    control: Control,
    models: RwLock<BTreeMap<String, Entry>>,
    /// Behind `models`, which end first.
    shared: Shared,
    changing: Mutex<()>,
}

impl Repository {
    /// The repository in `root`, in an engine of that policy, with a response cache of so many
    /// bytes, for calls that hold `memory`; nothing is loaded yet.
    ///
    /// # Errors
    /// A folder that cannot be read, a policy that there is not.
    pub fn open(
        root: &Path,
        host: Arc<dyn Host>,
        control: Control,
        policy: &str,
        cache_bytes: u64,
        memory: Arc<Memory>,
    ) -> Result<Self> {
        std::fs::read_dir(root)
            .map_err(|e| Error::expected(root.display(), "a folder of models", e))?;
        let engine = empty_engine(&*host, policy)?;
        Ok(Self {
            shared: Shared {
                engine,
                cache: Arc::new(Cache::new(cache_bytes)),
                explained: Arc::default(),
                memory,
            },
            root: root.to_owned(),
            host,
            control,
            models: RwLock::default(),
            changing: Mutex::default(),
        })
    }

    /// Loads what is to be served from the start. Takes as long as that takes.
    ///
    /// # Errors
    /// All models that cannot be loaded, each with its cause; the others are served.
    pub fn load_first(&self) -> Result<()> {
        let (names, unknown) = match &self.control {
            Control::Explicit(names) if *names != [ALL] => (names.clone(), Vec::new()),
            Control::None | Control::Poll | Control::Explicit(_) => {
                let found = Folders::read(&self.root).map_err(|e| {
                    let error = Error::expected(self.root.display(), "a folder of models", e);
                    tracing::error!(error = error.to_string(), "nothing can be loaded");
                    error
                })?;
                (found.models, found.unknown)
            }
        };
        for name in names.iter().chain(unknown.iter().map(|(name, _)| name)) {
            self.write().entry(name.clone()).or_default().is_wanted = true;
        }
        let mut failed: Vec<String> = Vec::new();
        for (name, error) in unknown {
            let error = unseen(&name, &error);
            self.note(&name, &error);
            failed.push(error.to_string());
        }
        for name in self.in_order(names) {
            if let Err(error) = self.load(&name, Brought::default()) {
                failed.push(error.to_string());
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid(failed.join("\n")))
    }

    /// Logs that a model cannot be loaded, once for each cause, and keeps the cause for the index if
    /// the model is known.
    fn note(&self, name: &str, error: &Error) {
        let error = error.to_string();
        let known = self.write().get_mut(name).map(|entry| {
            let before = std::mem::replace(&mut entry.reason, error.clone());
            before == error
        });
        // Behind the lock: whoever reads the log may be slow.
        if known != Some(true) {
            tracing::error!(model = name, error, "cannot be loaded");
        }
    }

    /// Whether every model that was asked for at the start is there.
    pub fn is_complete(&self) -> bool {
        let models = self.read();
        let mut wanted = models.values().filter(|entry| entry.is_wanted);
        wanted.all(Entry::is_ready)
    }

    /// Whether all engines take requests: one that has failed is there, and answers nobody any more.
    pub fn runs(&self) -> bool {
        self.shared.engine.is_running() && self.served().iter().all(|served| served.is_running())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Entry>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Entry>> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether clients may load and unload.
    pub fn is_explicit(&self) -> bool {
        matches!(self.control, Control::Explicit(_))
    }

    /// Refuses loads and unloads by clients unless the control mode is explicit.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn check_explicit(&self, what: &str) -> Result<()> {
        if self.is_explicit() {
            return Ok(());
        }
        let message =
            format!("explicit model {what} is not allowed if model control mode is not explicit");
        Err(Error::Unavailable(message))
    }

    /// Loads a model, or loads it again, from what a client brought and for the rest from its folder.
    /// Steps of an ensemble that are not served are loaded before it. Takes as long as that takes.
    ///
    /// # Errors
    /// What is wrong with the model; what was served before still is.
    pub fn load(&self, name: &str, brought: Brought) -> Result<()> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = BTreeSet::new();
        let loaded = self.load_all(name, brought, &mut new);
        if loaded.is_ok()
            && let Some(entry) = self.write().get_mut(name)
        {
            entry.is_own = true;
        }
        if self.is_explicit() {
            self.follow(&new);
        }
        self.forget_gone();
        if let Err(error) = &loaded {
            // Names of what is not there are not kept: clients may say any.
            if self.folder(name).is_ok() {
                self.write().entry(name.to_owned()).or_default();
            }
            self.note(name, error);
        }
        loaded
    }

    /// Loads a model and those of its steps that have to be loaded before it; `new` gets those that were.
    fn load_all(&self, name: &str, brought: Brought, new: &mut BTreeSet<String>) -> Result<()> {
        let fail = |e: Error| Error::Invalid(format!("failed to load '{name}': {e}"));
        let (_, own) = self.stated(name, &brought).map_err(fail)?;
        let steps = self.all_steps(name, &own);
        if self.is_explicit() {
            let steps = self.in_order(steps.iter().cloned().collect());
            let ready = |n: &String| self.read().get(n).is_some_and(Entry::is_ready);
            // Whether a step is there at all is told with its number, below.
            let there = |n: &String| self.folder(n).is_ok();
            for step in steps.iter().filter(|n| there(n) && !ready(n)) {
                self.load_one(step, Brought::default()).map_err(fail)?;
                new.insert(step.clone());
            }
        }
        self.load_one(name, brought)?;
        new.insert(name.to_owned());
        Ok(())
    }

    /// Loads a model whose steps, if it has any, are loaded or not.
    fn load_one(&self, name: &str, brought: Brought) -> Result<()> {
        let is_loading = |is| {
            if let Some(entry) = self.write().get_mut(name) {
                entry.is_loading = is;
            }
        };
        // Names of what is not there are not kept; what is brought in vain is forgotten behind it.
        if self.folder(name).is_ok() || (brought.folder().is_some() && is_plain(name)) {
            self.write().entry(name.to_owned()).or_default();
        }
        is_loading(true);
        let loaded = caught(|| self.load_these(name, brought));
        is_loading(false);
        loaded.map_err(|error| match error {
            Error::Internal(bug) => Error::Internal(format!("failed to load '{name}': {bug}")),
            other => other,
        })
    }

    /// The same, while the index tells that it runs.
    fn load_these(&self, name: &str, brought: Brought) -> Result<()> {
        let fail = |e: Error| Error::Invalid(format!("failed to load '{name}': {e}"));
        let (folder, config) = self.stated(name, &brought).map_err(fail)?;
        let steps = self.all_steps(name, &config);
        let fingerprint = self.fingerprint(name, &folder, &steps, |e| Some(&e.fingerprint));
        let chosen = chosen(&folder, &config).map_err(fail)?;
        let there = versions(&folder).map_err(fail)?;
        let mut started = Vec::new();
        let mut failed = BTreeMap::new();
        for &version in &chosen {
            let (host, config) = (&*self.host, config.clone());
            let part = |step: &str, wanted| self.part(step, wanted, &[name]);
            let read = Version::read(host, &folder, config, version, &part);
            match read.and_then(|v| Served::start(host, &self.shared, &folder, version, v)) {
                Ok(served) => started.push((version, Arc::new(served))),
                Err(error) => drop(failed.insert(version, error.to_string())),
            }
        }
        // What goes does so behind the lock: it ends in its engine.
        let mut gone = Vec::new();
        let mut models = self.write();
        let entry = models.entry(name.to_owned()).or_default();
        entry.fingerprint.clone_from(&fingerprint);
        if !failed.is_empty() {
            for &version in &chosen {
                let beside = || "another version could not be loaded with it".to_owned();
                let why = failed.get(&version).cloned().unwrap_or_else(beside);
                let state = entry.versions.entry(version);
                let state = state.or_insert_with(|| State::Unavailable(String::new()));
                if !matches!(state, State::Ready(_)) {
                    *state = State::Unavailable(why);
                }
            }
            let told = |(version, why)| match chosen.len() {
                1 => why,
                _ => format!("version {version}: {why}"),
            };
            let failed: Vec<String> = failed.into_iter().map(told).collect();
            return Err(fail(Error::Invalid(failed.join("\n"))));
        }
        entry.reason = String::new();
        let brought_folder = brought.folder().is_some();
        let is_whole = brought_folder || brought.config().is_none();
        entry.source = is_whole.then_some(fingerprint);
        let past = std::mem::replace(&mut entry.last, brought.clone());
        // The files of both go together.
        entry.brought = brought_folder.then_some(brought);
        entry.steps = steps;
        for (version, served) in started {
            tracing::info!(model = name, version, "loaded");
            gone.extend(entry.versions.insert(version, State::Ready(served)));
        }
        for (version, state) in &mut entry.versions {
            if !chosen.contains(version) {
                gone.extend(state.unload().map(State::Ready));
            }
        }
        entry
            .versions
            .retain(|version, state| matches!(state, State::Ready(_)) || there.contains(version));
        drop(models);
        drop((gone, past));
        Ok(())
    }

    /// Where a model's files are that is loaded with `brought`, and its configuration.
    fn stated(&self, name: &str, brought: &Brought) -> Result<(PathBuf, Config)> {
        let folder = match brought.folder() {
            Some(folder) if is_plain(name) => folder.to_owned(),
            _ => self.folder(name)?,
        };
        let config = self.config(name, &folder, brought.config())?;
        Ok((folder, config))
    }

    /// Where a model's files are, those that a client brought if it is served from such, and the
    /// configuration beside them.
    fn own(&self, name: &str) -> Result<(PathBuf, Config)> {
        let brought = self.read().get(name).and_then(|e| e.brought.clone());
        self.stated(name, &brought.unwrap_or_default())
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.root.join(name);
        if is_plain(name) && folder.is_dir() {
            return Ok(folder);
        }
        Err(Error::NotFound(
            "no folder of that name in the model repository".into(),
        ))
    }

    fn config(&self, name: &str, folder: &Path, json: Option<&str>) -> Result<Config> {
        let path = folder.join(CONFIG_FILE);
        let mut config = match json {
            Some(json) => Config::parse_json("parameter 'config'", json)?,
            None => match regular(&path).and_then(|()| std::fs::read_to_string(&path)) {
                Ok(text) => Config::parse(&format!("{name}/{CONFIG_FILE}"), &text)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => Config::default(),
                Err(e) => return Err(Error::expected(path.display(), "a readable text", e)),
            },
        };
        if config.proto.name.is_empty() {
            config.proto.name = name.to_owned();
        }
        if config.proto.name != name {
            return Err(Error::Invalid(format!(
                "unexpected directory name '{name}' for model '{}', directory name must equal model \
                 name",
                config.proto.name
            )));
        }
        Ok(config)
    }

    /// A model as a step of ensembles, of which `within` are those that it is asked for: the served
    /// one if its files are as they were when it was loaded, so that both hold one program. What a
    /// chain calls is the served one in any case.
    fn part(&self, name: &str, wanted: i64, within: &[&str]) -> Result<Part> {
        let within: Vec<&str> = within.iter().copied().chain([name]).collect();
        if within[..within.len() - 1].contains(&name) {
            let got = within.join(", which has the step ");
            return Err(Error::expected("ensembles", "none within itself", got));
        }
        let (folder, config) = self.own(name)?;
        let chosen = chosen(&folder, &config)?;
        let version = match u64::try_from(wanted) {
            Ok(wanted) if wanted > 0 => chosen.iter().copied().find(|v| *v == wanted),
            _ => chosen.last().copied(),
        };
        let expected = || Error::expected("model_version", format!("one of {chosen:?}"), wanted);
        let version = version.ok_or_else(expected)?;
        let steps = self.all_steps(name, &config);
        let now = self.fingerprint(name, &folder, &steps, |e| e.source.as_ref());
        let (served, is_same) = match self.read().get(name) {
            Some(entry) => (
                entry.versions.get(&version).cloned(),
                entry.source.as_ref() == Some(&now),
            ),
            None => (None, false),
        };
        let served = match served {
            Some(State::Ready(served)) if is_same => return Ok(Part::from(served)),
            Some(State::Ready(served)) => Some(served),
            _ => None,
        };
        let part = |step: &str, wanted| self.part(step, wanted, &within);
        let read = Version::read(&*self.host, &folder, config, version, &part)?;
        let mut part = Part::from(read);
        part.served = served;
        Ok(part)
    }

    /// Models that a model is made of, theirs among them, as far as they can be read.
    fn all_steps(&self, name: &str, config: &Config) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut open = models_of(config);
        while let Some(step) = open.pop() {
            if step != name && all.insert(step.clone()) {
                let own = self.own(&step);
                open.extend(own.iter().flat_map(|(_, config)| models_of(config)));
            }
        }
        all
    }

    /// The same of a model in its folder; those that it had when it was loaded if its configuration
    /// cannot be read.
    fn steps_of(&self, name: &str) -> BTreeSet<String> {
        let had = || self.read().get(name).map(|entry| entry.steps.clone());
        self.own(name).map_or_else(
            |_| had().unwrap_or_default(),
            |(_, config)| self.all_steps(name, &config),
        )
    }

    /// `names`, each behind its steps among them: it has more of them in all than any of its steps.
    fn in_order(&self, mut names: Vec<String>) -> Vec<String> {
        names.sort_by_cached_key(|name| self.steps_of(name).len());
        names
    }

    /// What is told of a model's files in `folder` and those of its steps; of what cannot be read, what
    /// `before` tells of it.
    fn fingerprint(
        &self,
        name: &str,
        folder: &Path,
        steps: &BTreeSet<String>,
        before: impl Fn(&Entry) -> Option<&Fingerprint>,
    ) -> Fingerprint {
        let models = self.read();
        let brought = |n: &String| Some(models.get(n)?.brought.as_ref()?.folder()?.to_owned());
        let of_step = |n: &String| brought(n).unwrap_or_else(|| self.root.join(n));
        let folders: Vec<PathBuf> = steps.iter().map(of_step).collect();
        let before = models.get(name).and_then(|e| before(e).cloned());
        drop(models);
        let before = before.unwrap_or_default();
        let all = std::iter::once(folder).chain(folders.iter().map(PathBuf::as_path));
        all.flat_map(|folder| fingerprint(folder, &before))
            .collect()
    }

    /// Stops serving a model; with `dependents` also the steps of an ensemble that no other served
    /// one has, and that were not loaded as themselves. Requests that they have taken end; new ones find nothing. One that is not there is not
    /// served, as is wanted.
    pub fn unload(&self, name: &str, dependents: bool) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // What goes does so behind the lock: it ends in its engine.
        let mut past = Vec::new();
        let mut past_files = Vec::new();
        let mut models = self.write();
        let Some(entry) = models.get_mut(name) else {
            return;
        };
        let steps = if dependents {
            entry.steps.clone()
        } else {
            BTreeSet::new()
        };
        let others = models.iter().filter(|(n, e)| *n != name && e.is_ready());
        let others = others.filter(|(n, e)| e.is_own || !steps.contains(*n));
        let kept: BTreeSet<String> = others
            .flat_map(|(n, e)| {
                let own = e.is_own.then(|| n.clone());
                e.steps.iter().cloned().chain(own)
            })
            .collect();
        for gone in std::iter::once(name).chain(steps.difference(&kept).map(String::as_str)) {
            let Some(entry) = models.get_mut(gone) else {
                continue;
            };
            (entry.is_wanted, entry.is_own) = (false, false);
            past_files.push((entry.brought.take(), std::mem::take(&mut entry.last)));
            past.extend(entry.versions.values_mut().filter_map(State::unload));
            tracing::info!(model = gone, "unloaded");
        }
        drop(models);
        self.forget_gone();
    }

    /// Forgets models that are not served, nobody waits for, and whose folder is not there any more.
    fn forget_gone(&self) {
        // Where it cannot be read, nobody knows.
        let Ok(found) = Folders::read(&self.root) else {
            return;
        };
        let mut models = self.write();
        models.retain(|name, e| e.is_ready() || e.is_wanted || found.may_have(name));
    }

    /// Whether a model is served, or has been and may be again.
    pub fn is_known(&self, name: &str) -> bool {
        self.read().contains_key(name)
    }

    /// Looks whether folders have changed; loads and unloads accordingly. For [`Control::Poll`].
    pub fn poll(&self) {
        let found = match Folders::read(&self.root) {
            Ok(found) => found,
            Err(error) => {
                let (folder, error) = (self.root.display().to_string(), error.to_string());
                tracing::error!(folder, error, "cannot be read: what is served stays so");
                return;
            }
        };
        for (name, error) in &found.unknown {
            self.write().entry(name.clone()).or_default();
            self.note(name, &unseen(name, error));
        }
        // A step that has changed is loaded before the ensembles that it changes.
        for name in &self.in_order(found.models.clone()) {
            let steps = self.steps_of(name);
            let folder = self.root.join(name);
            let now = self.fingerprint(name, &folder, &steps, |e| Some(&e.fingerprint));
            let same = self.read().get(name).is_some_and(|e| e.fingerprint == now);
            if !same {
                // What went wrong is logged and in the index; the next change is tried again.
                if self.load(name, Brought::default()).is_err() {
                    self.write().entry(name.clone()).or_default().fingerprint = now;
                }
            }
        }
        let gone: Vec<_> = self
            .read()
            .keys()
            .filter(|n| !found.may_have(n))
            .cloned()
            .collect();
        for name in gone {
            self.unload(&name, false);
            self.write().remove(&name);
        }
    }

    /// All models, one line a version. Reads the repository's folder.
    pub fn index(&self, ready: bool) -> Vec<Indexed> {
        // Those that are not loaded are not known where it cannot be read. Before anything is locked:
        // a disk may take its time, and who asks for a model must not wait for it.
        let folders = Folders::read(&self.root).unwrap_or_default().models;
        let models = self.read();
        let mut index = Vec::new();
        for (name, entry) in models.iter() {
            if entry.versions.is_empty() {
                let state = State::Unavailable(entry.reason.clone());
                let (state, reason) = state.told(entry.is_loading);
                index.push(Indexed {
                    name: name.clone(),
                    version: String::new(),
                    state,
                    reason,
                });
            }
            for (version, state) in &entry.versions {
                let (state, reason) = state.told(entry.is_loading);
                index.push(Indexed {
                    name: name.clone(),
                    version: version.to_string(),
                    state,
                    reason,
                });
            }
        }
        for name in folders {
            if !models.contains_key(&name) {
                index.push(Indexed {
                    name,
                    version: String::new(),
                    state: "",
                    reason: String::new(),
                });
            }
        }
        index.retain(|i| !ready || i.state == "READY");
        index
    }

    /// A version of a model, the latest ready one if `version` is empty.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a model or version that is not there, [`Error::Unavailable`] for one
    /// that is and is not ready.
    pub fn get(&self, name: &str, version: &str) -> Result<Arc<Served>> {
        let models = self.read();
        let unknown =
            || Error::NotFound(format!("Request for unknown model: '{name}' is not found"));
        let entry = models.get(name).ok_or_else(unknown)?;
        if version.is_empty() {
            let latest = entry.ready().next_back().cloned();
            return latest.ok_or_else(|| {
                let message =
                    format!("Request for unknown model: '{name}' has no available versions");
                Error::Unavailable(message)
            });
        }
        let is_plain = version.bytes().all(|b| b.is_ascii_digit());
        let number = version.parse::<u64>().ok().filter(|_| is_plain);
        let number = number.ok_or_else(|| {
            let what = format!("version of model '{name}'");
            Error::expected(what, "a whole number", version)
        })?;
        match entry.versions.get(&number) {
            Some(State::Ready(served)) => Ok(served.clone()),
            Some(State::Unavailable(_) | State::Unloaded(_)) => Err(Error::Unavailable(format!(
                "Request for unknown model: '{name}' version {version} is not at ready state"
            ))),
            None => Err(Error::NotFound(format!(
                "Request for unknown model: '{name}' version {version} is not found"
            ))),
        }
    }

    /// The same, but all ready versions if `version` is empty.
    ///
    /// # Errors
    /// As [`Repository::get`].
    pub fn get_all(&self, name: &str, version: &str) -> Result<Vec<Arc<Served>>> {
        if version.is_empty() {
            let models = self.read();
            let ready = models.get(name).into_iter().flat_map(Entry::ready);
            let ready: Vec<_> = ready.cloned().collect();
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
        Ok(vec![self.get(name, version)?])
    }

    /// Versions of a model that are ready.
    pub fn versions(&self, name: &str) -> Vec<u64> {
        let models = self.read();
        let ready = models.get(name).into_iter().flat_map(Entry::ready);
        ready.map(|served| served.version).collect()
    }

    /// All engines, each with its name ([`Served::engine_name`]).
    pub fn engines(&self) -> Vec<(String, Monitor)> {
        let shared = ("shared".to_owned(), self.shared.engine.monitor());
        let served = self.served().into_iter();
        let own = served.filter_map(|s| Some((s.engine_name(), s.own_monitor()?)));
        [shared].into_iter().chain(own).collect()
    }

    /// Why the last requests that asked for it took their time.
    pub fn explained(&self) -> &Explained {
        &self.shared.explained
    }

    /// Everything that is ready.
    pub fn served(&self) -> Vec<Arc<Served>> {
        let models = self.read();
        models.values().flat_map(Entry::ready).cloned().collect()
    }
}

/// What is told of an entry of the repository's folder that cannot be looked at.
fn unseen(name: &str, error: &io::Error) -> Error {
    Error::Invalid(format!(
        "failed to load '{name}': expected a folder, got {error}"
    ))
}

/// Models that the steps of an ensemble name, where these can be such; none for others.
fn models_of(config: &Config) -> Vec<String> {
    let steps = ensemble::steps(&config.proto).ok().flatten();
    let names = steps.unwrap_or_default().iter().map(|s| &s.model_name);
    names.filter(|name| is_plain(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_whose_names_lead_out_of_the_repository_are_none() {
        let step = |name: &str| format!("step {{ model_name: \"{name}\" }} ");
        let names = ["a", "/", "../..", "", ".b", "c/d", "/etc", "e.f"];
        let text = format!(
            "platform: \"ensemble\" ensemble_scheduling {{ {} }}",
            names.map(step).concat()
        );
        let config = Config::parse("c", &text).unwrap();
        assert_eq!(models_of(&config), ["a", "e.f"]);
    }
}
