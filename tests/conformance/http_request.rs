//! HTTP requests that the executor makes, against a server that does what each test says.

use std::time::Duration;

use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use outpost_testkit::{Client, over_every_link, over_links};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

struct Server(TcpListener);

impl Server {
    async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.0.local_addr().unwrap())
    }

    /// Parameters of a request for a path.
    fn get(&self, path: &str, request_id: &str) -> Value {
        json!({"method": "GET", "url": self.url(path), "requestId": request_id})
    }

    fn stream(&self, request_id: &str) -> Value {
        with(self.get("/", request_id), json!({"streamResponse": true}))
    }

    /// The next connection, once its request is there.
    async fn accept(&self) -> Visitor {
        let (socket, _) = self.0.accept().await.unwrap();
        let mut visitor = Visitor { socket, head: String::new(), body: Vec::new() };
        visitor.receive().await;
        visitor
    }
}

struct Visitor {
    socket: TcpStream,
    head: String,
    body: Vec<u8>,
}

impl Visitor {
    /// Reads a whole request.
    async fn receive(&mut self) {
        let mut text = Vec::new();
        let end = loop {
            assert_ne!(self.socket.read_buf(&mut text).await.unwrap(), 0, "the visitor left");
            if let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        self.head = String::from_utf8(text[..end].to_vec()).unwrap();
        self.body = text.split_off(end);
        let length = self.header("content-length").first().map_or(0, |length| length.parse().unwrap());
        while self.body.len() < length {
            assert_ne!(self.socket.read_buf(&mut self.body).await.unwrap(), 0, "the visitor left");
        }
    }

    fn header(&self, name: &str) -> Vec<&str> {
        let of_name = |line: &&str| line.split(':').next().is_some_and(|own| own.eq_ignore_ascii_case(name));
        self.head.lines().filter(of_name).map(|line| line.split_once(':').unwrap().1.trim()).collect()
    }

    /// The names of all headers.
    fn headers(&self) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter(|line| !line.is_empty());
        let mut names: Vec<_> = lines.map(|line| line.split(':').next().unwrap().to_lowercase()).collect();
        names.sort();
        names
    }

    async fn send(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).await.unwrap();
    }

    async fn answer(&mut self, body: &str) {
        self.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    }

    /// Waits until the other side has gone.
    async fn left(&mut self) {
        let mut rest = Vec::new();
        while matches!(self.socket.read_buf(&mut rest).await, Ok(read) if read > 0) {}
    }
}

/// The next delta of a stream, as its number, its bytes and the rest of it.
async fn delta(client: &mut Client, request_id: &str) -> (u64, Vec<u8>, Value) {
    let of_it = |message: &Value| message["method"] == "http/request/bodyDelta" && message["params"]["requestId"] == request_id;
    let mut params = client.until(of_it).await["params"].take();
    let bytes = decode(&params["deltaBase64"]);
    assert!(bytes.len() <= 1 << 20);
    (params["seq"].as_u64().unwrap(), bytes, json!({"done": params["done"].take(), "error": params["error"].take()}))
}

/// Everything that still comes of a stream, and how it ends.
async fn rest(client: &mut Client, request_id: &str, mut after: u64) -> (Vec<u8>, Value) {
    let mut body = Vec::new();
    loop {
        let (seq, bytes, state) = delta(client, request_id).await;
        after += 1;
        assert_eq!(seq, after);
        body.extend(bytes);
        if state["done"] == true {
            return (body, state["error"].clone());
        }
    }
}

