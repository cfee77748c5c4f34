//! Models from weight files and a small text that says what they are: `model.toml`.
//!
//! A manifest names an architecture of [`ARCHITECTURES`], its sizes and options, and the files with
//! its tensors, which carry the names that their publisher gave them. Tensors are laid out anew
//! where our ops want another order (`[out, in]` matrices are turned, rotary halves interleaved);
//! everything else stays in the mapped file until a device loads it.
//! Adding an architecture is a file here and a line in [`ARCHITECTURES`]. docs/models.md has all
//! keys.
//!
//! Invariants: every key is used or refused, every tensor is used, ignored by the manifest's own
//! word, or refused, and all that is wrong with tensors is told at once.

mod bert;
mod encoder_decoder;
mod gru_encoder_decoder;
mod keys;
mod layers;
mod layout;
mod llama;
mod llama2c;
mod mobilenet_v2;
mod npz;
mod published;
mod store;
mod tensors;

use std::path::{Path, PathBuf};

use toml::Table;

use crate::builder::ProgramBuilder;
use crate::error::Error;
use crate::program::Program;

use keys::Section;
use layers::Layers;
pub use store::Store;
use tensors::{Naming, Tensors};

/// First line of a manifest: `format = "lazybatch-model/1"`.
pub const FORMAT: &str = "lazybatch-model/1";
/// Metadata key of a program: file name of its tokenizer, beside its weights.
pub const TOKENIZER: &str = "tokenizer";
/// Metadata key of a program: the token that its text begins with, where its tokenizer adds none.
pub const PROMPT_START: &str = "prompt_start";

/// A kind of model that manifests can name.
#[derive(Clone, Copy)]
pub struct Architecture {
    /// Its name in manifests.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    build: fn(&Source<'_>, &mut Layers<'_>) -> Result<(), Error>,
}

/// All architectures.
#[rustfmt::skip]
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "bert", about: "BERT encoder with a pooled, normalised or raw result", build: bert::build },
    Architecture { name: "llama", about: "decoder-only language model with rotary positions and a KV cache", build: llama::build },
    Architecture { name: "encoder-decoder", about: "Transformer encoder-decoder of the Marian family", build: encoder_decoder::build },
    Architecture { name: "gru-encoder-decoder", about: "GRU encoder-decoder without attention", build: gru_encoder_decoder::build },
    Architecture { name: "mobilenet-v2", about: "MobileNetV2 1.0 image classifier", build: mobilenet_v2::build },
];

impl std::fmt::Debug for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What an architecture reads: the sections of a manifest.
struct Source<'a> {
    sizes: Section<'a>,
    options: Section<'a>,
    tokens: Section<'a>,
}

/// A manifest, read and checked but for what its architecture and tensors say.
#[derive(Clone, Debug)]
pub struct Manifest {
    file: String,
    folder: PathBuf,
    table: Table,
    name: String,
    architecture: Architecture,
    weights: Vec<String>,
    container: Option<String>,
    tokenizer: Option<String>,
    naming: Naming,
}

/// Whether the file at `path` says that it is a manifest, or is one of weights that may do without
/// (docs/models.md). One in TOML that says nothing of its format is one too, but those that tie an
/// encoder and a decoder together (docs/onnx.md), which have none.
pub fn is_manifest(path: &Path) -> bool {
    if is_weights(path) {
        return true;
    }
    let table = std::fs::read_to_string(path).map(|text| text.parse::<Table>());
    let Ok(Ok(table)) = table else { return false };
    match table.get("format") {
        Some(format) => format
            .as_str()
            .is_some_and(|f| f.starts_with("lazybatch-model/")),
        None => {
            has_extension(path, "toml")
                && !["encoder", "decoder"]
                    .iter()
                    .any(|key| table.contains_key(*key))
        }
    }
}

fn is_weights(path: &Path) -> bool {
    has_extension(path, "safetensors")
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().and_then(|e| e.to_str()) == Some(extension)
}

