//! Products: by this crate's own kernels, whose rows have the same bits in any batch, or by
//! cuBLASLt, which picks an algorithm by shape and so does not promise that.
//!
//! The library is asked for an algorithm once for each (k, n, bucket of rows, type of weights), and
//! has a workspace of fixed size. It multiplies; what follows the product is a kernel of this crate.
//! Weights of f16 and bf16 are multiplied with activations rounded to the same type, and sums are
//! f32; int8 weights stay with this crate's kernels.

use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use crate::context::{Context, DeviceMemory, DevicePtr, Stream};
use crate::error::CudaError;
use crate::kernels::gemm::Gemm;
use crate::kernels::{Kernels, Stored, Weights};
use crate::record::Operation;

/// Workspace of the library, as its documentation recommends for the largest GPUs.
const WORKSPACE: usize = 32 << 20;

/// Runs products.
#[derive(Debug)]
pub enum Products {
    /// By this crate's kernels.
    Own {
        /// By matrix instructions where weights are f16 or bf16.
        tensor_cores: bool,
    },
    /// By cuBLASLt.
    Library(Box<Library>),
}

/// A product as the library is asked for it: `out = a weights`, added to what is there if `resume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// `[m, k]`, in the type of the weights.
    pub a: DevicePtr,
    /// `[k, n]`.
    pub weights: Weights,
    /// `[m, n]` f32.
    pub out: DevicePtr,
    /// Rows.
    pub m: usize,
    /// Inner dimension.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Add to what is there.
    pub resume: bool,
}

impl Products {
    /// Products of a device.
    ///
    /// # Errors
    /// No memory for the library's workspace, or what it answers.
    pub fn new(
        context: &Context,
        deterministic: bool,
        tensor_cores: bool,
    ) -> Result<Self, CudaError> {
        if deterministic {
            return Ok(Self::Own { tensor_cores });
        }
        Ok(Self::Library(Box::new(Library::new(context)?)))
    }

    /// `act(a weights + bias) + residual`; see [`Gemm`]. `rounded` has room for `a` in the type of
    /// the weights, where [`rounded_elems`] says so.
    ///
    /// # Errors
    /// Sizes out of range, or what a library answers.
    pub fn run(
        &mut self,
        kernels: &Kernels,
        stream: &Stream,
        product: &Gemm,
        rounded: DevicePtr,
    ) -> Result<(), CudaError> {
        let is_int8 = matches!(product.weights.stored, Stored::Int8 { .. });
        let is_empty = product.m == 0 || product.n == 0 || product.k == 0;
        match self {
            Self::Library(library) if !is_int8 && !is_empty && product.a_rows.is_null() => {
                library.run(kernels, stream, product, rounded)
            }
            Self::Own { tensor_cores: true }
                if matches!(product.weights.stored, Stored::F16 | Stored::Bf16) =>
            {
                kernels.gemm_matrix(stream, product)
            }
            _ => kernels.gemm(stream, product),
        }
    }

    /// Puts a product that was recorded into `stream`.
    ///
    /// # Errors
    /// What the library answers.
    ///
    /// # Panics
    /// If there is no library.
    pub fn issue(&mut self, stream: &Stream, product: &Product) -> Result<(), CudaError> {
        match self {
            Self::Library(library) => library.multiply(stream, product),
            Self::Own { .. } => unreachable!("own products are kernels"),
        }
    }
}

/// Elements of 4 bytes that `len` activations take in the type of `weights`, where the library wants
/// them rounded.
pub fn rounded_elems(weights: Stored, len: usize) -> usize {
    match weights {
        Stored::F16 | Stored::Bf16 => len.div_ceil(2),
        Stored::F32 | Stored::Int8 { .. } => 0,
    }
}

/// What an algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    k: usize,
    n: usize,
    /// Rows, rounded up.
    rows: usize,
    /// `cudaDataType_t` of both operands.
    element: u32,
}

/// The next of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...: bounds the number of algorithms.
fn bucket(rows: usize) -> usize {
    let power = rows.next_power_of_two();
    let between = power / 4 * 3;
    if rows > 16 && rows <= between {
        between
    } else {
        power
    }
}

/// cuBLASLt with what it needs.
#[derive(Debug)]
pub struct Library {
    handle: sys::cublasLtHandle_t,
    description: sys::cublasLtMatmulDesc_t,
    preference: sys::cublasLtMatmulPreference_t,
    workspace: DeviceMemory,
    algorithms: BTreeMap<Shape, sys::cublasLtMatmulAlgo_t>,
}

// SAFETY: handles of the library may be used from any thread, by one at a time.
unsafe impl Send for Library {}

fn named<T>(call: &'static str, answer: Result<T, CublasError>) -> Result<T, CudaError> {
    answer.map_err(|error| CudaError::Blas {
        call,
        name: format!("{:?}", error.0),
    })
}

/// A matrix's description, ended when this is dropped.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Columns one behind another, dense.
    fn new(element: sys::cudaDataType, rows: usize, cols: usize) -> Result<Self, CudaError> {
        let made = result::create_matrix_layout(element, rows as u64, cols as u64, rows as i64);
        named("cublasLtMatrixLayoutCreate", made).map(Self)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made when this was made.
        unsafe { result::destroy_matrix_layout(self.0) }.ok();
    }
}

