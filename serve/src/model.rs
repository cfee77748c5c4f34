//! A model version that is served: its program in the server's engine, or the chain that it is, and
//! what is said of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use lazybatch_engine::{
    BuildError, Engine, Explanation, Figures, ModelHandle, ModelOptions, Monitor, Options,
    RequestError,
};
use lazybatch_graph::{Block, Program, Repeat, SharedProgram, Tensor};
use lazybatch_kernels::is_static;
use lazybatch_sla::{Profile, RequestId, Time};
use serde_json::{Value as Json, json};

use crate::cache::Cache;
use crate::chain::Chain;
use crate::config::{self, Cut, Known, MOST_BATCH, Settings};
use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::explained::{self, Explained};
use crate::files::{file_in, regular};
use crate::host::{Host, Text};
use crate::infer::{Order, Stages};
use crate::memory::Memory;
use crate::proto::model_instance_group::Kind;
use crate::proto::{self, ModelConfig};
use crate::repository::version::{Plan, Version};
use crate::stats::{Executions, Stats};
use crate::warmup;

/// What the versions of a server share.
pub struct Shared {
    /// Runs all that have no engine of their own.
    pub engine: Engine,
    /// Answers of those that ask for it.
    pub cache: Arc<Cache>,
    /// Why requests took their time.
    pub explained: Arc<Explained>,
    /// What calls hold.
    pub memory: Arc<Memory>,
}

static NEXT_GENERATION: AtomicU64 = AtomicU64::new(0);

/// Most samples of a launch where nobody says.
const MAX_BATCH: u32 = 64;

/// What a version runs.
pub enum Runs {
    /// A program in an engine.
    Program(Engaged),
    /// Other versions, one behind the other.
    Chain(Arc<Chain>),
}

/// A program in an engine.
pub struct Engaged {
    /// The program.
    pub program: SharedProgram,
    /// Most samples of a request to the engine.
    pub chunk: usize,
    /// Dropped, it unloads the model behind its last request.
    pub engine: ModelHandle,
    /// The engine of a model that has one of its own.
    own: Option<Engine>,
}

/// A model version that is served.
pub struct Served {
    /// Name of the model.
    pub name: String,
    /// Version.
    pub version: u64,
    /// Its configuration, completed.
    pub config: ModelConfig,
    /// What the configuration means.
    pub settings: Settings,
    /// What kind of file it came from.
    pub platform: String,
    /// Its inputs and outputs in the program's order; none of a chain, whose configuration says all.
    pub known: Known,
    /// States with which sequences start, in the order of its carried inputs; zeros if `None`.
    pub initial: Option<Vec<Tensor>>,
    /// Shapes at the edge begin with an axis of samples.
    pub batched: bool,
    /// Most samples of a request.
    pub max_samples: usize,
    /// What it runs.
    pub runs: Runs,
    /// Its tokenizer.
    pub text: Option<Arc<dyn Text>>,
    /// Labels of the elements of outputs, by output.
    pub labels: BTreeMap<String, Vec<String>>,
    /// Running figures.
    pub stats: Stats,
    /// Where its answers are kept; `None` where it does not ask for that.
    pub cache: Option<Arc<Cache>>,
    /// In what order its requests are answered; `None` where each is as soon as it can be.
    pub order: Option<Arc<Order>>,
    /// Why its requests took their time, beside those of others.
    pub explained: Arc<Explained>,
    /// What calls hold, tensors between the steps of a chain too.
    pub memory: Arc<Memory>,
    /// A number that no other load of a version has.
    pub generation: u64,
    /// What its program is made of, where it is that of an ensemble: the version that each step's model
    /// was served as, none where it was not. Those that are not served any more have gone.
    parts: Vec<Weak<Self>>,
}

