//! TLS in front of a server that speaks none, as a proxy would put it there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Ends TLS for `localhost` with an unknown certificate, and passes the rest on.
pub struct TlsProxy {
    address: SocketAddr,
    directory: TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl TlsProxy {
    /// In front of `IP:PORT`.
    pub async fn start(server: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("certificate.pem"), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, server) = (listener.local_addr().unwrap(), server.to_owned());
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                tokio::spawn(forward(acceptor.clone(), client, server.clone()));
            }
        });
        Self { address, directory, task }
    }

    pub fn url(&self) -> String {
        format!("wss://localhost:{}", self.address.port())
    }

    /// For clients that are to trust it.
    pub fn certificate(&self) -> PathBuf {
        Path::new(self.directory.path()).join("certificate.pem")
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(acceptor: TlsAcceptor, client: TcpStream, server: String) -> Option<()> {
    let mut client = acceptor.accept(client).await.ok()?;
    let mut server = TcpStream::connect(server).await.ok()?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.ok()?;
    Some(())
}
