//! Git in a sandbox: everyday work is done and carried over, and nothing that is planted in a gitdir has an effect outside.

mod everyday;
mod layouts;
mod planted;

use std::fs;
use std::path::{Path, PathBuf};

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::support::{Ground, Who, as_who, give, number};

/// Runs git outside of any sandbox, as the user whose executor it is. Returns whether it went well, and everything that it said.
fn try_git(who: Who, at: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = as_who(who, Path::new("git"));
    command.current_dir(at).args(arguments).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/nonexistent");
    command.env("GIT_EDITOR", "true").env("GIT_TERMINAL_PROMPT", "0").env("GIT_CONFIG_NOSYSTEM", "1");
    for name in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{name}_NAME"), "user").env(format!("GIT_{name}_EMAIL"), "user@host");
    }
    let done = command.output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn git(who: Who, at: &Path, arguments: &[&str]) -> String {
    let (is_well, said) = try_git(who, at, arguments);
    assert!(is_well, "{arguments:?}: {said}");
    said.trim_end().to_owned()
}

/// A repository with one commit, which belongs to the user.
fn repository(who: Who, at: &Path) {
    fs::create_dir_all(at).unwrap();
    give(who, at);
    git(who, at, &["init", "-q", "-b", "main", "."]);
    for (key, value) in [("user.name", "agent"), ("user.email", "agent@host"), ("protocol.file.allow", "always")] {
        git(who, at, &["config", key, value]);
    }
    fs::write(at.join("file"), "one\n").unwrap();
    give(who, &at.join("file"));
    git(who, at, &["add", "file"]);
    git(who, at, &["commit", "-qm", "one"]);
}

/// What a client asks for whose workspace is here.
fn about(ground: &Ground, root: &Path) -> Value {
    let uri = PathUri::from_native(root).unwrap().to_string();
    with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}))
}

/// What came of a command in a sandbox.
struct Done {
    code: i64,
    output: String,
    notices: Vec<String>,
}

/// Starts a command in the sandbox of a workspace.
async fn start(ground: &Ground, client: &mut Client, root: &Path, script: &str) -> String {
    let id = number();
    let uri = PathUri::from_native(root).unwrap().to_string();
    let params = with(ground.shell(&id, script), json!({"sandbox": about(ground, root), "cwd": uri}));
    assert_eq!(client.start(params).await["sandboxType"], "linuxSeccomp");
    id
}

async fn end(client: &mut Client, id: &str) -> Done {
    let (code, output) = client.outcome(id).await;
    let read = client.read(id, 0).await;
    let notices = read["notices"].as_array().into_iter().flatten().map(|notice| notice.as_str().unwrap().to_owned()).collect();
    Done { code, output: String::from_utf8_lossy(&output).into_owned(), notices }
}

/// Runs a command in the sandbox of a workspace.
async fn sandboxed(ground: &Ground, client: &mut Client, root: &Path, script: &str) -> Done {
    let id = start(ground, client, root, script).await;
    end(client, &id).await
}

/// The same for one that goes well and has nothing special to tell.
async fn plain(ground: &Ground, client: &mut Client, root: &Path, script: &str) -> String {
    let done = sandboxed(ground, client, root, script).await;
    assert!(done.code == 0 && done.notices.is_empty(), "{script}: {} {} {:?}", done.code, done.output, done.notices);
    done.output
}

/// Everything of a gitdir that must stay as it is, whatever happens in a sandbox.
fn settled(gitdir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![gitdir.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(gitdir).unwrap().to_owned();
            let moves = ["objects", "refs/heads", "refs/tags", "refs/outpost", "logs", "index", "HEAD", "packed-refs"];
            if moves.iter().any(|part| name.starts_with(part)) && !path.is_symlink() {
                continue;
            }
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                left.push(path);
                found.push((name, b"directory".to_vec()));
            } else if metadata.is_symlink() {
                found.push((name, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()));
            } else {
                found.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
