//! Joint distributions of input and output lengths.
//!
//! A [`Lengths`] is a histogram over pairs (input length, output length): counted from a corpus
//! and read from a file ([`Lengths::read`]), computed from a formula ([`parametric`]), or one
//! fixed pair. Lengths are drawn jointly because in translation and speech the output's length
//! follows the input's.

pub mod parametric;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rand::Rng;

use crate::error::{Error, Result};
use crate::traces::source::Source;
use crate::zoo;

/// Header of a histogram file.
const HEADER: [&str; 3] = ["src_len", "tgt_len", "count"];

/// A joint histogram of input and output lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    name: Arc<str>,
    table: Arc<Table>,
}

#[derive(Debug, PartialEq, Eq)]
struct Table {
    /// Distinct pairs in increasing order.
    pairs: Vec<(u32, u32)>,
    /// Sum of the counts up to and including each pair; strictly increasing.
    cumulative: Vec<u64>,
}

impl Lengths {
    /// Every request with the same lengths.
    pub fn fixed(input_len: u32, output_len: u32) -> Self {
        let table = Table {
            pairs: vec![(input_len, output_len)],
            cumulative: vec![1],
        };
        Self {
            name: format!("fixed:{input_len}:{output_len}").into(),
            table: Arc::new(table),
        }
    }

    /// A distribution from counted pairs; equal pairs are added up and zero counts dropped.
    ///
    /// # Errors
    /// [`Error::Parameter`] when nothing is left to draw from.
    pub fn from_counts(
        name: impl Into<Arc<str>>,
        counts: impl IntoIterator<Item = ((u32, u32), u64)>,
    ) -> Result<Self> {
        let name = name.into();
        let mut merged: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (pair, count) in counts {
            let total = merged.entry(pair).or_default();
            *total = total.saturating_add(count);
        }
        let mut table = Table {
            pairs: Vec::new(),
            cumulative: Vec::new(),
        };
        let mut total = 0_u64;
        for (pair, count) in merged.into_iter().filter(|(_, count)| *count > 0) {
            total = total.checked_add(count).ok_or_else(|| {
                Error::parameter(
                    format!("length histogram {name}"),
                    "a total below 2^64",
                    "more",
                )
            })?;
            table.pairs.push(pair);
            table.cumulative.push(total);
        }
        if table.pairs.is_empty() {
            let what = format!("length histogram {name}");
            return Err(Error::parameter(
                what,
                "at least one pair with a count",
                "none",
            ));
        }
        Ok(Self {
            name,
            table: Arc::new(table),
        })
    }

    /// Reads a histogram file: CSV with the header `src_len,tgt_len,count`, optionally gzipped.
    ///
    /// # Errors
    /// [`Error::Io`], or a fault in the file with its line and column.
    pub fn read(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let name = source.name.clone();
        Self::from_source(name, &source)
    }

    /// Parses the text of a histogram file, called `name` in messages.
    ///
    /// # Errors
    /// As [`Lengths::read`].
    pub fn from_csv(name: &str, text: &str) -> Result<Self> {
        Self::from_source(name.to_owned(), &Source::from_text(name, text))
    }

    fn from_source(name: String, source: &Source) -> Result<Self> {
        let (table, columns) = source.csv(&HEADER, &[])?;
        let mut counts = Vec::new();
        for row in table {
            let row = row?;
            let pair = (row.integer(columns[0])?, row.integer(columns[1])?);
            counts.push((pair, row.integer::<u64>(columns[2])?));
        }
        Self::from_counts(name, counts)
    }

