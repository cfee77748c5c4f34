//! Matrix products of cuBLAS and cuBLASLt, in the words of the C interface.
//!
//! Matrices lie column after column. Sums are taken in the type that is asked for, in order along
//! `k`; a GPU takes them in another order. TF32 and the like are not rounded to.

mod gemm;
mod lt;
mod product;

use std::collections::BTreeMap;

use crate::driver::{Answer, Code, guard};

/// What the libraries' handles stand for.
#[derive(Default)]
pub(crate) struct State {
    /// Streams of cuBLAS handles.
    streams: BTreeMap<u64, u64>,
    layouts: BTreeMap<u64, lt::Layout>,
    descriptors: BTreeMap<u64, lt::Descriptor>,
    /// Of preferences: the multiples of bytes at which a, b, c and d lie.
    preferences: BTreeMap<u64, [u32; 4]>,
}

/// Values of `cublasStatus_t`.
const NOT_INITIALIZED: i32 = 1;
const INVALID_VALUE: i32 = 7;
const EXECUTION_FAILED: i32 = 13;
const NOT_SUPPORTED: i32 = 15;

/// As [`guard`], with the libraries' own codes.
fn guard_status(name: &str, body: impl FnOnce(&mut crate::driver::Driver) -> Answer) -> i32 {
    match guard(name, body) {
        Code::Success => 0,
        Code::InvalidHandle => NOT_INITIALIZED,
        Code::InvalidValue => INVALID_VALUE,
        Code::NotSupported => NOT_SUPPORTED,
        _ => EXECUTION_FAILED,
    }
}

/// Declares functions of the libraries' C interface.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> i32 {
            $crate::blas::guard_status(stringify!($name), |$driver| -> $crate::driver::Answer { $body })
        }
    )*};
}
use api;
