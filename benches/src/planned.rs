//! What a run says of the plans that its policy made.

use lazybatch_workloads::experiment::Served;
use serde_json::{Map, Value, json};

use crate::record::rounded;

/// Adds how many there were, how many launches they simulated, how often another rule came to decide,
/// and for how many seconds each rule did. Nothing of policies that do not choose between rules.
pub fn planned(figures: &mut Value, served: &Served) {
    let planning = &served.planning;
    if planning.rule.is_none() {
        return;
    }
    figures["plans"] = json!(planning.plans);
    figures["plan_launches"] = json!(planning.launches);
    figures["rule_changes"] = json!(planning.changes);
    let held = served.held.iter();
    let held = held.map(|(rule, ns)| (rule.clone(), rounded(ns.as_ms() / 1e3)));
    figures["rule_s"] = Value::Object(Map::from_iter(held));
}
