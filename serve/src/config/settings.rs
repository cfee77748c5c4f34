//! What the server does with a configuration: its typed settings.
//!
//! Our own ones are `parameters` of the configuration; one of an unknown name is listed as ignored,
//! since the protocol lets backends have parameters of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::str::FromStr;

use lazybatch_engine::SequenceOptions;
use lazybatch_kernels::import;
use lazybatch_sla::{Class, Nanos};

use super::buckets::Buckets;
use super::complete::SEQUENCE_IDLE_US;
use super::{Config, Control, Cut, MOST_BATCH};
use crate::error::{Error, Result};
use crate::explained::{MOST_NAME, cut};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_queue_policy::TimeoutAction;
use crate::proto::model_sequence_batching::StrategyChoice;
use crate::proto::{ModelDynamicBatching, ModelQueuePolicy};

/// Parameters that are honoured.
const PARAMETERS: [&str; 20] = [
    "engine",
    "policy",
    "sla_ms",
    "classes",
    "max_queue",
    "max_sequences",
    "max_batch",
    "memory_bytes",
    "max_steps",
    "profile",
    "segments",
    "residency",
    "batch_axis",
    "sequence_axis",
    "max_len",
    "mask",
    "set",
    "size",
    "carry",
    "limit",
];

/// The policy of engines where nobody says which.
pub const DEFAULT_POLICY: &str = "adaptive";

/// Most SLA classes of a model.
const MOST_CLASSES: usize = 256;

/// Requests that wait where nobody says how many.
const MAX_QUEUE: usize = 1024;

/// How many requests may wait, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Most that wait; 0 is no bound.
    pub max_queue: usize,
    /// Time of a request that states none; 0 is for ever.
    pub default_timeout_us: u64,
    /// Whether requests may state their own.
    pub allow_override: bool,
    /// Those whose time has passed let all others pass, instead of being refused.
    pub delays: bool,
}

impl QueuePolicy {
    fn of(stated: &ModelQueuePolicy) -> Self {
        Self {
            max_queue: stated.max_queue_size as usize,
            default_timeout_us: stated.default_timeout_microseconds,
            allow_override: stated.allow_timeout_override,
            delays: stated.timeout_action() == TimeoutAction::Delay,
        }
    }

    /// How long a request that states `stated` microseconds may wait for its turn, or before it is
    /// delayed; 0 is for ever. As in the protocol it can only shorten a default that is not for ever.
    pub fn timeout_us(&self, stated: u64) -> u64 {
        match (self.default_timeout_us, stated) {
            (default, 0) => default,
            (default, stated) if self.allow_override => default.min(stated),
            (default, _) => default,
        }
    }
}

/// Typed settings of a model.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy of an engine of its own, as [`lazybatch_engine::Builder::policy`] takes it; `None`
    /// for a model in the server's engine.
    pub own_policy: Option<String>,
    /// SLA target of requests that state none.
    pub sla: Option<Nanos>,
    /// SLA classes beside the default one.
    pub classes: Vec<Class>,
    /// Most requests that wait.
    pub max_queue: usize,
    /// The same of the engine's priority levels that are bounded beside that.
    pub max_queue_by_level: BTreeMap<u8, usize>,
    /// Most samples of a launch.
    pub max_batch: Option<u32>,
    /// Most bytes that requests hold together.
    pub memory: Option<u64>,
    /// Most decoder steps of requests that state none.
    pub max_steps: Option<u32>,
    /// File of measured latencies, in the model's folder.
    pub profile: Option<String>,
    /// How it is cut into segments.
    pub segments: Cut,
    /// How an ONNX file is imported.
    pub import: import::Options,
    /// Priority levels of requests; 0 where none were configured.
    pub priority_levels: u64,
    /// Level of requests that state none.
    pub default_priority: u64,
    /// How requests may wait.
    pub queue: QueuePolicy,
    /// The same of priority levels that have their own.
    pub level_queues: BTreeMap<u64, QueuePolicy>,
    /// Requests belong to sequences.
    pub sequences: Option<SequenceOptions>,
    /// Inputs that tell where a request stands in its sequence.
    pub controls: Vec<Control>,
    /// Answers come step by step over streams, and only there.
    pub decoupled: bool,
    /// Requests are answered in the order in which they came.
    pub keeps_order: bool,
    /// Labels of all of the model's metrics, with their values, in order of names.
    pub tags: Vec<(String, String)>,
    /// Bounds of histograms of its metrics.
    pub buckets: Buckets,
}

