//! Talks to the API of a running gateway over its Unix socket.
//!
//! Invariant: a gateway that is not there gives [`NotRunning`], and nothing waits longer than 10 s.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use tokio::net::UnixStream;

use crate::exit::NotRunning;
use ropewalk_api::{Failed, Status};
use ropewalk_config::{BALANCE_CONFIG, Config, HUB_CONFIG, RELAY_CONFIG, RUN_DIR, SITE_CONFIG};

/// Longest time a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, bytes: a hub with all its sites.
const ANSWER_MAX: usize = 64 << 20;

/// Why an answer cannot be read, and what to do.
const OTHER_VERSION: &str = "the gateway gave an answer that this program does not understand: the \
    gateway that runs is of another version; use the program that it was started with, or restart \
    the gateway after an upgrade";

/// Why an answer is none, and what to do.
const NO_JSON: &str = "the gateway gave an answer that is no JSON: is this its socket?";

/// Why a request has no answer, and what to do.
const UNKNOWN_REQUEST: &str = "the gateway that runs does not know this request: restart it after an \
    upgrade";

/// Reads an answer.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        let why = match error.classify() {
            Category::Data => OTHER_VERSION,
            Category::Io | Category::Syntax | Category::Eof => NO_JSON,
        };
        anyhow::Error::new(error).context(why)
    })
}

/// A gateway's API.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The API at `socket`; nothing is connected yet.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// The gateway that is meant: by socket, by configuration, or the only one that runs.
    ///
    /// # Errors
    /// None runs, several do, or the configuration is wrong.
    pub fn find(config: Option<&Path>, socket: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(socket) = socket {
            return Ok(Self::new(socket));
        }
        if let Some(config) = config {
            return Ok(Self::new(&Config::load(config)?.common().socket));
        }
        let mut running = Vec::new();
        let mut denied = None;
        for (config, role) in [
            (SITE_CONFIG, "site"),
            (HUB_CONFIG, "hub"),
            (RELAY_CONFIG, "relay"),
            (BALANCE_CONFIG, "balance"),
        ] {
            let configured = Config::load(Path::new(config)).map(|c| c.common().socket.clone());
            let socket =
                configured.unwrap_or_else(|_| Path::new(RUN_DIR).join(format!("{role}.sock")));
            match std::os::unix::net::UnixStream::connect(&socket) {
                Ok(_) => running.push((config, socket)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    denied = Some(socket);
                }
                Err(_) => {}
            }
        }
        match (running.as_slice(), denied) {
            ([(_, socket)], _) => Ok(Self::new(socket)),
            ([], Some(socket)) => Err(permission(&socket)),
            ([], None) => Err(NotRunning(
                "no gateway is running here; start one with `ropewalk up`, `ropewalk hub`, \
                 `ropewalk relay` or `ropewalk balance`, or name its socket with --socket"
                    .to_owned(),
            )
            .into()),
            (several, _) => {
                let files: Vec<_> = several.iter().map(|(config, _)| *config).collect();
                bail!(
                    "several gateways run here; choose with --config {}",
                    files.join(" or ")
                )
            }
        }
    }

    /// The state of the gateway.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn status(&self) -> anyhow::Result<Status> {
        self.get("/v1/status")
    }

    /// What `path` answers.
    ///
    /// # Errors
    /// The gateway does not run, does not answer, or refuses.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.request(Method::GET, path, None)
    }

    /// What `path` answers to `body`.
    ///
    /// # Errors
    /// The gateway does not run, does not answer, or refuses.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let body = serde_json::to_value(body).context("a request that is no JSON")?;
        self.request(Method::POST, path, Some(&body))
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the gateway answers, as it is.
    ///
    /// # Errors
    /// The gateway does not run, or does not answer.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let answer = tokio::time::timeout(TIMEOUT, self.exchange(method, path, body)).await;
        answer.unwrap_or_else(|_| {
            Err(NotRunning(format!(
                "the gateway at {} did not answer within {} s",
                self.socket.display(),
                TIMEOUT.as_secs()
            ))
            .into())
        })
    }

    fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (status, bytes) = runtime.block_on(self.ask(method, path, body))?;
        if status.is_success() {
            return read(&bytes);
        }
        let value: Value = read(&bytes)?;
        let reason = value["error"]
            .as_str()
            .unwrap_or("no reason given")
            .to_owned();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return Err(NotRunning(reason).into());
        }
        if status == StatusCode::NOT_FOUND && reason == Failed::NO_SUCH_PAGE {
            return Err(anyhow!(reason).context(UNKNOWN_REQUEST));
        }
        Err(anyhow!(reason))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| self.refused(error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection);
        let text = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Full::new(Bytes::from(text)))?;
        let answer = sender
            .send_request(request)
            .await
            .context("the gateway hung up")?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let bytes = body
            .map_err(|error| anyhow!("the answer was cut short: {error}"))?
            .to_bytes();
        driver.abort();
        Ok((status, bytes))
    }

    fn refused(&self, error: io::Error) -> anyhow::Error {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
        let kind = error.kind();
        if kind == PermissionDenied {
            return permission(&self.socket);
        }
        if kind == NotFound || kind == ConnectionRefused {
            return NotRunning(format!(
                "no gateway answers at {}; start it, or name its socket with --socket",
                self.socket.display()
            ))
            .into();
        }
        anyhow!(error).context(format!("cannot connect to {}", self.socket.display()))
    }
}

fn permission(socket: &Path) -> anyhow::Error {
    anyhow!(
        "you may not use {}; run as root, or set `group` in [api] of its configuration",
        socket.display()
    )
}
