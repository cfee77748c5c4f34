//! One form of the text that the parser does not know: `field [ {...} ]`, without a colon between
//! a field and its list.

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
}
