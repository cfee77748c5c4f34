//! Tensors of a file to [`Array`]s.

use half::{bf16, f16};

use super::proto::TensorProto;
use super::{Array, Data, Elem, Error, Limits};

/// Reads a tensor.
///
/// # Errors
/// [`Error::Invalid`] for negative or too large dimensions, element types that are not read
/// (strings, complex numbers), data kept in other files, or a wrong number of elements.
pub fn read(place: &str, t: &TensorProto, limits: &Limits) -> Result<Array, Error> {
    let place = format!("{place}: tensor {:?}", t.name);
    if t.data_location != 0 {
        let expected = "data in the file itself";
        return Err(Error::invalid(
            &place,
            "data location",
            expected,
            "an external file",
        ));
    }
    let elem = Elem::from_code(t.data_type.into()).ok_or_else(|| {
        Error::invalid(
            &place,
            "element type",
            "a number or boolean",
            type_name(t.data_type),
        )
    })?;
    let dims = t
        .dims
        .iter()
        .map(|&n| usize::try_from(n))
        .collect::<Result<Vec<_>, _>>();
    let Ok(dims) = dims else {
        let got = format!("{:?}", t.dims);
        return Err(Error::invalid(&place, "dimensions", "none below zero", got));
    };
    let num = limits.num_stored(&place, &dims)?;
    let data = if t.raw_data.is_empty() {
        typed(elem, t)
    } else {
        raw(elem, &t.raw_data)
    };
    match data {
        Some(data) if data.len() == num => Ok(Array::new(dims, data)),
        Some(data) => {
            let expected = format!("{num} of {dims:?}");
            Err(Error::invalid(
                &place,
                "number of elements",
                expected,
                data.len(),
            ))
        }
        None => {
            let expected = format!("{elem} elements in raw data");
            Err(Error::invalid(
                &place,
                "data",
                expected,
                format!("{} bytes", t.raw_data.len()),
            ))
        }
    }
}

/// What the format calls an element type that is not read.
pub(super) fn type_name(code: i32) -> String {
    match code {
        0 => "undefined".to_owned(),
        8 => "string".to_owned(),
        14 | 15 => "complex".to_owned(),
        17..=20 => "f8".to_owned(),
        21 | 22 => "4-bit integer".to_owned(),
        other => format!("type number {other}"),
    }
}

/// Elements from the field that the format assigns to their type.
fn typed(elem: Elem, t: &TensorProto) -> Option<Data> {
    let ints = || t.int32_data.iter().map(|&x| i128::from(x)).collect();
    let longs = || t.uint64_data.iter().map(|&x| i128::from(x)).collect();
    Some(match elem {
        Elem::F32 => Data::F32(t.float_data.clone()),
        Elem::F64 => Data::F64(t.double_data.clone()),
        Elem::I64 => Data::I64(t.int64_data.clone()),
        Elem::U32 | Elem::U64 => Data::from_i128(elem, longs()),
        Elem::F16 => {
            let bits = t.int32_data.iter().map(|&x| f16::from_bits(x as u16));
            Data::F16(bits.collect())
        }
        Elem::BF16 => {
            let bits = t.int32_data.iter().map(|&x| bf16::from_bits(x as u16));
            Data::BF16(bits.collect())
        }
        _ => Data::from_i128(elem, ints()),
    })
}

/// Little-endian elements; `None` if a part of one is left over.
fn raw(elem: Elem, bytes: &[u8]) -> Option<Data> {
    if !bytes.len().is_multiple_of(elem.size()) {
        return None;
    }
    Some(match elem {
        Elem::Bool => Data::Bool(bytes.iter().map(|&b| b != 0).collect()),
        Elem::U8 => Data::U8(bytes.to_vec()),
        Elem::I8 => Data::I8(bytes.iter().map(|&b| b as i8).collect()),
        Elem::U16 => Data::U16(chunks(bytes, u16::from_le_bytes)),
        Elem::I16 => Data::I16(chunks(bytes, i16::from_le_bytes)),
        Elem::U32 => Data::U32(chunks(bytes, u32::from_le_bytes)),
        Elem::I32 => Data::I32(chunks(bytes, i32::from_le_bytes)),
        Elem::U64 => Data::U64(chunks(bytes, u64::from_le_bytes)),
        Elem::I64 => Data::I64(chunks(bytes, i64::from_le_bytes)),
        Elem::F16 => Data::F16(chunks(bytes, f16::from_le_bytes)),
        Elem::BF16 => Data::BF16(chunks(bytes, bf16::from_le_bytes)),
        Elem::F32 => Data::F32(chunks(bytes, f32::from_le_bytes)),
        Elem::F64 => Data::F64(chunks(bytes, f64::from_le_bytes)),
    })
}

fn chunks<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (whole, _) = bytes.as_chunks::<N>();
    whole.iter().map(|&c| f(c)).collect()
}
