//! Pages of other sites: calls that a browser makes for them, told by headers that a browser sets and
//! no page can.
//!
//! A page may send some calls to any server that its reader reaches, though it learns no answer; and
//! one whose name is made to resolve to loopback may read answers too, but its calls bear that name.
//! This says nothing of clients that are no browsers: they may send what headers they like.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName};

use super::Refusal;
use crate::fields;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses what a page of another site sends to a server; of one `on_loopback` the name by which it
/// is called has to be one of loopback.
///
/// # Errors
/// [`Refusal::OtherSite`], [`Refusal::OtherHost`].
pub fn check(headers: &HeaderMap, on_loopback: bool) -> Result<(), Refusal> {
    let [host, site, origin] = fields::first(headers, [HOST, FETCH_SITE, ORIGIN]);
    if site.is_some_and(|s| s == "cross-site") {
        return Err(Refusal::OtherSite);
    }
    if let Some(origin) = origin {
        // Both leave out the port that the scheme implies.
        let own = host.map(|host| host.as_bytes());
        let sent_by = origin.to_str().ok().and_then(|o| o.split_once("://"));
        let is_own = |(_, from): (&str, &str)| {
            own.is_some_and(|own| own.eq_ignore_ascii_case(from.as_bytes()))
        };
        if !sent_by.is_some_and(is_own) {
            return Err(Refusal::OtherSite);
        }
    }
    match host {
        Some(host) if on_loopback && !is_loopback(host.as_bytes()) => Err(Refusal::OtherHost),
        _ => Ok(()),
    }
}

/// Whether a header host names this machine, with any port.
fn is_loopback(host: &[u8]) -> bool {
    // As most write it, with a port or without; the rest of an authority is read below.
    let is_port = |rest: &[u8]| match rest.split_first() {
        None => true,
        Some((colon, port)) => *colon == b':' && port.iter().all(u8::is_ascii_digit),
    };
    let usual = [&b"localhost"[..], b"127.0.0.1"];
    if usual
        .iter()
        .any(|name| host.strip_prefix(*name).is_some_and(is_port))
    {
        return true;
    }
    let Ok(authority) = Authority::try_from(host) else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn told(headers: &[(&'static str, &str)], on_loopback: bool) -> Result<(), Refusal> {
        let one = |(k, v): &(&'static str, &str)| (HeaderName::from_static(k), v.parse().unwrap());
        check(&headers.iter().map(one).collect(), on_loopback)
    }

    #[test]
    fn a_server_on_loopback_is_called_by_names_of_loopback_alone() {
        for own in [
            "localhost",
            "LocalHost:8000",
            "127.0.0.1:8000",
            "127.9.9.9",
            "[::1]:8000",
            "[::1]",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(told(&[("host", own)], true), Ok(()), "{own}");
        }
        for other in [
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:1@evil.example:2",
            "192.0.2.1",
            "[2001:db8::1]",
            "x",
            "",
        ] {
            let refused = told(&[("host", other)], true);
            assert_eq!(refused, Err(Refusal::OtherHost), "{other}");
            assert_eq!(told(&[("host", other)], false), Ok(()), "{other}");
        }
        assert_eq!(told(&[], true), Ok(()));
    }

    #[test]
    fn pages_of_other_sites_are_refused_wherever_the_server_listens() {
        let own = ("host", "localhost:8000");
        for on_loopback in [true, false] {
            for (header, value, refused) in [
                ("sec-fetch-site", "same-origin", false),
                ("sec-fetch-site", "none", false),
                ("sec-fetch-site", "cross-site", true),
                ("origin", "http://localhost:8000", false),
                ("origin", "https://LOCALHOST:8000", false),
                ("origin", "http://localhost:3000", true),
                ("origin", "http://localhost", true),
                ("origin", "http://evil.example", true),
                ("origin", "localhost:8000", true),
                ("origin", "null", true),
            ] {
                let expected = if refused {
                    Err(Refusal::OtherSite)
                } else {
                    Ok(())
                };
                let got = told(&[own, (header, value)], on_loopback);
                assert_eq!(got, expected, "{header}: {value}");
            }
        }
        let nowhere = told(&[("origin", "http://localhost:8000")], true);
        assert_eq!(nowhere, Err(Refusal::OtherSite), "no host to be that of");
    }
}