impl Settings {
    /// The settings of a configuration, and the names of fields and parameters that are not honoured.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub fn of(config: &Config) -> Result<(Self, Vec<String>)> {
        let proto = &config.proto;
        let text = |key: &str| proto.parameters.get(key).map(|p| p.string_value.as_str());
        let mut queue = QueuePolicy::default();
        let mut level_queues = BTreeMap::new();
        let (mut levels, mut level) = (0, 0);
        let (mut sequences, mut controls) = (None, Vec::new());
        let transactions = proto.model_transaction_policy.as_ref();
        let decoupled = transactions.is_some_and(|p| p.decoupled);
        let mut keeps_order = false;
        let mut own_policy = own_policy(text("engine"), text("policy"))?;
        let mut ignored = config.ignored.clone();
        match &proto.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => {
                levels = batching.priority_levels;
                level = batching.default_priority_level;
                if levels > 255 {
                    let what = "dynamic_batching.priority_levels";
                    return Err(Error::expected(what, "at most 255", levels));
                }
                if levels > 0 && level > levels {
                    let what = "dynamic_batching.default_priority_level";
                    let expected = format!("at most priority_levels, {levels}");
                    return Err(Error::expected(what, expected, level));
                }
                keeps_order = batching.preserve_ordering && !decoupled;
                if batching.preserve_ordering && decoupled {
                    ignored.push(ORDERING.into());
                }
                if let Some(policy) = own_policy.as_mut().filter(|p| is_triton(p)) {
                    *policy = with_batching(policy, batching, proto.max_batch_size)?;
                    let honoured = BATCHER.map(|field| format!("dynamic_batching.{field}"));
                    ignored.retain(|path| !honoured.contains(path));
                }
                if let Some(policy) = &batching.default_queue_policy {
                    queue = QueuePolicy::of(policy);
                }
                for (level, policy) in &batching.priority_queue_policy {
                    if !(1..=levels).contains(level) {
                        let what = "dynamic_batching.priority_queue_policy";
                        let expected = format!("levels 1 to priority_levels, {levels}");
                        return Err(Error::expected(what, expected, level));
                    }
                    level_queues.insert(*level, QueuePolicy::of(policy));
                }
            }
            Some(SchedulingChoice::SequenceBatching(batching)) => {
                let idle_us = match batching.max_sequence_idle_microseconds {
                    0 => SEQUENCE_IDLE_US,
                    stated => stated,
                };
                let mut options = SequenceOptions {
                    idle: Nanos(idle_us.saturating_mul(1000)),
                    ..SequenceOptions::default()
                };
                match number(text("max_sequences"), "max_sequences")? {
                    Some(0) => {
                        return Err(Error::expected("parameter max_sequences", "1 or more", 0));
                    }
                    Some(most) => options.most = most,
                    None => {}
                }
                if let Some(StrategyChoice::Oldest(oldest)) = &batching.strategy_choice {
                    options.candidates = candidates(oldest.max_candidate_sequences)?;
                }
                sequences = Some(options);
                controls = Control::all(batching)?;
            }
            // Its steps are the repository's matter.
            Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
        }
        let sla_ms: Option<f64> = number(text("sla_ms"), "sla_ms")?;
        if let Some(ms) = sla_ms.filter(|ms| !(*ms > 0.0 && *ms <= 1e9)) {
            return Err(Error::expected(
                "parameter sla_ms",
                "above 0, at most 1e9",
                ms,
            ));
        }
        let classes = text("classes").unwrap_or_default().split(';');
        let classes = classes.map(str::trim).filter(|c| !c.is_empty());
        let classes = classes.map(|c| {
            c.parse::<Class>()
                .map_err(|e| Error::Invalid(format!("parameter classes: {e}")))
        });
        let classes: Vec<Class> = classes.collect::<Result<_>>()?;
        check_classes(&classes)?;
        let max_queue_by_level = queues_by_level(levels, &classes, queue, &level_queues);
        let max_queue = match number(text("max_queue"), "max_queue")? {
            Some(0) => {
                let expected = "1 or more, for a request that comes waits for its turn";
                return Err(Error::expected("parameter max_queue", expected, 0));
            }
            Some(stated) => stated,
            None if levels == 0 && queue.max_queue > 0 => queue.max_queue,
            // Bounds of levels are not to be had otherwise.
            None => MAX_QUEUE.max(max_queue_by_level.values().sum()),
        };
        let (buckets, others) = Buckets::of(proto.model_metrics.as_ref())?;
        ignored.extend(others);
        let settings = Self {
            own_policy,
            sla: sla_ms.map(Nanos::from_ms_f64),
            classes,
            max_queue,
            max_queue_by_level,
            max_batch: max_batch(text("max_batch"))?,
            memory: number(text("memory_bytes"), "memory_bytes")?,
            max_steps: number(text("max_steps"), "max_steps")?,
            profile: text("profile").map(str::to_owned),
            segments: segments(text("segments"), text("profile"))?,
            import: import_options(config)?,
            priority_levels: levels,
            default_priority: level,
            queue,
            level_queues,
            sequences,
            controls,
            decoupled,
            keeps_order,
            tags: tags(&proto.metric_tags)?,
            buckets,
        };
        check_residency(text("residency"))?;
        let unknown = proto.parameters.keys();
        let unknown = unknown.filter(|k| !PARAMETERS.contains(&k.as_str()));
        let mut unknown: Vec<_> = unknown.map(|k| format!("parameters[{k:?}]")).collect();
        unknown.sort();
        ignored.extend(unknown);
        Ok((settings, ignored))
    }

    /// How requests of a priority level may wait.
    pub fn queue(&self, level: u8) -> QueuePolicy {
        let own = self.level_queues.get(&u64::from(level));
        own.copied().unwrap_or(self.queue)
    }

    /// The engine's priority level of a request of an SLA class that states `stated`: 1 is the highest.
    /// What it states comes first, where there is such a level, then its class, then the default level.
    pub fn priority(&self, stated: u64, class: &str) -> u8 {
        let is_level = stated > 0 && (self.priority_levels == 0 || stated <= self.priority_levels);
        let class = self.classes.iter().find(|c| c.name == class);
        let level = match class.map_or(0, |c| u64::from(c.priority)) {
            _ if is_level => stated,
            0 => self.default_priority,
            own => own,
        };
        u8::try_from(level).unwrap_or(u8::MAX)
    }
}

