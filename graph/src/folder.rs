//! Compiled model folders: a program as text beside its weights.
//!
//! `program.json` holds everything but the elements of weights, under the format tag [`FORMAT`];
//! `weights.safetensors` holds those that the program was given, by name. Weights that are constant
//! or seeded stay a line of the text, and are 64 GiB at most, all together. Loading maps the weights, so
//! it costs the text alone. Floats that JSON has no numbers for are text: `"inf"`, `"-inf"`, `"nan"`.
//!
//! Invariants:
//! 1. [`load`] gives a program that [`verify`](crate::verify()) and [`verify_rows`] accept, or an
//!    error; a damaged folder never makes it panic, nor any later step that relies on the verifier.
//! 2. [`save`] replaces a folder as a whole or not at all, and only one that is a model folder and nothing
//!    else.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, View};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::dtype::DType;
use crate::error::Error;
use crate::manifest::TOKENIZER;
use crate::op::Op;
use crate::program::{Program, StateKind, WeightDecl};
use crate::shape::TensorType;
use crate::tensor::{Tensor, WeightSource};
use crate::tensor_op::Operand;
use crate::verify::{verify, verify_rows};
use crate::weights::WeightFile;

/// Tag of the format that is written and read.
pub const FORMAT: &str = "lazybatch-program/1";
/// Name of the program's file.
pub const PROGRAM_FILE: &str = "program.json";
/// Name of the weights' file.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

/// Most bytes of a program's text.
const MAX_TEXT: u64 = 1 << 28;
/// Largest whole number in it, but under [`FREE_NUMBERS`].
const MAX_NUMBER: u64 = 1 << 31;
/// Keys of numbers that are no sizes.
const FREE_NUMBERS: [&str; 4] = ["seed", "attrs", "base", "per_len"];
/// Most elements of a tensor or row.
const MAX_ELEMS: usize = 1 << 40;
/// Most bytes of all weights that are made from a line of the text, not read from the weights' file:
/// 64 GiB.
pub(crate) const MAX_MADE_BYTES: u64 = 1 << 36;
/// Most nodes, blocks, states, inputs and outputs, of each: as many nodes as an ONNX file may have. What
/// is live before a node is a list for each node.
const MAX_PARTS: usize = 1 << 16;
/// Most values: results and weights of so many nodes.
const MAX_VALUES: usize = 1 << 18;
/// Largest number in a window.
const MAX_WINDOW: usize = 1 << 16;

/// The text of a folder.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    program: Program,
    weights: Vec<Weight>,
}

/// A weight without its elements.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weight {
    name: String,
    ty: TensorType,
    source: Source,
}

/// Where the elements of a weight are.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    /// In the weights' file.
    File,
    Constant(#[serde(with = "crate::floats")] f32),
    Seeded {
        seed: u64,
        #[serde(with = "crate::floats")]
        bound: f32,
    },
}

fn fail<T>(
    path: &Path,
    what: impl Into<String>,
    expected: impl Into<String>,
    got: impl ToString,
) -> Result<T, Error> {
    Err(Error::Folder {
        path: path.display().to_string(),
        what: what.into(),
        expected: expected.into(),
        got: got.to_string(),
    })
}

/// Whether `dir` looks like a model folder: its program's file begins as one that [`save`] wrote.
pub fn is_model_folder(dir: &Path) -> bool {
    let mut start = [0; 64];
    let read = File::open(dir.join(PROGRAM_FILE))
        .and_then(|mut f| std::io::Read::read(&mut f, &mut start))
        .unwrap_or(0);
    let text = String::from_utf8_lossy(&start[..read]);
    text.contains("\"format\"") && text.contains("lazybatch-program/")
}

