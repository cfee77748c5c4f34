//! Just enough of Rust's grammar to tell code from comments and literals.

/// The text with comments and the insides of string and character literals replaced by blanks,
/// character for character, so that lines and columns stay.
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match literal_or_comment(&chars, at) {
            Some(end) => end.min(chars.len()),
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        out.extend(
            chars[at..end]
                .iter()
                .map(|c| if *c == '\n' { '\n' } else { ' ' }),
        );
        at = end;
    }
    out
}

/// Where the comment or literal that starts at `at` ends, if one does.
fn literal_or_comment(chars: &[char], at: usize) -> Option<usize> {
    let next = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let in_word = at > 0 && is_word(chars[at - 1]);
    match (chars[at], next(at + 1)) {
        ('/', '/') => Some(find(chars, at, |i| chars[i] == '\n')),
        ('/', '*') => Some(block_comment(chars, at)),
        ('"', _) => Some(quoted(chars, at + 1, '"')),
        ('r', '"' | '#') if !in_word => raw_string(chars, at + 1),
        ('b' | 'c', 'r') if !in_word => raw_string(chars, at + 2),
        // A lifetime has no closing quote behind its first character.
        ('\'', '\\') => Some(quoted(chars, at + 1, '\'')),
        ('\'', _) if next(at + 2) == '\'' => Some(at + 3),
        _ => None,
    }
}

/// First position from `at` on where `hit` holds, or the end.
fn find(chars: &[char], at: usize, hit: impl Fn(usize) -> bool) -> usize {
    (at..chars.len()).find(|i| hit(*i)).unwrap_or(chars.len())
}

fn block_comment(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => depth += 1,
            ('*', Some('/')) => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn quoted(chars: &[char], mut at: usize, quote: char) -> usize {
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// A raw string whose hashes or quote start at `at`.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let quote = find(chars, at, |i| chars[i] != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let num_hashes = quote - at;
    let closes = |i: usize| {
        let hashes = chars
            .iter()
            .skip(i + 1)
            .take_while(|c| **c == '#')
            .take(num_hashes);
        chars[i] == '"' && hashes.count() == num_hashes
    };
    Some(find(chars, quote + 1, closes) + 1 + num_hashes)
}

/// Whether a character can be part of a name.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the code that are left.
    fn words(text: &str) -> Vec<String> {
        let code = code_only(text);
        assert_eq!(code.chars().count(), text.chars().count());
        assert_eq!(code.matches('\n').count(), text.matches('\n').count());
        let words = code.split(|c| !is_word(c)).filter(|w| !w.is_empty());
        words.map(str::to_owned).collect()
    }

    #[test]
    fn comments_are_blanked() {
        assert_eq!(words("a // no\nb /* no /* no */ no */ c"), ["a", "b", "c"]);
        assert_eq!(words("//! no\n/// no\nd"), ["d"]);
        assert_eq!(words("e /* no"), ["e"]);
    }

    #[test]
    fn literals_are_blanked() {
        assert_eq!(
            words(r#"a("no \" no", 'n', '\'', '\u{6e}', b"no") b"#),
            ["a", "b", "b"]
        );
        assert_eq!(
            words("a r#\"no \" no\"# b r\"no\\\" c br##\"no\"# no\"## d"),
            ["a", "b", "c", "d"]
        );
        assert_eq!(words("a \"no // no\" b"), ["a", "b"]);
        assert_eq!(words("a \"unfinished"), ["a"]);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(
            words("fn f<'a>(x: &'a str) 'b: loop {}"),
            ["fn", "f", "a", "x", "a", "str", "b", "loop"]
        );
        assert_eq!(words("r#type + for_r(1)"), ["r", "type", "for_r", "1"]);
    }
}
