//! Weights from safetensors files.
//!
//! A file is mapped, not read: tensors are ranges of the map until a device loads them. Tensors of
//! f32, f16 and bf16 may fill an f32 weight; the conversion happens when a device loads it.
//! Source: the safetensors format, <https://github.com/huggingface/safetensors>.

use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors};

use crate::dtype::DType;
use crate::error::Error;
use crate::program::Program;
use crate::tensor::{Bytes, Tensor, WeightSource};

/// Bytes of the header's length at the start of a file.
const PREFIX: usize = 8;

/// An open safetensors file.
#[derive(Clone, Debug)]
pub struct WeightFile {
    path: String,
    bytes: Bytes,
    header: Arc<Metadata>,
    data: usize,
}

impl WeightFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`Error::File`] with the path if the file is missing, truncated or malformed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match Bytes::map(path) {
            Ok(bytes) => Self::parse(name, bytes),
            Err(e) => Err(unfit(name, &e)),
        }
    }

    /// A file in memory; `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`Error::File`] if the bytes are truncated or malformed.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, Error> {
        Self::parse(name.to_owned(), Bytes::Owned(bytes.into()))
    }

    fn parse(path: String, bytes: Bytes) -> Result<Self, Error> {
        match SafeTensors::read_metadata(bytes.as_slice()) {
            Ok((len, header)) => Ok(Self {
                path,
                bytes,
                header: Arc::new(header),
                data: PREFIX + len,
            }),
            Err(error) => {
                let len = bytes.as_slice().len();
                Err(unfit(path, &told(&error, len)))
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Names of its tensors, in file order.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Whether it holds a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// The tensor `name`.
    ///
    /// # Errors
    /// [`Error::File`] if there is none, [`Error::Tensor`] if its dtype is not known here.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let Some(info) = self.header.info(name) else {
            let what = format!("expected a tensor {name}, got none");
            return Err(Error::File {
                path: self.path.clone(),
                what,
            });
        };
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I8 => DType::I8,
            Dtype::I32 => DType::I32,
            Dtype::I64 => DType::I64,
            other => {
                return Err(Error::Tensor {
                    what: format!("tensor {name} of {}", self.path),
                    expected: "f32, f16, bf16, i8, i32 or i64".to_owned(),
                    got: format!("{other:?}"),
                });
            }
        };
        let (start, end) = info.data_offsets;
        let (start, len) = (self.data + start, end - start);
        let data = match &self.bytes {
            Bytes::Owned(bytes) => Bytes::Owned(bytes[start..start + len].into()),
            Bytes::Shared(bytes) => Bytes::Shared(bytes.slice(start..start + len)),
            Bytes::Mapped { map, offset, .. } => Bytes::Mapped {
                map: Arc::clone(map),
                offset: offset + start,
                len,
            },
        };
        Ok(Tensor {
            dtype,
            dims: info.shape.clone(),
            data,
        })
    }

    /// The floating-point tensor `name` of exactly `dims`.
    ///
    /// # Errors
    /// As [`Self::tensor`], and [`Error::Tensor`] if dtype or dims are others.
    pub fn float(&self, name: &str, dims: &[usize]) -> Result<Tensor, Error> {
        let tensor = self.tensor(name)?;
        if tensor.dtype.is_float() && tensor.dims == dims {
            return Ok(tensor);
        }
        Err(Error::Tensor {
            what: format!("tensor {name} of {}", self.path),
            expected: format!("a float tensor {dims:?}"),
            got: format!("{}{:?}", tensor.dtype, tensor.dims),
        })
    }
}

fn unfit(path: String, got: &dyn std::fmt::Display) -> Error {
    let what = format!("expected a safetensors file, got {got}");
    Error::File { path, what }
}

/// What is there in place of a safetensors file, of `len` bytes.
fn told(error: &SafeTensorError, len: usize) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall => format!("{len} bytes, too few for the length of a header"),
        E::HeaderTooLarge => "a header that says to be longer than any".into(),
        E::InvalidHeaderLength => format!("{len} bytes, fewer than its header says to take"),
        E::MetadataIncompleteBuffer => {
            format!("{len} bytes, not as many as its header and its tensors take")
        }
        E::TensorInvalidInfo => "a tensor whose place is not as long as its type and shape".into(),
        E::InvalidOffset(name) => {
            format!("a tensor {name} whose place is not behind the one before")
        }
        E::InvalidHeader(e) => format!("a header that is no text: {e}"),
        E::InvalidHeaderStart => "a header that does not begin with {".into(),
        E::InvalidHeaderDeserialization(e) | E::JsonError(e) => {
            format!("a header that does not list tensors: {e}")
        }
        other => other.to_string(),
    }
}

/// Fills the weights of `program` from `file`, by name. Weights whose data the program brings
/// along (tables that are computed, not trained) may be missing from the file.
///
/// # Errors
/// The first weight that the file lacks, or holds with another dtype or shape.
pub fn load_into(program: &mut Program, file: &WeightFile) -> Result<(), Error> {
    load_as(program, file, str::to_owned)
}

/// As [`load_into`], with `rename` from a weight's name to the tensor's.
///
/// # Errors
/// As [`load_into`].
pub fn load_as(
    program: &mut Program,
    file: &WeightFile,
    rename: impl Fn(&str) -> String,
) -> Result<(), Error> {
    for weight in &mut program.weights {
        let name = rename(&weight.name);
        if matches!(weight.source, WeightSource::Data(_)) && !file.contains(&name) {
            continue;
        }
        weight.source = WeightSource::Data(file.float(&name, &weight.ty.fixed_dims())?);
    }
    Ok(())
}