/// Reads the program in `dir`, its weights mapped.
///
/// # Errors
/// [`Error::Folder`] for files that are missing or damaged, [`Error::Within`] for what the verifier
/// finds.
pub fn load(dir: &Path) -> Result<Program, Error> {
    let path = dir.join(PROGRAM_FILE);
    let text = read_text(&path)?;
    let json: Json = match serde_json::from_str(&text) {
        Ok(json) => json,
        Err(e) => return fail(&path, "text", "JSON", e),
    };
    match json.get("format").and_then(Json::as_str) {
        Some(FORMAT) => {}
        Some(other) => return fail(&path, "format", FORMAT, other),
        None => return fail(&path, "format", FORMAT, "none"),
    }
    check_numbers(&path, &json)?;
    let document: Document = match serde_json::from_str(&text) {
        Ok(document) => document,
        Err(e) => return fail(&path, "program", FORMAT, e),
    };
    let mut program = document.program;
    let file = WeightFile::open(dir.join(WEIGHTS_FILE))?;
    for weight in document.weights {
        program.weights.push(fill(weight, &file)?);
    }
    check_parts(&path, &program)?;
    check_sizes(&path, &program)?;
    check_made(&path, &program)?;
    match verify(&program).and_then(|()| verify_rows(&program)) {
        Ok(()) => Ok(program),
        Err(e) => Err(Error::Within {
            path: path.display().to_string(),
            source: Box::new(e),
        }),
    }
}

fn read_text(path: &Path) -> Result<String, Error> {
    let size = match fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(e) => return fail(path, "file", "the program of a model folder", e),
    };
    if size > MAX_TEXT {
        return fail(path, "size", format!("at most {MAX_TEXT} bytes"), size);
    }
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(e) => fail(path, "file", "text", e),
    }
}

/// No size is so large that sums and products of a few of them overflow.
fn check_numbers(path: &Path, json: &Json) -> Result<(), Error> {
    match json {
        Json::Number(n) if n.as_u64().is_some_and(|n| n > MAX_NUMBER) => {
            fail(path, "number", format!("at most {MAX_NUMBER}"), n)
        }
        Json::Array(items) => items.iter().try_for_each(|i| check_numbers(path, i)),
        Json::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !FREE_NUMBERS.contains(&key.as_str()))
            .try_for_each(|(_, value)| check_numbers(path, value)),
        _ => Ok(()),
    }
}

fn fill(weight: Weight, file: &WeightFile) -> Result<WeightDecl, Error> {
    let Weight { name, ty, source } = weight;
    let source = match source {
        Source::Constant(value) => WeightSource::Constant(value),
        Source::Seeded { seed, bound } => WeightSource::Seeded { seed, bound },
        Source::File => {
            let tensor = file.tensor(&name)?;
            if tensor.dims[..] != ty.fixed_dims()[..]
                || tensor.dtype.is_float() != ty.dtype.is_float()
            {
                return Err(Error::Tensor {
                    what: format!("tensor {name} of {}", file.path()),
                    expected: ty.to_string(),
                    got: format!("{}{:?}", tensor.dtype, tensor.dims),
                });
            }
            WeightSource::Data(tensor)
        }
    };
    Ok(WeightDecl { name, ty, source })
}

/// What takes time and memory by the square of its number is bounded.
fn check_parts(path: &Path, program: &Program) -> Result<(), Error> {
    for (what, num, most) in [
        ("nodes", program.nodes.len(), MAX_PARTS),
        ("blocks", program.blocks.len(), MAX_PARTS),
        ("states", program.states.len(), MAX_PARTS),
        ("inputs", program.inputs.len(), MAX_PARTS),
        ("outputs", program.outputs.len(), MAX_PARTS),
        ("values", program.values.len(), MAX_VALUES),
        ("weights", program.weights.len(), MAX_VALUES),
    ] {
        if num > most {
            return fail(
                path,
                format!("number of {what}"),
                format!("at most {most}"),
                num,
            );
        }
    }
    Ok(())
}

