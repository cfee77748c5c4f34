//! The command line, whose command `serve` takes its options from elsewhere too: flags come first,
//! then the environment, then a file, then defaults.
//!
//! What flags do not say is put in front of them as flags, so whatever an option's own parser
//! accepts and refuses is the same wherever a value comes from.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use toml::de::{DeTable, DeValue};

use crate::args::{Cli, Command};
use crate::failure::BadInput;

/// The command that has layers.
const LAYERED: &str = "serve";
/// Its option that names the file.
const FILE: &str = "config";
/// Its option that prints what is configured, a flag alone.
const PRINT: &str = "print-config";
/// Its options that are no part of what is configured.
const ACTIONS: [&str; 2] = [FILE, PRINT];

/// Reads the command line and, for `serve`, what it leaves open from the environment and the file.
/// Wrong usage ends the process.
///
/// # Errors
/// [`BadInput`] about the environment or the file.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<Cli> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let whole = command();
    // What is required may come from the file.
    let lenient = |c: clap::Command| c.mut_args(|option| option.required(false));
    let flags = whole.clone().mut_subcommand(LAYERED, lenient);
    let flags = match flags.try_get_matches_from(&arguments) {
        Ok(flags) => flags,
        Err(e) if e.kind() == ErrorKind::DisplayHelp => whole.clone().get_matches_from(&arguments),
        Err(e) => e.exit(),
    };
    let Some((LAYERED, flags)) = flags.subcommand() else {
        return Ok(Cli::from_arg_matches(&flags).unwrap_or_else(|e| e.exit()));
    };
    check_variables(std::env::vars_os())?;
    let layers = Layers::collect(flags, |name| std::env::var_os(name))?;
    // The program's own name may be anything.
    let serve = arguments.iter().skip(1).position(|a| a == LAYERED);
    let behind = serve.map_or(arguments.len(), |at| at + 2);
    arguments.splice(behind..behind, layers.arguments.iter().cloned());
    let matches = whole.get_matches_from(&arguments);
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    if let (Command::Serve(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        args.effective = layers.effective(matches);
    }
    Ok(cli)
}

/// The command line; what `serve` has in layers can be switched off and listed in each.
fn command() -> clap::Command {
    Cli::command().mut_subcommand(LAYERED, |command| {
        command.mut_args(|option| match option.get_action() {
            ArgAction::SetTrue => option
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .value_name("true|false")
                .default_missing_value("true")
                .default_value("false")
                .hide_default_value(true)
                .hide_possible_values(true),
            ArgAction::Append => option.value_delimiter(','),
            _ => option,
        })
    })
}

/// The options that have layers, in the order of their table: name and option.
fn options() -> Vec<(String, Arg)> {
    let command = command();
    let serve = command.find_subcommand(LAYERED);
    let options = serve.into_iter().flat_map(clap::Command::get_arguments);
    options
        .filter_map(|option| Some((option.get_long()?.to_owned(), option.clone())))
        .filter(|(name, _)| !["help", "version"].contains(&name.as_str()))
        .collect()
}

/// The variable of the environment for an option.
fn variable(name: &str) -> String {
    format!("LAZYBATCH_{}", name.replace('-', "_").to_uppercase())
}

/// Refuses variables that begin as those of options do and are of none, such as misspelt ones. What begins
/// otherwise is of other parts of the project, and what a cluster says of its services is its own.
fn check_variables(all: impl Iterator<Item = (OsString, OsString)>) -> Result<(), BadInput> {
    let options = options();
    let variables = options.iter().map(|(name, _)| variable(name));
    let begins = |name: &str| name.split('_').take(2).collect::<Vec<_>>().join("_");
    let begin: Vec<String> = variables.clone().map(|name| begins(&name)).collect();
    let known: Vec<String> = variables.filter(|name| *name != variable(PRINT)).collect();
    let of_cluster = |name: &str| name.contains("_SERVICE_") || name.contains("_TCP");
    let is_unknown = |name: &str| {
        begin.contains(&begins(name)) && !known.iter().any(|k| k == name) && !of_cluster(name)
    };
    // A variable that is empty counts as one that is not there.
    let names = all.filter(|(_, value)| !value.is_empty());
    let mut names = names.filter_map(|(name, _)| name.into_string().ok());
    let Some(name) = names.find(|name| is_unknown(name)) else {
        return Ok(());
    };
    let near = known.iter().filter(|k| begins(k) == begins(&name));
    let near: Vec<&str> = near.map(String::as_str).collect();
    let expected = match near.is_empty() {
        true => format!("the flag --{PRINT} in its place"),
        false => format!("one of {} as a variable of {LAYERED}", near.join(", ")),
    };
    Err(BadInput(format!(
        "environment: expected {expected}, got {name}"
    )))
}

