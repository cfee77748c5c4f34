//! Products: by this crate's own kernels, whose rows have the same bits in any batch, or by
//! cuBLASLt, which picks an algorithm by shape and so does not promise that.
//!
//! The library is asked for an algorithm once for each (k, n, bucket of rows, type of weights, what
//! it does to elements), and has a workspace of fixed size. It adds a bias and a residual and applies
//! relu itself ([`Fused`]), where it has an algorithm that does; what else follows a product is a
//! kernel of this crate.
//! Weights of f16 and bf16 are multiplied with activations rounded to the same type, and sums are
//! f32; int8 weights stay with this crate's kernels.

use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use lazybatch_graph::Act;
use lazybatch_kernels::arena::LINE;

use crate::context::{Context, DeviceMemory, DevicePtr, Stream};
use crate::error::CudaError;
use crate::kernels::gemm::Gemm;
use crate::kernels::gemm_matrix::packed_elems;
use crate::kernels::{Epilogue, Kernels, Stored, Weights};
use crate::record::Operation;

/// Workspace of the library, as its documentation recommends for the largest GPUs.
const WORKSPACE: usize = 32 << 20;

/// Multiples of bytes at which the library finds activations and what it adds and writes: values of
/// sub-batches lie so. Weights lie as it expects by itself.
const ALIGN: u32 = 4 * LINE as u32;

/// Runs products.
#[derive(Debug)]
pub enum Products {
    /// By this crate's kernels: by matrix instructions where weights are in tiles.
    Own,
    /// By cuBLASLt.
    Library(Box<Library>),
}

/// What the library does to an element before it stores it. Its gelu is another function than the
/// op's, and is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fused {
    /// Nothing.
    Nothing,
    /// Adds a bias.
    Bias,
    /// Takes what is above zero.
    Relu,
    /// Both, in that order.
    ReluBias,
}

impl Fused {
    /// By their numbers.
    const ALL: [Self; 4] = [Self::Nothing, Self::Bias, Self::Relu, Self::ReluBias];

    const fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::ReluBias)
    }

    /// The library's number for it.
    const fn epilogue(self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t as E;
        match self {
            Self::Nothing => E::CUBLASLT_EPILOGUE_DEFAULT,
            Self::Bias => E::CUBLASLT_EPILOGUE_BIAS,
            Self::Relu => E::CUBLASLT_EPILOGUE_RELU,
            Self::ReluBias => E::CUBLASLT_EPILOGUE_RELU_BIAS,
        }
    }

    /// What of an epilogue the library takes over, and what is left to do behind it. A residual goes
    /// where nothing comes between it and the sum: `resume` takes that place too.
    fn of(end: &Epilogue, resume: bool) -> (Self, DevicePtr, Epilogue) {
        let mut left = *end;
        let fused = match (end.act, end.bias.is_null()) {
            (None, true) => Self::Nothing,
            (None, false) => Self::Bias,
            (Some(Act::Relu), true) => Self::Relu,
            (Some(Act::Relu), false) => Self::ReluBias,
            (Some(_), _) => return (Self::Nothing, DevicePtr::NULL, left),
        };
        let mut added = DevicePtr::NULL;
        if end.act.is_none() && !resume {
            added = std::mem::take(&mut left.residual);
        }
        (left.bias, left.act) = (DevicePtr::NULL, None);
        (fused, added, left)
    }
}

/// How many products a library ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryCounts {
    /// With all that follows them.
    pub whole: u64,
    /// With a kernel of this crate behind them.
    pub with_kernel: u64,
}

/// A product as the library is asked for it: `out = fused(a weights + added)`.
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
    /// `[m, n]` f32, which may be `out`; null for nothing.
    pub added: DevicePtr,
    /// What happens to an element.
    pub fused: Fused,
    /// `[n]` f32, if `fused` adds it.
    pub bias: DevicePtr,
}

impl Products {
    /// Products of a device.
    ///
    /// # Errors
    /// No memory for the library's workspace, or what it answers.
    pub fn new(context: &Context, deterministic: bool) -> Result<Self, CudaError> {
        if deterministic {
            return Ok(Self::Own);
        }
        Ok(Self::Library(Box::new(Library::new(context)?)))
    }

    /// `act(a weights + bias) + residual`; see [`Gemm`]. `rounded` has room for `a` as
    /// [`rounded_elems`] says.
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
            _ if product.weights.stored.is_tiles() => kernels.gemm_matrix(stream, product, rounded),
            _ => kernels.gemm(stream, product),
        }
    }

    /// What a library was asked for so far.
    pub fn library_counts(&self) -> LibraryCounts {
        match self {
            Self::Library(library) => library.counts,
            Self::Own => LibraryCounts::default(),
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
            Self::Own => unreachable!("own products are kernels"),
        }
    }
}