    /// The lengths that a command line names: one of [`parametric::NAMES`], `fixed:IN:OUT`, or a
    /// histogram file.
    ///
    /// # Errors
    /// [`Error::Parameter`] for what is none of these, else as [`Lengths::read`].
    pub fn load(spec: &str) -> Result<Self> {
        if let Some(shape) = parametric::by_name(spec) {
            return shape.lengths();
        }
        let expected = || format!("{}, fixed:IN:OUT or a file", parametric::NAMES.join(", "));
        let bad = || Error::parameter("lengths", expected(), format!("`{spec}`"));
        if let Some(fixed) = spec.strip_prefix("fixed:") {
            let (input, output) = fixed.split_once(':').ok_or_else(bad)?;
            let length = |text: &str| text.parse::<u32>().map_err(|_| bad());
            return Ok(Self::fixed(length(input)?, length(output)?));
        }
        let path = Path::new(spec);
        if !path.exists() {
            return Err(bad());
        }
        Self::read(path)
    }

    /// What the distribution is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Draws a pair (input length, output length); uses one number of `rng`.
    pub fn sample(&self, rng: &mut impl Rng) -> (u32, u32) {
        let at = rng.random_range(0..self.total());
        let idx = self.table.cumulative.partition_point(|upto| *upto <= at);
        self.table.pairs[idx]
    }

    /// The pairs with their counts, in increasing order.
    pub fn counts(&self) -> impl Iterator<Item = ((u32, u32), u64)> + '_ {
        let starts = std::iter::once(0).chain(self.table.cumulative.iter().copied());
        let sizes = self
            .table
            .cumulative
            .iter()
            .zip(starts)
            .map(|(end, start)| end - start);
        self.table.pairs.iter().copied().zip(sizes)
    }

    /// Mean input length.
    pub fn mean_input(&self) -> f64 {
        self.mean_of(|(input, _)| input)
    }

    /// Mean output length.
    pub fn mean_output(&self) -> f64 {
        self.mean_of(|(_, output)| output)
    }

    /// Largest input length.
    pub fn max_input(&self) -> u32 {
        self.table.pairs.iter().map(|p| p.0).max().unwrap_or(0)
    }

    /// Largest output length.
    pub fn max_output(&self) -> u32 {
        self.table.pairs.iter().map(|p| p.1).max().unwrap_or(0)
    }

    /// The smallest output length that covers `percent` in a hundred of the outputs.
    pub fn output_percentile(&self, percent: u32) -> u32 {
        let mut marginal: BTreeMap<u32, u64> = BTreeMap::new();
        for ((_, output), count) in self.counts() {
            *marginal.entry(output).or_default() += count;
        }
        let wanted = (u128::from(self.total()) * u128::from(percent.min(100))).div_ceil(100);
        let mut seen = 0_u128;
        for (output, count) in marginal {
            seen += u128::from(count);
            if seen >= wanted {
                return output;
            }
        }
        self.max_output()
    }

    /// The output length that covers 90 % of outputs: what the published policy predicts with.
    pub fn output_p90(&self) -> u32 {
        self.output_percentile(90)
    }

    fn total(&self) -> u64 {
        self.table.cumulative.last().copied().unwrap_or(0)
    }

    fn mean_of(&self, pick: impl Fn((u32, u32)) -> u32) -> f64 {
        let sum: f64 = self
            .counts()
            .map(|(p, count)| f64::from(pick(p)) * count as f64)
            .sum();
        sum / self.total() as f64
    }
}

/// The distribution of a model of the zoo, or the embedded one that suits the name: the default for
/// `--lengths`.
pub fn of_model(name: &str) -> &'static str {
    zoo::find(name).map_or_else(|| default_for_model(name), |e| e.lengths)
}

