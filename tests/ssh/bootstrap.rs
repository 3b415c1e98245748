//! Finding out what is there, and bringing a program to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use outpost_environment::bootstrap::{Binary, BootstrapError, SshHost, digest, file_name};
use outpost_testkit::{LoginShell, Sshd};

use crate::OUTPOST;

fn host(sshd: &Sshd) -> SshHost {
    SshHost { destination: "box".into(), args: vec!["-F".into(), sshd.client_config().display().to_string()] }
}

fn program() -> Binary {
    Binary::parse(fs::read(OUTPOST).unwrap().into()).unwrap()
}

/// Everything that start-up files can print.
pub(crate) const NOISE: &str = "echo 'Welcome to box!'; echo '{\"id\":1}'; printf 'last login: today'; echo oops >&2\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_login_shell_is_understood() {
    let shells = [
        LoginShell::Program("/bin/bash"),
        LoginShell::Program("/bin/dash"),
        LoginShell::Busybox("/bin/busybox"),
        LoginShell::Program("/bin/tcsh"),
    ];
    for shell in shells {
        let sshd = Sshd::start(shell);
        for file in [".bashrc", ".cshrc"] {
            fs::write(sshd.home().join(file), NOISE.replace(" >&2", "")).unwrap();
        }
        let far = host(&sshd).probe().await.unwrap_or_else(|error| panic!("{shell:?}: {error}: {}", sshd.log()));
        assert_eq!((far.os.as_str(), far.arch.as_str()), ("Linux", std::env::consts::ARCH), "{shell:?}");
        assert_eq!(far.home, sshd.home().display().to_string(), "{shell:?}");
        assert_eq!((far.current, far.version), (None, None), "{shell:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_copied_checked_and_used() {
    let sshd = Sshd::start(LoginShell::Program("/bin/bash"));
    fs::write(sshd.home().join(".bashrc"), NOISE).unwrap();
    let (binary, sent) = (program(), AtomicUsize::new(0));
    let far = host(&sshd).probe().await.unwrap();
    assert_eq!(far.fits(&binary), Ok(()));
    let count = |bytes| drop(sent.fetch_add(bytes, Ordering::Relaxed).to_string());
    let installed = host(&sshd).install(&binary, "1.2.3", count).await.unwrap();
    let name = file_name("1.2.3", &digest(&binary.bytes));
    assert_eq!(installed.path, format!("~/.outpost/bin/{name}"));
    assert!(installed.version.starts_with("outpost "), "{}", installed.version);
    assert_eq!(sent.load(Ordering::Relaxed), binary.bytes.len());
    let directory = sshd.home().join(".outpost/bin");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&directory.join(&name))), (0o700, 0o700));
    assert_eq!(fs::read_link(directory.join("outpost")).unwrap().to_str(), Some(name.as_str()));
    assert!(fs::read(directory.join(&name)).unwrap() == binary.bytes);
    let far = host(&sshd).probe().await.unwrap();
    assert_eq!((far.current, far.version), (Some(name), Some(installed.version)));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left there");
}

/// What ssh itself says of the connection, in numbers.
fn compressed(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().find(|line| line.contains("compress outgoing:"))?;
    let numbers: Vec<u64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    Some((*numbers.first()?, *numbers.get(1)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_travels_compressed() {
    let sshd = Sshd::start(LoginShell::Program("/bin/dash"));
    let log = sshd.home().join("ssh.log");
    let mut host = host(&sshd);
    host.args.extend(["-v".into(), "-E".into(), log.display().to_string()]);
    let binary = program();
    host.install(&binary, "1.2.3", |_| {}).await.unwrap();
    let (raw, sent) = compressed(&fs::read_to_string(&log).unwrap()).unwrap();
    assert!(raw >= binary.bytes.len() as u64 && sent * 2 < raw, "{sent} of {raw} bytes were sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_work_is_told_and_nothing_is_left() {
    let sshd = Sshd::start(LoginShell::Program("/bin/dash"));
    // A program for this machine by its head, and rubbish otherwise.
    let mut broken = program();
    broken.bytes = fs::read(OUTPOST).unwrap()[..4096].to_vec().into();
    let error = host(&sshd).install(&broken, "0", |_| {}).await.unwrap_err();
    assert!(matches!(error, BootstrapError::DoesNotRun { .. }), "{error}");
    // What runs and is something else would serve every environment of that machine.
    let other = Binary { bytes: fs::read("/bin/true").unwrap().into(), ..program() };
    let error = host(&sshd).install(&other, "1", |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("it is not outpost but true"), "{error}");
    assert_eq!(fs::read_dir(sshd.home().join(".outpost/bin")).unwrap().count(), 0);
    fs::remove_dir_all(sshd.home().join(".outpost")).unwrap();
    fs::write(sshd.home().join(".outpost"), "in the way").unwrap();
    let error = host(&sshd).install(&program(), "0", |_| {}).await.unwrap_err();
    assert!(matches!(&error, BootstrapError::Copy { why, .. } if why.contains("cannot be made")), "{error}");
    // Another host than the one whose key is known: ssh says no, and nobody talks it into it.
    let key = fs::read_to_string(sshd.known_hosts()).unwrap();
    let other = key.replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAJ");
    assert_ne!(key, other);
    fs::write(sshd.known_hosts(), other).unwrap();
    let error = host(&sshd).probe().await.unwrap_err();
    assert!(matches!(error, BootstrapError::Ssh { .. }), "{error}");
    // Something that is no shell at all.
    let sshd = Sshd::start(LoginShell::Program("/bin/echo"));
    let error = host(&sshd).probe().await.unwrap_err();
    assert!(matches!(error, BootstrapError::NoAnswer { .. }), "{error}");
}
