//! The dashboard of a running gateway, for a browser on this machine.
//!
//! A process of its own serves the pages, never the gateway: what browsers reach does not belong beside
//! packets, and the dashboard has the rights of whoever started it. It asks the gateway over its API socket,
//! and changes things with the same requests and commands as a person at a terminal.
//!
//! | file | holds |
//! |---|---|
//! | `access.rs` | who may ask: `Host`, `Origin`, link, cookie, role, headers of every answer |
//! | `assets.rs`, `assets/` | the pages, in the program |
//! | `live.rs` | the stream of server-sent events, and the one poll that all windows share |
//! | `view.rs` | what the pages show, made of a status: pure |
//! | `actions.rs` | what the pages can do |
//! | `report.rs` | the report for support, without secrets: pure |
//!
//! Invariant: while no window is open, nothing is asked of the gateway.

#![forbid(unsafe_code)]

mod access;
mod actions;
mod assets;
mod live;
pub mod report;
pub mod view;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

pub use access::{Access, Role};
use live::Live;

/// Largest request body, bytes.
const BODY_MAX: usize = 16 << 10;

/// An answer of the gateway: its code and its JSON, or why there is none.
pub type Answer = Result<(StatusCode, Bytes), String>;
/// Asks the gateway: method, path, body.
pub type Ask = Arc<
    dyn Fn(Method, String, Option<Value>) -> Pin<Box<dyn Future<Output = Answer> + Send>>
        + Send
        + Sync,
>;
/// Runs this program with arguments, for the same gateway. May block, for a bounded time.
pub type Command = Arc<dyn Fn(Vec<String>) -> Result<Ran, String> + Send + Sync>;

/// How a command ended.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Whether its exit code is 0.
    pub ok: bool,
    /// What it printed.
    pub out: String,
    /// What it said beside.
    pub notes: String,
}

/// The gateway that is shown.
#[derive(Clone)]
pub struct Gateway {
    /// Its API.
    pub ask: Ask,
    /// The commands.
    pub command: Command,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gateway")
    }
}

/// What every request needs.
#[derive(Clone)]
struct Dashboard {
    gateway: Gateway,
    access: Arc<Access>,
    live: Arc<Live>,
}

/// The requests there are. Call it inside a runtime, which asks the gateway while a window is open. Whoever serves the
/// requests bounds connections and times.
pub fn router(access: Access, gateway: Gateway) -> Router {
    let access = Arc::new(access);
    let dashboard = Dashboard {
        live: Live::start(gateway.clone()),
        access: Arc::clone(&access),
        gateway,
    };
    let changes = Router::new()
        .route("/api/path", post(actions::path))
        .route("/api/scheduler", post(actions::scheduler))
        .route("/api/doctor", post(actions::doctor))
        .route("/api/report", post(actions::report))
        .route("/api/invite", post(actions::invite))
        .route("/api/revoke", post(actions::revoke))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&access),
            access::require_admin,
        ));
    let looks = Router::new()
        .route("/api/about", get(about))
        .route("/api/history", get(history))
        .route("/api/happened", get(happened))
        .route("/api/schedulers", get(schedulers))
        .route("/events", get(events));
    Router::new()
        .merge(changes)
        .merge(looks)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&access),
            access::require_session,
        ))
        .route("/session", post(access::begin_session))
        .route("/", get(|| async { assets::answer("index.html") }))
        .route("/assets/{*name}", get(assets::get))
        .fallback(|| async { refused(StatusCode::NOT_FOUND, "there is no such page") })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn(access::require_own_page))
        .with_state(dashboard)
}

/// A request that is refused, as the API of a gateway says so.
fn refused(status: StatusCode, why: impl Into<String>) -> Response {
    let error: String = why.into();
    (status, Json(json!({ "error": error }))).into_response()
}

/// Hands on what the gateway answers.
async fn hand_on(gateway: &Gateway, method: Method, path: String, body: Option<Value>) -> Response {
    match (gateway.ask)(method, path, body).await {
        Ok((status, bytes)) => {
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (status, kind, bytes).into_response()
        }
        Err(why) => refused(StatusCode::BAD_GATEWAY, why),
    }
}

/// What the person at this window may do.
async fn about(State(dashboard): State<Dashboard>) -> Json<Value> {
    Json(json!({ "admin": dashboard.access.role() == Role::Admin }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    range: Range,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Range {
    Minutes,
    Hour,
    Day,
}

async fn history(State(dashboard): State<Dashboard>, Query(wanted): Query<Wanted>) -> Response {
    let range = match wanted.range {
        Range::Minutes => "minutes",
        Range::Hour => "hour",
        Range::Day => "day",
    };
    let path = format!("/v1/history?range={range}");
    hand_on(&dashboard.gateway, Method::GET, path, None).await
}

async fn happened(State(dashboard): State<Dashboard>) -> Response {
    let path = "/v1/happened".to_owned();
    hand_on(&dashboard.gateway, Method::GET, path, None).await
}

async fn schedulers(State(dashboard): State<Dashboard>) -> Response {
    let path = "/v1/scheduler".to_owned();
    hand_on(&dashboard.gateway, Method::GET, path, None).await
}

async fn events(State(dashboard): State<Dashboard>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    (kind, dashboard.live.watch()).into_response()
}

#[cfg(test)]
mod tests;
