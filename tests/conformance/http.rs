//! The HTTP side of a websocket listener: who may come in, and what else there is.

use std::process::Command;

use outpost_testkit::raw::HttpAnswer;
use outpost_testkit::{ExecutorProcess, RawSocket};

use crate::support::OUTPOST;

/// SHA-256 of `s3cret`.
const DIGEST: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

// Signed with SECRET; issued by `them`, for `us` among others, and valid until the year 2100 unless the name says otherwise.
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const GOOD: &str = "eyJhbGciOiAiSFMyNTYifQ.eyJleHAiOiA0MTAyNDQ0ODAwLCAiaXNzIjogInRoZW0iLCAiYXVkIjogWyJ4IiwgInVzIl0sICJuYmYiOiAxfQ.bRzAhKrx00riIy1mPEJ9ERMUzOwve71qTjNN0QdTys8";
const EXPIRED: &str =
    "eyJhbGciOiAiSFMyNTYifQ.eyJleHAiOiAxMDAwLCAiaXNzIjogInRoZW0iLCAiYXVkIjogInVzIn0.a3KV-XQzfWB3JOBlw-j3hUEMPEVUIo9F_TJnBDbZU34";
const EARLY: &str = "eyJhbGciOiAiSFMyNTYifQ.eyJleHAiOiA0MTAyNDQ0ODAwLCAibmJmIjogNDEwMjQ0NDc5MCwgImlzcyI6ICJ0aGVtIiwgImF1ZCI6ICJ1cyJ9.iROG_7bRGPBCguxFnNB1wsDnJgcOxiKxH7WC4c0nszs";
const ISSUER: &str =
    "eyJhbGciOiAiSFMyNTYifQ.eyJleHAiOiA0MTAyNDQ0ODAwLCAiaXNzIjogIm90aGVycyIsICJhdWQiOiAidXMifQ.rTJGnbvLqL6K67XITGBaXo2Hsu2NPZCmnCSV4BhcsrM";
const AUDIENCE: &str = "eyJhbGciOiAiSFMyNTYifQ.eyJleHAiOiA0MTAyNDQ0ODAwLCAiaXNzIjogInRoZW0iLCAiYXVkIjogIm90aGVycyJ9.64g3CkeRgZUAMoBcav8Piuu35KNQ0ycfpe8Y2gNdZl4";
const FOREVER: &str = "eyJhbGciOiAiSFMyNTYifQ.eyJpc3MiOiAidGhlbSIsICJhdWQiOiAidXMifQ.qnGJwoAEQcY6R0tSpVm1PeT0aCgvVvSO93ynif_trzs";
const FORGED: &str =
    "eyJhbGciOiAiSFMyNTYifQ.eyJleHAiOiA0MTAyNDQ0ODAwLCAiaXNzIjogInRoZW0iLCAiYXVkIjogInVzIn0.18TgmHLLoejAmVsbrTgvw7ifyThXCVYz48Z8Hvyfh9g";
const UNSIGNED: &str =
    "eyJhbGciOiAibm9uZSJ9.eyJleHAiOiA0MTAyNDQ0ODAwLCAiaXNzIjogInRoZW0iLCAiYXVkIjogInVzIn0.AiL-NhYMLwMTaI1hTf44z56_tc3ZMh3GLjkZSO81c88";

/// One request on a connection of its own.
async fn http(executor: &ExecutorProcess, request: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    RawSocket::connect(executor.address()).await.http(request, headers).await
}

/// An attempt to open a websocket: status and body.
async fn knock(executor: &ExecutorProcess, authorization: Option<&str>) -> (u16, String) {
    let headers: Vec<_> = authorization.iter().map(|value| ("authorization", *value)).collect();
    let answer = RawSocket::connect(executor.address()).await.upgrade(&headers).await;
    (answer.status, answer.body)
}

fn open() -> ExecutorProcess {
    ExecutorProcess::start(OUTPOST.as_ref(), &["--no-auth"])
}

fn guarded() -> ExecutorProcess {
    ExecutorProcess::start(OUTPOST.as_ref(), &["--ws-auth", "capability-token", "--ws-token-sha256", DIGEST])
}

async fn check_token(executor: &ExecutorProcess) {
    let denied = |body: &str| (401, body.to_owned());
    assert_eq!(knock(executor, None).await, denied("missing websocket bearer token"));
    for value in ["Bearer s3cret", "bearer s3cret", "BEARER s3cret"] {
        assert_eq!(knock(executor, Some(value)).await.0, 101, "{value}");
    }
    for value in ["Bearer nope", "Bearer s3cre", "Bearer s3cret1", "Bearer S3CRET"] {
        assert_eq!(knock(executor, Some(value)).await, denied("invalid websocket bearer token"), "{value}");
    }
    for value in ["s3cret", "Basic s3cret", "Bearer", "Bearer ", ""] {
        assert_eq!(knock(executor, Some(value)).await, denied("invalid authorization header"), "{value}");
    }
}

#[tokio::test]
async fn readiness_is_told_to_anybody() {
    for executor in [open(), guarded()] {
        assert_eq!(http(&executor, "GET /readyz", &[]).await, HttpAnswer { status: 200, body: String::new() });
    }
}