over_every_link! {
    async fn a_request_is_made_as_asked(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        let headers = json!([{"name": "X-A", "value": "1"}, {"name": "X-A", "value": "2"}]);
        let post = json!({"method": "POST", "headers": headers, "bodyBase64": base64("payload")});
        let id = client.request("http/request", with(server.get("/p?q=1#fragment", "r"), post));
        let mut visitor = server.accept().await;
        assert!(visitor.head.starts_with("POST /p?q=1 HTTP/1.1\r\n"));
        assert_eq!(visitor.headers(), ["accept", "content-length", "host", "x-a", "x-a"]);
        assert_eq!((visitor.header("accept"), visitor.header("x-a")), (vec!["*/*"], vec!["1", "2"]));
        assert_eq!(visitor.body, b"payload");
        visitor.send("HTTP/1.1 201 Created\r\nX-Multi: a\r\nX-Multi: b\r\nContent-Length: 2\r\n\r\nhi").await;
        let answer = &client.answer(id).await["result"];
        let headers = [("x-multi", "a"), ("x-multi", "b"), ("content-length", "2")].map(|(name, value)| json!({"name": name, "value": value}));
        assert_eq!(answer, &json!({"status": 201, "headers": headers, "bodyBase64": base64("hi")}));
    }

    async fn a_streamed_body_follows_its_answer(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        let id = client.request("http/request", server.stream("s"));
        let mut visitor = server.accept().await;
        visitor.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await;
        let first = client.receive().await.unwrap();
        assert_eq!((&first["id"], &first["result"]["bodyBase64"]), (&json!(id), &json!("")));
        let (seq, bytes, state) = delta(&mut client, "s").await;
        assert_eq!((seq, bytes, state), (1, b"one".to_vec(), json!({"done": false, "error": null})));
        let twice = client.error("http/request", server.stream("s")).await;
        assert_eq!(twice, (-32602, "http/request streamResponse requestId `s` is already active".into()));
        visitor.send("3\r\ntwo\r\n0\r\n\r\n").await;
        assert_eq!(delta(&mut client, "s").await, (2, b"two".to_vec(), json!({"done": false, "error": null})));
        assert_eq!(delta(&mut client, "s").await, (3, vec![], json!({"done": true, "error": null})));
        // Who has seen the end may use the id again.
        let other = Server::start().await;
        let id = client.request("http/request", other.stream("s"));
        let mut visitor = other.accept().await;
        visitor.answer("").await;
        assert_eq!(client.answer(id).await["result"]["status"], 200);
        assert_eq!(rest(&mut client, "s", 0).await, (vec![], json!(null)));
    }
}

