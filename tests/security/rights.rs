//! X1, X5: sandboxed code has no rights beyond its policy, and a policy that cannot be held is refused.

use std::os::unix::fs::PermissionsExt;

use outpost_testkit::bench::with;
use serde_json::json;

use crate::as_root_and_user;
use crate::card::{FULL, MOUNTS, NEVER_ROOT, PRIVATE, PROTECTED, denies};
use crate::support::{Ground, Who, directory, entry, give};

as_root_and_user! {
    #[needs(NEVER_ROOT, MOUNTS)]
    async fn no_process_inside_is_root_or_can_become_it(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let (_, output) = ground.run(&mut client, &policy, "id -u; id -G; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status").await;
        let mut lines = output.lines();
        assert_ne!(lines.next(), Some("0"), "{output}");
        assert!(!lines.next().unwrap().split(' ').any(|group| group == "0"), "{output}");
        for line in lines {
            let expected = match line.split(':').next().unwrap() {
                "NoNewPrivs" => "1",
                "Seccomp" => "2",
                _ => "0000000000000000",
            };
            assert_eq!(line.split_whitespace().nth(1), Some(expected), "{output}");
        }
        // Two sessions as root are two users.
        if who == Who::Root {
            let mut other = ground.client().await;
            let (_, first) = ground.run(&mut client, &policy, "id -u").await;
            let (_, second) = ground.run(&mut other, &policy, "id -u").await;
            assert_ne!(first, second);
        }
    }

    async fn landlock_holds_beneath_everything_else(who: Who) {
        // The kernel stacks a fixed number of rule sets: whoever is in one already can add one less.
        let count = r#"my $a = pack("Q", 2048); my $n = 0; while ($n < 20) { my $f = syscall(444, $a, 8, 0); last if $f < 0 || syscall(446, $f, 0) < 0; $n++ } print $n"#;
        let outside = std::process::Command::new("setpriv").args(["--no-new-privs", "perl", "-e", count]).output().unwrap();
        let outside: u32 = String::from_utf8(outside.stdout).unwrap().parse().unwrap();
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        for policy in [ground.workspace_write(), ground.policy(json!([entry("/".as_ref(), "read")]))] {
            let (_, inside) = ground.run(&mut client, &policy, &format!("perl -e '{count}'")).await;
            assert_eq!(inside.parse::<u32>().unwrap(), outside.saturating_sub(1), "{inside}");
        }
    }

    async fn the_tools_in_a_closed_home_can_be_used_and_not_changed(who: Who) {
        let home = directory(who);
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let tool = home.path().join("tool");
        std::fs::write(&tool, "#!/bin/sh\necho works\n").unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o700)).unwrap();
        give(who, &tool);
        let ground = Ground::at_home(who, home.path(), &[]);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let tool = tool.display();
        assert_eq!(ground.run(&mut client, &policy, &tool.to_string()).await, (0, "works\n".into()));
        for script in [format!("echo >> {tool}"), format!("rm {tool}"), format!("touch {tool}.new")] {
            let (code, output) = ground.run(&mut client, &policy, &script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        // A policy that does not let the home be read still does not.
        let entries = json!([{"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"}, entry(&ground.path(""), "write")]);
        let (code, output) = ground.run(&mut client, &ground.policy(entries), &tool.to_string()).await;
        assert_ne!(code, 0, "{output}");
    }

    async fn files_that_lend_rights_cannot_be_made(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        for script in [
            "cp /bin/true f && chmod u+s f",
            "cp /bin/true f && chmod 2755 f",
            "install -m 4755 /bin/true f",
            "perl -e 'umask 0; sysopen(my $f, \"f\", 0101, 04755) or die \"refused: $!\"'",
            "perl -e 'open(my $f, \">f\"); chmod(06755, $f) or die \"refused: $!\"'",
            "perl -e 'umask 0; require \"syscall.ph\"; 1' ; perl -e 'umask 0; syscall(85, \"f\", 04755) >= 0 or die \"refused: $!\"'",
            "mknod f c 1 3",
            "mknod f b 8 0",
        ] {
            let (code, output) = ground.run(&mut client, &policy, script).await;
            assert_ne!(code, 0, "{script}: {output}");
            use std::os::unix::fs::{FileTypeExt, PermissionsExt};
            if let Ok(metadata) = std::fs::symlink_metadata(ground.path("f")) {
                assert_eq!(metadata.permissions().mode() & 0o6000, 0, "{script}");
                assert!(!metadata.file_type().is_char_device() && !metadata.file_type().is_block_device(), "{script}");
                std::fs::remove_file(ground.path("f")).unwrap();
            }
        }
    }

    async fn the_kernel_and_other_processes_are_out_of_reach(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let executor = ground.executor.pid();
        let home = ground.executor.home().display().to_string();
        let port = ground.executor.address().rsplit(':').next().unwrap().to_owned();
        for script in [
            "echo x > /proc/sys/kernel/hostname".to_owned(),
            "echo 1 > /proc/sys/vm/drop_caches".into(),
            "echo c > /proc/sysrq-trigger".into(),
            "hostname changed".into(),
            "unshare -U true".into(),
            "unshare -r true".into(),
            "unshare -m true".into(),
            "unshare -n true".into(),
            "unshare -p -f true".into(),
            "mount -t tmpfs none /tmp".into(),
            "chroot / /bin/true".into(),
            "perl -e 'syscall(101, 16, 1, 0, 0) == 0 or die \"refused: $!\"'".into(),
            "perl -e 'syscall(250, 0, 0, 0, 0) >= 0 or die \"refused: $!\"'".into(),
            "perl -e 'syscall(321, 0, 0, 0) >= 0 or die \"refused: $!\"'".into(),
            "perl -e 'syscall(425, 8, 0) >= 0 or die \"refused: $!\"'".into(),
            format!("kill -0 {executor}"),
            format!("cat /proc/{executor}/environ"),
            "cat /proc/1/environ".into(),
            "cat /proc/$PPID/environ".into(),
            "cat /proc/$PPID/maps".into(),
            format!("ls {home}/executor"),
            format!("cat {home}/executor/identity"),
            "ls /dev/vda || ls /dev/sda || ls /dev/mem || ls /dev/kmsg".into(),
            format!("perl -MIO::Socket::INET -e 'IO::Socket::INET->new(\"127.0.0.1:{port}\") or die \"refused: $!\"'"),
            "perl -e 'socket(my $s, 40, 1, 0) or die \"refused: $!\"'".into(),
            "perl -e 'socket(my $s, 17, 3, 0) or die \"refused: $!\"'".into(),
        ] {
            let (code, output) = ground.run(&mut client, &policy, &script).await;
            assert_ne!(code, 0, "{script}: {output}");
        }
        if denies(who, &[FULL]).await {
            return;
        }
        let (_, output) = ground.run(&mut client, &policy, "ls -d /proc/[0-9]* | wc -l").await;
        assert!(output.trim().parse::<u32>().unwrap() < 10, "{output}");
    }

    async fn nothing_is_typed_into_a_terminal(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let script = "perl -e '$c = \"x\"; ioctl(STDIN, 0x5412, $c) or die \"refused: $!\"'";
        let start = with(ground.shell("p", script), json!({"sandbox": ground.workspace_write(), "tty": true}));
        client.start(start).await;
        let (code, output) = client.outcome("p").await;
        let output = String::from_utf8_lossy(&output).into_owned();
        assert!(code != 0 && output.contains("refused: Operation not permitted"), "{code} {output}");
    }

    async fn a_terminal_works_inside(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let script = "test -t 0 && stty size && echo hi > /dev/tty";
        client.start(with(ground.shell("p", script), json!({"sandbox": ground.workspace_write(), "tty": true}))).await;
        let (code, output) = client.outcome("p").await;
        assert_eq!((code, String::from_utf8_lossy(&output).as_ref()), (0, "24 80\r\nhi\r\n"));
    }

    async fn a_policy_that_cannot_be_held_is_refused(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        // Nobody knows what is to be denied where a link leads to nothing.
        std::os::unix::fs::symlink("/nowhere/at/all", ground.path("broken")).unwrap();
        let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
        let denied = crate::support::entry(&ground.path("broken"), "deny");
        let policy = ground.policy(json!([special("root", "read"), special("project_roots", "write"), denied]));
        let refused = client.error("process/start", with(ground.shell("p", "touch ran"), json!({"sandbox": policy}))).await;
        assert_eq!(refused.0, -32602, "{refused:?}");
        assert!(refused.1.contains("broken") && refused.1.contains("link"), "{refused:?}");
        if who == Who::Root {
            let everything = json!({
                "permissions": {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"},
                "windowsSandboxLevel": "disabled",
            });
            let refused = client.error("process/start", with(ground.shell("p", "touch ran"), json!({"sandbox": everything}))).await;
            assert_eq!(refused.0, -32602, "{refused:?}");
        }
        assert!(!ground.path("ran").exists());
    }
}

as_root_and_user! {
    #[needs(NEVER_ROOT)]
    async fn what_holds_here_is_told(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let info = client.result("environment/info", json!({})).await;
        let rows = info["sandbox"].as_array().unwrap();
        for promise in ["nothing outlives its session", "no network", "sandboxed code never runs as root"] {
            let row = rows.iter().find(|row| row["promise"] == promise).unwrap();
            assert!(row["mechanism"].as_str().is_some_and(|mechanism| !mechanism.is_empty()), "{row}");
            // What is told to hold does hold.
            let (code, _) = ground.run(&mut client, &ground.read_only(), "true").await;
            assert_eq!((code == 0, row["holds"].as_bool()), (true, Some(true)), "{row}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_can_name_a_user() {
    if !crate::support::is_root() {
        return;
    }
    if denies(Who::Root, &[PROTECTED, PRIVATE]).await {
        return;
    }
    let ground = Ground::with(Who::Root, &["--sandbox-user", "nobody"]);
    std::os::unix::fs::chown(ground.path(""), Some(65_534), Some(65_534)).unwrap();
    let mut client = ground.client().await;
    let policy = ground.workspace_write();
    let (code, output) =
        ground.run(&mut client, &policy, "id -u && echo x > file && echo y > /tmp/y && ! touch .codex/x && ! touch /usr/x").await;
    assert_eq!((code, output.lines().next()), (0, Some("65534")), "{output}");
    assert!(ground.path("file").exists());
}
