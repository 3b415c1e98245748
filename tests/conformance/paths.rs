//! Paths on the wire: URIs, their spellings, and what is refused.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use outpost_testkit::bench::with;
use outpost_testkit::client::base64;
use outpost_testkit::over_every_link;
use serde_json::{Value, json};

fn at(uri: &str) -> Value {
    json!({"path": uri})
}

over_every_link! {
    async fn a_path_may_be_spelled_in_several_ways(bench: Bench) {
        let mut client = bench.client().await;
        fs::create_dir(bench.path("d")).unwrap();
        fs::write(bench.path("d/file"), "here").unwrap();
        let native = bench.path("d").display().to_string();
        for uri in [
            format!("file://{native}/file"),
            format!("file:{native}/file"),
            format!("FILE://{native}/file"),
            format!("file://localhost{native}/file"),
            format!("file://LocalHost{native}/file"),
            format!("file://{native}/./file"),
            format!("file://{native}/x/../file"),
            format!("file://{native}/%2e%2E/d/%66ile"),
            format!("file://{native}//file"),
            format!("file:///../..{native}/file"),
        ] {
            let read = client.result("fs/readFile", at(&uri)).await;
            assert_eq!(read["dataBase64"], base64("here"), "{uri}");
        }
        for uri in [format!("file://{native}"), format!("file://{native}/")] {
            assert_eq!(client.result("fs/getMetadata", at(&uri)).await["isDirectory"], true);
        }
        assert_eq!(client.result("fs/canonicalize", at("file:///")).await, at("file:///"));
    }

    async fn what_is_no_path_is_refused_with_the_parameters(bench: Bench) {
        let mut client = bench.client().await;
        for (text, message) in [
            ("/tmp", "invalid URI: relative URL without a base"),
            ("tmp", "invalid URI: relative URL without a base"),
            ("", "invalid URI: relative URL without a base"),
            ("http://localhost/x", "unsupported path URI scheme `http`"),
            ("C:\\x", "unsupported path URI scheme `c`"),
            ("file:///x?y", "query parameters are not allowed in path URIs"),
            ("file:///x#y", "fragments are not allowed in path URIs"),
        ] {
            assert_eq!(client.error("fs/getMetadata", at(text)).await, (-32602, message.into()), "{text}");
            assert_eq!(
                client.error("process/start", with(bench.start("p", &["/bin/true"]), json!({"cwd": text}))).await,
                (-32602, message.into())
            );
        }
        assert_eq!(client.error("fs/getMetadata", at("file:///tmp/%00x")).await.0, -32602);
        for wrong in [json!({"path": 1}), json!({"path": null}), json!({"path": ["file:///"]})] {
            assert_eq!(client.error("fs/getMetadata", wrong).await.0, -32602);
        }
    }

    async fn paths_of_other_machines_are_refused_when_used(bench: Bench) {
        let mut client = bench.client().await;
        for uri in ["file://host/share", "file:///C:/x", "file:///c:"] {
            let refused = format!("'{uri}' is invalid on 'linux'");
            for method in ["fs/getMetadata", "fs/readFile", "fs/canonicalize", "fs/readDirectory", "fs/remove", "fs/createDirectory"] {
                assert_eq!(client.error(method, at(uri)).await, (-32600, refused.clone()), "{method}");
            }
            let copy = json!({"sourcePath": bench.uri(""), "destinationPath": uri, "recursive": true});
            assert_eq!(client.error("fs/copy", copy).await, (-32600, refused.clone()));
            let (code, message) = client.error("process/start", with(bench.start("p", &["/bin/true"]), json!({"cwd": uri}))).await;
            assert!(code == -32602 && message.contains(&refused), "{code} {message}");
        }
    }

    async fn marks_inside_names_are_escaped(bench: Bench) {
        let mut client = bench.client().await;
        for (name, escaped) in [
            ("a b", "a%20b"),
            ("100%", "100%25"),
            ("what?", "what%3F"),
            ("#1", "%231"),
            ("%41", "%2541"),
            ("ü", "%C3%BC"),
            ("a\\b", "a%5Cb"),
        ] {
            let uri = format!("{}/{escaped}", bench.uri(""));
            client.result("fs/writeFile", with(at(&uri), json!({"dataBase64": base64(name)}))).await;
            assert_eq!(fs::read_to_string(bench.path(name)).unwrap(), name);
            assert_eq!(client.result("fs/canonicalize", at(&uri)).await, at(&uri));
        }
    }

    async fn names_that_are_not_utf8_can_be_named(bench: Bench) {
        let mut client = bench.client().await;
        fs::create_dir(bench.path("d")).unwrap();
        let name = OsStr::from_bytes(b"\xff\xfe name");
        let uri = format!("{}/%FF%FE%20name", bench.uri("d"));
        client.result("fs/writeFile", with(at(&uri), json!({"dataBase64": "eA=="}))).await;
        assert_eq!(fs::read(bench.path("d").join(name)).unwrap(), b"x");
        assert_eq!(client.result("fs/readFile", at(&uri.replace("%FF", "%ff"))).await["dataBase64"], "eA==");
        assert_eq!(client.result("fs/canonicalize", at(&uri)).await, at(&uri));
        let list = client.result("fs/readDirectory", at(&bench.uri("d"))).await;
        assert_eq!(list["entries"], json!([{"fileName": "\u{fffd}\u{fffd} name", "isDirectory": false, "isFile": true}]));
        client.result("fs/remove", with(at(&uri), json!({"force": false}))).await;
        fs::create_dir(bench.path("d").join(name)).unwrap();
        client.start(with(bench.shell("p", "pwd -P > where"), json!({"cwd": uri}))).await;
        assert_eq!(client.outcome("p").await.0, 0);
        assert!(fs::read(bench.path("d").join(name).join("where")).unwrap().ends_with(b"\xff\xfe name\n"));
    }

    async fn an_environment_names_its_places_by_uri(bench: Bench) {
        let mut client = bench.client().await;
        let info = client.result("environment/info", json!(null)).await;
        for member in ["cwd", "tempDir"] {
            let metadata = client.result("fs/getMetadata", at(info[member].as_str().unwrap())).await;
            assert_eq!(metadata["isDirectory"], true, "{member}");
        }
        assert_eq!(info["platformOs"], "linux");
        let provider = info["providerId"].as_str().unwrap();
        assert!(provider.len() == 71 && provider.starts_with("sha256:"), "{provider}");
        let shell = info["shell"]["path"].as_str().unwrap();
        assert!(fs::metadata(shell).unwrap().is_file(), "{shell}");
    }
}
