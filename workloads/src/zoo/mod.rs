//! Models by name.
//!
//! Most have synthetic weights, seeded and scaled so that activations stay finite: they are for
//! speed and scheduling, with the layer tables of the publications that each file cites. Their
//! decoders do not learn when to stop, so the bound on steps ends them; simulations take output
//! lengths from a distribution instead. [`phonemes`] is a trained model, and [`g2p_en`] reads one
//! from a package.
//!
//! Adding a model is a file and a line in [`ENTRIES`].

pub mod bert;
pub mod cnn_tiny;
pub mod decoder;
pub mod dlrm;
pub mod g2p_en;
pub mod gnmt;
pub mod las;
pub mod mobilenet_v1;
mod parts;
pub mod phonemes;
pub mod resnet50;
pub mod rnnt;
pub mod transformer;
pub mod vgg16;

use lazybatch_graph::{Error, Program, optimize};
use lazybatch_sla::Nanos;

pub use parts::num_parameters;

/// A model of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name on command lines and in reports.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Builds the program as its layers are written; [`Entry::program`] is what to serve.
    pub build: fn() -> Result<Program, Error>,
    /// SLA target when none is asked for.
    pub sla: Nanos,
    /// Distribution of lengths when none is asked for, as
    /// [`Lengths::load`](crate::lengths::Lengths::load) reads it.
    pub lengths: &'static str,
    /// Most passes of its `UntilStop` block; `None` for models without one.
    pub max_output_len: Option<u32>,
}

impl Entry {
    /// The optimized program.
    ///
    /// # Errors
    /// A bug of the builder or of a pass.
    pub fn program(&self) -> Result<Program, Error> {
        optimize((self.build)()?)
    }

    /// The model with `program`, which [`Entry::program`] gave.
    pub fn served<'a>(&self, program: &'a Program) -> Served<'a> {
        Served {
            name: self.name,
            program,
            sla: self.sla,
            lengths: self.lengths,
            max_output_len: self.max_output_len,
        }
    }
}

/// A program and what is known of its requests, from the zoo or from elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// Name of the model.
    pub name: &'a str,
    /// Its optimized program.
    pub program: &'a Program,
    /// SLA target when none is asked for.
    pub sla: Nanos,
    /// Distribution of lengths, as [`Lengths::load`](crate::lengths::Lengths::load) reads it.
    pub lengths: &'a str,
    /// Most passes of its `UntilStop` block; `None` for models without one.
    pub max_output_len: Option<u32>,
}

/// Target of most models. Source: the evaluation of LazyBatching, arXiv 2010.13103.
const SLA: Nanos = Nanos::from_ms(100);
/// Target of speech models. Source: the server scenario of MLPerf Inference for RNN-T.
const SPEECH_SLA: Nanos = Nanos::from_ms(1000);
/// Target of language models, for a whole answer.
const DECODER_SLA: Nanos = Nanos::from_ms(1000);
/// Lengths of models without sequences.
const NO_LENGTHS: &str = "fixed:0:0";

/// All models.
#[rustfmt::skip]
pub const ENTRIES: &[Entry] = &[
    Entry { name: "resnet50", about: "ResNet-50 image classifier", build: resnet50::build, sla: SLA, lengths: NO_LENGTHS, max_output_len: None },
    Entry { name: "vgg16", about: "VGG-16 image classifier", build: vgg16::build, sla: SLA, lengths: NO_LENGTHS, max_output_len: None },
    Entry { name: "mobilenet-v1", about: "MobileNetV1 1.0/224 image classifier", build: mobilenet_v1::build, sla: SLA, lengths: NO_LENGTHS, max_output_len: None },
    Entry { name: "gnmt", about: "GNMT translation, 8 + 8 LSTM layers of 1024", build: || gnmt::Config::FULL.build(), sla: SLA, lengths: "translation-long", max_output_len: Some(gnmt::Config::FULL.max_len) },
    Entry { name: "gnmt-small", about: "GNMT translation, 2 + 2 LSTM layers of 512", build: || gnmt::Config::SMALL.build(), sla: SLA, lengths: "translation-long", max_output_len: Some(gnmt::Config::SMALL.max_len) },
    Entry { name: "gnmt-tiny", about: "GNMT translation, 3 + 3 LSTM layers of 16, for tests", build: || gnmt::Config::TINY.build(), sla: SLA, lengths: "translation-short", max_output_len: Some(gnmt::Config::TINY.max_len) },
    Entry { name: "transformer", about: "Transformer-base translation", build: || transformer::Config::BASE.build(), sla: SLA, lengths: "translation-long", max_output_len: Some(transformer::Config::BASE.max_len) },
    Entry { name: "transformer-tiny", about: "two-layer transformer for tests", build: || transformer::Config::TINY.build(), sla: SLA, lengths: "translation-short", max_output_len: Some(transformer::Config::TINY.max_len) },
    Entry { name: "bert-base", about: "BERT-base encoder with pooler", build: || bert::Config::BASE.build(), sla: SLA, lengths: "sentence", max_output_len: None },
    Entry { name: "bert-large", about: "BERT-large encoder with pooler", build: || bert::Config::LARGE.build(), sla: SLA, lengths: "sentence", max_output_len: None },
    Entry { name: "bert-tiny", about: "two-layer BERT for tests", build: || bert::Config::TINY.build(), sla: SLA, lengths: "sentence", max_output_len: None },
    Entry { name: "decoder-1b", about: "decoder-only language model of 1.1 billion parameters", build: || decoder::Config::B1.build(), sla: DECODER_SLA, lengths: "translation-long", max_output_len: Some(decoder::Config::B1.max_len) },
    Entry { name: "decoder-tiny", about: "two-layer decoder for tests", build: || decoder::Config::TINY.build(), sla: SLA, lengths: "translation-short", max_output_len: Some(decoder::Config::TINY.max_len) },
    Entry { name: "las", about: "Listen, Attend and Spell speech recognition", build: las::build, sla: SPEECH_SLA, lengths: "speech", max_output_len: Some(las::MAX_OUT) },
    Entry { name: "rnnt", about: "RNN-T speech recognition", build: rnnt::build, sla: SPEECH_SLA, lengths: "speech", max_output_len: None },
    Entry { name: "dlrm", about: "DLRM recommendation, tables cut to 100,000 rows", build: || dlrm::Config::CUT.build(), sla: SLA, lengths: NO_LENGTHS, max_output_len: None },
    Entry { name: "dlrm-kaggle", about: "DLRM recommendation, all tables of the Kaggle data (2.2 GB)", build: || dlrm::Config::KAGGLE.build(), sla: SLA, lengths: NO_LENGTHS, max_output_len: None },
    Entry { name: "phonemes", about: "English spelling to phonemes, trained by this project", build: phonemes::build, sla: SLA, lengths: "spelling", max_output_len: Some(phonemes::MAX_STEPS) },
    Entry { name: "cnn-tiny", about: "small convolutional classifier for tests", build: cnn_tiny::build, sla: SLA, lengths: NO_LENGTHS, max_output_len: None },
];

/// The model called `name`.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|e| e.name == name)
}

/// Names of all models.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().map(|e| e.name)
}

#[cfg(test)]
mod tests;
