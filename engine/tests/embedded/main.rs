//! The engine as it is embedded: threads, devices and memory.

#[path = "../common/tiny.rs"]
mod tiny;

mod backlog;
mod bounded;
mod embed;
mod ends;
mod faults;
mod imported;
mod loading;
mod lost;
mod memory_limit;
mod models;
mod observed;
mod quick;
mod refused;
mod sequences;
mod steps;
mod taken;
mod watch;
