//! Element types of the protocol, and tensors in and out of the engine's own.
//!
//! The engine holds floats as f32 and whole numbers as i32, so a tensor whose type at the edge is
//! another one is converted here, once in and once out. Numbers that do not fit are refused with their
//! places, on the way in and on the way out.

use half::{bf16, f16};
use lazybatch_graph::onnx::Elem;
use lazybatch_graph::{Bytes, DType, Tensor};

use crate::proto;

macro_rules! data_types {
    ($($name:ident, $text:literal, $config:ident, $size:expr, $about:literal;)*) => {
        /// Element type of a tensor of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DataType {
            $(#[doc = $about] $name,)*
        }

        impl DataType {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in requests and answers.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The name in configurations.
            pub const fn config(self) -> proto::DataType {
                match self { $(Self::$name => proto::DataType::$config,)* }
            }

            /// Bytes of an element; `None` where elements differ.
            pub const fn size(self) -> Option<usize> {
                match self { $(Self::$name => $size,)* }
            }
        }
    };
}

data_types! {
    Bool, "BOOL", TypeBool, Some(1), "One byte, 0 or 1.";
    Uint8, "UINT8", TypeUint8, Some(1), "Whole number.";
    Uint16, "UINT16", TypeUint16, Some(2), "Whole number.";
    Uint32, "UINT32", TypeUint32, Some(4), "Whole number.";
    Uint64, "UINT64", TypeUint64, Some(8), "Whole number.";
    Int8, "INT8", TypeInt8, Some(1), "Whole number.";
    Int16, "INT16", TypeInt16, Some(2), "Whole number.";
    Int32, "INT32", TypeInt32, Some(4), "Whole number.";
    Int64, "INT64", TypeInt64, Some(8), "Whole number.";
    Fp16, "FP16", TypeFp16, Some(2), "IEEE 754 binary16; as bytes only.";
    Fp32, "FP32", TypeFp32, Some(4), "IEEE 754 binary32.";
    Fp64, "FP64", TypeFp64, Some(8), "IEEE 754 binary64.";
    Bytes, "BYTES", TypeString, None, "Four bytes of length, little-endian, then as many bytes.";
    Bf16, "BF16", TypeBf16, Some(2), "bfloat16; as bytes only.";
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl DataType {
    /// The type called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name() == name)
    }

    /// The type that a configuration means; `None` for `TYPE_INVALID`.
    pub fn of_config(code: i32) -> Option<Self> {
        let of = |t: &Self| t.config() as i32 == code;
        Self::ALL.iter().copied().find(of)
    }

    /// The type of a tensor of an ONNX file.
    pub fn of_onnx(elem: Elem) -> Self {
        match elem {
            Elem::Bool => Self::Bool,
            Elem::U8 => Self::Uint8,
            Elem::U16 => Self::Uint16,
            Elem::U32 => Self::Uint32,
            Elem::U64 => Self::Uint64,
            Elem::I8 => Self::Int8,
            Elem::I16 => Self::Int16,
            Elem::I32 => Self::Int32,
            Elem::I64 => Self::Int64,
            Elem::F16 => Self::Fp16,
            Elem::BF16 => Self::Bf16,
            Elem::F32 => Self::Fp32,
            Elem::F64 => Self::Fp64,
        }
    }

    /// The type that a program's tensor has where nobody says otherwise.
    pub fn of_program(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::Fp32,
            DType::F16 => Self::Fp16,
            DType::BF16 => Self::Bf16,
            DType::I8 => Self::Int8,
            DType::I32 => Self::Int32,
            DType::I64 => Self::Int64,
        }
    }

    /// Whether tensors of this type can go in and out of a program's tensors of type `held`.
    pub fn fits(self, held: DType) -> bool {
        match self {
            Self::Bytes => false,
            Self::Fp16 | Self::Fp32 | Self::Fp64 | Self::Bf16 => held.is_float(),
            _ => !held.is_float(),
        }
    }

    /// Whether elements can be written as numbers of JSON or in the typed fields of gRPC.
    pub fn has_numbers(self) -> bool {
        !matches!(self, Self::Fp16 | Self::Bf16)
    }
}

fn each<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|c| f(*c)).collect()
}

