//! What errors of providers tell only in words. No other file knows these words.

/// Whether an error says that the conversation does not fit the context window. Few servers have a code for it.
pub(super) fn is_too_long(code: &str, message: &str) -> bool {
    const CODES: [&str; 3] = ["context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"];
    const WORDS: [&str; 6] = [
        "prompt is too long",
        "exceed context limit",
        "maximum context length is",
        "exceeds the available context size",
        "input is too long for requested model",
        "longer than the model's context length",
    ];
    let message = message.to_ascii_lowercase();
    CODES.contains(&code) || WORDS.iter().any(|words| message.contains(words))
}

/// Whether an error is about thoughts of earlier answers, which only their provider can read: they were sealed for another account,
/// their key is gone, or what stood before them has changed. Also whether a server does not know what it is told to do about those.
pub(super) fn is_about_thoughts(code: &str, message: &str) -> bool {
    const WORDS: [&str; 4] =
        ["`signature` in `thinking`", "`thinking` or `redacted_thinking` blocks", "block_binding", "The encrypted content"];
    code == "invalid_encrypted_content" || WORDS.iter().any(|words| message.contains(words))
}

/// How long a provider asks to wait, in the words of its error message: "try again in 1.5s", "in 20 ms".
pub(super) fn asked_in_words(message: &str) -> Option<u64> {
    let after = message.split_once("try again in ")?.1.trim_start();
    let digits = after.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(after.len());
    let amount: f64 = after[..digits].parse().ok()?;
    let unit = after[digits..].trim_start();
    let factor = if unit.starts_with("ms") {
        1.0
    } else if unit.starts_with('s') {
        1000.0
    } else if unit.starts_with('m') {
        60_000.0
    } else {
        return None;
    };
    Some((amount * factor).clamp(0.0, 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_context_is_known_by_code_or_words() {
        assert!(is_too_long("exceed_context_size_error", ""));
        assert!(is_too_long("", "prompt is too long: 208310 tokens > 200000 maximum"));
        assert!(is_too_long("BadRequestError", "This model's maximum context length is 4096 tokens. However, you requested 5000."));
        assert!(!is_too_long("invalid_request_error", "max_tokens: Field required"));
    }

    #[test]
    fn thoughts_that_are_refused_are_known_by_code_or_words() {
        assert!(is_about_thoughts("invalid_encrypted_content", ""));
        assert!(is_about_thoughts("", "The encrypted content gAAA...Rg== could not be verified."));
        assert!(is_about_thoughts("invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block."));
        assert!(!is_about_thoughts("invalid_request_error", "thinking: Input should be a valid dictionary"));
    }

    #[test]
    fn waits_in_words_are_understood() {
        let cases = [("Please try again in 1.5s.", Some(1500)), ("try again in 20ms", Some(20)), ("try again in 2 minutes", Some(120_000))];
        for (message, wait) in cases {
            assert_eq!(asked_in_words(message), wait, "{message}");
        }
        assert_eq!(asked_in_words("try again later"), None);
        assert_eq!(asked_in_words("try again in a while"), None);
    }
}