impl Served {
    /// Starts version `number` of a model, whose folder is `folder`.
    ///
    /// # Errors
    /// Whatever the engine refuses, and what the configuration asks for in vain.
    pub fn start(
        host: &dyn Host,
        shared: &Shared,
        folder: &Path,
        number: u64,
        version: Version,
    ) -> Result<Self> {
        let (mut proto, settings) = (version.config, version.settings);
        let name = proto.name.clone();
        for field in &version.ignored {
            tracing::warn!(model = name, field, "ignored: not honoured by this server");
        }
        if let Some(kind) = other_device(&proto, host.has_gpu()) {
            let device = if host.has_gpu() { "a GPU" } else { "the CPU" };
            tracing::warn!(
                model = name,
                "instance_group asks for {kind}: ignored, all models of this server run on {device} \
                 (--device)"
            );
        }
        let cached = is_cached(&proto, &settings)?;
        config::defaults(
            &mut proto,
            if host.has_gpu() { Kind::Gpu } else { Kind::Cpu },
        );
        // Without a size of batches, dimensions alone say how many samples a request may have.
        let (max_samples, max_batch) = match u32::try_from(proto.max_batch_size).unwrap_or(0) {
            0 => (MOST_BATCH, MAX_BATCH),
            size => (size, size),
        };
        let runs = match version.plan {
            Plan::Program(program) => {
                let max_batch = settings.max_batch.unwrap_or(max_batch).max(1);
                let engaged =
                    Engaged::load(host, shared, (&name, folder), program, &settings, max_batch);
                Runs::Program(engaged?)
            }
            Plan::Chain(chain) => {
                let why = &chain.why;
                tracing::info!(
                    model = name,
                    version = number,
                    why,
                    "runs as a chain of its steps"
                );
                Runs::Chain(Arc::new(chain))
            }
        };
        let order = settings.keeps_order.then(Arc::default);
        let served = Self {
            labels: labels(folder, &proto)?,
            name,
            version: number,
            config: proto,
            stats: Stats::new(settings.buckets.clone()),
            settings,
            platform: version.platform,
            known: version.known,
            initial: version.initial,
            batched: version.batched,
            max_samples: max_samples as usize,
            runs,
            text: version.text,
            cache: cached.then(|| shared.cache.clone()),
            order,
            explained: shared.explained.clone(),
            memory: shared.memory.clone(),
            generation: NEXT_GENERATION.fetch_add(1, Ordering::Relaxed),
            parts: version.parts,
        };
        warmup::run(&served, folder)?;
        Ok(served)
    }

    /// Itself in its engine, if it runs in one.
    pub fn engine(&self) -> Option<&ModelHandle> {
        match &self.runs {
            Runs::Program(own) => Some(&own.engine),
            Runs::Chain(_) => None,
        }
    }

    /// Its program, if it is one.
    pub fn program(&self) -> Option<&SharedProgram> {
        match &self.runs {
            Runs::Program(own) => Some(&own.program),
            Runs::Chain(_) => None,
        }
    }

    /// Time on the clock of its engine; a chain goes by that of its first step.
    pub fn now(&self) -> Time {
        match &self.runs {
            Runs::Program(own) => own.engine.now(),
            Runs::Chain(chain) => chain.first().now(),
        }
    }

    /// Running figures of its engine; none have to do with a chain, whose steps have them.
    pub fn figures(&self) -> Figures {
        self.engine().map(ModelHandle::figures).unwrap_or_default()
    }

    /// Itself, or the steps of a chain: what runs in engines.
    pub fn programs(&self) -> Vec<&Self> {
        match &self.runs {
            Runs::Program(_) => vec![self],
            Runs::Chain(chain) => chain.steps().flat_map(Self::programs).collect(),
        }
    }

    /// Its sequences that may go on, or have a request on its way; none of a chain, whose steps have them.
    pub fn num_sequences(&self) -> usize {
        self.engine().map_or(0, ModelHandle::num_sequences)
    }

    /// Whether a request may name that class, or none.
    ///
    /// # Errors
    /// [`RequestError::UnknownClass`].
    pub fn check_class(&self, class: Option<&str>) -> std::result::Result<(), RequestError> {
        match &self.runs {
            Runs::Program(own) => own.engine.check_class(class),
            Runs::Chain(chain) => {
                let is_own = self
                    .settings
                    .classes
                    .iter()
                    .any(|c| Some(&*c.name) == class);
                let mut steps = chain.steps();
                match is_own || steps.any(|step| step.check_class(class).is_ok()) {
                    true => Ok(()),
                    false => chain.first().check_class(class),
                }
            }
        }
    }

    /// Whether a request may find a place just now, whatever it is. A chain takes all of them: its steps
    /// have queues.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`].
    pub fn check_room(&self) -> std::result::Result<(), RequestError> {
        self.engine().map_or(Ok(()), ModelHandle::check_room)
    }

    /// Counts a request that it answered as one of each model that its program is made of. They share
    /// the time of all evenly: launches do not tell what of them was whose.
    pub fn count_parts(&self, samples: usize, took: &Stages) {
        if self.parts.is_empty() {
            return;
        }
        let share = took.share(self.parts.len() as u64);
        for part in self.parts.iter().filter_map(Weak::upgrade) {
            part.stats.answered_within(samples, &share, part.now());
            part.count_parts(samples, &share);
        }
    }

