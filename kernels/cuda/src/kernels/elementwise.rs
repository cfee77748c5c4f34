//! Element by element: binary ops with broadcast, activations, epilogues, conversions.

use lazybatch_graph::chain;
use lazybatch_graph::{Act, Bin, Op};

use super::{Epilogue, Kernels, Source, Stored, Takes, act_code, expect, launch, per_item, size};
use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "elementwise.cu",
    text: include_str!("../../cuda/elementwise.cu"),
    kernels: &[
        "binary",
        "convert_bf16",
        "convert_f16",
        "elementwise",
        "epilogue",
        "scale",
        "unary",
    ],
    takes: |_, node| {
        Takes::those(matches!(
            node.op,
            Op::Binary(_) | Op::Unary(_) | Op::Scale(_) | Op::Elementwise(_)
        ))
    },
};

/// A step of [`Kernels::elementwise`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Step {
    /// What it reads beside the chain's value; null for that value.
    with: DevicePtr,
    /// Which step: an activation's code, or one of the codes behind them.
    code: u32,
    /// Elements behind which `with` begins anew.
    period: u32,
    /// Factor of a scale.
    factor: f32,
    /// Fills the last eight bytes.
    filler: u32,
}

impl Step {
    /// As the kernel takes `step`, with where its operand is and how many elements that has.
    ///
    /// # Errors
    /// An operand out of range.
    pub fn new(step: chain::Step, operand: Option<(DevicePtr, usize)>) -> Result<Self, CudaError> {
        const SCALE: u32 = 16;
        const SUB_FROM: u32 = 20;
        let (code, factor) = match step {
            chain::Step::Unary(act) => (act_code(Some(act)), 0.0),
            chain::Step::Scale(factor) => (SCALE, factor),
            chain::Step::Binary(op, _) => (SCALE + 1 + bin_code(op), 0.0),
            chain::Step::SubFrom(_) => (SUB_FROM, 0.0),
        };
        let (with, period) = operand.unwrap_or((DevicePtr::NULL, 1));
        Ok(Self {
            with,
            code,
            period: size("elementwise", "elements of an operand", period)?,
            factor,
            filler: 0,
        })
    }
}

const fn bin_code(op: Bin) -> u32 {
    match op {
        Bin::Add => 0,
        Bin::Sub => 1,
        Bin::Mul => 2,
    }
}

impl Kernels {
    /// `num` of `steps` (a table of [`Step`] on the device) one behind another on each of `len`
    /// elements of `x`. `out` may be `x`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn elementwise(
        &self,
        stream: &Stream,
        x: DevicePtr,
        out: DevicePtr,
        len: usize,
        steps: DevicePtr,
        num: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let len = size("elementwise", "elements", len)?;
        let num = size("elementwise", "steps", num)?;
        launch!(
            self,
            stream,
            "elementwise",
            per_item(len),
            x,
            out,
            len,
            steps,
            num
        )
    }

    /// `out[i] = a[i] (op) b[i % period]`, `i < len`: `period` is `len` for operands of equal type,
    /// a row's elements for a weight that spans a row, the last dimension for a weight of that.
    /// `out` may be `a`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn binary(
        &self,
        stream: &Stream,
        op: Bin,
        a: DevicePtr,
        b: DevicePtr,
        out: DevicePtr,
        len: usize,
        period: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let len = size("binary", "elements", len)?;
        expect("binary", period > 0, "a period above 0", period)?;
        let period = size("binary", "elements of a row", period)?;
        let op = bin_code(op);
        launch!(
            self,
            stream,
            "binary",
            per_item(len),
            op,
            a,
            b,
            out,
            len,
            period
        )
    }

    /// `out[i] = act(x[i])`, `i < len`. `out` may be `x`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn unary(
        &self,
        stream: &Stream,
        act: Act,
        x: DevicePtr,
        out: DevicePtr,
        len: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let len = size("unary", "elements", len)?;
        launch!(
            self,
            stream,
            "unary",
            per_item(len),
            act_code(Some(act)),
            x,
            out,
            len
        )
    }

    /// `out[i] = x[i] * factor`, `i < len`. `out` may be `x`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn scale(
        &self,
        stream: &Stream,
        factor: f32,
        x: DevicePtr,
        out: DevicePtr,
        len: usize,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let len = size("scale", "elements", len)?;
        launch!(self, stream, "scale", per_item(len), factor, x, out, len)
    }

    /// What follows a product that another library made: `out[i] = act(x[i] + bias[i % features]) +
    /// residual[i]`, `i < len`. `out` may be `x`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn epilogue(
        &self,
        stream: &Stream,
        x: DevicePtr,
        out: DevicePtr,
        len: usize,
        features: usize,
        epilogue: &Epilogue,
    ) -> Result<(), CudaError> {
        if len == 0 {
            return Ok(());
        }
        let len = size("epilogue", "elements", len)?;
        expect("epilogue", features > 0, "features above 0", features)?;
        let features = size("epilogue", "features", features)?;
        let Epilogue {
            bias,
            act,
            residual,
        } = *epilogue;
        let act = act_code(act);
        launch!(
            self,
            stream,
            "epilogue",
            per_item(len),
            x,
            out,
            len,
            features,
            bias,
            act,
            residual
        )
    }

    /// `out[i] = x[i]` rounded to nearest in another float type (ties to even), `i < len`.
    ///
    /// # Errors
    /// A type that is not f16 or bf16, sizes out of range, or what the driver answers.
    pub fn convert(
        &self,
        stream: &Stream,
        to: Stored,
        x: DevicePtr,
        out: DevicePtr,
        len: usize,
    ) -> Result<(), CudaError> {
        let kernel = match to {
            Stored::F16 => "convert_f16",
            Stored::Bf16 => "convert_bf16",
            other => return expect("convert", false, "f16 or bf16", format_args!("{other:?}")),
        };
        if len == 0 {
            return Ok(());
        }
        let len = size("convert", "elements", len)?;
        launch!(self, stream, kernel, per_item(len), x, out, len)
    }
}
