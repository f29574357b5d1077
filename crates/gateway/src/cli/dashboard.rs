//! `ropewalk dashboard`: a page in the browser about the running gateway.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ropewalk_api::{Done, Route};
use ropewalk_dashboard::{Access, Command, Gateway, Ran, Role};
use ropewalk_io::program;

use super::{Global, output};
use crate::client::Client;
use crate::http_server;

const EXAMPLES: &str = "Examples:
  ropewalk dashboard                   prints a link; open it in a browser on this machine
  ropewalk dashboard --read-only       a link for looking only

From another computer, through SSH; then open the link there:
  ssh -t -L 8737:127.0.0.1:8737 root@boat ropewalk dashboard --port 8737

The page runs until Ctrl-C. It listens on 127.0.0.1 only. The link is a secret: whoever opens it
may do what you may do, or only look with --read-only. Each run has a link of its own.";

/// Longest time that a command of a page may take. Longer: surer on a slow machine. Shorter than the time that the page
/// waits for the answer.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(45);

/// Show the running gateway in a browser: uplinks, what they carry, what is wrong, what to do
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Dashboard {
    /// The link lets people look, and change nothing
    #[arg(long)]
    read_only: bool,
    /// TCP port on 127.0.0.1 [default: a free one]
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    port: u16,
}

impl Dashboard {
    /// Serves until stopped.
    ///
    /// # Errors
    /// No gateway runs, or the port is taken.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let client = Client::find(global.config.as_deref(), global.socket.as_deref())?;
        // Whoever may not use the socket hears so now, not in the browser.
        let _: Done = client.get(Route::Health.path())?;
        let role = if self.read_only {
            Role::ReadOnly
        } else {
            Role::Admin
        };
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.port);
        let listener = TcpListener::bind(address).with_context(|| {
            format!("cannot listen on {address}; choose another --port, or none")
        })?;
        let end = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        serve(listener, client, global.config.clone(), role, end)
    }
}

/// Serves the dashboard of a demo's site.
///
/// # Errors
/// The site does not answer.
pub fn of_demo(
    listener: TcpListener,
    config: &Path,
    stop: Receiver<Infallible>,
) -> anyhow::Result<()> {
    let client = Client::find(Some(config), None)?;
    let (ended, end) = tokio::sync::oneshot::channel::<Infallible>();
    std::thread::spawn(move || {
        let _ = stop.recv();
        drop(ended);
    });
    let end = async {
        let _ = end.await;
    };
    serve(listener, client, Some(config.to_owned()), Role::Admin, end)
}

/// Prints the link and serves until the end.
fn serve(
    listener: TcpListener,
    client: Client,
    config: Option<PathBuf>,
    role: Role,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let command = command(client.socket().to_owned(), config)?;
    let client = Arc::new(client);
    let gateway = Gateway {
        ask: Arc::new(move |method, path, body| {
            let client = Arc::clone(&client);
            Box::pin(async move {
                let asked = client.ask(method, &path, body.as_ref()).await;
                asked.map_err(|error| format!("{error:#}"))
            })
        }),
        command,
    };
    let access = Access::new(role)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let authority = listener.local_addr()?.to_string();
        output::print(&format!("{}\n", access.link(&authority)))?;
        output::note("open this link in a browser on this machine; Ctrl-C ends it");
        let router = ropewalk_dashboard::router(access, gateway);
        tokio::select! {
            () = http_server::serve(listener, router) => Ok(()),
            () = end => Ok(()),
        }
    })
}

/// Runs this program for the same gateway.
///
/// # Errors
/// Nobody knows where this program is.
pub(super) fn command(socket: PathBuf, config: Option<PathBuf>) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    Ok(command_within(COMMAND_TIME_MAX, program, socket, config))
}

/// Runs a program. It is killed when it takes longer than `limit`.
fn command_within(
    limit: Duration,
    program: PathBuf,
    socket: PathBuf,
    config: Option<PathBuf>,
) -> Command {
    Arc::new(move |arguments| {
        let mut command = std::process::Command::new(&program);
        command.env("ROPEWALK_SOCKET", &socket).env("NO_COLOR", "1");
        if let Some(config) = &config {
            command.env("ROPEWALK_CONFIG", config);
        }
        let ran = program::run_command(limit, command.args(arguments), "");
        let ran = ran.map_err(|error| error.to_string())?;
        Ok(Ran {
            ok: ran.status.success(),
            out: ran.said,
            notes: ran.complaints,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended_and_one_that_fails_says_all() {
        let limit = Duration::from_millis(500);
        let run = command_within(limit, "/bin/sh".into(), "/none".into(), None);
        let sh = |script: &str| run(vec!["-c".to_owned(), script.to_owned()]);
        let start = Instant::now();
        let error = sh("sleep 20").unwrap_err();
        assert!(error.contains("was killed"), "{error}");
        assert!(start.elapsed() < 10 * limit, "{:?}", start.elapsed());
        let ran = sh("echo out; echo notes >&2; exit 1").unwrap();
        assert_eq!((ran.ok, ran.out.as_str()), (false, "out\n"));
        assert_eq!(ran.notes, "notes\n");
    }
}
