//! An error that several owners hold: it is cloned with the state that it is part of, and keeps what caused it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Shows what the error that it was made from shows, and has that error as its source. Two are equal if they say the same.
#[derive(Clone)]
pub struct SharedError(Arc<dyn Error + Send + Sync>);

/// Words of ours about an error of others.
#[derive(Debug)]
struct Worded {
    text: String,
    source: Box<dyn Error + Send + Sync>,
}

impl SharedError {
    /// Takes an error, or a text where there is nothing behind it.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }

    /// An error that is told in other words than its own.
    pub fn worded(text: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Worded { text: text.into(), source: source.into() })
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Error for SharedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

impl PartialEq for SharedError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for SharedError {}

impl From<String> for SharedError {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&str> for SharedError {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for Worded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Worded {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn has_io(error: &(dyn Error + 'static)) -> bool {
        error.is::<io::Error>() || error.source().is_some_and(has_io)
    }

    #[test]
    fn what_caused_it_is_found_behind_a_copy() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let shared = SharedError::new(refused());
        assert_eq!(shared.to_string(), refused().to_string());
        assert!(has_io(&shared.clone()));
        let worded = SharedError::worded("the token file cannot be used", refused());
        assert_eq!(worded.to_string(), "the token file cannot be used");
        assert!(has_io(&worded) && !has_io(&SharedError::from("nothing is behind it")));
    }

    #[test]
    fn equal_is_what_says_the_same() {
        assert_eq!(SharedError::from("no"), SharedError::new(io::Error::other("no")));
        assert_ne!(SharedError::from("no"), SharedError::from("not"));
    }
}