/// How many sequences run at once; all that are open where nothing is stated.
fn candidates(stated: i32) -> Result<usize> {
    match usize::try_from(stated) {
        Ok(0) => Ok(usize::MAX),
        Ok(most) => Ok(most),
        Err(_) => {
            let what = "sequence_batching.oldest.max_candidate_sequences";
            Err(Error::expected(what, "0 or more", stated))
        }
    }
}

/// Bounds on the requests of each priority level that wait, where there are levels: of those
/// without a policy of their own that of the default policy.
fn queues_by_level(
    levels: u64,
    classes: &[Class],
    default: QueuePolicy,
    own: &BTreeMap<u64, QueuePolicy>,
) -> BTreeMap<u8, usize> {
    if levels == 0 {
        return BTreeMap::new();
    }
    // Level 0 has those who state none, where the configuration has no default level.
    let of_classes = classes.iter().map(|c| u64::from(c.priority));
    let all = (0..=levels).chain(of_classes);
    let bounds = all.filter_map(|level| {
        let policy = own.get(&level).copied().unwrap_or(default);
        let level = u8::try_from(level).ok()?;
        (policy.max_queue > 0).then_some((level, policy.max_queue))
    });
    bounds.collect()
}

/// Looks whether classes have names of their own, and are no more than figures can be kept of.
fn check_classes(classes: &[Class]) -> Result<()> {
    if classes.len() > MOST_CLASSES {
        let expected = format!("at most {MOST_CLASSES}");
        return Err(Error::expected(
            "parameter classes",
            expected,
            classes.len(),
        ));
    }
    let mut names = BTreeSet::new();
    match classes.iter().find(|c| !names.insert(&c.name)) {
        None => Ok(()),
        Some(again) => {
            let got = format!("{:?} again", again.name);
            let expected = "a name of its own for each";
            Err(Error::expected("parameter classes", expected, got))
        }
    }
}

