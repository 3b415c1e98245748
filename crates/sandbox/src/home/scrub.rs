//! Settings without their secrets: what looks like one is left out. Too much may go, too little must not.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file that is larger is no settings file.
const LARGEST: u64 = 1 << 20;
/// Parts of names of secrets, in small letters and without `-` and `_`.
const SECRETS: [&str; 15] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "authorization",
    "authident",
    "clientkeydata",
    "clientcertificatedata",
    "cookie",
    "httpheaders",
];
/// How tokens of well-known services begin, whatever they are called.
const BEGINNINGS: [&str; 17] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "npm_",
    "pypi-",
    "dckr_pat_",
    "hf_",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "ASIA",
    "eyJhbGci",
    "-----BEGIN",
];
/// Elements of XML that hold secrets.
const ELEMENTS: [&str; 6] = ["password", "passphrase", "privatekey", "apikeys", "packagesourcecredentials", "httpheaders"];

/// The text of a settings file without its secrets; nothing if it is not understood well enough to be shown.
pub fn without_secrets(path: &Path, text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let mut stand_in = StandIn { is_kube: path.ends_with(".kube/config"), put_at: None };
    let scrubbed = if name.ends_with(".json") || text.trim_start().starts_with('{') {
        let mut value: Value = serde_json::from_str(text).ok()?;
        clean_value(&mut value);
        serde_json::to_string_pretty(&value).ok()? + "\n"
    } else if name.ends_with(".xml") || text.trim_start().starts_with('<') {
        clean_lines(&clean_elements(text)?, &mut stand_in)
    } else {
        clean_lines(text, &mut stand_in)
    };
    Some(scrubbed.into_bytes())
}

/// Reads a file of a home and takes its secrets out.
pub fn read_without_secrets(home: &Path, path: &Path) -> Option<Vec<u8>> {
    let file = home.join(path);
    let is_small = fs::symlink_metadata(&file).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LARGEST);
    is_small.then(|| without_secrets(path, &fs::read(file).ok()?))?
}

/// What of the directory of ssh may be shown: settings, known hosts and public keys, by their names.
pub fn public_files(home: &Path, directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(home.join(directory)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(text) = name.to_str() else { continue };
        let is_public = ["config", "known_hosts", "known_hosts2", "allowed_signers"].contains(&text) || text.ends_with(".pub");
        let is_small = entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= LARGEST);
        if is_public
            && is_small
            && let Ok(content) = fs::read(entry.path())
            && !content.windows(11).any(|part| part == b"PRIVATE KEY")
        {
            found.push((directory.join(&name), content));
        }
    }
    found
}

fn is_secret(name: &str) -> bool {
    let plain: String = name.chars().filter(|letter| letter.is_ascii_alphanumeric()).collect::<String>().to_ascii_lowercase();
    plain.ends_with("auth") || SECRETS.iter().any(|part| plain.contains(part))
}

fn clean_value(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !is_secret(name));
            members.values_mut().for_each(clean_value);
        }
        Value::Array(items) => items.iter_mut().for_each(clean_value),
        Value::String(text) => {
            if has_token(text) {
                text.clear();
            } else {
                *text = without_users(text);
            }
        }
        _ => {}
    }
}

fn has_token(text: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| text.contains(beginning))
}

/// What stands in the place of a secret for clients that would ask for one where there is none: kubectl wants a user that it can name, and
/// otherwise reads a name and a password from its input, whatever it was asked to do.
struct StandIn {
    is_kube: bool,
    /// How far the line is indented that was put last. One for a user is enough.
    put_at: Option<usize>,
}

impl StandIn {
    /// The line in the place of one that is left out.
    fn line(&mut self, line: &str, indent: usize) -> Option<String> {
        let trimmed = line.trim();
        let stands = match trimmed.split_once(':').map(|(name, _)| name) {
            Some("user") if trimmed.contains('{') => "user: {token: hidden}",
            Some("password") => "password: hidden",
            Some(name) if is_secret(name) && self.put_at.is_none() => "token: hidden",
            _ => return None,
        };
        self.put_at = Some(indent);
        self.is_kube.then(|| format!("{}{stands}\n", &line[..indent]))
    }

    fn passes(&mut self, indent: usize) {
        self.put_at = self.put_at.filter(|put| indent >= *put);
    }
}

