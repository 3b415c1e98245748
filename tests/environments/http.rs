//! Requests that are made from where the environment is.

use std::net::SocketAddr;
use std::time::Duration;

use outpost_environment::{Environment, EnvironmentError, HttpCall};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{options, over_sites, soon};

/// Answers every request with three pieces, and waits before the last one for as long as it takes.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let is_endless = String::from_utf8_lossy(&request[..length]).contains("/endless");
                let head = "HTTP/1.1 200 OK\r\nx-from: there\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                for piece in ["3\r\none\r\n", "3\r\ntwo\r\n"] {
                    stream.write_all(piece.as_bytes()).await.unwrap();
                }
                if is_endless {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                let _ = stream.write_all(b"5\r\nthree\r\n0\r\n\r\n").await;
            });
        }
    });
    address
}

over_sites! {
    async fn an_answer_comes_whole_or_piece_by_piece(site: Site) {
        let (environment, address) = (site.environment(), server().await);
        let (head, body) = environment.http(HttpCall::get(format!("http://{address}/"))).await.unwrap();
        assert_eq!((head.status, body.as_ref()), (200, &b"onetwothree"[..]));
        assert!(head.headers.iter().any(|header| header.name == "x-from" && header.value == "there"));
        let (head, mut body) = environment.http_stream(HttpCall::get(format!("http://{address}/"))).await.unwrap();
        let mut all = Vec::new();
        while let Some(piece) = soon("a piece", body.next()).await {
            all.extend_from_slice(&piece.unwrap());
        }
        assert_eq!((head.status, all), (200, b"onetwothree".to_vec()));
        let refused = environment.http(HttpCall::get("ftp://x/")).await;
        assert!(matches!(refused, Err(EnvironmentError::Fault(_))));
    }

    async fn a_body_ends_with_its_connection_and_says_so(site: Site) {
        // The connection is cut some time after the first pieces of the body.
        let environment = Environment::new(site.cut(vec![12]), options());
        let address = server().await;
        let (_, mut body) = environment.http_stream(HttpCall::get(format!("http://{address}/endless"))).await.unwrap();
        let first = soon("a piece", body.next()).await.unwrap().unwrap();
        assert!(b"onetwo".starts_with(&first[..]));
        let asking = tokio::spawn({
            let environment = environment.clone();
            async move {
                for _ in 0..10 {
                    environment.files().metadata(crate::support::uri("/")).await.unwrap();
                }
            }
        });
        let error = soon("the end", async {
            loop {
                match body.next().await {
                    Some(Err(error)) => return error,
                    Some(Ok(_)) => {}
                    None => panic!("it looks whole"),
                }
            }
        })
        .await;
        assert!(error.to_string().starts_with("the body is incomplete"), "{error}");
        assert!(body.next().await.is_none());
        asking.await.unwrap();
        let (_, body) = environment.http(HttpCall::get(format!("http://{address}/"))).await.unwrap();
        assert_eq!(body.as_ref(), b"onetwothree");
    }
}
