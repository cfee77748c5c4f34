//! Latency profiles, `lazybatch-profile/1`.
//!
//! Reads and writes the file format and checks it. Interpolation and sums are in
//! [`crate::latency`].

use std::ops::RangeInclusive;
use std::path::Path;

use lazybatch_graph::Repeat;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::latency::SegmentRanges;
use crate::time::Nanos;

/// The value of `format` in every profile.
pub const FORMAT: &str = "lazybatch-profile/1";

/// Largest `max_batch` that a profile may state: tables hold an entry per size.
pub const MAX_BATCH: u32 = 1 << 16;
/// Targets that can be asked for, in milliseconds: from a nanosecond on.
pub const TARGETS_MS: RangeInclusive<f64> = 1e-6..=1e9;
/// Most program nodes that one entry may cover.
const MAX_NODES: u32 = 1 << 16;
/// Slowest merge copies, so that no copy takes longer than time can count.
const MIN_COPY_GBPS: f64 = 1e-3;
/// Largest `merge_bytes_per_member`, for the same reason.
const MAX_MERGE_BYTES: f64 = 1e11;
/// What [`micros_to_nanos`] takes, for messages.
const MICROSECONDS: &str = "microseconds >= 0, below 1e12";

/// A profile that cannot be used: where it is wrong, what was expected, what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("profile {file}: {place}: expected {expected}, got {got}")]
pub struct ProfileError {
    /// The file, or `-`.
    pub file: String,
    /// Path within the file.
    pub place: String,
    /// What would be right.
    pub expected: String,
    /// What is there.
    pub got: String,
}

/// Latency tables of the models of one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Always [`FORMAT`].
    pub format: String,
    /// The device that was measured or modelled.
    pub device: String,
    /// Speed of merge copies in GB/s; 0 makes them free.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copy_gbps: f64,
    /// Cost of one launch in microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dispatch_us: f64,
    /// Host time of issuing one launch in microseconds, where it was measured. It is within the
    /// latencies, so nothing adds it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub issue_us: f64,
    /// The models.
    pub models: Vec<ModelProfile>,
}

/// One model's tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelProfile {
    /// Its name.
    pub name: String,
    /// Most samples of one launch.
    #[serde(default = "default_max_batch")]
    pub max_batch: u32,
    /// SLA target in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla_ms: Option<f64>,
    /// The output length that covers 90 % of training outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_len_p90: Option<u32>,
    /// Blocks in the order in which a request passes them.
    pub blocks: Vec<BlockProfile>,
}

/// One block's tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockProfile {
    /// Its name.
    pub name: String,
    /// Repeat rule.
    pub repeat: RepeatRule,
    /// Input positions per pass of a `per_input_step` block; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<u32>,
    /// Most passes of an `until_stop` block; unbounded if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Nodes in order.
    pub nodes: Vec<NodeProfile>,
}

/// `repeat` as files spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatRule {
    /// Once.
    Once,
    /// `input_len` times.
    PerInputStep,
    /// `output_len` times.
    UntilStop,
}

/// The batch axis of a node's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Samples of all members.
    #[default]
    Members,
    /// Members' input lengths added.
    Rows,
}

/// One node's table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeProfile {
    /// Its name.
    pub name: String,
    /// Axis of the table.
    #[serde(default)]
    pub by: By,
    /// `[x, microseconds]`, x strictly increasing.
    pub latency_us: Vec<(u64, f64)>,
    /// Program nodes that this entry covers, where it is a segment; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_nodes: Option<u32>,
    /// Bytes that a merge in front of this node copies per member.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub merge_bytes_per_member: f64,
    /// Bytes of its weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_bytes: Option<u64>,
    /// Time to load its weights, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_us: Option<f64>,
    /// Extra time when its weights are read from the host, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_access_us: Option<f64>,
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

fn default_max_batch() -> u32 {
    64
}

