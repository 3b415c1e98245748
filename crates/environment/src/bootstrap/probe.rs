//! What a far machine is, and whether a program fits it.

use std::fmt;

use thiserror::Error;

use super::elf::{Binary, Linkage, Version};

/// What was found there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Far {
    pub os: String,
    /// As `uname -m` says.
    pub arch: String,
    pub libc: Libc,
    pub home: String,
    /// The login shell.
    pub shell: String,
    /// The file name of the program in the far home that is used now.
    pub current: Option<String>,
    /// What the program that would be used now says of itself.
    pub version: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Libc {
    Glibc(Version),
    Musl,
    #[default]
    Unknown,
}

impl fmt::Display for Libc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Glibc(version) => write!(f, "glibc {version}"),
            Self::Musl => f.write_str("musl"),
            Self::Unknown => f.write_str("an unknown C library"),
        }
    }
}

/// Why a program cannot run there.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum Misfit {
    #[error("it is for {is}, and the machine is {wanted}")]
    Machine { is: String, wanted: String },
    #[error("it needs glibc {needs}, and there is glibc {has}")]
    OldGlibc { needs: Version, has: Version },
    #[error("it needs glibc {needs}, and there is another C library")]
    NoGlibc { needs: Version },
}

/// Without single quotes, backslashes, exclamation marks and newlines, like all our scripts.
pub(super) const SCRIPT: &str = concat!(
    "echo \"os=$(uname -s)\"; echo \"arch=$(uname -m)\"; echo \"home=$HOME\"; echo \"shell=$SHELL\"; ",
    "echo \"libc=$(getconf GNU_LIBC_VERSION 2> /dev/null || ls /lib/ld-musl-* 2> /dev/null)\"; ",
    "echo \"current=$(readlink \"$HOME/.outpost/bin/outpost\" 2> /dev/null)\"; ",
    "p=$HOME/.outpost/bin/outpost; [ -x \"$p\" ] || p=outpost; echo \"version=$(\"$p\" --version 2> /dev/null < /dev/null)\""
);

impl Far {
    /// Unknown lines are skipped: a newer script may say more.
    pub fn parse(answer: &str) -> Self {
        let mut far = Self::default();
        for line in answer.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim();
            match key {
                "os" => far.os = value.into(),
                "arch" => far.arch = value.into(),
                "home" => far.home = value.into(),
                "shell" => far.shell = value.into(),
                "libc" => far.libc = Libc::parse(value),
                "current" => far.current = (!value.is_empty()).then(|| value.into()),
                "version" => far.version = (!value.is_empty()).then(|| value.into()),
                _ => {}
            }
        }
        far
    }

    pub fn fits(&self, binary: &Binary) -> Result<(), Misfit> {
        let wanted = match self.arch.as_str() {
            "amd64" => "x86_64",
            "arm64" => "aarch64",
            arch => arch,
        };
        if binary.machine != wanted {
            return Err(Misfit::Machine { is: binary.machine.to_owned(), wanted: self.arch.clone() });
        }
        match (binary.linkage, self.libc) {
            (Linkage::Static, _) => Ok(()),
            (Linkage::Glibc(needs), Libc::Glibc(has)) if needs > has => Err(Misfit::OldGlibc { needs, has }),
            (Linkage::Glibc(needs), Libc::Musl) => Err(Misfit::NoGlibc { needs }),
            // It is run once before it is used; that tells.
            (Linkage::Glibc(_), _) => Ok(()),
        }
    }
}

impl Libc {
    fn parse(text: &str) -> Self {
        if let Some(version) = text.strip_prefix("glibc ").and_then(Version::parse) {
            return Self::Glibc(version);
        }
        if text.contains("musl") { Self::Musl } else { Self::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(machine: &'static str, linkage: Linkage) -> Binary {
        Binary { bytes: Default::default(), machine, linkage }
    }

    #[test]
    fn an_answer_is_taken_apart() {
        let far = Far::parse(
            "os=Linux\narch=x86_64\nhome=/home/a b\nshell=/bin/dash\nlibc=glibc 2.36\ncurrent=outpost-1-ab\nversion=\nnew=x\nnoise",
        );
        assert_eq!((far.os.as_str(), far.home.as_str(), far.libc), ("Linux", "/home/a b", Libc::Glibc(Version(2, 36))));
        assert_eq!((far.current.as_deref(), far.version.as_deref()), (Some("outpost-1-ab"), None));
        assert_eq!(Far::parse("libc=/lib/ld-musl-x86_64.so.1").libc, Libc::Musl);
        assert_eq!(Far::parse("libc=").libc, Libc::Unknown);
    }

    #[test]
    fn programs_must_fit() {
        let far = |arch: &str, libc| Far { arch: arch.into(), libc, ..Far::default() };
        let (old, new) = (Version(2, 31), Version(2, 36));
        let dynamic = binary("x86_64", Linkage::Glibc(new));
        assert_eq!(far("x86_64", Libc::Glibc(new)).fits(&dynamic), Ok(()));
        assert_eq!(far("amd64", Libc::Unknown).fits(&dynamic), Ok(()));
        assert_eq!(far("x86_64", Libc::Glibc(old)).fits(&dynamic), Err(Misfit::OldGlibc { needs: new, has: old }));
        assert_eq!(far("x86_64", Libc::Musl).fits(&dynamic), Err(Misfit::NoGlibc { needs: new }));
        assert_eq!(far("x86_64", Libc::Musl).fits(&binary("x86_64", Linkage::Static)), Ok(()));
        assert!(matches!(far("aarch64", Libc::Musl).fits(&dynamic), Err(Misfit::Machine { .. })));
    }
}
