//! A version as its configuration and its files say it, before it is served.

use std::path::Path;
use std::sync::Arc;

use lazybatch_graph::{SharedProgram, Tensor};

use super::ensemble::{self, Part};
use super::load;
use super::texts::Texts;
use crate::config::controls::initial_states;
use crate::config::{Config, Known, Settings, complete};
use crate::error::{Error, Result};
use crate::host::{Host, Text};
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;

/// A version that was read.
pub struct Version {
    /// Its configuration, completed.
    pub config: ModelConfig,
    /// What the configuration means.
    pub settings: Settings,
    /// What of it is not honoured.
    pub ignored: Vec<String>,
    /// What kind of file it came from.
    pub platform: String,
    /// Its inputs and outputs in the program's order.
    pub known: Known,
    /// States with which sequences start, in the order of its carried inputs; zeros if `None`.
    pub initial: Option<Vec<Tensor>>,
    /// Shapes at the edge begin with an axis of samples.
    pub batched: bool,
    /// Its program.
    pub program: SharedProgram,
    /// Its tokenizer.
    pub text: Option<Arc<dyn Text>>,
}

impl Version {
    /// Reads version `version` of a model, whose folder is `folder`; `part` gives the models that an
    /// ensemble is made of, by name and stated version.
    ///
    /// # Errors
    /// Whatever is wrong with the configuration or the model's file.
    pub fn read(
        host: &dyn Host,
        folder: &Path,
        config: Config,
        version: u64,
        part: &dyn Fn(&str, i64) -> Result<Part>,
    ) -> Result<Self> {
        let (settings, ignored) = Settings::of(&config)?;
        let mut proto = config.proto;
        let name = proto.name.clone();
        let dir = folder.join(version.to_string());
        let of_model = |e: Error| Error::Invalid(format!("model {name}: {e}"));
        let (loaded, texts) = match ensemble::steps(&proto).map_err(of_model)? {
            Some(steps) => ensemble::load(&dir, &proto, steps, part).map_err(of_model)?,
            None => {
                let mut import = settings.import.clone();
                import.name = Some(name.clone());
                let loaded = load::load(&dir, &proto.default_model_filename, &import)?;
                let text = host.text(&loaded.program, &loaded.text_folder);
                let text = text.map_err(|e| Error::Invalid(format!("model {name}: {e}")))?;
                (loaded, Texts::of_model(text.map(Arc::from)))
            }
        };
        let mut known = loaded.known();
        (known.reads_text, known.writes_text) = (texts.reads, texts.writes);
        for control in &settings.controls {
            control.fit(&name, &mut known)?;
        }
        let initial = match &proto.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(b)) => initial_states(b, &known, folder),
            _ => Ok(None),
        };
        let initial = initial.map_err(of_model)?;
        let batched = complete(&mut proto, &known)?;
        if proto.platform.is_empty() && proto.backend.is_empty() {
            proto.platform = loaded.platform.into();
        }
        let platform = match proto.platform.as_str() {
            "" => loaded.platform.to_owned(),
            stated => stated.to_owned(),
        };
        let mut program = loaded.program;
        program.name.clone_from(&name);
        Ok(Self {
            config: proto,
            settings,
            ignored,
            platform,
            known,
            initial,
            batched,
            program: Arc::new(program),
            text: texts.codec,
        })
    }
}