impl Profile {
    /// Reads and checks a profile file.
    ///
    /// # Errors
    /// A file that cannot be read, is not JSON of this format, or breaks one of its rules.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| ProfileError {
            file: file.clone(),
            place: "file".into(),
            expected: "a readable file".into(),
            got: e.to_string(),
        })?;
        Self::parse(&file, &text)
    }

    /// Parses and checks a profile; `file` names it in errors.
    ///
    /// # Errors
    /// As [`Profile::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let profile: Self = serde_json::from_str(text).map_err(|e| ProfileError {
            file: file.into(),
            place: format!("line {} column {}", e.line(), e.column()),
            expected: format!("a {FORMAT} document"),
            got: strip_position(&e.to_string()),
        })?;
        check_objects(text).map_err(|place| ProfileError {
            file: file.into(),
            place,
            expected: "an object".into(),
            got: "an array".into(),
        })?;
        profile.check(file)?;
        Ok(profile)
    }

    /// The document, with one node a line.
    ///
    /// # Panics
    /// Never: every field has a JSON form.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a profile has a JSON form")
    }

    /// The model of that name.
    pub fn model(&self, name: &str) -> Option<&ModelProfile> {
        self.models.iter().find(|m| m.name == name)
    }

    /// Checks every rule of the format.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(&self, file: &str) -> Result<(), ProfileError> {
        let fail = |place: String, expected: &str, got: String| {
            Err(ProfileError {
                file: file.into(),
                place,
                expected: expected.into(),
                got,
            })
        };
        if self.format != FORMAT {
            return fail("format".into(), FORMAT, format!("{:?}", self.format));
        }
        let gbps = self.copy_gbps;
        if gbps != 0.0 && !(gbps.is_finite() && gbps >= MIN_COPY_GBPS) {
            let expected = "0 or a number >= 0.001";
            return fail("copy_gbps".into(), expected, format!("{gbps:?}"));
        }
        for (name, us) in [
            ("dispatch_us", self.dispatch_us),
            ("issue_us", self.issue_us),
        ] {
            if micros_to_nanos(us).is_none() {
                return fail(name.into(), MICROSECONDS, format!("{us:?}"));
            }
        }
        if self.models.is_empty() {
            return fail("models".into(), "at least one model", "none".into());
        }
        for (i, model) in self.models.iter().enumerate() {
            if model.name.is_empty() || model.name.chars().any(char::is_control) {
                let expected = "a name, not empty, without control characters";
                return fail(
                    format!("models[{i}].name"),
                    expected,
                    format!("{:?}", model.name),
                );
            }
            let at = format!("models[{i}] ({})", model.name);
            if self.models[..i].iter().any(|m| m.name == model.name) {
                return fail(at, "unique names", "a second model of that name".into());
            }
            if !(1..=MAX_BATCH).contains(&model.max_batch) {
                let got = model.max_batch.to_string();
                return fail(format!("{at}.max_batch"), "1 to 65536", got);
            }
            if let Some(sla) = model.sla_ms.filter(|sla| !TARGETS_MS.contains(sla)) {
                let expected = format!("{:?} to {:?}", TARGETS_MS.start(), TARGETS_MS.end());
                return fail(format!("{at}.sla_ms"), &expected, format!("{sla:?}"));
            }
            if model.blocks.is_empty() {
                return fail(format!("{at}.blocks"), "at least one block", "none".into());
            }
            for (j, block) in model.blocks.iter().enumerate() {
                let at = format!("{at}.blocks[{j}] ({})", block.name);
                block
                    .check(&at)
                    .map_err(|(place, expected, got)| ProfileError {
                        file: file.into(),
                        place,
                        expected,
                        got,
                    })?;
            }
        }
        Ok(())
    }
}

impl ModelProfile {
    /// The SLA target, if the profile states one.
    pub fn sla(&self) -> Option<Nanos> {
        self.sla_ms.map(Nanos::from_ms_f64)
    }

