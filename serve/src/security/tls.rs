//! TLS: what the files say, for each protocol, until they are read anew.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::{Port, TlsFiles};
use crate::error::{Error, Result};

/// TLS of a server.
pub struct Tls {
    files: TlsFiles,
    now: RwLock<Configs>,
}

/// One for each protocol that a connection may speak.
struct Configs {
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    pub fn open(files: TlsFiles) -> Result<Self> {
        let now = RwLock::new(read(&files)?);
        Ok(Self { files, now })
    }

    /// Reads the files anew, for connections that come then.
    pub fn reload(&self) -> Result<()> {
        let new = read(&self.files)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// What makes a connection of `port` an encrypted one.
    pub fn acceptor(&self, port: Port) -> TlsAcceptor {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(match port {
            Port::Http | Port::Metrics => now.http.clone(),
            Port::Grpc => now.grpc.clone(),
        })
    }
}

fn wrong(path: &Path, expected: &str, got: impl Display) -> Error {
    Error::expected(path.display(), expected, got)
}

fn certificates(path: &Path, expected: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(|e| wrong(path, expected, e))?;
    if read.is_empty() {
        return Err(wrong(path, expected, "none"));
    }
    Ok(read)
}

fn read(files: &TlsFiles) -> Result<Configs> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.cert, "certificates in PEM")?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|e| wrong(&files.key, "a private key in PEM", e))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::Internal(e.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
    };
    let of_the_key = format!("a certificate of the key {}", files.key.display());
    let mut http = builder
        .with_single_cert(chain, key)
        .map_err(|e| wrong(&files.cert, &of_the_key, e))?;
    let mut grpc = http.clone();
    http.alpn_protocols = vec![b"http/1.1".to_vec()];
    grpc.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Configs {
        http: Arc::new(http),
        grpc: Arc::new(grpc),
    })
}

/// Asks clients for a certificate below one of the file's.
fn verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>> {
    let expected = "certificates in PEM that sign those of clients";
    let mut roots = RootCertStore::empty();
    for root in certificates(path, expected)? {
        roots.add(root).map_err(|e| wrong(path, expected, e))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    verifier.build().map_err(|e| wrong(path, expected, e))
}
