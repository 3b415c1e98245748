//! The page: three files, and the cookie of whoever logged in.
//!
//! The page is a client of the app protocol like any other. A browser cannot send a token with a websocket, so it shows the
//! token once and gets a cookie for it, which no script can read and no other site can make it send.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use outpost_rpc::house::{Visit, plain};
use tokio::time::Instant;

use crate::tokens::digest;

/// A file of the page, and its type.
pub fn file(path: &str) -> Option<Response<String>> {
    let (text, kind) = match path {
        "/" => (include_str!("../web/index.html"), "text/html; charset=utf-8"),
        "/page.css" => (include_str!("../web/page.css"), "text/css; charset=utf-8"),
        "/page.js" => (include_str!("../web/page.js"), "text/javascript; charset=utf-8"),
        _ => return None,
    };
    Some(dressed(plain(StatusCode::OK, text), kind))
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

/// With everything that keeps a page to itself.
fn dressed(mut response: Response<String>, kind: &'static str) -> Response<String> {
    let headers: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer` a browser would not say either that a form is our own.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    response.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

/// Tells the page whether its cookie is good.
pub fn session(is_in: bool, is_open: bool) -> Response<String> {
    dressed(plain(StatusCode::OK, format!("{{\"in\":{is_in},\"open\":{is_open}}}")), "application/json")
}

/// Back to the page, with a cookie or without the one that there was.
pub fn redirect(place: &'static str, cookie: Option<&str>) -> Response<String> {
    let mut response = dressed(plain(StatusCode::SEE_OTHER, ""), "text/plain");
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(place));
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(cookie).ok()) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// How long somebody stays logged in.
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// So many are logged in at once; the oldest goes first.
const MOST: usize = 1024;
const COOKIE: &str = "outpost";

/// Who is logged in, by the digest of their cookie. Nothing of it outlives the program.
pub struct Sessions {
    secret: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    inside: Mutex<HashMap<String, Session>>,
}

#[derive(Clone)]
struct Session {
    /// The digest of the token that was shown, where it is one that can be revoked.
    token: Option<String>,
    since: Instant,
}

impl Sessions {
    /// With a source of secrets.
    pub fn new(secret: Arc<dyn Fn() -> Option<String> + Send + Sync>) -> Self {
        Self { secret, inside: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cookie of somebody who showed a token.
    pub fn begin(&self, token: Option<String>, is_private: bool) -> Option<String> {
        let secret = (self.secret)()?;
        let mut inside = self.lock();
        inside.retain(|_, session| session.since.elapsed() < LASTS);
        while inside.len() >= MOST {
            let oldest = inside.iter().min_by_key(|(_, session)| session.since).map(|(key, _)| key.clone())?;
            inside.remove(&oldest);
        }
        inside.insert(digest(&secret), Session { token, since: Instant::now() });
        let secure = if is_private { "; Secure" } else { "" };
        Some(format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", LASTS.as_secs()))
    }

    /// Ends a session; the cookie that takes its cookie away.
    pub fn end(&self, visit: &Visit) -> String {
        if let Some(secret) = visit.cookie(COOKIE) {
            self.lock().remove(&digest(secret));
        }
        format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    /// Whoever shows a cookie of ours; with the token that it stands for.
    pub fn find(&self, visit: &Visit) -> Option<Option<String>> {
        let session = self.lock().get(&digest(visit.cookie(COOKIE)?)).cloned()?;
        (session.since.elapsed() < LASTS).then_some(session.token)
    }
}

/// One value of a form.
pub fn form<'a>(body: &'a [u8], name: &str) -> Option<&'a str> {
    let pairs = std::str::from_utf8(body).ok()?.split('&');
    // A token is hexadecimal or at least needs no escaping; whatever does is none.
    pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}
