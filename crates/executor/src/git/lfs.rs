//! Files that git-lfs keeps beside the objects. Each has the digest of its bytes as its name, so one that comes out of a sandbox can be
//! checked by itself, and what is in it is read only by the program that asked for that digest.

use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use super::gitdir::Gitdir;

/// Where git-lfs keeps them, below a gitdir.
pub(super) const FILES: &str = "lfs/objects";
/// So many files, and so many bytes, are carried over at once.
const MAX_FILES: usize = 10_000;
const MAX_BYTES: u64 = 8 << 30;

/// Carries over what is in a layer and not in its repository. Returns how many files that were.
pub(super) fn carry_over(layer: &Gitdir, real: &Gitdir, owner: (u32, u32)) -> io::Result<usize> {
    let (mut count, mut left) = (0, MAX_BYTES);
    for path in files(layer)? {
        if real.has(&path) {
            continue;
        }
        let Some(file) = layer.open_file(Path::new(&path))? else { continue };
        let mut file = file.take(left + 1);
        if copy(&mut file, &path, real, owner)? {
            count += 1;
        }
        left = left.saturating_sub(left + 1 - file.limit());
        if left == 0 || count >= MAX_FILES {
            return Err(io::Error::other(format!("there are more than {MAX_FILES} files or {} GiB of them", MAX_BYTES >> 30)));
        }
    }
    Ok(count)
}

/// The files whose names and places are right.
fn files(layer: &Gitdir) -> io::Result<Vec<String>> {
    let is_pair = |name: &str| name.len() == 2 && is_hex(name);
    let mut found = Vec::new();
    for first in directories(layer, FILES)?.into_iter().filter(|name| is_pair(name)) {
        for second in directories(layer, &format!("{FILES}/{first}"))?.into_iter().filter(|name| is_pair(name)) {
            let place = format!("{FILES}/{first}/{second}");
            let is_right = |name: &str| name.len() == 64 && is_hex(name) && name.starts_with(&format!("{first}{second}"));
            let inner = layer.children(&place)?.into_iter().filter(|(name, kind)| kind.is_file() && is_right(name));
            found.extend(inner.map(|(name, _)| format!("{place}/{name}")));
        }
    }
    Ok(found)
}

fn is_hex(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn directories(layer: &Gitdir, path: &str) -> io::Result<Vec<String>> {
    Ok(layer.children(path)?.into_iter().filter(|(_, kind)| *kind == FileType::Directory).map(|(name, _)| name).collect())
}

/// Whether the bytes are those that the name says: only then they get that name.
fn copy(from: &mut impl Read, path: &str, real: &Gitdir, owner: (u32, u32)) -> io::Result<bool> {
    let Some((place, name)) = path.rsplit_once('/') else { return Ok(false) };
    let aside = format!("lfs/tmp/outpost-{}", uuid::Uuid::new_v4());
    real.make_directories("lfs/tmp", owner)?;
    let mut file = real.create_file(&aside, owner)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let written = (|| loop {
        match from.read(&mut buffer)? {
            0 => return file.sync_all(),
            length => {
                digest.update(&buffer[..length]);
                file.write_all(&buffer[..length])?;
            }
        }
    })();
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if written.is_ok() && digest == name {
        real.make_directories(place, owner)?;
        return real.rename(&aside, path).map(|()| true);
    }
    real.remove_file(&aside);
    written.map(|()| false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_files_that_are_what_their_names_say_are_carried_over() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let digest = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let place = |name: &str| format!("{FILES}/{}/{}/{name}", &name[..2], &name[2..4]);
        let put = |name: &str, bytes: &[u8]| {
            let path = root.join("layer").join(place(name));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        fs::create_dir_all(root.join("real")).unwrap();
        fs::create_dir_all(root.join("layer")).unwrap();
        let (layer, real) = (Gitdir::open(&root.join("layer")).unwrap(), Gitdir::open(&root.join("real")).unwrap());
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(carry_over(&layer, &real, owner).unwrap(), 0);
        let (good, forged, linked) = (digest(b"good"), digest(b"forged"), digest(b"linked"));
        put(&good, b"good");
        put(&forged, b"something else");
        fs::write(root.join("secret"), "linked").unwrap();
        let link = root.join("layer").join(place(&linked));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(root.join("secret"), &link).unwrap();
        assert_eq!(carry_over(&layer, &real, owner).unwrap(), 1);
        assert_eq!(fs::read(root.join("real").join(place(&good))).unwrap(), b"good");
        assert!(!root.join("real").join(place(&forged)).exists() && !root.join("real").join(place(&linked)).exists());
        assert_eq!(fs::read_dir(root.join("real/lfs/tmp")).unwrap().count(), 0);
        assert_eq!(carry_over(&layer, &real, owner).unwrap(), 0);
        // A link in the repository itself leads nowhere.
        fs::remove_dir_all(root.join("real/lfs")).unwrap();
        fs::create_dir(root.join("elsewhere")).unwrap();
        symlink(root.join("elsewhere"), root.join("real/lfs")).unwrap();
        assert!(carry_over(&layer, &real, owner).is_err());
        assert_eq!(fs::read_dir(root.join("elsewhere")).unwrap().count(), 0);
    }
}
