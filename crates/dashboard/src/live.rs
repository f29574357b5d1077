//! What the pages show, once a second: server-sent events.
//!
//! All windows share one poll of the gateway. It sleeps while no window is open. A window that does not
//! read misses messages, and holds nobody up.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::{Method, StatusCode};
use bytes::Bytes;
use http_body_util::channel::Channel;
use ropewalk_api::{Failed, History, Route, Status};
use tokio::sync::{Notify, watch};

use crate::Gateway;
use crate::view;

/// Time between messages. Longer: less work, later news.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same of a gateway with more tunnels than [`FEW`].
const INTERVAL_MANY: Duration = Duration::from_secs(5);
const FEW: usize = 50;
/// The newest points in each message: the time between messages is a little longer than a second, and a message may be
/// missed. More: longer messages. Fewer: pages ask for all points more often.
const POINTS: usize = 10;
/// Messages that may wait for a window. More: memory.
const WAITING_MAX: usize = 2;

/// The poll.
#[derive(Debug)]
pub struct Live {
    messages: watch::Sender<Bytes>,
    opened: Notify,
}

impl Live {
    /// Starts the poll; it ends with the last owner.
    pub fn start(gateway: Gateway) -> Arc<Self> {
        let live = Arc::new(Self {
            messages: watch::Sender::new(Bytes::new()),
            opened: Notify::new(),
        });
        tokio::spawn(poll(Arc::downgrade(&live), gateway));
        live
    }

    /// The stream for one more window.
    pub fn watch(&self) -> Body {
        let (mut sender, body) = Channel::<Bytes>::new(WAITING_MAX);
        let mut messages = self.messages.subscribe();
        self.opened.notify_one();
        tokio::spawn(async move {
            loop {
                let message = messages.borrow_and_update().clone();
                if !message.is_empty() && sender.send_data(message).await.is_err() {
                    return;
                }
                if messages.changed().await.is_err() {
                    return;
                }
            }
        });
        Body::new(body)
    }
}

async fn poll(live: Weak<Live>, gateway: Gateway) {
    loop {
        let Some(live) = live.upgrade() else { return };
        if live.messages.receiver_count() == 0 {
            // What is known grows old.
            live.messages.send_replace(Bytes::new());
            live.opened.notified().await;
            continue;
        }
        let (kind, text, tunnels) = match look(&gateway).await {
            Ok((text, tunnels)) => ("view", text, tunnels),
            Err(why) => {
                let failed = Failed { error: why };
                (
                    "gone",
                    serde_json::to_string(&failed).unwrap_or_default(),
                    0,
                )
            }
        };
        let message = format!("event: {kind}\ndata: {text}\n\n");
        live.messages.send_replace(Bytes::from(message));
        let pause = if tunnels > FEW {
            INTERVAL_MANY
        } else {
            INTERVAL
        };
        drop(live);
        tokio::time::sleep(pause).await;
    }
}

/// What is to be shown, and of how many tunnels.
async fn look(gateway: &Gateway) -> Result<(String, usize), String> {
    let status: Status = get(gateway, Route::STATUS_IN_SHORT).await?;
    let path = format!("/v1/history?range=minutes&last={POINTS}");
    let newest: History = get(gateway, &path).await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_s = now.unwrap_or_default().as_secs();
    let tunnels = status.tunnels.len() + status.sites.len();
    let view = view::of(status, newest, now_s);
    let text = serde_json::to_string(&view).map_err(|error| error.to_string())?;
    Ok((text, tunnels))
}

/// What the gateway answers, read.
pub async fn get<T: serde::de::DeserializeOwned>(
    gateway: &Gateway,
    path: &str,
) -> Result<T, String> {
    let (status, bytes) = (gateway.ask)(Method::GET, path.to_owned(), None).await?;
    if status != StatusCode::OK {
        let failed: Result<Failed, _> = serde_json::from_slice(&bytes);
        return Err(failed.map_or_else(|_| status.to_string(), |failed| failed.error));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        format!(
            "the gateway that runs is of another version: restart it after an upgrade ({error})"
        )
    })
}
