//! Who may call: TLS, certificates of clients, bearer tokens.
//!
//! [`Security`] says what is wanted, [`Guard`] has it read and reads it anew on
//! [`reload`](Guard::reload). Every port goes through it: [`crate::listen`] asks it how connections
//! are encrypted, [`auth::Auth`] whether a call may pass.

pub mod auth;
mod pages;
mod tls;
mod tokens;

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use tokio_rustls::TlsAcceptor;

use crate::error::{Error, Result};
use crate::grpc::WATCH;
use tls::Tls;
use tokens::Tokens;

/// How a server is secured.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// Encrypts all ports.
    pub tls: Option<TlsFiles>,
    /// File of bearer tokens; calls have to bring one of them.
    pub tokens: Option<PathBuf>,
    /// Whether `/metrics` is answered to those without a token too.
    pub metrics_open: bool,
    /// Whether it may listen where others reach it without all of that.
    pub insecure: bool,
}

/// Files of TLS, all in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, then those between it and its root.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// Roots of clients' certificates; clients have to show one then.
    pub client_ca: Option<PathBuf>,
}

/// What a connection came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The protocol over HTTP/1.1.
    Http,
    /// The protocol over gRPC.
    Grpc,
    /// `/metrics`.
    Metrics,
}

/// Paths that are answered to everybody: whether the server lives and is ready.
const FREE: [&str; 9] = [
    // The page itself says nothing of the server; what it shows is asked for with the token.
    "/",
    "/lazybatch/page.js",
    "/lazybatch/page.css",
    "/v2/health/live",
    "/v2/health/ready",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/grpc.health.v1.Health/Check",
    WATCH,
];

/// Why a call may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It brings no bearer token.
    #[error("expected a bearer token in the header authorization, got none")]
    Missing,
    /// Its token is none of the server's.
    #[error("expected a bearer token that this server knows, got another")]
    Unknown,
    /// A browser sent it for a page of another site, and the server asks nobody who they are.
    #[error("expected a call that is none of another site's page, got one of such a page")]
    OtherSite,
    /// It calls a server on loopback, which asks nobody who they are, by another name.
    #[error("expected localhost or an address of loopback in the header host, got another name")]
    OtherHost,
}

impl Security {
    /// Whether it is known who calls.
    fn knows_callers(&self) -> bool {
        let tls = self.tls.as_ref();
        self.tokens.is_some() || tls.is_some_and(|files| files.client_ca.is_some())
    }

    /// Refuses addresses that other machines reach, unless calls there are encrypted and come from
    /// somebody who is known, or [`Security::insecure`] is set, which is warned about.
    ///
    /// # Errors
    /// [`Error::Invalid`], which says what is missing.
    pub fn check(&self, addresses: impl IntoIterator<Item = SocketAddr>) -> Result<()> {
        let mut open = addresses
            .into_iter()
            .filter(|at| !at.ip().to_canonical().is_loopback());
        let Some(at) = open.next() else { return Ok(()) };
        let missing = match (&self.tls, self.knows_callers()) {
            (Some(_), true) => return Ok(()),
            (Some(_), false) => "--token-file or --tls-client-ca",
            (None, true) => "--tls-cert and --tls-key",
            (None, false) => "--tls-cert and --tls-key, and --token-file or --tls-client-ca",
        };
        if self.insecure {
            tracing::warn!(address = %at.ip(), missing, "other machines reach this server");
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{}: other machines reach this address, so TLS and tokens or certificates of clients \
             are needed: {missing} is missing (--insecure serves without)",
            at.ip()
        )))
    }
}

/// What [`Security`] asks for, read from its files.
pub struct Guard {
    tls: Option<Tls>,
    tokens: Option<Tokens>,
    knows_callers: bool,
    metrics_open: bool,
}

