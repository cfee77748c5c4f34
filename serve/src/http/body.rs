//! Bodies of inference requests and answers: JSON, with the bytes of tensors behind it.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use serde::ser::{Error as _, Serialize, Serializer};

use super::forms;
use super::json::{self, Small};
use super::plain::num_plain;
use super::whole::kept;
use crate::config::TEXT_INPUT;
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::explained;
use crate::fields;
use crate::infer::{self, Answer, Input, Output, Param, Params, Request, Wanted};
use crate::memory::Tab;
use crate::model::Served;
use crate::shm::Regions;

/// Header that says how many bytes of a body are JSON.
pub const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Reads a request for `served`; what it needs beside the body goes on `tab`.
///
/// # Errors
/// What is wrong with the body, or no memory for it.
pub fn read(
    served: &Served,
    regions: &Regions,
    tab: &Tab,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<(Request, Option<Arc<Answered>>)> {
    let json_length = json_length(headers, &body)?;
    if json_length == Some(0) {
        let request = raw(served, body)?;
        infer::hold(tab, &request.inputs)?;
        return Ok((request, None));
    }
    let mut text = body.clone();
    let mut tail = text.split_off(json_length.unwrap_or(body.len()));
    if let Some((request, answered)) = forms::recall(served.generation, &text, &tail) {
        infer::hold(tab, &request.inputs)?;
        return Ok((request, Some(answered)));
    }
    let parsed = json::body(&text, tab)?;
    let may_keep = forms::may_keep(&parsed);
    let params = parsed.params;
    let all_binary = params.flag("binary_data_output")?;
    let mut inputs = Vec::with_capacity(parsed.inputs.len());
    for input in parsed.inputs {
        inputs.push(read_input(regions, tab, input, &mut tail)?);
    }
    infer::hold(tab, &inputs)?;
    if !tail.is_empty() {
        return Err(Error::Invalid(format!(
            "unexpected additional input data for model '{}': {} bytes that no input takes",
            served.name,
            tail.len()
        )));
    }
    let outputs = parsed.outputs.into_iter();
    let wanted = outputs.map(|output| wanted(regions, output.name, &output.params));
    let mut wanted = wanted.collect::<Result<Vec<_>>>()?;
    for w in &mut wanted {
        w.binary.get_or_insert(all_binary);
    }
    check_json(served, &wanted, all_binary)?;
    let request = Request {
        id: parsed.id,
        params,
        inputs,
        wanted,
        ..Request::default()
    };
    if may_keep {
        forms::keep(served.generation, &text, &request);
    }
    Ok((request, None))
}

/// Looks whether JSON has a form for the outputs that are to be in it, before they are computed. All are
/// wanted if none is, as bytes if `all_binary`.
fn check_json(served: &Served, wanted: &[Wanted], all_binary: bool) -> Result<()> {
    for output in &served.config.output {
        let own = wanted.iter().find(|w| w.name == output.name);
        let is_json = match own {
            None => wanted.is_empty() && !all_binary,
            // Classes are texts.
            Some(w) => w.binary == Some(false) && w.region.is_none() && w.classes == 0,
        };
        let data_type = DataType::of_config(output.data_type);
        if let Some(data_type) = data_type.filter(|_| is_json) {
            has_json(&output.name, data_type)?;
        }
    }
    Ok(())
}

/// Looks whether JSON has a form for the elements of an output.
fn has_json(name: &str, data_type: DataType) -> Result<()> {
    if !data_type.has_numbers() {
        let what = format!("output '{name}' of data-type {data_type}");
        let expected = "binary_data, for JSON has no form for it";
        return Err(Error::expected(what, expected, "JSON"));
    }
    Ok(())
}

/// How many bytes of a body are JSON, if its head says so.
fn json_length(headers: &HeaderMap, body: &Bytes) -> Result<Option<usize>> {
    let [length] = fields::first(headers, [JSON_LENGTH]);
    let length = length.map(|value| {
        let number = value
            .to_str()
            .ok()
            .and_then(|t| t.trim().parse::<usize>().ok());
        number.filter(|&n| n <= body.len()).ok_or_else(|| {
            let expected = format!("a number up to the body's {} bytes", body.len());
            Error::expected(
                JSON_LENGTH,
                expected,
                String::from_utf8_lossy(value.as_bytes()),
            )
        })
    });
    length.transpose()
}

/// A call with that body was refused before it was read as a request, or as it was: if it is of a
/// sequence, as far as its parameters can be read, its engine is told.
pub fn refused(served: &Served, headers: &HeaderMap, whole: (&Bytes, &Tab), error: &Error) {
    let (body, tab) = whole;
    if !served.is_stateful() {
        return;
    }
    let Ok(length) = json_length(headers, body) else {
        return;
    };
    // Lists are passed over.
    let all = json::object(&body[..length.unwrap_or(body.len())], tab);
    let params = all.ok().and_then(|mut all| all.shift_remove("parameters"));
    if let Some(Small::Object(params)) = params {
        infer::refused(served, &params, error);
    }
}

/// What is asked about an output, by its parameters.
///
/// # Errors
/// A parameter of another kind, or a region that is not there.
pub fn wanted(regions: &Regions, name: String, own: &Params) -> Result<Wanted> {
    let binary = own.get("binary_data").is_some();
    let classes = own.number("classification")?.unwrap_or(0);
    Ok(Wanted {
        binary: if binary {
            Some(own.flag("binary_data")?)
        } else {
            None
        },
        classes: usize::try_from(classes).unwrap_or(usize::MAX),
        region: region(regions, own)?,
        name,
    })
}

/// The part of a region that parameters name.
///
/// # Errors
/// A region that is not there, or a part that goes beyond it.
pub fn region(regions: &Regions, own: &Params) -> Result<Option<crate::shm::Region>> {
    let Some(name) = own.text("shared_memory_region")? else {
        return Ok(None);
    };
    let offset = own.number("shared_memory_offset")?.unwrap_or(0);
    let size = own.number("shared_memory_byte_size")?.ok_or_else(|| {
        let what = format!("shared memory region '{name}'");
        Error::expected(what, "parameter 'shared_memory_byte_size'", "none")
    })?;
    regions.part(name, offset, size).map(Some)
}

/// A request whose body is the only input's bytes.
fn raw(served: &Served, body: Bytes) -> Result<Request> {
    let what = format!("raw request to model '{}'", served.name);
    let mut inputs = served.config.input.iter().filter(|i| !i.optional);
    let (Some(input), None) = (inputs.next(), inputs.next()) else {
        let got = served.config.input.len();
        return Err(Error::expected(
            what,
            "a model with one input",
            format!("{got}"),
        ));
    };
    let data_type = DataType::of_config(input.data_type).unwrap_or(DataType::Bytes);
    let (data, num) = match data_type.size() {
        None => (dtype::join_bytes([&body[..]]).into(), 1),
        Some(size) => (body.clone(), body.len() / size),
    };
    let known: i64 = input.dims.iter().filter(|&&d| d > 0).product();
    let open = input.dims.iter().filter(|&&d| d < 0).count();
    let known = usize::try_from(known).unwrap_or(1).max(1);
    if open > 1 || num % known != 0 || (open == 0 && num != known) {
        let expected = format!("elements of shape {:?} with one open axis", input.dims);
        return Err(Error::expected(what, expected, format!("{num} elements")));
    }
    let dims = input
        .dims
        .iter()
        .map(|&d| usize::try_from(d).unwrap_or(num / known));
    let samples = (served.config.max_batch_size > 0).then_some(1);
    Ok(Request {
        inputs: vec![Input {
            name: input.name.clone(),
            data_type,
            shape: samples.into_iter().chain(dims).collect(),
            data,
        }],
        params: Params::from_iter([("binary_data_output".to_owned(), Param::Bool(true))]),
        ..Request::default()
    })
}

fn read_input(regions: &Regions, tab: &Tab, input: json::Input, tail: &mut Bytes) -> Result<Input> {
    let name = input.name;
    // Made where something is wrong alone.
    let what = || format!("input '{name}'");
    let data_type = input.datatype.0.map_err(|named| {
        let names: Vec<_> = DataType::ALL.iter().map(|t| t.name()).collect();
        let expected = format!("a data-type of {}", names.join(", "));
        Error::expected(what(), expected, format!("'{named}'"))
    })?;
    let uncountable = |shape: &dyn std::fmt::Debug| {
        let what = format!("{}: shape", what());
        Error::expected(what, "a countable number", format!("{shape:?}"))
    };
    if input.shape.iter().any(|&d| usize::try_from(d).is_err()) {
        return Err(uncountable(&input.shape));
    }
    // In the place where they are.
    let shape: Vec<usize> = input.shape.into_iter().map(|d| d as usize).collect();
    let count = dtype::elements(&shape).ok_or_else(|| uncountable(&shape))?;
    let own = input.params;
    let sources = [
        ("'data'", input.data.as_ref().is_some_and(|d| d.num > 0)),
        ("'binary_data_size'", own.get("binary_data_size").is_some()),
        ("a region", own.get("shared_memory_region").is_some()),
    ];
    if sources.iter().filter(|(_, is_there)| *is_there).count() > 1 {
        let there = sources.iter().filter(|(_, is_there)| *is_there);
        let there: Vec<&str> = there.map(|(source, _)| *source).collect();
        let expected = "its elements in one place";
        return Err(Error::expected(what(), expected, there.join(" and ")));
    }
    let data = if let Some(region) = region(regions, &own)? {
        region.read(&what(), tab)?
    } else if let Some(size) = own.number("binary_data_size")? {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > tail.len() {
            let expected = format!("{size} bytes behind the JSON");
            return Err(Error::expected(what(), expected, tail.len()));
        }
        tail.split_to(size)
    } else {
        let Some(elements) = input.data else {
            let expected = "'data', 'binary_data_size' or a region";
            return Err(Error::expected(what(), expected, "none"));
        };
        if elements.num != count {
            let expected = format!("{count} elements of shape {shape:?}");
            return Err(Error::expected(what(), expected, elements.num));
        }
        if !data_type.has_numbers() {
            let expected = "elements as bytes, which JSON has no form for";
            let what = format!("{} of data-type {data_type}", what());
            return Err(Error::expected(what, expected, "JSON"));
        }
        if let Some(wrong) = elements.wrong {
            let expected = format!("elements of {data_type}");
            return Err(Error::expected(what(), expected, wrong));
        }
        elements.bytes.into()
    };
    if data_type == DataType::Bytes && name != TEXT_INPUT {
        dtype::check_bytes(&data).map_err(|e| Error::Invalid(format!("{}: {e}", what())))?;
    }
    Ok(Input {
        name,
        data_type,
        shape,
        data,
    })
}

/// The elements of an output as JSON; numbers that are not finite are `null`.
struct Elements<'a>(&'a Output);

