//! The rules that `adaptive` chooses from, by what requests ask for.
//!
//! docs/scheduling.md has by which cases each list was chosen, in "What was tried".

/// Rules for models without loops, the first to start with: one whose batches are large enough for any
/// load below capacity, however many are late (`fill99`).
pub const STATIC_RULES: &[&str] = &[
    "front:fill99",
    "join:1/cap95/fill95",
    "join:4/cap98/fill98",
    "join:4/cap90",
    "join:0/fill99",
    "sharing:2/6/1/cap99/fill99",
];
/// Rules for models with loops, the first to start with: one that lets newcomers catch up soon, and whose
/// batches are large enough for any load below capacity.
pub const LOOP_RULES: &[&str] = &[
    "sharing:0.5/10/4/cap98",
    "sharing:0.5/6/4/cap95",
    "sharing:2/10/1/cap90",
    "sharing:1/1/0.1",
    "balance:4",
    "join:4/cap90",
    "sharing:2/6/1",
    "balance:2",
];

/// The same where there are several models: how these take turns matters more than the rest.
pub const STATIC_SHARED: &[&str] = &[
    "join:1/ripe",
    "join:1/due",
    "front:ripe",
    "join:0/ripe",
    "sharing:2/6/1/cap97/ripe",
    "join:1/short",
    "front",
];
pub const LOOP_SHARED: &[&str] = &[
    "sharing:2/10/1/cap90/cost",
    "sharing:2/10/1/cap90/ripe",
    "sharing:1/1/0.1/cost",
    "balance:2/cost",
    "sharing:2/10/1/cap90/spare",
    "sharing:0.5/10/4/cap98/short",
    "join:4/cap90/short",
    "balance:2/ripe",
];

/// Policies that are compared with the base rules where nothing but latency and targets count: of one
/// model without loops, and else. Without loops `continuous` and `cellular` do what `join:0` does, and
/// `lazy` is good for a rate that stays below capacity by little and bad for those around it.
pub const STATIC_OTHERS: &[&str] = &["edf"];
pub const LOOP_OTHERS: &[&str] = &["edf", "continuous", "cellular", LAZY];
/// In plans for one model a pass is one segment (`coarse.rs`): what is chosen has to be what runs.
pub const LAZY: &str = "lazy:passes";
/// A further rule where requests are refused or shed. (Elsewhere it would take launches of plans from
/// the others: `continuous` does the same.)
pub const LOOP_REFUSING: &str = "iteration";
