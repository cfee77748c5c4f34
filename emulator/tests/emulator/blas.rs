//! Programs of cudarc that use cuBLAS and cuBLASLt, against the host.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests call libraries")]

use crate::common::{difference, is_reported, numbers, runs_clean};
use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, StridedBatchedConfig};
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as A;
use cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig, result, sys};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use half::{bf16, f16};

/// `alpha * op(a) op(b) + beta * c` of matrices that lie column after column without gaps.
fn product(g: &GemmConfig<f32>, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
    let (m, n, k) = (g.m as usize, g.n as usize, g.k as usize);
    let at = |x: &[f32], is_plain: bool, row: usize, col: usize, rows: usize, cols: usize| {
        x[if is_plain {
            row + col * rows
        } else {
            col + row * cols
        }]
    };
    let mut out = Vec::new();
    for col in 0..n {
        for row in 0..m {
            let term = |p: usize| {
                f64::from(at(a, g.transa == CUBLAS_OP_N, row, p, m, k))
                    * f64::from(at(b, g.transb == CUBLAS_OP_N, p, col, k, n))
            };
            let sum: f64 = (0..k).map(term).sum();
            out.push(g.alpha * sum as f32 + g.beta * c[row + col * m]);
        }
    }
    out
}

fn config(m: i32, n: i32, k: i32, transposed: [bool; 2]) -> GemmConfig<f32> {
    let op = |t: bool| if t { CUBLAS_OP_T } else { CUBLAS_OP_N };
    GemmConfig {
        transa: op(transposed[0]),
        transb: op(transposed[1]),
        m,
        n,
        k,
        alpha: 1.5,
        lda: if transposed[0] { k } else { m },
        ldb: if transposed[1] { n } else { k },
        beta: 0.5,
        ldc: m,
    }
}

#[test]
fn products_of_all_orders() {
    runs_clean("blas::products_of_all_orders", || {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let blas = CudaBlas::new(stream.clone()).unwrap();
        let (a, b, c) = (numbers(1, 7 * 11), numbers(2, 11 * 5), numbers(3, 7 * 5));
        let (da, db) = (
            stream.clone_htod(&a).unwrap(),
            stream.clone_htod(&b).unwrap(),
        );
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let g = config(7, 5, 11, transposed);
            let mut dc = stream.clone_htod(&c).unwrap();
            // SAFETY: the buffers hold the matrices that the configuration names.
            unsafe { blas.gemm(g, &da, &db, &mut dc) }.unwrap();
            let got = stream.clone_dtoh(&dc).unwrap();
            assert!(
                difference(&got, &product(&g, &a, &b, &c)) < 1e-5,
                "{transposed:?}"
            );
        }
    });
}

