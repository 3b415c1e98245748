//! Writing a shape as JSON text.
//!
//! Most shapes go through serde. The few that carry bulk bytes write themselves: base64 text never needs escaping, so
//! going through a string serialiser would only scan and copy it once more.

use serde::Serialize;

/// A shape that can append its JSON text to a buffer.
pub trait Encode {
    fn encode(&self, out: &mut Vec<u8>);
    /// How many bytes the text will need, roughly; saves growing the buffer for bulk shapes.
    fn size_hint(&self) -> usize {
        128
    }
}

/// Appends anything serialisable. Our shapes are plain structs with string keys, for which serialising cannot fail.
pub fn json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Implements [`Encode`] through serde for shapes without bulk bytes.
#[macro_export]
macro_rules! encode_with_serde {
    ($($name:ty),+ $(,)?) => {
        $(impl $crate::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $crate::encode::json(self, out);
            }
        })+
    };
}