/// Where a value came from.
enum Origin {
    Flag,
    Variable,
    File,
    Default,
}

/// What a value is in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flag,
    Whole,
    Number,
    Text,
    Texts,
}

impl Kind {
    fn of(option: &Arg) -> Self {
        let parsed = option.get_value_parser().type_id();
        let whole = [
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
        ];
        if matches!(option.get_action(), ArgAction::Append) {
            Self::Texts
        } else if parsed == TypeId::of::<bool>() {
            Self::Flag
        } else if whole.into_iter().any(|id| parsed == id) {
            Self::Whole
        } else if parsed == TypeId::of::<f64>() {
            Self::Number
        } else {
            Self::Text
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Whole => "a whole number",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::Texts => "an array of strings without commas",
        }
    }

    /// A value of the file as the values of a flag; `None` if it is of another kind.
    fn texts(self, value: &DeValue<'_>) -> Option<Vec<String>> {
        let text = match (self, value) {
            (Self::Flag, DeValue::Boolean(value)) => value.to_string(),
            (Self::Whole | Self::Number, DeValue::Integer(n)) => {
                let n = i128::from_str_radix(n.as_str(), n.radix()).ok()?;
                n.to_string()
            }
            (Self::Number, DeValue::Float(x)) => x.as_str().to_owned(),
            (Self::Text, DeValue::String(text)) => text.to_string(),
            (Self::Texts, DeValue::Array(all)) => {
                // As a flag a list has its values between commas.
                let text = |one: &DeValue<'_>| {
                    let text = one.as_str().filter(|text| !text.contains(','));
                    text.map(str::to_owned)
                };
                return all.iter().map(|one| text(one.get_ref())).collect();
            }
            _ => return None,
        };
        Some(vec![text])
    }

    /// Values of a flag as a value of the file.
    fn written(self, values: &[String]) -> String {
        let first = values.first().map_or("", String::as_str);
        match self {
            Self::Flag | Self::Whole => first.to_owned(),
            Self::Number => first
                .parse::<f64>()
                .map_or_else(|_| first.to_owned(), |x| format!("{x:?}")),
            Self::Text => values.first().map(|v| quoted(v)).unwrap_or_default(),
            Self::Texts => {
                let all: Vec<String> = values.iter().map(|v| quoted(v)).collect();
                format!("[{}]", all.join(", "))
            }
        }
    }
}

/// A string of TOML. Its escapes are those of JSON, but for one character.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json.replace('\u{7f}', "\\u007F")
}

/// What flags left open, and where everything came from.
struct Layers {
    /// As flags.
    arguments: Vec<OsString>,
    /// Of each option.
    origins: Vec<(String, Arg, Origin)>,
    file: Option<PathBuf>,
}

impl Layers {
    fn collect(
        flags: &ArgMatches,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<Self> {
        // A variable that is empty counts as one that is not there.
        let environment = |name: &str| environment(&variable(name)).filter(|v| !v.is_empty());
        let options = options();
        let file = flags.get_one::<PathBuf>(FILE).cloned();
        let file = file.or_else(|| environment(FILE).map(PathBuf::from));
        let mut in_file = match &file {
            Some(path) => read(path, &options)?,
            None => BTreeMap::new(),
        };
        let mut arguments = Vec::new();
        let mut origins = Vec::new();
        for (name, option) in options {
            if ACTIONS.contains(&name.as_str()) {
                continue;
            }
            let by_flag =
                flags.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine);
            let origin = if by_flag {
                Origin::Flag
            } else if let Some(value) = environment(&name) {
                let value = as_flag(&name, &value);
                check(&option, &value)
                    .map_err(|e| BadInput(format!("{}: {e}", variable(&name))))?;
                arguments.push(value);
                Origin::Variable
            } else if let Some(values) = in_file.remove(&name) {
                arguments.extend(values);
                Origin::File
            } else {
                Origin::Default
            };
            origins.push((name, option, origin));
        }
        Ok(Self {
            arguments,
            origins,
            file,
        })
    }

