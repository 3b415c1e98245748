//! Files and directories: reading, writing, listing, copying, removing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use outpost_testkit::{Bench, Client, over_every_link, over_links};
use serde_json::{Value, json};

use crate::support::Pipe;

const MISSING: &str = "No such file or directory (os error 2)";

fn path(bench: &Bench, name: &str) -> Value {
    json!({"path": bench.uri(name)})
}

fn pair(bench: &Bench, from: &str, to: &str, recursive: bool) -> Value {
    json!({"sourcePath": bench.uri(from), "destinationPath": bench.uri(to), "recursive": recursive})
}

async fn write(client: &mut Client, bench: &Bench, name: &str, data: impl AsRef<[u8]>) -> Value {
    client.call("fs/writeFile", json!({"path": bench.uri(name), "dataBase64": base64(data)})).await
}

async fn names(client: &mut Client, bench: &Bench, name: &str) -> Vec<(String, bool, bool)> {
    let list = client.result("fs/readDirectory", path(bench, name)).await;
    let mut entries: Vec<_> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert_eq!(entry.as_object().unwrap().len(), 3, "{entry}");
            (entry["fileName"].as_str().unwrap().to_owned(), entry["isDirectory"].as_bool().unwrap(), entry["isFile"].as_bool().unwrap())
        })
        .collect();
    entries.sort();
    entries
}

