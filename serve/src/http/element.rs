//! Elements of tensors in JSON, and their bytes.

use std::fmt;

use crate::dtype::DataType;
use crate::explained::{MOST_NAME, cut};

/// An element as it is written.
#[derive(Clone, Copy)]
pub enum Element<'e> {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(&'e str),
    /// A number that is none, as answers have it for those that are not finite.
    Null,
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Float(x) => write!(f, "{x}"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Text(text) => write!(f, "{:?}", cut(text, MOST_NAME)),
            Self::Null => f.write_str("null"),
        }
    }
}

/// Adds an element to the bytes of a tensor; false if it is none of that type.
pub fn write(bytes: &mut Vec<u8>, data_type: DataType, element: &Element<'_>) -> bool {
    match (data_type, *element) {
        (DataType::Bytes, Element::Text(text)) => {
            bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        (DataType::Bool, Element::Bool(b)) => bytes.push(u8::from(b)),
        (DataType::Fp32, Element::Float(x)) => bytes.extend((x as f32).to_le_bytes()),
        (DataType::Fp32, Element::Int(n)) => bytes.extend((n as f32).to_le_bytes()),
        (DataType::Fp64, Element::Float(x)) => bytes.extend(x.to_le_bytes()),
        (DataType::Fp64, Element::Int(n)) => bytes.extend((n as f64).to_le_bytes()),
        (DataType::Fp32, Element::Null) => bytes.extend(f32::NAN.to_le_bytes()),
        (DataType::Fp64, Element::Null) => bytes.extend(f64::NAN.to_le_bytes()),
        (DataType::Bool, Element::Int(n @ (0 | 1))) => bytes.push(n as u8),
        (DataType::Bool | DataType::Bytes, _) => return false,
        (_, Element::Int(n)) => {
            let size = data_type.size().unwrap_or(8);
            let bits = 8 * size as u32;
            let signed = data_type.name().starts_with('I');
            let (low, high) = if signed {
                (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1)
            } else {
                (0, (1_i128 << bits) - 1)
            };
            if n < low || n > high {
                return false;
            }
            bytes.extend(&n.to_le_bytes()[..size]);
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_a_number_that_is_none() {
        let mut bytes = Vec::new();
        assert!(write(&mut bytes, DataType::Fp32, &Element::Null));
        assert!(f32::from_le_bytes(bytes[..].try_into().unwrap()).is_nan());
        bytes.clear();
        assert!(write(&mut bytes, DataType::Fp64, &Element::Null));
        assert!(f64::from_le_bytes(bytes[..].try_into().unwrap()).is_nan());
        for data_type in [DataType::Int32, DataType::Bool, DataType::Bytes] {
            assert!(!write(&mut bytes, data_type, &Element::Null), "{data_type}");
        }
    }
}
