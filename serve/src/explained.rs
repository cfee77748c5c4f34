//! Why requests took their time: accounts of the last ones that asked for it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use lazybatch_sla::RequestId;
use serde::Serialize;

use crate::model::Served;

/// Parameter of a request that asks for an account.
pub const ASKS: &str = "explain";
/// Parameter of its answer.
pub const TELLS: &str = "lazybatch_explanation";
/// Accounts that are kept, and requests that an engine remembers.
pub const KEPT: usize = 256;
/// Most bytes of a name that are kept; clients choose theirs as long as they like.
pub(crate) const MOST_NAME: usize = 128;

/// An account of a request.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// Its model.
    pub model: String,
    /// The model's version.
    pub version: u64,
    /// The client's name for it, its beginning if it is long.
    pub id: String,
    /// What it waited for, a line for each request of the engine that it became.
    pub explanation: String,
}

/// The last accounts.
#[derive(Debug, Default)]
pub struct Explained {
    kept: Mutex<VecDeque<Account>>,
}

impl Explained {
    /// Puts together why `requests` of the engine took their time, keeps it, and tells it.
    pub fn tell(&self, served: &Served, id: &str, requests: &[RequestId]) -> String {
        let lines = requests.iter().map(|&one| {
            let known = served.explain(one);
            known.map_or_else(
                || format!("{one} is not known: too many asked at once"),
                |e| e.to_string(),
            )
        });
        let explanation = match requests {
            [] => "it did not reach the engine".to_owned(),
            _ => lines.collect::<Vec<_>>().join("\n"),
        };
        let account = Account {
            model: cut(&served.name, MOST_NAME),
            version: served.version,
            id: cut(id, MOST_NAME),
            explanation: explanation.clone(),
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(account);
        explanation
    }

    /// At most `num` of them, the last one first.
    pub fn last(&self, num: usize) -> Vec<Account> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().take(num).cloned().collect()
    }
}

/// The beginning of a text, as whole characters of at most `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let mut fits = (0..=most.min(text.len())).rev();
    let end = fits.find(|&end| text.is_char_boundary(end));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_two_characters() {
        let cut = |text: &str| cut(text, MOST_NAME);
        assert_eq!(cut(""), "");
        let whole = "n".repeat(MOST_NAME);
        assert_eq!(cut(&whole), whole);
        assert_eq!(cut(&format!("{whole}more")), whole);
        // Each takes three bytes, and the bound is no multiple of that.
        let wide = cut(&"\u{2026}".repeat(MOST_NAME));
        assert_eq!(wide, "\u{2026}".repeat(MOST_NAME / 3));
    }
}
