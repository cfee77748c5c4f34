//! A version as its configuration and its files say it, before it is served.

use std::path::Path;
use std::sync::{Arc, Weak};

use lazybatch_graph::{SharedProgram, Tensor};

use super::ensemble::{self, Made, Part};
use super::load;
use super::texts::Texts;
use crate::chain::{self, Chain};
use crate::config::controls::{check_states, initial_states, narrowed};
use crate::config::{Config, Known, Settings, complete, not_optional};
use crate::error::{Error, Result};
use crate::host::{Host, Text};
use crate::model::Served;
use crate::proto::ModelConfig;
use crate::proto::model_config::SchedulingChoice;

/// What a version is to run.
pub enum Plan {
    /// A program.
    Program(SharedProgram),
    /// Other versions, which are served, one behind the other.
    Chain(Chain),
}

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
    /// Its inputs and outputs in the program's order; none of a chain.
    pub known: Known,
    /// States with which sequences start, in the order of its carried inputs; zeros if `None`.
    pub initial: Option<Vec<Tensor>>,
    /// Shapes at the edge begin with an axis of samples.
    pub batched: bool,
    /// What it is to run.
    pub plan: Plan,
    /// Its tokenizer.
    pub text: Option<Arc<dyn Text>>,
    /// What its program is made of, if it is an ensemble's: a step each, as far as it is served.
    pub parts: Vec<Weak<Served>>,
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
        let (settings, mut ignored) = Settings::of(&config)?;
        let mut proto = config.proto;
        let name = proto.name.clone();
        let dir = folder.join(version.to_string());
        let of_model = |e: Error| Error::Invalid(format!("model {name}: {e}"));
        let (loaded, texts, parts) = match ensemble::steps(&proto).map_err(of_model)? {
            Some(steps) => match ensemble::load(&dir, &proto, steps, part).map_err(of_model)? {
                Made::Program(loaded, texts, parts) => (*loaded, texts, parts),
                Made::Chain(chain) => {
                    return Ok(Self::of_chain(proto, settings, ignored, chain));
                }
            },
            None => {
                let mut import = settings.import.clone();
                import.name = Some(name.clone());
                let loaded = load::load(&dir, &proto.default_model_filename, &import)?;
                let text = host.text(&loaded.program, &loaded.text_folder);
                let text = text.map_err(|e| Error::Invalid(format!("model {name}: {e}")))?;
                (loaded, Texts::of_model(text.map(Arc::from)), Vec::new())
            }
        };
        let mut known = loaded.known();
        (known.reads_text, known.writes_text) = (texts.reads, texts.writes);
        for control in &settings.controls {
            control.fit(&name, &mut known)?;
        }
        let initial = match &proto.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(b)) => {
                check_states(b, &known).and_then(|()| initial_states(b, &known, folder))
            }
            _ => Ok(None),
        };
        let initial = initial.map_err(of_model)?;
        if let Some(SchedulingChoice::SequenceBatching(b)) = &proto.scheduling_choice {
            ignored.extend(narrowed(b));
        }
        ignored.extend(not_optional(&proto, &known));
        ignored.extend(contradiction(&proto, loaded.platform));
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
            plan: Plan::Program(Arc::new(program)),
            text: texts.codec,
            parts,
        })
    }

    /// Of an ensemble that is a chain, whose configuration says all.
    fn of_chain(
        mut config: ModelConfig,
        settings: Settings,
        mut ignored: Vec<String>,
        chain: Chain,
    ) -> Self {
        ignored.extend(chain::unhonoured(&config));
        config.platform = ensemble::PLATFORM.into();
        Self {
            platform: config.platform.clone(),
            known: chain::texts(&config),
            initial: None,
            batched: chain.is_batched(),
            plan: Plan::Chain(chain),
            text: None,
            parts: Vec::new(),
            config,
            settings,
            ignored,
        }
    }
}

/// The platform or backend that a configuration asks for, if the model's file, which is of
/// `platform`, is not for it. The file decides.
fn contradiction(config: &ModelConfig, platform: &str) -> Option<String> {
    // Platforms are named by their backend, and by what it reads.
    let runs = |backend: &str| {
        let rest = platform.strip_prefix(backend);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    let stated = match (config.platform.as_str(), config.backend.as_str()) {
        (stated, _) if !stated.is_empty() && stated != platform => format!("platform {stated:?}"),
        (_, stated) if !stated.is_empty() && !runs(stated) => format!("backend {stated:?}"),
        _ => return None,
    };
    Some(format!("{stated}, beside a model that is {platform}"))
}

#[cfg(test)]
mod tests {
    use lazybatch_graph::Program;
    use lazybatch_kernels::Device;
    use lazybatch_sla::profile::ModelProfile;

    use super::*;
    use crate::config::Cut;

    /// Knows no tokenizer, and runs nothing.
    struct Reads;

    impl Host for Reads {
        fn device(&self) -> std::result::Result<Box<dyn Device>, String> {
            Err("nothing is run".into())
        }
        fn text(
            &self,
            _: &Program,
            _: &Path,
        ) -> std::result::Result<Option<Box<dyn Text>>, String> {
            Ok(None)
        }
        fn measure(
            &self,
            _: &SharedProgram,
            _: u32,
            _: Cut,
        ) -> std::result::Result<Option<ModelProfile>, String> {
            Ok(None)
        }
    }

    #[test]
    fn what_a_configuration_asks_of_its_model_in_vain_is_listed() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/models");
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("1")).unwrap();
        let file = folder.path().join("1/model.onnx");
        std::fs::copy(models.join("add.onnx"), file).unwrap();
        let input = |name: &str, more: &str| {
            format!("input {{ name: {name:?} data_type: TYPE_FP32 dims: 16 {more} }} ")
        };
        let inputs = input("INPUT0", "") + &input("INPUT1", "optional: true");
        let text = inputs
            + "name: \"add\" max_batch_size: 4 platform: \"tensorrt_plan\"
               instance_group { count: 2 kind: KIND_CPU }";
        let config = Config::parse("c", &text).unwrap();
        let part = |name: &str, _: i64| Err(Error::NotFound(name.to_owned()));
        let read = Version::read(&Reads, folder.path(), config, 1, &part).unwrap();
        let expected = [
            "instance_group",
            "input[\"INPUT1\"].optional",
            "platform \"tensorrt_plan\", beside a model that is onnxruntime_onnx",
        ];
        assert_eq!(read.ignored, expected);
        assert_eq!(read.platform, "tensorrt_plan", "answered as it is");
    }

    #[test]
    fn a_platform_that_is_not_the_files_is_named() {
        let told = |text: &str, platform| {
            let config = Config::parse("c", text).unwrap();
            contradiction(&config.proto, platform)
        };
        let onnx = "onnxruntime_onnx";
        for fits in [
            "",
            "platform: \"onnxruntime_onnx\"",
            "backend: \"onnxruntime\"",
            "platform: \"onnxruntime_onnx\" backend: \"onnxruntime\"",
        ] {
            assert_eq!(told(fits, onnx), None, "{fits}");
        }
        assert_eq!(told("backend: \"lazybatch\"", "lazybatch_program"), None);
        for (text, expected) in [
            ("platform: \"tensorrt_plan\"", "platform \"tensorrt_plan\""),
            ("backend: \"onnx\"", "backend \"onnx\""),
            (
                "platform: \"onnxruntime_onnx\" backend: \"pytorch\"",
                "backend \"pytorch\"",
            ),
        ] {
            let expected = format!("{expected}, beside a model that is {onnx}");
            assert_eq!(told(text, onnx), Some(expected));
        }
    }
}
