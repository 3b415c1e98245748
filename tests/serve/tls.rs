//! TLS, and addresses that others can reach.

use std::process::Stdio;

use crate::support::{Server, Trying, command, outpost};

/// A certificate for `localhost` and its key, in files.
fn certificate(directory: &std::path::Path) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned())
}

#[test]
fn nothing_beyond_this_machine_without_tls() {
    let home = tempfile::tempdir().unwrap();
    for address in ["ws://0.0.0.0:0", "ws://[::]:0"] {
        let refused = outpost(home.path(), &["serve", "--listen", address]);
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("--tls-cert") && said.contains("--behind-proxy"), "{said}");
    }
    // A proxy that speaks TLS is the operator's word, and nobody is let in without a token all the same.
    let refused = outpost(home.path(), &["serve", "--listen", "ws://0.0.0.0:0", "--behind-proxy", "--no-auth"]);
    assert_eq!(refused.status.code(), Some(2));
    let server = Server::start_in(home, &["--listen", "ws://0.0.0.0:0", "--behind-proxy"]);
    assert!(server.url().starts_with("ws://0.0.0.0:"));
}

#[test]
fn what_is_no_certificate_is_told() {
    let home = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(home.path());
    let empty = home.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    for (certificate, key, why) in
        [("/nowhere.pem", key.as_str(), "/nowhere.pem"), (empty, &key, "holds no certificate"), (&certificate, empty, "empty.pem")]
    {
        let refused = outpost(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{}", String::from_utf8_lossy(&refused.stderr));
    }
}

#[test]
fn everything_works_through_tls() {
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(files.path());
    let server =
        Server::start_in(tempfile::tempdir().unwrap(), &["--listen", "ws://127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key]);
    assert!(server.url().starts_with("wss://127.0.0.1:"));
    let url = server.url().replace("127.0.0.1", "localhost");
    let token = server.token(&["--executor", "gpu"]);
    // Who does not trust the certificate does not tell it a token.
    let wary = Trying::start(&["--join", &url, "--id", "gpu"], &token, tempfile::tempdir().unwrap());
    wary.says("does not trust the server's certificate; name the one of its authority with SSL_CERT_FILE");
    drop(wary);
    let home = tempfile::tempdir().unwrap();
    let mut executor = command(home.path(), &["executor", "--join", &url, "--id", "gpu"])
        .env("OUTPOST_TOKEN", &token)
        .env("SSL_CERT_FILE", &certificate)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(executor.stdout.take().unwrap()), &mut line).unwrap();
    assert!(line.starts_with("joined wss://localhost:"), "{line}");
    // A lot of bytes both ways, through TLS twice.
    let caller = tempfile::tempdir().unwrap();
    let reach = format!("{url}/executors/reach/gpu");
    let done = command(caller.path(), &["run", "-e", &reach, "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"])
        .env("OUTPOST_TOKEN", server.token(&["--client"]))
        .env("SSL_CERT_FILE", &certificate)
        .output()
        .unwrap();
    let _ = executor.kill();
    let _ = executor.wait();
    assert_eq!(done.stdout.len(), 3_000_000, "{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stdout.iter().all(|byte| *byte == b'x'));
}
