//! Floats in the text of programs: numbers, and what JSON has no numbers for as text.
//!
//! Used by serde, as `with`. What a number of JSON would not give back (it is read in double precision
//! first) is text too. Reading takes either for any float, so that texts of before are read.

use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::ser::Serializer;

/// Writes a number, or text for infinities and what is no number.
pub(crate) fn serialize<S: Serializer>(x: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    let text = if x.is_nan() {
        "nan".to_owned()
    } else {
        x.to_string()
    };
    let read = text.parse::<f64>().map(|wide| wide as f32);
    if x.is_finite() && read == Ok(*x) {
        serializer.serialize_f32(*x)
    } else {
        serializer.serialize_str(&text)
    }
}

/// Reads a number or such a text.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    deserializer.deserialize_any(Number)
}

struct Number;

impl Visitor<'_> for Number {
    type Value = f32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"inf\", \"-inf\" or \"nan\"")
    }

    fn visit_f64<E: Error>(self, x: f64) -> Result<f32, E> {
        Ok(x as f32)
    }

    fn visit_i64<E: Error>(self, x: i64) -> Result<f32, E> {
        Ok(x as f32)
    }

    fn visit_u64<E: Error>(self, x: u64) -> Result<f32, E> {
        Ok(x as f32)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f32, E> {
        let read = text.parse();
        read.map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A float of a list or an option.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(transparent)]
struct Float(#[serde(with = "crate::floats")] f32);

/// The same for what may be absent.
pub(crate) mod option {
    use serde::de::{Deserialize, Deserializer};
    use serde::ser::{Serialize, Serializer};

    use super::Float;

    /// Writes a float as [`super::serialize`] does.
    pub(crate) fn serialize<S: Serializer>(
        x: &Option<f32>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        x.map(Float).serialize(serializer)
    }

    /// Reads a float as [`super::deserialize`] does.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f32>, D::Error> {
        let found = Option::<Float>::deserialize(deserializer)?;
        Ok(found.map(|x| x.0))
    }
}

/// The same for lists.
pub(crate) mod list {
    use serde::de::{Deserialize, Deserializer};
    use serde::ser::Serializer;

    use super::Float;

    /// Writes each as [`super::serialize`] does.
    pub(crate) fn serialize<S: Serializer>(all: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(all.iter().map(|&x| Float(x)))
    }

    /// Reads each as [`super::deserialize`] does.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<f32>, D::Error> {
        let all = Vec::<Float>::deserialize(deserializer)?;
        Ok(all.into_iter().map(|x| x.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "super")] f32);

    fn again(x: f32) -> (String, f32) {
        let text = serde_json::to_string(&One(x)).unwrap();
        let read: One = serde_json::from_str(&text).unwrap();
        (text, read.0)
    }

    #[test]
    fn what_is_written_is_read_with_its_bits() {
        for (x, text) in [
            (f32::INFINITY, "\"inf\""),
            (f32::NEG_INFINITY, "\"-inf\""),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
        ] {
            let (written, read) = again(x);
            assert_eq!((written.as_str(), read.to_bits()), (text, x.to_bits()));
        }
        let (written, read) = again(f32::NAN);
        assert!(written == "\"nan\"" && read.is_nan(), "{written}: {read}");
        for bits in (0..f32::INFINITY.to_bits()).step_by(65_521) {
            let x = f32::from_bits(bits);
            assert_eq!(again(x).1.to_bits(), bits, "{x}");
        }
    }

    #[test]
    fn other_texts_are_no_floats() {
        assert_eq!(serde_json::from_str::<One>("3").unwrap().0, 3.0);
        let told = serde_json::from_str::<One>("\"many\"").err().unwrap();
        let wanted = "invalid value: string \"many\", expected a number, \"inf\"";
        assert!(told.to_string().starts_with(wanted), "{told}");
        assert!(serde_json::from_str::<One>("null").is_err());
    }
}
