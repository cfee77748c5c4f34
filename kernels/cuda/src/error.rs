//! What can go wrong between this crate and CUDA.

/// Error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// A library is not there.
    #[error("{library} was not found (looked for {names}): {hint}")]
    Library {
        /// What it is, in words.
        library: &'static str,
        /// File names that were tried.
        names: String,
        /// What to install.
        hint: &'static str,
    },
    /// A library is there, but too old for what is called.
    #[error("{library} has no function {symbol}: {hint}")]
    Symbol {
        /// What it is, in words.
        library: &'static str,
        /// The function that was looked for.
        symbol: String,
        /// What to install.
        hint: &'static str,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {name} ({code})")]
    Driver {
        /// The function.
        call: &'static str,
        /// Name of the code.
        name: String,
        /// `CUresult`.
        code: i32,
    },
    /// A call of a matrix library failed.
    #[error("{call} failed: {name}")]
    Blas {
        /// The function.
        call: &'static str,
        /// Name of the status.
        name: String,
    },
    /// A kernel does not compile.
    #[error("{file} does not compile for {arch}: {log}")]
    Compile {
        /// Name of the source.
        file: String,
        /// Architecture that it was compiled for.
        arch: String,
        /// What the compiler says.
        log: String,
    },
    /// A module has no kernel of that name.
    #[error("{file} has no kernel {kernel}")]
    Kernel {
        /// Name of the source.
        file: String,
        /// The kernel.
        kernel: String,
    },
    /// The device has no memory left.
    #[error("out of device memory: {what} needs {needed} bytes, {available} are free")]
    OutOfMemory {
        /// What asked.
        what: String,
        /// Bytes asked for.
        needed: usize,
        /// Bytes free.
        available: usize,
    },
    /// A launcher was called with sizes that its kernel does not take.
    #[error("{kernel}: expected {expected}, got {got}")]
    Argument {
        /// The kernel.
        kernel: &'static str,
        /// What it takes.
        expected: String,
        /// What came.
        got: String,
    },
}

/// Codes after which a context answers nothing else any more: the device must be made anew.
const STICKY: [i32; 16] = [
    214, // ECC_UNCORRECTABLE
    220, // NVLINK_UNCORRECTABLE
    226, // CONTAINED
    700, // ILLEGAL_ADDRESS
    702, // LAUNCH_TIMEOUT
    709, // CONTEXT_IS_DESTROYED
    710, // ASSERT
    714, // HARDWARE_STACK_ERROR
    715, // ILLEGAL_INSTRUCTION
    716, // MISALIGNED_ADDRESS
    717, // INVALID_ADDRESS_SPACE
    718, // INVALID_PC
    719, // LAUNCH_FAILED
    721, // TENSOR_MEMORY_LEAK
    810, // MPS_CLIENT_TERMINATED
    999, // UNKNOWN
];

/// `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: i32 = 600;

impl CudaError {
    /// Whether the device is lost with all that was on it.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if STICKY.contains(code))
    }
}
