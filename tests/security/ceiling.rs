//! S4: no request gets more than the policy that the executor was started with.

use outpost_testkit::bench::with;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::support::{Ground, directory, entry, give};

as_root_and_user! {
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
}