/// Whole numbers of 32 bits from the bytes of others.
fn whole<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> i128) -> Result<Vec<i32>, String> {
    let (chunks, _) = bytes.as_chunks::<N>();
    let narrow = |(at, chunk): (usize, &[u8; N])| {
        let v = f(*chunk);
        let wide = || format!("element {at}: expected whole numbers of 32 bits, got {v}");
        i32::try_from(v).map_err(|_| wide())
    };
    chunks.iter().enumerate().map(narrow).collect()
}

/// Looks for a number that was finite and is not as `to`, a type of fewer bits.
fn check_finite<T: Copy + Into<f64>>(
    values: &[T],
    to: DataType,
    is_finite: impl Fn(T) -> bool,
) -> Result<(), String> {
    let lost = |&v: &T| v.into().is_finite() && !is_finite(v);
    match values.iter().position(lost) {
        None => Ok(()),
        Some(at) => {
            let got: f64 = values[at].into();
            Err(format!(
                "element {at}: expected a number that {to} holds, got {got:e}"
            ))
        }
    }
}

/// The engine's tensor `[dims...]` of type `held` from the bytes of one of `data_type`, which it shares if
/// it holds them as they come.
///
/// # Errors
/// What was expected and what came: a number of bytes that is not that of `dims`, a type that does
/// not fit, a whole number beyond 32 bits.
pub fn to_tensor(
    data_type: DataType,
    held: DType,
    dims: impl Into<Vec<usize>>,
    bytes: &bytes::Bytes,
) -> Result<Tensor, String> {
    let dims = dims.into();
    let count = elements(&dims).ok_or("expected a countable number of elements, got more")?;
    let size = data_type.size().filter(|_| data_type.fits(held));
    let Some(size) = size else {
        return Err(format!(
            "expected a type that goes into {held}, got {data_type}"
        ));
    };
    let expected = count.checked_mul(size);
    if expected != Some(bytes.len()) {
        let expected = expected.map_or("fewer".into(), |n| n.to_string());
        return Err(format!(
            "expected {expected} bytes, got {} bytes",
            bytes.len()
        ));
    }
    // What the engine holds as it comes.
    let same = match data_type {
        DataType::Fp32 => Some(DType::F32),
        DataType::Int32 => Some(DType::I32),
        _ => None,
    };
    if let Some(dtype) = same.filter(|_| cfg!(target_endian = "little")) {
        return Ok(Tensor {
            dtype,
            dims,
            data: Bytes::Shared(bytes.clone()),
        });
    }
    if held.is_float() {
        let values: Vec<f32> = match data_type {
            DataType::Fp16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
            DataType::Bf16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            DataType::Fp64 => {
                let values = each(bytes, f64::from_le_bytes);
                check_finite(&values, DataType::Fp32, |v| (v as f32).is_finite())?;
                values.into_iter().map(|v| v as f32).collect()
            }
            _ => each(bytes, f32::from_le_bytes),
        };
        return Ok(Tensor::from_f32(&dims, &values));
    }
    let values = match data_type {
        DataType::Bool => whole(bytes, |b: [u8; 1]| i128::from(b[0] != 0)),
        DataType::Uint8 => whole(bytes, |b| i128::from(u8::from_le_bytes(b))),
        DataType::Uint16 => whole(bytes, |b| i128::from(u16::from_le_bytes(b))),
        DataType::Uint32 => whole(bytes, |b| i128::from(u32::from_le_bytes(b))),
        DataType::Uint64 => whole(bytes, |b| i128::from(u64::from_le_bytes(b))),
        DataType::Int8 => whole(bytes, |b| i128::from(i8::from_le_bytes(b))),
        DataType::Int16 => whole(bytes, |b| i128::from(i16::from_le_bytes(b))),
        DataType::Int64 => whole(bytes, |b| i128::from(i64::from_le_bytes(b))),
        _ => Ok(each(bytes, i32::from_le_bytes)),
    }?;
    Ok(Tensor::from_i32(&dims, &values))
}

