//! The API: HTTP with JSON over a Unix socket, and over a loopback address when asked.
//!
//! | request | answer |
//! |---|---|
//! | `GET /healthz` | `{"ok":true}` while the threads of the engine have their turns |
//! | `GET /v1/status` | the whole state, [`Status`]; with `?brief=true` a hub has a line for each site |
//! | `GET /v1/scheduler` | the schedulers there are, and those in use |
//! | `POST /v1/scheduler` | `{"kind":…,"direction":…,"site":…}` → `{"changed":n}` |
//! | `GET /v1/paths` | the paths of every tunnel |
//! | `POST /v1/paths` | `{"uplink":…,"enabled":…}`, `{"uplink":…,"leaving":true,"seconds":…}`, or `{"uplink":…,"standby":…,"metered":…}` |
//! | `POST /v1/sites/reload` | a hub reads its sites file again |
//! | `POST /v1/reload` | as SIGHUP: sites of a hub, rules for uplinks of a site |
//! | `POST /v1/key` | `{"switch":false}`: a next key is made, and announced or asked for; `{"switch":true}`: a hub has its next key now → `{"key":…}` |
//! | `GET /v1/history` | `?range=minutes`, `hour` or `day`, `&last=n` points → [`ropewalk_api::History`] |
//! | `GET /v1/happened` | what happened lately, in words |
//! | `GET /metrics` | Prometheus text |
//!
//! Invariant: a bad request gets a 4xx with `{"error":…}`. Connections, body sizes and waiting
//! times are bounded. Access is by the mode of the socket. Over TCP the `Host` must be a loopback
//! name, so that no web page can reach the API under a name of its own. Over TCP a body must be
//! declared as JSON, which a web page cannot do across origins. A request that names an origin is
//! refused.

mod listener;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use ropewalk_api::words::{About, Weight, Words};
use ropewalk_api::{
    Changed, Done, Failed, Happened, History, KeyChange, KeyRequest, Marks, PathRequest, PathUse,
    Paths, Reloaded, Route, SchedulerRequest, Schedulers, Status, prometheus,
};
use tokio::net::{TcpListener, UnixListener};

use super::ANSWER_TIMEOUT;
use super::keys::ChangeKey;
use super::memory::Memory;
use crate::engine::Pulse;
use crate::engine::control::Command;
use crate::fleet::member::Member;
use crate::http_server;

/// Largest request body, bytes.
const BODY_MAX: usize = 16 << 10;

/// How long after a refusal the loopback address is tried again. Longer: less work, and the API comes there later.
const BIND_PAUSE: Duration = Duration::from_mins(1);

/// How often a request for health looks whether the engine has had a turn. Longer: fewer looks, later answers.
const HEALTH_LOOK: Duration = Duration::from_millis(1);

/// Hands a command to the engine.
pub type CommandSink = Arc<dyn Fn(Command) -> anyhow::Result<()> + Send + Sync>;
/// Reads again what can change while running; says what was read. Asks at once, and waits without a thread.
pub type Reload = Arc<dyn Fn() -> Reloading + Send + Sync>;
/// The answer to come.
pub type Reloading = Pin<Box<dyn Future<Output = anyhow::Result<String>> + Send>>;

/// Sets marks of the uplink with this name.
pub type Mark = Arc<dyn Fn(&str, Marks) -> Result<(), String> + Send + Sync>;

/// What the API needs of the gateway.
#[derive(Clone)]
pub struct Api {
    /// The engine.
    pub commands: CommandSink,
    /// The turns of its threads.
    pub pulses: Vec<Pulse>,
    /// As SIGHUP.
    pub reload: Reload,
    /// Changes the key of this gateway.
    pub change_key: ChangeKey,
    /// What this gateway remembers.
    pub memory: Memory,
    /// Marks an uplink of this site until its next start; says why not.
    pub mark: Mark,
    /// Why the API is not on its loopback address.
    pub unoffered: Unoffered,
    /// The fleet of a hub.
    pub fleet: Option<Arc<Member>>,
    /// Whether this gateway is a hub.
    pub is_hub: bool,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("is_hub", &self.is_hub)
            .finish_non_exhaustive()
    }
}

