//! Tensors of a file to [`Array`]s.

use half::{bf16, f16};

use super::external::Beside;
use super::proto::TensorProto;
use super::{Array, Data, Elem, Error, Limits};

/// Reads a tensor; data that is kept in other files is `beside` the model.
///
/// # Errors
/// [`Error::Invalid`] for negative or too large dimensions, element types that are not read
/// (strings, complex numbers), a wrong number of elements, or data elsewhere than in the file and
/// beside it.
pub fn read(
    place: &str,
    t: &TensorProto,
    limits: &Limits,
    beside: &Beside,
) -> Result<Array, Error> {
    let place = format!("{place}: tensor {:?}", t.name);
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
    if t.data_location != 0 {
        let bytes = num.saturating_mul(elem.size());
        let data = beside.with(&place, t, bytes, limits, |data| raw(elem, data))?;
        return Ok(Array::new(dims, data));
    }
    let len = match t.raw_data.is_empty() {
        true => typed_len(elem, t),
        false => t.raw_data.len() / elem.size(),
    };
    if !t.raw_data.len().is_multiple_of(elem.size()) {
        let expected = format!("{elem} elements in raw data");
        let got = format!("{} bytes", t.raw_data.len());
        return Err(Error::invalid(&place, "data", expected, got));
    }
    if len != num {
        let expected = format!("{num} of {dims:?}");
        return Err(Error::invalid(&place, "number of elements", expected, len));
    }
    let data = match t.raw_data.is_empty() {
        true => typed(elem, t),
        false => raw(elem, &t.raw_data),
    };
    Ok(Array::new(dims, data))
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

/// Number of elements in the field that the format assigns to their type.
fn typed_len(elem: Elem, t: &TensorProto) -> usize {
    match elem {
        Elem::F32 => t.float_data.len(),
        Elem::F64 => t.double_data.len(),
        Elem::I64 => t.int64_data.len(),
        Elem::U32 | Elem::U64 => t.uint64_data.len(),
        _ => t.int32_data.len(),
    }
}

/// Elements from that field. What does not fit its type wraps around.
fn typed(elem: Elem, t: &TensorProto) -> Data {
    fn each<T: Copy, U>(all: &[T], to: impl Fn(T) -> U) -> Vec<U> {
        all.iter().map(|&x| to(x)).collect()
    }
    let (words, longs) = (&t.int32_data[..], &t.uint64_data[..]);
    match elem {
        Elem::F32 => Data::F32(t.float_data.clone()),
        Elem::F64 => Data::F64(t.double_data.clone()),
        Elem::I64 => Data::I64(t.int64_data.clone()),
        Elem::U32 => Data::U32(each(longs, |x| x as u32)),
        Elem::U64 => Data::U64(longs.to_vec()),
        Elem::F16 => Data::F16(each(words, |x| f16::from_bits(x as u16))),
        Elem::BF16 => Data::BF16(each(words, |x| bf16::from_bits(x as u16))),
        Elem::Bool => Data::Bool(each(words, |x| x != 0)),
        Elem::U8 => Data::U8(each(words, |x| x as u8)),
        Elem::I8 => Data::I8(each(words, |x| x as i8)),
        Elem::U16 => Data::U16(each(words, |x| x as u16)),
        Elem::I16 => Data::I16(each(words, |x| x as i16)),
        Elem::I32 => Data::I32(words.to_vec()),
    }
}

/// Little-endian elements.
fn raw(elem: Elem, bytes: &[u8]) -> Data {
    match elem {
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
    }
}

fn chunks<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (whole, _) = bytes.as_chunks::<N>();
    whole.iter().map(|&c| f(c)).collect()
}