/// How the model is cut into segments; a profile has them already.
fn segments(stated: Option<&str>, profile: Option<&str>) -> Result<Cut> {
    match (stated, profile) {
        (None, _) => Ok(Cut::default()),
        (Some(cut), None) => cut.parse(),
        (Some(cut), Some(profile)) => {
            let expected =
                format!("none, since the file of parameter profile, {profile}, has them");
            Err(Error::expected("parameter segments", expected, cut))
        }
    }
}

/// Looks where the weights are to be: there is one place.
fn check_residency(stated: Option<&str>) -> Result<()> {
    match stated {
        None | Some("device") => Ok(()),
        Some(other) => Err(Error::expected(
            "parameter residency",
            "device, since weights of a served model stay on the server's device until it is unloaded",
            other,
        )),
    }
}

/// The policy of an engine of its own, if the model asks for one.
fn own_policy(engine: Option<&str>, policy: Option<&str>) -> Result<Option<String>> {
    match (engine, policy) {
        (Some("own"), policy) => Ok(Some(policy.unwrap_or(DEFAULT_POLICY).to_owned())),
        (None | Some("shared"), None) => Ok(None),
        (None | Some("shared"), Some(policy)) => Err(Error::expected(
            "parameter policy",
            "none, since the models of a server share one engine and its policy (flag --policy), or \
             parameter engine: \"own\" beside it",
            policy,
        )),
        (Some(other), _) => Err(Error::expected("parameter engine", "shared or own", other)),
    }
}

/// Streams of steps have no order among each other.
const ORDERING: &str = "dynamic_batching.preserve_ordering";

/// Fields of `dynamic_batching` that say when a batch goes, honoured by the policy `triton` alone.
const BATCHER: [&str; 2] = ["preferred_batch_size", "max_queue_delay_microseconds"];

fn is_triton(policy: &str) -> bool {
    policy == "triton" || policy.starts_with("triton:")
}

/// The policy `triton` with what the configuration of its batcher says, but for options that the
/// policy states itself.
fn with_batching(
    policy: &str,
    batching: &ModelDynamicBatching,
    max_batch_size: i32,
) -> Result<String> {
    let sizes = &batching.preferred_batch_size;
    let most = if max_batch_size > 0 {
        max_batch_size
    } else {
        i32::MAX
    };
    if let Some(size) = sizes.iter().find(|s| !(1..=most).contains(*s)) {
        let what = "dynamic_batching.preferred_batch_size";
        return Err(Error::expected(what, "1 to max_batch_size", size));
    }
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let us = batching.max_queue_delay_microseconds;
    let levels = batching.priority_levels;
    let options = [
        ("preferred", !sizes.is_empty(), sizes.join("+")),
        ("delay", us > 0, format!("{}.{:03}", us / 1000, us % 1000)),
        ("levels", levels > 0, levels.to_string()),
        (
            "default-level",
            levels > 0 && batching.default_priority_level > 0,
            batching.default_priority_level.to_string(),
        ),
    ];
    let stated = policy.split_once(':').map_or("", |(_, options)| options);
    let states = |key: &str| stated.split(',').any(|o| o.split('=').next() == Some(key));
    let options = options
        .into_iter()
        .filter(|(key, is_set, _)| *is_set && !states(key));
    let options = options.map(|(key, _, value)| format!("{key}={value}"));
    let all: Vec<String> = [stated.to_owned()]
        .into_iter()
        .filter(|s| !s.is_empty())
        .chain(options)
        .collect();
    Ok(match all.is_empty() {
        true => "triton".into(),
        false => format!("triton:{}", all.join(",")),
    })
}

