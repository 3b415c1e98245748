//! S1 to S3 and Q3: nobody gets in unasked, and those who try cost little.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outpost_testkit::{ExecutorProcess, RawSocket};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::server::{Everywhere, NOBODY, Server, as_nobody, mode};
use crate::support::{OUTPOST, is_root};

fn plain() -> ExecutorProcess {
    ExecutorProcess::start(OUTPOST.as_ref(), &[])
}

/// The status of an attempt to open a websocket.
async fn knock(address: &str, headers: &[(&str, &str)]) -> u16 {
    RawSocket::connect(address).await.upgrade(headers).await.status
}

/// The status of a request with exactly these lines.
async fn request(address: &str, lines: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(format!("{lines}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn s1_a_plain_start_asks_for_a_token_that_it_made() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("tokens/executor");
    let start = || Server::start(Command::new(OUTPOST).arg("executor").env("OUTPOST_HOME", home.path()).env("OUTPOST_LOG", "trace"));
    let server = start();
    let token = fs::read_to_string(&path).unwrap().trim().to_owned();
    assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "not 256 bits");
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let bearer = format!("Bearer {token}");
    assert_eq!(knock(server.address(), &[]).await, 401);
    assert_eq!(knock(server.address(), &[("authorization", "Bearer 0000")]).await, 401);
    assert_eq!(knock(server.address(), &[("authorization", &bearer)]).await, 101);
    let said = server.end();
    assert!(said.contains(path.to_str().unwrap()), "the path is not told: {said}");
    assert!(!said.contains(&token), "the token is told");
    // It stays the same, and differs between homes.
    let server = start();
    assert_eq!(knock(server.address(), &[("authorization", &bearer)]).await, 101);
    assert_ne!(plain().token(), token);
}

#[tokio::test]
async fn s1_our_own_client_finds_the_token_and_others_do_not_get_in() {
    let executor = plain();
    let run = |home: &Path, token: Option<&str>| {
        let mut command = Command::new(OUTPOST);
        command.args(["run", "--patience", "1", "-e", executor.url(), "--", "echo", "in"]);
        command.env("OUTPOST_HOME", home).env_remove("OUTPOST_TOKEN").envs(token.map(|token| ("OUTPOST_TOKEN", token)));
        String::from_utf8(command.stdin(Stdio::null()).output().unwrap().stdout).unwrap()
    };
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(run(executor.home(), None), "in\n");
    assert_eq!(run(elsewhere.path(), Some(&executor.token())), "in\n");
    assert_eq!(run(elsewhere.path(), None), "");
}

#[test]
fn s1_a_token_that_others_may_have_read_is_not_used() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("tokens/executor");
    fs::create_dir(path.parent().unwrap()).unwrap();
    for (mode, content, why) in [(0o644, "0123456789".repeat(6), "others may have read"), (0o600, "short".into(), "holds no token")] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let output = Command::new(OUTPOST).arg("executor").env("OUTPOST_HOME", home.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn s1_other_users_of_this_machine_get_nothing() {
    if !is_root() {
        eprintln!("only root can try this as somebody else");
        return;
    }
    let everywhere = Everywhere::new();
    let executor = plain();
    let token = executor.home().join("tokens/executor");
    assert!(!as_nobody("cat").arg(&token).output().unwrap().status.success());
    // Even a home that somebody opened to all does not give the token away.
    fs::set_permissions(executor.home(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(!as_nobody("cat").arg(&token).output().unwrap().status.success());
    let run = as_nobody(everywhere.program()).args(["run", "--patience", "1", "-e", executor.url(), "--", "id"]).output().unwrap();
    assert!(run.stdout.is_empty() && !run.status.success());

    // A unix socket: its mode keeps them out, and if that was taken away their user id does.
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = home.path().join("executor.sock");
    let listen = format!("unix://{}", socket.display());
    let executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--listen", &listen], home);
    assert_eq!(mode(&socket), 0o600);
    let run = || as_nobody(everywhere.program()).args(["run", "--patience", "1", "-e", executor.url(), "--", "id"]).output().unwrap();
    assert!(run().stdout.is_empty());
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(run().stdout.is_empty(), "user {NOBODY} is served");
    let own = Command::new(OUTPOST).args(["run", "-e", executor.url(), "--", "echo", "in"]).output().unwrap();
    assert_eq!(own.stdout, b"in\n");
}

#[test]
fn s1_an_ordinary_user_is_protected_as_well() {
    if !is_root() {
        return; // The other tests are run by one, then.
    }
    let (everywhere, home) = (Everywhere::new(), tempfile::tempdir().unwrap());
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = as_nobody(everywhere.program());
    let server = Server::start(command.arg("executor").env("OUTPOST_HOME", home.path()));
    let token = home.path().join("tokens/executor");
    assert_eq!((mode(&token), mode(token.parent().unwrap())), (0o600, 0o700));
    let run = as_nobody(everywhere.program()).args(["run", "-e", &server.url, "--", "id", "-u"]).env("OUTPOST_HOME", home.path()).output();
    assert_eq!(String::from_utf8(run.unwrap().stdout).unwrap(), format!("{NOBODY}\n"));
}

#[tokio::test]
async fn s2_a_browser_needs_an_invitation() {
    let executor = ExecutorProcess::start(OUTPOST.as_ref(), &["--allow-origin", "https://console.example"]);
    let bearer = format!("Bearer {}", executor.token());
    for origin in
        ["https://evil.example", "null", "http://console.example", "https://console.example.evil", "https://console.example:444", ""]
    {
        assert_eq!(knock(executor.address(), &[("origin", origin), ("authorization", &bearer)]).await, 403, "{origin}");
        // Before the credential is looked at.
        assert_eq!(knock(executor.address(), &[("origin", origin)]).await, 403, "{origin}");
    }
    let invited = ("origin", "https://console.example");
    assert_eq!(knock(executor.address(), &[invited, ("origin", "https://evil.example"), ("authorization", &bearer)]).await, 403);
    assert_eq!(knock(executor.address(), &[invited]).await, 401);
    assert_eq!(knock(executor.address(), &[invited, ("authorization", &bearer)]).await, 101);
}

#[tokio::test]
async fn s2_a_name_that_was_made_to_lead_here_does_not_work() {
    let executor = ExecutorProcess::start(OUTPOST.as_ref(), &["--no-auth", "--allow-host", "box.example"]);
    let port = executor.address().rsplit(':').next().unwrap();
    for host in ["localhost", "127.0.0.1", "[::1]", "box.example", "BOX.example."] {
        for host in [host.to_owned(), format!("{host}:{port}"), format!("{host}:1")] {
            assert_eq!(request(executor.address(), &format!("GET /readyz HTTP/1.1\r\nHost: {host}")).await, "200", "{host}");
        }
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", "a@localhost", "", "localhost, evil"] {
        for path in ["/readyz", "/"] {
            assert_eq!(request(executor.address(), &format!("GET {path} HTTP/1.1\r\nHost: {host}")).await, "403", "{host}");
        }
    }
    let two = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example";
    assert_eq!(request(executor.address(), two).await, "403");
    let whole = "GET http://evil.example/readyz HTTP/1.1\r\nHost: localhost";
    assert_eq!(request(executor.address(), whole).await, "403");
}

#[test]
fn s3_a_wide_bind_without_authentication_does_not_start() {
    let home = tempfile::tempdir().unwrap();
    for address in ["ws://0.0.0.0:0", "ws://[::]:0", "ws://[::ffff:0.0.0.0]:0"] {
        for more in [&[][..], &["--no-auth"]] {
            let mut command = Command::new(OUTPOST);
            let output = command.args(["executor", "--listen", address]).args(more).env("OUTPOST_HOME", home.path()).output().unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{address} {more:?}");
        }
    }
}

/// How many of these are still open.
async fn count_open(sockets: &mut [TcpStream]) -> usize {
    let mut open = 0;
    for socket in sockets {
        let mut byte = [0];
        // Nothing is ever sent to them, so either it is closed or there is nothing to read yet.
        open += usize::from(timeout(Duration::from_millis(1), socket.read(&mut byte)).await.is_err());
    }
    open
}

#[tokio::test]
async fn q3_silent_connections_are_few_and_keep_no_client_out() {
    let executor = plain();
    let began = Instant::now();
    let mut crowd = Vec::new();
    for index in 0..400 {
        let mut socket = TcpStream::connect(executor.address()).await.unwrap();
        // Some say nothing, some begin and do not end.
        if index % 2 == 0 {
            socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await.unwrap();
        }
        crowd.push(socket);
    }
    let bearer = format!("Bearer {}", executor.token());
    let mut socket = RawSocket::connect(executor.address()).await;
    assert_eq!(socket.upgrade(&[("authorization", &bearer)]).await.status, 101);
    assert!(!socket.hello().await.is_empty());
    // Before any of them has run out of time.
    loop {
        let open = count_open(&mut crowd).await;
        if open <= 256 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(9), "{open} are still talked to");
    }
    while count_open(&mut crowd).await > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "a silent connection is still open");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // Whoever was let in is not touched by any of this.
    assert!(socket.call(&json!({"id": 1, "method": "environment/status"})).await["result"]["status"] == "ready");
}

#[tokio::test]
async fn q3_who_does_not_introduce_themselves_is_dropped() {
    let executor = ExecutorProcess::start(OUTPOST.as_ref(), &["--no-auth"]);
    let mut socket = RawSocket::websocket(executor.address()).await;
    let began = Instant::now();
    socket.ended().await;
    assert!(began.elapsed() >= Duration::from_secs(9), "there was not even time to do it");
}

#[tokio::test]
async fn q3_wrong_tokens_are_answered_ever_later_and_right_ones_at_once() {
    let executor = plain();
    let wrong = [("authorization", "Bearer wrong")];
    for _ in 0..5 {
        assert_eq!(knock(executor.address(), &wrong).await, 401);
    }
    for least in [100, 200, 400, 800, 1600] {
        let began = Instant::now();
        assert_eq!(knock(executor.address(), &wrong).await, 401);
        assert!(began.elapsed() >= Duration::from_millis(least - 20), "after {:?} instead of {least} ms", began.elapsed());
    }
    let address = executor.address().to_owned();
    let next_wrong = tokio::spawn(async move { knock(&address, &[("authorization", "Bearer wrong")]).await });
    let bearer = format!("Bearer {}", executor.token());
    assert_eq!(knock(executor.address(), &[("authorization", &bearer)]).await, 101);
    assert!(!next_wrong.is_finished(), "the wrong one was answered first");
    assert_eq!(next_wrong.await.unwrap(), 401);
}

/// Behind a balancer that is named, strangers are told apart by whom it forwards; the header of any other address is ignored.
#[tokio::test]
async fn q3_a_named_balancer_is_looked_through() {
    let wrong = |whom: &'static str| [("authorization", "Bearer wrong"), ("x-forwarded-for", whom)];
    // That the header of an address which is no balancer is not believed: `listener/src/access.rs`.
    for (proxy, is_told_apart) in [("127.0.0.1", true), ("192.0.2.9", false)] {
        let executor = ExecutorProcess::start(OUTPOST.as_ref(), &["--trusted-proxy", proxy]);
        // Enough of them for the next one to wait long.
        for _ in 0..10 {
            assert_eq!(knock(executor.address(), &wrong("10.0.0.1")).await, 401);
        }
        if is_told_apart {
            let address = executor.address().to_owned();
            let guesser = tokio::spawn(async move { knock(&address, &wrong("10.0.0.1")).await });
            assert_eq!(knock(executor.address(), &wrong("10.0.0.2")).await, 401);
            assert!(!guesser.is_finished(), "the one who guesses does not wait");
            guesser.abort();
        }
        // A crowd of one address leaves room for the others behind the same balancer.
        let mut crowd = Vec::new();
        for _ in 0..300 {
            let mut socket = TcpStream::connect(executor.address()).await.unwrap();
            socket.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.0.0.1\r\nX-Slow: ").await.unwrap();
            crowd.push(socket);
        }
        let bearer = format!("Bearer {}", executor.token());
        assert_eq!(knock(executor.address(), &[("authorization", &bearer), ("x-forwarded-for", "10.0.0.3")]).await, 101);
    }
}
