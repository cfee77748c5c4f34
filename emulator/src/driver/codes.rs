//! Error codes.

use std::ffi::{CStr, c_char};

use super::{Answer, api, put};
use crate::report::Kind;

macro_rules! codes {
    ($($variant:ident = $value:literal, $name:literal, $about:literal;)*) => {
        /// `CUresult`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Code { $(#[doc = $about] $variant = $value,)* }

        /// Name and meaning of a code.
        fn words(code: i32) -> Option<(&'static CStr, &'static CStr)> {
            let find = |bytes: &'static str| CStr::from_bytes_with_nul(bytes.as_bytes()).ok();
            match code {
                $($value => Some((find(concat!($name, "\0"))?, find(concat!($about, "\0"))?)),)*
                _ => None,
            }
        }

        impl Code {
            /// The code of that name.
            pub(super) fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    Success = 0, "CUDA_SUCCESS", "no error";
    InvalidValue = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OutOfMemory = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    InvalidDevice = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    InvalidImage = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    InvalidContext = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    InvalidPtx = 218, "CUDA_ERROR_INVALID_PTX", "a PTX module that the emulator does not take";
    FileNotFound = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    InvalidHandle = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    IllegalState = 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NotFound = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NotReady = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    IllegalAddress = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    LaunchOutOfResources = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    LaunchTimeout = 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated";
    Assert = 710, "CUDA_ERROR_ASSERT", "device-side assert triggered";
    MisalignedAddress = 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
    LaunchFailed = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    NotSupported = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported by the emulator";
    CaptureUnsupported = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    CaptureUnjoined = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capture was not joined with its origin stream";
    Unknown = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

impl Code {
    /// Whether a context answers nothing else behind it.
    pub(super) fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::IllegalAddress
                | Self::LaunchTimeout
                | Self::Assert
                | Self::MisalignedAddress
                | Self::LaunchFailed
                | Self::Unknown
        )
    }

    /// What a GPU would answer to a fault of that kind.
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::OutOfBounds | Kind::UseAfterFree | Kind::ReadOnly => Self::IllegalAddress,
            Kind::Misaligned => Self::MisalignedAddress,
            Kind::LaunchLimits | Kind::Argument => Self::InvalidValue,
            Kind::Assert => Self::Assert,
            Kind::NoEnd | Kind::Deadlock => Self::LaunchTimeout,
            Kind::Unwritten | Kind::BarrierDivergence | Kind::Race | Kind::BadMask | Kind::Trap => {
                Self::LaunchFailed
            }
        }
    }
}

fn put_words(
    code: i32,
    at: *mut *const c_char,
    pick: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Answer {
    match words(code) {
        Some(found) => put(at, pick(found).as_ptr()),
        None => {
            put(at, std::ptr::null())?;
            Err(Code::InvalidValue)
        }
    }
}

api! {
    /// Name of a code.
    fn cuGetErrorName(error: i32, name: *mut *const c_char) |_driver| { put_words(error, name, |w| w.0) }
    /// Meaning of a code.
    fn cuGetErrorString(error: i32, about: *mut *const c_char) |_driver| { put_words(error, about, |w| w.1) }
}