fn number<T: FromStr>(text: Option<&str>, key: &str) -> Result<Option<T>> {
    let parse = |text: &str| {
        let parsed = text.trim().parse().ok();
        parsed.ok_or_else(|| Error::expected(format!("parameter {key}"), "a number", text))
    };
    text.map(parse).transpose()
}

fn max_batch(stated: Option<&str>) -> Result<Option<u32>> {
    let most: Option<u32> = number(stated, "max_batch")?;
    match most.filter(|most| !(1..=MOST_BATCH).contains(most)) {
        None => Ok(most),
        Some(other) => {
            let expected = format!("1 to {MOST_BATCH}");
            Err(Error::expected("parameter max_batch", expected, other))
        }
    }
}

fn list<T: FromStr<Err = String>>(text: Option<&str>, key: &str) -> Result<Vec<T>> {
    let items = text.unwrap_or_default().split(',').map(str::trim);
    let parse = |item: &str| {
        let parsed = item.parse();
        parsed.map_err(|e| Error::Invalid(format!("parameter {key}: {e}")))
    };
    items.filter(|i| !i.is_empty()).map(parse).collect()
}

/// How the ONNX file of a model is imported: as the options of `lazybatch import` of the same
/// names, lists separated by commas; states of `sequence_batching` are carried.
fn import_options(config: &Config) -> Result<import::Options> {
    let parameters = &config.proto.parameters;
    let text = |key: &str| parameters.get(key).map(|p| p.string_value.as_str());
    let mut carried: Vec<import::Carried> = list(text("carry"), "carry")?;
    if let Some(SchedulingChoice::SequenceBatching(batching)) = &config.proto.scheduling_choice {
        carried.extend(batching.state.iter().map(|state| import::Carried {
            output: state.output_name.clone(),
            input: state.input_name.clone(),
        }));
    }
    let masks = text("mask").unwrap_or_default().split(',').map(str::trim);
    Ok(import::Options {
        name: None,
        batch: list(text("batch_axis"), "batch_axis")?,
        sequence: list(text("sequence_axis"), "sequence_axis")?,
        max_len: number(text("max_len"), "max_len")?,
        masks: masks.filter(|m| !m.is_empty()).map(str::to_owned).collect(),
        fixed: list(text("set"), "set")?,
        sizes: list(text("size"), "size")?,
        carried,
        limits: import::Limits::default().with(&list::<import::Limit>(text("limit"), "limit")?),
    })
}

/// Most labels that a configuration adds to its model's metrics.
const MOST_TAGS: usize = 32;
/// Most bytes of a label's name, and of its value.
const MOST_TAG: usize = 256;

