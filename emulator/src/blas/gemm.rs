//! cuBLAS.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::api;
use super::product::{Activation, Element, Matrix, Product, sum_type};
use crate::driver::{Answer, Code, Driver, Work, put};

/// One matrix argument: address, type, leading dimension, stride.
type Argument = (u64, c_int, c_int, i64);

/// Arguments that all products have.
struct Call {
    name: &'static str,
    handle: u64,
    ops: [c_int; 2],
    shape: [c_int; 3],
    compute: c_int,
    batch: c_int,
}

impl Driver {
    fn gemm(
        &mut self,
        call: &Call,
        factors: [*const c_void; 2],
        [a, b, c]: [Argument; 3],
    ) -> Answer {
        let stream = *self
            .blas
            .streams
            .get(&call.handle)
            .ok_or(Code::InvalidHandle)?;
        if call.shape.iter().any(|n| *n < 0)
            || call.batch < 0
            || call.ops.iter().any(|op| !(0..=2).contains(op))
        {
            return Err(Code::InvalidValue);
        }
        let [m, n, k] = call.shape.map(|n| n as usize);
        let transposed = call.ops.map(|op| op != 0);
        let sum = sum_type(call.compute)?;
        let matrix = |name, (at, element, ld, stride): Argument, rows, cols| {
            Ok(Matrix {
                name,
                at,
                element: Element::of(element)?,
                rows,
                cols,
                ld: ld.into(),
                stride,
            })
        };
        let (a_rows, a_cols) = if transposed[0] { (k, m) } else { (m, k) };
        let (b_rows, b_cols) = if transposed[1] { (n, k) } else { (k, n) };
        let c = matrix("c", c, m, n)?;
        let product = Product {
            call: call.name,
            transposed,
            alpha: sum.factor(factors[0])?,
            beta: sum.factor(factors[1])?,
            a: matrix("a", a, a_rows, a_cols)?,
            b: matrix("b", b, b_rows, b_cols)?,
            c,
            d: c,
            sum,
            batch: call.batch as usize,
            bias: None,
            activation: Activation::None,
        };
        self.multiply(product, stream)
    }

    /// Checks a product and queues it.
    pub(super) fn multiply(&mut self, product: Product, stream: u64) -> Answer {
        product.check().map_err(|report| self.report(&report))?;
        self.enqueue(
            stream,
            Work::Call(Arc::new(move |memory| product.run(memory))),
        )
    }
}

/// `CUBLAS_COMPUTE_32F` and `_64F`, `CUDA_R_32F` and `_64F`.
const COMPUTE_32: c_int = 68;
const COMPUTE_64: c_int = 70;
const F32: c_int = 0;
const F64: c_int = 1;

