//! Takes tensors out of a store by the names of an architecture and keeps account of what is
//! missing, misshapen or left over.

use std::collections::BTreeSet;

use super::Store;
use super::keys::Section;
use crate::error::Error;
use crate::tensor::Tensor;

/// How an architecture's names become those of the files.
#[derive(Clone, Debug, Default)]
pub(super) struct Naming {
    prefix: String,
    rename: Vec<(String, String)>,
    ignore: Vec<String>,
}

impl Naming {
    /// Reads the section `tensors`.
    pub(super) fn read(section: &Section<'_>) -> Result<Self, Error> {
        let naming = Self {
            prefix: section.text_if("prefix")?.unwrap_or_default(),
            rename: section.text_table("rename")?,
            ignore: section.texts_if("ignore")?,
        };
        section.finish()?;
        Ok(naming)
    }

    /// The name in the files of what the architecture calls `name`: a rename of the whole name,
    /// else the renames of parts that stand between dots, behind the prefix.
    fn in_files(&self, name: &str) -> String {
        if let Some((_, to)) = self.rename.iter().find(|(from, _)| from == name) {
            return to.clone();
        }
        let part = |part: &str| -> String {
            let renamed = self.rename.iter().find(|(from, _)| from == part);
            renamed.map_or(part, |(_, to)| to).to_owned()
        };
        let parts: Vec<String> = name.split('.').map(part).collect();
        format!("{}{}", self.prefix, parts.join("."))
    }

    /// Whether the manifest says that a tensor does not matter. A pattern may have one `*`.
    fn ignores(&self, name: &str) -> bool {
        self.ignore
            .iter()
            .any(|pattern| match pattern.split_once('*') {
                Some((start, end)) => {
                    name.len() >= start.len() + end.len()
                        && name.starts_with(start)
                        && name.ends_with(end)
                }
                None => pattern == name,
            })
    }
}

/// A store with an account of what was taken from it.
pub(super) struct Tensors<'a> {
    store: &'a Store,
    naming: &'a Naming,
    taken: BTreeSet<String>,
    missing: Vec<String>,
    misfits: Vec<String>,
}

impl<'a> Tensors<'a> {
    /// Nothing is taken yet.
    pub(super) fn new(store: &'a Store, naming: &'a Naming) -> Self {
        Self {
            store,
            naming,
            taken: BTreeSet::new(),
            missing: Vec::new(),
            misfits: Vec::new(),
        }
    }

    /// The float tensor that the architecture calls `name`, of exactly `dims`; `None` notes what is
    /// wrong.
    pub(super) fn take(&mut self, name: &str, dims: &[usize]) -> Option<Tensor> {
        let in_files = self.naming.in_files(name);
        let found = self.store.get(&in_files);
        self.taken.insert(in_files.clone());
        match found {
            None => self.missing.push(format!("{in_files} {dims:?}")),
            Some(Err(error)) => self.misfits.push(error.to_string()),
            Some(Ok(tensor)) if tensor.dtype.is_float() && tensor.dims == dims => {
                return Some(tensor);
            }
            Some(Ok(tensor)) => self.misfits.push(format!(
                "tensor {in_files}: expected floats {dims:?}, got {}{:?}",
                tensor.dtype, tensor.dims
            )),
        }
        None
    }

    /// Says at once all that was wrong, tensors that nobody took included.
    ///
    /// # Errors
    /// [`Error::Tensors`].
    pub(super) fn finish(self, manifest: &str) -> Result<(), Error> {
        let unused: Vec<&str> = self
            .store
            .names()
            .filter(|name| !self.taken.contains(*name) && !self.naming.ignores(name))
            .collect();
        let mut problems = self.misfits;
        if !self.missing.is_empty() {
            problems.push(format!(
                "missing, {} in all: {}",
                self.missing.len(),
                self.missing.join(", ")
            ));
        }
        if !unused.is_empty() {
            problems.push(format!(
                "not used, {} in all: {}",
                unused.len(),
                unused.join(", ")
            ));
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Tensors {
            files: self.store.place(),
            manifest: manifest.to_owned(),
            problems,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_renamed_whole_or_in_parts() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let naming = Naming {
            prefix: "bert.".into(),
            rename: vec![pair("a.norm.weight", "odd"), pair("norm", "LayerNorm")],
            ignore: vec!["x.*.ids".into(), "y".into()],
        };
        assert_eq!(naming.in_files("a.norm.weight"), "odd");
        assert_eq!(naming.in_files("b.norm.weight"), "bert.b.LayerNorm.weight");
        assert_eq!(naming.in_files("b.norms.weight"), "bert.b.norms.weight");
        assert!(naming.ignores("x.1.ids") && naming.ignores("y"));
        assert!(!naming.ignores("x.ids") && !naming.ignores("yy"));
    }
}
