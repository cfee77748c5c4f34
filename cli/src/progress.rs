//! Progress on a terminal; nothing when piped.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` steps labelled `what`.
pub fn bar(len: u64, what: &str) -> ProgressBar {
    // indicatif draws to standard error and hides itself when that is no terminal.
    let bar = ProgressBar::new(len);
    let style = ProgressStyle::with_template("{msg:<28} {bar:30} {pos}/{len} {elapsed}")
        .expect("the template is valid");
    bar.set_style(style);
    bar.set_message(what.to_string());
    bar
}