pub use listener::socket_service;

/// Serves the API on the Unix socket at `path` until the runtime ends.
///
/// # Errors
/// Another gateway serves there, the group is unknown, or the socket cannot be made.
pub fn serve_unix(api: Api, path: &Path, group: Option<&str>) -> anyhow::Result<()> {
    let socket = listener::bind_unix(path, group)?;
    let listener = UnixListener::from_std(socket).context("cannot watch the API socket")?;
    tokio::spawn(http_server::serve(listener, router(api)));
    Ok(())
}

/// Serves the API on a loopback address until the runtime ends. Where another program has the address, the status
/// says so, and the address is tried again and again: a site whose kill switch is on must not end for want of it.
pub async fn serve_tcp(api: Api, address: SocketAddr) {
    serve_tcp_after(api, address, BIND_PAUSE).await;
}

async fn serve_tcp_after(api: Api, address: SocketAddr, pause: Duration) {
    let unoffered = api.unoffered.clone();
    let router = router(api).layer(middleware::from_fn(require_local_client));
    let error = match TcpListener::bind(address).await {
        Ok(listener) => {
            tokio::spawn(http_server::serve(listener, router));
            return;
        }
        Err(error) => error,
    };
    let why = format!(
        "the API is not on {address}: {error}; stop the program that has the address, or change `listen` in [api]"
    );
    tracing::warn!("{why}; the address is tried again every minute");
    unoffered.set(Some(why));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause).await;
            if let Ok(listener) = TcpListener::bind(address).await {
                tracing::info!(%address, "the API is on its address now");
                unoffered.set(None);
                http_server::serve(listener, router).await;
                return;
            }
        }
    });
}

/// Why the API is not on its loopback address; nothing while it is, or has none.
#[derive(Clone, Debug, Default)]
pub struct Unoffered(Arc<Mutex<Option<String>>>);

impl Unoffered {
    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn words(&self) -> Option<Words> {
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone().map(|text| Words {
            about: About::Api,
            weight: Weight::Worse,
            text,
        })
    }
}

/// The requests there are.
fn router(api: Api) -> Router {
    let mut router = Router::new();
    for route in Route::ALL {
        router = router.route(route.path(), handler(route));
    }
    router
        .fallback(|| async { Refused::new(StatusCode::NOT_FOUND, Failed::NO_SUCH_PAGE) })
        .method_not_allowed_fallback(|| async {
            Refused::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this page does not take this method",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(api)
}

fn handler(route: Route) -> MethodRouter<Api> {
    match route {
        Route::Health => get(health),
        Route::Metrics => get(metrics_text),
        Route::Status => get(status),
        Route::Schedulers => get(schedulers),
        Route::SetScheduler => post(set_scheduler),
        Route::Paths => get(paths),
        Route::SetPath => post(set_path),
        Route::History => get(history),
        Route::Happened => get(happened),
        Route::ReloadSites => post(reload_sites),
        Route::Reload => post(reload),
        Route::ChangeKey => post(change_key),
    }
}

async fn require_local_client(headers: HeaderMap, request: Request, next: Next) -> Response {
    // A web page of elsewhere may make a browser on this machine ask; browsers say so.
    if headers.contains_key(header::ORIGIN) {
        let why = "this API is not for web pages";
        return Refused::new(StatusCode::FORBIDDEN, why).into_response();
    }
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let loopback = name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if loopback || name.eq_ignore_ascii_case("localhost") {
        next.run(request).await
    } else {
        Refused::new(StatusCode::FORBIDDEN, "use this API under localhost").into_response()
    }
}

/// A refused request.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    reason: String,
}

impl Refused {
    fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let failed = Failed { error: self.reason };
        (self.status, Json(failed)).into_response()
    }
}

impl From<JsonRejection> for Refused {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

/// A query that asks for what is not there.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unusable(rejection: QueryRejection) -> Refused {
    Refused::new(StatusCode::UNPROCESSABLE_ENTITY, rejection.body_text())
}