impl Guard {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Invalid`] about a file that cannot be read or holds something else.
    pub fn open(security: &Security) -> Result<Self> {
        Ok(Self {
            tls: security.tls.clone().map(Tls::open).transpose()?,
            tokens: security.tokens.clone().map(Tokens::open).transpose()?,
            knows_callers: security.knows_callers(),
            metrics_open: security.metrics_open,
        })
    }

    /// Reads the files anew: certificates hold for connections that come then, tokens for calls.
    /// What cannot be read stays as it was and is logged; `false` then.
    pub fn reload(&self) -> bool {
        let tls = self.tls.as_ref().map(|tls| ("TLS", tls.reload()));
        let tokens = self.tokens.as_ref().map(|t| ("tokens", t.reload()));
        let mut all = true;
        for (what, read) in tls.into_iter().chain(tokens) {
            match read {
                Ok(()) => tracing::info!("{what} read anew"),
                Err(error) => {
                    all = false;
                    tracing::error!(%error, "{what} stay as they were");
                }
            }
        }
        all
    }

    /// How connections of a port are encrypted from now on; not at all if `None`.
    pub fn acceptor(&self, port: Port) -> Option<TlsAcceptor> {
        self.tls.as_ref().map(|tls| tls.acceptor(port))
    }

    /// Whether a call to `path` is answered to everybody.
    pub fn is_free(path: &str) -> bool {
        FREE.contains(&path)
    }

    /// Whether a call to `path` may pass that came to a port, which may listen `on_loopback`.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        port: Port,
        on_loopback: bool,
        path: &str,
        headers: &HeaderMap,
    ) -> std::result::Result<(), Refusal> {
        let Some(tokens) = &self.tokens else {
            if self.knows_callers || port == Port::Grpc || Self::is_free(path) {
                return Ok(());
            }
            return pages::check(headers, on_loopback);
        };
        if Self::is_free(path) || (port == Port::Metrics && self.metrics_open) {
            return Ok(());
        }
        Self::check_token(tokens, headers)
    }

    /// Whether a call over gRPC that passed shows that its client may call: one that not everybody may
    /// make, or that watches health where nobody needs a token, or with one.
    pub fn is_known(&self, path: &str, headers: &HeaderMap) -> bool {
        if path != WATCH {
            return !Self::is_free(path);
        }
        let tokens = self.tokens.as_ref();
        tokens.is_none_or(|tokens| Self::check_token(tokens, headers).is_ok())
    }

    fn check_token(tokens: &Tokens, headers: &HeaderMap) -> std::result::Result<(), Refusal> {
        let given = headers.get(AUTHORIZATION).ok_or(Refusal::Missing)?;
        let given = given.as_bytes();
        let (scheme, token) = given.split_at_checked(7).ok_or(Refusal::Missing)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(Refusal::Missing);
        }
        if tokens.knows(token.trim_ascii()) {
            Ok(())
        } else {
            Err(Refusal::Unknown)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 8000)
    }

    fn security(tls: bool, client_ca: bool, tokens: bool) -> Security {
        Security {
            tls: tls.then(|| TlsFiles {
                cert: "cert.pem".into(),
                key: "key.pem".into(),
                client_ca: client_ca.then(|| "ca.pem".into()),
            }),
            tokens: tokens.then(|| "tokens".into()),
            ..Security::default()
        }
    }

    #[test]
    fn loopback_needs_nothing() {
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            Security::default().check([at(loopback)]).unwrap();
        }
    }

    #[test]
    fn addresses_that_others_reach_need_tls_and_to_know_who_calls() {
        let both = "--tls-cert and --tls-key, and --token-file or --tls-client-ca is missing";
        for (security, missing) in [
            (security(false, false, false), both),
            (
                security(false, false, true),
                "needed: --tls-cert and --tls-key is missing",
            ),
            (
                security(true, false, false),
                "needed: --token-file or --tls-client-ca is missing",
            ),
        ] {
            for open in ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"] {
                let refused = security.check([at("127.0.0.1"), at(open)]).unwrap_err();
                let text = refused.to_string();
                assert!(
                    text.contains(missing) && text.contains("--insecure"),
                    "{text}"
                );
            }
            let insecure = Security {
                insecure: true,
                ..security
            };
            insecure.check([at("0.0.0.0")]).unwrap();
        }
        security(true, true, false).check([at("0.0.0.0")]).unwrap();
        security(true, false, true).check([at("0.0.0.0")]).unwrap();
    }
}
