//! Words and marks of PTX text.

use super::LoadError;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A name, directive or instruction with all its suffixes: `%r1`, `.reg`, `ld.global.u32`.
    Word(String),
    /// An integer; negative ones come with a mark before them.
    Integer(u64),
    /// A float as bits of single precision (`0f3F800000`).
    Single(u32),
    /// A float as bits of double precision (`0d...`, or written with a point).
    Double(u64),
    /// Text in quotes.
    Text(String),
    /// A single character.
    Mark(char),
}

/// A token and its line, from 1.
#[derive(Clone, Debug)]
pub struct Located {
    /// The token.
    pub token: Token,
    /// Its line.
    pub line: u32,
}

fn starts_word(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn in_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// Splits text into tokens; comments are left out.
///
/// # Errors
/// A character or number that PTX does not have.
pub fn tokens(text: &str) -> Result<Vec<Located>, LoadError> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1u32);
    let mut out = Vec::new();
    while at < bytes.len() {
        let c = bytes[at];
        let rest = &bytes[at..];
        if c == b'\n' {
            line += 1;
            at += 1;
        } else if c.is_ascii_whitespace() || c == 0 {
            at += 1;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|&c| c == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let len = text[at..].find("*/").map_or(rest.len(), |end| end + 2);
            line += text[at..at + len].matches('\n').count() as u32;
            at += len;
        } else if c == b'"' {
            let len = rest[1..]
                .iter()
                .position(|&c| c == b'"')
                .unwrap_or(rest.len() - 1);
            let inner = text[at + 1..at + 1 + len].to_owned();
            out.push(Located {
                token: Token::Text(inner),
                line,
            });
            at += len + 2;
        } else if c.is_ascii_digit() {
            let len = number_length(rest);
            let token = number(&text[at..at + len])
                .ok_or_else(|| LoadError::new(line, format!("number `{}`", &text[at..at + len])))?;
            out.push(Located { token, line });
            at += len;
        } else if starts_word(c) {
            let len = word_length(rest);
            out.push(Located {
                token: Token::Word(text[at..at + len].to_owned()),
                line,
            });
            at += len;
        } else if b",;{}[]()<>:+-!|=@*&".contains(&c) {
            out.push(Located {
                token: Token::Mark(c as char),
                line,
            });
            at += 1;
        } else {
            let c = text[at..].chars().next().unwrap_or_default();
            return Err(LoadError::new(line, format!("character `{c}`")));
        }
    }
    Ok(out)
}

/// Length of a word; `::` inside one belongs to it (`.shared::cta`).
fn word_length(bytes: &[u8]) -> usize {
    let mut len = 0;
    while len < bytes.len() {
        if in_word(bytes[len]) {
            len += 1;
        } else if bytes[len..].starts_with(b"::") && bytes.get(len + 2).is_some_and(|&c| in_word(c))
        {
            len += 2;
        } else {
            break;
        }
    }
    len
}

fn number_length(bytes: &[u8]) -> usize {
    let mut len = 0;
    while len < bytes.len() && (bytes[len].is_ascii_alphanumeric() || bytes[len] == b'.') {
        let is_exponent = matches!(bytes[len], b'e' | b'E') && !bytes.starts_with(b"0x");
        len += 1;
        if is_exponent && matches!(bytes.get(len), Some(b'-' | b'+')) && bytes[0] != b'0' {
            len += 1;
        }
    }
    len
}

fn number(text: &str) -> Option<Token> {
    let (head, tail) = text.split_at(text.len().min(2));
    match head {
        "0f" | "0F" => return u32::from_str_radix(tail, 16).ok().map(Token::Single),
        "0d" | "0D" => return u64::from_str_radix(tail, 16).ok().map(Token::Double),
        _ => {}
    }
    let plain = text.trim_end_matches(['U', 'u']);
    let parsed = match head {
        "0x" | "0X" => u64::from_str_radix(&plain[2..], 16),
        "0b" | "0B" => u64::from_str_radix(&plain[2..], 2),
        _ if plain.len() > 1 && plain.starts_with('0') && !plain.contains('.') => {
            u64::from_str_radix(&plain[1..], 8)
        }
        _ => plain.parse(),
    };
    let integer = parsed.ok().map(Token::Integer);
    integer.or_else(|| text.parse::<f64>().ok().map(|v| Token::Double(v.to_bits())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_tokens() {
        let text =
            "@%p1 ld.shared::cta.u32 %r1, [a+0x10]; // c\n/* \n */ $L__1: 0f3F800000 \"x\" 8.8";
        let found = tokens(text).unwrap();
        let words: Vec<_> = found.iter().map(|t| format!("{:?}", t.token)).collect();
        assert_eq!(words[2], r#"Word("ld.shared::cta.u32")"#);
        assert_eq!(words[7], "Mark('+')");
        assert_eq!(words[8], "Integer(16)");
        assert_eq!(words[11], r#"Word("$L__1")"#);
        assert_eq!(found[11].line, 3);
        assert_eq!(words[13], format!("Single({})", 1f32.to_bits()));
        assert_eq!(words[15], format!("Double({})", 8.8f64.to_bits()));
    }

    #[test]
    fn what_is_no_token_names_its_line() {
        assert_eq!(
            tokens("\n ^").unwrap_err().to_string(),
            "line 2: character `^`"
        );
        assert_eq!(
            tokens("0xzz").unwrap_err().to_string(),
            "line 1: number `0xzz`"
        );
    }
}
