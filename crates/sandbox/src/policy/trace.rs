//! Where a path leads, and through which links: what the kernel would do with it, written down step by step.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// What came of following a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Without links, as far as it exists; what does not exist follows as it is spelled.
    pub real: PathBuf,
    /// Every link on the way, each at its own real path.
    pub links: Vec<PathBuf>,
    /// The last link leads to something that is not there.
    pub is_dangling: bool,
}

/// A name that is still to be looked at.
struct Step {
    name: OsString,
    /// It stood in a link, not in the path that was asked for.
    is_linked: bool,
}

fn steps(path: &Path, is_linked: bool) -> impl DoubleEndedIterator<Item = Step> {
    path.components().filter_map(move |part| match part {
        Component::Normal(name) => Some(Step { name: name.to_owned(), is_linked }),
        Component::ParentDir => Some(Step { name: "..".into(), is_linked }),
        _ => None,
    })
}

/// Follows an absolute path. `..` behind a link is where the link leads, as for the kernel.
pub fn trace(path: &Path) -> io::Result<Trace> {
    let mut real = PathBuf::from("/");
    let mut links = Vec::new();
    let mut left: VecDeque<Step> = steps(path, false).collect();
    while let Some(step) = left.pop_front() {
        if step.name == ".." {
            real.pop();
            continue;
        }
        real.push(&step.name);
        match fs::read_link(&real) {
            Ok(target) => {
                if links.len() == MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                links.push(real.clone());
                real.pop();
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                steps(&target, true).rev().for_each(|step| left.push_front(step));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                for step in &left {
                    if step.name == ".." {
                        real.pop();
                    } else {
                        real.push(&step.name);
                    }
                }
                return Ok(Trace { real, links, is_dangling: step.is_linked });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Trace { real, links, is_dangling: false })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/file"), "").unwrap();
        symlink("a/b", root.join("one")).unwrap();
        symlink(root.join("one"), root.join("two")).unwrap();
        let led = trace(&root.join("two/../file")).unwrap();
        assert_eq!((led.real, led.links), (root.join("a/file"), vec![root.join("two"), root.join("one")]));
        // What is not there yet is where it would be made.
        let led = trace(&root.join("two/x/y")).unwrap();
        assert_eq!((led.real, led.is_dangling), (root.join("a/b/x/y"), false));
        symlink("nothing/here", root.join("broken")).unwrap();
        let led = trace(&root.join("broken/x")).unwrap();
        assert_eq!((led.real, led.is_dangling), (root.join("nothing/here/x"), true));
        symlink("loop", root.join("loop")).unwrap();
        assert!(trace(&root.join("loop")).is_err());
        assert!(trace(&root.join("a/file/x")).is_err());
    }

    #[test]
    fn it_agrees_with_the_kernel() {
        for path in ["/", "/bin/sh", "/proc/self/exe", "/usr/../etc/hostname", "/dev/stdin/..", "/var/run"] {
            if let Ok(known) = Path::new(path).canonicalize() {
                assert_eq!(trace(Path::new(path)).map(|led| led.real).ok(), Some(known), "{path}");
            }
        }
    }
}