impl<'a> Elements<'a> {
    /// Of an output whose type JSON has a form for.
    fn of(output: &'a Output) -> Result<Self> {
        has_json(&output.name, output.data_type)?;
        Ok(Self(output))
    }
}

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let bytes = &self.0.data[..];
        fn list<const N: usize, T: Serialize, S: Serializer>(
            serializer: S,
            bytes: &[u8],
            f: impl Fn([u8; N]) -> T,
        ) -> std::result::Result<S::Ok, S::Error> {
            let (chunks, _) = bytes.as_chunks::<N>();
            serializer.collect_seq(chunks.iter().map(|c| f(*c)))
        }
        match self.0.data_type {
            DataType::Bool => list(serializer, bytes, |b: [u8; 1]| b[0] != 0),
            DataType::Uint8 => list(serializer, bytes, u8::from_le_bytes),
            DataType::Uint16 => list(serializer, bytes, u16::from_le_bytes),
            DataType::Uint32 => list(serializer, bytes, u32::from_le_bytes),
            DataType::Uint64 => list(serializer, bytes, u64::from_le_bytes),
            DataType::Int8 => list(serializer, bytes, i8::from_le_bytes),
            DataType::Int16 => list(serializer, bytes, i16::from_le_bytes),
            DataType::Int32 => list(serializer, bytes, i32::from_le_bytes),
            DataType::Int64 => list(serializer, bytes, i64::from_le_bytes),
            // With all digits: who reads them as numbers of 64 bits gets the same number.
            DataType::Fp32 => list(serializer, bytes, |b| f64::from(f32::from_le_bytes(b))),
            DataType::Fp64 => list(serializer, bytes, f64::from_le_bytes),
            DataType::Bytes | DataType::Fp16 | DataType::Bf16 => {
                let parts = dtype::split_bytes(bytes).map_err(S::Error::custom)?;
                serializer.collect_seq(parts.into_iter().map(String::from_utf8_lossy))
            }
        }
    }
}

