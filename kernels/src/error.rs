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
    /// What a request's own inputs lead to has no result: an id outside of a table, a whole number
    /// beyond those that a program holds.
    #[error("device {device}: {segment}: {why}")]
    Data {
        /// Device name.
        device: String,
        /// Block and nodes.
        segment: String,
        /// Node, and cause.
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

impl Error {
    /// Whether a request that ends by it has brought it about by what it brought: with other inputs it
    /// runs on the same device.
    pub fn is_of_request(&self) -> bool {
        matches!(self, Self::Input { .. } | Self::Data { .. })
    }
}

/// Whose a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The request's, by its own inputs.
    Request,
    /// The device's, a kernel's or the model's, as far as anybody knows.
    Device,
}

/// Why a member of a launch fails alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Whose it is.
    pub whose: Whose,
    /// Cause.
    pub why: String,
}

impl Fault {
    /// By the request's own inputs.
    pub fn of_request(why: impl Into<String>) -> Self {
        let (whose, why) = (Whose::Request, why.into());
        Self { whose, why }
    }

    /// The error of a launch's member.
    pub fn error(self, device: &str, segment: String) -> Error {
        let (device, why) = (device.to_owned(), self.why);
        match self.whose {
            Whose::Request => Error::Data {
                device,
                segment,
                why,
            },
            Whose::Device => Error::Launch {
                device,
                segment,
                why,
            },
        }
    }

    /// Says which node it is of.
    pub fn name(&mut self, node: &str) {
        self.why = format!("node {node}: {}", self.why);
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        let whose = Whose::Device;
        Self { whose, why }
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}
