//! What the server is given by the program that runs it: devices, tokenizers, latencies.

use std::path::Path;

use lazybatch_graph::{Program, SharedProgram, Tensor};
use lazybatch_kernels::Device;
use lazybatch_sla::profile::ModelProfile;

use crate::config::Cut;
use crate::gpus::Gpus;

/// Text in and out of a model that computes with token ids.
pub trait Text: Send + Sync {
    /// A request's inputs for a text, one per input of the program.
    ///
    /// # Errors
    /// Why the text has none.
    fn inputs(&self, text: &str) -> Result<Vec<Tensor>, String>;

    /// The text that outputs stand for; `None` for models that write none.
    ///
    /// # Errors
    /// Why the outputs are no text.
    fn answer(&self, outputs: &[Tensor]) -> Result<Option<String>, String>;
}

/// What the server is given.
pub trait Host: Send + Sync {
    /// A device for an engine, empty.
    ///
    /// # Errors
    /// Why there is none.
    fn device(&self) -> Result<Box<dyn Device>, String>;

    /// Whether that is a GPU.
    fn has_gpu(&self) -> bool {
        false
    }

    /// Who tells figures of the machine's GPUs, where one serves.
    fn gpus(&self) -> Option<Box<dyn Gpus>> {
        None
    }

    /// The tokenizer of a program, whose file lies in `folder`; `None` if it has none.
    ///
    /// # Errors
    /// A tokenizer that cannot be read.
    fn text(&self, program: &Program, folder: &Path) -> Result<Option<Box<dyn Text>>, String>;

    /// Latencies of a program at up to `max_batch` samples, cut so into segments; `None` where
    /// nothing is measured.
    ///
    /// # Errors
    /// What the device refuses.
    fn measure(
        &self,
        program: &SharedProgram,
        max_batch: u32,
        cut: Cut,
    ) -> Result<Option<ModelProfile>, String>;
}