/// For settings with a name and a value in each line: INI, TOML, YAML, properties, and what is written like them.
fn clean_lines(text: &str, stand_in: &mut StandIn) -> String {
    let mut kept = String::new();
    // How far the line was indented that was left out: what is further in belongs to it.
    let mut left_out: Option<usize> = None;
    let mut quote: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let indent = line.len() - line.trim_start().len();
        if let Some(end) = quote {
            if trimmed.contains(end) {
                quote = None;
            }
            continue;
        }
        if let Some(outer) = left_out
            && !trimmed.is_empty()
            && indent > outer
        {
            continue;
        }
        left_out = None;
        stand_in.passes(indent);
        if holds_secret(trimmed) {
            kept.extend(stand_in.line(line, indent));
            left_out = Some(indent + if trimmed.starts_with("- ") { 1 } else { 0 });
            quote = ["\"\"\"", "'''"].into_iter().find(|mark| trimmed.matches(mark).count() == 1);
            // The next line goes on with this one.
            if trimmed.ends_with('\\') {
                left_out = Some(0);
            }
            continue;
        }
        kept.push_str(&without_users(line));
    }
    kept
}

/// Whether a line names a secret before any `=` or `:`, or holds what looks like one.
fn holds_secret(line: &str) -> bool {
    if line.starts_with('#') || line.starts_with(';') {
        return has_token(line);
    }
    let first_word = line.split_whitespace().next().unwrap_or_default();
    let named = line.char_indices().filter(|(_, letter)| matches!(letter, '=' | ':')).any(|(at, _)| is_secret(last_name(&line[..at])));
    named || is_secret(last_name(first_word.trim_matches(['"', '\'']))) && line.len() > first_word.len() || has_token(line)
}

/// The name that a text ends with.
fn last_name(text: &str) -> &str {
    let text = text.trim_end_matches([' ', '\t', '"', '\'']);
    let begins = text.rfind(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-' || letter == '_' || letter == '.'));
    &text[begins.map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8))..]
}

/// Takes users and passwords out of addresses, and the tokens that conda puts into their paths.
fn without_users(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        clean.push_str(before);
        let end = after.find(|letter: char| letter.is_whitespace() || "/?#\"'<>,;`)".contains(letter)).unwrap_or(after.len());
        let (authority, path) = after.split_at(end);
        // A password may hold what would end it: up to the last mark of the word.
        let word = after.find(|letter: char| letter.is_whitespace() || "\"'<>`".contains(letter)).unwrap_or(after.len());
        if let Some(mark) = authority.rfind('@') {
            clean.push_str(&authority[mark + 1..]);
            rest = path;
        } else if let Some(mark) =
            after[..word].rfind('@').filter(|_| authority.contains(':') && !authority.ends_with(|c: char| c.is_ascii_digit()))
        {
            rest = &after[mark + 1..];
        } else {
            clean.push_str(authority);
            rest = path;
        }
        if let Some(token) = rest.strip_prefix("/t/") {
            rest = &token[token.find('/').unwrap_or(token.len())..];
        }
    }
    clean.push_str(rest);
    clean
}

