//! `d = alpha * op(a) * op(b) + beta * c`, with checks of every argument.

use std::ffi::c_void;

use half::{bf16, f16};

use crate::driver::{Code, get};
use crate::exec::{BadAddress, Memory};
use crate::num::{self, Round};
use crate::report::{Kind, Report};

/// A type of elements, by its `cudaDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F64,
    F16,
    Bf16,
    S8,
    S32,
}

impl Element {
    pub(super) fn of(number: i32) -> Result<Self, Code> {
        Ok(match number {
            0 => Self::F32,
            1 => Self::F64,
            2 => Self::F16,
            3 => Self::S8,
            10 => Self::S32,
            14 => Self::Bf16,
            _ => return Err(Code::NotSupported),
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::S8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::S32 => 4,
            Self::F64 => 8,
        }
    }

    fn read(self, bytes: &[u8]) -> f64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        match self {
            Self::F32 => f32::from_bits(bits as u32).into(),
            Self::F64 => f64::from_bits(bits),
            Self::F16 => f16::from_bits(bits as u16).into(),
            Self::Bf16 => bf16::from_bits(bits as u16).into(),
            Self::S8 => (bits as i8).into(),
            Self::S32 => (bits as i32).into(),
        }
    }

    fn write(self, value: f64, out: &mut Vec<u8>) {
        let bits = match self {
            Self::F32 => num::F32.round(value, 0.0, Round::Nearest),
            Self::F64 => value.to_bits(),
            Self::F16 => num::F16.round(value, 0.0, Round::Nearest),
            Self::Bf16 => num::BF16.round(value, 0.0, Round::Nearest),
            Self::S8 => u64::from(value as i8 as u8),
            Self::S32 => u64::from(value as i32 as u32),
        };
        out.extend_from_slice(&bits.to_le_bytes()[..self.bytes()]);
    }

    /// A factor that the caller points to.
    pub(super) fn factor(self, at: *const c_void) -> Result<f64, Code> {
        Ok(match self {
            Self::F64 => get(at.cast::<f64>())?,
            Self::F16 => f16::from_bits(get(at.cast::<u16>())?).into(),
            Self::S32 => get(at.cast::<i32>())?.into(),
            _ => get(at.cast::<f32>())?.into(),
        })
    }
}

/// What sums are taken in, by `cublasComputeType_t`: also the type of the factors.
pub(super) fn sum_type(compute: i32) -> Result<Element, Code> {
    Ok(match compute {
        64 | 65 => Element::F16,
        68 | 69 | 74 | 75 | 77 | 78 => Element::F32,
        70 | 71 => Element::F64,
        72 | 73 => Element::S32,
        _ => return Err(Code::NotSupported),
    })
}

/// A matrix, or one of each batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) name: &'static str,
    pub(super) at: u64,
    pub(super) element: Element,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Elements from a column to the next.
    pub(super) ld: i64,
    /// Elements from one of the batch to the next.
    pub(super) stride: i64,
}

/// What is done with a result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    None,
    Relu,
    /// With the hyperbolic tangent, as cuBLASLt's.
    Gelu,
}

/// A product.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub(super) call: &'static str,
    /// Whether `a` and `b` are transposed.
    pub(super) transposed: [bool; 2],
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) c: Matrix,
    pub(super) d: Matrix,
    pub(super) sum: Element,
    pub(super) batch: usize,
    /// One for each row of `d`: address, elements to that of the next of the batch, type.
    pub(super) bias: Option<(u64, i64, Element)>,
    pub(super) activation: Activation,
}

impl Product {
    /// Shapes that fit, leading dimensions that hold a column, types that go together.
    pub(super) fn check(&self) -> Result<(), Box<Report>> {
        let [(m, k), (k_b, n)] = [(&self.a, self.transposed[0]), (&self.b, self.transposed[1])]
            .map(|(x, is_transposed)| {
                if is_transposed {
                    (x.cols, x.rows)
                } else {
                    (x.rows, x.cols)
                }
            });
        if k != k_b
            || [&self.c, &self.d]
                .iter()
                .any(|x| (x.rows, x.cols) != (m, n))
        {
            let what = format!(
                "shapes: op(a) is {m} x {k}, op(b) {k_b} x {n}, c {} x {}, d {} x {}",
                self.c.rows, self.c.cols, self.d.rows, self.d.cols
            );
            return Err(self.argument(what));
        }
        for x in [&self.a, &self.b, &self.c, &self.d] {
            if x.ld < x.rows.max(1) as i64 {
                let what = format!(
                    "leading dimension of {}: expected at least its {} rows, got {}",
                    x.name, x.rows, x.ld
                );
                return Err(self.argument(what));
            }
            if !x.at.is_multiple_of(x.element.bytes() as u64) {
                let what = format!(
                    "{} at {:#x}: expected a multiple of {} bytes",
                    x.name,
                    x.at,
                    x.element.bytes()
                );
                return Err(self.argument(what));
            }
        }
        let (a, b, d) = (self.a.element, self.b.element, self.d.element);
        let goes = match self.sum {
            Element::F64 => [a, b, d] == [Element::F64; 3],
            Element::S32 => (a, b, d) == (Element::S8, Element::S8, Element::S32),
            Element::F16 => [a, b, d] == [Element::F16; 3],
            _ => {
                a == b
                    && matches!(a, Element::F32 | Element::F16 | Element::Bf16)
                    && (d == a || d == Element::F32)
            }
        };
        if let Some((_, _, bias)) = self.bias
            && (bias != d || !matches!(d, Element::F32 | Element::F16 | Element::Bf16))
        {
            let what = format!("types: a bias of {bias:?} does not go with a result of {d:?}");
            return Err(self.argument(what));
        }
        if !goes || self.c.element != d {
            let what = format!(
                "types: a {a:?}, b {b:?}, c {:?}, d {d:?}, sums {:?} do not go together",
                self.c.element, self.sum
            );
            return Err(self.argument(what));
        }
        Ok(())
    }

