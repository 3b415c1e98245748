//! The key that the programs of one store share, and by which they claim each other's running commands.
//!
//! The secret of a process is a keyed hash of its name. So no secret has to be written down: journals, forks and exports hold none.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use outpost_wire::SharedError;
use outpost_wire::exec::adoption::AdoptionSecret;
use sha2::{Digest, Sha256};

/// The file of a home that holds its key.
const FILE: &str = "adoption.key";

/// Kept in the database of a shared store, or in the home.
#[derive(Clone, PartialEq, Eq)]
pub struct AdoptionKey([u8; 32]);

impl fmt::Debug for AdoptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdoptionKey({})", self.id())
    }
}

impl AdoptionKey {
    pub fn generate() -> Result<Self, SharedError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| SharedError::worded(format!("there are no random numbers: {error}"), error))?;
        Ok(Self(bytes))
    }

    /// As it was stored.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
        let bytes: Vec<u8> = (0..32).map_while(byte).collect();
        (text.len() == 64).then(|| bytes.try_into().ok().map(Self)).flatten()
    }

    /// To be stored.
    pub(crate) fn text(&self) -> String {
        hex(&self.0)
    }

    /// Tells keys apart and gives none away; journals hold it beside the names of processes.
    pub fn id(&self) -> String {
        let digest = Sha256::new().chain_update(b"outpost adoption key").chain_update(self.0).finalize();
        hex(&digest[..6])
    }

    /// What a program shows to have a process of this name.
    pub fn secret(&self, process: &str) -> AdoptionSecret {
        // A shorter key is filled up with zeros to the length of a block.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(process.as_bytes());
        AdoptionSecret(hex(&mac.finalize().into_bytes()))
    }

    /// The key of a home, made if there is none.
    pub(crate) fn of_home(home: &Path) -> Result<Self, SharedError> {
        let path = home.join(FILE);
        let failed = |error: io::Error| SharedError::worded(format!("{}: {error}", path.display()), error);
        let read = || match std::fs::read_to_string(&path) {
            Ok(text) => {
                let none = || format!("{} holds no key; remove it, and a new one is made", path.display()).into();
                Self::parse(&text).map(Some).ok_or_else(none)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        };
        if let Some(key) = read()? {
            return Ok(key);
        }
        // Another program sees a whole key or none, also if this one is killed meanwhile.
        let key = Self::generate()?;
        let new = home.join(format!("{FILE}.{}", key.id()));
        let written = File::options().write(true).create_new(true).mode(0o600).open(&new);
        let written = written.and_then(|mut file| writeln!(file, "{}", key.text()).and_then(|()| file.sync_data()));
        let named = written.and_then(|()| std::fs::hard_link(&new, &path));
        // It has its name, or is of no use.
        let _ = std::fs::remove_file(&new);
        match named {
            Ok(()) => Ok(key),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read()?.ok_or_else(|| failed(error)),
            Err(error) => Err(failed(error)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_home_has_one_key_that_only_its_user_reads() {
        let home = tempfile::tempdir().unwrap();
        let keys: Vec<AdoptionKey> = std::thread::scope(|scope| {
            let of_home = || scope.spawn(|| AdoptionKey::of_home(home.path()).unwrap());
            [of_home(), of_home(), of_home()].into_iter().map(|key| key.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        let mode = home.path().join(FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(files, [FILE], "nothing else is left there");
        for damaged in ["nonsense", ""] {
            std::fs::write(home.path().join(FILE), damaged).unwrap();
            assert!(AdoptionKey::of_home(home.path()).unwrap_err().to_string().contains("adoption.key holds no key; remove it"));
        }
    }

    #[test]
    fn a_secret_depends_on_the_key_and_the_name() {
        let (one, two) = (AdoptionKey([1; 32]), AdoptionKey([2; 32]));
        assert_eq!(one.secret("a/1/c"), AdoptionKey::parse(&one.text()).unwrap().secret("a/1/c"));
        assert_ne!(one.secret("a/1/c"), one.secret("a/1/d"));
        assert_ne!(one.secret("a/1/c"), two.secret("a/1/c"));
        assert_ne!(one.id(), two.id());
        assert!(!format!("{one:?}").contains("0101"));
        assert_eq!(AdoptionKey::parse("01"), None);
    }
}
