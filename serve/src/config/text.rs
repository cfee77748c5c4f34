//! What the parser of texts does not do: it does not know `field [ {...} ]`, without a colon between a
//! field and its list, and does not say where a field is.

/// `text` with a colon behind each field that a list follows directly, and where colons were put,
/// as offsets in the new text.
pub fn with_colons(text: &str) -> (String, Vec<usize>) {
    let mut new = String::with_capacity(text.len() + 16);
    let mut put = Vec::new();
    // End of the identifier that was read last, if nothing but blanks and comments came since.
    let mut field = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' => {
                new.push(c);
                while let Some(c) = chars.next_if(|&c| c != '\n') {
                    new.push(c);
                }
            }
            '"' | '\'' => {
                field = None;
                new.push(c);
                while let Some(inner) = chars.next() {
                    new.push(inner);
                    if inner == '\\' {
                        new.extend(chars.next());
                    } else if inner == c || inner == '\n' {
                        break;
                    }
                }
            }
            '[' => {
                if let Some(at) = field.take() {
                    new.insert(at, ':');
                    put.push(at);
                }
                new.push(c);
            }
            c if c.is_ascii_alphanumeric() || c == '_' => {
                new.push(c);
                while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    new.push(c);
                }
                field = Some(new.len());
            }
            c => {
                new.push(c);
                if !c.is_whitespace() {
                    field = None;
                }
            }
        }
    }
    (new, put)
}

/// Where the value of a field begins that is not within another, the first of that name.
pub fn value(text: &str, field: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let skip = |from: usize, over: &dyn Fn(u8) -> bool| {
        from + bytes[from..].iter().take_while(|&&b| over(b)).count()
    };
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match bytes[at] {
            b'#' => at = skip(at, &|b| b != b'\n'),
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at += 1;
            }
            first if is_word(first) => {
                let end = skip(at, &is_word);
                if depth == 0 && text.get(at..end) == Some(field) {
                    return Some(skip(end, &|b| b == b':' || b.is_ascii_whitespace()));
                }
                at = end;
            }
            other => {
                match other {
                    b'{' | b'[' | b'<' => depth += 1,
                    b'}' | b']' | b'>' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                at += 1;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_get_their_colon_and_nothing_else_changes() {
        let text = "input [ { dims: [ 1 ] } ] # a [ b\nname: \"x [ y\" key['z']\ndims\n[2]";
        let (new, put) = with_colons(text);
        assert_eq!(
            new,
            "input: [ { dims: [ 1 ] } ] # a [ b\nname: \"x [ y\" key:['z']\ndims:\n[2]"
        );
        assert_eq!(put.len(), 3);
        assert!(put.iter().all(|&at| new[at..].starts_with(':')));
    }

    #[test]
    fn fields_are_found_where_they_are_and_not_in_texts_comments_or_others() {
        let text =
            "# size: 1\nname: \"a \\\" size: 2\" in { size: 3 } key: 'size' sizes: 4 size\t: 5";
        let at = value(text, "size").unwrap();
        assert_eq!(&text[at..], "5");
        assert_eq!(value(text, "dims"), None);
        assert_eq!(value("size", "size"), Some(4));
        assert_eq!(value("a: \"\\", "size"), None);
    }
}
