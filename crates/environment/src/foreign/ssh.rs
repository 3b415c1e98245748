//! What `ssh` says when it cannot log in.
//!
//! Its exit code is 255 for every failure of its own, from an unknown host to a wrong key; only the message tells which of them a
//! login mends.

/// The exit code of ssh for its own failures, as opposed to those of the command that it ran.
pub(crate) const FAILED: i32 = 255;

/// Messages of OpenSSH after which a user can log in once, and the way works.
const LOGIN_NEEDED: [&str; 3] = ["Permission denied (", "Host key verification failed", "Too many authentication failures"];

/// Whether a failed ssh asks for a user: for a password, a second factor, or a look at a key.
pub(crate) fn needs_login(code: Option<i32>, said: &str) -> bool {
    code == Some(FAILED) && LOGIN_NEEDED.iter().any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_login_mends_asks_for_one() {
        for said in [
            "me@box: Permission denied (publickey,keyboard-interactive).",
            "Host key verification failed.",
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
        ] {
            assert!(needs_login(Some(FAILED), said), "{said}");
            // The same words from a command that ran there are its own business.
            assert!(!needs_login(Some(1), said) && !needs_login(None, said), "{said}");
        }
        for said in [
            "ssh: connect to host box port 22: Connection refused",
            "ssh: Could not resolve hostname box: Name or service not known",
            "kex_exchange_identification: Connection closed by remote host",
            "bash: /etc/shadow: Permission denied",
            "",
        ] {
            assert!(!needs_login(Some(FAILED), said), "{said}");
        }
    }
}