    /// Why a request of its engine took its time.
    pub fn explain(&self, id: RequestId) -> Option<Explanation> {
        self.engine()?.explain(id)
    }

    /// A request with these options was refused before it came to the engine, which has to know if it
    /// is of a sequence with state.
    pub fn refused(&self, options: &Options, cause: &str) {
        match &self.runs {
            Runs::Program(own) if !own.program.carries.is_empty() => {
                own.engine.refused(options, cause);
            }
            Runs::Program(_) => {}
            Runs::Chain(chain) => chain.steps().for_each(|step| step.refused(options, cause)),
        }
    }

    /// Looks whether it gives one answer for a request, to a call of `what` that has no more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is decoupled.
    pub fn check_whole(&self, what: &str) -> Result<()> {
        if self.settings.decoupled {
            let policy = "decoupled transaction policy";
            let message = format!("{what} doesn't support models with {policy}");
            return Err(Error::Unsupported(message));
        }
        Ok(())
    }

    /// Whether its engine takes requests, if it has one of its own.
    pub fn is_running(&self) -> bool {
        self.own_engine().is_none_or(Engine::is_running)
    }

    /// What looks at its engine, if it has one of its own.
    pub fn own_monitor(&self) -> Option<Monitor> {
        self.own_engine().map(Engine::monitor)
    }

    fn own_engine(&self) -> Option<&Engine> {
        match &self.runs {
            Runs::Program(own) => own.own.as_ref(),
            Runs::Chain(_) => None,
        }
    }

    /// Name of its engine: `shared`, or its own name and version; `chain` where its steps have theirs.
    pub fn engine_name(&self) -> String {
        match (&self.runs, self.own_engine()) {
            (Runs::Chain(_), _) => "chain".into(),
            (_, Some(_)) => format!("{}/{}", self.name, self.version),
            (_, None) => "shared".into(),
        }
    }

    /// Whether `is` holds for its program, or for that of a step of the chain that it is.
    fn has(&self, is: fn(&Program) -> bool) -> bool {
        match &self.runs {
            Runs::Program(own) => is(&own.program),
            Runs::Chain(chain) => chain.steps().any(|step| step.has(is)),
        }
    }

    /// Whether requests are parts of sequences with state.
    pub fn is_stateful(&self) -> bool {
        self.has(|program| !program.carries.is_empty())
    }

    /// Whether requests have to say which sequence they belong to.
    pub fn is_sequence(&self) -> bool {
        match &self.runs {
            Runs::Program(_) => self.settings.sequences.is_some(),
            Runs::Chain(chain) => chain.steps().any(Self::is_sequence),
        }
    }

    /// Whether it is made of steps until one stops, as decoders are.
    pub fn has_steps(&self) -> bool {
        self.has(|program| {
            let is_decoder = |b: &Block| matches!(b.repeat, Repeat::UntilStop { .. });
            program.blocks.iter().any(is_decoder)
        })
    }

    /// Whether requests say how tokens are drawn.
    pub fn samples(&self) -> bool {
        self.has(|program| program.sampling().is_some())
    }

