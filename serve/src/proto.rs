//! The messages and the service, generated from `proto/`.
#![allow(
    missing_docs,
    reason = "the protocol's own documentation describes them"
)]
#![allow(clippy::all, clippy::unwrap_used, reason = "generated code")]

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

tonic::include_proto!("inference");

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/protocol.bin"));
    DescriptorPool::decode(bytes.as_slice()).expect("the build script wrote it")
});

/// The descriptor of a message of the protocol.
///
/// # Panics
/// If there is none of that name.
pub fn descriptor(name: &str) -> MessageDescriptor {
    let full = format!("inference.{name}");
    POOL.get_message_by_name(&full)
        .expect("a message of the protocol")
}
