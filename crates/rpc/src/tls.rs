//! TLS: trusted roots for outgoing connections, certificates for incoming ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum TlsSetupError {
    #[error("{path} cannot be used: {error}", path = .path.display())]
    File {
        path: PathBuf,
        #[source]
        error: pem::Error,
    },
    #[error("{path} holds no certificate; it needs the server's own and those that lead to one that clients trust, in PEM", path = .0.display())]
    NoCertificate(PathBuf),
    #[error("the certificate and the key do not go together: {0}")]
    Pair(#[from] rustls::Error),
}

/// The configuration of a server that shows the certificates in one file and proves them with the key in another, both
/// PEM.
pub fn server(certificates: &Path, key: &Path) -> Result<ServerConfig, TlsSetupError> {
    let unusable = |path: &Path| {
        let path = path.to_owned();
        move |error| TlsSetupError::File { path, error }
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificates).map_err(unusable(certificates))?.collect();
    let chain = chain.map_err(unusable(certificates))?;
    if chain.is_empty() {
        return Err(TlsSetupError::NoCertificate(certificates.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(unusable(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = versions.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The configuration of a client that speaks the named protocols. Reads the machine's certificates from its disk, so it
/// blocks for some milliseconds.
pub fn client(protocols: &[&str]) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = versions.with_root_certificates(roots()).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Whom this machine trusts; where it says nothing, as in many containers, whom browsers trust.
pub fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}
