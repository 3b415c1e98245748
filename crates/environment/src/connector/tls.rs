//! Websockets through TLS. The client is built when it is first needed, and not at all where nobody needs it.

use std::sync::Arc;

use outpost_rpc::link::ws::{self, ClientOptions};
use outpost_rpc::{Link, LinkError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

/// Shared by the connections of one environment.
#[derive(Default)]
pub struct Tls(OnceCell<TlsConnector>);

impl Tls {
    /// Connects to `wss://HOST[:PORT][/PATH]`.
    pub async fn connect(&self, url: &str, options: &ClientOptions) -> Result<Link, LinkError> {
        let refused = |why: String| LinkError::Protocol(format!("`{url}`: {why}"));
        let uri: ::http::Uri = url.parse().map_err(|error: ::http::uri::InvalidUri| refused(error.to_string()))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(|error| refused(error.to_string()))?;
        let port = uri.port_u16().unwrap_or(443);
        let connector = self.0.get_or_try_init(|| async {
            // The machine's certificates are read from its disk.
            let built = tokio::task::spawn_blocking(build).await;
            built.map_err(|error| refused(error.to_string()))?.map_err(|error| refused(error.to_string()))
        });
        let connector = connector.await?;
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let stream = connector.connect(name, stream).await?;
        ws::handshake(stream, url, format!("websocket {host}:{port}"), options).await
    }
}

fn build() -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(TlsConnector::from(Arc::new(versions.with_root_certificates(roots()).with_no_client_auth())))
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
