//! The machine, its user, and the home.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, geteuid, getrlimit};

use super::{Finding, Patient};

/// A listener with a thousand clients needs about so many.
const FILES: u64 = 4096;
/// Less than this on the home's disk, and spools fill it.
const SPACE: u64 = 1 << 30;

pub fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut findings = vec![
        Finding::good("system", format!("Linux {} on {}", kernel.trim(), std::env::consts::ARCH)),
        if geteuid().is_root() {
            Finding::good("user", "root; sandboxed commands run under an unprivileged id of their own")
        } else {
            Finding::good("user", format!("an ordinary one, id {}", geteuid().as_raw()))
        },
        open_files(),
    ];
    match &patient.home {
        Some(home) => findings.extend(home_findings(home.path())),
        None => findings.push(Finding::broken("home", "neither OUTPOST_HOME nor HOME is set", "set one of them")),
    }
    findings
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    match limit.current {
        Some(current) if current < FILES => {
            let to_do = format!("raise it (ulimit -n {FILES}) before a server is started here");
            Finding::weak("open files", format!("at most {current} per process"), to_do)
        }
        Some(current) => Finding::good("open files", format!("at most {current} per process")),
        None => Finding::good("open files", "without a limit"),
    }
}

fn home_findings(home: &Path) -> Vec<Finding> {
    let place = home.display();
    let metadata = match fs::metadata(home) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return vec![Finding::good("home", format!("{place}, made when it is needed"))];
        }
        Err(error) => {
            return vec![Finding::broken("home", format!("{place}: {error}"), "make it readable, or set OUTPOST_HOME to another place")];
        }
    };
    let mode = metadata.mode() & 0o777;
    let mut findings = vec![if metadata.uid() != geteuid().as_raw() {
        Finding::weak("home", format!("{place} belongs to user {}", metadata.uid()), "use a home of your own")
    } else if mode & 0o077 != 0 {
        Finding::weak("home", format!("{place} has mode {mode:03o}, so others can see its names"), format!("chmod 700 {place}"))
    } else {
        Finding::good("home", format!("{place}, mode {mode:03o}"))
    }];
    if let Err(error) = access(home, Access::WRITE_OK) {
        let detail = format!("{place} cannot be written to: {}", io::Error::from(error));
        findings.push(Finding::broken("home", detail, "make it writable, or set OUTPOST_HOME to another place"));
    }
    match statvfs(home) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let detail = format!("{} MiB free below {place}", free >> 20);
            findings.push(if free < SPACE {
                Finding::weak("disk", detail, "make room: output and journals are kept there")
            } else {
                Finding::good("disk", detail)
            });
        }
        Err(error) => findings.push(Finding::weak("disk", io::Error::from(error).to_string(), "look at the disk of the home")),
    }
    findings
}
