//! Certificates, and clients that speak TLS.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use lazybatch_serve::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::common::status;

/// Somebody who signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        Self {
            root: cert.der().clone(),
            pem: cert.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes `NAME.pem` and `NAME.key`, for the name localhost.
    pub fn sign(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = (
            folder.join(format!("{name}.pem")),
            folder.join(format!("{name}.key")),
        );
        std::fs::write(&files.0, cert.pem()).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    /// A certificate for a server.
    pub fn server(&self, folder: &Path) -> TlsFiles {
        let (cert, key) = self.sign(folder, "server");
        TlsFiles {
            cert,
            key,
            client_ca: None,
        }
    }

    /// Writes the certificate that its signatures are checked with.
    pub fn write(&self, file: &Path) -> PathBuf {
        std::fs::write(file, &self.pem).unwrap();
        file.to_owned()
    }

    /// A client that trusts it, and shows a certificate if it has one.
    pub fn client(&self, identity: Option<(PathBuf, PathBuf)>) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(cert).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
        };
        Client(config)
    }
}

/// Trusts an [`Authority`].
#[derive(Clone)]
pub struct Client(ClientConfig);

impl Client {
    /// A connection that speaks one of `protocols`.
    pub async fn connect(
        &self,
        at: SocketAddr,
        protocols: &[&str],
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut config = self.0.clone();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(at).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await
    }

    /// A whole call over HTTP.
    pub async fn call(
        &self,
        at: SocketAddr,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let stream = self.connect(at, &["http/1.1"]).await?;
        exchange(stream, &request(method, path, None, body)).await
    }

    /// A channel of gRPC.
    pub async fn grpc(&self, at: SocketAddr) -> Result<Channel, tonic::transport::Error> {
        let client = self.clone();
        let connector = tower::service_fn(move |_| {
            let client = client.clone();
            async move { client.connect(at, &["h2"]).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        endpoint.connect_with_connector(connector).await
    }
}

/// A request of HTTP that closes its connection, perhaps with what the header authorization says.
pub fn request(method: &str, path: &str, authorization: Option<&str>, body: &str) -> String {
    let authorization = authorization.map(|a| format!("authorization: {a}\r\n"));
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}content-length: {}\r\n\r\n{body}",
        authorization.unwrap_or_default(),
        body.len()
    )
}

/// Sends a request and reads the answer to the end of the connection.
pub async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> io::Result<(u16, String)> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(status(&answer))
}