/// Elements of 4 bytes that a product's activations take besides: in the type of its weights for a
/// library (`is_library`), or in tiles.
pub fn rounded_elems(product: &Gemm, is_library: bool) -> usize {
    let Gemm { m, k, n, .. } = *product;
    match product.weights.stored {
        Stored::F16 | Stored::Bf16 if is_library => (m * k).div_ceil(2),
        Stored::F16Tiles | Stored::Bf16Tiles => packed_elems(m, k, n),
        _ => 0,
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
    fused: Fused,
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
    /// By the number of what is fused.
    descriptions: [Description; 4],
    preference: sys::cublasLtMatmulPreference_t,
    workspace: DeviceMemory,
    /// `None` where the library has none.
    algorithms: BTreeMap<Shape, Option<sys::cublasLtMatmulAlgo_t>>,
    counts: LibraryCounts,
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

/// A product's description, ended when this is dropped.
#[derive(Debug)]
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(fused: Fused) -> Result<Self, CudaError> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let made = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F);
        let made = Self(named("cublasLtMatmulDescCreate", made)?);
        use sys::cublasLtMatmulDescAttributes_t as A;
        made.set(A::CUBLASLT_MATMUL_DESC_EPILOGUE, &fused.epilogue())?;
        Ok(made)
    }

    fn set_bias(&self, bias: DevicePtr) -> Result<(), CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as A;
        self.set(A::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.0)
    }

    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), CudaError> {
        let at = std::ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the description is alive, and the attribute has the type of the value.
        let set =
            unsafe { result::set_matmul_desc_attribute(self.0, attribute, at, size_of::<T>()) };
        named("cublasLtMatmulDescSetAttribute", set)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made when this was made.
        unsafe { result::destroy_matmul_desc(self.0) }.ok();
    }
}

/// Whether the library says that it has no algorithm, and not that something is wrong.
fn has_none(error: &CublasError) -> bool {
    use sys::cublasStatus_t as S;
    matches!(
        error.0,
        S::CUBLAS_STATUS_NOT_SUPPORTED | S::CUBLAS_STATUS_ARCH_MISMATCH
    )
}

/// What an algorithm is chosen for, and the type of both operands.
fn shape(stored: Stored, m: usize, k: usize, n: usize, fused: Fused) -> (Shape, sys::cudaDataType) {
    use sys::cudaDataType_t as T;
    let element = match stored {
        Stored::F16 => T::CUDA_R_16F,
        Stored::Bf16 => T::CUDA_R_16BF,
        _ => T::CUDA_R_32F,
    };
    let shape = Shape {
        k,
        n,
        rows: bucket(m),
        element: element as u32,
        fused,
    };
    (shape, element)
}

impl Library {
    fn new(context: &Context) -> Result<Self, CudaError> {
        let workspace = DeviceMemory::new(context, "the workspace of cuBLASLt", WORKSPACE)?;
        let handle = named("cublasLtCreate", result::create_handle())?;
        let [nothing, bias, relu, both] = Fused::ALL.map(Description::new);
        let descriptions = [nothing?, bias?, relu?, both?];
        let preference = named(
            "cublasLtMatmulPreferenceCreate",
            result::create_matmul_pref(),
        )?;
        use sys::cublasLtMatmulPreferenceAttributes_t as A;
        let library = Self {
            handle,
            descriptions,
            preference,
            workspace,
            algorithms: BTreeMap::new(),
            counts: LibraryCounts::default(),
        };
        library.prefer(A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        for attribute in [
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            library.prefer(attribute, &ALIGN)?;
        }
        Ok(library)
    }

    fn prefer<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CudaError> {
        let at = std::ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the preference is alive, and the attribute has the type of the value.
        let set = unsafe {
            result::set_matmul_pref_attribute(self.preference, attribute, at, size_of::<T>())
        };
        named("cublasLtMatmulPreferenceSetAttribute", set)
    }

    /// The algorithm for a shape: asked for once. `None` where the library has none that does what is
    /// fused.
    fn algorithm(
        &mut self,
        shape: Shape,
        element: sys::cudaDataType,
        bias: DevicePtr,
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CudaError> {
        if let Some(found) = self.algorithms.get(&shape) {
            return Ok(*found);
        }
        let description = &self.descriptions[shape.fused as usize];
        if shape.fused.has_bias() {
            description.set_bias(bias)?;
        }
        let [a, b, c] = layouts(element, shape.rows, shape.k, shape.n)?;
        // SAFETY: all handles are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                self.handle,
                description.0,
                a.0,
                b.0,
                c.0,
                c.0,
                self.preference,
            )
        };
        let found = match found {
            Ok(found) => Some(found.algo),
            Err(error) if shape.fused != Fused::Nothing && has_none(&error) => None,
            Err(error) => return named("cublasLtMatmulAlgoGetHeuristic", Err(error)),
        };
        self.algorithms.insert(shape, found);
        Ok(found)
    }

