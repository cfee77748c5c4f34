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
        (DataType::Fp32 | DataType::Fp64, Element::Text(word)) => {
            let Some(value) = not_finite(word) else {
                return false;
            };
            match data_type {
                DataType::Fp32 => bytes.extend((value as f32).to_le_bytes()),
                _ => bytes.extend(value.to_le_bytes()),
            }
        }
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

/// Words for numbers that are not finite, the longer ones first, and as texts of JSON.
const WORDS: [(&str, &str); 5] = [
    ("-Infinity", "\"-Infinity\""),
    ("-Inf", "\"-Infinity\""),
    ("Infinity", "\"Infinity\""),
    ("Inf", "\"Infinity\""),
    ("NaN", "\"NaN\""),
];

fn not_finite(word: &str) -> Option<f64> {
    match word {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// A text of JSON whose numbers that are not finite are texts; `None` if it has no bare word for one,
/// as those have who write what Triton reads.
pub fn with_words(text: &[u8]) -> Option<Vec<u8>> {
    let mut quoted = Vec::new();
    // Up to where it was taken over.
    let mut taken = 0;
    let (mut at, mut is_text) = (0, false);
    while let Some(&byte) = text.get(at) {
        let found = |word: &&(&str, &str)| text[at..].starts_with(word.0.as_bytes());
        let word = match byte {
            b'-' | b'I' | b'N' if !is_text => WORDS.iter().find(found),
            _ => None,
        };
        if let Some((word, instead)) = word {
            quoted.extend_from_slice(&text[taken..at]);
            quoted.extend_from_slice(instead.as_bytes());
            at += word.len();
            taken = at;
            continue;
        }
        match byte {
            b'"' => is_text = !is_text,
            b'\\' if is_text => at += 1,
            _ => {}
        }
        at += 1;
    }
    (taken > 0).then(|| {
        quoted.extend_from_slice(&text[taken..]);
        quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_become_texts_and_texts_stay() {
        let told = |text: &str| {
            let quoted = with_words(text.as_bytes());
            quoted.map(|quoted| String::from_utf8(quoted).unwrap())
        };
        assert_eq!(
            told(r#"{"a NaN":[NaN,-Infinity, Inf,-Inf,-1,"Inf\"NaN"]}"#).unwrap(),
            r#"{"a NaN":["NaN","-Infinity", "Infinity","-Infinity",-1,"Inf\"NaN"]}"#
        );
        for none in ["", "[1]", r#"["NaN\\"]"#, r#"["\"#, "[nan]"] {
            assert_eq!(told(none), None, "{none}");
        }
        let mut bytes = Vec::new();
        assert!(write(
            &mut bytes,
            DataType::Fp32,
            &Element::Text("-Infinity")
        ));
        assert_eq!(bytes, f32::NEG_INFINITY.to_le_bytes());
        assert!(!write(&mut bytes, DataType::Fp64, &Element::Text("1")));
    }

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
