//! Configurations of models: `config.pbtxt`, read strictly.
//!
//! A field that the protocol does not know is refused with its line and column. A field that it
//! knows and that this server does not honour is kept, so that `ModelConfig` answers it, and listed
//! by name in [`Config::ignored`].

pub mod buckets;
mod complete;
pub mod controls;
mod segments;
mod settings;
mod text;

use miette::Diagnostic;
use prost_reflect::{DynamicMessage, Kind, SerializeOptions, Value};
use serde_json::Value as Json;

pub use complete::{
    Known, TEXT_INPUT, TEXT_OUTPUT, Tensor as KnownTensor, complete, defaults, not_optional,
};
pub use controls::Control;
pub use segments::Cut;
pub use settings::{DEFAULT_POLICY, QueuePolicy, Settings};

use crate::error::{Error, Result};
use crate::proto::{self, ModelConfig};

/// Fields that are honoured, as paths; one that ends in `*` stands for all below it.
const HONOURED: &[&str] = &[
    "name",
    "platform",
    "backend",
    "version_policy.*",
    "max_batch_size",
    "input.name",
    "input.data_type",
    "input.dims",
    "input.optional",
    "input.reshape.*",
    "output.name",
    "output.data_type",
    "output.dims",
    "output.label_filename",
    "output.reshape.*",
    "default_model_filename",
    "metric_tags",
    "model_metrics.*",
    "parameters.*",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.preserve_ordering",
    "dynamic_batching.priority_queue_policy.value.timeout_action",
    "dynamic_batching.priority_queue_policy.value.max_queue_size",
    "dynamic_batching.priority_queue_policy.value.default_timeout_microseconds",
    "dynamic_batching.priority_queue_policy.value.allow_timeout_override",
    "dynamic_batching.default_queue_policy.timeout_action",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.default_queue_policy.allow_timeout_override",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "sequence_batching.max_sequence_idle_microseconds",
    "sequence_batching.state.input_name",
    "sequence_batching.state.output_name",
    "sequence_batching.state.data_type",
    "sequence_batching.state.dims",
    "sequence_batching.state.initial_state.*",
    "sequence_batching.control_input.*",
    "sequence_batching.direct",
    "sequence_batching.oldest",
    "sequence_batching.oldest.max_candidate_sequences",
    "ensemble_scheduling.step.*",
    "model_transaction_policy.decoupled",
    "model_warmup.*",
    "response_cache.enable",
];

/// Most samples of a request or a launch that can be asked for: latencies are measured up to that.
pub const MOST_BATCH: u32 = 1 << 16;

/// A configuration as it was written.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Its fields.
    pub proto: ModelConfig,
    /// Paths of fields that are set and not honoured.
    pub ignored: Vec<String>,
}

impl Config {
    /// Reads the text form; `file` names it in errors.
    ///
    /// # Errors
    /// What is wrong with the text, with line and column.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let (plain, colons) = text::with_colons(text);
        let parsed = DynamicMessage::parse_text_format(proto::descriptor("ModelConfig"), &plain);
        let message = parsed.map_err(|e| {
            let label = e.labels().and_then(|mut l| l.next());
            let at = label.map_or(plain.len(), |l| l.offset());
            let own = at - colons.iter().filter(|&&colon| colon < at).count();
            let (line, column) = place(text, own);
            Error::Invalid(format!("{file}:{line}:{column}: {e}"))
        })?;
        let config = Self::of(file, &message)?;
        check_batch(&config.proto).map_err(|e| {
            let at = text::value(text, MAX_BATCH_SIZE).unwrap_or(0);
            let (line, column) = place(text, at);
            Error::Invalid(format!("{file}:{line}:{column}: {e}"))
        })?;
        Ok(config)
    }

    /// Reads the JSON form, as requests to load a model bring it.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse_json(what: &str, text: &str) -> Result<Self> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let message = DynamicMessage::deserialize(proto::descriptor("ModelConfig"), &mut reader)
            .map_err(|e| Error::Invalid(format!("{what}: {e}")))?;
        let config = Self::of(what, &message)?;
        check_batch(&config.proto).map_err(|e| Error::Invalid(format!("{what}: {e}")))?;
        Ok(config)
    }

    fn of(file: &str, message: &DynamicMessage) -> Result<Self> {
        let proto = message
            .transcode_to::<ModelConfig>()
            .map_err(|e| Error::Invalid(format!("{file}: {e}")))?;
        let mut ignored = Vec::new();
        unhonoured(message, "", &mut ignored);
        ignored.dedup();
        Ok(Self { proto, ignored })
    }
}

const MAX_BATCH_SIZE: &str = "max_batch_size";

fn check_batch(config: &ModelConfig) -> Result<()> {
    let size = config.max_batch_size;
    if u32::try_from(size).is_ok_and(|size| size <= MOST_BATCH) {
        return Ok(());
    }
    Err(Error::expected(
        MAX_BATCH_SIZE,
        format!("0 to {MOST_BATCH}"),
        size,
    ))
}

