//! Who may ask, and what every answer tells the browser.
//!
//! - **Host** must be a literal name of this machine's loopback, so that no page can reach the dashboard under a
//!   name of its own (DNS rebinding). The port may be another one: `ssh -L` changes it.
//! - **Origin** must be the page's own wherever a browser names one.
//! - **The link** carries a token in its fragment, which no browser sends. The page exchanges the token for a
//!   cookie that scripts cannot read and that other sites' requests do not carry.
//! - **Changes** need the role of an admin, and a header with a second secret. The page keeps that secret for its own
//!   origin. Browsers send the cookie to every port of this machine, and so to servers of other users, too: the
//!   cookie alone lets its holder look and not change.
//!
//! Invariant: tokens are compared in constant time, and occur in no log and in no answer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ropewalk_crypto::constant_time::verify_slices_are_equal;
use serde::Deserialize;
use serde_json::json;

use crate::{Dashboard, refused};

/// Most browsers at a time; the one that came first has to follow the link again. More: memory.
const SESSIONS_MAX: usize = 16;
/// The header that changes need: the second secret of the session.
const PROOF: &str = "x-ropewalk";
/// What pages may load: files of this program. The hash is that of the script in `index.html`.
pub const POLICY: &str = "default-src 'none'; \
    script-src 'self' 'sha256-BCMRYbbmr5nq4aXH4lxEgSKP6iZAL0YxU5vdbhmdy/s='; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// What a link allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To look.
    ReadOnly,
    /// To change things, too.
    Admin,
}

/// The link, and the browsers that followed it.
pub struct Access {
    role: Role,
    token: String,
    /// Cookies of several dashboards on this machine have names of their own: browsers ignore ports.
    cookie: String,
    sessions: Mutex<VecDeque<Session>>,
}

/// A browser that followed the link.
#[derive(Clone)]
struct Session {
    cookie: String,
    proof: String,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// A new link.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn new(role: Role) -> anyhow::Result<Self> {
        Ok(Self {
            role,
            token: random::<32>()?,
            cookie: format!("ropewalk_{}", random::<4>()?),
            sessions: Mutex::default(),
        })
    }

    /// What the link allows.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The link for a dashboard that is reached at `authority`, such as `127.0.0.1:1234`.
    #[must_use]
    pub fn link(&self, authority: &str) -> String {
        format!("http://{authority}/#{}", self.token)
    }

    /// The cookie and the proof for whoever has the token.
    fn begin(&self, token: &str) -> Option<(String, String)> {
        same(token, &self.token).then_some(())?;
        let session = Session {
            cookie: random::<32>().ok()?,
            proof: random::<32>().ok()?,
        };
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= SESSIONS_MAX {
            sessions.pop_front();
        }
        sessions.push_back(session.clone());
        let (name, value) = (&self.cookie, session.cookie);
        let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict");
        Some((cookie, session.proof))
    }

    /// Whether the browser has followed the link.
    fn knows(&self, headers: &HeaderMap) -> bool {
        self.session(headers).is_some()
    }

    /// Whether the page that asks has followed the link, and not only another one in its browser.
    fn proves(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(PROOF).and_then(|value| value.to_str().ok());
        let session = self.session(headers);
        session.is_some_and(|session| shown.is_some_and(|shown| same(&session.proof, shown)))
    }

    fn session(&self, headers: &HeaderMap) -> Option<Session> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let pairs = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = pairs.flat_map(|text| text.split(';'));
        let value =
            pairs.find_map(|pair| pair.trim().strip_prefix(&self.cookie)?.strip_prefix('='));
        let value = value?;
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sessions = sessions.iter();
        sessions
            .find(|session| same(&session.cookie, value))
            .cloned()
    }
}

fn same(one: &str, other: &str) -> bool {
    verify_slices_are_equal(one.as_bytes(), other.as_bytes()).is_ok()
}

