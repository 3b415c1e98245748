//! S5: what `http/request` reaches, and what it hands on.

use std::time::Duration;

use outpost_testkit::bench::with;
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::server::client;
use crate::support::OUTPOST;

/// Long enough for a connection on this machine that is going to be made.
const MOMENT: Duration = Duration::from_millis(300);

struct Server(TcpListener);

impl Server {
    async fn start(address: &str) -> Self {
        Self(TcpListener::bind((address, 0)).await.unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// The next request, all of it.
    async fn request(&self) -> (TcpStream, String) {
        let (mut socket, _) = self.0.accept().await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            assert_ne!(socket.read_buf(&mut text).await.unwrap(), 0);
        }
        (socket, String::from_utf8(text).unwrap().to_lowercase())
    }

    /// Answers the next request, which is returned.
    async fn answer(&self, answer: &str) -> String {
        let (mut socket, request) = self.request().await;
        socket.write_all(answer.as_bytes()).await.unwrap();
        let _ = timeout(MOMENT, socket.read(&mut [0])).await;
        request
    }

    /// Nobody has come.
    async fn was_left_alone(&self) {
        assert!(timeout(MOMENT, self.0.accept()).await.is_err(), "somebody connected");
    }
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

fn executor(arguments: &[&str], variables: &[(&str, &str)]) -> ExecutorProcess {
    let home = tempfile::tempdir().unwrap();
    ExecutorProcess::start_with(OUTPOST.as_ref(), &[&["--no-auth"], arguments].concat(), variables, home)
}

fn get(url: &str) -> Value {
    json!({"method": "GET", "url": url, "requestId": "r", "timeoutMs": 5000})
}

async fn refusal(client: &mut Client, url: &str) -> String {
    let (code, text) = client.error("http/request", get(url)).await;
    assert_eq!(code, -32602, "{url}: {text}");
    text
}

#[tokio::test]
async fn s5_inner_addresses_are_refused_in_every_spelling() {
    let executor = executor(&[], &[]);
    let (server, mut client) = (Server::start("127.0.0.1").await, client(&executor).await);
    let port = server.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LocalHost",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
        "[64:ff9b::7f00:1]",
        "127.0.0.2",
    ] {
        let text = refusal(&mut client, &format!("http://{host}:{port}/")).await;
        assert!(text.contains("--http-allow"), "{text}");
    }
    for host in ["169.254.169.254", "10.0.0.1", "192.168.0.1", "172.20.0.1", "[fd00::1]", "[fe80::1]", "100.100.100.200", "224.0.0.1"] {
        let text = refusal(&mut client, &format!("http://{host}/")).await;
        assert!(text.contains(host.trim_matches(['[', ']'])) && text.contains("--http-allow"), "{text}");
    }
    server.was_left_alone().await;
}

#[tokio::test]
async fn s5_what_was_named_is_reached_and_nothing_beside_it() {
    let executor = executor(&["--http-allow", "127.0.0.1/32"], &[]);
    let (named, beside, mut client) = (Server::start("127.0.0.1").await, Server::start("127.0.0.2").await, client(&executor).await);
    let url = |host: &str, server: &Server| format!("http://{host}:{}/", server.port());
    let id = client.request("http/request", get(&url("127.0.0.1", &named)));
    named.answer(OK).await;
    assert_eq!(client.answer(id).await["result"]["status"], 200);
    refusal(&mut client, &url("127.0.0.2", &beside)).await;
    // By way of a redirect neither: every target is looked at.
    for target in [url("127.0.0.2", &beside), format!("//127.0.0.2:{}/x", beside.port()), "http://169.254.169.254/latest/".into()] {
        let id = client.request("http/request", get(&url("127.0.0.1", &named)));
        named.answer(&redirect(&target)).await;
        let error = client.answer(id).await["error"].clone();
        assert!(error["message"].as_str().is_some_and(|text| text.contains("--http-allow")), "{error}");
    }
    beside.was_left_alone().await;
}

#[tokio::test]
async fn s5_a_redirect_does_not_hand_secrets_to_another_server() {
    let executor = executor(&["--http-allow", "loopback"], &[("HANDED", "out-of-here")]);
    let (first, second, mut client) = (Server::start("127.0.0.1").await, Server::start("127.0.0.1").await, client(&executor).await);
    let url = |server: &Server, path: &str| format!("http://127.0.0.1:{}{path}", server.port());
    let headers = json!([
        {"name": "X-Key", "value": "k-", "valueEnvVar": "HANDED"},
        {"name": "Authorization", "value": "Bearer typed"},
        {"name": "Cookie", "value": "typed=1"},
        {"name": "X-Plain", "value": "plain"},
    ]);
    let secrets = ["out-of-here", "bearer typed", "typed=1"];
    for (target, is_same) in [(url(&first, "/next"), true), (url(&second, "/next"), false)] {
        let id = client.request("http/request", with(get(&url(&first, "/")), json!({"headers": headers})));
        let asked = first.answer(&redirect(&target)).await;
        assert!(secrets.iter().all(|secret| asked.contains(secret)));
        let next = if is_same { first.answer(OK).await } else { second.answer(OK).await };
        assert_eq!(client.answer(id).await["result"]["status"], 200);
        assert!(next.contains("x-plain: plain"), "{next}");
        for secret in secrets {
            assert_eq!(next.contains(secret), is_same, "{secret} in {next}");
        }
    }
}

#[tokio::test]
async fn s5_a_redirected_post_becomes_a_get_without_a_body_unless_it_must_not() {
    let executor = executor(&["--http-allow", "loopback"], &[]);
    let (server, mut client) = (Server::start("127.0.0.1").await, client(&executor).await);
    let url = format!("http://127.0.0.1:{}/", server.port());
    for (status, method) in [("302", "get"), ("303", "get"), ("307", "post"), ("308", "post")] {
        let post = json!({"method": "POST", "bodyBase64": "", "headers": [{"name": "Content-Type", "value": "text/x"}]});
        let id = client.request("http/request", with(get(&url), post));
        server.answer(&redirect("/next").replace("302", status)).await;
        let next = server.answer(OK).await;
        assert!(next.starts_with(&format!("{method} /next")) && next.contains("text/x") == (method == "post"), "{status}: {next}");
        assert_eq!(client.answer(id).await["result"]["status"], 200);
    }
    let id = client.request("http/request", get(&url));
    for _ in 0..=10 {
        server.answer(&redirect("/again")).await;
    }
    assert!(client.answer(id).await["error"]["message"].as_str().unwrap().contains("redirects"));
}

#[tokio::test]
async fn s5_nobody_else_resolves_names() {
    let proxy = Server::start("127.0.0.1").await;
    let address = format!("http://127.0.0.1:{}", proxy.port());
    let executor = executor(&["--http-allow", "loopback"], &[("HTTP_PROXY", &address), ("http_proxy", &address), ("ALL_PROXY", &address)]);
    let (server, mut client) = (Server::start("127.0.0.1").await, client(&executor).await);
    let id = client.request("http/request", get(&format!("http://localhost:{}/", server.port())));
    server.answer(OK).await;
    assert_eq!(client.answer(id).await["result"]["status"], 200);
    proxy.was_left_alone().await;
}