/// Line and column of a byte, both from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// Adds the paths of set fields that no entry of [`HONOURED`] covers.
fn unhonoured(message: &DynamicMessage, path: &str, found: &mut Vec<String>) {
    for (field, value) in message.fields() {
        let path = match path {
            "" => field.name().to_owned(),
            path => format!("{path}.{}", field.name()),
        };
        let covers = |honoured: &&str| match honoured.strip_suffix(".*") {
            Some(prefix) => path == prefix || path.starts_with(&format!("{prefix}.")),
            None => path == **honoured,
        };
        if HONOURED.iter().any(covers) {
            // A message that is honoured by itself may hold fields that are not.
            let is_named = HONOURED.iter().any(|h| **h == path);
            if let (true, Value::Message(inner)) = (is_named, value) {
                unhonoured(inner, &path, found);
            }
            continue;
        }
        let is_message = matches!(field.kind(), Kind::Message(_)) && !field.is_map();
        let leads_on = HONOURED.iter().any(|h| h.starts_with(&format!("{path}.")));
        match value {
            Value::Message(inner) if is_message && leads_on => unhonoured(inner, &path, found),
            Value::List(items) if is_message && leads_on => {
                for item in items.iter().filter_map(Value::as_message) {
                    unhonoured(item, &path, found);
                }
            }
            Value::Map(entries) if leads_on => {
                let path = format!("{path}.value");
                for inner in entries.values().filter_map(Value::as_message) {
                    unhonoured(inner, &path, found);
                }
            }
            _ => found.push(path),
        }
    }
}

/// A message of the protocol as JSON, in the protocol's own field names and with every field.
pub fn to_json(name: &str, message: &impl prost::Message) -> Json {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    let bytes = message.encode_to_vec();
    let dynamic = DynamicMessage::decode(proto::descriptor(name), bytes.as_slice());
    dynamic
        .ok()
        .and_then(|d| {
            d.serialize_with_options(serde_json::value::Serializer, &options)
                .ok()
        })
        .unwrap_or(Json::Null)
}

/// The text form of a configuration.
pub fn to_text(config: &ModelConfig) -> String {
    use prost::Message;
    let bytes = config.encode_to_vec();
    let dynamic = DynamicMessage::decode(proto::descriptor("ModelConfig"), bytes.as_slice());
    dynamic.map_or_else(|_| String::new(), |d| d.to_text_format())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_refused_with_line_and_column() {
        let told = |text| {
            Config::parse("m/config.pbtxt", text)
                .unwrap_err()
                .to_string()
        };
        let text = "name: \"m\"\ninput [\n  { name: \"x\", colour: 3 }\n]\n";
        let message = told(text);
        assert!(message.starts_with("m/config.pbtxt:3:16: "), "{message}");
        assert!(message.contains("colour"), "{message}");
        assert!(told("max_batch_size: \"x\"").starts_with("m/config.pbtxt:1:17: "));
        assert!(told("input [ {").starts_with("m/config.pbtxt:1:10: "));
        assert!(told("input { data_type: TYPE_FP31 }").contains("TYPE_FP31"));
    }

    #[test]
    fn a_batch_is_bounded_and_told_with_its_place() {
        let parse = |size: &str| {
            let text = format!(
                "# max_batch_size: 1\nname: \"max_batch_size\"\n  max_batch_size : {size}\n"
            );
            Config::parse("m/config.pbtxt", &text)
        };
        for fits in ["0", "64", "65536"] {
            assert!(parse(fits).is_ok(), "{fits}");
        }
        for size in ["65537", "2147483647", "-1"] {
            let told = parse(size).unwrap_err().to_string();
            let expected =
                format!("m/config.pbtxt:3:20: max_batch_size: expected 0 to 65536, got {size}");
            assert_eq!(told, expected);
        }
        let told = Config::parse_json("parameter 'config'", r#"{"max_batch_size": 65537}"#);
        assert_eq!(
            told.unwrap_err().to_string(),
            "parameter 'config': max_batch_size: expected 0 to 65536, got 65537"
        );
    }

    #[test]
    fn known_fields_that_are_not_honoured_are_listed() {
        let config = Config::parse(
            "c",
            r#"
            max_batch_size: 8
            instance_group [ { count: 2 kind: KIND_GPU } ]
            dynamic_batching {
              preferred_batch_size: [4, 8]
              max_queue_delay_microseconds: 100
              default_queue_policy { max_queue_size: 7 timeout_action: DELAY }
            }
            parameters { key: "policy" value { string_value: "lazy" } }
            "#,
        )
        .unwrap();
        let expected = [
            "instance_group",
            "dynamic_batching.preferred_batch_size",
            "dynamic_batching.max_queue_delay_microseconds",
        ];
        let mut ignored = config.ignored.clone();
        ignored.sort_by_key(|p| expected.iter().position(|e| e == p));
        assert_eq!(ignored, expected);
        assert_eq!(config.proto.max_batch_size, 8);
    }

    #[test]
    fn json_has_the_protocols_names_and_plain_numbers() {
        let text = r#"{"name": "m", "maxBatchSize": 4, "input": [{"name": "x", "dims": [3],
            "data_type": "TYPE_FP32"}]}"#;
        let config = Config::parse_json("config", text).unwrap();
        let json = to_json("ModelConfig", &config.proto);
        assert_eq!(json["max_batch_size"], 4);
        assert_eq!(json["input"][0]["dims"][0], 3);
        assert_eq!(json["input"][0]["data_type"], "TYPE_FP32");
        assert_eq!(json["platform"], "");
        assert!(Config::parse_json("config", r#"{"nam": 1}"#).is_err());
    }

    #[test]
    fn every_honoured_path_is_a_field() {
        for path in HONOURED {
            let mut message = Some(proto::descriptor("ModelConfig"));
            for part in path.split('.').filter(|p| *p != "*") {
                let field = message.take().and_then(|m| m.get_field_by_name(part));
                let field = field.unwrap_or_else(|| panic!("{path}: no field {part}"));
                message = field.kind().as_message().cloned();
            }
        }
    }
}
