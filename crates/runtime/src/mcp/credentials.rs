//! What looks like a secret in the words that a client gives for a server: in an address, and in the arguments of a program. Pure.
//!
//! Names of headers and variables say what their values are. Here only the form tells, so this errs on both sides: what is taken for
//! a secret has to be given again by the next program, and a secret without a form is not recognised.

use outpost_wire::secret_names::is_secret_option;

/// How tokens of services begin that people paste most.
const BEGINNINGS: [&str; 11] = ["sk-", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "eyJ"];
/// A shorter word is no token of a service.
const SHORTEST_TOKEN: usize = 20;
/// A shorter value of an option is a setting.
const SHORTEST_VALUE: usize = 8;

/// The secret in an address: what stands before its host, or in a member of its query that is called like one.
pub(super) fn in_url(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if let Some((user, _)) = authority.rsplit_once('@')
        && !user.is_empty()
    {
        return Some(user.split_once(':').map_or(user, |(_, password)| password).trim()).filter(|secret| !secret.is_empty());
    }
    let (_, query) = rest.split_once('?')?;
    let members = query.split('#').next().unwrap_or_default().split('&').filter_map(|member| member.split_once('='));
    members.filter(|(name, value)| is_secret_option(name) && !value.is_empty()).map(|(_, value)| value).next()
}

/// The secret in an argument, if it holds one. An option and its value may be two arguments.
pub(super) fn in_argument<'a>(before: Option<&str>, argument: &'a str) -> Option<&'a str> {
    if let Some(secret) = in_url(argument) {
        return Some(secret);
    }
    if argument.len() >= SHORTEST_TOKEN && BEGINNINGS.iter().any(|beginning| argument.starts_with(beginning)) && is_word(argument) {
        return Some(argument);
    }
    // `--token=VALUE`, `API_TOKEN=VALUE`, `Authorization: VALUE`
    let named = argument.split_once('=').or_else(|| argument.split_once(": "));
    if let Some((name, value)) = named.filter(|(name, _)| is_word(name)) {
        return Some(value.trim()).filter(|value| is_secret_option(name) && is_value(value)).map(without_scheme);
    }
    let option = before.filter(|before| before.starts_with('-') && is_word(before) && is_secret_option(before))?;
    Some(argument).filter(|value| is_value(value) && !option.is_empty()).map(without_scheme)
}

/// `Bearer TOKEN` is a token with a word before it.
fn without_scheme(value: &str) -> &str {
    value.split_once(' ').map_or(value, |(_, token)| token.trim())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\''))
}

/// Neither another option nor the path of a file.
fn is_value(text: &str) -> bool {
    text.len() >= SHORTEST_VALUE && !text.starts_with(['-', '/', '~', '.', '$'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, secret) in [
            ("https://me:sesame@h.example/mcp", Some("sesame")),
            ("https://ghp_0123456789@h.example/mcp", Some("ghp_0123456789")),
            ("https://h.example/mcp?team=two&api_key=sesame#x", Some("sesame")),
            ("https://h.example/mcp?accessToken=sesame", Some("sesame")),
            ("https://h.example/mcp?sig=sesame", Some("sesame")),
            ("https://h.example/mcp?team=two&author=somebody&design=1", None),
            ("https://h.example/mcp?token=", None),
            ("https://h.example/a@b?c=d", None),
            ("/a/path", None),
            ("", None),
        ] {
            assert_eq!(in_url(url), secret, "{url}");
        }
    }

    #[test]
    fn arguments() {
        for (before, argument, secret) in [
            (None, "--token=open-sesame", Some("open-sesame")),
            (None, "API_TOKEN=open-sesame", Some("open-sesame")),
            (None, "Authorization: Bearer open-sesame", Some("open-sesame")),
            (Some("--api-key"), "open-sesame", Some("open-sesame")),
            (Some("-H"), "X-Api-Key: open-sesame", Some("open-sesame")),
            (None, "sk-0123456789abcdef0123", Some("sk-0123456789abcdef0123")),
            (None, "postgres://me:sesame@db/x", Some("sesame")),
            (Some("--token-file"), "secrets/token", None),
            (Some("--key"), "/etc/keys/server.pem", None),
            (Some("--key"), "./server.pem", None),
            (Some("--auth-mode"), "interactive", None),
            (Some("--author"), "somebody-else", None),
            (Some("--token"), "--verbose-mode", None),
            (Some("--auth"), "oauth", None),
            (Some("token"), "something-else", None),
            (None, "--fast-mode=very-much-so", None),
            (None, "echo token=open-sesame; sleep 1", None),
            (None, "@scope/server-of-keys", None),
            (None, "", None),
        ] {
            assert_eq!(in_argument(before, argument), secret, "{before:?} {argument}");
        }
    }
}
