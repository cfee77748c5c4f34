//! What the server does with a configuration: its typed settings.
//!
//! Our own ones are `parameters` of the configuration; one of an unknown name is listed as ignored,
//! since the protocol lets backends have parameters of their own.

use std::collections::BTreeMap;
use std::str::FromStr;

use lazybatch_engine::SequenceOptions;
use lazybatch_kernels::import;
use lazybatch_sla::{Class, Nanos};

use super::{Config, Control};
use crate::error::{Error, Result};
use crate::proto::ModelQueuePolicy;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_queue_policy::TimeoutAction;
use crate::proto::model_sequence_batching::StrategyChoice;

/// Parameters that are honoured.
const PARAMETERS: [&str; 17] = [
    "engine",
    "policy",
    "sla_ms",
    "classes",
    "max_queue",
    "max_batch",
    "memory_bytes",
    "max_steps",
    "profile",
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

/// Requests that wait where nobody says how many.
const MAX_QUEUE: usize = 1024;

/// How long requests may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Time of a request that states none; 0 is for ever.
    pub default_timeout_us: u64,
    /// Whether requests may state their own.
    pub allow_override: bool,
    /// Those whose time has passed wait on, instead of being refused.
    pub waits_on: bool,
}

impl QueuePolicy {
    fn of(stated: &ModelQueuePolicy) -> Self {
        Self {
            default_timeout_us: stated.default_timeout_microseconds,
            allow_override: stated.allow_timeout_override,
            waits_on: stated.timeout_action() == TimeoutAction::Delay,
        }
    }

