//! X2: what is denied stays denied, however it is named, and whatever was renamed before.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::support::{Ground, Who, directory, give, number};

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn pattern(pattern: &str) -> Value {
    json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"})
}

/// A policy whose work is in one directory, which may be written.
fn about(ground: &Ground, root: &Path, denied: &[Value]) -> Value {
    let mut entries = vec![special("root", "read"), special("project_roots", "write")];
    entries.extend_from_slice(denied);
    let uri = PathUri::from_native(root).unwrap().to_string();
    with(ground.policy(json!(entries)), json!({"cwd": uri, "workspaceRoots": [uri]}))
}

/// Makes a file with a secret, and the directories on its way.
fn keep_secret(who: Who, root: &Path, name: &str) {
    let path = root.join(name);
    let mut missing: Vec<_> = path.ancestors().skip(1).take_while(|directory| !directory.exists()).collect();
    missing.reverse();
    for directory in missing {
        fs::create_dir(directory).unwrap();
        give(who, directory);
    }
    fs::write(&path, "secret").unwrap();
    give(who, &path);
}

async fn run_in(ground: &Ground, client: &mut Client, directory: &Path, sandbox: &Value, script: &str) -> (i64, String) {
    let id = number();
    let uri = PathUri::from_native(directory).unwrap().to_string();
    client.start(with(ground.shell(&id, script), json!({"sandbox": sandbox, "cwd": uri}))).await;
    let (code, output) = client.outcome(&id).await;
    (code, String::from_utf8_lossy(&output).into_owned())
}

/// Neither a command nor a file call gets at the file.
async fn assert_secret(ground: &Ground, client: &mut Client, sandbox: &Value, file: &Path) {
    let (code, output) = run_in(ground, client, Path::new("/"), sandbox, &format!("cat '{}'", file.display())).await;
    assert!(code != 0 && !output.contains("secret"), "{}: {output}", file.display());
    let uri = PathUri::from_native(file).unwrap().to_string();
    let answer = client.call("fs/readFile", json!({"path": uri, "sandbox": sandbox})).await;
    assert!(answer.get("error").is_some(), "{}: {answer}", file.display());
}

as_root_and_user! {
    async fn a_pattern_denies_behind_a_link(who: Who) {
        let ground = Ground::new(who);
        let (real, link) = (ground.path("real"), ground.path("link"));
        keep_secret(who, &real, "sub/a.env");
        keep_secret(who, &real, "b.env");
        symlink(&real, &link).unwrap();
        let mut client = ground.client().await;
        let absolute = format!("{}/**/*.env", link.display());
        for (root, pattern_text) in [(&link, absolute.as_str()), (&link, "**/*.env"), (&ground.path(""), "link/**/*.env")] {
            let policy = about(&ground, root, &[pattern(pattern_text)]);
            for file in [link.join("sub/a.env"), real.join("sub/a.env"), link.join("b.env")] {
                assert_secret(&ground, &mut client, &policy, &file).await;
            }
        }
    }

    async fn a_ceiling_denies_behind_a_link(who: Who) {
        let allowed = directory(who);
        let root = allowed.path().canonicalize().unwrap();
        let (real, link) = (root.join("real"), root.join("link"));
        keep_secret(who, &real, "sub/a.env");
        symlink(&real, &link).unwrap();
        let file = root.join("ceiling.toml");
        fs::write(&file, format!("read = ['/']\nwrite = ['{0}']\ndeny = ['{0}/**/*.env']\n", link.display())).unwrap();
        give(who, &file);
        let ground = Ground::with(who, &["--ceiling", file.to_str().unwrap()]);
        let mut client = ground.client().await;
        let policy = about(&ground, &link, &[]);
        assert_secret(&ground, &mut client, &policy, &link.join("sub/a.env")).await;
        assert_secret(&ground, &mut client, &policy, &real.join("sub/a.env")).await;
    }

    async fn a_pattern_denies_in_a_directory_with_marks_in_its_name(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        for name in ["[id]", "a*", "what?", "[open"] {
            let root = ground.path(name);
            keep_secret(who, &root, "sub/a.env");
            let policy = about(&ground, &root, &[pattern("**/*.env")]);
            assert_secret(&ground, &mut client, &policy, &root.join("sub/a.env")).await;
            // A file that comes later is still out of reach of file calls.
            keep_secret(who, &root, "later.env");
            let uri = PathUri::from_native(&root.join("later.env")).unwrap().to_string();
            let answer = client.call("fs/readFile", json!({"path": uri, "sandbox": policy})).await;
            assert!(answer.get("error").is_some(), "{name}: {answer}");
        }
    }
}