    /// Program nodes that each entry covers, as positions in their block.
    pub fn program_segments(&self) -> SegmentRanges {
        let block = |b: &BlockProfile| {
            let mut end = 0;
            let mut cover = |n: &NodeProfile| {
                let start = end;
                end += n.num_nodes.unwrap_or(1);
                start..end
            };
            b.nodes.iter().map(&mut cover).collect()
        };
        self.blocks.iter().map(block).collect()
    }
}

impl BlockProfile {
    /// The repeat rule with its parameters.
    pub fn repeat(&self) -> Repeat {
        match self.repeat {
            RepeatRule::Once => Repeat::Once,
            RepeatRule::PerInputStep => Repeat::PerInputStep {
                stride: self.stride.unwrap_or(1),
            },
            RepeatRule::UntilStop => Repeat::UntilStop {
                max: self.max_steps.unwrap_or(u32::MAX),
            },
        }
    }

    fn check(&self, at: &str) -> Result<(), (String, String, String)> {
        let fail = |place: String, expected: &str, got: String| Err((place, expected.into(), got));
        if self.nodes.is_empty() {
            return fail(format!("{at}.nodes"), "at least one node", "none".into());
        }
        // Where a block has no use for one, it would be without effect, silently.
        for (key, value, of, block) in [
            (
                "stride",
                self.stride,
                RepeatRule::PerInputStep,
                "per_input_step",
            ),
            (
                "max_steps",
                self.max_steps,
                RepeatRule::UntilStop,
                "until_stop",
            ),
        ] {
            let place = format!("{at}.{key}");
            match value {
                Some(0) => return fail(place, "at least 1", "0".into()),
                Some(n) if self.repeat != of => {
                    let expected = format!("none but in \"{block}\" blocks");
                    return fail(place, &expected, n.to_string());
                }
                _ => {}
            }
        }
        for (k, node) in self.nodes.iter().enumerate() {
            let at = format!("{at}.nodes[{k}] ({})", node.name);
            if node.by == By::Rows && self.repeat != RepeatRule::Once {
                return fail(
                    format!("{at}.by"),
                    "\"members\" (\"rows\" is legal in \"once\" blocks only)",
                    "\"rows\"".into(),
                );
            }
            if node
                .num_nodes
                .is_some_and(|n| !(1..=MAX_NODES).contains(&n))
            {
                let got = node.num_nodes.unwrap_or_default().to_string();
                return fail(format!("{at}.num_nodes"), "1 to 65536", got);
            }
            let bytes = node.merge_bytes_per_member;
            if !(0.0..=MAX_MERGE_BYTES).contains(&bytes) {
                let place = format!("{at}.merge_bytes_per_member");
                return fail(place, "bytes >= 0, at most 1e11", format!("{bytes:?}"));
            }
            for (name, us) in [
                ("load_us", node.load_us),
                ("host_access_us", node.host_access_us),
            ] {
                if let Some(us) = us.filter(|&us| micros_to_nanos(us).is_none()) {
                    return fail(format!("{at}.{name}"), MICROSECONDS, format!("{us:?}"));
                }
            }
            if node.latency_us.is_empty() {
                return fail(
                    format!("{at}.latency_us"),
                    "at least one point",
                    "none".into(),
                );
            }
            for (l, &(x, us)) in node.latency_us.iter().enumerate() {
                if l > 0 && x <= node.latency_us[l - 1].0 {
                    return fail(
                        format!("{at}.latency_us[{l}]"),
                        "strictly increasing x",
                        x.to_string(),
                    );
                }
                if micros_to_nanos(us).is_none() {
                    return fail(
                        format!("{at}.latency_us[{l}]"),
                        MICROSECONDS,
                        format!("{us:?}"),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Integer nanoseconds of a decimal number of microseconds: nearest, half up, exact in the decimal
/// digits; `None` below zero, from 1e12 on, and for what is not a number.
pub fn micros_to_nanos(us: f64) -> Option<u64> {
    if !(us.is_finite() && (0.0..1e12).contains(&us)) {
        return None;
    }
    // The shortest decimal that reads back as this number is what the file had (up to 17 digits),
    // so rounding works on those digits and not on the binary approximation.
    let text = format!("{us}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let whole: u64 = whole.parse().ok()?;
    let digit = |i: usize| {
        fraction
            .as_bytes()
            .get(i)
            .map_or(0, |b| u64::from(b - b'0'))
    };
    let nanos = whole * 1000 + digit(0) * 100 + digit(1) * 10 + digit(2);
    Some(nanos + u64::from(digit(3) >= 5))
}

/// Refuses arrays in the place of objects, which serde takes as fields in their order; else where the first
/// one is.
fn check_objects(text: &str) -> Result<(), String> {
    /// The lists that objects have below one another.
    const LISTS: [&str; 3] = ["models", "blocks", "nodes"];
    fn check(value: &Value, lists: &[&str], at: &str) -> Result<(), String> {
        if !value.is_object() {
            return Err(at.to_owned());
        }
        let Some((key, inner)) = lists.split_first() else {
            return Ok(());
        };
        let parts = value.get(key).and_then(Value::as_array);
        let prefix = match at {
            "file" => String::new(),
            at => format!("{at}."),
        };
        for (i, part) in parts.into_iter().flatten().enumerate() {
            check(part, inner, &format!("{prefix}{key}[{i}]"))?;
        }
        Ok(())
    }
    let value: Value = serde_json::from_str(text).map_err(|_| "file")?;
    check(&value, &LISTS, "file")
}

/// serde_json appends " at line L column C", which the error already names.
fn strip_position(message: &str) -> String {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(head, _)| head)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_nodes(nodes: &str) -> String {
        format!(
            r#"{{"format":"lazybatch-profile/1","device":"d","models":[{{"name":"m","blocks":[
            {{"name":"b","repeat":"until_stop","nodes":{nodes}}}]}}]}}"#
        )
    }

