//! The page: its files, and the cookie of a logged-in browser.
//!
//! The page is a client of the app protocol like any other. A browser cannot send a token with a websocket, so it shows the
//! token once and gets a cookie for it, which no script can read and no other site can make it send.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use outpost_listener::http_service::{HttpRequest, plain};
use tokio::time::Instant;

use crate::admission::{BrowserSession, Pass};
use crate::tokens::digest;

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page: what each is called, its type, and what is in it.
const FILES: [(&str, &str, &str); 21] = [
    ("/", "text/html; charset=utf-8", include_str!("../web/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../web/page.css")),
    ("/page.js", SCRIPT, include_str!("../web/page.js")),
    ("/keys.js", SCRIPT, include_str!("../web/keys.js")),
    ("/environments.js", SCRIPT, include_str!("../web/environments.js")),
    ("/threads.js", SCRIPT, include_str!("../web/threads.js")),
    ("/thread.js", SCRIPT, include_str!("../web/thread.js")),
    ("/thread-open.js", SCRIPT, include_str!("../web/thread-open.js")),
    ("/thread-head.js", SCRIPT, include_str!("../web/thread-head.js")),
    ("/thread-items.js", SCRIPT, include_str!("../web/thread-items.js")),
    ("/thread-find.js", SCRIPT, include_str!("../web/thread-find.js")),
    ("/thread-actions.js", SCRIPT, include_str!("../web/thread-actions.js")),
    ("/new-thread.js", SCRIPT, include_str!("../web/new-thread.js")),
    ("/machine.js", SCRIPT, include_str!("../web/machine.js")),
    ("/questions.js", SCRIPT, include_str!("../web/questions.js")),
    ("/items.js", SCRIPT, include_str!("../web/items.js")),
    ("/list.js", SCRIPT, include_str!("../web/list.js")),
    ("/markdown.js", SCRIPT, include_str!("../web/markdown.js")),
    ("/dom.js", SCRIPT, include_str!("../web/dom.js")),
    ("/shown.js", SCRIPT, include_str!("../web/shown.js")),
    ("/link.js", SCRIPT, include_str!("../web/link.js")),
];

/// A file of the page.
pub fn file(path: &str) -> Option<Response<String>> {
    let (_, kind, text) = FILES.iter().find(|(name, _, _)| *name == path)?;
    Some(dressed(plain(StatusCode::OK, *text), kind))
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

/// Tells the page whether its cookie is good, and what time it is here: a browser's clock may be wrong.
pub fn session(is_in: bool, is_open: bool) -> Response<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
    dressed(plain(StatusCode::OK, format!("{{\"in\":{is_in},\"open\":{is_open},\"nowMs\":{now}}}")), "application/json")
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

/// How long a browser stays logged in.
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
    ends: Instant,
}

impl Sessions {
    /// With a source of secrets.
    pub fn new(secret: Arc<dyn Fn() -> Option<String> + Send + Sync>) -> Self {
        Self { secret, inside: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cookie for a token, which itself may expire earlier.
    pub fn begin(&self, token: Option<String>, good_for: Option<Duration>, is_private: bool) -> Option<String> {
        let secret = (self.secret)()?;
        let (now, lasts) = (Instant::now(), good_for.map_or(LASTS, |good_for| good_for.min(LASTS)));
        let mut inside = self.lock();
        inside.retain(|_, session| session.ends > now);
        while inside.len() >= MOST {
            let oldest = inside.iter().min_by_key(|(_, session)| session.since).map(|(key, _)| key.clone())?;
            inside.remove(&oldest);
        }
        inside.insert(digest(&secret), Session { token, since: now, ends: now + lasts });
        let secure = if is_private { "; Secure" } else { "" };
        Some(format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", lasts.as_secs()))
    }

    /// Ends a session: the digest of its cookie, if there was one.
    pub fn end(&self, visit: &HttpRequest) -> Option<String> {
        let cookie = digest(visit.cookie(COOKIE)?);
        self.lock().remove(&cookie).map(|_| cookie)
    }

    /// The client behind a cookie of ours; with the token that it stands for.
    pub fn find(&self, visit: &HttpRequest) -> Option<Pass> {
        let cookie = digest(visit.cookie(COOKIE)?);
        let Session { token, ends, .. } = self.lock().get(&cookie).cloned()?;
        (ends > Instant::now()).then_some(Pass { token, session: Some(BrowserSession { cookie, ends }), identity: None })
    }
}

/// Takes a browser's cookie away.
pub fn no_cookie() -> String {
    format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
}

/// One value of a form.
pub fn form<'a>(body: &'a [u8], name: &str) -> Option<&'a str> {
    let pairs = std::str::from_utf8(body).ok()?.split('&');
    // A token is hexadecimal or at least needs no escaping; whatever does is none.
    pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use http::{HeaderMap, Method, Uri};

    use super::*;

    fn with(cookie: &str) -> HttpRequest {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_str(cookie.split(';').next().unwrap()).unwrap());
        HttpRequest { method: Method::GET, uri: Uri::from_static("/"), headers, body: Bytes::new(), ends: None }
    }

    #[test]
    fn a_session_lasts_no_longer_than_what_it_was_given_for() {
        let next = AtomicU64::new(0);
        let sessions = Sessions::new(Arc::new(move || Some(next.fetch_add(1, Ordering::Relaxed).to_string())));
        let short = sessions.begin(None, Some(Duration::ZERO), false).unwrap();
        assert!(sessions.find(&with(&short)).is_none() && short.contains("Max-Age=0"), "{short}");
        let hour = sessions.begin(None, Some(Duration::from_secs(3600)), false).unwrap();
        let seat = sessions.find(&with(&hour)).unwrap().session.unwrap();
        assert!(seat.ends <= Instant::now() + Duration::from_secs(3600) && hour.contains("Max-Age=3600"), "{hour}");
        let usual = sessions.begin(None, Some(LASTS * 2), false).unwrap();
        assert!(usual.contains(&format!("Max-Age={}", LASTS.as_secs())), "{usual}");
        assert!(sessions.end(&with(&usual)).is_some() && sessions.find(&with(&usual)).is_none());
    }

    /// A script that is not served leaves an empty page behind, and nothing says so when it is built.
    #[test]
    fn every_file_of_the_page_is_served_and_so_is_all_that_it_imports() {
        let there = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/web")).unwrap();
        let mut there: Vec<String> = there.map(|entry| format!("/{}", entry.unwrap().file_name().display())).collect();
        let mut served: Vec<&str> = FILES.iter().map(|(name, _, _)| if *name == "/" { "/index.html" } else { *name }).collect();
        there.sort();
        served.sort_unstable();
        assert_eq!(served, there);
        for (name, _, text) in FILES {
            let wanted = text.lines().filter(|line| line.starts_with("import ") || line.contains(" src=\"/"));
            for line in wanted {
                let path = line.split('"').find(|part| part.starts_with('/')).unwrap();
                assert!(file(path).is_some(), "{name}: {line}");
            }
        }
    }
}