    /// A bias that is there, where the result is to have one.
    pub(super) fn check_bias(&self) -> Result<(), Box<Report>> {
        let Some((at, _, element)) = self.bias else {
            return Ok(());
        };
        let bytes = element.bytes() as u64;
        if at != 0 && at.is_multiple_of(bytes) {
            return Ok(());
        }
        Err(self.argument(format!(
            "bias at {at:#x}: expected {} elements at a multiple of {bytes} bytes",
            self.d.rows
        )))
    }

    /// Matrices that lie at these multiples of bytes, for which an algorithm was chosen.
    pub(super) fn check_promised(&self, multiples: [u64; 4]) -> Result<(), Box<Report>> {
        for (x, multiple) in [&self.a, &self.b, &self.c, &self.d]
            .into_iter()
            .zip(multiples)
        {
            if !x.at.is_multiple_of(multiple.max(1)) {
                let what = format!(
                    "{} at {:#x}: expected a multiple of {multiple} bytes, as was said when the algorithm was asked for",
                    x.name, x.at
                );
                return Err(self.argument(what));
            }
        }
        Ok(())
    }

    fn argument(&self, what: String) -> Box<Report> {
        Box::new(Report {
            kind: Kind::Argument,
            kernel: self.call.to_owned(),
            place: None,
            what,
        })
    }

    fn bad(&self, name: &str, (kind, what): BadAddress) -> Box<Report> {
        Box::new(Report {
            kind,
            kernel: self.call.to_owned(),
            place: None,
            what: format!("{name}: {what}"),
        })
    }

    /// All values of one of the batch, column after column.
    fn read(&self, memory: &mut Memory, x: &Matrix, batch: usize) -> Result<Vec<f64>, Box<Report>> {
        let mut out = Vec::with_capacity(x.rows * x.cols);
        for col in 0..x.cols {
            let bytes = memory.read_written(x.column(batch, col), x.rows * x.element.bytes());
            let bytes = bytes.map_err(|bad| self.bad(x.name, bad))?;
            out.extend(
                bytes
                    .chunks(x.element.bytes())
                    .map(|chunk| x.element.read(chunk)),
            );
        }
        Ok(out)
    }

    /// Computes all of the batch.
    pub(super) fn run(&self, memory: &mut Memory) -> Result<(), Box<Report>> {
        let (m, n) = (self.d.rows, self.d.cols);
        let k = if self.transposed[0] {
            self.a.rows
        } else {
            self.a.cols
        };
        for batch in 0..self.batch {
            let bias = match self.bias {
                None => None,
                Some((at, stride, element)) => {
                    let at = at.wrapping_add_signed(stride * batch as i64 * element.bytes() as i64);
                    let bytes = memory.read_written(at, m * element.bytes());
                    let bytes = bytes.map_err(|bad| self.bad("bias", bad))?;
                    let values = bytes
                        .chunks(element.bytes())
                        .map(|chunk| element.read(chunk));
                    Some(values.collect::<Vec<f64>>())
                }
            };
            let a = rows_along_k(
                &self.read(memory, &self.a, batch)?,
                m,
                k,
                self.transposed[0],
            );
            let b = rows_along_k(
                &self.read(memory, &self.b, batch)?,
                n,
                k,
                !self.transposed[1],
            );
            // With a factor of zero `c` is not read.
            let c = if self.beta == 0.0 {
                Vec::new()
            } else {
                self.read(memory, &self.c, batch)?
            };
            for col in 0..n {
                let mut bytes = Vec::with_capacity(m * self.d.element.bytes());
                for row in 0..m {
                    let sum = self.dot(&a[row * k..(row + 1) * k], &b[col * k..(col + 1) * k]);
                    let old = c.get(col * m + row).copied().unwrap_or(0.0);
                    let biased =
                        self.alpha * sum + self.beta * old + bias.as_ref().map_or(0.0, |b| b[row]);
                    self.d.element.write(self.activation.of(biased), &mut bytes);
                }
                memory
                    .write(self.d.column(batch, col), &bytes)
                    .map_err(|bad| self.bad(self.d.name, bad))?;
            }
        }
        Ok(())
    }

    fn dot(&self, a: &[f64], b: &[f64]) -> f64 {
        let pairs = a.iter().zip(b);
        if self.sum == Element::F64 || self.sum == Element::S32 {
            // Products of bytes are exact in double precision.
            return pairs.map(|(a, b)| a * b).sum();
        }
        pairs
            .fold(0f32, |sum, (a, b)| (*a as f32).mul_add(*b as f32, sum))
            .into()
    }
}

impl Matrix {
    fn column(&self, batch: usize, col: usize) -> u64 {
        let elements = self.stride * batch as i64 + self.ld * col as i64;
        self.at
            .wrapping_add_signed(elements * self.element.bytes() as i64)
    }
}

impl Activation {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::None => x,
            Self::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Self::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// Values with `k` as the fastest index: `rows` runs of `k`. Those of a transposed matrix lie so.
fn rows_along_k(values: &[f64], rows: usize, k: usize, lies_so: bool) -> Vec<f64> {
    if lies_so {
        return values.to_vec();
    }
    (0..rows * k)
        .map(|i| values[i % k * rows + i / k])
        .collect()
}