/// The bytes of the engine's tensor as one of `data_type`, which [`DataType::fits`] its own. Booleans
/// are whether a number is not 0; a float beyond the type's range is infinite, as IEEE 754 converts it.
///
/// # Errors
/// A whole number that the type does not hold, with its place.
pub fn to_bytes(tensor: &Tensor, data_type: DataType) -> Result<Bytes, String> {
    fn put<T, const N: usize>(values: &[T], f: impl Fn(&T) -> [u8; N]) -> Bytes {
        values.iter().flat_map(f).collect::<Vec<u8>>().into()
    }
    if DataType::of_program(tensor.dtype) == data_type {
        return Ok(tensor.data.clone());
    }
    if tensor.dtype.is_float() {
        let values = tensor.to_f32();
        return Ok(match data_type {
            DataType::Fp16 => put(&values, |&v| f16::from_f32(v).to_le_bytes()),
            DataType::Bf16 => put(&values, |&v| bf16::from_f32(v).to_le_bytes()),
            DataType::Fp64 => put(&values, |&v| f64::from(v).to_le_bytes()),
            _ => put(&values, |&v| v.to_le_bytes()),
        });
    }
    let values = tensor.to_i32();
    let range = match data_type {
        DataType::Uint8 => 0..=i32::from(u8::MAX),
        DataType::Uint16 => 0..=i32::from(u16::MAX),
        DataType::Uint32 | DataType::Uint64 => 0..=i32::MAX,
        DataType::Int8 => i32::from(i8::MIN)..=i32::from(i8::MAX),
        DataType::Int16 => i32::from(i16::MIN)..=i32::from(i16::MAX),
        _ => i32::MIN..=i32::MAX,
    };
    if let Some(at) = values.iter().position(|v| !range.contains(v)) {
        let got = values[at];
        return Err(format!(
            "element {at}: expected a number that {data_type} holds, got {got}"
        ));
    }
    Ok(match data_type {
        DataType::Bool => put(&values, |&v| [u8::from(v != 0)]),
        DataType::Uint8 | DataType::Int8 => put(&values, |&v| (v as u8).to_le_bytes()),
        DataType::Uint16 | DataType::Int16 => put(&values, |&v| (v as u16).to_le_bytes()),
        DataType::Uint64 | DataType::Int64 => put(&values, |&v| i64::from(v).to_le_bytes()),
        _ => put(&values, |&v| v.to_le_bytes()),
    })
}

/// Product of `dims`; `None` where it overflows.
pub fn elements(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1_usize, |n, &d| n.checked_mul(d))
}

/// The elements of a `BYTES` tensor.
///
/// # Errors
/// A length that goes beyond the end.
pub fn split_bytes(bytes: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut parts = Vec::new();
    each_of(bytes, |part| parts.push(part))?;
    Ok(parts)
}

/// Checks that these are the bytes of a `BYTES` tensor.
///
/// # Errors
/// A length that goes beyond the end.
pub fn check_bytes(bytes: &[u8]) -> Result<(), String> {
    each_of(bytes, |_| {})
}

fn each_of<'a>(mut bytes: &'a [u8], mut with: impl FnMut(&'a [u8])) -> Result<(), String> {
    let mut num = 0;
    while !bytes.is_empty() {
        let cut = bytes.split_first_chunk::<4>();
        let cut = cut.and_then(|(len, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
        });
        let Some((part, rest)) = cut else {
            return Err(format!(
                "expected elements of 4 bytes of length and as many bytes, got {} bytes left behind \
                 element {}",
                bytes.len(),
                num
            ));
        };
        with(part);
        num += 1;
        bytes = rest;
    }
    Ok(())
}

