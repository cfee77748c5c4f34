//! What can go wrong on a device.

/// Error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The device has no kernel for a node.
    #[error("device {device}: node {node}: op {op} is not supported: {why}")]
    Unsupported {
        /// Device name.
        device: String,
        /// Node name.
        node: String,
        /// Op name.
        op: String,
        /// What would be needed.
        why: String,
    },
    /// A request's input does not fit the model.
    #[error("model {model}: input {input}: expected {expected}, got {got}")]
    Input {
        /// Model name.
        model: String,
        /// Input name.
        input: String,
        /// What the model takes.
        expected: String,
        /// What came.
        got: String,
    },
    /// A bounded pool is exhausted.
    #[error("device {device}: out of {what}: {needed} needed, {available} available")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Which pool.
        what: String,
        /// Asked for.
        needed: usize,
        /// Left.
        available: usize,
    },
    /// A launch failed.
    #[error("device {device}: launch of {segment} failed: {why}")]
    Launch {
        /// Device name.
        device: String,
        /// Block and nodes.
        segment: String,
        /// Cause.
        why: String,
    },
    /// The device is lost with all that was on it.
    #[error("device {device} is lost: {why}")]
    Lost {
        /// Device name.
        device: String,
        /// Cause.
        why: String,
    },
    /// The device cannot do what was asked of it.
    #[error("device {device}: {why}")]
    Device {
        /// Device name.
        device: String,
        /// Cause.
        why: String,
    },
    /// A weight cannot be made resident.
    #[error("model {model}: weight {weight}: {why}")]
    Weight {
        /// Model name.
        model: String,
        /// Weight name.
        weight: String,
        /// Cause.
        why: String,
    },
}