    fn run(
        &mut self,
        kernels: &Kernels,
        stream: &Stream,
        product: &Gemm,
        rounded: DevicePtr,
    ) -> Result<(), CudaError> {
        let Gemm { m, k, n, .. } = *product;
        let a = if rounded_elems(product, true) > 0 {
            kernels.convert(stream, product.weights.stored, product.a, rounded, m * k)?;
            rounded
        } else {
            product.a
        };
        let (mut fused, mut added, mut left) = Fused::of(&product.epilogue, product.resume);
        let (shape, element) = shape(product.weights.stored, m, k, n, fused);
        if self
            .algorithm(shape, element, product.epilogue.bias)?
            .is_none()
        {
            (fused, added, left) = (Fused::Nothing, DevicePtr::NULL, product.epilogue);
        }
        let alone = Product {
            a,
            weights: product.weights,
            out: product.out,
            m,
            k,
            n,
            added: if product.resume { product.out } else { added },
            fused,
            bias: match fused.has_bias() {
                true => product.epilogue.bias,
                false => DevicePtr::NULL,
            },
        };
        if let Some(Operation::Product(alone)) = stream.keep(Operation::Product(alone)) {
            self.multiply(stream, &alone)?;
        }
        if left.bias.is_null() && left.act.is_none() && left.residual.is_null() {
            self.counts.whole += 1;
            return Ok(());
        }
        self.counts.with_kernel += 1;
        kernels.epilogue(stream, product.out, product.out, m * n, n, &left)
    }

    fn multiply(&mut self, stream: &Stream, product: &Product) -> Result<(), CudaError> {
        let Product {
            m,
            k,
            n,
            fused,
            bias,
            ..
        } = *product;
        let (shape, element) = shape(product.weights.stored, m, k, n, fused);
        let algorithm = self.algorithm(shape, element, bias)?;
        let no_algorithm = || CudaError::Blas {
            call: "cublasLtMatmulAlgoGetHeuristic",
            name: format!("no algorithm for {shape:?}"),
        };
        let algorithm = algorithm.ok_or_else(no_algorithm)?;
        let description = &self.descriptions[fused as usize];
        if fused.has_bias() {
            description.set_bias(bias)?;
        }
        let [a, b, c] = layouts(element, m, k, n)?;
        let is_added = !product.added.is_null();
        let (alpha, beta) = (1.0f32, if is_added { 1.0f32 } else { 0.0 });
        let added = if is_added { product.added } else { product.out };
        let at = |p: DevicePtr| p.0 as *mut c_void;
        // SAFETY: addresses and shapes are those of the caller; all handles are alive.
        let ran = unsafe {
            result::matmul(
                self.handle,
                description.0,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                at(product.weights.at),
                a.0,
                at(product.a),
                b.0,
                at(added),
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
    use lazybatch_graph::Act;

    use super::{Fused, bucket};
    use crate::context::DevicePtr;
    use crate::kernels::Epilogue;

    #[test]
    fn the_library_takes_what_its_order_allows() {
        let [bias, residual, null] = [DevicePtr(64), DevicePtr(128), DevicePtr::NULL];
        let of = |bias, act, residual, resume| {
            let (fused, added, left) = Fused::of(
                &Epilogue {
                    bias,
                    act,
                    residual,
                },
                resume,
            );
            (fused, added, (left.bias, left.act, left.residual))
        };
        let nothing = (null, None, null);
        assert_eq!(
            of(bias, None, residual, false),
            (Fused::Bias, residual, nothing)
        );
        // The sum that is gone on from has the place of a residual.
        assert_eq!(
            of(bias, None, residual, true),
            (Fused::Bias, null, (null, None, residual))
        );
        // A residual comes behind the activation.
        assert_eq!(
            of(bias, Some(Act::Relu), residual, false),
            (Fused::ReluBias, null, (null, None, residual))
        );
        assert_eq!(
            of(null, Some(Act::Relu), null, false),
            (Fused::Relu, null, nothing)
        );
        assert_eq!(
            of(bias, Some(Act::Gelu), residual, false),
            (Fused::Nothing, null, (bias, Some(Act::Gelu), residual))
        );
        assert_eq!(of(null, None, null, false), (Fused::Nothing, null, nothing));
    }

    #[test]
    fn rows_fall_into_few_buckets() {
        let given = [1, 2, 3, 5, 8, 9, 16, 17, 24, 25, 33, 49, 65, 97];
        let want = [1, 2, 4, 8, 8, 16, 16, 24, 24, 32, 48, 64, 96, 128];
        assert_eq!(given.map(bucket), want);
    }
}
