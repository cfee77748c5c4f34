//! Progress on a terminal; nothing when piped.

use std::time::Duration;

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

/// A bar of the bytes of a file that is read, labelled `what`.
pub fn reading(len: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(len);
    let style = ProgressStyle::with_template("{msg:<28} {bar:30} {bytes}/{total_bytes} {elapsed}")
        .expect("the template is valid");
    bar.set_style(style);
    bar.set_message(what.to_string());
    bar
}

/// What moves while `what` goes on that has no steps to count.
pub fn spinner(what: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{msg:<28} {spinner} {elapsed}")
        .expect("the template is valid");
    spinner.set_style(style);
    spinner.set_message(what.to_string());
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}
