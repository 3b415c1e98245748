//! Websockets through TLS. The client is built when it is first needed, and not at all where it is not needed.

use std::error::Error;
use std::io;
use std::sync::Arc;

use outpost_rpc::link::ws::{self, ClientOptions};
use outpost_rpc::{Link, LinkError, tls};
use outpost_wire::SharedError;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

/// Shared by the connections of one environment.
#[derive(Default)]
pub(super) struct Tls(OnceCell<TlsConnector>);

impl Tls {
    /// Connects to `wss://HOST[:PORT][/PATH]`.
    pub(super) async fn connect(&self, url: &str, options: &ClientOptions) -> Result<Link, LinkError> {
        let refused = |why: Box<dyn Error + Send + Sync>| LinkError::Protocol(SharedError::worded(format!("`{url}`: {why}"), why));
        let uri: ::http::Uri = url.parse().map_err(|error: ::http::uri::InvalidUri| refused(error.into()))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(|error| refused(error.into()))?;
        let port = uri.port_u16().unwrap_or(443);
        let connector = self.0.get_or_try_init(|| async {
            // The machine's certificates are read from its disk.
            let built = tokio::task::spawn_blocking(build).await;
            built.map_err(|error| refused(error.into()))?.map_err(|error| refused(error.into()))
        });
        let connector = connector.await?;
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let stream = connector.connect(name, stream).await.map_err(explained)?;
        ws::handshake(stream, url, format!("websocket {host}:{port}"), options).await
    }
}

/// Connects to a server at `ws://` or `wss://`.
pub async fn dial(url: &str, bearer: Option<String>) -> Result<Link, LinkError> {
    let options = ClientOptions { bearer, ..ClientOptions::default() };
    if url.starts_with("wss://") { Tls::default().connect(url, &options).await } else { ws::connect(url, &options).await }
}

/// An unknown issuer is the most frequent error; the library's text does not say what to do.
fn explained(error: io::Error) -> io::Error {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext, Other, UnknownIssuer};
    let advice = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        // `Other` is a certificate that is an authority and serves by itself.
        Some(rustls::Error::InvalidCertificate(UnknownIssuer | Other(_))) => {
            "this machine does not trust the server's certificate; name the one of its authority with SSL_CERT_FILE, or install it"
        }
        Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            "use a name that the server's certificate is for"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}: {advice}"))
}

fn build() -> Result<TlsConnector, rustls::Error> {
    Ok(TlsConnector::from(Arc::new(tls::client(&[])?)))
}
