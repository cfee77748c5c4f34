//! Weights as their publishers pack them, without a manifest: what it would say is read from the
//! files beside them.
//!
//! A `config.json` of Hugging Face transformers says kind and sizes (`bert`, `llama`);
//! `modules.json` of Sentence Transformers what a BERT answers; `tokenizer.json` is the tokenizer.
//! Torchvision's MobileNetV2 is known by its tensors. What we would compute otherwise than the
//! publisher (another activation, scaled rotary positions, layers behind the encoder) is refused.

use std::path::Path;

use serde_json::Value as Json;
use toml::{Table, Value};

use super::keys::Section;
use super::{FORMAT, Manifest};
use crate::error::Error;
use crate::weights::WeightFile;

/// Most tokens of an answer where `generation_config.json` does not say.
const MAX_STEPS: usize = 256;

/// What a manifest beside `weights` would say.
///
/// # Errors
/// Files that cannot be read, and [`Error::Manifest`] with file and key where they say what we do
/// not compute, or too little.
pub(super) fn manifest(weights: &Path) -> Result<Manifest, Error> {
    let folder = weights.parent().unwrap_or(Path::new(""));
    let file = WeightFile::open(weights)?;
    let config = folder.join("config.json");
    let shown = config.display().to_string();
    let (said_by, mut table) = if let Some(table) = read(&config)? {
        let config = Section::root(&shown, &table);
        let read = match config.one_of("model_type", &[("bert", 'b'), ("llama", 'l')])? {
            'b' => bert(folder, &config, &file)?,
            _ => llama(folder, &config)?,
        };
        (shown, read)
    } else if let Some(classes) = mobilenet_classes(&file)? {
        (weights.display().to_string(), mobilenet(classes))
    } else {
        let what = "expected a manifest model.toml or the publisher's config.json beside it, or \
                    tensors of torchvision's MobileNetV2, got weights alone";
        return Err(Error::File {
            path: weights.display().to_string(),
            what: what.to_owned(),
        });
    };
    let name = folder.file_name().or(weights.file_stem());
    let name = name.map_or("model".into(), |n| n.to_string_lossy());
    let weights = weights.file_name().unwrap_or_default().to_string_lossy();
    table.insert("format".into(), FORMAT.into());
    table.insert("name".into(), name.as_ref().into());
    table.insert("weights".into(), weights.as_ref().into());
    if folder.join("tokenizer.json").is_file() {
        table.insert("tokenizer".into(), "tokenizer.json".into());
    }
    Manifest::of(&said_by, folder, table)
}

/// A JSON file as a table; `None` where there is none.
fn read(path: &Path) -> Result<Option<Table>, Error> {
    match read_any(path)? {
        None => Ok(None),
        Some(Json::Object(map)) => {
            let pairs = map.into_iter();
            let kept = pairs.filter_map(|(key, value)| Some((key, converted(value)?)));
            Ok(Some(kept.collect()))
        }
        Some(_) => Err(no_object(path, &"another value")),
    }
}

fn read_any(path: &Path) -> Result<Option<Json>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read(path).map_err(|e| no_object(path, &e))?;
    let value = serde_json::from_slice(&text).map_err(|e| no_object(path, &e))?;
    Ok(Some(value))
}

fn no_object(path: &Path, got: &dyn std::fmt::Display) -> Error {
    wrong(path, &format!("expected a JSON object, got {got}"))
}

fn wrong(path: &Path, what: &str) -> Error {
    Error::File {
        path: path.display().to_string(),
        what: what.to_owned(),
    }
}

/// The same value; `None` for null, which stands for a key that is not there.
fn converted(json: Json) -> Option<Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(flag) => flag.into(),
        Json::Number(n) => match n.as_i64() {
            Some(n) => n.into(),
            None => n.as_f64()?.into(),
        },
        Json::String(text) => text.into(),
        Json::Array(items) => Value::Array(items.into_iter().filter_map(converted).collect()),
        Json::Object(map) => {
            let pairs = map.into_iter();
            Value::Table(
                pairs
                    .filter_map(|(k, v)| Some((k, converted(v)?)))
                    .collect(),
            )
        }
    })
}

/// Whole numbers as a manifest's table has them.
fn sizes<const N: usize>(all: [(&str, Option<usize>); N]) -> Table {
    let set = all.into_iter().filter_map(|(key, n)| Some((key, n?)));
    set.map(|(key, n)| (key.to_owned(), Value::Integer(n as i64)))
        .collect()
}

