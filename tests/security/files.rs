//! X2, X4: reads and writes only where the policy says, and what is protected stays as it is.

use crate::as_root_and_user;
use crate::support::Ground;

as_root_and_user! {
    async fn a_workspace_can_be_written_and_nothing_else(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let (code, output) = ground.run(&mut client, &policy, "mkdir sub && echo hi > sub/file && mv sub other && cat other/file && ls -ld .").await;
        assert_eq!((code, output.lines().next()), (0, Some("hi")), "{output}");
        // What was made belongs to whoever owns the workspace.
        let made = std::fs::metadata(ground.path("other/file")).unwrap();
        let owner = std::fs::metadata(ground.path("")).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()));
        for place in ["/etc/x", "/var/tmp/x", "/usr/x", "/x", "/home/x", "/run/x", "/dev/x", "/var/lib/x"] {
            let (code, output) = ground.run(&mut client, &policy, &format!("echo x > {place}")).await;
            assert_ne!(code, 0, "{place}: {output}");
            assert!(!std::path::Path::new(place).exists(), "{place}");
        }
        let (code, output) = ground.run(&mut client, &policy, "head -1 /etc/passwd && ls / > /dev/null").await;
        assert_eq!(code, 0, "{output}");
    }
}