    /// Inputs or outputs as metadata states them: name, type, shape with the axis of samples.
    fn tensors<'a>(
        &self,
        of: impl Iterator<Item = (&'a str, i32, &'a [i64])>,
    ) -> Vec<(String, &'static str, Vec<i64>)> {
        let samples = (self.config.max_batch_size > 0).then_some(-1);
        of.map(|(name, data_type, dims)| {
            let data_type = DataType::of_config(data_type).map_or("", DataType::name);
            let shape = samples.into_iter().chain(dims.iter().copied()).collect();
            (name.to_owned(), data_type, shape)
        })
        .collect()
    }

    /// Its inputs as metadata states them.
    pub fn inputs(&self) -> Vec<(String, &'static str, Vec<i64>)> {
        let all = self.config.input.iter();
        self.tensors(all.map(|i| (i.name.as_str(), i.data_type, &i.dims[..])))
    }

    /// Its outputs as metadata states them.
    pub fn outputs(&self) -> Vec<(String, &'static str, Vec<i64>)> {
        let all = self.config.output.iter();
        self.tensors(all.map(|o| (o.name.as_str(), o.data_type, &o.dims[..])))
    }

    /// Its metadata, as HTTP answers it.
    pub fn metadata(&self, versions: &[u64]) -> Json {
        let tensors = |of: Vec<(String, &str, Vec<i64>)>| -> Vec<Json> {
            of.into_iter()
                .map(|(name, ty, shape)| json!({"name": name, "datatype": ty, "shape": shape}))
                .collect()
        };
        let versions: Vec<_> = versions.iter().map(ToString::to_string).collect();
        json!({
            "name": self.name,
            "versions": versions,
            "platform": self.platform,
            "inputs": tensors(self.inputs()),
            "outputs": tensors(self.outputs()),
        })
    }

    /// Its figures.
    pub fn statistics(&self) -> proto::ModelStatistics {
        use std::sync::atomic::Ordering::Relaxed;
        let span = |s: &crate::stats::Span| {
            Some(proto::StatisticDuration {
                count: s.count(),
                ns: s.ns(),
            })
        };
        let s = &self.stats;
        // A request counts in one stage after another, and clients, which expect the same count of each,
        // may look between two: those that count in the last do.
        let answered = s.compute_output.count();
        let stage = |s: &crate::stats::Span| {
            Some(proto::StatisticDuration {
                count: answered,
                ns: s.ns(),
            })
        };
        // Who looks them up in the cache waits for nothing, and counts there all the same.
        let queue = proto::StatisticDuration {
            count: answered + s.cache_hit.count(),
            ns: s.queue.ns(),
        };
        let (execution_count, by_size) = self.executions();
        let batch_stats = by_size.into_iter().filter(|e| e.num > 0).map(|e| {
            let infer = proto::StatisticDuration {
                count: e.num,
                ns: e.ns,
            };
            proto::InferBatchStatistics {
                batch_size: e.samples.into(),
                compute_infer: Some(infer),
                // Inputs are read and outputs written for each request alone.
                compute_input: Some(proto::StatisticDuration::default()),
                compute_output: Some(proto::StatisticDuration::default()),
            }
        });
        let batch_stats = batch_stats.collect();
        proto::ModelStatistics {
            name: self.name.clone(),
            version: self.version.to_string(),
            last_inference: s.last_ms(self.now()),
            inference_count: s.inferences.load(Relaxed),
            execution_count,
            batch_stats,
            inference_stats: Some(proto::InferStatistics {
                success: span(&s.success),
                fail: span(&s.fail),
                queue: Some(queue),
                compute_input: stage(&s.compute_input),
                compute_infer: stage(&s.compute_infer),
                compute_output: stage(&s.compute_output),
                cache_hit: span(&s.cache_hit),
                cache_miss: span(&s.cache_miss),
            }),
            response_stats: s.responses.told(),
            ..proto::ModelStatistics::default()
        }
    }

    /// Inferences over the mean number of samples of a node's launch, each time by those since it was
    /// asked last, and the same by that number ([`Stats::executions`]): what the protocol calls
    /// executions, where batches form anew at every node. A chain's are its requests, of no size.
    pub fn executions(&self) -> (u64, Vec<Executions>) {
        match self.engine() {
            Some(engine) => self.stats.executions(&engine.figures().sizes),
            None => (self.stats.compute_output.count(), Vec::new()),
        }
    }
}