over_links! { [Memory, WebSocket]
    async fn redirects_are_followed_or_not(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        let moved = "HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n";
        let id = client.request("http/request", server.get("/here", "1"));
        let mut visitor = server.accept().await;
        visitor.send(moved).await;
        visitor.receive().await;
        assert!(visitor.head.starts_with("GET /there "));
        visitor.answer("").await;
        assert_eq!(client.answer(id).await["result"]["status"], 200);
        let server = Server::start().await;
        let id = client.request("http/request", with(server.get("/here", "2"), json!({"redirectPolicy": "stop"})));
        server.accept().await.send(moved).await;
        let answer = &client.answer(id).await["result"];
        assert_eq!((&answer["status"], &answer["headers"][0]), (&json!(302), &json!({"name": "location", "value": "/there"})));
    }

    async fn failures_say_what_failed(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        // Nobody answers, so it does not matter how short the time is.
        let slow = client.error("http/request", with(server.get("/slow", "1"), json!({"timeoutMs": 1}))).await;
        assert_eq!(slow, (-32603, format!("http/request failed: error sending request for url ({})", server.url("/slow"))));
        let server = Server::start().await;
        let short = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this";
        let id = client.request("http/request", server.get("/", "2"));
        server.accept().await.send(short).await;
        let error = &client.answer(id).await["error"];
        let text = "failed to read http/request response body: error decoding response body";
        assert_eq!((&error["code"], &error["message"]), (&json!(-32603), &json!(text)));
        client.request("http/request", server.stream("3"));
        server.accept().await.send(short).await;
        assert_eq!(rest(&mut client, "3", 0).await, (b"only this".to_vec(), json!("error decoding response body")));
    }

    async fn senseless_requests_are_refused(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        let valid = server.get("/", "r");
        for (change, text) in [
            (json!({"method": "BAD METHOD"}), "method is invalid: invalid HTTP method"),
            (json!({"url": "ftp://x/y"}), "only supports http and https URLs, got ftp"),
            (json!({"url": "not a url"}), "url is invalid: relative URL without a base"),
            (json!({"headers": [{"name": "bad name", "value": "x"}]}), "header name is invalid: invalid HTTP header name"),
            (json!({"headers": [{"name": "x", "value": "a\nb"}]}), "header value is invalid for x: failed to parse header value"),
            (json!({"headers": [{"name": "A", "value": "", "valueEnvVar": "NOT_SET_ANYWHERE"}]}),
                "header A requires executor environment variable NOT_SET_ANYWHERE"),
            (json!({"headers": [{"name": "A", "value": "", "valueEnvVar": "OPENAI_API_KEY"}]}),
                "header A cannot use executor environment variable OPENAI_API_KEY"),
        ] {
            assert_eq!(client.error("http/request", with(valid.clone(), change)).await, (-32602, format!("http/request {text}")));
        }
        let unknown = client.error("http/request", with(valid, json!({"redirectPolicy": "manual"}))).await;
        assert_eq!(unknown, (-32602, "unknown variant `manual`, expected `follow` or `stop`".into()));
    }

    async fn variables_and_traces_reach_the_server(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        let headers = json!([{"name": "X-Path", "value": "is ", "valueEnvVar": "PATH"}]);
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let params = with(server.get("/", "r"), json!({"headers": headers}));
        client.send(&json!({"id": "traced", "method": "http/request", "params": params,
            "trace": {"traceparent": parent, "tracestate": "a=b"}}));
        let mut visitor = server.accept().await;
        assert_eq!(visitor.header("x-path"), [format!("is {}", std::env::var("PATH").unwrap())]);
        assert_eq!((visitor.header("traceparent"), visitor.header("tracestate")), (vec![parent], vec!["a=b"]));
        visitor.answer("").await;
        client.answer("traced").await;
        client.send(&json!({"id": "nonsense", "method": "http/request", "params": server.get("/", "r"),
            "trace": {"traceparent": "00-nonsense", "tracestate": "a=b"}}));
        visitor.receive().await;
        assert_eq!(visitor.headers(), ["accept", "host"]);
        visitor.answer("").await;
        assert_eq!(client.answer("nonsense").await["result"]["status"], 200);
    }

    async fn other_requests_go_on_during_an_exchange(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        let id = client.request("http/request", server.get("/", "r"));
        let mut visitor = server.accept().await;
        client.result("environment/status", json!(null)).await;
        client.result("fs/getMetadata", json!({"path": bench.uri("")})).await;
        visitor.answer("late").await;
        assert_eq!(decode(&client.answer(id).await["result"]["bodyBase64"]), b"late");
    }

    async fn a_stream_waits_for_its_reader(bench: Bench) {
        const ENOUGH: usize = 64 << 20;
        let (server, mut client) = (Server::start().await, bench.client().await);
        client.request("http/request", server.stream("s"));
        let mut visitor = server.accept().await;
        visitor.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await;
        let mut sent = 0;
        // Until nothing is taken any more for a while. If the machine is merely slow, all the better.
        let block = vec![7; 1 << 16];
        while let Ok(written) = timeout(Duration::from_secs(1), visitor.socket.write(&block)).await {
            sent += written.unwrap();
            assert!(sent < ENOUGH, "nobody reads, and yet everything is taken");
        }
        drop(visitor);
        let (body, error) = rest(&mut client, "s", 0).await;
        assert_eq!((body.len(), error), (sent, json!(null)));
    }

    async fn a_stream_ends_with_its_connection(bench: Bench) {
        let (server, mut client) = (Server::start().await, bench.client().await);
        client.request("http/request", server.stream("s"));
        let mut visitor = server.accept().await;
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome").await;
        assert_eq!(delta(&mut client, "s").await.1, b"some");
        client.close();
        visitor.left().await;
    }
}
