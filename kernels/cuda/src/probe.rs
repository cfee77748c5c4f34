//! Looks for CUDA's libraries, once, and says plainly which one is missing.
//!
//! cudarc resolves each function at its first call and panics where it is absent. What passes here
//! cannot: every function that this crate calls is looked up first.

use std::sync::OnceLock;

use crate::error::CudaError;

/// The names under which cudarc looks for a library.
fn names(stem: &str) -> String {
    let names = cudarc::get_lib_name_candidates(stem);
    let known = |name: &&String| name.ends_with(".so") || name.contains(".so.1");
    let mut short: Vec<&str> = names.iter().filter(known).map(String::as_str).collect();
    short.retain(|name| !name.contains(&format!("{stem}64")));
    short.dedup();
    short.join(", ")
}

macro_rules! library {
    ($(#[$doc:meta])* $name:ident, $sys:path, $library:literal, $stem:literal, $hint:literal, $symbols:expr) => {
        $(#[$doc])*
        pub fn $name() -> Result<(), CudaError> {
            use $sys as sys;
            static FOUND: OnceLock<Result<(), CudaError>> = OnceLock::new();
            FOUND
                .get_or_init(|| {
                    // SAFETY: loading a library runs its initialisers, which is what is asked for.
                    if !unsafe { sys::is_culib_present() } {
                        return Err(CudaError::Library {
                            library: $library,
                            names: names($stem),
                            hint: $hint,
                        });
                    }
                    for symbol in $symbols {
                        // SAFETY: the library is there; the address is only looked at.
                        let found = unsafe {
                            sys::culib().get::<*const std::ffi::c_void>(symbol.as_bytes()).is_ok()
                        };
                        if !found {
                            return Err(CudaError::Symbol {
                                library: $library,
                                symbol: symbol.to_owned(),
                                hint: $hint,
                            });
                        }
                    }
                    Ok(())
                })
                .clone()
        }
    };
}

library! {
    /// The driver.
    ///
    /// # Errors
    /// That it is missing or too old.
    driver, cudarc::driver::sys, "the CUDA driver", "cuda",
    "install NVIDIA's driver for this GPU, 525 or newer",
    [
        "cuCtxSetCurrent", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetName",
        "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRetain", "cuEventCreate",
        "cuEventDestroy_v2", "cuEventElapsedTime", "cuEventQuery", "cuEventRecord", "cuEventSynchronize",
        "cuFuncSetAttribute", "cuGetErrorName", "cuGraphDestroy", "cuGraphExecDestroy",
        "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphUpload", "cuInit", "cuLaunchKernel", "cuMemAlloc_v2",
        "cuMemFreeHost", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemHostAlloc",
        "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
        "cuMemsetD8Async", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload",
        "cuStreamBeginCapture_v2", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamEndCapture",
         "cuStreamSynchronize", "cuStreamWaitEvent",
    ]
}

library! {
    /// The compiler of kernels.
    ///
    /// # Errors
    /// That it is missing or too old.
    nvrtc, cudarc::nvrtc::sys, "NVRTC, the compiler of kernels", "nvrtc",
    "install the CUDA toolkit or Python's package nvidia-cuda-nvrtc-cu12, and put its folder into LD_LIBRARY_PATH",
    [
        "nvrtcCompileProgram", "nvrtcCreateProgram", "nvrtcDestroyProgram", "nvrtcGetCUBIN",
        "nvrtcGetCUBINSize", "nvrtcGetNumSupportedArchs", "nvrtcGetPTX", "nvrtcGetPTXSize",
        "nvrtcGetProgramLog", "nvrtcGetProgramLogSize", "nvrtcGetSupportedArchs", "nvrtcVersion",
    ]
}

library! {
    /// The library of matrix products.
    ///
    /// # Errors
    /// That it is missing or too old.
    cublaslt, cudarc::cublaslt::sys, "cuBLASLt, the library of matrix products", "cublasLt",
    "install the CUDA toolkit or Python's package nvidia-cublas-cu12, and put its folder into LD_LIBRARY_PATH",
    [
        "cublasLtCreate", "cublasLtDestroy", "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutDestroy",
    ]
}
