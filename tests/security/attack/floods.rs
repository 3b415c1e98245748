//! Crowds of strangers who say nothing, or half of something, while clients with a token come and work.

use outpost_testkit::{ExecutorProcess, RawSocket};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Episode, Random, Steps};
use crate::support::{as_who, directory, program_for};

const WORDS: &[&[u8]] = &[
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc",
    b"\0\0\0\0\0\0\0\0",
];

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let mut command = as_who(episode.who, &program_for(episode.who));
    command.arg("executor").env("HOME", "/nonexistent");
    let executor = ExecutorProcess::start_command(command, directory(episode.who));
    let bearer = format!("Bearer {}", executor.token());
    let mut inside = RawSocket::connect(executor.address()).await;
    assert_eq!(inside.upgrade(&[("authorization", &bearer)]).await.status, 101);
    inside.hello().await;
    let mut crowd = Vec::new();
    for round in 0..3 {
        let count = 100 + random.below(300);
        steps.note(format!("{count} strangers"));
        for _ in 0..count {
            let Ok(mut socket) = TcpStream::connect(executor.address()).await else { continue };
            let _ = socket.write_all(random.pick(WORDS)).await;
            crowd.push(socket);
            if random.percent(20) && !crowd.is_empty() {
                drop(crowd.swap_remove(random.below(crowd.len())));
            }
        }
        let answer = inside.call(&json!({"id": round, "method": "environment/status"})).await;
        assert_eq!(answer["result"]["status"], "ready", "a client that was there before");
        let mut new = RawSocket::connect(executor.address()).await;
        assert_eq!(new.upgrade(&[("authorization", &bearer)]).await.status, 101, "a client with a token");
        assert!(!new.hello().await.is_empty());
    }
}