api! {
    /// Makes a handle.
    fn cublasCreate_v2(handle: *mut u64) |driver| {
        let key = driver.handle();
        driver.blas.streams.insert(key, 0);
        put(handle, key)
    }
    /// Ends a handle.
    fn cublasDestroy_v2(handle: u64) |driver| {
        driver.blas.streams.remove(&handle).map(|_| ()).ok_or(Code::InvalidHandle)
    }
    /// The stream of a handle's calls.
    fn cublasSetStream_v2(handle: u64, stream: u64) |driver| {
        let found = driver.blas.streams.get_mut(&handle).ok_or(Code::InvalidHandle)?;
        *found = stream;
        Ok(())
    }
    /// Where factors are read: on the host only.
    fn cublasSetPointerMode_v2(_handle: u64, mode: c_int) |_driver| {
        if mode == 0 { Ok(()) } else { Err(Code::NotSupported) }
    }
    /// Where factors are read.
    fn cublasGetPointerMode_v2(_handle: u64, mode: *mut c_int) |_driver| { put(mode, 0) }
    /// Which units may be used; changes nothing.
    fn cublasSetMathMode(_handle: u64, _mode: c_int) |_driver| { Ok(()) }
    /// Memory for the library; it needs none.
    fn cublasSetWorkspace_v2(_handle: u64, _at: u64, _bytes: usize) |_driver| { Ok(()) }
    /// A product of single precision.
    fn cublasSgemm_v2(
        handle: u64, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: u64, lda: c_int, b: u64, ldb: c_int, beta: *const c_void, c: u64, ldc: c_int,
    ) |driver| {
        let call = Call { name: "cublasSgemm_v2", handle, ops: [op_a, op_b], shape: [m, n, k], compute: COMPUTE_32, batch: 1 };
        driver.gemm(&call, [alpha, beta], [(a, F32, lda, 0), (b, F32, ldb, 0), (c, F32, ldc, 0)])
    }
    /// A product of double precision.
    fn cublasDgemm_v2(
        handle: u64, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: u64, lda: c_int, b: u64, ldb: c_int, beta: *const c_void, c: u64, ldc: c_int,
    ) |driver| {
        let call = Call { name: "cublasDgemm_v2", handle, ops: [op_a, op_b], shape: [m, n, k], compute: COMPUTE_64, batch: 1 };
        driver.gemm(&call, [alpha, beta], [(a, F64, lda, 0), (b, F64, ldb, 0), (c, F64, ldc, 0)])
    }
    /// Products of single precision.
    fn cublasSgemmStridedBatched(
        handle: u64, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: u64, lda: c_int, stride_a: i64, b: u64, ldb: c_int, stride_b: i64, beta: *const c_void,
        c: u64, ldc: c_int, stride_c: i64, batch: c_int,
    ) |driver| {
        let call = Call { name: "cublasSgemmStridedBatched", handle, ops: [op_a, op_b], shape: [m, n, k], compute: COMPUTE_32, batch };
        driver.gemm(&call, [alpha, beta], [(a, F32, lda, stride_a), (b, F32, ldb, stride_b), (c, F32, ldc, stride_c)])
    }
    /// Products of double precision.
    fn cublasDgemmStridedBatched(
        handle: u64, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: u64, lda: c_int, stride_a: i64, b: u64, ldb: c_int, stride_b: i64, beta: *const c_void,
        c: u64, ldc: c_int, stride_c: i64, batch: c_int,
    ) |driver| {
        let call = Call { name: "cublasDgemmStridedBatched", handle, ops: [op_a, op_b], shape: [m, n, k], compute: COMPUTE_64, batch };
        driver.gemm(&call, [alpha, beta], [(a, F64, lda, stride_a), (b, F64, ldb, stride_b), (c, F64, ldc, stride_c)])
    }
    /// A product of any type.
    fn cublasGemmEx(
        handle: u64, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: u64, a_type: c_int, lda: c_int, b: u64, b_type: c_int, ldb: c_int, beta: *const c_void,
        c: u64, c_type: c_int, ldc: c_int, compute: c_int, _algo: c_int,
    ) |driver| {
        let call = Call { name: "cublasGemmEx", handle, ops: [op_a, op_b], shape: [m, n, k], compute, batch: 1 };
        driver.gemm(&call, [alpha, beta], [(a, a_type, lda, 0), (b, b_type, ldb, 0), (c, c_type, ldc, 0)])
    }
    /// Products of any type.
    fn cublasGemmStridedBatchedEx(
        handle: u64, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int, alpha: *const c_void,
        a: u64, a_type: c_int, lda: c_int, stride_a: i64, b: u64, b_type: c_int, ldb: c_int, stride_b: i64,
        beta: *const c_void, c: u64, c_type: c_int, ldc: c_int, stride_c: i64, batch: c_int, compute: c_int, _algo: c_int,
    ) |driver| {
        let call = Call { name: "cublasGemmStridedBatchedEx", handle, ops: [op_a, op_b], shape: [m, n, k], compute, batch };
        driver.gemm(&call, [alpha, beta], [(a, a_type, lda, stride_a), (b, b_type, ldb, stride_b), (c, c_type, ldc, stride_c)])
    }
}
