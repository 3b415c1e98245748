//! Who may open a websocket here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// What a listener asks of a client before the upgrade.
#[derive(Clone)]
pub enum Auth {
    /// Nothing. Only for addresses that other users cannot reach.
    Open,
    /// One shared secret, kept as its digest.
    Token {
        sha256: [u8; 32],
    },
    Signed(SignedBearer),
}

/// HS256 tokens that another service issues.
#[derive(Clone)]
pub struct SignedBearer {
    secret: Vec<u8>,
    issuer: Option<String>,
    audience: Option<String>,
    skew: Duration,
}

#[derive(Debug, Error)]
pub enum AuthSetupError {
    #[error("{path}: {error}", path = .path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{path}: the path of a secret must be absolute", path = .0.display())]
    Relative(PathBuf),
    #[error("{path} is empty; put a token into it", path = .0.display())]
    Empty(PathBuf),
    #[error("{path} holds a secret of {have} bytes; at least {MIN_SECRET} are needed", path = .path.display())]
    Short { path: PathBuf, have: usize },
    #[error("a SHA-256 digest has 64 hexadecimal digits, not `{0}`")]
    Digest(String),
}

/// Why a client was turned away; told as the body of a 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AuthRefusal {
    #[error("missing websocket bearer token")]
    Missing,
    #[error("invalid authorization header")]
    Header,
    #[error("invalid websocket bearer token")]
    Token,
    #[error("invalid websocket jwt")]
    Jwt,
    #[error("expired websocket jwt")]
    Expired,
    #[error("websocket jwt is not valid yet")]
    NotYet,
    #[error("websocket jwt issuer mismatch")]
    Issuer,
    #[error("websocket jwt audience mismatch")]
    Audience,
}

const MIN_SECRET: usize = 32;

impl Auth {
    pub fn token(token: &str) -> Self {
        Self::Token { sha256: Sha256::digest(token.as_bytes()).into() }
    }

    pub fn token_file(path: &Path) -> Result<Self, AuthSetupError> {
        let text = secret_file(path)?;
        Ok(Self::Token { sha256: Sha256::digest(&text).into() })
    }

    pub fn token_digest(hex: &str) -> Result<Self, AuthSetupError> {
        let wrong = || AuthSetupError::Digest(hex.to_owned());
        let digits = hex.trim().as_bytes();
        if digits.len() != 64 {
            return Err(wrong());
        }
        let mut sha256 = [0; 32];
        for (byte, pair) in sha256.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self::Token { sha256 })
    }

    /// Checks the `Authorization` header of an upgrade.
    pub fn check(&self, header: Option<&[u8]>, now: SystemTime) -> Result<(), AuthRefusal> {
        if matches!(self, Self::Open) {
            return Ok(());
        }
        let header = std::str::from_utf8(header.ok_or(AuthRefusal::Missing)?).map_err(|_| AuthRefusal::Header)?;
        let (scheme, token) = header.trim().split_once(' ').ok_or(AuthRefusal::Header)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Err(AuthRefusal::Header);
        }
        match self {
            Self::Open => Ok(()),
            Self::Token { sha256 } => {
                let given: [u8; 32] = Sha256::digest(token.as_bytes()).into();
                if bool::from(given.ct_eq(sha256)) { Ok(()) } else { Err(AuthRefusal::Token) }
            }
            Self::Signed(signed) => signed.check(token, now),
        }
    }

    /// Until when a token that was checked is good, where it says so itself.
    pub fn until(&self, token: &str) -> Option<SystemTime> {
        let Self::Signed(signed) = self else { return None };
        let seconds = signed.verify(token)?.exp? + signed.skew.as_secs_f64();
        UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds).ok()?)
    }
}

impl SignedBearer {
    pub fn from_file(path: &Path, issuer: Option<String>, audience: Option<String>, skew: Duration) -> Result<Self, AuthSetupError> {
        let secret = secret_file(path)?;
        if secret.len() < MIN_SECRET {
            return Err(AuthSetupError::Short { path: path.to_owned(), have: secret.len() });
        }
        Ok(Self { secret, issuer, audience, skew })
    }

    fn check(&self, token: &str, now: SystemTime) -> Result<(), AuthRefusal> {
        let claims = self.verify(token).ok_or(AuthRefusal::Jwt)?;
        let now = now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let skew = self.skew.as_secs_f64();
        if now > claims.exp.ok_or(AuthRefusal::Jwt)? + skew {
            return Err(AuthRefusal::Expired);
        }
        if claims.nbf.is_some_and(|from| now < from - skew) {
            return Err(AuthRefusal::NotYet);
        }
        if self.issuer.is_some() && claims.iss != self.issuer {
            return Err(AuthRefusal::Issuer);
        }
        match (&self.audience, &claims.aud) {
            (None, _) => Ok(()),
            (Some(wanted), Some(Audience::One(given))) if wanted == given => Ok(()),
            (Some(wanted), Some(Audience::Many(given))) if given.contains(wanted) => Ok(()),
            _ => Err(AuthRefusal::Audience),
        }
    }

