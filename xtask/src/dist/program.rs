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
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    pub(crate) fn parse(name: &str) -> anyhow::Result<Self> {
        match name {
            "x86_64" => Ok(Self::X86_64),
            "aarch64" => Ok(Self::Aarch64),
            _ => bail!("`{name}` is not an architecture that is built: x86_64, aarch64"),
        }
    }

    /// As `uname -m` prints it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian calls it.
    pub(crate) fn debian(self) -> &'static str {
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
pub(crate) struct Toolchain {
    directory: PathBuf,
}

impl Toolchain {
    pub(crate) fn install() -> anyhow::Result<Self> {
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
    pub(crate) fn command(&self, verb: &str, arch: Arch) -> anyhow::Result<Command> {
        let triple = arch.triple();
        add_target(&triple)?;
        let mut command = Command::new(self.directory.join("bin/cargo-zigbuild"));
        command.args([verb, "--target", &triple]).env("PATH", self.path()?).env("CARGO", cargo().get_program());
        Ok(command)
    }

    /// Builds the program of one architecture into the release.
    pub(super) fn build(&self, arch: Arch, release: &Release) -> anyhow::Result<PathBuf> {
        let built = self.program(arch, &release.epoch)?;
        let program = release.directory.join(format!("outpost-{}-static", arch.name()));
        std::fs::copy(&built, &program).with_context(|| format!("cannot write {}", program.display()))?;
        Ok(program)
    }

    /// Builds the program of one architecture as it is released, and returns where cargo left it.
    pub(crate) fn program(&self, arch: Arch, epoch: &str) -> anyhow::Result<PathBuf> {
        let triple = arch.triple();
        let places = Place::all()?;
        // Position-independent on every architecture: rustc asks for it on some only, and zig wants to be asked by this word.
        let mut flags = vec!["-Clink-arg=-pie".to_owned()];
        flags.extend(places.iter().map(|place| place.option("--remap-path-prefix=")));
        let c_flags: Vec<String> = places.iter().map(|place| place.option("-ffile-prefix-map=")).collect();
        let mut command = self.command("zigbuild", arch)?;
        command
            .args(["--locked", "--profile", "dist", "--package", "outpost"])
            .env("SOURCE_DATE_EPOCH", epoch)
            .env("CARGO_INCREMENTAL", "0")
            .env_remove("RUSTFLAGS")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env("CFLAGS", c_flags.join(" "));
        sh(&mut command)?;
        let built = target().join(&triple).join("dist/outpost");
        check(&built, arch, &places)?;
        Ok(built)
    }

    fn path(&self) -> anyhow::Result<OsString> {
        let own = self.directory.join("bin");
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&inherited)))?)
    }
}

/// A directory of this machine that compilers write into programs, and what stands in its place in a release.
struct Place {
    here: String,
    released: String,
    /// What follows it where it is written: a short path alone may be in a program by chance.
    followed_by: String,
}

impl Place {
    /// The last option that matches wins, so the longest path comes last.
    fn all() -> anyhow::Result<Vec<Self>> {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
        let compiler = output(Command::new("rustc").arg("-vV"))?;
        let commit = compiler.lines().find_map(|line| line.strip_prefix("commit-hash: ")).context("rustc does not name its commit")?;
        // Where the sources of the standard library are installed, rustc names them; where they are not, it names its commit.
        let library = Path::new(output(Command::new("rustc").args(["--print", "sysroot"]))?.trim()).join("lib/rustlib/src/rust");
        let places = [
            (cargo_home, "/cargo".to_owned(), "/registry/"),
            (library, format!("/rustc/{commit}"), "/library/"),
            (std::env::current_dir()?, "/outpost".to_owned(), "/crates/"),
            (target(), "/build".to_owned(), "/"),
        ];
        let read = |(here, released, followed_by): (PathBuf, String, &str)| {
            let here = here.to_str().with_context(|| format!("{} is not UTF-8", here.display()))?.to_owned();
            Ok(Self { here, released, followed_by: followed_by.to_owned() })
        };
        let mut places = places.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        places.sort_by_key(|place| place.here.len());
        Ok(places)
    }

    /// An option that replaces it in what a compiler writes.
    fn option(&self, name: &str) -> String {
        format!("{name}{}={}", self.here, self.released)
    }

    fn is_in(&self, program: &[u8]) -> bool {
        let trace = format!("{}{}", self.here, self.followed_by);
        self.here != self.released && memchr::memmem::find(program, trace.as_bytes()).is_some()
    }
}

fn add_target(triple: &str) -> anyhow::Result<()> {
    let directory = output(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    if std::fs::read_dir(directory.trim()).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(());
    }
    sh(Command::new("rustup").args(["target", "add", triple]))
        .with_context(|| format!("the standard library for {triple} is missing; install it with `rustup target add {triple}`"))
}

/// Refuses a program that is not static and position-independent, not for the architecture, or names places of this machine.
fn check(program: &Path, arch: Arch, places: &[Place]) -> anyhow::Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let header = ElfHeader::parse(&bytes).with_context(|| format!("{} is not a 64-bit ELF file", program.display()))?;
    ensure!(header.machine == arch.elf_machine(), "{} is not for {}", program.display(), arch.name());
    ensure!(!header.has_interpreter, "{} is not static: it names an interpreter", program.display());
    ensure!(header.is_position_independent, "{} is not position-independent", program.display());
    for place in places {
        ensure!(!place.is_in(&bytes), "{} names {}, which is a place of this machine only", program.display(), place.here);
    }
    Ok(())
}

struct ElfHeader {
    machine: u16,
    is_position_independent: bool,
    has_interpreter: bool,
}

impl ElfHeader {
    fn parse(bytes: &[u8]) -> Option<Self> {
        const INTERPRETER: u32 = 3;
        const SHARED: u16 = 3;
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
        Some(Self { machine: half(18)?, is_position_independent: half(16)? == SHARED, has_interpreter })
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
    fn a_program_at_a_fixed_address_is_told_from_one_that_can_be_anywhere() {
        let mut bytes = elf(62, 1);
        bytes[16] = 2;
        assert_eq!(ElfHeader::parse(&bytes).map(|header| header.is_position_independent), Some(false));
        bytes[16] = 3;
        assert_eq!(ElfHeader::parse(&bytes).map(|header| header.is_position_independent), Some(true));
    }

    #[test]
    fn the_longest_path_is_remapped_last() -> anyhow::Result<()> {
        let places = Place::all()?;
        assert!(places.is_sorted_by_key(|place| place.here.len()));
        assert_eq!(places.len(), 4);
        Ok(())
    }

    #[test]
    fn a_path_of_this_machine_in_a_program_is_found() {
        let place = |here: &str| Place { here: here.into(), released: "/cargo".into(), followed_by: "/registry/".into() };
        let program = b"\0/home/me/.cargo/registry/src/x.rs\0/cargo/registry/src/x.rs\0";
        assert!(place("/home/me/.cargo").is_in(program));
        assert!(!place("/home/you/.cargo").is_in(program));
        // Built where a release says it was built: nothing to hide.
        assert!(!place("/cargo").is_in(program));
    }
}
