//! Symbolic links: when they are followed, when they are refused, when they are taken for what they are.

use std::fs;
use std::os::unix::fs::symlink;

use outpost_testkit::bench::with;
use outpost_testkit::{Bench, over_every_link};
use serde_json::{Value, json};

const MISSING: &str = "No such file or directory (os error 2)";
const LOOP: &str = "Too many levels of symbolic links (os error 40)";

fn path(bench: &Bench, name: &str) -> Value {
    json!({"path": bench.uri(name)})
}

fn careful(bench: &Bench, name: &str) -> Value {
    with(path(bench, name), json!({"followSymlinks": false}))
}

/// A directory with a file, links to both, and a link that leads nowhere. The work directory's own path may hold links,
/// so calls that refuse them go through its canonical form.
fn tree(bench: &Bench) {
    fs::create_dir(bench.path("dir")).unwrap();
    fs::write(bench.path("dir/file"), "content").unwrap();
    symlink("dir", bench.path("to-dir")).unwrap();
    symlink("dir/file", bench.path("to-file")).unwrap();
    symlink("nowhere", bench.path("broken")).unwrap();
    symlink("loop", bench.path("loop")).unwrap();
    assert_eq!(fs::canonicalize(bench.path("")).unwrap(), bench.path("").components().as_path(), "run this without links in TMPDIR");
}

