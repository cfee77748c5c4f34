//! cuBLASLt.

use std::ffi::{c_int, c_void};

use super::api;
use super::product::{Activation, Element, Matrix, Product, sum_type};
use crate::driver::{Answer, Code, Driver, get, put};

/// A matrix's shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    element: c_int,
    rows: u64,
    cols: u64,
    ld: i64,
    batch: c_int,
    stride: i64,
}

/// What is done besides multiplying.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    compute: c_int,
    scale: c_int,
    transposed: [c_int; 2],
    epilogue: c_int,
    bias: u64,
    /// Elements from the bias of one of the batch to the next.
    bias_stride: i64,
    /// Type of the bias; -1 for that of the result.
    bias_element: c_int,
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heuristic {
    algo: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`; those of b, c and d follow it.
const MIN_ALIGNMENT_A: c_int = 5;
/// What matrices are multiples of, in bytes, unless a preference says otherwise.
const ALIGNMENT: u32 = 256;
/// Marks an algorithm as the emulator's only one; behind it stands what was said of alignment.
const ALGORITHM: u64 = 1;
/// Values of `cublasLtEpilogue_t`.
const NOTHING: c_int = 1;
const RELU: c_int = 2;
const BIAS: c_int = 4;
const RELU_BIAS: c_int = RELU | BIAS;
const GELU: c_int = 32;
const GELU_BIAS: c_int = GELU | BIAS;

impl Driver {
    fn layout(&self, handle: u64) -> Result<Layout, Code> {
        self.blas
            .layouts
            .get(&handle)
            .copied()
            .ok_or(Code::InvalidValue)
    }

    fn descriptor(&self, handle: u64) -> Result<Descriptor, Code> {
        self.blas
            .descriptors
            .get(&handle)
            .copied()
            .ok_or(Code::InvalidValue)
    }

    /// A product at the given addresses: a, b, c, d.
    fn lt_product(
        &self,
        descriptor: u64,
        at: [u64; 4],
        layouts: [u64; 4],
        factors: Option<[*const c_void; 2]>,
    ) -> Result<Product, Code> {
        let descriptor = self.descriptor(descriptor)?;
        let sum = sum_type(descriptor.compute)?;
        let scale = Element::of(descriptor.scale)?;
        let mut batch = 1;
        let mut matrices = Vec::new();
        for ((name, at), layout) in ["a", "b", "c", "d"].into_iter().zip(at).zip(layouts) {
            let layout = self.layout(layout)?;
            batch = layout.batch.max(0) as usize;
            let (rows, cols) = (layout.rows as usize, layout.cols as usize);
            let element = Element::of(layout.element)?;
            matrices.push(Matrix {
                name,
                at,
                element,
                rows,
                cols,
                ld: layout.ld,
                stride: layout.stride,
            });
        }
        // Those that keep values for training are not there.
        let (activation, has_bias) = match descriptor.epilogue {
            NOTHING => (Activation::None, false),
            BIAS => (Activation::None, true),
            RELU => (Activation::Relu, false),
            RELU_BIAS => (Activation::Relu, true),
            GELU => (Activation::Gelu, false),
            GELU_BIAS => (Activation::Gelu, true),
            _ => return Err(Code::NotSupported),
        };
        let bias_element = if descriptor.bias_element < 0 {
            matrices[3].element
        } else {
            Element::of(descriptor.bias_element)?
        };
        let [alpha, beta] = match factors {
            Some(at) => [scale.factor(at[0])?, scale.factor(at[1])?],
            None => [1.0, 0.0],
        };
        Ok(Product {
            call: "cublasLtMatmul",
            transposed: descriptor.transposed.map(|op| op != 0),
            alpha,
            beta,
            a: matrices[0],
            b: matrices[1],
            c: matrices[2],
            d: matrices[3],
            sum,
            batch,
            bias: has_bias.then_some((descriptor.bias, descriptor.bias_stride, bias_element)),
            activation,
        })
    }

    fn set_descriptor(
        &mut self,
        handle: u64,
        attribute: c_int,
        value: *const c_void,
        bytes: usize,
    ) -> Answer {
        // The bias's address and the stride are the wide ones.
        let expected = if matches!(attribute, 8 | 10) { 8 } else { 4 };
        if bytes != expected {
            return Err(Code::InvalidValue);
        }
        let found = self
            .blas
            .descriptors
            .get_mut(&handle)
            .ok_or(Code::InvalidValue)?;
        match attribute {
            0 => found.compute = get(value.cast())?,
            1 => found.scale = get(value.cast())?,
            2 => {
                if get(value.cast::<c_int>())? != 0 {
                    return Err(Code::NotSupported);
                }
            }
            3 => found.transposed[0] = get(value.cast())?,
            4 => found.transposed[1] = get(value.cast())?,
            // The result is never transposed.
            5 => {
                if get(value.cast::<c_int>())? != 0 {
                    return Err(Code::NotSupported);
                }
            }
            7 => found.epilogue = get(value.cast())?,
            8 => found.bias = get(value.cast())?,
            10 => found.bias_stride = get(value.cast())?,
            26 => found.bias_element = get(value.cast())?,
            _ => return Err(Code::NotSupported),
        }
        Ok(())
    }

    fn set_preference(
        &mut self,
        handle: u64,
        attribute: c_int,
        value: *const c_void,
        bytes: usize,
    ) -> Answer {
        let found = self
            .blas
            .preferences
            .get_mut(&handle)
            .ok_or(Code::InvalidValue)?;
        if let matrix @ 0..4 = attribute - MIN_ALIGNMENT_A {
            if bytes != 4 {
                return Err(Code::InvalidValue);
            }
            found[matrix as usize] = get(value.cast())?;
        }
        Ok(())
    }

    fn set_layout(&mut self, handle: u64, attribute: c_int, value: *const c_void) -> Answer {
        let found = self
            .blas
            .layouts
            .get_mut(&handle)
            .ok_or(Code::InvalidValue)?;
        match attribute {
            0 => found.element = get(value.cast())?,
            // Column after column is the only order.
            1 => {
                if get(value.cast::<c_int>())? != 0 {
                    return Err(Code::NotSupported);
                }
            }
            2 => found.rows = get(value.cast())?,
            3 => found.cols = get(value.cast())?,
            4 => found.ld = get(value.cast())?,
            5 => found.batch = get(value.cast())?,
            6 => found.stride = get(value.cast())?,
            _ => return Err(Code::NotSupported),
        }
        Ok(())
    }
}

api! {
    /// Makes a handle.
    fn cublasLtCreate(handle: *mut u64) |driver| {
        let key = driver.handle();
        put(handle, key)
    }
    /// Ends a handle.
    fn cublasLtDestroy(_handle: u64) |_driver| { Ok(()) }
    /// Describes a product.
    fn cublasLtMatmulDescCreate(descriptor: *mut u64, compute: c_int, scale: c_int) |driver| {
        let key = driver.handle();
        let fresh = Descriptor { compute, scale, transposed: [0; 2], epilogue: 1, bias: 0, bias_stride: 0, bias_element: -1 };
        driver.blas.descriptors.insert(key, fresh);
        put(descriptor, key)
    }
    /// Ends a description.
    fn cublasLtMatmulDescDestroy(descriptor: u64) |driver| {
        driver.blas.descriptors.remove(&descriptor).map(|_| ()).ok_or(Code::InvalidValue)
    }
    /// Changes a description.
    fn cublasLtMatmulDescSetAttribute(descriptor: u64, attribute: c_int, value: *const c_void, bytes: usize) |driver| {
        driver.set_descriptor(descriptor, attribute, value, bytes)
    }
    /// Describes a matrix.
    fn cublasLtMatrixLayoutCreate(layout: *mut u64, element: c_int, rows: u64, cols: u64, ld: i64) |driver| {
        let key = driver.handle();
        driver.blas.layouts.insert(key, Layout { element, rows, cols, ld, batch: 1, stride: 0 });
        put(layout, key)
    }
    /// Ends a matrix's description.
    fn cublasLtMatrixLayoutDestroy(layout: u64) |driver| {
        driver.blas.layouts.remove(&layout).map(|_| ()).ok_or(Code::InvalidValue)
    }
    /// Changes a matrix's description.
    fn cublasLtMatrixLayoutSetAttribute(layout: u64, attribute: c_int, value: *const c_void, _bytes: usize) |driver| {
        driver.set_layout(layout, attribute, value)
    }
    /// Makes preferences.
    fn cublasLtMatmulPreferenceCreate(preference: *mut u64) |driver| {
        let key = driver.handle();
        driver.blas.preferences.insert(key, [ALIGNMENT; 4]);
        put(preference, key)
    }
    /// Ends preferences.
    fn cublasLtMatmulPreferenceDestroy(preference: u64) |driver| {
        driver.blas.preferences.remove(&preference).map(|_| ()).ok_or(Code::InvalidValue)
    }
    /// Changes preferences; those of alignment alone change anything.
    fn cublasLtMatmulPreferenceSetAttribute(preference: u64, attribute: c_int, value: *const c_void, bytes: usize) |driver| {
        driver.set_preference(preference, attribute, value, bytes)
    }
    /// The one algorithm, for a product that fits, of matrices that lie as the preference says.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: u64, descriptor: u64, a: u64, b: u64, c: u64, d: u64, preference: u64,
        asked: c_int, results: *mut Heuristic, count: *mut c_int,
    ) |driver| {
        if asked < 1 {
            return Err(Code::InvalidValue);
        }
        let product = driver.lt_product(descriptor, [0; 4], [a, b, c, d], None)?;
        product.check().map_err(|report| driver.report(&report))?;
        let [a, b, c, d] = match preference {
            0 => [ALIGNMENT; 4],
            key => *driver.blas.preferences.get(&key).ok_or(Code::InvalidValue)?,
        }.map(u64::from);
        let algo = [ALGORITHM, a, b, c, d, 0, 0, 0];
        put(results, Heuristic { algo, workspace: 0, state: 0, waves: 1.0, reserved: [0; 4] })?;
        put(count, 1)
    }
    /// A product.
    fn cublasLtMatmul(
        _handle: u64, descriptor: u64, alpha: *const c_void, a: u64, a_layout: u64, b: u64, b_layout: u64,
        beta: *const c_void, c: u64, c_layout: u64, d: u64, d_layout: u64,
        algo: *const u64, _workspace: u64, _workspace_bytes: usize, stream: u64,
    ) |driver| {
        let promised = match algo.is_null() {
            true => None,
            false => match get(algo.cast::<[u64; 5]>())? {
                [ALGORITHM, promised @ ..] => Some(promised),
                _ => return Err(Code::InvalidValue),
            },
        };
        let layouts = [a_layout, b_layout, c_layout, d_layout];
        let product = driver.lt_product(descriptor, [a, b, c, d], layouts, Some([alpha, beta]))?;
        let checked = promised.map_or(Ok(()), |promised| product.check_promised(promised));
        checked.and_then(|()| product.check_bias()).map_err(|report| driver.report(&report))?;
        driver.multiply(product, stream)
    }
}
