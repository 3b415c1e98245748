//! What a program is shipped in: a tarball, a Debian package, a container file and an installer.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::program::Arch;
use super::{Release, output};
use crate::{cargo, install, sh};

/// Where the units in `contrib` expect the program; packages put it elsewhere.
const UNIT_PROGRAM: &str = "%h/.cargo/bin/outpost";
const UNITS: [&str; 2] = ["outpost-executor.service", "outpost-serve.service"];
/// Shells, and where each looks for completions below a prefix.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/outpost"),
    ("zsh", "share/zsh/site-functions/_outpost"),
    ("fish", "share/fish/vendor_completions.d/outpost.fish"),
];

/// What a package holds besides documents and units.
pub(super) struct Contents<'a> {
    pub arch: Arch,
    pub program: &'a Path,
    pub completions: &'a Completions,
}

/// Completions by their place below a prefix. They are the same for every architecture.
pub(super) struct Completions(Vec<(&'static str, String)>);

impl Completions {
    /// Asks the program for them: the one that was just built, if it runs here.
    pub(super) fn print(native: Option<&Path>) -> anyhow::Result<Self> {
        let program = || match native {
            Some(program) => Command::new(program),
            None => {
                let mut cargo = cargo();
                cargo.args(["run", "--quiet", "--locked", "--package", "outpost", "--"]);
                cargo
            }
        };
        let print = |(shell, place): (&str, &'static str)| Ok((place, output(program().args(["completions", shell]))?));
        Ok(Self(SHELLS.into_iter().map(print).collect::<anyhow::Result<_>>()?))
    }
}

/// `outpost-VERSION-ARCH.tar.gz`: one directory that can be copied over a prefix such as `/usr/local`.
pub(super) fn tarball(contents: &Contents, release: &Release) -> anyhow::Result<PathBuf> {
    let arch = contents.arch;
    let name = format!("outpost-{}-{}", release.version, arch.name());
    let stage = Stage::new(&release.stage, &name)?;
    stage.fill(&stage.root.join(&name), contents, "/usr/local/bin/outpost")?;
    let path = release.directory.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu", "--mode=u+rw,go=rX"])
        .arg(format!("--mtime=@{}", release.epoch))
        .arg("--create")
        .arg("--directory")
        .arg(&stage.root)
        .arg(&name)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run tar")?;
    // Without the time and the name of the file, which would differ from one run to the next.
    let gzip = Command::new("gzip")
        .args(["-9", "--no-name"])
        .stdin(tar.stdout.take().context("tar has no output")?)
        .stdout(fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?)
        .status()
        .context("cannot run gzip")?;
    ensure!(tar.wait()?.success() && gzip.success(), "cannot write {}", path.display());
    Ok(path)
}

/// A package for Debian and its relatives.
pub(super) fn deb(contents: &Contents, release: &Release) -> anyhow::Result<PathBuf> {
    let arch = contents.arch;
    install::need("dpkg-deb", "dpkg")?;
    let stage = Stage::new(&release.stage, &format!("deb-{}", arch.name()))?;
    stage.fill(&stage.root.join("usr"), contents, "/usr/bin/outpost")?;
    let kilobytes = fs::metadata(contents.program)?.len().div_ceil(1024);
    let control = format!(
        "Package: outpost\nVersion: {}\nArchitecture: {}\nMaintainer: Outpost maintainers <maintainers@outpost.invalid>\n\
         Installed-Size: {kilobytes}\nSection: devel\nPriority: optional\nRecommends: ca-certificates, openssh-client\n\
         Description: runs a coding agent here and its commands on other machines\n \
         Threads survive crashes; commands survive lost connections and run in a sandbox.\n",
        release.version,
        arch.debian()
    );
    write(&stage.root.join("DEBIAN/control"), &control)?;
    let path = release.directory.join(format!("outpost_{}_{}.deb", release.version, arch.debian()));
    sh(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&stage.root)
        .arg(&path)
        .env("SOURCE_DATE_EPOCH", &release.epoch))?;
    Ok(path)
}

/// A file that makes an image from the tarball beside it, without a network.
pub(super) fn container_file(release: &Release) -> anyhow::Result<PathBuf> {
    let path = release.directory.join("Containerfile");
    let text = fs::read_to_string(sources().join("contrib/Containerfile"))?;
    write(&path, &text.replace("ARG VERSION=0.0.0", &format!("ARG VERSION={}", release.version)))?;
    Ok(path)
}

/// The installer, with the address of this release if it is known.
pub(super) fn installer(url: Option<&str>, release: &Release) -> anyhow::Result<PathBuf> {
    let path = release.directory.join("install.sh");
    let text = fs::read_to_string(sources().join("contrib/install.sh"))?;
    let stamped = text
        .replace("version=${OUTPOST_VERSION:-}", &format!("version=${{OUTPOST_VERSION:-{}}}", release.version))
        .replace("releases=${OUTPOST_RELEASES:-}", &format!("releases=${{OUTPOST_RELEASES:-{}}}", url.unwrap_or_default()));
    ensure!(stamped.contains(&format!(":-{}}}", release.version)), "contrib/install.sh has no place for the version");
    write(&path, &stamped)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// A directory in which the files of one package are gathered.
struct Stage {
    root: PathBuf,
}

impl Stage {
    fn new(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let root = directory.join(name);
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        fs::create_dir_all(&root)?;
        Ok(Self { root })
    }

    /// Lays out a prefix: program, units, completions, documents.
    fn fill(&self, prefix: &Path, contents: &Contents, installed: &str) -> anyhow::Result<()> {
        let place = prefix.join("bin/outpost");
        create_parent(&place)?;
        fs::copy(contents.program, &place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        for unit in UNITS {
            let text = fs::read_to_string(sources().join("contrib").join(unit))?;
            ensure!(text.contains(UNIT_PROGRAM), "contrib/{unit} does not start {UNIT_PROGRAM}");
            write(&prefix.join("lib/systemd/user").join(unit), &text.replace(UNIT_PROGRAM, installed))?;
        }
        for (place, text) in &contents.completions.0 {
            write(&prefix.join(place), text)?;
        }
        let documents = prefix.join("share/doc/outpost");
        for file in ["README.md", "CHANGELOG.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
            write(&documents.join(file), &fs::read_to_string(sources().join(file))?)?;
        }
        write(&documents.join("copyright"), &fs::read_to_string(sources().join("LICENSE"))?)?;
        copy_tree(&sources().join("docs"), &documents.join("docs"))?;
        // dpkg-deb keeps the modes it finds, and this machine's umask is not part of a release.
        normalise_modes(&self.root)
    }
}

/// The root of the repository.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    create_parent(path)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn create_parent(path: &Path) -> anyhow::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), &place)?;
        }
    }
    Ok(())
}

fn normalise_modes(path: &Path) -> anyhow::Result<()> {
    let metadata = fs::metadata(path)?;
    let executable = metadata.is_dir() || metadata.permissions().mode() & 0o100 != 0;
    fs::set_permissions(path, fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            normalise_modes(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(directory: &Path) -> Release {
        let made = Release {
            directory: directory.join("release"),
            stage: directory.join("stage"),
            version: "1.2.3".into(),
            epoch: "1700000000".into(),
        };
        fs::create_dir_all(&made.directory).ok();
        made
    }

    /// A package of a program that is a script, made in a directory of its own.
    fn packages(directory: &Path) -> anyhow::Result<[PathBuf; 2]> {
        let program = directory.join("program");
        write(&program, "#!/bin/sh\necho outpost 1.2.3\n")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700))?;
        let completions = Completions(vec![("share/zsh/site-functions/_outpost", "#compdef outpost\n".into())]);
        let contents = Contents { arch: Arch::Aarch64, program: &program, completions: &completions };
        let release = release(directory);
        Ok([tarball(&contents, &release)?, deb(&contents, &release)?])
    }

    #[test]
    fn packages_hold_everything_and_are_the_same_bytes_every_time() -> anyhow::Result<()> {
        let (first, second) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let (one, other) = (packages(first.path())?, packages(second.path())?);
        for (left, right) in one.iter().zip(&other) {
            assert!(fs::read(left)? == fs::read(right)?, "{} differs", left.display());
        }
        let listed = output(Command::new("tar").arg("-tvzf").arg(&one[0]))?;
        let wanted = [
            "bin/outpost",
            "lib/systemd/user/outpost-executor.service",
            "lib/systemd/user/outpost-serve.service",
            "share/zsh/site-functions/_outpost",
            "share/doc/outpost/copyright",
            "share/doc/outpost/docs/ssh.md",
        ];
        for name in wanted {
            let line = listed.lines().find(|line| line.ends_with(&format!("outpost-1.2.3-aarch64/{name}")));
            let line = line.with_context(|| format!("{name} is missing:\n{listed}"))?;
            let mode = if name == "bin/outpost" { "-rwxr-xr-x 0/0" } else { "-rw-r--r-- 0/0" };
            assert!(line.starts_with(mode), "{line}");
        }
        let fields = output(Command::new("dpkg-deb").arg("--field").arg(&one[1]))?;
        assert!(fields.contains("Version: 1.2.3\n") && fields.contains("Architecture: arm64\n"), "{fields}");
        Ok(())
    }

    #[test]
    fn the_installer_knows_its_release() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let installer = installer(Some("https://example.org/v1.2.3"), &release(directory.path()))?;
        let text = fs::read_to_string(installer)?;
        assert!(text.contains("version=${OUTPOST_VERSION:-1.2.3}\nreleases=${OUTPOST_RELEASES:-https://example.org/v1.2.3}\n"), "{text}");
        Ok(())
    }

    #[test]
    fn the_container_file_names_the_tarball() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let text = fs::read_to_string(container_file(&release(directory.path()))?)?;
        assert!(text.contains("ARG VERSION=1.2.3\n"), "{text}");
        Ok(())
    }
}
