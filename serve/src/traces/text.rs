//! Members of a file of traces, in Triton's form.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use crate::dtype::DataType;
use crate::explained::{MOST_NAME, cut};

/// Elements of a tensor that are written.
const MOST_ELEMENTS: usize = 4096;
/// Bytes of a tensor's text that are written.
const MOST_BYTES: usize = 64 << 10;
/// Dimensions of a tensor that are written: nobody has looked at them yet.
const MOST_DIMS: usize = 64;

fn add(to: &mut String, member: &Json) {
    if !to.is_empty() {
        to.push_str(",\n");
    }
    // Writing to a string does not fail.
    let _ = write!(to, "{member}");
}

/// The beginning of a trace: of whom a request, which the client may have named, asks.
pub fn head(id: u64, model: &str, version: u64, request: &str) -> String {
    let mut head = json!({ "id": id, "model_name": model, "model_version": version });
    if !request.is_empty() {
        head["request_id"] = cut(request, MOST_NAME).into();
    }
    head.to_string()
}

/// Adds a time in nanoseconds.
pub fn time(to: &mut String, id: u64, name: &str, ns: u64) {
    add(
        to,
        &json!({ "id": id, "timestamps": [{ "name": name, "ns": ns }] }),
    );
}

/// Name, type, dimensions and little-endian elements of a tensor.
pub type Tensor<'a> = (&'a str, DataType, &'a [usize], &'a [u8]);

/// Adds a tensor, or its beginning if it is long. As in Triton there is no text of FP16 and BF16.
pub fn tensor(to: &mut String, id: u64, activity: &str, (name, ty, shape, data): Tensor<'_>) {
    let dims = shape.iter().take(MOST_DIMS);
    let dims: Vec<_> = dims.map(ToString::to_string).collect();
    let tensor = json!({
        "name": cut(name, MOST_NAME),
        "data": elements(ty, data),
        "shape": dims.join(","),
        "dtype": ty.name(),
    });
    add(
        to,
        &json!({ "id": id, "activity": activity, "tensor": tensor }),
    );
}

fn elements(ty: DataType, data: &[u8]) -> String {
    fn list<const N: usize, T: std::fmt::Display>(
        data: &[u8],
        of: impl Fn([u8; N]) -> T,
    ) -> String {
        let mut text = String::new();
        for &element in data.as_chunks::<N>().0.iter().take(MOST_ELEMENTS) {
            let before = text.len();
            if before > 0 {
                text.push(',');
            }
            // Writing to a string does not fail.
            let _ = write!(text, "{}", of(element));
            if text.len() > MOST_BYTES {
                text.truncate(before);
                break;
            }
        }
        text
    }
    match ty {
        DataType::Bool => list(data, |b: [u8; 1]| u8::from(b[0] != 0)),
        DataType::Uint8 => list(data, u8::from_le_bytes),
        DataType::Uint16 => list(data, u16::from_le_bytes),
        DataType::Uint32 => list(data, u32::from_le_bytes),
        DataType::Uint64 => list(data, u64::from_le_bytes),
        DataType::Int8 => list(data, i8::from_le_bytes),
        DataType::Int16 => list(data, i16::from_le_bytes),
        DataType::Int32 => list(data, i32::from_le_bytes),
        DataType::Int64 => list(data, i64::from_le_bytes),
        DataType::Fp32 => list(data, f32::from_le_bytes),
        DataType::Fp64 => list(data, f64::from_le_bytes),
        DataType::Fp16 | DataType::Bf16 => String::new(),
        DataType::Bytes => {
            let mut text = String::new();
            for part in parts(data).take(MOST_ELEMENTS) {
                if text.len() >= MOST_BYTES {
                    break;
                }
                text.push_str(if text.is_empty() { "\"" } else { ",\"" });
                // Three more: then a character that is cut in two is behind the end.
                let most = MOST_BYTES.saturating_sub(text.len()) + 3;
                let fits = part.get(..most).unwrap_or(part);
                text.push_str(&String::from_utf8_lossy(fits));
                text.push('"');
            }
            cut(&text, MOST_BYTES)
        }
    }
}

/// The elements of a `BYTES` tensor, as far as they are whole.
fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = data;
    std::iter::from_fn(move || {
        let (len, rest) = left.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (part, rest) = rest.split_at_checked(len)?;
        left = rest;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype;

    #[test]
    fn members_are_json_whatever_clients_write() {
        let mut text = head(7, "m\"\\", 2, "a\"\n");
        time(&mut text, 7, "REQUEST_START", 12);
        let bytes = dtype::join_bytes([&b"x\"y"[..], b"\xff"]);
        tensor(
            &mut text,
            7,
            "TENSOR_QUEUE_INPUT",
            ("t", DataType::Bytes, &[1, 2], &bytes),
        );
        let floats = [1.5_f32, f32::NAN].map(f32::to_le_bytes).concat();
        tensor(
            &mut text,
            7,
            "TENSOR_BACKEND_OUTPUT",
            ("y", DataType::Fp32, &[2], &floats),
        );
        let all: Json = serde_json::from_str(&format!("[{text}]")).unwrap();
        assert_eq!(all[0]["model_name"], "m\"\\");
        assert_eq!(all[0]["request_id"], "a\"\n");
        assert_eq!(
            all[1],
            json!({"id": 7, "timestamps": [{"name": "REQUEST_START", "ns": 12}]})
        );
        assert_eq!(all[2]["tensor"]["data"], "\"x\"y\",\"\u{fffd}\"");
        let output = json!({"name": "y", "data": "1.5,NaN", "shape": "2", "dtype": "FP32"});
        assert_eq!(all[3]["tensor"], output);
    }

    #[test]
    fn of_long_tensors_the_beginning_is_written() {
        let ones = vec![1; MOST_ELEMENTS + 1];
        assert_eq!(
            elements(DataType::Uint8, &ones).len(),
            2 * MOST_ELEMENTS - 1
        );
        let long = dtype::join_bytes([&vec![b'x'; MOST_BYTES + 1][..]]);
        assert_eq!(elements(DataType::Bytes, &long).len(), MOST_BYTES);
        // Numbers are not cut in two, nor are characters, and nothing comes behind a cut.
        let least = i64::MIN.to_string();
        let text = elements(
            DataType::Int64,
            &i64::MIN.to_le_bytes().repeat(MOST_ELEMENTS),
        );
        assert_eq!(
            text.len(),
            MOST_BYTES / (least.len() + 1) * (least.len() + 1) - 1
        );
        assert!(text.split(',').all(|element| element == least));
        let wide = "\u{1f600}".repeat(MOST_BYTES);
        let bytes = dtype::join_bytes([wide.as_bytes(), b"more"]);
        let text = elements(DataType::Bytes, &bytes);
        assert_eq!(text, format!("\"{}", &wide[..MOST_BYTES - 4]));
        let torn = [&dtype::join_bytes([&b"x"[..]])[..], &[9, 0, 0, 0, 1]].concat();
        assert_eq!(elements(DataType::Bytes, &torn), "\"x\"");
    }
}