/// So many random bytes, in hexadecimal digits.
fn random<const BYTES: usize>() -> anyhow::Result<String> {
    let mut bytes = [0; BYTES];
    ropewalk_crypto::rand::fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a `Host` is a literal name of the loopback.
fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || port.starts_with(':') => name,
            _ => return false,
        },
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Why a request does not come from a page of this dashboard.
fn foreign(method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    if !is_own_host(host) {
        return Some("open the dashboard at 127.0.0.1 or localhost, as its link says");
    }
    let own = |origin: &str| {
        origin
            .strip_prefix("http://")
            .is_some_and(|rest| rest == host)
    };
    let names_origin = headers.contains_key(header::ORIGIN);
    if names_origin && !text(header::ORIGIN).is_some_and(own) {
        return Some("a page of another origin may not use the dashboard");
    }
    if *method != Method::GET && !names_origin {
        return Some("a change must name its origin, as browsers do");
    }
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return Some("a page of another site may not use the dashboard");
    }
    None
}

/// The first check of every request; tells the browser what pages may do.
pub async fn require_own_page(request: Request, next: Next) -> Response {
    let mut response = match foreign(request.method(), request.headers()) {
        Some(why) => refused(StatusCode::FORBIDDEN, why),
        None => next.run(request).await,
    };
    let rules = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ];
    for (name, value) in rules {
        let name = HeaderName::from_static(name);
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Lets browsers pass that have followed the link.
pub async fn require_session(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    if access.knows(request.headers()) {
        return next.run(request).await;
    }
    refused(
        StatusCode::UNAUTHORIZED,
        "open the link that `ropewalk dashboard` printed",
    )
}

/// Lets changes pass.
pub async fn require_admin(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    if access.role() != Role::Admin {
        let why = "this link is for looking only; `ropewalk dashboard` without --read-only prints another";
        return refused(StatusCode::FORBIDDEN, why);
    }
    if !access.proves(request.headers()) {
        let why = "changes need a window that the link has opened: open the link that `ropewalk dashboard` printed";
        return refused(StatusCode::FORBIDDEN, why);
    }
    next.run(request).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    token: String,
}

/// Exchanges the token of the link for a cookie and the proof that changes need.
pub async fn begin_session(
    State(dashboard): State<Dashboard>,
    body: Result<Json<Link>, JsonRejection>,
) -> Response {
    let Ok(Json(link)) = body else {
        return refused(
            StatusCode::UNPROCESSABLE_ENTITY,
            "send {\"token\": …} as JSON",
        );
    };
    let begun = dashboard.access.begin(&link.token);
    let begun =
        begun.and_then(|(cookie, proof)| Some((HeaderValue::try_from(cookie).ok()?, proof)));
    let Some((cookie, proof)) = begun else {
        return refused(
            StatusCode::UNAUTHORIZED,
            "this link is of an earlier run: open the one that `ropewalk dashboard` printed last",
        );
    };
    let answer = Json(json!({ "proof": proof }));
    ([(header::SET_COOKIE, cookie)], answer).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literal_names_of_the_loopback_are_this_machine() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost:9",
            "LOCALHOST",
            "[::1]:7",
            "[::1]",
            "127.9.9.9:1",
        ] {
            assert!(is_own_host(own), "{own}");
        }
        for other in [
            "",
            ":80",
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1:80",
            "0.0.0.0:80",
            "[::1].evil.example",
            "[::1",
            "::1",
            "127.0.0.1@evil.example",
            "[fe80::1]",
        ] {
            assert!(!is_own_host(other), "{other}");
        }
    }

    #[test]
    fn a_browser_that_came_first_gives_its_place_to_the_seventeenth() {
        let access = Access::new(Role::Admin).unwrap();
        assert!(access.begin("").is_none() && access.begin(&"0".repeat(64)).is_none());
        let token = access.token.clone();
        let cookie = |access: &Access| {
            let mut headers = HeaderMap::new();
            let (set, _) = access.begin(&token).unwrap();
            let pair = set.split(';').next().unwrap().to_owned();
            headers.insert(
                header::COOKIE,
                HeaderValue::try_from(format!("a=b; {pair}")).unwrap(),
            );
            headers
        };
        let first = cookie(&access);
        assert!(access.knows(&first));
        for _ in 0..SESSIONS_MAX {
            cookie(&access);
        }
        assert!(!access.knows(&first) && access.knows(&cookie(&access)));
        assert!(!format!("{access:?}").contains(&token));
    }
}