/// The embedded distribution that suits a model that is not of the zoo, by its name.
///
/// Models without sequences get lengths of 0, which skip per-step blocks. A name that says nothing
/// gets `translation-short`.
pub fn default_for_model(model: &str) -> &'static str {
    const FAMILIES: &[(&[&str], &str)] = &[
        (&["g2p", "spell", "phoneme", "letters"], "spelling"),
        (&["las", "rnnt", "speech", "whisper", "vad"], "speech"),
        (
            &["gnmt", "transformer", "nmt", "seq2seq"],
            "translation-long",
        ),
        (&["bert", "minilm", "embed"], "sentence"),
        (
            &["resnet", "vgg", "mobilenet", "mlp", "mnist", "cnn"],
            "fixed:0:0",
        ),
    ];
    let model = model.to_ascii_lowercase();
    // Short ones are parts of other words: "las" of "classifier".
    let has = |word: &str| match word.len() {
        0..=3 => model
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()) == word),
        _ => model.contains(word),
    };
    let hit = |words: &&[&str]| words.iter().any(|word| has(word));
    FAMILIES
        .iter()
        .find(|(words, _)| hit(words))
        .map_or("translation-short", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const FILE: &str = "src_len,tgt_len,count\n4,3,1\n4,4,6\n9,8,2\n12,20,1\n";

    #[test]
    fn a_file_gives_its_marginals() {
        let lengths = Lengths::from_csv("x.csv", FILE).unwrap();
        assert_eq!(lengths.mean_input(), 5.8);
        assert_eq!(lengths.mean_output(), 6.3);
        assert_eq!((lengths.max_input(), lengths.max_output()), (12, 20));
        // Of ten outputs (3, six times 4, 8, 8, 20) eight covers nine, and 20 is needed for all.
        assert_eq!(lengths.output_p90(), 8);
        assert_eq!(lengths.output_percentile(91), 20);
        assert_eq!(lengths.output_percentile(10), 3);
        assert_eq!(lengths.output_percentile(11), 4);
    }

    #[test]
    fn samples_follow_the_counts() {
        let lengths = Lengths::from_csv("x.csv", FILE).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut seen: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for _ in 0..100_000 {
            *seen.entry(lengths.sample(&mut rng)).or_default() += 1;
        }
        assert_eq!(seen.len(), 4);
        for (pair, count) in lengths.counts() {
            let share = f64::from(seen[&pair]) / 100_000.0;
            assert!(
                (share - count as f64 / 10.0).abs() < 0.01,
                "{pair:?}: {share}"
            );
        }
    }

    #[test]
    fn faults_name_line_and_column() {
        let message = |text: &str| Lengths::from_csv("h.csv", text).unwrap_err().to_string();
        assert_eq!(
            message("src_len,tgt_len,count\n1,1,1\n1,x,1\n"),
            "h.csv: line 3, column tgt_len: expected a whole number from 0 to 4294967295, got `x`"
        );
        assert!(message("src_len,count\n").contains("a column tgt_len"));
        assert!(message("src_len,tgt_len,count\n1,1,0\n").contains("at least one pair"));
        assert!(message("src_len,tgt_len,count\n1,1\n").contains("line 2: expected 3 fields"));
    }

    #[test]
    fn names_and_fixed_pairs_load() {
        let fixed = Lengths::load("fixed:7:0").unwrap();
        assert_eq!(fixed.sample(&mut ChaCha8Rng::seed_from_u64(1)), (7, 0));
        assert_eq!(fixed.output_p90(), 0);
        for name in parametric::NAMES {
            assert_eq!(Lengths::load(name).unwrap().name(), *name);
        }
        for bad in ["fixed:7", "fixed:a:b", "no-such-name"] {
            let message = Lengths::load(bad).unwrap_err().to_string();
            assert!(
                message.contains("spelling") && message.contains(bad),
                "{message}"
            );
        }
    }

    #[test]
    fn model_names_choose_their_distribution() {
        for (model, name) in [
            ("GNMT-4", "translation-long"),
            ("resnet50", "fixed:0:0"),
            ("bert-base", "sentence"),
            ("g2p", "spelling"),
            ("las", "speech"),
            ("toy", "translation-short"),
        ] {
            assert_eq!(default_for_model(model), name);
            assert!(Lengths::load(name).is_ok());
        }
        // A zoo model's own come first.
        let own = zoo::find("gnmt-tiny").map(|e| e.lengths);
        assert_eq!(Some(of_model("gnmt-tiny")), own);
        assert_eq!(of_model("text-classifier"), "translation-short");
        assert_eq!(default_for_model("my-las2"), "speech");
    }
}