impl Manifest {
    /// Reads the manifest at `path`; files that it names lie in the same folder. Of a safetensors
    /// file it is what the publisher's files beside it say.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, and as [`Self::parse`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if is_weights(path) {
            return published::manifest(path);
        }
        let text = std::fs::read_to_string(path).map_err(|e| Error::File {
            path: path.display().to_string(),
            what: format!("expected a manifest, got {e}"),
        })?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Self::parse(&path.display().to_string(), folder, &text)
    }

    /// A manifest from its text; `file` stands for its path in messages, and files that it names
    /// lie in `folder`.
    ///
    /// # Errors
    /// [`Error::Manifest`] with the key that is missing, unknown or wrong.
    pub fn parse(file: &str, folder: impl Into<PathBuf>, text: &str) -> Result<Self, Error> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| Error::Manifest {
            file: file.to_owned(),
            key: keys::line_of(text, &e),
            expected: "TOML".to_owned(),
            got: e.message().to_owned(),
        })?;
        Self::of(file, folder, table)
    }

    /// A manifest from what it says.
    fn of(file: &str, folder: impl Into<PathBuf>, table: Table) -> Result<Self, Error> {
        let root = Section::root(file, &table);
        root.one_of("format", &[(FORMAT, ())])?;
        let name = root.text("name")?;
        let known: Vec<_> = ARCHITECTURES.iter().map(|a| (a.name, *a)).collect();
        let architecture = root.one_of("architecture", &known)?;
        let weights = root.texts("weights")?;
        let container = root.text_if("container")?;
        let tokenizer = root.text_if("tokenizer")?;
        for name in weights.iter().chain(&tokenizer) {
            root.check_file_name("weights or tokenizer", name)?;
        }
        let naming = Naming::read(&root.section("tensors")?)?;
        for part in ["sizes", "options", "tokens"] {
            root.section(part)?;
        }
        root.finish()?;
        Ok(Self {
            file: file.to_owned(),
            folder: folder.into(),
            name,
            architecture,
            weights,
            container,
            tokenizer,
            naming,
            table,
        })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The architecture.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Path of the tokenizer's file, if the model has one.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        self.tokenizer.as_ref().map(|name| self.folder.join(name))
    }

    /// The program with the weights of the manifest's files.
    ///
    /// # Errors
    /// A file that is missing or malformed, and as [`Self::program_with`].
    pub fn program(&self) -> Result<Program, Error> {
        let mut store = Store::default();
        for name in &self.weights {
            let path = self.folder.join(name);
            let kind = match &self.container {
                Some(kind) => kind.as_str(),
                None => path.extension().and_then(|e| e.to_str()).unwrap_or(""),
            };
            store.add_file(&path, kind).map_err(|error| match error {
                store::Failed::Kind(kinds) => Error::Manifest {
                    file: self.file.clone(),
                    key: "container".to_owned(),
                    expected: format!("one of {kinds}, said or as the end of {name}"),
                    got: format!("`{kind}`"),
                },
                store::Failed::File(error) => error,
            })?;
        }
        self.program_with(&store)
    }

    /// The program with tensors from `store`.
    ///
    /// # Errors
    /// [`Error::Manifest`] for a key that the architecture misses, does not know or cannot have,
    /// [`Error::Tensors`] with every tensor that is missing, unused, or of another dtype or shape.
    pub fn program_with(&self, store: &Store) -> Result<Program, Error> {
        let root = Section::root(&self.file, &self.table);
        let source = Source {
            sizes: root.section("sizes")?,
            options: root.section("options")?,
            tokens: root.section("tokens")?,
        };
        let mut b = ProgramBuilder::new(&self.name);
        b.metadata("architecture", self.architecture.name);
        if let Some(tokenizer) = &self.tokenizer {
            b.metadata(TOKENIZER, tokenizer);
        }
        let mut layers = Layers::new(b, Tensors::new(store, &self.naming));
        (self.architecture.build)(&source, &mut layers)?;
        for section in [&source.sizes, &source.options, &source.tokens] {
            section.finish()?;
        }
        layers.finish(&self.file)
    }
}