#[test]
fn products_of_halves_and_batches() {
    runs_clean("blas::products_of_halves_and_batches", || {
        let context = CudaContext::new(0).unwrap();
        let stream = context.default_stream();
        let blas = CudaBlas::new(stream.clone()).unwrap();
        let (a, b, c) = (numbers(4, 4 * 6), numbers(5, 6 * 3), numbers(6, 4 * 3));
        let g = config(4, 3, 6, [false, true]);
        macro_rules! halves {
            ($half:ty, $within:expr) => {{
                let round = |v: &[f32]| v.iter().map(|v| <$half>::from_f32(*v)).collect::<Vec<_>>();
                let exact = |v: &[$half]| v.iter().map(|v| v.to_f32()).collect::<Vec<_>>();
                let (a, b, c) = (round(&a), round(&b), round(&c));
                let (da, db) = (
                    stream.clone_htod(&a).unwrap(),
                    stream.clone_htod(&b).unwrap(),
                );
                let mut dc = stream.clone_htod(&c).unwrap();
                let half = <$half>::from_f32;
                let g16 = GemmConfig {
                    transa: g.transa,
                    transb: g.transb,
                    m: g.m,
                    n: g.n,
                    k: g.k,
                    alpha: half(g.alpha),
                    lda: g.lda,
                    ldb: g.ldb,
                    beta: half(g.beta),
                    ldc: g.ldc,
                };
                // SAFETY: the buffers hold the matrices that the configuration names.
                unsafe { blas.gemm(g16, &da, &db, &mut dc) }.unwrap();
                let got = exact(&stream.clone_dtoh(&dc).unwrap());
                let want = product(&g, &exact(&a), &exact(&b), &exact(&c));
                assert!(difference(&got, &want) < $within);
            }};
        }
        halves!(f16, 2e-3);
        halves!(bf16, 1e-2);

        let (a, b, c) = (numbers(7, 3 * 24), numbers(8, 3 * 18), numbers(9, 3 * 12));
        let (da, db) = (
            stream.clone_htod(&a).unwrap(),
            stream.clone_htod(&b).unwrap(),
        );
        let mut dc = stream.clone_htod(&c).unwrap();
        let batches = StridedBatchedConfig {
            gemm: g,
            batch_size: 3,
            stride_a: 24,
            stride_b: 18,
            stride_c: 12,
        };
        // SAFETY: the buffers hold the matrices that the configuration names.
        unsafe { blas.gemm_strided_batched(batches, &da, &db, &mut dc) }.unwrap();
        let want: Vec<f32> = (0..3)
            .flat_map(|i| {
                product(
                    &g,
                    &a[i * 24..][..24],
                    &b[i * 18..][..18],
                    &c[i * 12..][..12],
                )
            })
            .collect();
        assert!(difference(&stream.clone_dtoh(&dc).unwrap(), &want) < 1e-5);
    });
}

#[test]
fn products_with_epilogues() {
    runs_clean("blas::products_with_epilogues", || {
        let context = CudaContext::new(0).unwrap();
        let stream = context.default_stream();
        let lt = CudaBlasLT::new(stream.clone()).unwrap();
        let g = config(6, 5, 8, [true, false]);
        let (a, b, c, bias) = (
            numbers(10, 48),
            numbers(11, 40),
            numbers(12, 30),
            numbers(13, 6),
        );
        let (da, db) = (
            stream.clone_htod(&a).unwrap(),
            stream.clone_htod(&b).unwrap(),
        );
        let dbias = stream.clone_htod(&bias).unwrap();
        for activation in [None, Some(Activation::Relu), Some(Activation::Gelu)] {
            let config = MatmulConfig {
                transa: true,
                transb: false,
                transc: false,
                m: 6,
                n: 5,
                k: 8,
                alpha: g.alpha,
                lda: 8,
                ldb: 8,
                beta: g.beta,
                ldc: 6,
                stride_a: None,
                stride_b: None,
                stride_c: None,
                stride_bias: None,
                batch_size: None,
            };
            let mut dc = stream.clone_htod(&c).unwrap();
            // SAFETY: the buffers hold the matrices that the configuration names.
            unsafe { lt.matmul(config, &da, &db, &mut dc, Some(&dbias), activation.as_ref()) }
                .unwrap();
            let plain = product(&g, &a, &b, &c);
            let finish = |(i, v): (usize, &f32)| {
                let v = v + bias[i % 6];
                match activation {
                    None => v,
                    Some(Activation::Relu) => v.max(0.0),
                    _ => 0.5 * v * (1.0 + (0.797_884_6 * (v + 0.044_715 * v.powi(3))).tanh()),
                }
            };
            let want: Vec<f32> = plain.iter().enumerate().map(finish).collect();
            assert!(difference(&stream.clone_dtoh(&dc).unwrap(), &want) < 1e-5);
        }
    });
}

/// Runs a product with a changed configuration; whether all went well.
fn changed(change: impl Fn(&mut GemmConfig<f32>), len_a: usize) -> bool {
    let context = CudaContext::new(0).unwrap();
    let stream = context.default_stream();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let (a, b) = (
        stream.clone_htod(&numbers(1, len_a)).unwrap(),
        stream.clone_htod(&numbers(2, 20)).unwrap(),
    );
    let mut c = stream.alloc_zeros::<f32>(20).unwrap();
    let mut g = config(4, 5, 4, [false, false]);
    change(&mut g);
    // SAFETY: whatever is wrong with it, the emulator finds.
    unsafe { blas.gemm(g, &a, &b, &mut c) }.is_ok() && stream.synchronize().is_ok()
}

