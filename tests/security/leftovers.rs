//! X3: what a killed executor leaves in a workspace stands in nobody's way, and goes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use outpost_testkit::bench::with;
use outpost_wire::PathUri;
use serde_json::json;

use crate::as_root_and_user;
use crate::card::PROTECTED;
use crate::support::{Ground, give, number};

as_root_and_user! {
    #[needs(PROTECTED)]
    async fn after_a_kill_the_same_workspace_works(who: Who) {
        let ground = Ground::new(who);
        let names = [&b"plain"[..], b"two\nlines", b"\xff\xfe"].map(|name| ground.path("").join(OsStr::from_bytes(name)));
        names.iter().for_each(|path| {
            fs::create_dir(path).unwrap();
            give(who, path);
        });
        let policy = |ground: &Ground, root: &PathBuf| {
            let uri = PathUri::from_native(root).unwrap().to_string();
            with(ground.workspace_write(), json!({"cwd": uri, "workspaceRoots": [uri]}))
        };
        let mut client = ground.client().await;
        for root in &names {
            assert_eq!(ground.run(&mut client, &policy(&ground, root), "true").await.0, 0);
            assert!(root.join(".codex").is_dir());
        }
        let ground = ground.killed(who);
        // The first start in the same place, and nothing of the old one in the others.
        let mut client = ground.client().await;
        let (code, output) = ground.run(&mut client, &policy(&ground, &names[0]), "echo fine").await;
        assert_eq!((code, output.as_str()), (0, "fine\n"));
        for root in &names[1..] {
            assert_eq!(fs::read_dir(root).unwrap().count(), 0, "{root:?}");
        }
        client.result("session/end", json!({})).await;
        outpost_testkit::executor::eventually("placeholders are gone", || fs::read_dir(&names[0]).unwrap().count() == 0).await;
    }

    async fn after_a_polite_end_nothing_is_left(who: Who) {
        let mut ground = Ground::new(who);
        let mut client = ground.client().await;
        assert_eq!(ground.run(&mut client, &ground.workspace_write(), "true").await.0, 0);
        client.start(with(ground.shell(&number(), "sleep 300"), json!({"sandbox": ground.workspace_write()}))).await;
        assert_eq!(ground.executor.stop(), Some(0));
        let run = ground.executor.home().join("run");
        let left: Vec<_> = walk(&run);
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(fs::read_dir(ground.path("")).unwrap().count(), 0);
    }
}

/// Every file below a directory.
fn walk(directory: &std::path::Path) -> Vec<PathBuf> {
    let mut left = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files
}
