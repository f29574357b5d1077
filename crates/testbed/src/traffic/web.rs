//! A web server that sends as many bytes as the path of the request says, and pages from it by
//! `curl`.

use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::oneshot;

use super::Endpoints;

/// Largest object.
const OBJECT_BYTES_MAX: usize = 16 << 20;
/// How much longer than its own limit `curl` may take to end.
const END_GRACE: Duration = Duration::from_secs(1);
/// What `curl` says when its time is up.
const CURL_TIMED_OUT: i32 = 28;

/// A server at the far end; it ends when dropped.
#[derive(Debug)]
pub struct ObjectServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectServer {
    /// Listens on a free port of the server's address.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub fn start(ends: &Endpoints) -> Result<Self> {
        let wanted = SocketAddr::new(ends.server_address, 0);
        let listener = ends.server.enter(|| TcpListener::bind(wanted))?;
        let listener = listener.with_context(|| format!("cannot listen on {wanted}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("web-server".into())
            .spawn(move || {
                let objects = Router::new().route("/{bytes}", get(object));
                runtime.spawn(async move { axum::serve(listener, objects).await });
                // Ends by the message, or with the sender.
                let _ended = runtime.block_on(stopped);
            })?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where an object of so many bytes is.
    #[must_use]
    pub fn url(&self, bytes: u32) -> String {
        format!("http://{}/{bytes}", self.address)
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _gone = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

async fn object(Path(bytes): Path<usize>) -> Result<Vec<u8>, StatusCode> {
    if bytes > OBJECT_BYTES_MAX {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    Ok(vec![0; bytes])
}

/// Fetches all of `urls` over up to `connections` connections; whether that was done within
/// `limit`.
///
/// # Errors
/// If `curl` cannot be started or an object cannot be fetched: the message holds what it said.
pub fn fetch(ends: &Endpoints, urls: &[String], connections: u16, limit: Duration) -> Result<bool> {
    let list: String = urls
        .iter()
        .map(|url| format!("url = \"{url}\"\noutput = \"/dev/null\"\n"))
        .collect();
    let mut curl = ends
        .client
        .program("curl")
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*"])
        .args(["--parallel", "--parallel-immediate", "--parallel-max"])
        .arg(connections.to_string())
        .args(["--max-time", &format!("{:.3}", limit.as_secs_f64())])
        .args(["--config", "-"])
        .input(list);
    if let Some(device) = &ends.device {
        curl = curl.args(["--interface", &format!("if!{device}")]);
    }
    let done = curl.run(limit + END_GRACE)?;
    match done.status.code() {
        Some(0) => Ok(true),
        Some(CURL_TIMED_OUT) => Ok(false),
        _ => bail!("curl: {}", done.stderr.trim()),
    }
}
