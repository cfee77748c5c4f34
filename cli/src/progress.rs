//! Progress on a terminal; nothing when piped.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` steps labelled `what`.
pub fn bar(len: u64, what: &str) -> ProgressBar {
    styled(
        ProgressBar::new(len),
        "{msg:<28} {bar:30} {pos}/{len} {elapsed}",
        what,
    )
}

/// A bar of the bytes of a file that is read, labelled `what`.
pub fn reading(len: u64, what: &str) -> ProgressBar {
    styled(
        ProgressBar::new(len),
        "{msg:<28} {bar:30} {bytes}/{total_bytes} {elapsed}",
        what,
    )
}

/// What moves while `what` goes on that has no steps to count.
pub fn spinner(what: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    let spinner = styled(spinner, "{msg:<28} {spinner} {elapsed}", what);
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

/// indicatif draws to standard error and hides itself when that is no terminal.
fn styled(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    bar.set_style(style);
    bar.set_message(what.to_string());
    bar
}
