#!/bin/sh
# Installs outpost from a release: downloads the tarball for this machine, checks it against SHA256SUMS, copies it below a prefix.
#
#   sh install.sh                        into /usr/local as root, otherwise into ~/.local
#   sh install.sh --prefix DIR           into DIR
#   sh install.sh --carry aarch64        only keeps the static program for machines of that architecture,
#                                        which `outpost env add --ssh` then copies there
#   sh install.sh --uninstall            removes what the first form installed; threads and settings in ~/.outpost stay
#
# OUTPOST_RELEASES   address of the release (https://… or file://…); a released install.sh knows its own
# OUTPOST_VERSION    version to install; a released install.sh knows its own

set -eu

version=${OUTPOST_VERSION:-}
releases=${OUTPOST_RELEASES:-}
prefix=
carry=
uninstall=

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --prefix) [ $# -ge 2 ] || fail "--prefix needs a directory"; prefix=$2; shift ;;
    --carry) [ $# -ge 2 ] || fail "--carry needs an architecture: x86_64 or aarch64"; carry=$2; shift ;;
    --uninstall) uninstall=yes ;;
    *) fail "unknown option $1; see the head of this file" ;;
    esac
    shift
done

if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
fi

if [ -n "$uninstall" ]; then
    rm -f "$prefix/bin/outpost" "$prefix/lib/systemd/user/outpost-executor.service" "$prefix/lib/systemd/user/outpost-serve.service" \
        "$prefix/share/bash-completion/completions/outpost" "$prefix/share/zsh/site-functions/_outpost" \
        "$prefix/share/fish/vendor_completions.d/outpost.fish"
    rm -rf "$prefix/share/doc/outpost"
    echo "removed outpost from $prefix; threads and settings are still in ${OUTPOST_HOME:-$HOME/.outpost}"
    exit 0
fi

[ -n "$releases" ] || fail "set OUTPOST_RELEASES to the address of a release"
[ -n "$version" ] || fail "set OUTPOST_VERSION to the version to install"
[ "$(uname -s)" = Linux ] || fail "outpost runs on Linux; on other systems use the page or a client of a server on Linux (see README)"

arch=${carry:-$(uname -m)}
case $arch in
x86_64 | amd64) arch=x86_64 ;;
aarch64 | arm64) arch=aarch64 ;;
*) fail "there is no program for $arch: x86_64 and aarch64 are built" ;;
esac

if [ -n "$carry" ]; then file=outpost-$arch-static; else file=outpost-$version-$arch.tar.gz; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

fetch() {
    if command -v curl >/dev/null 2>&1; then
        curl -fsSL --output "$work/$1" "$releases/$1" || fail "cannot download $releases/$1"
    elif command -v wget >/dev/null 2>&1; then
        wget -q -O "$work/$1" "$releases/$1" || fail "cannot download $releases/$1"
    else
        fail "neither curl nor wget is installed"
    fi
}

digest() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1"
    elif command -v shasum >/dev/null 2>&1; then
        shasum -a 256 "$1"
    elif command -v openssl >/dev/null 2>&1; then
        openssl dgst -r -sha256 "$1"
    else
        fail "none of sha256sum, shasum and openssl is installed, so the download cannot be checked"
    fi
}

fetch SHA256SUMS
fetch "$file"
wanted=$(while read -r sum name; do
    if [ "${name#\*}" = "$file" ]; then echo "$sum"; fi
done <"$work/SHA256SUMS")
[ -n "$wanted" ] || fail "SHA256SUMS does not name $file"
got=$(digest "$work/$file")
got=${got%% *}
[ "$got" = "$wanted" ] || fail "$file has the digest $got, and SHA256SUMS says $wanted: nothing was installed"

if [ -n "$carry" ]; then
    programs=${OUTPOST_HOME:-$HOME/.outpost}/programs
    mkdir -p "$programs"
    chmod 755 "$work/$file"
    mv -f "$work/$file" "$programs/$file"
    echo "$programs/$file"
    exit 0
fi

tar -xzf "$work/$file" -C "$work"
tree=$work/outpost-$version-$arch
"$tree/bin/outpost" --version >/dev/null || fail "the program does not run on this machine"
mkdir -p "$prefix/bin"
for part in lib share; do
    mkdir -p "$prefix/$part"
    cp -R "$tree/$part/." "$prefix/$part/"
done
# By rename, so that a running program is not disturbed.
cp "$tree/bin/outpost" "$prefix/bin/.outpost.$$"
mv -f "$prefix/bin/.outpost.$$" "$prefix/bin/outpost"
echo "$prefix/bin/outpost"
case ":$PATH:" in
*":$prefix/bin:"*) ;;
*) echo "$prefix/bin is not on your PATH: add it in your shell's start-up file" >&2 ;;
esac
