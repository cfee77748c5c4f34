//! The README's main command, so that what is tested is what is written.

/// The first `cargo run` command in a fenced block, with its continuation lines joined.
pub fn main_command(readme: &str) -> Option<String> {
    let mut in_block = false;
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let text = line.trim();
        let text = text.strip_prefix("$ ").unwrap_or(text);
        if !in_block || !text.starts_with("cargo run") {
            continue;
        }
        let mut command = text.to_owned();
        while let Some(start) = command.strip_suffix('\\') {
            command = format!(
                "{} {}",
                start.trim_end(),
                lines.next().unwrap_or_default().trim()
            );
        }
        return Some(command);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_in_a_fenced_block_counts() {
        let readme = "Try `cargo run -- no`.\n\ncargo run -- no\n\n```rust\nlet x = 1;\n```\n\
                      ```sh\n# build\ncargo build\n$ cargo run --release -- compare \\\n    \
                      --sla-ms 50\ncargo run -- second\n```\n";
        let want = "cargo run --release -- compare --sla-ms 50";
        assert_eq!(main_command(readme).as_deref(), Some(want));
    }

    #[test]
    fn a_readme_without_one_gives_none() {
        assert_eq!(
            main_command("# Title\n```\ncargo build\n```\ncargo run\n"),
            None
        );
        assert_eq!(main_command(""), None);
    }
}