fn table<const N: usize>(all: [(&str, Value); N]) -> Table {
    let pairs = all.into_iter();
    pairs.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn texts(all: &[&str]) -> Value {
    Value::Array(all.iter().map(|text| (*text).into()).collect())
}

fn bert(folder: &Path, config: &Section<'_>, file: &WeightFile) -> Result<Table, Error> {
    config.one_of_or_first("position_embedding_type", &[("absolute", ())])?;
    if config.flag_or("is_decoder", false)? {
        return config.fail("is_decoder", "false", "true");
    }
    let act = config.one_of_or_first("hidden_act", &[("gelu", "gelu"), ("relu", "relu")])?;
    let eps = f64::from(config.positive_or("layer_norm_eps", 1e-12)?);
    let positions = config.size("max_position_embeddings")?;
    let mut options = table([("act", act.into()), ("eps", eps.into())]);
    let mut max_len = None;
    match read_any(&folder.join("modules.json"))? {
        Some(modules) => {
            let (result, normalise) = sentence(folder, &modules)?;
            options.insert("result".into(), result.into());
            options.insert("normalise".into(), normalise.into());
            let said = folder.join("sentence_bert_config.json");
            if let Some(table) = read(&said)? {
                let shown = said.display().to_string();
                max_len = Section::root(&shown, &table).size_if("max_seq_length")?;
            }
        }
        None => {
            options.insert("result".into(), "rows".into());
        }
    }
    let sizes = sizes([
        ("vocab", Some(config.size("vocab_size")?)),
        ("hidden", Some(config.size("hidden_size")?)),
        ("layers", Some(config.layers("num_hidden_layers")?)),
        ("heads", Some(config.size("num_attention_heads")?)),
        ("ffn", Some(config.size("intermediate_size")?)),
        ("token_types", config.size_if("type_vocab_size")?),
        ("max_len", max_len.map(|n| n.min(positions))),
        ("positions", Some(positions)),
    ]);
    let is_inside = file.contains("bert.embeddings.word_embeddings.weight");
    let prefix = if is_inside { "bert." } else { "" };
    // A table of 0, 1, 2, ..., and a layer that none of these answers comes from.
    let ignored = ["embeddings.position_ids", "pooler.dense.*"].map(|n| format!("{prefix}{n}"));
    let mut tensors = table([("ignore", texts(&[&ignored[0], &ignored[1]]))]);
    if is_inside {
        tensors.insert("prefix".into(), prefix.into());
    }
    Ok(table([
        ("architecture", "bert".into()),
        ("sizes", sizes.into()),
        ("options", options.into()),
        ("tensors", tensors.into()),
    ]))
}

/// What Sentence Transformers put behind a BERT: how rows become one, and whether that is
/// normalised.
fn sentence(folder: &Path, modules: &Json) -> Result<(&'static str, bool), Error> {
    let path = folder.join("modules.json");
    let known = "a list of modules Transformer, Pooling and perhaps Normalize";
    let unknown = |got: &str| wrong(&path, &format!("expected {known}, got {got}"));
    let modules = modules.as_array().ok_or_else(|| unknown("another value"))?;
    let text = |module: &Json, key: &str| -> String {
        let value = module.get(key).and_then(Json::as_str);
        value.unwrap_or_default().to_owned()
    };
    let kinds: Vec<String> = modules.iter().map(|m| text(m, "type")).collect();
    let last: Vec<&str> = kinds
        .iter()
        .map(|kind| kind.rsplit('.').next().unwrap_or(kind))
        .collect();
    let normalise = match last[..] {
        ["Transformer", "Pooling"] => false,
        ["Transformer", "Pooling", "Normalize"] => true,
        _ => return Err(unknown(&last.join(", "))),
    };
    let place = text(&modules[1], "path");
    if place.split(['/', '\\']).any(|part| part == "..") || Path::new(&place).is_absolute() {
        return Err(unknown(&format!("the path {place}")));
    }
    let pooling = folder.join(place).join("config.json");
    let Some(said) = read(&pooling)? else {
        return Err(wrong(
            &pooling,
            "expected how rows become one, got no such file",
        ));
    };
    let modes: Vec<&str> = said
        .iter()
        .filter(|(key, value)| key.starts_with("pooling_mode") && value.as_bool() == Some(true))
        .map(|(key, _)| key.as_str())
        .collect();
    match modes[..] {
        ["pooling_mode_mean_tokens"] => Ok(("mean", normalise)),
        ["pooling_mode_cls_token"] => Ok(("first", normalise)),
        _ => {
            let expected = "one of pooling_mode_mean_tokens, pooling_mode_cls_token";
            let what = format!("expected {expected}, got [{}]", modes.join(", "));
            Err(wrong(&pooling, &what))
        }
    }
}

fn llama(folder: &Path, config: &Section<'_>) -> Result<Table, Error> {
    config.one_of_or_first("hidden_act", &[("silu", ())])?;
    if config.flag_or("mlp_bias", false)? {
        return config.fail("mlp_bias", "false", "true");
    }
    let eps = f64::from(config.positive_or("rms_norm_eps", 1e-6)?);
    let theta = f64::from(rope_theta(config)?);
    let vocab = config.size("vocab_size")?;
    let positions = config.number("max_position_embeddings", 2..=1 << 20)?;
    let stop = i64::from(config.token("eos_token_id", vocab)?);
    let mut tokens = table([("stop", stop.into())]);
    let mut steps = MAX_STEPS;
    let generation = folder.join("generation_config.json");
    if let Some(table) = read(&generation)? {
        let shown = generation.display().to_string();
        let said = Section::root(&shown, &table);
        said.only("eos_token_id", stop)?;
        steps = said.size_if("max_new_tokens")?.unwrap_or(steps);
    }
    let steps = steps.min(positions / 2);
    tokens.insert("max_steps".into(), Value::Integer(steps as i64));
    if !adds_tokens(&folder.join("tokenizer.json"))?
        && let Some(start) = config.number_if("bos_token_id", 0..=vocab - 1)?
    {
        tokens.insert("start".into(), Value::Integer(start as i64));
    }
    let sizes = sizes([
        ("vocab", Some(vocab)),
        ("hidden", Some(config.size("hidden_size")?)),
        ("layers", Some(config.layers("num_hidden_layers")?)),
        ("heads", Some(config.size("num_attention_heads")?)),
        ("kv_heads", config.size_if("num_key_value_heads")?),
        ("head_dim", config.size_if("head_dim")?),
        ("ffn", Some(config.size("intermediate_size")?)),
        ("positions", Some(positions)),
    ]);
    let is_tied = config.flag_or("tie_word_embeddings", false)?;
    let options = table([
        ("eps", eps.into()),
        ("rope_theta", theta.into()),
        ("tied", is_tied.into()),
        (
            "attention_bias",
            config.flag_or("attention_bias", false)?.into(),
        ),
    ]);
    // Frequencies that follow from `rope_theta`, and a copy of the table that both ends share.
    let mut ignored = vec!["*.rotary_emb.inv_freq"];
    if is_tied {
        ignored.push("lm_head.weight");
    }
    Ok(table([
        ("architecture", "llama".into()),
        ("sizes", sizes.into()),
        ("options", options.into()),
        ("tokens", tokens.into()),
        ("tensors", table([("ignore", texts(&ignored))]).into()),
    ]))
}

/// Base of the frequencies of rotary positions: transformers 5 says it in `rope_parameters`, earlier
/// versions beside the sizes.
fn rope_theta(config: &Section<'_>) -> Result<f32, Error> {
    config.absent("rope_scaling", "null")?;
    let parameters = config.section("rope_parameters")?;
    for key in ["rope_type", "type"] {
        parameters.one_of_or_first(key, &[("default", ())])?;
    }
    for section in [config, &parameters] {
        let turned = section.positive_or("partial_rotary_factor", 1.0)?;
        if turned != 1.0 {
            return section.fail("partial_rotary_factor", "1", turned.to_string());
        }
    }
    let beside = config.positive_or("rope_theta", 10_000.0)?;
    let theta = parameters.positive_or("rope_theta", beside)?;
    parameters.finish()?;
    Ok(theta)
}

/// Whether a tokenizer puts tokens of its own around a text.
fn adds_tokens(path: &Path) -> Result<bool, Error> {
    let read = read_any(path)?;
    let behind = read.as_ref().and_then(|json| json.get("post_processor"));
    Ok(behind.is_some_and(|json| json.to_string().contains("SpecialToken")))
}

/// Classes of torchvision's MobileNetV2, if these are its tensors.
fn mobilenet_classes(file: &WeightFile) -> Result<Option<usize>, Error> {
    if !file.contains("features.18.0.weight") || !file.contains("classifier.1.weight") {
        return Ok(None);
    }
    Ok(file.tensor("classifier.1.weight")?.dims.first().copied())
}

fn mobilenet(classes: usize) -> Table {
    table([
        ("architecture", "mobilenet-v2".into()),
        ("sizes", sizes([("classes", Some(classes))]).into()),
        (
            "tensors",
            table([("ignore", texts(&["*.num_batches_tracked"]))]).into(),
        ),
    ])
}