/// Takes elements out that hold secrets. Nothing if one of them does not end.
fn clean_elements(text: &str) -> Option<String> {
    let small = text.to_ascii_lowercase();
    let mut kept = String::new();
    let mut at = 0;
    while let Some(found) = small[at..].find('<').map(|found| at + found) {
        let name: String = small[found + 1..].chars().take_while(|letter| letter.is_ascii_alphanumeric()).collect();
        kept.push_str(&text[at..found]);
        if ELEMENTS.contains(&name.as_str()) {
            let opening = found + small[found..].find('>')?;
            if small[..opening].ends_with('/') {
                at = opening + 1;
                continue;
            }
            let closing = format!("</{name}");
            let closed = opening + small[opening..].find(&closing)?;
            at = closed + small[closed..].find('>')? + 1;
        } else {
            kept.push('<');
            at = found + 1;
        }
    }
    kept.push_str(&text[at..]);
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub(name: &str, text: &str) -> String {
        String::from_utf8(without_secrets(Path::new(name), text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn settings_stay_and_secrets_go() {
        let npm =
            "registry=https://u:p@r.example.org/\n//r.example.org/:_authToken=npm_abc\n_auth = Zm9v\nfund=false\n//x/:_password=\"x\"\n";
        assert_eq!(scrub(".npmrc", npm), "registry=https://r.example.org/\nfund=false\n");
        let pip = "[global]\nindex-url = https://user:pa/ss@pypi.example.org/simple\nextra-index-url =\n    https://a:b@c.example.org/x\ntimeout = 60\n";
        assert_eq!(
            scrub("pip.conf", pip),
            "[global]\nindex-url = https://pypi.example.org/simple\nextra-index-url =\n    https://c.example.org/x\ntimeout = 60\n"
        );
        let yarn = "nodeLinker: node-modules\nnpmScopes:\n  acme:\n    npmRegistryServer: \"https://npm.example.org\"\n    npmAuthToken: \"x\"\nnpmAuthIdent: |\n  a:b\n  c\nend: 1\n";
        assert_eq!(
            scrub(".yarnrc.yml", yarn),
            "nodeLinker: node-modules\nnpmScopes:\n  acme:\n    npmRegistryServer: \"https://npm.example.org\"\nend: 1\n"
        );
        assert_eq!(scrub(".yarnrc", "\"//r/:_authToken\" \"abc\"\nlastUpdateCheck 1\n"), "lastUpdateCheck 1\n");
        let kube = "apiVersion: v1\nusers:\n- name: me\n  user:\n    token: abc\n    client-key-data: >-\n      xyz\n      uvw\n- name: it\n  user: {token: abc}\ncurrent-context: c\n";
        assert_eq!(scrub("config", kube), "apiVersion: v1\nusers:\n- name: me\n  user:\n- name: it\ncurrent-context: c\n");
        // The client of a cluster asks for a user where there is none.
        let kube = "users:\n- name: a\n  user:\n    client-certificate-data: abc\n    client-key-data: xyz\n- name: b\n  user:\n    username: u\n    password: xyz\n- name: c\n  user: {token: abc}\n- name: d\n  user:\n    token: abc\n";
        let shown = "users:\n- name: a\n  user:\n    token: hidden\n- name: b\n  user:\n    username: u\n    password: hidden\n- name: c\n  user: {token: hidden}\n- name: d\n  user:\n    token: hidden\n";
        assert_eq!(scrub(".kube/config", kube), shown);
        let cargo = "[registries.acme]\nindex = \"sparse+https://t@c.example.org/\"\ntoken = \"\"\"\nx\ny\"\"\"\n[net]\ngit-fetch-with-cli = true\n";
        assert_eq!(
            scrub("config.toml", cargo),
            "[registries.acme]\nindex = \"sparse+https://c.example.org/\"\n[net]\ngit-fetch-with-cli = true\n"
        );
        let git = "[user]\n\tname = A B\n\temail = a@b.example.org\n[http]\n\textraHeader = AUTHORIZATION: basic Zm9v\n[url \"https://t:x@h/\"]\n\tinsteadOf = https://h/\n";
        assert_eq!(
            scrub(".gitconfig", git),
            "[user]\n\tname = A B\n\temail = a@b.example.org\n[http]\n[url \"https://h/\"]\n\tinsteadOf = https://h/\n"
        );
        assert_eq!(scrub(".condarc", "channels:\n  - https://h/t/abc-def/main\n"), "channels:\n  - https://h/main\n");
        assert_eq!(scrub("gradle.properties", "org.gradle.daemon=true\nartifactoryPassword=x\nfoo=ghp_x\n"), "org.gradle.daemon=true\n");
    }

    #[test]
    fn formats_with_a_structure_are_read() {
        let docker =
            r#"{"auths": {"https://index.example.org": {"auth": "Zm9v", "email": "a@b"}}, "credsStore": "x", "HttpHeaders": {"A": "b"}}"#;
        let value: Value = serde_json::from_str(&scrub("config.json", docker)).unwrap();
        assert_eq!(value, serde_json::json!({"auths": {"https://index.example.org": {"email": "a@b"}}, "credsStore": "x"}));
        assert!(without_secrets(Path::new("config.json"), b"{\"auths\": ").is_none());
        assert!(without_secrets(Path::new(".npmrc"), b"\xff").is_none());
        let maven = "<settings><servers><server><id>a</id><password>\nx</password></server></servers></settings>\n";
        assert_eq!(scrub("settings.xml", maven), "<settings><servers><server><id>a</id></server></servers></settings>\n");
        let nuget = "<configuration><packageSourceCredentials><a><add key=\"ClearTextPassword\" value=\"x\" /></a></packageSourceCredentials>\n<apikeys/></configuration>";
        assert_eq!(scrub("NuGet.Config", nuget), "<configuration>\n</configuration>");
        assert!(without_secrets(Path::new("settings.xml"), b"<a><password>x").is_none());
    }

    #[test]
    fn only_public_files_of_ssh_are_shown() {
        let directory = tempfile::tempdir().unwrap();
        let keys = directory.path().join(".ssh");
        fs::create_dir(&keys).unwrap();
        for (name, text) in
            [("config", "Host a"), ("id_x", "key"), ("id_x.pub", "public"), ("work.pem", "key"), ("odd.pub", "x PRIVATE KEY")]
        {
            fs::write(keys.join(name), text).unwrap();
        }
        let mut names: Vec<_> = public_files(directory.path(), Path::new(".ssh")).into_iter().map(|(path, _)| path).collect();
        names.sort();
        assert_eq!(names, [".ssh/config", ".ssh/id_x.pub"].map(PathBuf::from));
    }
}
