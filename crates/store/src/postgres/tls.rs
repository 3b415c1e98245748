//! TLS as the database's client library wants it.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OnceCell;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{TlsConnector, client};

/// Whom to trust. Shared by all connections; certificates are read for the first of them.
#[derive(Clone)]
pub(super) struct Encryption {
    roots: Option<Arc<Path>>,
    trust: fn() -> RootCertStore,
    connector: Arc<OnceCell<TlsConnector>>,
}

impl Encryption {
    /// Trusts the certificates in a file, or else those that `trust` says.
    pub(super) fn new(roots: Option<Arc<Path>>, trust: fn() -> RootCertStore) -> Self {
        Self { roots, trust, connector: Arc::default() }
    }

    async fn connector(&self) -> Result<&TlsConnector, io::Error> {
        let (roots, trust) = (self.roots.clone(), self.trust);
        // Certificates are read from the disk.
        let built = || async move { tokio::task::spawn_blocking(move || build(roots.as_deref(), trust)).await? };
        self.connector.get_or_try_init(built).await
    }
}

fn build(roots: Option<&Path>, trust: fn() -> RootCertStore) -> io::Result<TlsConnector> {
    let roots = match roots {
        Some(path) => read_roots(path).map_err(|error| io::Error::other(format!("sslrootcert={}: {error}", path.display())))?,
        None => trust(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let mut config = versions.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn read_roots(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(io::Error::other)? {
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    if roots.is_empty() { Err(io::Error::other("it holds no certificate")) } else { Ok(roots) }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> MakeTlsConnect<S> for Encryption {
    type Stream = TlsConnection<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, io::Error> {
        // Where nothing is encrypted, the host may be a folder.
        Ok(Handshake { encryption: self.clone(), name: ServerName::try_from(host.to_owned()).map_err(|_| host.to_owned()) })
    }
}

pub(super) struct Handshake {
    encryption: Encryption,
    name: Result<ServerName<'static>, String>,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> TlsConnect<S> for Handshake {
    type Stream = TlsConnection<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsConnection<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = self.name.map_err(|name| io::Error::other(format!("`{name}` is not a name that a certificate can have")))?;
            let connector = self.encryption.connector().await?;
            let hint = "name the certificate to trust with sslrootcert=FILE, and the host as the certificate does";
            let stream = connector.connect(name, stream).await;
            stream.map(TlsConnection).map_err(|error| io::Error::other(format!("{error}; {hint}")))
        })
    }
}

/// An encrypted connection. What it says about itself is not used for logging in: the certificate was checked.
pub(super) struct TlsConnection<S>(client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for TlsConnection<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsConnection<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
