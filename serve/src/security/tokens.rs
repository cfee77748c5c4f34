//! Bearer tokens: a file of them, of which hashes are kept.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::{Error, Result};

/// Tokens that may call.
pub struct Tokens {
    file: PathBuf,
    now: RwLock<Vec<Hash>>,
}

/// SHA-256 of a token.
type Hash = [u8; 32];

impl Tokens {
    /// Reads the file.
    pub fn open(file: PathBuf) -> Result<Self> {
        let now = RwLock::new(read(&file)?);
        Ok(Self { file, now })
    }

    /// Reads the file anew, for calls that come then.
    pub fn reload(&self) -> Result<()> {
        let new = read(&self.file)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Whether a token is one of them; takes as long whatever comes.
    pub fn knows(&self, token: &[u8]) -> bool {
        let given = hash(token);
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        let equal = |found: Choice, one: &Hash| found | one.ct_eq(&given);
        now.iter().fold(Choice::from(0), equal).into()
    }
}

fn hash(token: &[u8]) -> Hash {
    Sha256::digest(token).into()
}

fn read(path: &Path) -> Result<Vec<Hash>> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::expected(path.display(), "a file of tokens", e))?;
    warn_if_others_read(path);
    parse(path, &text)
}

/// A token a line, perhaps behind a name and a colon; `#` begins a comment line.
fn parse(path: &Path, text: &str) -> Result<Vec<Hash>> {
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = line.split_once(':').map_or(line, |(_, token)| token.trim());
        // RFC 6750 lets no other characters be sent. What came is not said: it is a secret.
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
        if token.is_empty() || !token.bytes().all(fits) {
            return Err(Error::expected(
                format_args!("{}:{}", path.display(), i + 1),
                "a token or NAME:TOKEN, of letters, digits and -._~+/=",
                "something else",
            ));
        }
        all.push(hash(token.as_bytes()));
    }
    if all.is_empty() {
        let expected = "at least one token";
        return Err(Error::expected(path.display(), expected, "none"));
    }
    Ok(all)
}

fn warn_if_others_read(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    if others_may(mode) {
        let (file, mode) = (path.display(), format!("{:o}", mode & 0o777));
        tracing::warn!(%file, %mode, "others than its owner may read or write the file of tokens");
    }
}

fn others_may(mode: u32) -> bool {
    mode & 0o077 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Hash>> {
        parse(Path::new("tokens"), text)
    }

    #[test]
    fn names_and_comments_are_no_part_of_tokens() {
        let tokens = parsed("# who\n\nops: s3cret==\n  plain-one \r\na:b~\n").unwrap();
        let want = ["s3cret==", "plain-one", "b~"].map(|t| hash(t.as_bytes()));
        assert_eq!(tokens, want);
    }

    #[test]
    fn what_is_no_token_is_refused_and_not_told() {
        for text in [
            "good\nbad token",
            "good\nops:",
            "good\nname:bad:one",
            "good\npäss",
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.starts_with("tokens:2: expected a token"), "{error}");
            assert!(!error.contains("bad") && !error.contains("ss,"), "{error}");
        }
        for empty in ["", "# nothing\n"] {
            let error = parsed(empty).unwrap_err().to_string();
            assert_eq!(error, "tokens: expected at least one token, got none");
        }
    }

    #[test]
    fn whole_tokens_are_known_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "one\nops:two\n").unwrap();
        let tokens = Tokens::open(file.clone()).unwrap();
        assert!(tokens.knows(b"one") && tokens.knows(b"two"));
        for other in ["", "on", "onee", "One", "ops:two", "ops"] {
            assert!(!tokens.knows(other.as_bytes()), "{other}");
        }
        std::fs::write(&file, "three").unwrap();
        tokens.reload().unwrap();
        assert!(tokens.knows(b"three") && !tokens.knows(b"one"));
        std::fs::write(&file, "").unwrap();
        tokens.reload().unwrap_err();
        assert!(
            tokens.knows(b"three"),
            "a file that is wrong changes nothing"
        );
    }

    #[test]
    fn modes_that_let_others_in_are_told_from_those_that_do_not() {
        for (mode, warned) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            assert_eq!(others_may(0o100_000 | mode), warned, "{mode:o}");
        }
    }
}
