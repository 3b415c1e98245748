//! A real sshd on a loopback port, with keys, configuration and home of its own.
//!
//! It runs as the user who runs the tests and lets in only that user. Which login shell that user seems to have is up to the
//! test: a forced command takes the place of the one in the password file and does what sshd would do with it.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::executor::is_alive;

/// Which shell the user logs in with.
#[derive(Debug, Clone, Copy)]
pub enum LoginShell<'a> {
    Program(&'a str),
    /// The shell that is part of busybox.
    Busybox(&'a str),
}

/// Ended when dropped, with whatever was left running in its home.
pub struct Sshd {
    directory: TempDir,
    port: u16,
    child: Child,
}

impl Sshd {
    pub fn start(shell: LoginShell<'_>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for key in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(at(key)).status();
            assert!(made.expect("ssh-keygen is missing: `cargo xtask test` installs openssh-server").success());
        }
        fs::create_dir(at("home")).unwrap();
        fs::create_dir(at("bin")).unwrap();
        fs::copy(at("user_key.pub"), at("authorized_keys")).unwrap();
        let shell = match shell {
            LoginShell::Program(path) => PathBuf::from(path),
            LoginShell::Busybox(path) => {
                symlink(path, at("bin/sh")).unwrap();
                at("bin/sh")
            }
        };
        assert!(shell.exists(), "{} is missing: `cargo xtask test` installs it", shell.display());
        // What sshd does at a login: variables, the home as the directory, and the shell with -c. The level is that of a
        // shell that was not started from another one.
        let login = format!(
            "#!/bin/sh\nunset SHLVL OUTPOST_HOME ENV BASH_ENV\nexport HOME='{home}' SHELL='{shell}'\ncd '{home}'\n\
             echo $$ >> '{logins}'\nexec '{shell}' -c \"$SSH_ORIGINAL_COMMAND\"\n",
            home = at("home").display(),
            shell = shell.display(),
            logins = at("logins").display(),
        );
        fs::write(at("login"), login).unwrap();
        fs::set_permissions(at("login"), Permissions::from_mode(0o755)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let configuration = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {host_key}\nAuthorizedKeysFile {keys}\nForceCommand {login}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             PrintMotd no\nMaxStartups 100\nSetEnv HOME={outside}\n",
            // The start-up files of the user who runs the tests are not part of them.
            outside = at("outside").display(),
            host_key = at("host_key").display(),
            keys = at("authorized_keys").display(),
            login = at("login").display(),
        );
        fs::write(at("sshd_config"), configuration).unwrap();
        let host_key = fs::read_to_string(at("host_key.pub")).unwrap();
        fs::write(at("known_hosts"), format!("[127.0.0.1]:{port} {host_key}")).unwrap();
        let client = format!(
            "Host box\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {key}\n  IdentitiesOnly yes\n  IdentityAgent none\n\
             \x20 UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n",
            user = user_name(),
            key = at("user_key").display(),
            known = at("known_hosts").display(),
        );
        fs::write(at("ssh_config"), client).unwrap();
        // Where root's sshd goes before it knows who is there.
        let _ = fs::create_dir_all("/run/sshd");
        let log = fs::File::create(at("log")).unwrap();
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(at("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd is missing: `cargo xtask test` installs openssh-server");
        let sshd = Self { directory, port, child };
        for _ in 0..200 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return sshd;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("sshd does not listen: {}", sshd.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The home of the user who logs in.
    pub fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// A configuration for ssh in which this is the host `box`.
    pub fn client_config(&self) -> PathBuf {
        self.directory.path().join("ssh_config")
    }

    /// The keys that ssh trusts for this host.
    pub fn known_hosts(&self) -> PathBuf {
        self.directory.path().join("known_hosts")
    }

    /// The number of logins.
    pub fn logins(&self) -> usize {
        fs::read_to_string(self.directory.path().join("logins")).unwrap_or_default().lines().count()
    }

    /// The ssh programs that lead here now.
    pub fn clients(&self) -> Vec<u32> {
        let wanted = self.client_config().display().to_string();
        processes(|_, arguments| arguments.first().is_some_and(|program| program.ends_with("ssh")) && arguments.contains(&wanted))
    }

    /// What still runs with this home.
    fn left(&self) -> Vec<u32> {
        let wanted = format!("HOME={}", self.home().display());
        processes(|pid, _| strings(&fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()).contains(&wanted))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Keepers go by themselves, but not at once, and their home is about to go.
        for pid in self.left() {
            let _ = Command::new("kill").arg(pid.to_string()).stderr(Stdio::null()).status();
            for _ in 0..100 {
                if !is_alive(pid) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn user_name() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn processes(is_wanted: impl Fn(u32, &[String]) -> bool) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| is_wanted(*pid, &strings(&fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default())))
        .collect()
}

fn strings(bytes: &[u8]) -> Vec<String> {
    bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty()).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}
