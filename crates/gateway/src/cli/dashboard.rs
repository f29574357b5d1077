//! `ropewalk dashboard`: a page in the browser about the running gateway.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::Context;
use clap::Args;
use ropewalk_dashboard::{Access, Command, Gateway, Ran, Role};

use super::{Global, output};
use crate::client::Client;

const EXAMPLES: &str = "Examples:
  ropewalk dashboard                   prints a link; open it in a browser on this machine
  ropewalk dashboard --read-only       a link for looking only

From another computer, through SSH; then open the link there:
  ssh -t -L 8737:127.0.0.1:8737 root@boat ropewalk dashboard --port 8737

The page runs until Ctrl-C. It listens on 127.0.0.1 only. The link is a secret: whoever opens it
may do what you may do, or only look with --read-only. Each run has a link of its own.";

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
        client.status()?;
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
        let served = ropewalk_dashboard::serve(listener, access, gateway);
        tokio::select! {
            ended = served => ended,
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
    Ok(Arc::new(move |arguments| {
        let mut command = std::process::Command::new(&program);
        command.env("ROPEWALK_SOCKET", &socket).env("NO_COLOR", "1");
        if let Some(config) = &config {
            command.env("ROPEWALK_CONFIG", config);
        }
        let ran = command.args(arguments).stdin(Stdio::null()).output();
        let ran = ran.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Ran {
            ok: ran.status.success(),
            out: text(ran.stdout),
            notes: text(ran.stderr),
        })
    }))
}