over_every_link! {
    async fn links_are_followed_by_default(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        assert_eq!(client.result("fs/readFile", path(&bench, "to-file")).await["dataBase64"], "Y29udGVudA==");
        assert_eq!(client.result("fs/readFile", path(&bench, "to-dir/file")).await["dataBase64"], "Y29udGVudA==");
        client.result("fs/writeFile", with(path(&bench, "to-file"), json!({"dataBase64": "eA=="}))).await;
        assert_eq!(fs::read(bench.path("dir/file")).unwrap(), b"x");
        assert!(bench.path("to-file").is_symlink());
        client.result("fs/createDirectory", path(&bench, "to-dir/new")).await;
        assert!(bench.path("dir/new").is_dir());
    }

    async fn metadata_is_of_the_target_and_says_that_there_was_a_link(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        let file = client.result("fs/getMetadata", path(&bench, "to-file")).await;
        assert_eq!((&file["isFile"], &file["isSymlink"], &file["size"]), (&json!(true), &json!(true), &json!(7)));
        let directory = client.result("fs/getMetadata", path(&bench, "to-dir")).await;
        assert_eq!((&directory["isDirectory"], &directory["isSymlink"]), (&json!(true), &json!(true)));
        let below = client.result("fs/getMetadata", path(&bench, "to-dir/file")).await;
        assert_eq!((&below["isFile"], &below["isSymlink"]), (&json!(true), &json!(false)));
        assert_eq!(client.error("fs/getMetadata", path(&bench, "broken")).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/getMetadata", path(&bench, "loop")).await, (-32603, LOOP.into()));
    }

    async fn a_link_in_any_component_can_be_refused(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        for name in ["to-file", "to-dir/file"] {
            assert_eq!(client.error("fs/getMetadata", careful(&bench, name)).await, (-32600, "path contains a symbolic link".into()));
            assert_eq!(client.error("fs/readFile", careful(&bench, name)).await, (-32603, LOOP.into()));
            let write = with(careful(&bench, name), json!({"dataBase64": "eA=="}));
            assert_eq!(client.error("fs/writeFile", write).await, (-32603, LOOP.into()));
        }
        assert_eq!(client.error("fs/getMetadata", careful(&bench, "broken")).await, (-32600, "path contains a symbolic link".into()));
        assert_eq!(client.error("fs/createDirectory", careful(&bench, "to-dir/new")).await.0, -32603);
        assert!(!bench.path("dir/new").exists());
        assert_eq!(fs::read(bench.path("dir/file")).unwrap(), b"content");
    }

    async fn without_links_careful_calls_work(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        assert_eq!(client.result("fs/readFile", careful(&bench, "dir/file")).await["dataBase64"], "Y29udGVudA==");
        client.result("fs/writeFile", with(careful(&bench, "dir/new"), json!({"dataBase64": "eA=="}))).await;
        client.result("fs/createDirectory", careful(&bench, "dir/a/b")).await;
        assert_eq!(client.result("fs/getMetadata", careful(&bench, "dir/a/b")).await["isDirectory"], true);
        assert_eq!(client.error("fs/getMetadata", careful(&bench, "dir/missing")).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/readFile", careful(&bench, "dir/missing")).await, (-32004, MISSING.into()));
        let root = json!({"path": "file:///", "recursive": false, "followSymlinks": false});
        assert_eq!(client.error("fs/createDirectory", root).await.0, -32603);
    }

    async fn careful_removal_is_of_single_things(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        assert_eq!(client.error("fs/remove", careful(&bench, "dir")).await.0, -32603);
        let single = |name: &str| with(careful(&bench, name), json!({"recursive": false}));
        assert_eq!(client.error("fs/remove", single("to-dir/file")).await, (-32603, LOOP.into()));
        client.result("fs/remove", single("dir/file")).await;
        client.result("fs/remove", single("dir")).await;
        assert!(!bench.path("dir").exists());
    }

    async fn careful_creators_of_one_directory_do_not_disturb_each_other(bench: Bench) {
        let mut client = bench.client().await;
        let ids: Vec<_> = (0..40).map(|n| client.request("fs/createDirectory", careful(&bench, &format!("a/b/c/{}", n % 4)))).collect();
        for id in ids {
            assert_eq!(client.answer(id).await["result"], json!({}));
        }
        assert_eq!(fs::read_dir(bench.path("a/b/c")).unwrap().count(), 4);
    }

    async fn a_listing_follows_links_and_leaves_out_those_that_lead_nowhere(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        let list = client.result("fs/readDirectory", path(&bench, "")).await;
        let mut entries = list["entries"].as_array().unwrap().clone();
        entries.retain(|entry| entry["fileName"] != ".spool");
        entries.sort_by_key(|entry| entry["fileName"].to_string());
        assert_eq!(
            json!(entries),
            json!([
                {"fileName": "dir", "isDirectory": true, "isFile": false}, {"fileName": "to-dir", "isDirectory": true, "isFile": false},
                {"fileName": "to-file", "isDirectory": false, "isFile": true},
            ])
        );
        let through = client.result("fs/readDirectory", path(&bench, "to-dir")).await;
        assert_eq!(through["entries"], json!([{"fileName": "file", "isDirectory": false, "isFile": true}]));
    }

    async fn a_canonical_path_holds_no_links(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        for name in ["dir/file", "to-file", "to-dir/file", "to-dir/../dir/./file"] {
            assert_eq!(client.result("fs/canonicalize", path(&bench, name)).await, json!({"path": bench.uri("dir/file")}), "{name}");
        }
        assert_eq!(client.error("fs/canonicalize", path(&bench, "broken")).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/canonicalize", path(&bench, "missing")).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/canonicalize", path(&bench, "loop")).await, (-32603, LOOP.into()));
    }

    async fn removal_takes_the_link_and_not_its_target(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        for name in ["to-file", "to-dir", "broken"] {
            client.result("fs/remove", with(path(&bench, name), json!({"force": false}))).await;
            assert!(!bench.path(name).is_symlink(), "{name}");
        }
        assert_eq!(fs::read(bench.path("dir/file")).unwrap(), b"content");
        symlink("../dir", bench.path("dir/up")).unwrap();
        fs::create_dir(bench.path("holder")).unwrap();
        symlink("../dir", bench.path("holder/link")).unwrap();
        client.result("fs/remove", path(&bench, "holder")).await;
        assert!(bench.path("dir/file").exists() && !bench.path("holder").exists());
    }

    async fn links_are_copied_as_links(bench: Bench) {
        let mut client = bench.client().await;
        tree(&bench);
        symlink("file", bench.path("dir/inner")).unwrap();
        symlink("nowhere", bench.path("dir/lost")).unwrap();
        let copy = |from: &str, to: &str| json!({"sourcePath": bench.uri(from), "destinationPath": bench.uri(to), "recursive": true});
        client.result("fs/copy", copy("to-dir", "link-copy")).await;
        assert_eq!(fs::read_link(bench.path("link-copy")).unwrap().to_str(), Some("dir"));
        client.result("fs/copy", copy("dir", "tree-copy")).await;
        assert_eq!(fs::read_link(bench.path("tree-copy/inner")).unwrap().to_str(), Some("file"));
        assert_eq!(fs::read_link(bench.path("tree-copy/lost")).unwrap().to_str(), Some("nowhere"));
        assert_eq!(fs::read(bench.path("tree-copy/inner")).unwrap(), b"content");
    }
}