    /// All options as a file that says where each came from.
    fn effective(&self, matches: &ArgMatches) -> String {
        let mut text = String::new();
        for (name, option, origin) in &self.origins {
            let values = matches.get_raw(option.get_id().as_str());
            let values = values.into_iter().flatten();
            let values: Vec<_> = values.map(|v| v.to_string_lossy().into_owned()).collect();
            let origin = match origin {
                Origin::Flag => format!("--{name}"),
                Origin::Variable => variable(name),
                Origin::File => {
                    let file = self.file.as_deref().unwrap_or(Path::new(""));
                    file.display().to_string().replace(['\n', '\r'], " ")
                }
                Origin::Default => "default".into(),
            };
            let kind = Kind::of(option);
            let line = if values.is_empty() && kind != Kind::Texts {
                format!("# {name} is not set")
            } else {
                format!("{name} = {} # {origin}", kind.written(&values))
            };
            writeln!(text, "{line}").expect("a string takes all text");
        }
        text
    }
}

/// A value as a flag.
fn as_flag(name: &str, value: &OsStr) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

/// Whether an option takes a flag.
fn check(option: &Arg, flag: &OsStr) -> Result<(), String> {
    let alone = clap::Command::new(LAYERED).no_binary_name(true);
    let alone = alone.arg(option.clone().required(false));
    let taken = alone.try_get_matches_from([flag]);
    taken.map(drop).map_err(|error| {
        let text = error.to_string();
        let said = text.lines().take_while(|line| !line.is_empty());
        let said: Vec<&str> = said.map(str::trim).collect();
        said.join(" ").trim_start_matches("error: ").to_owned()
    })
}

/// Values of a file as flags, by the names of their options.
fn read(
    path: &Path,
    options: &[(String, Arg)],
) -> Result<BTreeMap<String, Vec<OsString>>, BadInput> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        let path = path.display();
        BadInput(format!("--config: expected a TOML file, got {path}: {e}"))
    })?;
    let wrong = |offset: usize, what: &dyn std::fmt::Display| {
        let before = text.get(..offset).unwrap_or(&text);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        BadInput(format!("{}:{line}:{column}: {what}", path.display()))
    };
    let table = DeTable::parse(&text)
        .map_err(|e| wrong(e.span().map_or(0, |span| span.start), &e.message()))?;
    let mut all = BTreeMap::new();
    for (key, value) in table.get_ref() {
        let (name, at) = (key.get_ref().as_ref(), value.span());
        let known = options
            .iter()
            .filter(|(n, _)| !ACTIONS.contains(&n.as_str()));
        let Some((_, option)) = known.into_iter().find(|(n, _)| n == name) else {
            let what = format!("expected the name of an option of {LAYERED}, got {name:?}");
            return Err(wrong(key.span().start, &what));
        };
        let kind = Kind::of(option);
        let Some(texts) = kind.texts(value.get_ref()) else {
            let got = text.get(at.clone()).unwrap_or_default();
            let got = got.lines().next().unwrap_or_default();
            let what = format!(
                "{name}: expected {}, got {} {got}",
                kind.name(),
                value.get_ref().type_str()
            );
            return Err(wrong(at.start, &what));
        };
        let mut flags = Vec::new();
        for text in texts {
            let flag = as_flag(name, OsStr::new(&text));
            check(option, &flag).map_err(|e| wrong(at.start, &e))?;
            flags.push(flag);
        }
        all.insert(name.to_owned(), flags);
    }
    Ok(all)
}
