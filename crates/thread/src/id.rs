//! The names of things in a thread. Threads are named by UUIDs; everything inside of one by a text that its maker chose,
//! because imported histories bring their own.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// The ordinal of an entry in its thread. The first is 1; 0 means "before everything".
pub type Ordinal = u64;

/// A durable conversation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(Uuid);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a thread id: it must be a UUID")]
pub struct ThreadIdError(String);

impl ThreadId {
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for ThreadId {
    type Err = ThreadIdError;

    fn from_str(text: &str) -> Result<Self, ThreadIdError> {
        Uuid::parse_str(text).map(Self).map_err(|_| ThreadIdError(text.to_owned()))
    }
}

impl Serialize for ThreadId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ThreadId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// One unit of user-visible work.
    TurnId
);
text_id!(
    /// One message that came in.
    InputId
);
text_id!(
    /// One tool call, as the model named it.
    CallId
);
text_id!(
    /// One question to the user.
    ApprovalId
);
