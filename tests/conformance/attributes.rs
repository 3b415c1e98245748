//! What a faithful copy needs: permissions, links, names of any bytes, and files that are written in parts.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use outpost_testkit::client::base64;
use outpost_testkit::{Bench, over_every_link, over_links};
use serde_json::{Value, json};

use crate::support::Pipe;

fn at(bench: &Bench, name: &str) -> Value {
    json!({"path": bench.uri(name)})
}

fn part(bench: &Bench, handle: &str, name: &str) -> Value {
    json!({"handleId": handle, "path": bench.uri(name), "mode": "replace", "part": true})
}

over_every_link! {
    async fn attributes_are_those_of_the_thing_itself(bench: Bench) {
        fs::write(bench.path("f"), "12345").unwrap();
        fs::set_permissions(bench.path("f"), Permissions::from_mode(0o4751)).unwrap();
        symlink("../no where", bench.path("l")).unwrap();
        let mut client = bench.client().await;
        let file = client.result("fs/getAttributes", at(&bench, "f")).await;
        let metadata = fs::metadata(bench.path("f")).unwrap();
        assert_eq!((&file["kind"], &file["size"], &file["mode"]), (&json!("file"), &json!(5), &json!(0o751)));
        assert_eq!(file["inode"], json!(metadata.ino()));
        assert_eq!(file["modifiedAtMs"], json!(metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000));
        assert!(file.get("linkTarget").is_none());
        let link = client.result("fs/getAttributes", at(&bench, "l")).await;
        assert_eq!((&link["kind"], &link["linkTarget"]), (&json!("symlink"), &json!("../no%20where")));
        assert_eq!(client.error("fs/getAttributes", at(&bench, "missing")).await.0, -32004);
    }

    async fn listings_leave_nothing_out(bench: Bench) {
        fs::write(bench.path("").join(OsStr::from_bytes(b"\xff %")), "").unwrap();
        fs::create_dir(bench.path("d")).unwrap();
        symlink("nowhere", bench.path("l")).unwrap();
        let _pipe = Pipe::new(&bench, "p");
        let mut client = bench.client().await;
        let listed = client.result("fs/listAttributes", at(&bench, "")).await;
        let mut entries: Vec<(String, String)> = listed["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["name"].as_str().unwrap().into(), entry["attributes"]["kind"].as_str().unwrap().into()))
            .collect();
        entries.sort();
        let expected = [("%FF%20%25", "file"), ("d", "directory"), ("l", "symlink"), ("p", "other")];
        assert_eq!(entries, expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())));
    }

    async fn modes_are_set_and_links_made(bench: Bench) {
        fs::write(bench.path("f"), "").unwrap();
        let mut client = bench.client().await;
        client.result("fs/setMode", json!({"path": bench.uri("f"), "mode": 0o640})).await;
        assert_eq!(fs::metadata(bench.path("f")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(client.error("fs/setMode", json!({"path": bench.uri("f"), "mode": 0o4755})).await.0, -32602);
        let link = json!({"path": bench.uri("l"), "target": "f%FF"});
        assert_eq!(client.result("fs/createLink", link.clone()).await, json!({}));
        assert_eq!(fs::read_link(bench.path("l")).unwrap().as_os_str().as_bytes(), b"f\xff");
        assert!(client.error("fs/createLink", link).await.1.contains("File exists"));
        let refused = client.error("fs/setMode", json!({"path": bench.uri("l"), "mode": 0o600})).await;
        assert_eq!(refused, (-32600, "a link has no mode of its own".into()));
    }
}

over_links! { [Unix, WebSocket]
    async fn a_part_is_written_over_several_connections(bench: Bench) {
        let mut first = bench.client().await;
        first.result("fs/open", part(&bench, "h", "f")).await;
        assert_eq!(fs::metadata(bench.path("f")).unwrap().mode() & 0o777, 0o600);
        first.result("fs/writeBlock", json!({"handleId": "h", "offset": 0, "chunk": base64(b"abc")})).await;
        drop(first);
        let mut second = bench.client().await;
        second.result("fs/open", part(&bench, "h", "f")).await;
        second.result("fs/writeBlock", json!({"handleId": "h", "offset": 3, "chunk": base64(b"def")})).await;
        assert_eq!(fs::read(bench.path("f")).unwrap(), b"abcdef");
        symlink("f", bench.path("l")).unwrap();
        assert!(second.error("fs/open", part(&bench, "i", "l")).await.1.contains("symbolic links"));
        // Nobody else's file is emptied by mistake.
        second.result("fs/open", json!({"handleId": "j", "path": bench.uri("f"), "mode": "read", "part": true})).await;
        assert_eq!(fs::read(bench.path("f")).unwrap(), b"abcdef");
    }

    async fn what_a_policy_does_not_allow_is_refused(bench: Bench) {
        fs::write(bench.path("f"), "").unwrap();
        let mut client = bench.client().await;
        let restricted = json!({
            "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": []}, "network": "restricted"},
            "windowsSandboxLevel": "disabled",
        });
        for (method, mut params) in [
            ("fs/getAttributes", at(&bench, "f")),
            ("fs/listAttributes", at(&bench, "")),
            ("fs/setMode", json!({"path": bench.uri("f"), "mode": 0o777})),
            ("fs/createLink", json!({"path": bench.uri("new"), "target": "x"})),
        ] {
            params["sandbox"] = restricted.clone();
            let (_, message) = client.error(method, params).await;
            assert!(message.contains("refused"), "{method}: {message}");
        }
        assert!(!bench.path("new").exists());
    }
}