#[test]
fn a_leading_dimension_below_the_rows() {
    let expected = [
        "bad argument: leading dimension of a: expected at least its 4 rows, got 3",
        "kernel cublasSgemm_v2",
    ];
    is_reported(
        "blas::a_leading_dimension_below_the_rows",
        &expected,
        || {
            assert!(changed(|_| (), 16));
            assert!(!changed(|g| g.lda = 3, 16));
        },
    );
}

#[test]
fn a_leading_dimension_beyond_the_matrix() {
    let expected = [
        "out of bounds: a: 16 bytes at",
        "after an allocation of 64 bytes",
        "kernel cublasSgemm_v2",
    ];
    is_reported(
        "blas::a_leading_dimension_beyond_the_matrix",
        &expected,
        || {
            assert!(changed(|g| g.lda = 5, 19));
            assert!(!changed(|g| g.lda = 5, 16));
        },
    );
}

/// Sets an attribute of a description; whether the library took it.
fn set<T>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: T,
) -> bool {
    let at = (&raw const value).cast();
    // SAFETY: the description is alive, and the value as long as said.
    unsafe { result::set_matmul_desc_attribute(description, attribute, at, size_of::<T>()) }.is_ok()
}

/// Runs a product of 4 x 4 matrices by a description that `change` has changed, which is handed the
/// address of 4 numbers; whether all went well.
fn described(change: impl Fn(sys::cublasLtMatmulDesc_t, u64)) -> bool {
    use sys::cudaDataType_t::CUDA_R_32F;
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let a = stream.clone_htod(&numbers(1, 16)).unwrap();
    let bias = stream.clone_htod(&numbers(2, 4)).unwrap();
    let mut d = stream.alloc_zeros::<f32>(16).unwrap();
    let handle = result::create_handle().unwrap();
    let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
    let description = result::create_matmul_desc(compute, CUDA_R_32F).unwrap();
    let layout = result::create_matrix_layout(CUDA_R_32F, 4, 4, 4).unwrap();
    let (at_bias, _bias) = bias.device_ptr(&stream);
    change(description, at_bias);
    let (at_a, _a) = a.device_ptr(&stream);
    let (alpha, beta) = (1.0f32, 0.0f32);
    let ran = {
        let (at_d, _d) = d.device_ptr_mut(&stream);
        // SAFETY: whatever is wrong with it, the emulator finds.
        unsafe {
            result::matmul(
                handle,
                description,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                at_a as *const _,
                layout,
                at_a as *const _,
                layout,
                at_d as *const _,
                layout,
                at_d as *mut _,
                layout,
                std::ptr::null(),
                std::ptr::null_mut(),
                0,
                stream.cu_stream().cast(),
            )
        }
    };
    let is_over = ran.is_ok() && stream.synchronize().is_ok();
    // SAFETY: made above.
    unsafe {
        result::destroy_matrix_layout(layout).unwrap();
        result::destroy_matmul_desc(description).unwrap();
        result::destroy_handle(handle).unwrap();
    }
    is_over
}

