//! What the user may say about a model that its file does not.

use std::str::FromStr;

use lazybatch_graph::onnx::Limits;

/// An axis of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisSpec {
    /// All axes of that name (`dim_param`), in all inputs.
    Named(String),
    /// One axis.
    At {
        /// Name of the input.
        input: String,
        /// Which axis, from 0.
        axis: usize,
    },
}

impl FromStr for AxisSpec {
    type Err = String;

    /// `NAME`, or `INPUT:AXIS`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((input, axis)) = text.rsplit_once(':') {
            let axis = axis
                .parse()
                .map_err(|_| format!("expected NAME or INPUT:AXIS, got {text}"))?;
            let input = input.to_owned();
            return Ok(Self::At { input, axis });
        }
        if text.is_empty() {
            return Err("expected NAME or INPUT:AXIS, got nothing".into());
        }
        Ok(Self::Named(text.to_owned()))
    }
}

impl std::fmt::Display for AxisSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::At { input, axis } => write!(f, "{input}:{axis}"),
        }
    }
}

/// An axis that always has one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sized {
    /// The axis, or all of that name.
    pub axis: AxisSpec,
    /// Its size.
    pub size: usize,
}

impl FromStr for Sized {
    type Err = String;

    /// `NAME=NUMBER`, or `INPUT:AXIS=NUMBER`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(axis, size)| {
            let axis = axis.parse().ok()?;
            let size = size.parse().ok().filter(|&n| n > 0)?;
            Some(Self { axis, size })
        });
        parsed.ok_or_else(|| format!("expected NAME=NUMBER or INPUT:AXIS=NUMBER, got {text}"))
    }
}

/// An input that always has one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// Name of the input.
    pub input: String,
    /// Value of all its elements.
    pub value: f64,
}

impl FromStr for Fixed {
    type Err = String;

    /// `INPUT=NUMBER`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(input, value)| {
            let value: f64 = value.parse().ok()?;
            (!input.is_empty() && value.is_finite()).then(|| Self {
                input: input.to_owned(),
                value,
            })
        });
        parsed.ok_or_else(|| format!("expected INPUT=NUMBER, got {text}"))
    }
}

/// An output that the next request of a sequence has as an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Name of the output.
    pub output: String,
    /// Name of the input.
    pub input: String,
}

impl FromStr for Carried {
    type Err = String;

    /// `OUTPUT=INPUT`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((output, input)) if !output.is_empty() && !input.is_empty() => Ok(Self {
                output: output.to_owned(),
                input: input.to_owned(),
            }),
            _ => Err(format!("expected OUTPUT=INPUT, got {text}")),
        }
    }
}

/// How to import a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Name of the program; that of the file if absent.
    pub name: Option<String>,
    /// Axes that count samples; found by name and place if there are none.
    pub batch: Vec<AxisSpec>,
    /// Axes that count positions of a sequence; found by name and place if there are none.
    pub sequence: Vec<AxisSpec>,
    /// Most positions of a sequence; as many as tables allow, at most 512, if absent.
    pub max_len: Option<usize>,
    /// Inputs that only tell padding from positions; they count as ones.
    pub masks: Vec<String>,
    /// Inputs that always have one value.
    pub fixed: Vec<Fixed>,
    /// Open axes that always have one size.
    pub sizes: Vec<Sized>,
    /// State that requests of one sequence hand on.
    pub carried: Vec<Carried>,
    /// What reading and compiling the model may take.
    pub limits: Limits,
}

/// Inputs that count as masks where nobody says so.
pub(super) const MASKS: [&str; 3] = ["attention_mask", "input_mask", "padding_mask"];
