//! What the pages can do: requests of the API, and commands of this program.
//!
//! Invariant: an argument of a command is a whole word that the command itself checks. No shell is between.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use qrcode::{Color, EcLevel, QrCode};
use ropewalk_api::{Happened, PathRequest, SchedulerRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::live;
use crate::report::without_secrets;
use crate::{Dashboard, Ran, hand_on, refused};

type Body<T> = Result<Json<T>, JsonRejection>;

/// Sends a request of the API on, if it is one.
async fn send<T: Serialize>(dashboard: &Dashboard, path: &str, body: Body<T>) -> Response {
    let body = match body {
        Ok(Json(body)) => body,
        Err(rejection) => return refused(rejection.status(), rejection.body_text()),
    };
    let value = serde_json::to_value(&body).ok();
    hand_on(&dashboard.gateway, Method::POST, path.to_owned(), value).await
}

/// Takes an uplink in or out of use, marks it, or announces its end.
pub async fn path(State(dashboard): State<Dashboard>, body: Body<PathRequest>) -> Response {
    send(&dashboard, "/v1/paths", body).await
}

/// Changes the scheduler.
pub async fn scheduler(
    State(dashboard): State<Dashboard>,
    body: Body<SchedulerRequest>,
) -> Response {
    send(&dashboard, "/v1/scheduler", body).await
}

async fn run(dashboard: &Dashboard, arguments: &[&str]) -> Result<Ran, String> {
    let arguments = arguments.iter().map(|&text| text.to_owned()).collect();
    let command = Arc::clone(&dashboard.gateway.command);
    let ran = tokio::task::spawn_blocking(move || command(arguments)).await;
    ran.map_err(|error| error.to_string()).flatten()
}

/// Checks everything.
pub async fn doctor(State(dashboard): State<Dashboard>) -> Response {
    match run(&dashboard, &["doctor", "--json"]).await {
        // It exits with 1 when a check failed: that is an answer.
        Ok(ran) => match serde_json::from_str::<Value>(&ran.out) {
            Ok(checks) => Json(checks).into_response(),
            Err(_) => failed(&ran),
        },
        Err(why) => refused(StatusCode::BAD_GATEWAY, why),
    }
}

/// Collects what support needs.
pub async fn report(State(dashboard): State<Dashboard>) -> Response {
    let status = live::get::<Value>(&dashboard.gateway, "/v1/status").await;
    let happened = live::get::<Vec<Happened>>(&dashboard.gateway, "/v1/happened").await;
    let doctor = run(&dashboard, &["doctor"]).await;
    let text = crate::report::of(doctor.map(|ran| ran.out + &ran.notes), happened, status);
    Json(json!({ "report": text })).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invited {
    name: String,
}

/// Invites a site to this hub.
pub async fn invite(State(dashboard): State<Dashboard>, body: Body<Invited>) -> Response {
    let name = match site_name(&body) {
        Ok(name) => name,
        Err(refusal) => return refusal,
    };
    match run(&dashboard, &["invite", "--", name]).await {
        Ok(ran) if ran.ok => {
            let token = ran.out.trim();
            let qr = QrCode::with_error_correction_level(token, EcLevel::L).ok();
            let qr = qr.map(|code| {
                let dark = code.to_colors().into_iter();
                let bits: String = dark
                    .map(|c| if c == Color::Dark { '1' } else { '0' })
                    .collect();
                json!({ "width": code.width(), "bits": bits })
            });
            Json(json!({ "token": token, "notes": ran.notes, "qr": qr })).into_response()
        }
        Ok(ran) => failed(&ran),
        Err(why) => refused(StatusCode::BAD_GATEWAY, why),
    }
}

/// Shuts a site out.
pub async fn revoke(State(dashboard): State<Dashboard>, body: Body<Invited>) -> Response {
    let name = match site_name(&body) {
        Ok(name) => name,
        Err(refusal) => return refusal,
    };
    // A name that begins with '-' is no option this way.
    match run(&dashboard, &["invite", &format!("--revoke={name}")]).await {
        Ok(ran) if ran.ok => Json(json!({ "notes": ran.notes })).into_response(),
        Ok(ran) => failed(&ran),
        Err(why) => refused(StatusCode::BAD_GATEWAY, why),
    }
}

#[expect(clippy::result_large_err, reason = "the answer to a request, once")]
fn site_name(body: &Body<Invited>) -> Result<&str, Response> {
    match body {
        Ok(Json(invited)) if !invited.name.contains('\0') => Ok(&invited.name),
        Ok(_) => Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "this is no name")),
        Err(rejection) => Err(refused(rejection.status(), rejection.body_text())),
    }
}

/// A command that did not do what it was asked for.
fn failed(ran: &Ran) -> Response {
    let said = without_secrets(ran.notes.trim());
    let why = said.strip_prefix("error: ").unwrap_or(&said);
    refused(StatusCode::UNPROCESSABLE_ENTITY, why)
}