/// A product with a bias at an address.
fn with_bias(at: impl Fn(u64) -> u64) -> bool {
    described(|description, bias| {
        let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS;
        assert!(set(description, A::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
        let at = at(bias);
        assert!(set(description, A::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at));
    })
}

#[test]
fn a_bias_that_is_nowhere() {
    let expected = [
        "bad argument: bias at 0x0: expected 4 elements at a multiple of 4 bytes",
        "kernel cublasLtMatmul",
    ];
    is_reported("blas::a_bias_that_is_nowhere", &expected, || {
        assert!(with_bias(|bias| bias));
        assert!(!with_bias(|_| 0));
    });
}

#[test]
fn a_bias_beyond_its_allocation() {
    let expected = ["out of bounds: bias: 16 bytes at", "kernel cublasLtMatmul"];
    is_reported("blas::a_bias_beyond_its_allocation", &expected, || {
        assert!(!with_bias(|bias| bias + 8));
    });
}

#[test]
fn a_bias_of_another_type_than_the_result() {
    let expected = ["bad argument: types: a bias of F16 does not go with a result of F32"];
    is_reported(
        "blas::a_bias_of_another_type_than_the_result",
        &expected,
        || {
            assert!(!described(|description, bias| {
                let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
                assert!(set(description, A::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
                assert!(set(description, A::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
                let half = sys::cudaDataType_t::CUDA_R_16F;
                assert!(set(
                    description,
                    A::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                    half
                ));
            }));
        },
    );
}

/// Runs a product of 4 x 4 matrices, of which `b` lies `beyond` a multiple of 256 bytes, by the
/// algorithm for one at multiples of `promised`, or of what is taken for granted.
fn aligned(promised: Option<u32>, beyond: u64) -> bool {
    use sys::cublasLtMatmulPreferenceAttributes_t as P;
    use sys::cudaDataType_t::CUDA_R_32F;
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let a = stream.clone_htod(&numbers(1, 16 + 64)).unwrap();
    let mut d = stream.alloc_zeros::<f32>(16).unwrap();
    let handle = result::create_handle().unwrap();
    let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
    let description = result::create_matmul_desc(compute, CUDA_R_32F).unwrap();
    let layout = result::create_matrix_layout(CUDA_R_32F, 4, 4, 4).unwrap();
    let preference = result::create_matmul_pref().unwrap();
    let (at_a, _a) = a.device_ptr(&stream);
    let (alpha, beta) = (1.0f32, 0.0f32);
    // SAFETY: all handles are alive; whatever is wrong with the addresses, the emulator finds.
    let ran = unsafe {
        if let Some(promised) = promised {
            let attribute = P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES;
            let value = (&raw const promised).cast();
            result::set_matmul_pref_attribute(preference, attribute, value, 4).unwrap();
        }
        let of = layout;
        let found =
            result::get_matmul_algo_heuristic(handle, description, of, of, of, of, preference);
        let algorithm = found.unwrap().algo;
        let (at_d, _d) = d.device_ptr_mut(&stream);
        result::matmul(
            handle,
            description,
            (&raw const alpha).cast(),
            (&raw const beta).cast(),
            at_a as *const _,
            layout,
            (at_a + beyond) as *const _,
            layout,
            at_d as *const _,
            layout,
            at_d as *mut _,
            layout,
            &raw const algorithm,
            std::ptr::null_mut(),
            0,
            stream.cu_stream().cast(),
        )
    };
    let is_over = ran.is_ok() && stream.synchronize().is_ok();
    // SAFETY: made above.
    unsafe {
        result::destroy_matmul_pref(preference).unwrap();
        result::destroy_matrix_layout(layout).unwrap();
        result::destroy_matmul_desc(description).unwrap();
        result::destroy_handle(handle).unwrap();
    }
    is_over
}

#[test]
fn matrices_that_lie_otherwise_than_was_said() {
    let expected = [
        "bad argument: b at 0x",
        "expected a multiple of 256 bytes, as was said when the algorithm was asked for",
        "kernel cublasLtMatmul",
    ];
    is_reported(
        "blas::matrices_that_lie_otherwise_than_was_said",
        &expected,
        || {
            assert!(aligned(Some(64), 64));
            assert!(aligned(Some(16), 16));
            assert!(aligned(None, 256));
            assert!(!aligned(None, 64));
        },
    );
}

#[test]
fn attributes_that_are_not_taken() {
    runs_clean("blas::attributes_that_are_not_taken", || {
        // Of another size than the attribute's.
        assert!(described(|description, bias| {
            assert!(!set(description, A::CUBLASLT_MATMUL_DESC_EPILOGUE, 4u64));
            let short = bias as u32;
            assert!(!set(
                description,
                A::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                short
            ));
        }));
        // One that keeps values for training.
        assert!(!described(|description, _| {
            let kept = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_AUX;
            assert!(set(description, A::CUBLASLT_MATMUL_DESC_EPILOGUE, kept));
        }));
    });
}
