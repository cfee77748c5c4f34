//! Fields of a message's head, several found in one pass over it: a table is looked up by a hash of the
//! name, which for a few names takes longer than heads of usual length.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The first value of each of the names.
pub fn first<const N: usize>(
    headers: &HeaderMap,
    names: [HeaderName; N],
) -> [Option<&HeaderValue>; N] {
    let mut found = [None; N];
    for (name, value) in headers {
        if let Some(at) = names.iter().position(|n| n == name) {
            found[at].get_or_insert(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use axum::http::header::{ACCEPT, CONTENT_LENGTH, HOST};

    use super::*;

    #[test]
    fn the_first_of_each_is_found() {
        let own = HeaderName::from_static("own-field");
        let fields = [(&HOST, "h"), (&own, "1"), (&ACCEPT, "a"), (&own, "2")];
        let mut all = HeaderMap::new();
        for (name, value) in fields {
            all.append(name, value.parse().unwrap());
        }
        let found = first(&all, [own, CONTENT_LENGTH, HOST]);
        let told = found.map(|v| v.map(|v| v.to_str().unwrap()));
        assert_eq!(told, [Some("1"), None, Some("h")]);
    }
}
