//! Static programs, linked against musl by zig, which brings a C compiler and a libc for every architecture.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::{Release, output};
use crate::{cargo, install, sh, target};

/// Pinned: another compiler gives other bytes.
const TOOLS: [&str; 2] = ["ziglang==0.17.0", "cargo-zigbuild==0.24.0"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        match name {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            _ => bail!("`{name}` is not an architecture that is built: x86_64, aarch64"),
        }
    }

    /// As `uname -m` prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian calls it.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    fn triple(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// The number of the architecture in the header of an ELF file.
    fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }
}

/// The tools that build programs for other machines, below the build directory.
pub struct Toolchain {
    directory: PathBuf,
}

impl Toolchain {
    pub fn install() -> anyhow::Result<Self> {
        let directory = target().join("dist-tools");
        let stamp = directory.join(".installed");
        let wanted = TOOLS.join(" ");
        if !std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
            install::python_environment(&directory)?;
            let pip = directory.join("bin/pip");
            sh(Command::new(pip).args(["install", "--quiet", "--disable-pip-version-check"]).args(TOOLS))?;
            std::fs::write(stamp, wanted)?;
        }
        Ok(Self { directory })
    }

    /// A verb of cargo for one architecture, with zig as the linker and the C compiler.
    pub fn command(&self, verb: &str, arch: Arch) -> anyhow::Result<Command> {
        let triple = arch.triple();
        add_target(&triple)?;
        let mut command = Command::new(self.directory.join("bin/cargo-zigbuild"));
        command.args([verb, "--target", &triple]).env("PATH", self.path()?).env("CARGO", cargo().get_program());
        Ok(command)
    }

    /// Builds the program of one architecture into the release.
    pub(super) fn build(&self, arch: Arch, release: &Release) -> anyhow::Result<PathBuf> {
        let triple = arch.triple();
        let mut command = self.command("zigbuild", arch)?;
        command
            .args(["--locked", "--profile", "dist", "--package", "outpost"])
            .env("SOURCE_DATE_EPOCH", &release.epoch)
            .env("CARGO_INCREMENTAL", "0")
            .env_remove("RUSTFLAGS")
            .env("CARGO_ENCODED_RUSTFLAGS", remapped("--remap-path-prefix=", "\x1f")?)
            .env("CFLAGS", remapped("-ffile-prefix-map=", " ")?);
        sh(&mut command)?;
        let built = target().join(&triple).join("dist/outpost");
        check(&built, arch)?;
        let program = release.directory.join(format!("outpost-{}-static", arch.name()));
        std::fs::copy(&built, &program).with_context(|| format!("cannot write {}", program.display()))?;
        Ok(program)
    }

    fn path(&self) -> anyhow::Result<OsString> {
        let own = self.directory.join("bin");
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&inherited)))?)
    }
}

/// Options that replace the paths of this machine in what a compiler writes. The last one that matches wins, so the longest comes last.
fn remapped(option: &str, separator: &str) -> anyhow::Result<String> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let mut places = [(cargo_home, "/cargo"), (std::env::current_dir()?, "/outpost"), (target(), "/build")];
    places.sort_by_key(|(place, _)| place.as_os_str().len());
    let options = places.iter().map(|(place, name)| {
        let place = place.to_str().with_context(|| format!("{} is not UTF-8", place.display()))?;
        Ok(format!("{option}{place}={name}"))
    });
    Ok(options.collect::<anyhow::Result<Vec<_>>>()?.join(separator))
}

fn add_target(triple: &str) -> anyhow::Result<()> {
    let directory = output(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    if std::fs::read_dir(directory.trim()).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    sh(Command::new("rustup").args(["target", "add", triple]))
        .with_context(|| format!("the standard library for {triple} is missing; install it with `rustup target add {triple}`"))
}

/// Refuses a program that is not static, or not for the architecture.
fn check(program: &Path, arch: Arch) -> anyhow::Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let header = ElfHeader::parse(&bytes).with_context(|| format!("{} is not a 64-bit ELF file", program.display()))?;
    ensure!(header.machine == arch.elf_machine(), "{} is not for {}", program.display(), arch.name());
    ensure!(!header.has_interpreter, "{} is not static: it names an interpreter", program.display());
    Ok(())
}

struct ElfHeader {
    machine: u16,
    has_interpreter: bool,
}

impl ElfHeader {
    fn parse(bytes: &[u8]) -> Option<Self> {
        const INTERPRETER: u32 = 3;
        if bytes.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let start = usize::try_from(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()?;
        let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
        let mut has_interpreter = false;
        for index in 0..count {
            let at = start.checked_add(index.checked_mul(size)?)?;
            let kind = u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?);
            has_interpreter |= kind == INTERPRETER;
        }
        Some(Self { machine: half(18)?, has_interpreter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with one program header of the given kind.
    fn elf(machine: u16, kind: u32) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64 + 56, 0);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        let (load, interpreter) = (1, 3);
        let dynamic = ElfHeader::parse(&elf(62, interpreter)).map(|header| (header.machine, header.has_interpreter));
        assert_eq!(dynamic, Some((62, true)));
        let fixed = ElfHeader::parse(&elf(183, load)).map(|header| (header.machine, header.has_interpreter));
        assert_eq!(fixed, Some((183, false)));
    }

    #[test]
    fn a_file_that_is_cut_short_is_no_program() {
        let whole = elf(62, 1);
        assert!(ElfHeader::parse(&whole[..66]).is_none());
        assert!(ElfHeader::parse(b"#!/bin/sh\n").is_none());
    }

    #[test]
    fn the_longest_path_is_remapped_last() {
        let options = remapped("--map=", "\n").unwrap_or_default();
        let lengths: Vec<usize> = options.lines().filter_map(|line| line.split('=').nth(1)).map(str::len).collect();
        assert!(lengths.is_sorted(), "{options}");
    }
}
