//! The scheduler: schedules of all policies in virtual time, with the checker behind each.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/planning.rs"]
mod planning;
#[path = "../common/tiny.rs"]
mod tiny;

mod adaptive;
mod classes;
mod corrected;
mod delays;
mod exact_field;
mod exact_lazy;
mod exact_simple;
mod exhaustive;
mod explain;
mod golden_base;
mod golden_field;
mod golden_lazy;
mod measured;
mod midst;
mod mixed;
mod planted;
mod properties;
mod turns;
mod two_lanes;