/// The JSON of the first answer to requests that say the same, if all elements are behind it: that of
/// others too whose outputs have the same types and shapes.
#[derive(Debug, Default)]
pub struct Answered(OnceLock<Head>);

#[derive(Debug)]
struct Head {
    outputs: Vec<(DataType, Vec<usize>)>,
    json: Box<[u8]>,
    length: HeaderValue,
}

impl Answered {
    fn get(&self, answer: &Answer) -> Option<&Head> {
        let head = self.0.get()?;
        let is_same = |(output, (data_type, shape)): (&Output, &(DataType, Vec<usize>))| {
            output.data_type == *data_type && output.shape == *shape
        };
        let outputs = &answer.outputs;
        let are_same = outputs.len() == head.outputs.len()
            && outputs.iter().zip(&head.outputs).all(is_same)
            && answer.explanation.is_none();
        are_same.then_some(head)
    }

    fn keep(&self, answer: &Answer, json: &[u8], length: &HeaderValue) {
        // As many texts may have another length.
        let is_fixed = |o: &Output| o.data_type.size().is_some();
        if answer.explanation.is_some() || !answer.outputs.iter().all(is_fixed) {
            return;
        }
        let outputs = answer.outputs.iter();
        // Another may have been faster, with the same.
        let _ = self.0.set(Head {
            outputs: outputs.map(|o| (o.data_type, o.shape.clone())).collect(),
            json: json.into(),
            length: length.clone(),
        });
    }
}

