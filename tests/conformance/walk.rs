//! The listing of a whole tree.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use outpost_testkit::bench::with;
use outpost_testkit::{over_every_link, over_links};
use serde_json::{Value, json};

fn options() -> Value {
    json!({"maxDepth": 10, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": false})
}

over_every_link! {
    async fn a_tree_is_listed_level_by_level(bench: Bench) {
        fs::create_dir_all(bench.path("t/a/deep")).unwrap();
        fs::create_dir_all(bench.path("t/.hidden")).unwrap();
        for file in ["t/z", "t/a/f", "t/a/deep/g", "t/.hidden/h"] {
            fs::write(bench.path(file), "").unwrap();
        }
        symlink("a", bench.path("t/link")).unwrap();
        symlink("z", bench.path("t/z-link")).unwrap();
        let mut client = bench.client().await;
        let directory = |name: &str| json!({"path": bench.uri(name), "kind": "directory"});
        let file = |name: &str| json!({"path": bench.uri(name), "kind": "file"});
        let plain = client.result("fs/walk", json!({"path": bench.uri("t"), "options": options()})).await;
        let below = [file("t/.hidden/h"), directory("t/a/deep"), file("t/a/f"), file("t/a/deep/g")];
        let top = [directory("t/.hidden"), directory("t/a"), file("t/z")];
        let all = [&top[..], &below].concat();
        assert_eq!(plain, json!({"entries": all, "errors": [], "truncated": false}));
        let pruned = with(options(), json!({"pruneHiddenDirectories": true}));
        let pruned = client.result("fs/walk", json!({"path": bench.uri("t"), "options": pruned})).await;
        assert_eq!(pruned["entries"], Value::from([&top[..], &below[1..]].concat()));
        let shallow = with(options(), json!({"maxDepth": 0}));
        let shallow = client.result("fs/walk", json!({"path": bench.uri("t"), "options": shallow})).await;
        assert_eq!(shallow, json!({"entries": top, "errors": [], "truncated": false}));
        let cut = with(options(), json!({"maxEntries": 2}));
        let cut = client.result("fs/walk", json!({"path": bench.uri("t"), "options": cut})).await;
        assert_eq!(cut, json!({"entries": &top[..2], "errors": [], "truncated": true}));
    }
}

over_links! { [Memory, WebSocket]
    async fn names_need_not_be_text(bench: Bench) {
        let name = OsStr::from_bytes(b"t/\xff\xfe n");
        fs::create_dir_all(bench.path("").join(name)).unwrap();
        fs::write(bench.path("").join(name).join("x"), "").unwrap();
        let mut client = bench.client().await;
        let answer = client.result("fs/walk", json!({"path": bench.uri("t"), "options": options()})).await;
        let inside = format!("{}/%FF%FE%20n/x", bench.uri("t"));
        assert_eq!(answer["entries"][1], json!({"path": inside, "kind": "file"}));
        assert_eq!(client.result("fs/readFile", json!({"path": inside})).await, json!({"dataBase64": ""}));
    }

    async fn roots_and_limits_are_checked(bench: Bench) {
        fs::create_dir(bench.path("d")).unwrap();
        fs::write(bench.path("f"), "").unwrap();
        symlink("d", bench.path("link")).unwrap();
        let mut client = bench.client().await;
        for name in ["f", "link"] {
            let empty = client.result("fs/walk", json!({"path": bench.uri(name), "options": options()})).await;
            assert_eq!(empty, json!({"entries": [], "errors": [], "truncated": false}));
        }
        let missing = client.error("fs/walk", json!({"path": bench.uri("nope"), "options": options()})).await;
        assert_eq!(missing, (-32004, "No such file or directory (os error 2)".into()));
        for limit in ["maxDirectories", "maxEntries"] {
            let zero = with(options(), json!({limit: 0}));
            let refused = client.error("fs/walk", json!({"path": bench.uri("d"), "options": zero})).await;
            assert_eq!(refused, (-32600, "filesystem walk limits must be greater than zero".into()));
        }
        for (limit, maximum) in [("maxDepth", 64), ("maxDirectories", 10_000), ("maxEntries", 50_000)] {
            let at = with(options(), json!({limit: maximum}));
            client.result("fs/walk", json!({"path": bench.uri("d"), "options": at})).await;
            let above = with(options(), json!({limit: maximum + 1}));
            let refused = client.error("fs/walk", json!({"path": bench.uri("d"), "options": above})).await;
            let text = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000";
            assert_eq!(refused, (-32600, text.into()));
        }
    }
}
