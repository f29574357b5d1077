//! Runs the `ropewalk` program as hub, as site and as relay, with all its files in one directory.
//!
//! Only what a user can do is done here: configuration files, `invite`, `join`, `status`. Every
//! path in the configuration is set, so that many gateways run on one machine side by side.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_api::{PathStatus, Status};
use rustix::process::Signal;

use crate::namespace::Namespace;
use crate::process::{Finished, Process, Program};
use crate::topology::{HUB, HUB_V6, Topology};
use crate::{cleanup, programs};

/// What of a gateway's configuration differs from the defaults.
#[derive(Clone, Debug, Default)]
pub struct GatewaySpec {
    /// Lines of a hub before the first section, such as `workers = 2`.
    pub root: String,
    /// Where sites reach a hub; empty takes the addresses of the topology.
    pub public: Vec<String>,
    /// Lines for the `[tunnel]` section, such as `scheduler = "htmt"`.
    pub tunnel: String,
    /// Further lines for the `[pool]` section of a hub.
    pub pool: String,
    /// Lines for the `[network]` section.
    pub network: String,
    /// Lines for the `[egress]` section of a hub or relay; empty lets sites reach everything, as servers of
    /// tests stand in networks of the hub.
    pub egress: String,
    /// Lines for the `[uplinks]` section of a site or relay; empty takes `up*`.
    pub uplinks: String,
    /// Further sections, such as `[[uplink]]`.
    pub more: String,
    /// The program, such as one of another revision; none takes the one beside this.
    pub program: Option<PathBuf>,
}

/// A gateway: its configuration, and its process while it runs.
#[derive(Debug)]
pub struct Gateway {
    role: &'static str,
    name: String,
    namespace: Namespace,
    directory: PathBuf,
    config: PathBuf,
    /// The program, if it is not the one beside this.
    program: Option<PathBuf>,
    process: Option<Process>,
}

impl GatewaySpec {
    fn egress(&self) -> String {
        let default = "allow = [\"0.0.0.0/0\", \"::/0\"]";
        let lines = if self.egress.is_empty() {
            default
        } else {
            &self.egress
        };
        format!("[egress]\n{lines}\n")
    }

    fn uplinks(&self) -> String {
        let default = "include = [\"up*\"]";
        let lines = if self.uplinks.is_empty() {
            default
        } else {
            &self.uplinks
        };
        format!("[uplinks]\n{lines}\n")
    }
}

impl Gateway {
    /// Writes a hub's configuration; nothing runs yet.
    ///
    /// # Errors
    /// If files cannot be written or the program is missing.
    pub fn hub(namespace: &Namespace, directory: &Path, spec: &GatewaySpec) -> Result<Self> {
        Self::hub_named(namespace, directory, "hub", spec)
    }

    /// The same of one of several hubs.
    ///
    /// # Errors
    /// As [`Self::hub`].
    pub fn hub_named(
        namespace: &Namespace,
        directory: &Path,
        name: &str,
        spec: &GatewaySpec,
    ) -> Result<Self> {
        let mut gateway = Self::new("hub", name, namespace, directory)?;
        gateway.program.clone_from(&spec.program);
        let mut text = gateway.paths();
        text += &gateway.key_file();
        text += &spec.root;
        let public = if spec.public.is_empty() {
            vec![
                format!("{HUB}:{UDP_PORT}"),
                format!("[{HUB_V6}]:{UDP_PORT}"),
            ]
        } else {
            spec.public.clone()
        };
        let _ = write!(
            text,
            "\n[listen]\n\
             udp = [\"0.0.0.0:{UDP_PORT}\", \"[::]:{UDP_PORT}\"]\n\
             tcp = [\"0.0.0.0:{TCP_PORT}\", \"[::]:{TCP_PORT}\"]\n\
             public = {public:?}\n\
             [pool]\nipv4 = \"10.86.0.0/24\"\nipv6 = \"fd86:1::/64\"\n{}\n\
             [network]\n{}\n",
            spec.pool, spec.network
        );
        text += &spec.egress();
        text += &gateway.sections(spec);
        std::fs::write(&gateway.config, text)?;
        Ok(gateway)
    }

