//! Element types of the protocol, and tensors in and out of the engine's own.
//!
//! The engine holds floats as f32 and whole numbers as i32, so a tensor whose type at the edge is
//! another one is converted here, once in and once out. Numbers that do not fit are refused on the
//! way in.

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
    let narrow = |chunk: &[u8; N]| {
        let v = f(*chunk);
        i32::try_from(v).map_err(|_| format!("expected whole numbers of 32 bits, got {v}"))
    };
    chunks.iter().map(narrow).collect()
}

/// The engine's tensor `[dims...]` of type `held` from the bytes of one of `data_type`.
///
/// # Errors
/// What was expected and what came: a number of bytes that is not that of `dims`, a type that does
/// not fit, a whole number beyond 32 bits.
pub fn to_tensor(
    data_type: DataType,
    held: DType,
    dims: &[usize],
    bytes: &[u8],
) -> Result<Tensor, String> {
    let count = elements(dims).ok_or("expected a countable number of elements, got more")?;
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
            dims: dims.to_vec(),
            data: Bytes::Owned(bytes.into()),
        });
    }
    if held.is_float() {
        let values: Vec<f32> = match data_type {
            DataType::Fp16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
            DataType::Bf16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            DataType::Fp64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
            _ => each(bytes, f32::from_le_bytes),
        };
        return Ok(Tensor::from_f32(dims, &values));
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
    Ok(Tensor::from_i32(dims, &values))
}

/// The bytes of the engine's tensor as one of `data_type`, which [`DataType::fits`] its own.
pub fn to_bytes(tensor: &Tensor, data_type: DataType) -> Vec<u8> {
    fn put<T, const N: usize>(values: &[T], f: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(f).collect()
    }
    if DataType::of_program(tensor.dtype) == data_type {
        return tensor.data.as_slice().to_vec();
    }
    if tensor.dtype.is_float() {
        let values = tensor.to_f32();
        return match data_type {
            DataType::Fp16 => put(&values, |&v| f16::from_f32(v).to_le_bytes()),
            DataType::Bf16 => put(&values, |&v| bf16::from_f32(v).to_le_bytes()),
            DataType::Fp64 => put(&values, |&v| f64::from(v).to_le_bytes()),
            _ => put(&values, |&v| v.to_le_bytes()),
        };
    }
    let values = tensor.to_i32();
    match data_type {
        DataType::Bool => put(&values, |&v| [u8::from(v != 0)]),
        DataType::Uint8 | DataType::Int8 => put(&values, |&v| (v as u8).to_le_bytes()),
        DataType::Uint16 | DataType::Int16 => put(&values, |&v| (v as u16).to_le_bytes()),
        DataType::Uint64 | DataType::Int64 => put(&values, |&v| i64::from(v).to_le_bytes()),
        _ => put(&values, |&v| v.to_le_bytes()),
    }
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
                let tensor = to_tensor(t, held, &[2], &bytes).unwrap();
                assert_eq!(to_bytes(&tensor, t), bytes, "{t} in {held}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let long = i64::MAX.to_le_bytes();
        let told = to_tensor(DataType::Int64, DType::I32, &[1], &long).unwrap_err();
        assert_eq!(
            told,
            format!("expected whole numbers of 32 bits, got {}", i64::MAX)
        );
        let told = to_tensor(DataType::Fp32, DType::F32, &[3], &[0; 8]).unwrap_err();
        assert_eq!(told, "expected 12 bytes, got 8 bytes");
        let told = to_tensor(DataType::Fp32, DType::F32, &[usize::MAX, 8], &[]).unwrap_err();
        assert!(told.contains("countable"), "{told}");
        assert!(to_tensor(DataType::Bytes, DType::F32, &[1], &[0; 4]).is_err());
    }

    #[test]
    fn strings_carry_their_length() {
        let bytes = join_bytes([&b"ab"[..], b"", b"c"]);
        assert_eq!(split_bytes(&bytes).unwrap(), [&b"ab"[..], b"", b"c"]);
        assert!(split_bytes(&[5, 0, 0, 0, 1]).is_err());
        assert!(split_bytes(&[5, 0]).is_err());
    }
}
