//! TLS on the connections to bookies, by which both sides can know who the other is.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::connection::link::Stream;

/// Certificates or keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or not what was expected in it.
    #[error("the {what} is no PEM that can be read: {reason}")]
    Pem {
        /// What it should be.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// There is no certificate in the text.
    #[error("the {0} has no certificate in it")]
    Empty(&'static str),
    /// Not a name that a certificate can have.
    #[error("{0:?} is no name of a server")]
    ServerName(String),
    /// The parts do not fit together.
    #[error("the TLS configuration is not usable: {0}")]
    Unusable(String),
}

/// Who this side is: a certificate and its private key.
#[derive(Clone, Copy)]
pub struct TlsIdentity<'a> {
    /// The certificate, and those between it and its authority, in PEM.
    pub chain_pem: &'a [u8],
    /// The private key, in PEM.
    pub key_pem: &'a [u8],
}

impl fmt::Debug for TlsIdentity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity(..)")
    }
}

/// What a client needs for TLS. The name in a bookie's certificate is always checked.
#[derive(Clone)]
pub struct TlsClient {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl TlsClient {
    /// Trusts bookies whose certificate an authority in `roots_pem` vouches for, and shows `identity` to those that ask.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(roots_pem: &[u8], identity: Option<TlsIdentity<'_>>) -> Result<Self, TlsError> {
        let roots = Arc::new(roots(roots_pem)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(unusable)?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_webpki_verifier(verifier);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = take_identity(identity)?;
                builder.with_client_auth_cert(chain, key).map_err(unusable)?
            }
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), server_name: None })
    }

    /// Expects this name in the certificate of every bookie, instead of the host that its address names. For clusters
    /// whose bookies share a certificate.
    ///
    /// # Errors
    /// [`TlsError::ServerName`].
    pub fn with_server_name(self, name: &str) -> Result<Self, TlsError> {
        let server_name = Some(server_name(name)?);
        Ok(Self { server_name, ..self })
    }

    pub(super) async fn connect(
        self,
        host: String,
        stream: Box<dyn Stream>,
    ) -> io::Result<Box<dyn Stream>> {
        let name = match self.server_name {
            Some(name) => name,
            None => server_name(&host).map_err(io::Error::other)?,
        };
        let stream = self.connector.connect(name, stream).await?;
        Ok(Box::new(stream))
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// What a bookie needs for TLS.
#[derive(Clone)]
pub struct TlsServer {
    acceptor: TlsAcceptor,
}

impl TlsServer {
    /// Shows `identity`. With `client_roots_pem`, only clients are let in whose certificate one of these authorities
    /// vouches for.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(
        identity: TlsIdentity<'_>,
        client_roots_pem: Option<&[u8]>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match client_roots_pem {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = Arc::new(roots(pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
            }
        };
        let (chain, key) = take_identity(identity)?;
        let config = builder.with_single_cert(chain, key).map_err(unusable)?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(super) async fn accept(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        let stream = self.acceptor.accept(stream).await?;
        Ok(Box::new(stream))
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer(..)")
    }
}

/// Named here, so that nothing depends on what else the process has installed.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("list of authorities", pem)? {
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn take_identity(
    identity: TlsIdentity<'_>,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates("certificate", identity.chain_pem)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem)
        .map_err(|error| TlsError::Pem { what: "private key", reason: error.to_string() })?;
    Ok((chain, key))
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| TlsError::Pem { what, reason: error.to_string() })?;
    if all.is_empty() { Err(TlsError::Empty(what)) } else { Ok(all) }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))
}

fn unusable(error: impl ToString) -> TlsError {
    TlsError::Unusable(error.to_string())
}