/// A short text must not ask for more memory than any machine has.
fn check_made(path: &Path, program: &Program) -> Result<(), Error> {
    let mut bytes = 0_u64;
    for weight in &program.weights {
        if matches!(weight.source, WeightSource::Data(_)) {
            continue;
        }
        let own = (weight.ty.row_elems() as u64).saturating_mul(size_of::<f32>() as u64);
        bytes = bytes.saturating_add(own);
        if bytes > MAX_MADE_BYTES {
            return fail(
                path,
                format!("weight {}", weight.name),
                format!("at most {MAX_MADE_BYTES} bytes of all constant and seeded weights"),
                format!("{bytes} with it"),
            );
        }
    }
    Ok(())
}

/// Sizes whose products stay countable.
fn check_sizes(path: &Path, program: &Program) -> Result<(), Error> {
    let check = |what: &str, name: &str, dims: &[usize]| {
        let product = dims.iter().try_fold(1_usize, |product, &n| {
            product.checked_mul(n).filter(|p| *p <= MAX_ELEMS)
        });
        match product {
            Some(_) => Ok(()),
            None => fail(
                path,
                format!("{what} {name}"),
                format!("at most {MAX_ELEMS} elements"),
                "more",
            ),
        }
    };
    for value in &program.values {
        check("value", "", &value.ty.fixed_dims())?;
    }
    for input in &program.inputs {
        check("input", &input.name, &input.ty.fixed_dims())?;
    }
    for output in &program.outputs {
        check("output", &output.name, &output.ty.fixed_dims())?;
    }
    for weight in &program.weights {
        check("weight", &weight.name, &weight.ty.fixed_dims())?;
    }
    for state in &program.states {
        let dims = match &state.kind {
            StateKind::Vector { dims, .. } => dims.clone(),
            StateKind::Sequence { features, max_len } => vec![*features, *max_len],
        };
        check("state", &state.name, &dims)?;
    }
    for node in &program.nodes {
        match &node.op {
            Op::Reshape { dims } => check("node", &node.name, dims)?,
            Op::Custom(op) => check("node", &node.name, &op.output_dims)?,
            Op::Tensor(op) => {
                for output in &op.outputs {
                    check("node", &node.name, &output.layout.fixed())?;
                }
                for operand in &op.operands {
                    if let Operand::Next { layout, .. } = operand {
                        check("node", &node.name, &layout.fixed())?;
                    }
                }
            }
            Op::Conv2d { window, .. } | Op::Pool2d { window, .. } => {
                let mut numbers = window
                    .kernel
                    .iter()
                    .chain(&window.stride)
                    .chain(&window.pad);
                if let Some(n) = numbers.find(|n| **n > MAX_WINDOW) {
                    let what = format!("node {}: window", node.name);
                    return fail(path, what, format!("at most {MAX_WINDOW}"), n);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes `program` to the folder `dir`: to a folder beside it first, which is read back and then
/// takes its place.
///
/// # Errors
/// [`Error::Folder`] if `dir` exists and is no model folder and not empty, or holds other files than a
/// model folder's, or if something cannot be written; `dir` is then as it was.
pub fn save(program: &Program, dir: &Path) -> Result<(), Error> {
    verify(program)?;
    verify_rows(program)?;
    check_target(dir)?;
    let fresh = beside(dir, "new");
    let written = write(program, &fresh)
        .and_then(|()| load(&fresh))
        .and_then(|_| replace(dir, &fresh));
    if written.is_err() {
        // What was written so far is of no use; the first error is what matters.
        let _ = fs::remove_dir_all(&fresh);
    }
    written
}

/// Refuses a target that is something else than a model folder, or holds something else beside its files:
/// all of it would go.
///
/// # Errors
/// As [`save`].
pub fn check_target(dir: &Path) -> Result<(), Error> {
    let expected = "a new folder, an empty one, or a model folder to replace";
    let Ok(meta) = fs::symlink_metadata(dir) else {
        return Ok(());
    };
    if !meta.is_dir() {
        return fail(dir, "folder", expected, "a file");
    }
    let entries = fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<fs::DirEntry>, _>>);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(e) => return fail(dir, "folder", expected, e),
    };
    if entries.is_empty() {
        return Ok(());
    }
    if !is_model_folder(dir) {
        return fail(dir, "folder", expected, "a folder with other files");
    }
    let tokenizer = tokenizer_of(dir);
    let is_own = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let known = [Some(PROGRAM_FILE), Some(WEIGHTS_FILE), tokenizer.as_deref()];
        let is_known = known.into_iter().flatten().any(|known| name == known);
        is_known && entry.file_type().is_ok_and(|kind| !kind.is_dir())
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    match entries.iter().find(|entry| !is_own(entry)) {
        Some(other) => {
            let got = format!("one with {:?} in it", other.file_name());
            fail(dir, "folder", expected, got)
        }
        None => Ok(()),
    }
}

/// Name of the tokenizer's file that the program in `dir` has beside it, as far as its text can be read.
fn tokenizer_of(dir: &Path) -> Option<String> {
    let text = read_text(&dir.join(PROGRAM_FILE)).ok()?;
    let json: Json = serde_json::from_str(&text).ok()?;
    let name = json.get("program")?.get("metadata")?.get(TOKENIZER)?;
    Some(name.as_str()?.to_owned())
}

/// A hidden sibling of `dir` that only this process uses.
fn beside(dir: &Path, what: &str) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(format!(".{name}.{what}-{}", std::process::id()))
}

fn write(program: &Program, dir: &Path) -> Result<(), Error> {
    let io = |path: &Path, e: std::io::Error| Error::Folder {
        path: path.display().to_string(),
        what: "file".into(),
        expected: "one that can be written".into(),
        got: e.to_string(),
    };
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).map_err(|e| io(dir, e))?;
    let weights = program.weights.iter().map(|w| Weight {
        name: w.name.clone(),
        ty: w.ty.clone(),
        source: match w.source {
            WeightSource::Data(_) => Source::File,
            WeightSource::Constant(value) => Source::Constant(value),
            WeightSource::Seeded { seed, bound } => Source::Seeded { seed, bound },
        },
    });
    let document = Document {
        format: FORMAT.into(),
        program: program.clone(),
        weights: weights.collect(),
    };
    let path = dir.join(PROGRAM_FILE);
    let text = match serde_json::to_string(&document) {
        Ok(text) => text,
        Err(e) => return fail(&path, "program", "what JSON can hold", e),
    };
    let mut file = File::create(&path).map_err(|e| io(&path, e))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|e| io(&path, e))?;
    let data = program.weights.iter().filter_map(|w| match &w.source {
        WeightSource::Data(tensor) => Some((w.name.as_str(), Elements(tensor))),
        _ => None,
    });
    let path = dir.join(WEIGHTS_FILE);
    match safetensors::serialize_to_file(data, None, &path) {
        Ok(()) => Ok(()),
        Err(e) => fail(&path, "file", "one that can be written", format!("{e:?}")),
    }
}

/// Puts `fresh` in the place of `dir`.
fn replace(dir: &Path, fresh: &Path) -> Result<(), Error> {
    let old = beside(dir, "old");
    let had = dir.exists();
    let moved = || {
        if had {
            fs::rename(dir, &old)?;
        }
        fs::rename(fresh, dir)
    };
    if let Err(e) = moved() {
        if had && !dir.exists() {
            // Nothing more can be done if the old one does not come back either.
            let _ = fs::rename(&old, dir);
        }
        return fail(dir, "folder", "one that can be written", e);
    }
    if had {
        let _ = fs::remove_dir_all(&old);
    }
    Ok(())
}

/// A tensor as the weights' file takes it.
struct Elements<'a>(&'a Tensor);

impl View for Elements<'_> {
    fn dtype(&self) -> Dtype {
        match self.0.dtype {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::I8 => Dtype::I8,
            DType::I32 => Dtype::I32,
            DType::I64 => Dtype::I64,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.0.dims
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.data.as_slice())
    }

    fn data_len(&self) -> usize {
        self.0.data.as_slice().len()
    }
}
