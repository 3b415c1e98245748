//! A TCP connection on which tests write what no proper client would.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;

pub struct RawSocket(TcpStream);

#[derive(Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: String,
}

impl RawSocket {
    /// Connects to `IP:PORT`.
    pub async fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// A connection that is past the upgrade.
    pub async fn websocket(address: &str) -> Self {
        let mut socket = Self::connect(address).await;
        let answer = socket.upgrade(&[]).await;
        assert_eq!(answer.status, 101, "{}", answer.body);
        socket
    }

    /// One request, such as `GET /readyz`, and its answer.
    pub async fn http(&mut self, request: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        let mut head = format!("{request} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.write(format!("{head}\r\n").as_bytes()).await;
        self.answer().await
    }

    /// The request that asks for a websocket, with more headers.
    pub async fn upgrade(&mut self, headers: &[(&str, &str)]) -> HttpAnswer {
        let mut all = vec![
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ];
        all.extend_from_slice(headers);
        self.http("GET /", &all).await
    }

    async fn answer(&mut self) -> HttpAnswer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.read(1).await.expect("an answer")[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
        let body = String::from_utf8(self.read(length).await.expect("a body")).unwrap();
        HttpAnswer { status, body }
    }

    /// Writes bytes as they are. The other side may have hung up already, which is no failure here.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.0.write_all(bytes)).await.expect("the bytes were not taken");
    }

    /// Sends one whole message.
    pub async fn send(&mut self, opcode: u8, payload: &[u8]) {
        self.write(&frame(0x80 | opcode, payload)).await;
    }

    async fn read(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        match timeout(PATIENCE, self.0.read_exact(&mut bytes)).await.expect("nothing came in time") {
            Ok(_) => Some(bytes),
            Err(_) => None,
        }
    }

    /// The next frame's opcode and payload; nothing once the connection has ended.
    pub async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.read(2).await?;
        let length = match head[1] & 0x7f {
            126 => u64::from(u16::from_be_bytes(self.read(2).await?.try_into().unwrap())),
            127 => u64::from_be_bytes(self.read(8).await?.try_into().unwrap()),
            short => u64::from(short),
        };
        Some((head[0] & 0x0f, self.read(usize::try_from(length).unwrap()).await?))
    }

    /// The next text message.
    pub async fn message(&mut self) -> Value {
        loop {
            match self.receive().await.expect("the connection ended") {
                (TEXT, text) => return serde_json::from_slice(&text).unwrap(),
                (CLOSE, reason) => panic!("closed: {}", String::from_utf8_lossy(&reason)),
                _ => {}
            }
        }
    }

    /// Sends a message and waits for the next one.
    pub async fn call(&mut self, message: &Value) -> Value {
        self.send(TEXT, message.to_string().as_bytes()).await;
        self.message().await
    }

    /// The handshake of the protocol; returns the session's id.
    pub async fn hello(&mut self) -> String {
        let answer = self.call(&serde_json::json!({"id": 0, "method": "initialize", "params": {"clientName": "raw"}})).await;
        self.send(TEXT, br#"{"method":"initialized"}"#).await;
        answer["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of the connection; whatever comes before it is dropped. Returns the code of a close frame.
    pub async fn ended(&mut self) -> Option<u16> {
        let mut code = None;
        while let Some((opcode, payload)) = self.receive().await {
            if opcode == CLOSE && payload.len() >= 2 {
                code = Some(u16::from_be_bytes([payload[0], payload[1]]));
            }
        }
        code
    }

    /// Cuts the connection as a pulled cable would, without a word.
    pub fn cut(self) {
        self.0.set_zero_linger().unwrap();
    }
}

/// A masked frame whose first byte is given: flags and opcode.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(first, payload.len() as u64);
    bytes.extend_from_slice(payload);
    bytes
}

/// The header of a masked frame that declares so many bytes. The mask is zero, so the payload goes as it is.
pub fn header(first: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![first];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => bytes.push(0x80 | short),
        (_, Ok(medium)) => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes
}