impl Engaged {
    /// Loads the program of the model of that name and folder.
    fn load(
        host: &dyn Host,
        shared: &Shared,
        (name, folder): (&str, &Path),
        program: SharedProgram,
        settings: &Settings,
        max_batch: u32,
    ) -> Result<Self> {
        let profile = profile(host, folder, settings, &program, max_batch)?;
        // Those that were measured, or stated in a file, have their segments.
        let segments = match &profile {
            Some(_) => None,
            None => settings.segments.segments(&program),
        };
        if let (Cut::Us(us), None) = (settings.segments, &profile) {
            tracing::warn!(
                model = name,
                us,
                "parameter segments: ignored, since no latencies are measured (--no-measure)"
            );
        }
        let options = ModelOptions {
            profile,
            segments,
            max_batch: Some(max_batch),
            sla: settings.sla,
            classes: settings.classes.clone(),
            max_queue: Some(settings.max_queue),
            max_queue_by_level: settings.max_queue_by_level.clone(),
            memory: settings.memory,
            sequences: settings.sequences,
            ..ModelOptions::default()
        };
        let fail = |e: BuildError| Error::Invalid(format!("model {name}: {e}"));
        let own = settings.own_policy.as_deref().map(|p| {
            empty_engine(host, p).map_err(|e| Error::Invalid(format!("model {name}: {e}")))
        });
        let own = own.transpose()?;
        let engine = own.as_ref().unwrap_or(&shared.engine);
        let engine = engine.load(name, program.clone(), options).map_err(fail)?;
        let chunk = if is_static(&program) { max_batch } else { 1 };
        Ok(Self {
            program,
            chunk: chunk as usize,
            engine,
            own,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its last request has ended; ending a thread takes a moment that no caller should wait.
        if let Runs::Program(own) = &mut self.runs
            && let Some(engine) = own.own.take()
        {
            std::thread::spawn(move || drop(engine));
        }
    }
}

/// Whether a model's answers are kept.
fn is_cached(config: &ModelConfig, settings: &Settings) -> Result<bool> {
    let cached = config.response_cache.as_ref().is_some_and(|c| c.enable);
    let depends = match (&settings.sequences, settings.decoupled) {
        (Some(_), _) => "sequence_batching, whose answers depend on what came before",
        (None, true) => "model_transaction_policy.decoupled, whose answers are streams",
        (None, false) => return Ok(cached),
    };
    if cached {
        let what = format!("model {}: response_cache", config.name);
        return Err(Error::expected(what, "a model without it", depends));
    }
    Ok(false)
}

/// An engine without models, on a device of its own.
///
/// # Errors
/// A policy that there is not, or no device.
pub fn empty_engine(host: &dyn Host, policy: &str) -> Result<Engine> {
    // Every model bounds its own queue.
    let device = host.device().map_err(Error::Invalid)?;
    let builder = Engine::builder().boxed_device(device);
    let builder = builder.policy(policy).max_queue(usize::MAX);
    let builder = builder.explain_on_request(explained::KEPT);
    let built = builder.measure_decisions(true).build();
    built.map_err(|e| Error::Invalid(e.to_string()))
}

/// What instances are asked to run on, if the server's device is not that.
fn other_device(config: &ModelConfig, has_gpu: bool) -> Option<&'static str> {
    let kinds = config.instance_group.iter().map(|group| group.kind());
    let mut others = kinds.filter_map(|kind| match kind {
        Kind::Gpu if !has_gpu => Some("KIND_GPU"),
        Kind::Cpu if has_gpu => Some("KIND_CPU"),
        _ => None,
    });
    others.next()
}

/// Latencies to schedule by: those of the file that the configuration names, or measured ones.
fn profile(
    host: &dyn Host,
    folder: &Path,
    settings: &Settings,
    program: &SharedProgram,
    max_batch: u32,
) -> Result<Option<lazybatch_sla::profile::ModelProfile>> {
    let name = &program.name;
    let Some(file) = &settings.profile else {
        let measured = host.measure(program, max_batch, settings.segments);
        return measured.map_err(|e| Error::Invalid(format!("model {name}: {e}")));
    };
    let path = file_in(folder, "parameter profile", file)?;
    regular(&path).map_err(|e| Error::expected(path.display(), "a file of latencies", e))?;
    let profile = Profile::read(&path).map_err(|e| Error::Invalid(e.to_string()))?;
    let names: Vec<_> = profile.models.iter().map(|m| m.name.clone()).collect();
    let mut models = profile.models;
    if models.len() > 1 {
        models.retain(|m| m.name == *name);
    }
    let expected = || {
        Error::expected(
            path.display(),
            format!("latencies of {name}"),
            names.join(", "),
        )
    };
    models.pop().map(Some).ok_or_else(expected)
}

/// Labels of outputs: a line each.
fn labels(folder: &Path, config: &ModelConfig) -> Result<BTreeMap<String, Vec<String>>> {
    let named = config
        .output
        .iter()
        .filter(|o| !o.label_filename.is_empty());
    named
        .map(|output| {
            let path = file_in(folder, "label_filename", &output.label_filename)?;
            let text = regular(&path).and_then(|()| std::fs::read_to_string(&path));
            let text = text.map_err(|e| Error::expected(path.display(), "a file of labels", e))?;
            let lines = text.lines().map(str::to_owned).collect();
            Ok((output.name.clone(), lines))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn instances_that_ask_for_another_device_are_named() {
        let of = |kinds: &[&str], has_gpu| {
            let groups = kinds
                .iter()
                .map(|k| format!("instance_group {{ kind: {k} }}"));
            let text: String = groups.collect();
            let config = Config::parse("c", &text).unwrap();
            other_device(&config.proto, has_gpu)
        };
        assert_eq!(of(&["KIND_AUTO", "KIND_GPU"], false), Some("KIND_GPU"));
        assert_eq!(of(&["KIND_CPU"], true), Some("KIND_CPU"));
        for (kind, has_gpu) in [
            ("KIND_GPU", true),
            ("KIND_CPU", false),
            ("KIND_MODEL", false),
        ] {
            assert_eq!(of(&[kind], has_gpu), None, "{kind}");
        }
        assert_eq!(of(&[], true), None);
    }
}
