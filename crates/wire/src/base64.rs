//! Byte strings on the wire: standard base64 with padding.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Bytes that travel as base64 text.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Base64(pub Bytes);

impl std::fmt::Debug for Base64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}

impl From<Bytes> for Base64 {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<Vec<u8>> for Base64 {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

/// Why a text is not base64.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum Base64Error {
    #[error("Invalid symbol {symbol}, offset {offset}.")]
    Symbol { symbol: u8, offset: usize },
    #[error("Invalid input length: {0}")]
    Length(usize),
    #[error("Invalid padding")]
    Padding,
}

/// Decodes standard base64 with padding.
pub fn decode(text: &str) -> Result<Vec<u8>, Base64Error> {
    base64_simd::STANDARD.decode_to_vec(text).map_err(|_| explain(text.as_bytes()))
}

pub fn encode(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// Appends `bytes` as a quoted JSON string.
pub fn encode_quoted(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    base64_simd::STANDARD.encode_append(bytes, out);
    out.push(b'"');
}

/// The length of the quoted text for so many bytes.
pub fn quoted_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4 + 2
}

/// The fast decoder only says no; this says why.
fn explain(text: &[u8]) -> Base64Error {
    let body = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let is_symbol = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    if let Some(offset) = body.iter().position(|b| !is_symbol(b)) {
        return Base64Error::Symbol { symbol: body[offset], offset };
    }
    if body.len() % 4 == 1 {
        return Base64Error::Length(text.len());
    }
    Base64Error::Padding
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Unchecked::deserialize(deserializer)?.0.map(Self).map_err(serde::de::Error::custom)
    }
}

/// Base64 text as it was decoded, or why it could not be: for a method that has an answer of its own for bad text.
#[derive(Debug, Clone)]
pub struct Unchecked(pub Result<Bytes, Base64Error>);

impl From<Bytes> for Unchecked {
    fn from(bytes: Bytes) -> Self {
        Self(Ok(bytes))
    }
}

impl Serialize for Unchecked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(self.0.as_deref().unwrap_or_default()))
    }
}

impl<'de> Deserialize<'de> for Unchecked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Unchecked;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }
            // Decoded where it lies: bulk must not be copied as text first.
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Unchecked, E> {
                Ok(Unchecked(decode(text).map(Bytes::from)))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_says_what_is_wrong() {
        assert_eq!(decode("aGk=").unwrap(), b"hi");
        assert_eq!(decode("***").unwrap_err().to_string(), "Invalid symbol 42, offset 0.");
        assert_eq!(decode("aGk").unwrap_err(), Base64Error::Padding);
        assert_eq!(decode("aGkxa").unwrap_err(), Base64Error::Length(5));
    }

    #[test]
    fn quoted_text_has_the_length_it_says() {
        for n in 0..20 {
            let mut out = Vec::new();
            encode_quoted(&vec![7; n], &mut out);
            assert_eq!(out.len(), quoted_len(n));
            let back: Base64 = serde_json::from_slice(&out).unwrap();
            assert_eq!(back.0, vec![7; n]);
        }
    }
}
