//! The release: static programs for every architecture, and the packages that hold them.
//!
//! `cargo xtask dist` writes everything below `target/packages`. Two clones of one commit give the same bytes, wherever they lie: paths are
//! remapped, times are those of the commit, archives are sorted. A step that fails fails the command.

mod package;
mod program;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::target;
pub(crate) use program::{Arch, Toolchain};

/// What `cargo xtask dist` was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Architectures to build; all of them if empty.
    architectures: Vec<Arch>,
    /// Build the programs only, without packages.
    programs_only: bool,
    /// The address that `install.sh` downloads from.
    url: Option<String>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--programs-only" => options.programs_only = true,
                "--url" => options.url = Some((*words.next().context("`--url` needs an address")?).to_owned()),
                name => options.architectures.push(Arch::parse(name)?),
            }
        }
        Ok(options)
    }
}

/// Where a release is put together, and what it is called.
struct Release {
    /// Everything that is uploaded.
    directory: PathBuf,
    /// Where packages are put together.
    stage: PathBuf,
    version: String,
    /// The time of the commit, for every file in an archive.
    epoch: String,
}

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let release = Release {
        directory: target().join("packages"),
        stage: target().join("dist-stage"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: commit_time()?,
    };
    std::fs::create_dir_all(&release.directory)?;
    let all = [Arch::X86_64, Arch::Aarch64];
    let architectures = if options.architectures.is_empty() { &all[..] } else { &options.architectures };
    let toolchain = Toolchain::install()?;
    let mut files = Vec::new();
    for arch in architectures {
        files.push(toolchain.build(*arch, &release)?);
    }
    if !options.programs_only {
        let native = architectures.iter().zip(&files).find(|(arch, _)| arch.name() == std::env::consts::ARCH);
        let completions = package::Completions::print(native.map(|(_, program)| program.as_path()))?;
        for (arch, program) in architectures.iter().zip(files.clone()) {
            let contents = package::Contents { arch: *arch, program: &program, completions: &completions };
            files.push(package::tarball(&contents, &release)?);
            files.push(package::deb(&contents, &release)?);
        }
        files.push(sbom::write(&release)?);
        files.push(package::container_file(&release)?);
        files.push(package::installer(options.url.as_deref(), &release)?);
    }
    files.push(checksums(&files, &release.directory)?);
    for file in &files {
        let size = std::fs::metadata(file)?.len();
        eprintln!("{:>12}  {}", size, file.display());
    }
    Ok(())
}

/// The time of the commit that is built; a tree without git says it in `SOURCE_DATE_EPOCH`.
pub(crate) fn commit_time() -> anyhow::Result<String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let epoch = output(Command::new("git").args(["log", "-1", "--format=%ct"]))
        .context("cannot read the time of the commit: build from a git checkout, or set SOURCE_DATE_EPOCH")?;
    Ok(epoch.trim().to_owned())
}

/// `SHA256SUMS` of all files, in the format that `sha256sum --check` reads.
fn checksums(files: &[PathBuf], directory: &Path) -> anyhow::Result<PathBuf> {
    let mut names = files.iter().map(|file| file_name(file)).collect::<anyhow::Result<Vec<_>>>()?;
    names.sort();
    let sums = output(Command::new("sha256sum").args(&names).current_dir(directory))?;
    let path = directory.join("SHA256SUMS");
    std::fs::write(&path, sums)?;
    Ok(path)
}

fn file_name(path: &Path) -> anyhow::Result<String> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { bail!("{} has no name", path.display()) };
    Ok(name.to_owned())
}

/// What a command prints; it must succeed.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} printed something that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_architectures_and_the_address() {
        let options = Options::parse(&["aarch64", "--programs-only", "--url", "https://example.org/v1"]);
        let expected = Options { architectures: vec![Arch::Aarch64], programs_only: true, url: Some("https://example.org/v1".into()) };
        assert_eq!(options.ok(), Some(expected));
    }

    #[test]
    fn an_unknown_architecture_is_refused_with_the_known_ones() {
        let error = Options::parse(&["sparc"]).map_err(|error| error.to_string());
        assert_eq!(error, Err("`sparc` is not an architecture that is built: x86_64, aarch64".into()));
    }
}
