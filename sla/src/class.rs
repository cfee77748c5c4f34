//! SLA classes: what a group of requests is promised, and what becomes of those that cannot have it.
//!
//! A class stands for a tenant or a kind of traffic. Written `NAME[:KEY=VALUE,...]`, for example
//! `gold:sla=20,priority=1,weight=3,late=refuse`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// What becomes of requests that cannot meet their deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Late {
    /// Nothing: they keep their turn.
    Keep,
    /// They wait until those have been admitted who can.
    Demote,
    /// They are refused once it is their turn. A policy may then also refuse who could be in time, where
    /// many wait, so that the others are answered sooner.
    Shed,
    /// They are refused when they arrive, if by then it is predicted; those that are accepted and
    /// come to be late all the same are demoted.
    Refuse,
}

impl Late {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Demote, Self::Shed, Self::Refuse];

    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Demote => "demote",
            Self::Shed => "shed",
            Self::Refuse => "refuse",
        }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Weights of classes: shares are device time over weight, added up for as long as there is work, and have to
/// tell a microsecond of one class from none after months of another's.
pub const WEIGHTS: RangeInclusive<f64> = 1e-3..=1e6;
/// The same in words.
pub const EXPECTED_WEIGHT: &str = "a number from 0.001 to 1000000";

/// A class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Name, as traces and clients give it.
    pub name: String,
    /// SLA target of its requests that state none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sla: Option<Nanos>,
    /// Priority level of its requests that state none: 1 is the highest, 0 behind all others.
    #[serde(default)]
    pub priority: u8,
    /// Share of the device among those that have work, and how much its latency and misses count; one of
    /// [`WEIGHTS`].
    #[serde(default = "one")]
    pub weight: f64,
    /// What becomes of those that are too late; as the policy does if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
    /// For how long behind its deadline a demoted request lets others pass; after that it has its turn
    /// again, by when it came, behind those of its class and priority level that came before it. For
    /// as long as there are others if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<Nanos>,
}

fn one() -> f64 {
    1.0
}

impl Default for Class {
    /// That of requests that name none.
    fn default() -> Self {
        Self::new("default")
    }
}

impl Class {
    /// A class of weight 1 that promises nothing.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            sla: None,
            priority: 0,
            weight: 1.0,
            late: None,
            patience: None,
        }
    }

    /// Classes by id: that of requests that name none first, then the others in their order. Of two
    /// with one name the later counts.
    pub fn by_id(classes: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut by_id = vec![Self::default()];
        for class in classes {
            match by_id.iter_mut().find(|c| c.name == class.name) {
                Some(known) => *known = class,
                None => by_id.push(class),
            }
        }
        by_id
    }

    /// The priority level of a request that states `stated`.
    pub fn priority_of(&self, stated: u8) -> u8 {
        if stated == 0 { self.priority } else { stated }
    }
}

/// A class that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("class {class:?}: {what}: expected {expected}, got {got:?}")]
pub struct ClassError {
    /// The whole text.
    pub class: String,
    /// Which part.
    pub what: &'static str,
    /// What would be right.
    pub expected: &'static str,
    /// What is there.
    pub got: String,
}

impl FromStr for Class {
    type Err = ClassError;

    fn from_str(text: &str) -> Result<Self, ClassError> {
        let error = |what, expected, got: &str| ClassError {
            class: text.to_string(),
            what,
            expected,
            got: got.to_string(),
        };
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        if name.is_empty() {
            return Err(error("name", "a name", name));
        }
        let mut class = Self::new(name);
        let mut seen = Vec::new();
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            if seen.contains(&key) {
                return Err(error("key", "each key once", &format!("{key} twice")));
            }
            seen.push(key);
            let above_zero = || {
                value
                    .parse()
                    .ok()
                    .filter(|&n: &f64| n.is_finite() && n > 0.0)
            };
            let milliseconds = |what, value| {
                let ms = above_zero().ok_or_else(|| error(what, "milliseconds above 0", value));
                ms.map(Nanos::from_ms_f64)
            };
            match key {
                "sla" => class.sla = Some(milliseconds("sla", value)?),
                "patience" => class.patience = Some(milliseconds("patience", value)?),
                "priority" => {
                    let expected = "a level from 0 to 255";
                    let level = value.parse();
                    class.priority = level.map_err(|_| error("priority", expected, value))?;
                }
                "weight" => {
                    let weight = value.parse().ok().filter(|w| WEIGHTS.contains(w));
                    class.weight = weight.ok_or_else(|| error("weight", EXPECTED_WEIGHT, value))?;
                }
                "late" => {
                    let late = Late::ALL.into_iter().find(|l| l.name() == value);
                    let expected = "one of keep, demote, shed, refuse";
                    class.late = Some(late.ok_or_else(|| error("late", expected, value))?);
                }
                _ => {
                    let expected = "one of sla, priority, weight, late, patience";
                    return Err(error("key", expected, key));
                }
            }
        }
        if let (Some(_), Some(late @ (Late::Keep | Late::Shed))) = (class.patience, class.late) {
            let expected = "late=demote or late=refuse beside it, since nobody else is demoted";
            return Err(error("patience", expected, late.name()));
        }
        Ok(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_with_their_defaults() {
        let gold: Class = "gold:sla=2.5,priority=1,weight=3,late=refuse"
            .parse()
            .unwrap();
        let want = Class {
            name: "gold".into(),
            sla: Some(Nanos(2_500_000)),
            priority: 1,
            weight: 3.0,
            late: Some(Late::Refuse),
            patience: None,
        };
        assert_eq!(gold, want);
        let patient: Class = "a:late=demote,patience=0.5".parse().unwrap();
        assert_eq!(patient.patience, Some(Nanos(500_000)));
        assert!("a:patience=40".parse::<Class>().is_ok());
        assert_eq!("a".parse(), Ok(Class::new("a")));
        assert_eq!("a:".parse(), Ok(Class::new("a")));
        assert_eq!((gold.priority_of(0), gold.priority_of(7)), (1, 7));
    }

    #[test]
    fn faults_name_the_part() {
        for (text, what) in [
            ("", "name"),
            (":sla=3", "name"),
            ("a:sla=0", "sla"),
            ("a:sla", "sla"),
            ("a:priority=256", "priority"),
            ("a:weight=-1", "weight"),
            ("a:weight=inf", "weight"),
            ("a:weight=9e-4", "weight"),
            ("a:weight=1.1e6", "weight"),
            ("a:weight=NaN", "weight"),
            ("a:late=never", "late"),
            ("a:patience=0", "patience"),
            ("a:patience=40,late=keep", "patience"),
            ("a:late=shed,patience=40", "patience"),
            ("a:rank=1", "key"),
            ("a:sla=5,sla=6", "key"),
        ] {
            let error = text.parse::<Class>().unwrap_err();
            assert_eq!(error.what, what, "{error}");
        }
    }
}