/// Writes an answer, as bytes where the request wants them; `binary` where it does not say. What it
/// holds goes on `tab`. Others that said the same were `answered` before.
///
/// # Errors
/// An output that JSON has no form for.
pub fn write(
    served: &Served,
    binary: bool,
    answer: &Answer,
    tab: Tab,
    answered: Option<&Answered>,
) -> Result<Response> {
    let behind = |output: &Output| {
        let in_region = output.wanted.region.is_some();
        !in_region && output.wanted.binary.unwrap_or(binary)
    };
    let all_behind = || answer.outputs.iter().filter(|o| behind(o));
    let size: usize = all_behind().map(|o| o.data.len()).sum();
    let mut body = Vec::with_capacity(256 + size);
    let model = (&*served.name, served.version);
    let length = put_head(&mut body, model, answer, behind, answered)?;
    for output in all_behind() {
        body.extend_from_slice(&output.data);
    }
    let mut response = Response::new(Body::from(kept(body, tab)));
    let content_type = if size > 0 {
        "application/octet-stream"
    } else {
        "application/json"
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if size > 0 {
        headers.insert(JSON_LENGTH, length);
    }
    Ok(response)
}

/// Puts the JSON of an answer, the one that there is or its own; its length.
fn put_head(
    body: &mut Vec<u8>,
    model: (&str, u64),
    answer: &Answer,
    behind: impl Fn(&Output) -> bool,
    answered: Option<&Answered>,
) -> Result<HeaderValue> {
    if let Some(head) = answered.and_then(|answered| answered.get(answer)) {
        body.extend_from_slice(&head.json);
        return Ok(head.length.clone());
    }
    put_answer(body, model, answer, &behind)?;
    let length = HeaderValue::from(body.len());
    if let Some(answered) = answered.filter(|_| answer.outputs.iter().all(behind)) {
        answered.keep(answer, body, &length);
    }
    Ok(length)
}

/// Puts the JSON of an answer of `model`, by name and version. It is put together from its pieces,
/// since a serializer of the whole takes a good part of the time that a small model does.
fn put_answer(
    body: &mut Vec<u8>,
    model: (&str, u64),
    answer: &Answer,
    behind: impl Fn(&Output) -> bool,
) -> Result<()> {
    body.push(b'{');
    if !answer.id.is_empty() {
        put_text(body, "\"id\":", &answer.id)?;
        body.push(b',');
    }
    put_text(body, "\"model_name\":", model.0)?;
    put(body, ",\"model_version\":\"", &model.1)?;
    body.extend_from_slice(b"\",\"outputs\":[");
    for (at, output) in answer.outputs.iter().enumerate() {
        let begin = if at == 0 { "{\"name\":" } else { ",{\"name\":" };
        put_text(body, begin, &output.name)?;
        put_text(body, ",\"datatype\":", output.data_type.name())?;
        put(body, ",\"shape\":", &output.shape)?;
        if behind(output) {
            let size = output.data.len();
            put(body, ",\"parameters\":{\"binary_data_size\":", &size)?;
            body.push(b'}');
        } else if output.wanted.region.is_none() {
            // Of what lies in a region clients take any parameters for those of bytes.
            put(body, ",\"data\":", &Elements::of(output)?)?;
        }
        body.push(b'}');
    }
    body.push(b']');
    if let Some(why) = &answer.explanation {
        put_text(body, ",\"parameters\":{", explained::TELLS)?;
        put_text(body, ":", why)?;
        body.push(b'}');
    }
    body.push(b'}');
    Ok(())
}

/// Puts `before` as it is, and a text.
fn put_text(body: &mut Vec<u8>, before: &str, text: &str) -> Result<()> {
    if num_plain(text.as_bytes()) < text.len() {
        return put(body, before, text);
    }
    for part in [before, "\"", text, "\""] {
        body.extend_from_slice(part.as_bytes());
    }
    Ok(())
}

/// Puts `before` as it is, and a value.
fn put<T: Serialize + ?Sized>(body: &mut Vec<u8>, before: &str, value: &T) -> Result<()> {
    body.extend_from_slice(before.as_bytes());
    serde_json::to_writer(body, value).map_err(|e| Error::Internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    fn output(name: &str, data_type: DataType, shape: &[usize], data: &[u8]) -> Output {
        Output {
            name: name.into(),
            data_type,
            shape: shape.to_vec(),
            data: data.to_vec().into(),
            wanted: Wanted::default(),
        }
    }

    /// The same answer as a tree of values.
    fn tree(model: (&str, u64), answer: &Answer, behind: impl Fn(&Output) -> bool) -> Value {
        let output = |output: &Output| {
            let mut tree = Map::new();
            tree.insert("name".into(), json!(output.name));
            tree.insert("datatype".into(), json!(output.data_type.name()));
            tree.insert("shape".into(), json!(output.shape));
            if behind(output) {
                let size = output.data.len();
                tree.insert("parameters".into(), json!({ "binary_data_size": size }));
            } else if output.wanted.region.is_none() {
                tree.insert("data".into(), json!(Elements(output)));
            }
            Value::Object(tree)
        };
        let mut tree = Map::new();
        if !answer.id.is_empty() {
            tree.insert("id".into(), json!(answer.id));
        }
        tree.insert("model_name".into(), json!(model.0));
        tree.insert("model_version".into(), json!(model.1.to_string()));
        let outputs: Vec<_> = answer.outputs.iter().map(output).collect();
        tree.insert("outputs".into(), Value::Array(outputs));
        if let Some(why) = &answer.explanation {
            tree.insert("parameters".into(), json!({ explained::TELLS: why }));
        }
        Value::Object(tree)
    }

    #[test]
    fn answers_are_put_together_as_a_serializer_would() {
        let outputs = [
            output("y", DataType::Int16, &[1, 2], &[1, 0, 255, 255]),
            output("a \"b\\\n\u{1}ä", DataType::Bytes, &[1], b"\x03\0\0\0c\"d"),
            output("", DataType::Fp32, &[], &1.5_f32.to_le_bytes()),
        ];
        for id in ["", "7", "a\"\u{7f}\u{2028}"] {
            for num in 0..=outputs.len() {
                for is_behind in [false, true] {
                    let answer = Answer {
                        id: id.into(),
                        outputs: outputs[..num].to_vec(),
                        explanation: is_behind.then(|| "it \"waited\"".into()),
                        passage: None,
                    };
                    let behind = |output: &Output| is_behind && output.name != "y";
                    let mut body = Vec::new();
                    put_answer(&mut body, ("m\\", 3), &answer, behind).unwrap();
                    let expected = tree(("m\\", 3), &answer, behind);
                    let put: Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!(put, expected);
                    // In the order of the protocol, without spaces.
                    let length = serde_json::to_vec(&expected).unwrap().len();
                    assert_eq!(body.len(), length);
                    let text = String::from_utf8(body).unwrap();
                    let places = ["\"model_name\"", "\"model_version\"", "\"outputs\""];
                    let places = places.map(|key| text.find(key).unwrap());
                    assert!(places.is_sorted(), "{text}");
                }
            }
        }
    }

    #[test]
    fn the_json_of_an_answer_serves_others_that_differ_in_their_elements_alone() {
        let answered = Answered::default();
        let answer = |outputs: &[Output], why: Option<&str>| Answer {
            id: "7".into(),
            outputs: outputs.to_vec(),
            explanation: why.map(Into::into),
            passage: None,
        };
        // As with none before it, for what is behind and what is not.
        let put = |answer: &Answer, is_behind: bool| {
            let put = |answered: Option<&Answered>| {
                let mut body = Vec::new();
                let length = put_head(&mut body, ("m", 1), answer, |_| is_behind, answered);
                (body, length.unwrap())
            };
            assert_eq!(put(Some(&answered)), put(None));
            answered.0.get().is_some()
        };
        let y = |data: &[u8]| output("y", DataType::Int8, &[data.len()], data);
        let text = output("y", DataType::Bytes, &[1], b"\x01\0\0\0c");
        assert!(!put(&answer(&[y(&[1, 2])], None), false), "not behind it");
        assert!(!put(&answer(&[text], None), true), "its length may differ");
        assert!(!put(&answer(&[y(&[1, 2])], Some("it waited")), true));
        assert!(put(&answer(&[y(&[1, 2])], None), true));
        for other in [
            answer(&[y(&[9, 8])], None),
            answer(&[y(&[1, 2, 3])], None),
            answer(&[y(&[1, 2]), y(&[1])], None),
            answer(&[output("y", DataType::Uint8, &[2], &[1, 2])], None),
            answer(&[y(&[1, 2])], Some("it waited")),
        ] {
            put(&other, true);
        }
    }
}
