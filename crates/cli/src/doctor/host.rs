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

pub(super) fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut findings = vec![
        Finding::good("system", format!("Linux {} on {}", kernel.trim(), std::env::consts::ARCH)),
        if geteuid().is_root() {
            Finding::good("user", "root; as whom sandboxed commands run is told below, under `sandbox`")
        } else {
            Finding::good("user", format!("an ordinary one, id {}", geteuid().as_raw()))
        },
        open_files(),
    ];
    findings.extend(gpu(Path::new("/dev")).map(|told| Finding::good("GPU", told)));
    match &patient.home {
        Some(home) => findings.extend(home_findings(home.path())),
        None => findings.push(Finding::broken("home", "neither OUTPOST_HOME nor HOME is set", "set one of them")),
    }
    findings
}

/// Says of a graphics processor that sandboxed commands do not see it unless an environment shows it.
fn gpu(dev: &Path) -> Option<String> {
    let begins = |directory: &Path, prefix: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
    };
    let kinds =
        [("\"nvidia\"", begins(dev, "nvidia")), ("\"dri\"", begins(&dev.join("dri"), "render")), ("\"/dev/kfd\"", begins(dev, "kfd"))];
    let names: Vec<&str> = kinds.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect();
    let shown = || {
        format!("present, and hidden from sandboxed commands; `devices = [{}]` in the entry of an environment shows it", names.join(", "))
    };
    (!names.is_empty()).then(shown)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_gpu_is_told_with_what_shows_it() {
        let dev = tempfile::tempdir().unwrap();
        assert!(gpu(dev.path()).is_none());
        fs::create_dir(dev.path().join("dri")).unwrap();
        fs::write(dev.path().join("dri/renderD128"), "").unwrap();
        fs::write(dev.path().join("nvidia0"), "").unwrap();
        let told = gpu(dev.path()).unwrap();
        assert!(told.contains("nvidia") && told.contains("dri") && !told.contains("kfd") && told.contains("hidden"), "{told}");
    }
}
