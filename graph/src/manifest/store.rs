//! Tensors by name, from one or more files of any known container.

use std::path::Path;

use indexmap::IndexMap;

use super::{llama2c, npz};
use crate::error::Error;
use crate::tensor::Tensor;
use crate::weights::WeightFile;

/// Containers, by the end of a file's name or the manifest's word.
const KINDS: &str = "safetensors, npz, llama2.c";

/// Named tensors.
#[derive(Clone, Debug, Default)]
pub struct Store {
    place: Vec<String>,
    tensors: IndexMap<String, Entry>,
}

#[derive(Clone, Debug)]
enum Entry {
    /// In a safetensors file, where a dtype may be one that we do not read.
    InFile(WeightFile),
    /// At hand.
    Here(Tensor),
}

/// Why a file was not added.
pub(super) enum Failed {
    /// Its container is none of these.
    Kind(&'static str),
    /// It is missing or malformed.
    File(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::File(error)
    }
}

impl Store {
    /// Tensors at hand; `place` stands for their file in messages.
    pub fn from_tensors(place: &str, tensors: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        Self {
            place: vec![place.to_owned()],
            tensors: tensors
                .into_iter()
                .map(|(name, tensor)| (name, Entry::Here(tensor)))
                .collect(),
        }
    }

    /// The tensors of one file of a container that `kind` names.
    ///
    /// # Errors
    /// [`Error::File`] if the file is missing, malformed or of no known container.
    pub fn open(path: impl AsRef<Path>, kind: &str) -> Result<Self, Error> {
        let mut store = Self::default();
        let path = path.as_ref();
        store.add_file(path, kind).map_err(|failed| match failed {
            Failed::File(error) => error,
            Failed::Kind(kinds) => Error::File {
                path: path.display().to_string(),
                what: format!("container: expected one of {kinds}, got `{kind}`"),
            },
        })?;
        Ok(store)
    }

    /// Adds the tensors of a file.
    pub(super) fn add_file(&mut self, path: &Path, kind: &str) -> Result<(), Failed> {
        let added: Vec<(String, Entry)> = match kind {
            "safetensors" => {
                let file = WeightFile::open(path)?;
                let entry = |name| (name, Entry::InFile(file.clone()));
                file.names().into_iter().map(entry).collect()
            }
            "npz" => here(npz::read(path)?),
            "llama2.c" => here(llama2c::read(path)?),
            _ => return Err(Failed::Kind(KINDS)),
        };
        let place = path.display().to_string();
        for (name, entry) in added {
            if self.tensors.insert(name.clone(), entry).is_some() {
                let what = format!("tensor {name}: another file of the model has it too");
                return Err(Error::File { path: place, what }.into());
            }
        }
        self.place.push(place);
        Ok(())
    }

    /// Its files, for messages.
    pub(super) fn place(&self) -> String {
        self.place.join(", ")
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor `name`, if there is one.
    ///
    /// # Errors
    /// A dtype that is not read.
    pub(super) fn get(&self, name: &str) -> Option<Result<Tensor, Error>> {
        Some(match self.tensors.get(name)? {
            Entry::InFile(file) => file.tensor(name),
            Entry::Here(tensor) => Ok(tensor.clone()),
        })
    }
}

fn here(tensors: Vec<(String, Tensor)>) -> Vec<(String, Entry)> {
    let entry = |(name, tensor)| (name, Entry::Here(tensor));
    tensors.into_iter().map(entry).collect()
}