    /// Joins a site to a running hub by its token, then sets the paths of the configuration that `join`
    /// wrote; nothing runs yet.
    ///
    /// # Errors
    /// If `ropewalk join` refuses the token, or the hub does.
    pub fn site(
        namespace: &Namespace,
        directory: &Path,
        name: &str,
        token: &str,
        spec: &GatewaySpec,
    ) -> Result<Self> {
        let mut gateway = Self::new("site", name, namespace, directory)?;
        gateway.program.clone_from(&spec.program);
        gateway
            .program(&["join"])?
            .input(token)
            .run(COMMAND_LIMIT)?
            .success()
            .context("ropewalk join failed")?;
        let joined = std::fs::read_to_string(&gateway.config)?;
        let mut text = gateway.paths();
        // An earlier version keeps the key beside the configuration.
        if gateway.directory.join("keys").exists() {
            text += &gateway.key_file();
        }
        text += &section(&joined, "hub").context("join wrote no [hub] section")?;
        // The further hubs of a fleet.
        text += &sections(&joined, "[spare]").collect::<String>();
        let _ = write!(text, "[network]\n{}\n", spec.network);
        text += &gateway.sections(spec);
        text += &spec.uplinks();
        std::fs::write(&gateway.config, text)?;
        Ok(gateway)
    }

    /// Makes a relay to a running hub by its token ([`Gateway::invite_relay`]), then sets the paths of the
    /// configuration that `relay --join` wrote; nothing runs yet. Its sites reach it at the
    /// addresses `public`, as [`Branch::relay`](crate::Branch::relay) has them.
    ///
    /// # Errors
    /// If `ropewalk relay` refuses the token, or the hub does.
    pub fn relay(
        namespace: &Namespace,
        directory: &Path,
        (name, token): (&str, &str),
        public: &[IpAddr],
        spec: &GatewaySpec,
    ) -> Result<Self> {
        let mut gateway = Self::new("relay", name, namespace, directory)?;
        gateway.program.clone_from(&spec.program);
        let mut program = gateway.program(&["relay", "--join"])?.input(token);
        for address in public {
            let endpoint = std::net::SocketAddr::new(*address, UDP_PORT);
            program = program.args(["--public", &endpoint.to_string()]);
        }
        program
            .run(COMMAND_LIMIT)?
            .success()
            .context("ropewalk relay --join failed")?;
        let joined = std::fs::read_to_string(&gateway.config)?;
        let mut text = gateway.paths();
        for name in ["hub", "listen", "pool", "network"] {
            text += &section(&joined, name)
                .with_context(|| format!("relay --join wrote no [{name}] section"))?;
        }
        text += &format!("{}\n", spec.network);
        text += &spec.egress();
        text += &gateway.sections(spec);
        text += &spec.uplinks();
        std::fs::write(&gateway.config, text)?;
        Ok(gateway)
    }

    fn new(role: &'static str, name: &str, namespace: &Namespace, parent: &Path) -> Result<Self> {
        let directory = parent.join(name);
        std::fs::create_dir_all(&directory)?;
        Ok(Self {
            role,
            name: name.to_owned(),
            namespace: namespace.clone(),
            config: directory.join(format!("{role}.toml")),
            directory,
            program: None,
            process: None,
        })
    }

    /// Runs this program from the next start and the next command on; none is the one beside this.
    pub fn use_program(&mut self, program: Option<&Path>) {
        self.program = program.map(Path::to_owned);
    }

    /// The place of the key, which earlier versions look for elsewhere.
    fn key_file(&self) -> String {
        let (at, role) = (self.directory.display(), self.role);
        format!("key_file = \"{at}/keys/{role}.key\"\n")
    }