type Answer<T> = Result<T, Refused>;

/// Asks the engine and waits for its answer without blocking the runtime.
async fn ask<T: Send + 'static>(
    api: &Api,
    command: impl FnOnce(SyncSender<T>) -> Command + Send + 'static,
) -> Answer<T> {
    let commands = Arc::clone(&api.commands);
    let asked = tokio::task::spawn_blocking(move || {
        let (reply, answer) = sync_channel(1);
        commands(command(reply)).map_err(|error| error.to_string())?;
        answer
            .recv_timeout(ANSWER_TIMEOUT)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => "the engine does not answer".to_owned(),
                RecvTimeoutError::Disconnected => "the engine is stopping".to_owned(),
            })
    });
    let answered = asked.await.unwrap_or_else(|error| Err(error.to_string()));
    answered.map_err(|reason| Refused::new(StatusCode::SERVICE_UNAVAILABLE, reason))
}

/// Whether each thread of the engine completes a turn. The state of a hub with many sites would cost a turn far more
/// than this, and those who ask for health ask often.
async fn health(State(api): State<Api>) -> Answer<Json<Done>> {
    let before: Vec<u64> = api.pulses.iter().map(Pulse::turns).collect();
    api.pulses.iter().for_each(Pulse::wake);
    let turned = async {
        while (api.pulses.iter().zip(&before)).any(|(pulse, turns)| pulse.turns() == *turns) {
            tokio::time::sleep(HEALTH_LOOK).await;
        }
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, turned).await {
        Ok(()) => Ok(Json(Done { ok: true })),
        Err(_) => Err(Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the engine does not answer",
        )),
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HowMuch {
    #[serde(default)]
    brief: bool,
}

async fn status(
    State(api): State<Api>,
    wanted: Result<Query<HowMuch>, QueryRejection>,
) -> Answer<Json<Status>> {
    let Query(HowMuch { brief }) = wanted.map_err(unusable)?;
    let whole = whole_status(&api).await?;
    Ok(Json(if brief { whole.in_short() } else { whole }))
}

/// The state, with its words.
async fn whole_status(api: &Api) -> Answer<Status> {
    let mut status = ask(api, Command::Status).await?;
    api.memory.describe(&mut status);
    status.words.extend(api.unoffered.words());
    status.fleet = api.fleet.as_ref().map(|fleet| fleet.status());
    Ok(status)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    range: String,
    last: Option<usize>,
}

async fn history(
    State(api): State<Api>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Answer<Json<History>> {
    let Query(wanted) = wanted.map_err(unusable)?;
    let range = wanted.range.parse();
    let range = range.map_err(|why: String| Refused::new(StatusCode::UNPROCESSABLE_ENTITY, why))?;
    Ok(Json(
        api.memory.points(range, wanted.last.unwrap_or(usize::MAX)),
    ))
}

async fn happened(State(api): State<Api>) -> Json<Vec<Happened>> {
    Json(api.memory.events())
}

async fn metrics_text(State(api): State<Api>) -> Answer<Response> {
    let status = ask(&api, Command::Status).await?;
    let kind = [(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)];
    Ok((kind, prometheus::render(&status)).into_response())
}

async fn schedulers(State(api): State<Api>) -> Answer<Json<Schedulers>> {
    Ok(Json(Schedulers::of(&ask(&api, Command::Status).await?)))
}

async fn set_scheduler(
    State(api): State<Api>,
    body: Result<Json<SchedulerRequest>, JsonRejection>,
) -> Answer<Json<Changed>> {
    let Json(request) = body?;
    let command = move |reply| Command::SetScheduler {
        direction: request.direction,
        kind: request.kind,
        peer: request.site,
        reply,
    };
    let changed = ask(&api, command).await?;
    let changed = changed.map_err(|reason| Refused::new(StatusCode::NOT_FOUND, reason))?;
    tracing::info!(
        scheduler = request.kind.name(),
        changed,
        "scheduler changed"
    );
    Ok(Json(Changed { changed }))
}

async fn paths(State(api): State<Api>) -> Answer<Json<Paths>> {
    Ok(Json(Paths::of(whole_status(&api).await?)))
}

async fn set_path(
    State(api): State<Api>,
    body: Result<Json<PathRequest>, JsonRejection>,
) -> Answer<Json<Done>> {
    let Json(request) = body?;
    if let Some(marks) = request.marks() {
        (api.mark)(&request.uplink, marks)
            .map_err(|reason| Refused::new(StatusCode::NOT_FOUND, reason))?;
        tracing::info!(
            uplink = request.uplink,
            ?marks,
            "marks of an uplink changed by hand"
        );
        api.memory
            .happened(format!("{}: {}", request.uplink, in_words(marks)));
        return Ok(Json(Done { ok: true }));
    }
    let wanted = request
        .wanted()
        .map_err(|reason| Refused::new(StatusCode::UNPROCESSABLE_ENTITY, reason))?;
    let uplink = request.uplink.clone();
    let command = move |reply| Command::SetPath {
        uplink: request.uplink,
        wanted,
        reply,
    };
    let done = ask(&api, command).await?;
    done.map_err(|reason| Refused::new(StatusCode::NOT_FOUND, reason))?;
    tracing::info!(uplink, ?wanted, "use of an uplink changed by hand");
    let what = match wanted {
        PathUse::Enabled => "taken into use by hand",
        PathUse::Disabled => "taken out of use by hand",
        PathUse::Leaving(_) | PathUse::Foretold(Some(_)) => "its end was announced by hand",
        PathUse::Returning | PathUse::Foretold(None) => "its end was taken back by hand",
    };
    api.memory.happened(format!("{uplink}: {what}"));
    Ok(Json(Done { ok: true }))
}

fn in_words(marks: Marks) -> String {
    let one = |name: &str, value: Option<bool>| {
        let no = if value? { "" } else { "no longer " };
        Some(format!("{no}{name} by hand"))
    };
    let both = [one("standby", marks.standby), one("metered", marks.metered)];
    both.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

async fn reload_sites(State(api): State<Api>) -> Answer<Json<Reloaded>> {
    if !api.is_hub {
        return Err(Refused::new(
            StatusCode::CONFLICT,
            "this is a site: only hubs have sites",
        ));
    }
    reload(State(api)).await
}

async fn change_key(
    State(api): State<Api>,
    body: Result<Json<KeyRequest>, JsonRejection>,
) -> Answer<Json<KeyChange>> {
    let Json(request) = body?;
    if request.switch && !request.force {
        let status = ask(&api, Command::Status).await?;
        let unknowing = status
            .tunnels
            .iter()
            .filter(|site| site.knows_next_key == Some(false));
        let unknowing: Vec<_> = unknowing.map(|site| site.peer.as_str()).collect();
        if !unknowing.is_empty() {
            return Err(Refused::new(
                StatusCode::CONFLICT,
                format!(
                    "these sites have not said since the hub started that they know the next key, and may \
                     not connect any more: {}; wait until they have connected, or use --force and write \
                     the new key into [hub] of their site.toml",
                    unknowing.join(", ")
                ),
            ));
        }
    }
    // Files may be slow.
    let change = Arc::clone(&api.change_key);
    let changed = tokio::task::spawn_blocking(move || change(request)).await;
    let changed = changed.map_err(anyhow::Error::from).flatten();
    changed.map(Json).map_err(|error| {
        Refused::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("nothing was changed: {error:#}"),
        )
    })
}

async fn reload(State(api): State<Api>) -> Answer<Json<Reloaded>> {
    match (api.reload)().await {
        Ok(what) => {
            tracing::info!(what, "reloaded");
            Ok(Json(Reloaded { reloaded: what }))
        }
        Err(error) => {
            let reason = format!("nothing was changed: {error:#}");
            Err(Refused::new(StatusCode::UNPROCESSABLE_ENTITY, reason))
        }
    }
}
