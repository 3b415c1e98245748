//! Another Outpost reaches an executor through the server that it joined.

use std::path::Path;

use crate::support::{App, Server, command, joined, outpost};

/// A home in which `gpu` is reached through the server.
fn elsewhere(server: &Server, token: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("client-token");
    std::fs::write(&file, token).unwrap();
    let toml =
        format!("[[environments]]\nid = \"gpu\"\nurl = \"{}/executors/reach/gpu\"\ntoken_file = \"{}\"\n", server.url(), file.display());
    std::fs::write(home.path().join("environments.toml"), toml).unwrap();
    home
}

#[tokio::test]
async fn a_thread_of_another_outpost_works_there() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let executor = joined(server.url(), "gpu", &token);
    let home = elsewhere(&server, &server.token(&["--client"]));
    let work = tempfile::tempdir().unwrap();
    let place = format!("gpu={}", work.path().display());
    let done = outpost(home.path(), &["exec", "--sandbox", "danger-full-access", "-e", &place, "$ pwd; echo $PPID > parent; cat parent"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains(work.path().to_str().unwrap()), "{said}");
    assert!(work.path().join("parent").exists());
    drop(executor);
}

#[tokio::test]
async fn many_reach_one_executor_at_once() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let _executor = joined(server.url(), "gpu", &token);
    let client = server.token(&["--client"]);
    let url = format!("{}/executors/reach/gpu", server.url());
    let run = |number: usize| {
        let home = tempfile::tempdir().unwrap();
        let mut command =
            command(home.path(), &["run", "-e", &url, "--", "sh", "-c", &format!("sleep 0.5; echo done {number}; exit {number}")]);
        (home, command.env("OUTPOST_TOKEN", &client).stdout(std::process::Stdio::piped()).spawn().unwrap())
    };
    let children: Vec<_> = (0..12).map(run).collect();
    for (number, (_home, child)) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), i32::try_from(number).ok());
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("done {number}\n"));
    }
}

#[tokio::test]
async fn a_command_outlives_the_server_in_between() {
    let server = Server::start();
    let (url, token) = (server.url().to_owned(), server.token(&["--executor", "gpu"]));
    let _executor = joined(&url, "gpu", &token);
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let script = "echo x >> counter; echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over";
    let child = command(
        home.path(),
        &["run", "-e", &format!("{url}/executors/reach/gpu"), "--cd", work.path().to_str().unwrap(), "--", "sh", "-c", script],
    )
    .env("OUTPOST_TOKEN", server.token(&["--client"]))
    .stdout(std::process::Stdio::piped())
    .spawn()
    .unwrap();
    outpost_testkit::executor::eventually("it began", || work.path().join("counter").exists()).await;
    let kept = server.kill();
    std::fs::write(work.path().join("go"), "").unwrap();
    let _server = Server::start_in(kept, &["--listen", &url]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "begun\nover\n");
    assert_eq!(std::fs::read_to_string(work.path().join("counter")).unwrap(), "x\n");
}

#[tokio::test]
async fn one_executor_joins_two_servers() {
    let (one, two) = (Server::start(), Server::start());
    // One executor joins both, each with the token of that server.
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str, server: &Server| {
        let path = files.path().join(name);
        std::fs::write(&path, server.token(&["--executor", "gpu"])).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (file("one", &one), file("two", &two));
    let arguments = ["--join", one.url(), "--join", two.url(), "--id", "gpu", "--token-file", &first, "--token-file", &second];
    let trying = crate::support::Trying::start(&arguments, "", tempfile::tempdir().unwrap());
    trying.says("joined");
    trying.says("joined");
    for server in [&one, &two] {
        let home = tempfile::tempdir().unwrap();
        let url = format!("{}/executors/reach/gpu", server.url());
        let done = command(home.path(), &["run", "-e", &url, "--", "echo", "here"])
            .env("OUTPOST_TOKEN", server.token(&["--client"]))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "here\n", "{}", String::from_utf8_lossy(&done.stderr));
    }
    assert!(Path::new(&first).exists());
}

/// `serve` follows environments.toml as `app-server` does: what `outpost env add` writes is there for its clients at once.
#[tokio::test]
async fn the_file_is_followed_while_it_serves() {
    let server = Server::start();
    let mut app = App::connect(server.url(), &server.own_token()).await;
    app.call("environment/watch", serde_json::json!({})).await;
    for (arguments, event) in
        [(&["env", "add", "later", "--url", "ws://127.0.0.1:1"][..], "added"), (&["env", "remove", "later"], "removed")]
    {
        let done = outpost(server.home(), arguments);
        assert!(done.status.success(), "{done:?}");
        loop {
            let change = app.notified("environment/changed").await;
            if change["environmentId"] == "later" && change["event"] == event {
                break;
            }
        }
    }
}