    #[test]
    fn microseconds_round_half_up_in_decimal() {
        assert_eq!(micros_to_nanos(12.0), Some(12_000));
        assert_eq!(micros_to_nanos(12.0005), Some(12_001));
        assert_eq!(micros_to_nanos(1.0005), Some(1_001));
        assert_eq!(micros_to_nanos(1.00049999), Some(1_000));
        assert_eq!(micros_to_nanos(0.0), Some(0));
        assert_eq!(micros_to_nanos(0.1), Some(100));
        assert_eq!(micros_to_nanos(-0.1), None);
        assert_eq!(micros_to_nanos(f64::NAN), None);
    }

    #[test]
    fn defaults_and_round_trip() {
        let text = with_nodes(r#"[{"name":"n","latency_us":[[1,9.0],[64,11.5]]}]"#);
        let profile = Profile::parse("-", &text).expect("valid");
        assert_eq!(profile.models[0].max_batch, 64);
        assert_eq!(
            profile.models[0].blocks[0].repeat(),
            Repeat::UntilStop { max: u32::MAX }
        );
        let again = Profile::parse("-", &profile.to_json()).expect("own output is valid");
        assert_eq!(again.to_json(), profile.to_json());
        let marked = Profile::parse("-", &format!("\u{feff}{text}")).expect("a byte order mark");
        assert_eq!(marked.to_json(), profile.to_json());
    }

    #[test]
    fn errors_name_place_expected_and_got() {
        let check = |text: &str, needle: &str| {
            let error = Profile::parse("p.json", text)
                .expect_err("must be refused")
                .to_string();
            assert!(error.contains(needle), "{error:?} lacks {needle:?}");
            assert!(error.contains("p.json"), "{error:?} lacks the file");
        };
        check("{", "line 1 column");
        check(&with_nodes("[]"), "at least one node");
        check(
            &with_nodes(r#"[{"name":"n","latency_us":[]}]"#),
            "at least one point",
        );
        check(
            &with_nodes(r#"[{"name":"n","latency_us":[[2,1],[2,1]]}]"#),
            "strictly increasing",
        );
        check(
            &with_nodes(r#"[{"name":"n","latency_us":[[1,-4]]}]"#),
            "got -4",
        );
        for sla in ["0", "1e-7", "1e300"] {
            check(
                &with_nodes(r#"[{"name":"n","latency_us":[[1,4]]}]"#)
                    .replace(r#""name":"m","#, &format!(r#""name":"m","sla_ms":{sla},"#)),
                "models[0] (m).sla_ms: expected 1e-6 to 1000000000.0, got ",
            );
        }
        check(
            &with_nodes(r#"[{"name":"n","latency_us":[[1,"x"]]}]"#),
            "line 2",
        );
        check(
            &with_nodes(r#"[{"name":"n","by":"rows","latency_us":[[1,4]]}]"#),
            "\"once\" blocks",
        );
        check(
            &with_nodes(r#"[{"name":"n","speed":1,"latency_us":[[1,4]]}]"#),
            "speed",
        );
        let nodes = r#"[{"name":"n","latency_us":[[1,4]]}]"#;
        for (rule, key, needle) in [
            (
                "once",
                "stride",
                "none but in \"per_input_step\" blocks, got 7",
            ),
            ("once", "max_steps", "none but in \"until_stop\" blocks"),
            ("until_stop", "stride", "(b).stride: expected none but"),
            (
                "per_input_step",
                "max_steps",
                "(b).max_steps: expected none",
            ),
        ] {
            let block = format!(r#""repeat":"{rule}","{key}":7"#);
            check(
                &with_nodes(nodes).replace(r#""repeat":"until_stop""#, &block),
                needle,
            );
        }
        for name in ["", "a\\nb"] {
            let named = format!(r#""name":"{name}","blocks""#);
            check(
                &with_nodes(nodes).replace(r#""name":"m","blocks""#, &named),
                "models[0].name: expected a name",
            );
        }
        check(
            &text_with_format("lazybatch-profile/9"),
            "lazybatch-profile/1",
        );
    }

    #[test]
    fn arrays_are_no_objects() {
        let node = r#"{"name":"n","latency_us":[[1,4]]}"#;
        for (text, place) in [
            (
                r#"["lazybatch-profile/1","d",0.0,0.0,0.0,[["m",64,null,null,[]]]]"#.to_owned(),
                "file",
            ),
            (
                format!(
                    r#"{{"format":"{FORMAT}","device":"d","models":[["m",64,null,null,[
                    {{"name":"b","repeat":"once","nodes":[{node}]}}]]]}}"#
                ),
                "models[0]",
            ),
            (
                with_nodes(&format!(
                    r#"[{node},["n","members",[[1,4]],null,0.0,null,null,null]]"#
                )),
                "models[0].blocks[0].nodes[1]",
            ),
        ] {
            let error = Profile::parse("-", &text).expect_err("must be refused");
            let told = format!("profile -: {place}: expected an object, got an array");
            assert_eq!(error.to_string(), told);
        }
    }

    #[test]
    fn tables_by_rows_may_say_what_no_rows_take() {
        let nodes = r#"[{"name":"n","by":"rows","latency_us":[[0,7.0],[4,11.0]]}]"#;
        let text = with_nodes(nodes).replace("until_stop", "once");
        let profile = Profile::parse("-", &text).expect("valid");
        let segments = crate::segments_of(&profile.models[0], 1);
        let table = crate::LatencyTable::new(&profile.models[0], &segments, 0.0, 0.0);
        let at = |rows| table.segment(0, 0, 1, rows).0;
        assert_eq!([at(0), at(1), at(4), at(6)], [7_000, 8_000, 11_000, 13_000]);
        let joined = table.coarse(&vec![vec![0..1]]);
        assert_eq!(joined.segment(0, 0, 1, 0).0, 7_000);
        assert_eq!(joined.segment(0, 0, 1, 6).0, 13_000);
    }

    fn text_with_format(format: &str) -> String {
        with_nodes(r#"[{"name":"n","latency_us":[[1,4]]}]"#).replace(FORMAT, format)
    }
}