/// Labels of metrics by their tags: `_KEY`, so that none has the name of another label.
fn tags(stated: &HashMap<String, String>) -> Result<Vec<(String, String)>> {
    if stated.len() > MOST_TAGS {
        let expected = format!("at most {MOST_TAGS}");
        return Err(Error::expected("metric_tags", expected, stated.len()));
    }
    let mut tags = Vec::with_capacity(stated.len());
    for (key, value) in stated {
        let what = || format!("metric_tags: key {:?}", cut(key, MOST_NAME));
        // Names that begin with two of them are reserved.
        let begins = key.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !begins || !is_plain {
            let expected = "letters, digits and _, not at its begin";
            return Err(Error::expected(what(), expected, "others"));
        }
        let longest = key.len().max(value.len());
        if longest > MOST_TAG {
            let expected = format!("it and its value to have at most {MOST_TAG} bytes");
            return Err(Error::expected(what(), expected, longest));
        }
        tags.push((format!("_{key}"), value.clone()));
    }
    tags.sort();
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<(Settings, Vec<String>)> {
        Settings::of(&Config::parse("c", text).unwrap())
    }

    #[test]
    fn our_parameters_are_read_and_others_listed() {
        let parameter = |k: &str, v: &str| {
            format!("parameters {{ key: \"{k}\" value {{ string_value: \"{v}\" }} }}\n")
        };
        let text = parameter("policy", "lazy")
            + &parameter("engine", "own")
            + &parameter("sla_ms", "12.5")
            + &parameter("classes", "gold:sla=20,priority=1; bulk:late=shed")
            + &parameter("set", "sr=16000")
            + &parameter("FORCE_CPU", "yes");
        let (s, unknown) = settings(&text).unwrap();
        assert_eq!(s.own_policy.as_deref(), Some("lazy"));
        assert_eq!(s.sla, Some(Nanos(12_500_000)));
        assert_eq!(s.classes.len(), 2);
        assert_eq!(s.import.fixed.len(), 1);
        assert_eq!(unknown, ["parameters[\"FORCE_CPU\"]"]);
        let told = settings(&parameter("max_queue", "0")).unwrap_err();
        assert!(told.to_string().contains("1 or more"), "{told}");
        let told = settings(&parameter("classes", "a:sla=1; b; a:sla=2")).unwrap_err();
        assert!(told.to_string().contains("got \"a\" again"), "{told}");
        let many: Vec<String> = (0..257).map(|i| format!("c{i}:sla=1")).collect();
        let told = settings(&parameter("classes", &many.join(";"))).unwrap_err();
        assert!(told.to_string().contains("at most 256, got 257"), "{told}");
        let told = settings(&parameter("max_queue", "many")).unwrap_err();
        assert_eq!(
            told.to_string(),
            "parameter max_queue: expected a number, got many"
        );
        let told = settings(&parameter("policy", "lazy")).unwrap_err();
        assert!(told.to_string().contains("share one engine"), "{told}");
        let told = settings(&parameter("engine", "two")).unwrap_err();
        assert!(
            told.to_string().contains("shared or own, got two"),
            "{told}"
        );
        assert!(settings(&parameter("sla_ms", "0")).is_err());
        let told = settings(&parameter("max_batch", "65537")).unwrap_err();
        assert_eq!(
            told.to_string(),
            "parameter max_batch: expected 1 to 65536, got 65537"
        );
        assert!(settings(&parameter("carry", "x")).is_err());
        let (s, _) = settings(&parameter("limit", "elems=10, work=20")).unwrap();
        assert_eq!((s.import.limits.elems, s.import.limits.work), (10, 20));
        assert!(settings(&parameter("limit", "depth=10")).is_err());
    }

    #[test]
    fn the_policy_triton_takes_what_the_batcher_is_told() {
        let text = |policy: &str| {
            let parameter = |k: &str, v: &str| {
                format!("parameters {{ key: \"{k}\" value {{ string_value: \"{v}\" }} }}\n")
            };
            parameter("engine", "own")
                + &parameter("policy", policy)
                + "max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4]
                   max_queue_delay_microseconds: 1500 priority_levels: 3
                   default_priority_level: 2 preserve_ordering: true }"
        };
        for (stated, policy) in [
            (
                "triton",
                "preferred=2+4,delay=1.500,levels=3,default-level=2",
            ),
            (
                "triton:pad,delay=3",
                "pad,delay=3,preferred=2+4,levels=3,default-level=2",
            ),
        ] {
            let (s, ignored) = settings(&text(stated)).unwrap();
            let policy = format!("triton:{policy}");
            assert_eq!(s.own_policy.as_deref(), Some(policy.as_str()));
            assert!(lazybatch_engine::policy::find(&policy).is_ok());
            assert!(s.keeps_order && ignored.is_empty(), "{ignored:?}");
        }
        let (s, mut ignored) = settings(&text("lazy")).unwrap();
        ignored.sort();
        let delay = "dynamic_batching.max_queue_delay_microseconds";
        let preferred = "dynamic_batching.preferred_batch_size";
        assert_eq!(s.own_policy.as_deref(), Some("lazy"));
        assert_eq!(ignored, [delay, preferred]);
        let streams = "model_transaction_policy { decoupled: true }";
        let (s, ignored) = settings(&(text("triton") + streams)).unwrap();
        assert!(!s.keeps_order && ignored == [ORDERING], "{ignored:?}");
        let told = settings(&text("triton").replace("[2, 4]", "[2, 9]")).unwrap_err();
        assert!(
            told.to_string().contains("1 to max_batch_size, got 9"),
            "{told}"
        );
        let none = text("triton")
            .split("max_batch_size")
            .next()
            .unwrap()
            .to_owned();
        let (s, _) = settings(&(none + "dynamic_batching { }")).unwrap();
        assert_eq!(s.own_policy.as_deref(), Some("triton"));
    }

    #[test]
    fn priorities_follow_the_levels() {
        let text = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }";
        let (s, _) = settings(text).unwrap();
        let priorities = |s: &Settings, class| [0, 1, 3, 4].map(|p| s.priority(p, class));
        assert_eq!(priorities(&s, "default"), [2, 1, 3, 2]);
        let classes = "parameters { key: \"classes\" value { string_value:
            \"gold:priority=1; plain\" } }";
        let (s, _) = settings(&format!("{text} {classes}")).unwrap();
        assert_eq!(priorities(&s, "gold"), [1, 1, 3, 1]);
        assert_eq!(priorities(&s, "plain"), [2, 1, 3, 2]);
        let (s, _) = settings(classes).unwrap();
        assert_eq!(priorities(&s, "gold"), [1, 1, 3, 4]);
        assert_eq!(priorities(&s, "none"), [0, 1, 3, 4]);
        assert!(settings("dynamic_batching { priority_levels: 300 }").is_err());
        let told = settings(&text.replace("level: 2", "level: 4")).unwrap_err();
        assert!(
            told.to_string().contains("priority_levels, 3, got 4"),
            "{told}"
        );
    }

    #[test]
    fn priority_levels_may_have_their_own_time_to_wait() {
        let text = "dynamic_batching { priority_levels: 2
            default_queue_policy { default_timeout_microseconds: 50 allow_timeout_override: true }
            priority_queue_policy { key: 2 value { timeout_action: DELAY
                default_timeout_microseconds: 9 max_queue_size: 3 } } }";
        let (s, _) = settings(text).unwrap();
        let times = [0, 20, 70].map(|stated| s.queue(1).timeout_us(stated));
        assert_eq!(times, [50, 20, 50]);
        for text in [
            "",
            "dynamic_batching { }",
            "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
        ] {
            let (s, _) = settings(text).unwrap();
            assert_eq!(s.queue(0).timeout_us(20), 0, "none to shorten: {text}");
        }
        assert_eq!(s.queue(2).timeout_us(4), 9);
        assert_eq!([1, 2].map(|level| s.queue(level).delays), [false, true]);
        assert_eq!(Config::parse("c", text).unwrap().ignored, [""; 0]);
        let told = settings(&text.replace("key: 2", "key: 3")).unwrap_err();
        assert!(
            told.to_string().contains("priority_levels, 2, got 3"),
            "{told}"
        );
    }

    #[test]
    fn tags_are_labels_of_names_that_there_may_be() {
        let tag =
            |key: &str, value: &str| format!("metric_tags {{ key: {key:?} value: {value:?} }} ");
        let (s, ignored) = settings(&(tag("zone", "a \"b\"") + &tag("Owner_1", ""))).unwrap();
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(s.tags, [label("_Owner_1", ""), label("_zone", "a \"b\"")]);
        assert_eq!(ignored, [""; 0]);
        for (text, told) in [
            (tag("", ""), "key \"\": expected letters, digits and _"),
            (tag("_a", ""), "key \"_a\": expected letters, digits and _"),
            (
                tag("a-b", ""),
                "key \"a-b\": expected letters, digits and _",
            ),
            (tag("a", &"v".repeat(257)), "at most 256 bytes, got 257"),
            (
                (0..33).map(|i| tag(&format!("k{i}"), "v")).collect(),
                "metric_tags: expected at most 32, got 33",
            ),
        ] {
            let error = settings(&text).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn each_priority_level_may_bound_its_queue() {
        let policy = |size: u32| format!("{{ max_queue_size: {size} }}");
        let text = |levels: u32, own: &str| {
            let default = policy(7);
            format!(
                "dynamic_batching {{ priority_levels: {levels} default_queue_policy {default}
                 {own} }} parameters {{ key: \"classes\" value {{ string_value:
                 \"gold:priority=9\" }} }}"
            )
        };
        // Without levels it is the model's.
        let (s, _) = settings(&text(0, "")).unwrap();
        assert_eq!((s.max_queue, s.max_queue_by_level.len()), (7, 0));
        // With levels it is that of each without a policy of its own, be it without a bound.
        let own = [(1, 2000), (3, 0)].map(|(level, size)| {
            let policy = policy(size);
            format!("priority_queue_policy {{ key: {level} value {policy} }}")
        });
        let (s, _) = settings(&text(3, &own.join(" "))).unwrap();
        assert_eq!(
            s.max_queue_by_level,
            BTreeMap::from([(0, 7), (1, 2000), (2, 7), (9, 7)])
        );
        assert_eq!(s.max_queue, 2021, "all levels find their room");
        let stated = "parameters { key: \"max_queue\" value { string_value: \"5\" } }";
        let (s, _) = settings(&(text(3, &own.join(" ")) + stated)).unwrap();
        assert_eq!((s.max_queue, s.max_queue_by_level[&1]), (5, 2000));
    }

    #[test]
    fn states_are_carried() {
        let text = "sequence_batching { max_sequence_idle_microseconds: 7
            state { input_name: \"s\" output_name: \"s_next\" } }";
        let (s, _) = settings(text).unwrap();
        assert_eq!(s.import.carried[0].output, "s_next");
        assert_eq!(s.sequences.unwrap().idle, Nanos(7000));
    }

    #[test]
    fn how_many_sequences_are_open_and_how_many_of_them_run_are_stated() {
        let batching = "sequence_batching { oldest { max_candidate_sequences: 2 } } ";
        let (s, ignored) = settings(batching).unwrap();
        let of = |s: &Settings| s.sequences.unwrap();
        assert_eq!(of(&s).most, SequenceOptions::default().most);
        assert_eq!(of(&s).idle, Nanos(SEQUENCE_IDLE_US * 1000));
        assert_eq!(ignored, Vec::<String>::new());
        assert_eq!(of(&s).candidates, 2);
        for all in [
            "direct {}",
            "oldest {}",
            "oldest { max_candidate_sequences: 0 }",
        ] {
            let (s, _) = settings(&format!("sequence_batching {{ {all} }}")).unwrap();
            assert_eq!(of(&s).candidates, usize::MAX, "{all}");
        }
        let none = settings("sequence_batching { oldest { max_candidate_sequences: -1 } }");
        let told = "sequence_batching.oldest.max_candidate_sequences: expected 0 or more, got -1";
        assert!(none.unwrap_err().to_string().contains(told));
        let more = "oldest { max_candidate_sequences: 2 preserve_ordering: true }";
        let (_, ignored) = settings(&format!("sequence_batching {{ {more} }}")).unwrap();
        assert_eq!(ignored, ["sequence_batching.oldest.preserve_ordering"]);
        let bounded = |most: &str| {
            let value = format!("value {{ string_value: \"{most}\" }}");
            settings(&format!(
                "{batching} parameters {{ key: \"max_sequences\" {value} }}"
            ))
        };
        assert_eq!(of(&bounded("3").unwrap().0).most, 3);
        let none = bounded("0");
        let told = "parameter max_sequences: expected 1 or more, got 0";
        assert!(none.unwrap_err().to_string().contains(told));
    }
}