    /// Top-level keys, but for the key file.
    fn paths(&self) -> String {
        let (name, at) = (&self.name, self.directory.display());
        format!("name = \"{name}\"\nstate_dir = \"{at}/state\"\n")
    }

    /// The sections both roles have.
    fn sections(&self, spec: &GatewaySpec) -> String {
        format!(
            "[tunnel]\n{}\n[api]\nsocket = \"{}\"\n{}\n",
            spec.tunnel,
            self.directory.join("api.sock").display(),
            spec.more,
        )
    }

    /// Where its configuration, key, state and logs are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The namespace it runs in.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Starts the program in the background and waits until it answers `status`.
    ///
    /// # Errors
    /// If it ends at once or does not answer within [`READY_LIMIT`]; the message holds its log.
    pub fn start(&mut self) -> Result<()> {
        let verb = match self.role {
            "site" => "up",
            role => role,
        };
        let program = self.program(&[verb])?;
        self.process = Some(program.start(&self.directory, &self.name)?);
        let end = Instant::now() + READY_LIMIT;
        loop {
            let error = match self.status() {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let process = self.process.as_mut().context("just started")?;
            if !process.is_running() {
                bail!("ropewalk {verb} ended at once:\n{}", process.log_tail());
            }
            if Instant::now() > end {
                return Err(error.context(format!("not ready:\n{}", process.log_tail())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops it as a user would (SIGINT). True if it ended by itself with code 0.
    pub fn stop(&mut self) -> bool {
        self.process
            .take()
            .is_some_and(|mut process| process.stop().is_some_and(|status| status.success()))
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Sends it a signal that it ends from, and waits. True if it does within `limit`.
    pub fn end(&mut self, signal: Signal, limit: Duration) -> bool {
        self.signal(signal);
        let ended = self.process.take().map(|mut process| process.wait(limit));
        matches!(ended, Some(Ok(Some(_))))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            cleanup::kill(process.pid(), signal);
        }
    }

    /// The running program.
    #[must_use]
    pub const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Whether the program runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    /// A `ropewalk` command with this gateway's configuration.
    ///
    /// # Errors
    /// If the program is missing.
    pub fn program(&self, arguments: &[&str]) -> Result<Program> {
        let ropewalk = match &self.program {
            Some(program) => program.clone(),
            None => programs::own("ropewalk")?,
        };
        let program = self.namespace.program(ropewalk).args(arguments);
        Ok(program.arg("--config").arg(&self.config))
    }

    /// Runs a `ropewalk` command with this gateway's configuration.
    ///
    /// # Errors
    /// If it does not end within `COMMAND_LIMIT`.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        self.program(arguments)?.run(COMMAND_LIMIT)
    }

    /// Invites a site; returns its token.
    ///
    /// # Errors
    /// If the hub refuses.
    pub fn invite(&self, site: &str) -> Result<String> {
        let finished = self.run(&["invite", site])?;
        let output = finished.success().context("ropewalk invite failed")?;
        Ok(output.trim().to_owned())
    }

    /// Invites a relay; returns its token.
    ///
    /// # Errors
    /// If the hub refuses.
    pub fn invite_relay(&self, relay: &str) -> Result<String> {
        let finished = self.run(&["invite", relay, "--relay"])?;
        let output = finished.success().context("ropewalk invite failed")?;
        Ok(output.trim().to_owned())
    }

    /// The state now.
    ///
    /// # Errors
    /// If the gateway does not answer.
    pub fn status(&self) -> Result<Status> {
        let text = self.run(&["status", "--json"])?.success()?;
        serde_json::from_str(&text).context("cannot read the status")
    }

    /// Waits until the state is as wanted.
    ///
    /// # Errors
    /// After `limit`, and if the program has ended: the message holds the states of the paths and the
    /// end of the log.
    pub fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Status) -> bool,
    ) -> Result<Status> {
        let end = Instant::now() + limit;
        loop {
            let status = self.status();
            if let Ok(status) = &status
                && wanted(status)
            {
                return Ok(status.clone());
            }
            let log = || self.process.as_ref().map(Process::log_tail);
            if self.process.as_ref().is_some_and(Process::has_ended) {
                bail!("{} ended:\n{}", self.name, log().unwrap_or_default());
            }
            if Instant::now() > end {
                bail!(
                    "{}: no {what} within {limit:?}: {}\n{}",
                    self.name,
                    describe(&status),
                    log().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until this many paths are up.
    ///
    /// # Errors
    /// As [`Gateway::wait_for`].
    pub fn wait_paths(&self, count: usize, limit: Duration) -> Result<Status> {
        self.wait_for(&format!("{count} paths up"), limit, |s| {
            s.paths_up() == count
        })
    }
}

/// The states of the paths, or why they are not known.
fn describe(status: &Result<Status>) -> String {
    match status {
        Ok(status) => {
            let paths = status.tunnels.iter().flat_map(|tunnel| &tunnel.paths);
            let state = |path: &PathStatus| format!("{} {}", path.uplink, path.state);
            let states: Vec<String> = paths.map(state).collect();
            format!("paths: {}", states.join(", "))
        }
        Err(error) => format!("{error:#}"),
    }
}

/// A hub and a site of a topology, running and joined over every uplink.
///
/// # Errors
/// If a program does not start or a path does not come up.
pub fn connect(
    topology: &Topology,
    hub: &GatewaySpec,
    site: &GatewaySpec,
) -> Result<(Gateway, Gateway)> {
    let directory = topology.directory();
    let mut hub = Gateway::hub(topology.hub(), directory, hub)?;
    hub.start()?;
    let token = hub.invite("site")?;
    let mut site = Gateway::site(topology.site(), directory, "site", &token, site)?;
    site.start()?;
    site.wait_paths(topology.uplinks().len(), UP_LIMIT)?;
    Ok((hub, site))
}

/// A section of a TOML file with its header, up to the next section; comments go.
fn section(text: &str, name: &str) -> Option<String> {
    sections(text, name).next()
}

/// The same for each section of this name.
fn sections(text: &str, name: &str) -> impl Iterator<Item = String> {
    let header = format!("[{name}]");
    let lines: Vec<&str> = text.lines().collect();
    let begins = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.trim() == header);
    let taken = begins.map(|(begin, first)| {
        let rest = lines[begin + 1..].iter();
        let rest = rest.take_while(|line| !line.starts_with('['));
        let rest = rest.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let kept = std::iter::once(first).chain(rest);
        kept.fold(String::new(), |text, line| text + line + "\n")
    });
    taken.collect::<Vec<_>>().into_iter()
}

/// Port of the hub for QUIC.
pub const UDP_PORT: u16 = 4_443;
/// Port of the hub for TLS.
pub const TCP_PORT: u16 = 443;
/// Longest time a gateway may take until it answers.
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// Longest time paths may take to come up.
pub const UP_LIMIT: Duration = Duration::from_secs(15);
/// Longest time of one command.
const COMMAND_LIMIT: Duration = Duration::from_secs(40);

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::TunnelStatus;

    #[test]
    fn a_state_is_told_by_its_paths_alone() {
        let path = |uplink: &str, state: &str| PathStatus {
            uplink: uplink.into(),
            state: state.into(),
            ..PathStatus::default()
        };
        let tunnel = TunnelStatus {
            paths: vec![path("up0", "up"), path("up1", "connecting")],
            ..TunnelStatus::default()
        };
        let status = Status {
            tunnels: vec![tunnel],
            ..Status::default()
        };
        assert_eq!(describe(&Ok(status)), "paths: up0 up, up1 connecting");
    }

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let text = "a = 1\n[hub]\n# where\nkey = \"k\"\n\nport = 1\n[[uplink]]\nb = 2\n";
        assert_eq!(
            section(text, "hub").unwrap(),
            "[hub]\nkey = \"k\"\nport = 1\n"
        );
        assert_eq!(section(text, "none"), None);
    }
}