over_every_link! {
    async fn a_file_is_read_as_it_was_written(bench: Bench) {
        let mut client = bench.client().await;
        let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        for data in [&b""[..], b"text\n", &bytes] {
            assert_eq!(write(&mut client, &bench, "file", data).await["result"], json!({}));
            assert_eq!(fs::read(bench.path("file")).unwrap(), data);
            let read = client.result("fs/readFile", path(&bench, "file")).await;
            assert_eq!(read.as_object().unwrap().len(), 1);
            assert!(decode(&read["dataBase64"]) == data);
        }
    }

    async fn a_write_happens_in_place(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("file"), "something longer").unwrap();
        fs::set_permissions(bench.path("file"), fs::Permissions::from_mode(0o751)).unwrap();
        fs::hard_link(bench.path("file"), bench.path("same")).unwrap();
        let before = fs::metadata(bench.path("file")).unwrap();
        write(&mut client, &bench, "file", "short").await;
        let after = fs::metadata(bench.path("file")).unwrap();
        assert_eq!(fs::read(bench.path("same")).unwrap(), b"short");
        assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    }

    async fn a_write_makes_no_directories(bench: Bench) {
        let mut client = bench.client().await;
        let answer = write(&mut client, &bench, "missing/file", "x").await;
        assert_eq!(answer["error"], json!({"code": -32004, "message": MISSING}));
        assert!(!bench.path("missing").exists());
    }

    async fn a_write_needs_base64(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("file"), "kept").unwrap();
        for bad in ["***", "eA", "eA-_"] {
            let (code, message) = client.error("fs/writeFile", json!({"path": bench.uri("file"), "dataBase64": bad})).await;
            assert!(code == -32600 && message.starts_with("fs/writeFile requires valid base64 dataBase64: "), "{code} {message}");
        }
        assert_eq!(fs::read(bench.path("file")).unwrap(), b"kept");
    }

    async fn only_regular_files_are_read_and_written(bench: Bench) {
        let mut client = bench.client().await;
        let _pipe = Pipe::new(&bench, "pipe");
        fs::create_dir(bench.path("directory")).unwrap();
        let native = |name: &str| bench.path(name).display().to_string();
        for (uri, path) in [
            (bench.uri("directory"), native("directory")),
            (bench.uri("pipe"), native("pipe")),
            ("file:///dev/null".into(), "/dev/null".into()),
        ] {
            let refused = (-32600, format!("path `{path}` is not a file"));
            assert_eq!(client.error("fs/readFile", json!({"path": uri})).await, refused);
            assert_eq!(client.error("fs/writeFile", json!({"path": uri, "dataBase64": "eA=="})).await, refused);
            let carefully = json!({"path": uri, "dataBase64": "eA==", "followSymlinks": false});
            assert_eq!(client.error("fs/writeFile", carefully).await.0, -32600);
        }
        assert_eq!(client.error("fs/readFile", path(&bench, "missing")).await, (-32004, MISSING.into()));
    }

    async fn metadata_tells_type_size_and_times(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("file"), "12345").unwrap();
        let native = fs::metadata(bench.path("file")).unwrap();
        let mut file = client.result("fs/getMetadata", path(&bench, "file")).await;
        assert!(file["createdAtMs"].take().is_i64());
        let modified = native.mtime() * 1000 + native.mtime_nsec() / 1_000_000;
        assert_eq!(
            file,
            json!({"isDirectory": false, "isFile": true, "isSymlink": false, "size": 5, "createdAtMs": null, "modifiedAtMs": modified})
        );
        let directory = client.result("fs/getMetadata", path(&bench, "")).await;
        assert_eq!(
            (&directory["isDirectory"], &directory["isFile"], &directory["isSymlink"]),
            (&json!(true), &json!(false), &json!(false))
        );
        assert_eq!(client.error("fs/getMetadata", path(&bench, "missing")).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/getMetadata", path(&bench, "file/x")).await, (-32603, "Not a directory (os error 20)".into()));
    }

    async fn directories_are_made_with_their_parents_unless_told_otherwise(bench: Bench) {
        let mut client = bench.client().await;
        assert_eq!(client.result("fs/createDirectory", path(&bench, "a/b/c")).await, json!({}));
        assert!(bench.path("a/b/c").is_dir());
        client.result("fs/createDirectory", path(&bench, "a/b/c")).await;
        let single = |name: &str| with(path(&bench, name), json!({"recursive": false}));
        assert_eq!(client.error("fs/createDirectory", single("a")).await, (-32603, "File exists (os error 17)".into()));
        assert_eq!(client.error("fs/createDirectory", single("x/y")).await, (-32004, MISSING.into()));
        client.result("fs/createDirectory", single("x")).await;
        fs::write(bench.path("file"), "").unwrap();
        assert_eq!(client.error("fs/createDirectory", path(&bench, "file")).await.0, -32603);
    }

    async fn a_directory_lists_what_is_in_it(bench: Bench) {
        let mut client = bench.client().await;
        fs::create_dir_all(bench.path("d/sub")).unwrap();
        for name in ["plain", ".hidden", "a b%", "ü"] {
            fs::write(bench.path("d").join(name), "").unwrap();
        }
        let _pipe = Pipe::new(&bench, "d/pipe");
        let file = |name: &str| (name.to_owned(), false, true);
        let expected =
            [file(".hidden"), file("a b%"), ("pipe".to_owned(), false, false), file("plain"), ("sub".to_owned(), true, false), file("ü")];
        assert_eq!(names(&mut client, &bench, "d").await, expected);
        assert_eq!(client.result("fs/readDirectory", path(&bench, "d/sub")).await, json!({"entries": []}));
        assert_eq!(client.error("fs/readDirectory", path(&bench, "missing")).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/readDirectory", path(&bench, "d/plain")).await, (-32603, "Not a directory (os error 20)".into()));
    }

    async fn a_removal_takes_everything_unless_told_otherwise(bench: Bench) {
        let mut client = bench.client().await;
        fs::create_dir_all(bench.path("d/sub")).unwrap();
        fs::write(bench.path("d/sub/file"), "").unwrap();
        let changed = |name: &str, changes: Value| with(path(&bench, name), changes);
        let full = client.error("fs/remove", changed("d", json!({"recursive": false}))).await;
        assert_eq!(full, (-32603, "Directory not empty (os error 39)".into()));
        assert_eq!(client.result("fs/remove", changed("d/sub/file", json!({"recursive": false}))).await, json!({}));
        client.result("fs/remove", changed("d/sub", json!({"recursive": false, "force": false}))).await;
        fs::create_dir_all(bench.path("d/other/deep")).unwrap();
        client.result("fs/remove", path(&bench, "d")).await;
        assert!(!bench.path("d").exists());
        client.result("fs/remove", path(&bench, "d")).await;
        assert_eq!(client.error("fs/remove", changed("d", json!({"force": false}))).await, (-32004, MISSING.into()));
        client.result("fs/remove", path(&bench, "missing/below")).await;
    }

    async fn a_file_is_copied_over_a_file(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("from"), "new").unwrap();
        fs::write(bench.path("to"), "something old").unwrap();
        for recursive in [false, true] {
            assert_eq!(client.result("fs/copy", pair(&bench, "from", "to", recursive)).await, json!({}));
            assert_eq!(fs::read(bench.path("to")).unwrap(), b"new");
        }
        assert_eq!(client.error("fs/copy", pair(&bench, "missing", "to", false)).await, (-32004, MISSING.into()));
        assert_eq!(client.error("fs/copy", pair(&bench, "from", "missing/to", false)).await, (-32004, MISSING.into()));
    }

    async fn a_file_copied_to_itself_keeps_its_content(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("file"), "content").unwrap();
        fs::hard_link(bench.path("file"), bench.path("same")).unwrap();
        for to in ["file", "same"] {
            client.call("fs/copy", pair(&bench, "file", to, false)).await;
            assert_eq!(fs::read(bench.path("file")).unwrap(), b"content");
        }
    }

    async fn a_tree_is_copied_when_asked_for(bench: Bench) {
        let mut client = bench.client().await;
        fs::create_dir_all(bench.path("tree/sub/empty")).unwrap();
        fs::write(bench.path("tree/file"), "one").unwrap();
        fs::write(bench.path("tree/sub/file"), "two").unwrap();
        let _pipe = Pipe::new(&bench, "tree/pipe");
        let refused = client.error("fs/copy", pair(&bench, "tree", "copy", false)).await;
        assert_eq!(refused, (-32600, "fs/copy requires recursive: true when sourcePath is a directory".into()));
        client.result("fs/copy", pair(&bench, "tree", "copy", true)).await;
        assert_eq!(fs::read(bench.path("copy/file")).unwrap(), b"one");
        assert_eq!(fs::read(bench.path("copy/sub/file")).unwrap(), b"two");
        assert!(bench.path("copy/sub/empty").is_dir() && !bench.path("copy/pipe").exists(), "special files are left out");
    }

    async fn a_directory_is_not_copied_into_itself(bench: Bench) {
        let mut client = bench.client().await;
        fs::create_dir_all(bench.path("tree/sub")).unwrap();
        std::os::unix::fs::symlink(bench.path("tree/sub"), bench.path("alias")).unwrap();
        for to in ["tree", "tree/sub", "tree/new", "tree/sub/new/deep", "alias", "alias/new"] {
            let refused = client.error("fs/copy", pair(&bench, "tree", to, true)).await;
            assert_eq!(refused, (-32600, "fs/copy cannot copy a directory to itself or one of its descendants".into()), "{to}");
        }
        client.result("fs/copy", pair(&bench, "tree", "tree-beside", true)).await;
        assert!(bench.path("tree-beside/sub").is_dir());
    }

    async fn a_pipe_is_not_copied_alone(bench: Bench) {
        let mut client = bench.client().await;
        let _pipe = Pipe::new(&bench, "pipe");
        let refused = client.error("fs/copy", pair(&bench, "pipe", "copy", false)).await;
        assert_eq!(refused, (-32600, "fs/copy only supports regular files, directories, and symlinks".into()));
    }

    async fn a_rename_replaces_what_is_there(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("from"), "new").unwrap();
        fs::write(bench.path("to"), "old").unwrap();
        let rename = |from: &str, to: &str| json!({"sourcePath": bench.uri(from), "destinationPath": bench.uri(to)});
        assert_eq!(client.result("fs/rename", rename("from", "to")).await, json!({}));
        assert!(!bench.path("from").exists());
        assert_eq!(fs::read(bench.path("to")).unwrap(), b"new");
        assert_eq!(client.error("fs/rename", rename("from", "to")).await, (-32004, MISSING.into()));
    }
}

