//! The CPU device.

mod conformance;
mod cpu_device;
mod host_nodes;
mod images;
mod passes;
mod weight_cache;
mod weight_types;
