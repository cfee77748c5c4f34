//! A version's files as a program.
//!
//! A version folder holds one of: a folder that `lazybatch import` wrote (`program.json`), an ONNX
//! file, a manifest (`model.toml`) of weight files or of an encoder and a decoder, or weights as
//! their publisher packs them (`model.safetensors`).

use std::path::{Path, PathBuf};

use lazybatch_graph::{Dim, Manifest, Program, folder, manifest, optimize};
use lazybatch_kernels::import;

use crate::config::{Known, KnownTensor};
use crate::dtype::DataType;
use crate::error::{Error, Result};
use crate::files::file_in;

/// A version's model.
pub struct Loaded {
    /// The program.
    pub program: Program,
    /// Platform, as metadata states it.
    pub platform: &'static str,
    /// Folder in which its tokenizer lies, if it has one.
    pub text_folder: PathBuf,
}

/// Names that a model file may have.
const FILES: [&str; 4] = [
    "program.json",
    "model.toml",
    "model.onnx",
    "model.safetensors",
];

/// Reads the model in `dir`; `file` is the name of its file where the configuration says so.
///
/// # Errors
/// No file of a known name, or whatever is wrong with it.
pub fn load(dir: &Path, file: &str, options: &import::Options) -> Result<Loaded> {
    let found = if file.is_empty() {
        FILES.iter().map(|f| dir.join(f)).find(|f| f.is_file())
    } else {
        Some(file_in(dir, "default_model_filename", file)?).filter(|f| f.is_file())
    };
    let Some(path) = found else {
        let expected = match file {
            "" => format!("one of {}", FILES.join(", ")),
            file => file.to_owned(),
        };
        return Err(Error::expected(
            dir.display(),
            expected,
            "none of that name",
        ));
    };
    let invalid = |e: &dyn std::error::Error| Error::Invalid(e.to_string());
    let mut loaded = Loaded::new(Program::default(), "lazybatch_program", dir);
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => loaded.program = folder::load(dir).map_err(|e| invalid(&e))?,
        Some("toml" | "safetensors") if manifest::is_manifest(&path) => {
            let manifest = Manifest::open(&path).map_err(|e| invalid(&e))?;
            let program = manifest.program().and_then(optimize);
            loaded.program = program.map_err(|e| invalid(&e))?;
            loaded.platform = "lazybatch_manifest";
            if let Some(folder) = manifest.tokenizer().as_deref().and_then(Path::parent) {
                loaded.text_folder = folder.to_owned();
            }
        }
        _ => {
            loaded.program = import::import(&path, options).map_err(|e| invalid(&e))?;
            for note in loaded.program.notes() {
                tracing::warn!(model = %path.display(), "{note}");
            }
            loaded.platform = "onnxruntime_onnx";
        }
    }
    Ok(loaded)
}

impl Loaded {
    /// A program that is no file's; `folder` is that of its version.
    pub fn new(program: Program, platform: &'static str, folder: &Path) -> Self {
        Self {
            program,
            platform,
            text_folder: folder.to_owned(),
        }
    }

    /// What is known of its inputs and outputs.
    pub fn known(&self) -> Known {
        let program = &self.program;
        let tensor = |name: &str, ty: &lazybatch_graph::TensorType, is_carried| {
            let own = DataType::of_program(ty.dtype);
            let stated = program.stated_type(name).map(DataType::of_onnx);
            KnownTensor {
                name: name.to_owned(),
                data_type: stated.filter(|t| t.fits(ty.dtype)).unwrap_or(own),
                held: ty.dtype,
                is_sequence: ty.dims.first() == Some(&Dim::Len),
                fixed: ty.fixed_dims().to_vec(),
                is_carried,
                is_control: program
                    .sampling()
                    .is_some_and(|i| program.input(i).name == name),
            }
        };
        let carries_in = |i: usize| program.carries.iter().any(|c| c.input.index() == i);
        let carries_out = |o: usize| program.carries.iter().any(|c| c.output.index() == o);
        let inputs = program.inputs.iter().enumerate();
        let outputs = program.outputs.iter().enumerate();
        Known {
            inputs: inputs
                .map(|(i, d)| tensor(&d.name, &d.ty, carries_in(i)))
                .collect(),
            outputs: outputs
                .map(|(o, d)| tensor(&d.name, &d.ty, carries_out(o)))
                .collect(),
            reads_text: false,
            writes_text: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_imported_folder_states_the_types_of_its_graph() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/models");
        let version = tempfile::tempdir().unwrap();
        let file = version.path().join("model.onnx");
        std::fs::copy(models.join("add_int.onnx"), file).unwrap();
        let load = |dir: &Path| load(dir, "", &import::Options::default()).unwrap();
        let types = |loaded: &Loaded| -> Vec<DataType> {
            let known = loaded.known();
            let all = known.inputs.iter().chain(&known.outputs);
            all.map(|tensor| tensor.data_type).collect()
        };
        let of_file = load(version.path());
        assert_eq!(types(&of_file), [DataType::Int64; 4]);
        let imported = version.path().join("imported");
        folder::save(&of_file.program, &imported).unwrap();
        let of_folder = load(&imported);
        assert_eq!(of_folder.platform, "lazybatch_program");
        assert_eq!(types(&of_folder), types(&of_file));
    }
}