over_links! { [Memory, WebSocket]
    async fn policies_that_restrict_nothing_are_honoured_and_one_that_allows_nothing_too(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("file"), "x").unwrap();
        let context = |permissions: Value| json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
        for open in [
            json!({"type": "disabled"}),
            json!({"type": "external", "network": "restricted"}),
            json!({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}),
        ] {
            let read = client.result("fs/readFile", with(path(&bench, "file"), json!({"sandbox": context(open)}))).await;
            assert_eq!(read["dataBase64"], "eA==");
        }
        let restricted = context(json!({"type": "managed", "file_system": {"type": "restricted", "entries": []}, "network": "restricted"}));
        for (method, params) in [
            ("fs/readFile", path(&bench, "file")),
            ("fs/writeFile", with(path(&bench, "file"), json!({"dataBase64": ""}))),
            ("fs/getMetadata", path(&bench, "file")),
            ("fs/remove", path(&bench, "file")),
            ("fs/readDirectory", path(&bench, "")),
            ("fs/canonicalize", path(&bench, "")),
            ("fs/createDirectory", path(&bench, "new")),
            ("fs/copy", pair(&bench, "file", "new", false)),
            ("fs/rename", pair(&bench, "file", "new", false)),
        ] {
            let (code, text) = client.error(method, with(params, json!({"sandbox": restricted}))).await;
            assert!(code == -32600 && text.starts_with("Permission denied (os error 13): "), "{method}: {text}");
        }
        assert!(fs::read(bench.path("file")).unwrap() == b"x" && !bench.path("new").exists());
    }
}
