//! Names of variables, headers and settings that say that their values are secrets.
//!
//! One list for everything that must not pass such a value on: commands of an executor, programs that carry a connection, the
//! environment of this process, journals, and the configuration that clients may read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::Value;

/// `*` stands for any number of characters, `?` for one; upper and lower case are the same.
pub const SECRET_NAMES: [&str; 25] = [
    "*KEY*",
    "*SECRET*",
    "*TOKEN*",
    "*PASSWORD*",
    "*PASSWD",
    "*PASSWD_*",
    "*PASSPHRASE*",
    "*PASSCODE*",
    "*CREDENTIAL*",
    "PASS",
    "*_PASS",
    "*_PWD",
    "*_PAT",
    "*_JWT",
    "*BEARER*",
    "*COOKIE*",
    "*AUTHORIZATION*",
    "AUTH",
    "*_AUTH",
    "*-AUTH",
    "*AUTH_HEADER*",
    "*_DSN",
    "*DATABASE_URL*",
    "*CONNECTION_STRING*",
    "*CONN_STR*",
];

/// Last words of a setting that only leads to a secret.
const ELSEWHERE: [&str; 8] = ["file", "path", "dir", "env", "var", "env_key", "name", "url"];

/// The same for options of programs and members of addresses, which name more than settings do.
const OPTIONS_ELSEWHERE: [&str; 5] = ["id", "type", "mode", "header", "scheme"];

/// Words that say of the value of an option or of a member of an address that it is a secret, and of no variable.
const SECRET_OPTIONS: [&str; 3] = ["auth", "sig", "signature"];

/// Whether a name says that its value is a secret.
pub fn is_secret(name: impl AsRef<OsStr>) -> bool {
    SECRET_NAMES.iter().any(|pattern| matches(pattern, name.as_ref()))
}

/// Whether the value of a setting is a secret: not if the setting only names the place of one, as `env_key` and `token_file` do.
pub fn is_secret_setting(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let leads_elsewhere = |word: &str| lower.strip_suffix(word).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    is_secret(name) && !ELSEWHERE.iter().any(|word| leads_elsewhere(word))
}

/// Takes out what may be a secret: headers, query parameters, variables, and whatever is named like one.
pub fn hide_secrets(value: &mut Value) {
    if let Some(values) = value.as_array_mut() {
        values.iter_mut().for_each(hide_secrets);
    }
    let Some(members) = value.as_object_mut() else { return };
    // A number or a table is no secret: budgets are counted in tokens.
    let is_secret = |name: &str, value: &Value| {
        let is_table_of_secrets = matches!(name.to_ascii_lowercase().as_str(), "http_headers" | "headers" | "query_params" | "env");
        is_table_of_secrets || (value.is_string() && is_secret_setting(name))
    };
    members.retain(|name, value| !is_secret(name, value));
    members.values_mut().for_each(hide_secrets);
}

/// Whether the value of an option of a program, or of a member of an address, is a secret: `--api-key`, `apiKey`, `X-Auth-Token`, `sig`.
pub fn is_secret_option(name: &str) -> bool {
    let words = words(name);
    let leads_elsewhere = |last: &String| ELSEWHERE.iter().chain(&OPTIONS_ELSEWHERE).any(|word| last == word);
    let says_so = || words.iter().any(|word| SECRET_OPTIONS.contains(&word.as_str()) || is_secret(word)) || is_secret(words.join("_"));
    !words.last().is_some_and(leads_elsewhere) && says_so()
}

/// The words of a name in lower case, however they are set apart.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_ascii_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Wildcards `*` and `?`, without regard to case. Goes back to the last star only, so time is bounded by the product of
/// both lengths.
pub fn matches(pattern: &str, name: &OsStr) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, read));
                at += 1;
            }
            Some(want) if *want == b'?' || want.eq_ignore_ascii_case(&name[read]) => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((after_star, taken)) = star else { return false };
                star = Some((after_star, taken + 1));
                at = after_star;
                read = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_their_values_are() {
        let secret = [
            "OPENAI_API_KEY",
            "my_secret",
            "GH_TOKEN",
            "PGPASSWORD",
            "MYSQL_ROOT_PASSWORD_2",
            "DB_PASSWD",
            "SMTP_PASS",
            "MYSQL_PWD",
            "GPG_PASSPHRASE",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "AZURE_PAT",
            "authorization",
            "X-Auth",
            "Set-Cookie",
            "HTTP_BEARER",
            "SENTRY_DSN",
            "DATABASE_URL",
        ];
        for name in secret {
            assert!(is_secret(name), "{name}");
        }
        let plain =
            ["PATH", "PWD", "OLDPWD", "HOME", "SSH_AUTH_SOCK", "XAUTHORITY", "GIT_AUTHOR_NAME", "COMPASS", "LANG", "TERM", "DBUS_PATH"];
        for name in plain {
            assert!(!is_secret(name), "{name}");
        }
    }

    /// The executor's default is part of the wire.
    #[test]
    fn the_protocol_lists_every_name() {
        let page = include_str!("../../../docs/protocol/executor.md");
        for pattern in SECRET_NAMES {
            assert!(page.contains(&format!("`{pattern}`")), "{pattern}");
        }
    }

    #[test]
    fn a_setting_may_only_lead_to_a_secret() {
        for name in ["env_key", "bearer_token_env_var", "token_file", "key_path", "base_url"] {
            assert!(!is_secret_setting(name), "{name}");
        }
        for name in ["bearer_token", "api_key", "experimental_bearer_token", "password", "key"] {
            assert!(is_secret_setting(name), "{name}");
        }
    }

    #[test]
    fn options_say_what_their_values_are() {
        for name in ["--api-key", "API_KEY", "apiKey", "X-Auth-Token", "--auth", "sig", "Authorization", "--db-password", "accessToken"] {
            assert!(is_secret_option(name), "{name}");
        }
        for name in ["--token-file", "--auth-mode", "--author", "--design", "client_id", "--key-type", "team", "--auth-header", ""] {
            assert!(!is_secret_option(name), "{name}");
        }
    }

    #[test]
    fn wildcards_match_and_stay_quick() {
        let matches = |pattern: &str, name: &str| super::matches(pattern, OsStr::new(name));
        assert!(matches("*KEY*", "my_key") && matches("a?c", "ABC") && !matches("a?c", "ac"));
        assert!(matches(&"*".repeat(10_000), "x") && matches("", "") && !matches("", "x"));
        assert!(!matches(&"*a".repeat(1000), &"a".repeat(900)));
    }
}