impl Library {
    fn new(context: &Context) -> Result<Self, CudaError> {
        let workspace = DeviceMemory::new(context, "the workspace of cuBLASLt", WORKSPACE)?;
        let handle = named("cublasLtCreate", result::create_handle())?;
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F);
        let description = named("cublasLtMatmulDescCreate", description)?;
        let preference = named(
            "cublasLtMatmulPreferenceCreate",
            result::create_matmul_pref(),
        )?;
        use sys::cublasLtMatmulPreferenceAttributes_t as A;
        let attribute = A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes: usize = WORKSPACE;
        // SAFETY: the attribute is a size.
        let set = unsafe {
            result::set_matmul_pref_attribute(
                preference,
                attribute,
                (&raw const bytes).cast::<c_void>(),
                size_of::<usize>(),
            )
        };
        named("cublasLtMatmulPreferenceSetAttribute", set)?;
        Ok(Self {
            handle,
            description,
            preference,
            workspace,
            algorithms: BTreeMap::new(),
        })
    }

    /// The algorithm for a shape: asked for once.
    fn algorithm(
        &mut self,
        shape: Shape,
        element: sys::cudaDataType,
    ) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        if let Some(found) = self.algorithms.get(&shape) {
            return Ok(*found);
        }
        let [a, b, c] = layouts(element, shape.rows, shape.k, shape.n)?;
        // SAFETY: all handles are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                self.handle,
                self.description,
                a.0,
                b.0,
                c.0,
                c.0,
                self.preference,
            )
        };
        let found = named("cublasLtMatmulAlgoGetHeuristic", found)?;
        self.algorithms.insert(shape, found.algo);
        Ok(found.algo)
    }

    fn run(
        &mut self,
        kernels: &Kernels,
        stream: &Stream,
        product: &Gemm,
        rounded: DevicePtr,
    ) -> Result<(), CudaError> {
        let Gemm { m, k, n, .. } = *product;
        let a = if rounded_elems(product.weights.stored, 1) > 0 {
            kernels.convert(stream, product.weights.stored, product.a, rounded, m * k)?;
            rounded
        } else {
            product.a
        };
        let alone = Product {
            a,
            weights: product.weights,
            out: product.out,
            m,
            k,
            n,
            resume: product.resume,
        };
        if let Some(Operation::Product(alone)) = stream.keep(Operation::Product(alone)) {
            self.multiply(stream, &alone)?;
        }
        let end = &product.epilogue;
        if end.bias.is_null() && end.act.is_none() && end.residual.is_null() {
            return Ok(());
        }
        kernels.epilogue(stream, product.out, product.out, m * n, n, end)
    }

    fn multiply(&mut self, stream: &Stream, product: &Product) -> Result<(), CudaError> {
        use sys::cudaDataType_t as T;
        let Product { m, k, n, .. } = *product;
        let element = match product.weights.stored {
            Stored::F16 => T::CUDA_R_16F,
            Stored::Bf16 => T::CUDA_R_16BF,
            Stored::F32 | Stored::Int8 { .. } => T::CUDA_R_32F,
        };
        let shape = Shape {
            k,
            n,
            rows: bucket(m),
            element: element as u32,
        };
        let algorithm = self.algorithm(shape, element)?;
        let [a, b, c] = layouts(element, m, k, n)?;
        let (alpha, beta) = (1.0f32, if product.resume { 1.0f32 } else { 0.0 });
        let at = |p: DevicePtr| p.0 as *mut c_void;
        // SAFETY: addresses and shapes are those of the caller; all handles are alive.
        let ran = unsafe {
            result::matmul(
                self.handle,
                self.description,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                at(product.weights.at),
                a.0,
                at(product.a),
                b.0,
                at(product.out),
                c.0,
                at(product.out),
                c.0,
                &raw const algorithm,
                at(self.workspace.at()),
                WORKSPACE,
                stream.raw().cast(),
            )
        };
        named("cublasLtMatmul", ran)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made when this was made.
        unsafe {
            result::destroy_matmul_pref(self.preference).ok();
            result::destroy_matmul_desc(self.description).ok();
            result::destroy_handle(self.handle).ok();
        }
    }
}

/// The library counts columns first: `[m, k] x [k, n]` by rows is `[n, k] x [k, m]` to it.
fn layouts(
    element: sys::cudaDataType,
    m: usize,
    k: usize,
    n: usize,
) -> Result<[Layout; 3], CudaError> {
    Ok([
        Layout::new(element, n, k)?,
        Layout::new(element, k, m)?,
        Layout::new(sys::cudaDataType_t::CUDA_R_32F, n, m)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn rows_fall_into_few_buckets() {
        let given = [1, 2, 3, 5, 8, 9, 16, 17, 24, 25, 33, 49, 65, 97];
        let want = [1, 2, 4, 8, 8, 16, 16, 24, 24, 32, 48, 64, 96, 128];
        assert_eq!(given.map(bucket), want);
    }
}