    fn verify(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        if header.alg != "HS256" {
            return None;
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).ok()?;
        mac.update(signed.as_bytes());
        mac.verify_slice(&decode(signature)?).ok()?;
        serde_json::from_slice(&decode(payload)?).ok()
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    exp: Option<f64>,
    nbf: Option<f64>,
    iss: Option<String>,
    aud: Option<Audience>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

/// base64url without padding, as JSON web tokens use it.
fn decode(part: &str) -> Option<Vec<u8>> {
    let mut text = part.replace('-', "+").replace('_', "/");
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    outpost_wire::base64::decode(&text).ok()
}

fn secret_file(path: &Path) -> Result<Vec<u8>, AuthSetupError> {
    if !path.is_absolute() {
        return Err(AuthSetupError::Relative(path.to_owned()));
    }
    let bytes = fs::read(path).map_err(|error| AuthSetupError::Unreadable { path: path.to_owned(), error })?;
    let trimmed = bytes.trim_ascii();
    if trimmed.is_empty() {
        return Err(AuthSetupError::Empty(path.to_owned()));
    }
    Ok(trimmed.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base64url(bytes: &[u8]) -> String {
        let mut quoted = Vec::new();
        outpost_wire::base64::encode_quoted(bytes, &mut quoted);
        String::from_utf8(quoted).unwrap().replace(['"', '='], "").replace('+', "-").replace('/', "_")
    }

    fn jwt(secret: &[u8], alg: &str, claims: &str) -> String {
        let signed = format!("{}.{}", base64url(format!(r#"{{"alg":"{alg}"}}"#).as_bytes()), base64url(claims.as_bytes()));
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(signed.as_bytes());
        format!("{signed}.{}", base64url(&mac.finalize().into_bytes()))
    }

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW: u64 = 1_800_000_000;

    fn bearer(token: &str) -> Result<(), AuthRefusal> {
        let signed = SignedBearer {
            secret: SECRET.to_vec(),
            issuer: Some("iss".into()),
            audience: Some("aud".into()),
            skew: Duration::from_secs(30),
        };
        let header = format!("Bearer {token}");
        Auth::Signed(signed).check(Some(header.as_bytes()), UNIX_EPOCH + Duration::from_secs(NOW))
    }

    fn claims(claims: &str) -> Result<(), AuthRefusal> {
        bearer(&jwt(SECRET, "HS256", claims))
    }

    #[test]
    fn a_token_is_compared_by_digest() {
        let auth = Auth::token("s3cret");
        let check = |header: &str| auth.check(Some(header.as_bytes()), SystemTime::now());
        assert_eq!(check("Bearer s3cret"), Ok(()));
        assert_eq!(check("bearer s3cret"), Ok(()));
        assert_eq!(check("Bearer nope"), Err(AuthRefusal::Token));
        assert_eq!(check("Basic s3cret"), Err(AuthRefusal::Header));
        assert_eq!(check("Bearer "), Err(AuthRefusal::Header));
        assert_eq!(auth.check(None, SystemTime::now()), Err(AuthRefusal::Missing));
        assert!(Auth::Open.check(None, SystemTime::now()).is_ok());
    }

    #[test]
    fn a_digest_may_be_given_instead_of_a_token() {
        let hex: String = Sha256::digest(b"s3cret").iter().map(|byte| format!("{byte:02x}")).collect();
        let auth = Auth::token_digest(&hex).unwrap();
        assert!(auth.check(Some(b"Bearer s3cret"), SystemTime::now()).is_ok());
        assert!(Auth::token_digest("abc").is_err());
        assert!(Auth::token_digest(&"zz".repeat(32)).is_err());
    }

    #[test]
    fn only_signed_tokens_say_how_long_they_are_good() {
        let signed = SignedBearer { secret: SECRET.to_vec(), issuer: None, audience: None, skew: Duration::from_secs(30) };
        let token = jwt(SECRET, "HS256", &format!(r#"{{"exp":{NOW}}}"#));
        assert_eq!(Auth::Signed(signed).until(&token), Some(UNIX_EPOCH + Duration::from_secs(NOW + 30)));
        assert_eq!(Auth::token("s3cret").until("s3cret"), None);
    }

    #[test]
    fn signed_tokens_follow_their_claims() {
        let ok = format!(r#"{{"exp":{},"iss":"iss","aud":["x","aud"],"other":{{}}}}"#, NOW + 600);
        assert_eq!(claims(&ok), Ok(()));
        let with = |exp: u64, rest: &str| claims(&format!(r#"{{"exp":{exp},{rest}}}"#));
        let same = r#""iss":"iss","aud":"aud""#;
        assert_eq!(with(NOW - 10, same), Ok(()));
        assert_eq!(with(NOW - 40, same), Err(AuthRefusal::Expired));
        assert_eq!(with(NOW + 600, &format!(r#"{same},"nbf":{}"#, NOW + 10)), Ok(()));
        assert_eq!(with(NOW + 600, &format!(r#"{same},"nbf":{}"#, NOW + 100)), Err(AuthRefusal::NotYet));
        assert_eq!(with(NOW + 600, r#""aud":"aud""#), Err(AuthRefusal::Issuer));
        assert_eq!(with(NOW + 600, r#""iss":"iss","aud":"x""#), Err(AuthRefusal::Audience));
        assert_eq!(with(NOW + 600, r#""iss":"iss""#), Err(AuthRefusal::Audience));
        assert_eq!(claims(r#"{"iss":"iss","aud":"aud"}"#), Err(AuthRefusal::Jwt));
        assert_eq!(bearer("abc"), Err(AuthRefusal::Jwt));
        assert_eq!(bearer(&jwt(&[b'x'; 32], "HS256", &ok)), Err(AuthRefusal::Jwt));
        assert_eq!(bearer(&jwt(SECRET, "none", &ok)), Err(AuthRefusal::Jwt));
    }
}
