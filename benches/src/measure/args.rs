//! Options of the command line: pairs of a name and a value.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};

/// Pairs of option and value, in order.
///
/// # Errors
/// An option without a value.
pub fn pairs(args: &[String]) -> anyhow::Result<Vec<(&str, &str)>> {
    let pairs = args.chunks(2).map(|option| match option {
        [key, value] => Ok((key.as_str(), value.as_str())),
        _ => bail!("{}: expected a value behind it", option[0]),
    });
    pairs.collect()
}

/// The folder that comes first, and what follows it.
///
/// # Errors
/// Nothing, or an option in its place.
pub fn folder(args: &[String]) -> anyhow::Result<(PathBuf, &[String])> {
    match args {
        [folder, rest @ ..] if !folder.starts_with('-') => Ok((folder.into(), rest)),
        [] => bail!("expected a folder for results, got nothing"),
        [other, ..] => bail!("expected a folder for results first, got {other}"),
    }
}

/// The value of `key`, which is `expected`.
///
/// # Errors
/// One that is not.
pub fn read<T: FromStr>(key: &str, value: &str, expected: &str) -> anyhow::Result<T> {
    let parsed = value.parse().ok();
    parsed.with_context(|| format!("{key}: expected {expected}, got {value}"))
}

/// A whole number above 0.
///
/// # Errors
/// Anything else.
pub fn positive<T: FromStr + Default + PartialEq>(key: &str, value: &str) -> anyhow::Result<T> {
    let expected = "a whole number above 0";
    let number: T = read(key, value, expected)?;
    if number == T::default() {
        bail!("{key}: expected {expected}, got {value}");
    }
    Ok(number)
}

/// A finite number above 0.
///
/// # Errors
/// Anything else.
pub fn above_0(key: &str, value: &str) -> anyhow::Result<f64> {
    let expected = "a number above 0";
    let number: f64 = read(key, value, expected)?;
    if !(number.is_finite() && number > 0.0) {
        bail!("{key}: expected {expected}, got {value}");
    }
    Ok(number)
}

/// Threads where nobody says: all cores.
pub fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(positive::<usize>("--n", "3").unwrap(), 3);
        for bad in ["0", "-1", "x", "1.5"] {
            let message = positive::<u32>("--n", bad).unwrap_err().to_string();
            assert_eq!(
                message,
                format!("--n: expected a whole number above 0, got {bad}")
            );
        }
        assert_eq!(above_0("--x", "2.5").unwrap(), 2.5);
        for bad in ["0", "-1", "inf", "NaN", "x"] {
            let message = above_0("--x", bad).unwrap_err().to_string();
            assert_eq!(
                message,
                format!("--x: expected a number above 0, got {bad}")
            );
        }
        let args = ["--n", "3", "--x"].map(str::to_string);
        assert_eq!(pairs(&args[..2]).unwrap(), [("--n", "3")]);
        let message = pairs(&args).unwrap_err().to_string();
        assert_eq!(message, "--x: expected a value behind it");
    }
}