/// The bytes of a `BYTES` tensor of these elements.
pub fn join_bytes<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_go_both_ways() {
        for &t in DataType::ALL {
            assert_eq!(DataType::parse(t.name()), Some(t));
            assert_eq!(DataType::of_config(t.config() as i32), Some(t));
        }
        assert_eq!(DataType::of_config(0), None);
    }

    #[test]
    fn every_numeric_type_comes_back_as_it_went_in() {
        for &t in DataType::ALL {
            for held in [DType::F32, DType::I32] {
                if !t.fits(held) {
                    continue;
                }
                let size = t.size().unwrap();
                let two = match t {
                    DataType::Fp16 => f16::from_f32(2.0).to_le_bytes().to_vec(),
                    DataType::Bf16 => bf16::from_f32(2.0).to_le_bytes().to_vec(),
                    DataType::Fp32 => 2f32.to_le_bytes().to_vec(),
                    DataType::Fp64 => 2f64.to_le_bytes().to_vec(),
                    DataType::Bool => vec![1],
                    _ => 2_u64.to_le_bytes()[..size].to_vec(),
                };
                let bytes = [vec![0; size], two].concat();
                // Behind what shifts them, as JSON does.
                let shifted = bytes::Bytes::from([&[7][..], &bytes].concat()).slice(1..);
                let tensor = to_tensor(t, held, [2], &shifted).unwrap();
                let two = match held.is_float() {
                    true => f64::from(tensor.to_f32()[1]),
                    false => f64::from(tensor.to_i32()[1]),
                };
                let expected = if t == DataType::Bool { 1.0 } else { 2.0 };
                assert_eq!(two, expected, "{t} in {held}");
                assert_eq!(
                    to_bytes(&tensor, t).unwrap().to_vec(),
                    bytes,
                    "{t} in {held}"
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let long = i64::MAX.to_le_bytes();
        let to_tensor = |data_type, held, dims: &[usize], bytes: &[u8]| {
            to_tensor(data_type, held, dims, &bytes.to_vec().into())
        };
        let told = to_tensor(DataType::Int64, DType::I32, &[1], &long).unwrap_err();
        assert_eq!(
            told,
            format!(
                "element 0: expected whole numbers of 32 bits, got {}",
                i64::MAX
            )
        );
        let wide = [1.0, f64::INFINITY, 1e300].map(f64::to_le_bytes).concat();
        let told = to_tensor(DataType::Fp64, DType::F32, &[3], &wide).unwrap_err();
        assert_eq!(
            told,
            "element 2: expected a number that FP32 holds, got 1e300"
        );
        assert!(to_tensor(DataType::Fp64, DType::F32, &[2], &wide[..16]).is_ok());
        let told = to_tensor(DataType::Fp32, DType::F32, &[3], &[0; 8]).unwrap_err();
        assert_eq!(told, "expected 12 bytes, got 8 bytes");
        let told = to_tensor(DataType::Fp32, DType::F32, &[usize::MAX, 8], &[]).unwrap_err();
        assert!(told.contains("countable"), "{told}");
        assert!(to_tensor(DataType::Bytes, DType::F32, &[1], &[0; 4]).is_err());
    }

    #[test]
    fn what_a_type_does_not_hold_is_told_on_the_way_out() {
        for (data_type, fits, beyond) in [
            (DataType::Int8, [-128, 127], [-129, 300]),
            (DataType::Uint8, [0, 255], [-1, 256]),
            (DataType::Int16, [-32768, 32767], [-32769, 32768]),
            (DataType::Uint16, [0, 65535], [-1, 65536]),
            (DataType::Uint32, [0, i32::MAX], [-1, i32::MIN]),
            (DataType::Uint64, [0, i32::MAX], [-1, i32::MIN]),
        ] {
            assert!(to_bytes(&Tensor::from_i32(&[2], &fits), data_type).is_ok());
            for value in beyond {
                let told = to_bytes(&Tensor::from_i32(&[2], &[1, value]), data_type).unwrap_err();
                let expected =
                    format!("element 1: expected a number that {data_type} holds, got {value}");
                assert_eq!(told, expected);
            }
        }
        let all = [i32::MIN, i32::MAX];
        assert!(to_bytes(&Tensor::from_i32(&[2], &all), DataType::Int64).is_ok());
    }

    #[test]
    fn floats_beyond_a_types_range_are_infinite_on_the_way_out() {
        let halves = |values: &[f32], data_type| {
            let bytes = to_bytes(&Tensor::from_f32(&[2], values), data_type).unwrap();
            each(&bytes, u16::from_le_bytes)
        };
        let expected = [f16::MAX.to_bits(), f16::INFINITY.to_bits()];
        assert_eq!(halves(&[65504.0, 120_000.0], DataType::Fp16), expected);
        let expected = [0, f16::NEG_INFINITY.to_bits()];
        assert_eq!(halves(&[0.0, -1e6], DataType::Fp16), expected);
        let expected = [bf16::INFINITY.to_bits(), bf16::NEG_INFINITY.to_bits()];
        assert_eq!(halves(&[f32::MAX, f32::MIN], DataType::Bf16), expected);
    }

    #[test]
    fn strings_carry_their_length() {
        let bytes = join_bytes([&b"ab"[..], b"", b"c"]);
        assert_eq!(split_bytes(&bytes).unwrap(), [&b"ab"[..], b"", b"c"]);
        assert!(split_bytes(&[5, 0, 0, 0, 1]).is_err());
        assert!(split_bytes(&[5, 0]).is_err());
    }
}