    /// How long a request that states `stated` microseconds may wait for its turn; 0 is for ever. As
    /// in the protocol it can only shorten the default.
    pub fn timeout_us(&self, stated: u64) -> u64 {
        match (self.default_timeout_us, stated) {
            _ if self.waits_on => 0,
            (default, 0) => default,
            (default, _) if !self.allow_override => default,
            (0, stated) => stated,
            (default, stated) => default.min(stated),
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
    /// Most samples of a launch.
    pub max_batch: Option<u32>,
    /// Most bytes that requests hold together.
    pub memory: Option<u64>,
    /// Most decoder steps of requests that state none.
    pub max_steps: Option<u32>,
    /// File of measured latencies, in the model's folder.
    pub profile: Option<String>,
    /// How an ONNX file is imported.
    pub import: import::Options,
    /// Priority levels of requests; 0 where none were configured.
    pub priority_levels: u64,
    /// Level of requests that state none.
    pub default_priority: u64,
    /// How long requests may wait.
    pub queue: QueuePolicy,
    /// The same of priority levels that have their own.
    pub level_queues: BTreeMap<u64, QueuePolicy>,
    /// Requests belong to sequences.
    pub sequences: Option<SequenceOptions>,
    /// Inputs that tell where a request stands in its sequence.
    pub controls: Vec<Control>,
    /// Answers come step by step over streams, and only there.
    pub decoupled: bool,
}

impl Settings {
    /// The settings of a configuration, and the names of parameters that are not honoured.
    ///
    /// # Errors
    /// A value that cannot be read.
    pub fn of(config: &Config) -> Result<(Self, Vec<String>)> {
        let proto = &config.proto;
        let text = |key: &str| proto.parameters.get(key).map(|p| p.string_value.as_str());
        let mut queue = QueuePolicy {
            default_timeout_us: 0,
            allow_override: true,
            waits_on: false,
        };
        let mut level_queues = BTreeMap::new();
        let (mut levels, mut level, mut max_queue) = (0, 0, MAX_QUEUE);
        let (mut sequences, mut controls) = (None, Vec::new());
        match &proto.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => {
                levels = batching.priority_levels;
                level = batching.default_priority_level;
                if levels > 255 {
                    let what = "dynamic_batching.priority_levels";
                    return Err(Error::expected(what, "at most 255", levels));
                }
                if let Some(policy) = &batching.default_queue_policy {
                    queue = QueuePolicy::of(policy);
                    if policy.max_queue_size > 0 {
                        max_queue = policy.max_queue_size as usize;
                    }
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
                let mut options = SequenceOptions::default();
                if batching.max_sequence_idle_microseconds > 0 {
                    let idle_us = batching.max_sequence_idle_microseconds;
                    options.idle = Nanos(idle_us.saturating_mul(1000));
                }
                if let Some(StrategyChoice::Oldest(oldest)) = &batching.strategy_choice
                    && oldest.max_candidate_sequences > 0
                {
                    options.most = oldest.max_candidate_sequences as usize;
                }
                sequences = Some(options);
                controls = Control::all(batching)?;
            }
            // Its steps are the repository's matter.
            Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
        }
        if let Some(stated) = number(text("max_queue"), "max_queue")? {
            max_queue = stated;
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
        let settings = Self {
            own_policy: own_policy(text("engine"), text("policy"))?,
            sla: sla_ms.map(Nanos::from_ms_f64),
            classes: classes.collect::<Result<_>>()?,
            max_queue,
            max_batch: number(text("max_batch"), "max_batch")?,
            memory: number(text("memory_bytes"), "memory_bytes")?,
            max_steps: number(text("max_steps"), "max_steps")?,
            profile: text("profile").map(str::to_owned),
            import: import_options(config)?,
            priority_levels: levels,
            default_priority: level,
            queue,
            level_queues,
            sequences,
            controls,
            decoupled: proto
                .model_transaction_policy
                .as_ref()
                .is_some_and(|p| p.decoupled),
        };
        let unknown = proto.parameters.keys();
        let unknown = unknown.filter(|k| !PARAMETERS.contains(&k.as_str()));
        let mut unknown: Vec<_> = unknown.map(|k| format!("parameters[{k:?}]")).collect();
        unknown.sort();
        Ok((settings, unknown))
    }

    /// How long requests of a priority level may wait.
    pub fn queue(&self, level: u8) -> QueuePolicy {
        let own = self.level_queues.get(&u64::from(level));
        own.copied().unwrap_or(self.queue)
    }

    /// The engine's priority level of a request that states `stated`: 1 is the highest.
    pub fn priority(&self, stated: u64) -> u8 {
        let level = match stated {
            0 => self.default_priority,
            n if self.priority_levels > 0 && n > self.priority_levels => self.default_priority,
            n => n,
        };
        u8::try_from(level).unwrap_or(u8::MAX)
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

fn number<T: FromStr>(text: Option<&str>, key: &str) -> Result<Option<T>> {
    let parse = |text: &str| {
        let parsed = text.trim().parse().ok();
        parsed.ok_or_else(|| Error::expected(format!("parameter {key}"), "a number", text))
    };
    text.map(parse).transpose()
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
        assert!(settings(&parameter("carry", "x")).is_err());
        let (s, _) = settings(&parameter("limit", "elems=10, work=20")).unwrap();
        assert_eq!((s.import.limits.elems, s.import.limits.work), (10, 20));
        assert!(settings(&parameter("limit", "depth=10")).is_err());
    }

    #[test]
    fn priorities_follow_the_levels() {
        let text = "dynamic_batching { priority_levels: 3 default_priority_level: 2 }";
        let (s, _) = settings(text).unwrap();
        assert_eq!([0, 1, 3, 4].map(|p| s.priority(p)), [2, 1, 3, 2]);
        assert!(settings("dynamic_batching { priority_levels: 300 }").is_err());
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
        assert_eq!(s.queue(2).timeout_us(4), 0);
        let mut ignored = Config::parse("c", text).unwrap().ignored;
        ignored.sort();
        let policy = "dynamic_batching.priority_queue_policy.value";
        let named = ["max_queue_size", "timeout_action"].map(|f| format!("{policy}.{f}"));
        assert_eq!(ignored, named);
        let told = settings(&text.replace("key: 2", "key: 3")).unwrap_err();
        assert!(
            told.to_string().contains("priority_levels, 2, got 3"),
            "{told}"
        );
    }

    #[test]
    fn states_are_carried() {
        let text = "sequence_batching { max_sequence_idle_microseconds: 7
            state { input_name: \"s\" output_name: \"s_next\" } }";
        let (s, _) = settings(text).unwrap();
        assert_eq!(s.import.carried[0].output, "s_next");
        assert_eq!(s.sequences.unwrap().idle, Nanos(7000));
    }
}
