//! Whom we trust when we connect to somebody over TLS.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

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
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}