#[tokio::test]
async fn there_is_nothing_else_to_be_found() {
    let executor = open();
    for (request, status) in [
        ("GET /healthz", 404),
        ("GET /x", 404),
        ("GET //", 404),
        ("POST /x", 404),
        ("POST /readyz", 405),
        ("DELETE /readyz", 405),
        ("POST /", 405),
        ("GET /", 400),
    ] {
        assert_eq!(http(&executor, request, &[("content-length", "0")]).await.status, status, "{request}");
    }
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ];
    assert_eq!(http(&executor, "GET /x", &upgrade).await.status, 404);
    assert_eq!(http(&executor, "GET /", &upgrade[..2]).await.status, 400);
    assert_eq!(http(&executor, "GET /", &upgrade).await.status, 101);
}

#[tokio::test]
async fn a_browser_is_refused_before_anything_else() {
    for executor in [open(), guarded()] {
        for origin in ["http://localhost", "null", "", "https://example.com"] {
            for request in ["GET /readyz", "GET /", "GET /x", "POST /readyz"] {
                assert_eq!(http(&executor, request, &[("origin", origin)]).await.status, 403, "{request} from {origin}");
            }
            let known = [("origin", origin), ("authorization", "Bearer s3cret")];
            assert_eq!(RawSocket::connect(executor.address()).await.upgrade(&known).await.status, 403);
        }
    }
}

#[tokio::test]
async fn without_protection_a_token_is_not_looked_at() {
    let executor = open();
    for value in [None, Some("Bearer x"), Some("nonsense")] {
        assert_eq!(knock(&executor, value).await.0, 101);
    }
}

#[tokio::test]
async fn a_token_is_asked_for_by_its_digest() {
    check_token(&guarded()).await;
}

#[tokio::test]
async fn a_token_is_asked_for_by_a_file_whose_edges_do_not_count() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("token");
    std::fs::write(&path, "\n  s3cret \n").unwrap();
    let path = path.to_str().unwrap().to_owned();
    check_token(&ExecutorProcess::start_in(OUTPOST.as_ref(), &["--ws-auth", "capability-token", "--ws-token-file", &path], home)).await;
}

#[tokio::test]
async fn a_guarded_executor_serves_whoever_is_let_in() {
    let executor = guarded();
    let mut socket = RawSocket::connect(executor.address()).await;
    assert_eq!(socket.upgrade(&[("authorization", "Bearer s3cret")]).await.status, 101);
    assert!(!socket.hello().await.is_empty());
}

#[tokio::test]
async fn signed_tokens_follow_their_claims() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("secret");
    std::fs::write(&path, format!("{SECRET}\n")).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let arguments = ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", &path, "--ws-issuer", "them", "--ws-audience", "us"];
    let executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &arguments, home);
    for (token, body) in [
        (EXPIRED, "expired websocket jwt"),
        (EARLY, "websocket jwt is not valid yet"),
        (ISSUER, "websocket jwt issuer mismatch"),
        (AUDIENCE, "websocket jwt audience mismatch"),
        (FOREVER, "invalid websocket jwt"),
        (FORGED, "invalid websocket jwt"),
        (UNSIGNED, "invalid websocket jwt"),
        ("s3cret", "invalid websocket jwt"),
    ] {
        assert_eq!(knock(&executor, Some(&format!("Bearer {token}"))).await, (401, body.to_owned()));
    }
    assert_eq!(knock(&executor, None).await, (401, "missing websocket bearer token".into()));
    assert_eq!(knock(&executor, Some(&format!("Bearer {GOOD}"))).await.0, 101);
}

#[test]
fn an_executor_that_could_not_be_guarded_as_asked_does_not_start() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (empty, short, token) = (file("empty", " \n"), file("short", "0123456789"), file("token", "s3cret"));
    let missing = home.path().join("missing").to_str().unwrap().to_owned();
    for arguments in [
        &["--listen", "ws://0.0.0.0:0"][..],
        &["--no-auth", "--listen", "ws://0.0.0.0:0"],
        &["--no-auth", "--listen", "ws://localhost:0"],
        &["--no-auth", "--listen", "http://127.0.0.1:0"],
        &["--no-auth", "--concurrent-requests", "0"],
        &["--ws-auth", "capability-token"],
        &["--ws-auth", "capability-token", "--ws-token-file", &empty],
        &["--ws-auth", "capability-token", "--ws-token-file", &missing],
        &["--ws-auth", "capability-token", "--ws-token-file", "token"],
        &["--ws-auth", "capability-token", "--ws-token-sha256", "abc"],
        &["--ws-auth", "capability-token", "--ws-token-file", &token, "--ws-token-sha256", DIGEST],
        &["--ws-auth", "signed-bearer-token"],
        &["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", &short],
        &["--ws-auth", "nonsense"],
        &["--ws-token-file", &token],
        &["--ws-auth", "capability-token", "--ws-token-file", &token, "--listen", "stdio"],
    ] {
        let run = Command::new(OUTPOST).arg("executor").args(arguments).env("OUTPOST_HOME", home.path()).current_dir(home.path()).output();
        let output = run.unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} was refused without a word");
    }
}
