//! S4: no request gets more than the policy that the executor was started with.

use outpost_testkit::bench::with;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::MOUNTS;
use crate::support::{Ground, directory, entry, give};

as_root_and_user! {
    #[needs(MOUNTS)]
    async fn no_request_exceeds_the_ceiling(who: Who) {
        let allowed = directory(who);
        let allowed_path = allowed.path().canonicalize().unwrap();
        std::fs::create_dir(allowed_path.join("secret")).unwrap();
        give(who, &allowed_path.join("secret"));
        std::fs::write(allowed_path.join("secret/file"), "secret").unwrap();
        let file = allowed_path.join("ceiling.toml");
        let work = allowed_path.display();
        std::fs::write(&file, format!("read = ['/']\nwrite = ['{work}']\ndeny = ['{work}/secret']\n")).unwrap();
        give(who, &file);
        let ground = Ground::with(who, &["--ceiling", file.to_str().unwrap()]);
        let mut client = ground.client().await;
        let uri = outpost_wire::PathUri::from_native(&allowed_path).unwrap().to_string();
        let start = |id: &str, script: &str, sandbox: Value| with(ground.shell(id, script), json!({"sandbox": sandbox, "cwd": uri}));
        let refusals = [
            (Value::Null, "without a sandbox"),
            (json!({"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}), "without a sandbox"),
            (with(ground.read_only(), json!({"permissions": {
                "type": "managed", "network": "enabled",
                "file_system": {"type": "restricted", "entries": [entry(std::path::Path::new("/"), "read")]},
            }})), "network"),
            (ground.policy(json!([entry(std::path::Path::new("/"), "write")])), "write access to /"),
            (ground.workspace_write(), "write access to"),
            (ground.policy(json!([entry(&allowed_path.join("secret"), "read")])), "secret is denied"),
        ];
        for (sandbox, text) in refusals {
            let refused = client.error("process/start", start("p", "touch ran", sandbox)).await;
            assert!(refused.0 == -32600 && refused.1.contains(text) && refused.1.contains("ceiling"), "{refused:?}");
        }
        let fine = ground.policy(json!([entry(std::path::Path::new("/"), "read"), entry(&allowed_path, "write")]));
        client.start(start("p", "echo x > made && ! cat secret/file", fine)).await;
        let (code, output) = client.outcome("p").await;
        assert_eq!(code, 0, "{}", String::from_utf8_lossy(&output));
        assert!(allowed_path.join("made").exists() && !allowed_path.join("ran").exists());
    }

    async fn requests_that_name_no_sandbox_are_held_to_the_ceiling(who: Who) {
        let allowed = directory(who);
        let path = allowed.path().canonicalize().unwrap();
        std::fs::create_dir(path.join("secret")).unwrap();
        std::fs::write(path.join("secret/there"), "secret").unwrap();
        let file = path.join("ceiling.toml");
        let write = |network: &str| {
            let text = format!("network = '{network}'\nread = ['/usr']\nwrite = ['{0}']\ndeny = ['{0}/secret']\n", path.display());
            std::fs::write(&file, text).unwrap();
            give(who, &file);
        };
        let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", web.local_addr().unwrap());
        let request = |id: &str| json!({"requestId": id, "method": "GET", "url": url, "headers": []});
        let arguments = ["--ceiling", file.to_str().unwrap(), "--http-allow", "loopback"];

        write("restricted");
        let ground = Ground::with(who, &arguments);
        let mut client = ground.client().await;
        let (code, why) = client.error("http/request", request("a")).await;
        assert!(code == -32600 && why.contains("ceiling"), "{why}");
        assert!(tokio::time::timeout(std::time::Duration::from_millis(50), web.accept()).await.is_err(), "somebody came");
        // The answer is the same for what is there and for what is not.
        let uri = |path: &std::path::Path| outpost_wire::PathUri::from_native(path).unwrap().to_string();
        let mut id = 0;
        let mut watch = |missing: &std::path::Path, present: &std::path::Path| {
            id += 1;
            json!({"watchId": id, "missing": [uri(missing)], "present": uri(present)})
        };
        let usr = std::path::Path::new("/usr");
        for name in ["there", "nothing"] {
            let secret = path.join("secret").join(name);
            for params in [watch(&secret, usr), watch(&path.join("new"), &secret)] {
                let (_, why) = client.error("fs/watchMissing", params).await;
                assert!(why.contains("secret is denied") && why.contains("(os error 13)"), "{why}");
            }
        }
        let fine = client.result("fs/watchMissing", watch(&path.join("new"), usr)).await;
        assert_eq!(fine["watching"], true);

        write("enabled");
        let ground = Ground::with(who, &arguments);
        let mut client = ground.client().await;
        client.request("http/request", request("b"));
        web.accept().await.unwrap();
    }

    #[needs(MOUNTS)]
    async fn a_ceiling_may_deny_what_we_protect(who: Who) {
        let allowed = directory(who);
        let root = allowed.path().canonicalize().unwrap();
        std::fs::create_dir(root.join(".ssh")).unwrap();
        give(who, &root.join(".ssh"));
        std::fs::write(root.join(".ssh/key"), "secret").unwrap();
        let file = root.join("ceiling.toml");
        std::fs::write(&file, format!("read = ['/']\nwrite = ['{0}']\ndeny = ['{0}/.ssh']\n", root.display())).unwrap();
        give(who, &file);
        let ground = Ground::with(who, &["--ceiling", file.to_str().unwrap()]);
        let mut client = ground.client().await;
        let uri = outpost_wire::PathUri::from_native(&root).unwrap().to_string();
        let policy = ground.policy(json!([entry(std::path::Path::new("/"), "read"), entry(&root, "write")]));
        let script = "echo x > made && mkdir .git/x || ! cat .ssh/key";
        client.start(with(ground.shell("p", script), json!({"sandbox": policy, "cwd": uri}))).await;
        let (code, output) = client.outcome("p").await;
        assert_eq!(code, 0, "{}", String::from_utf8_lossy(&output));
        assert!(root.join("made").exists() && !String::from_utf8_lossy(&output).contains("secret"));
    }

    // A relay beside a command runs under the policy of that command, also when its start is repeated because the answer was lost.
    #[needs(MOUNTS)]
    async fn a_repeated_relay_beside_a_command_is_not_taken_for_one_without_a_sandbox(who: Who) {
        let allowed = directory(who);
        let root = allowed.path().canonicalize().unwrap();
        let file = root.join("ceiling.toml");
        std::fs::write(&file, format!("read = ['/']\nwrite = ['{}']\n", root.display())).unwrap();
        give(who, &file);
        let ground = Ground::with(who, &["--ceiling", file.to_str().unwrap()]);
        let (mut client, mut other) = (ground.client().await, ground.client().await);
        let script = r#"exec perl -MSocket -e '$| = 1; socket(L, AF_INET, SOCK_STREAM, 0); listen(L, 5) or die $!;
            print "port ", (unpack_sockaddr_in(getsockname(L)))[0], " ", "\n"; sleep 600'"#;
        let secret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        let server = json!({"sandbox": ground.policy(json!([entry(std::path::Path::new("/"), "read")])), "adoption": {"secret": secret, "epoch": 1}});
        client.start(with(ground.shell("server", script), server)).await;
        let said = client.until(|message| message["method"] == "process/output").await;
        let said = String::from_utf8(outpost_testkit::client::decode(&said["params"]["chunk"])).unwrap();
        let port: u16 = said.split_whitespace().nth(1).unwrap_or_else(|| panic!("{said}")).parse().unwrap();
        let relay = |connect: Value| with(ground.shell("relay", ""), json!({"argv": ["connect"], "pipeStdin": true, "tty": false, "connect": connect}));
        let (_, why) = other.error("process/start", relay(json!({"port": port}))).await;
        assert!(why.contains("without a sandbox") && why.contains("ceiling"), "{why}");
        let beside = relay(json!({"port": port, "beside": [{"processId": "server", "secret": secret}]}));
        let first = other.result("process/start", beside.clone()).await;
        assert_eq!(first["sandboxType"], "linuxSeccomp", "{first}");
        assert_eq!(other.result("process/start", beside).await, first);
    }
}
