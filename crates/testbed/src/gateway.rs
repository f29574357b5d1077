//! Runs the `ropewalk` program as hub, as site and as relay, with all its files in one directory.
//!
//! Only what a user can do is done here: configuration files, `invite`, `join`, `status`. Every
//! path in the configuration is set, so that many gateways run on one machine side by side.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::Deserialize;

use crate::balanced::UplinkStatus;
use crate::namespace::Namespace;
use crate::process::{Finished, Process, Program};
use crate::topology::{HUB, HUB_V6, Topology};
use crate::{cleanup, programs};

/// What of a gateway's configuration differs from the defaults.
#[derive(Clone, Debug, Default)]
pub struct GatewaySpec {
    /// Lines for the `[tunnel]` section, such as `scheduler = "htmt"`.
    pub tunnel: String,
    /// Lines for the `[network]` section.
    pub network: String,
    /// Lines for the `[uplinks]` section of a site or relay; empty takes `up*`.
    pub uplinks: String,
    /// Further sections, such as `[[uplink]]`.
    pub more: String,
}

/// A gateway: its configuration, and its process while it runs.
#[derive(Debug)]
pub struct Gateway {
    role: &'static str,
    name: String,
    namespace: Namespace,
    directory: PathBuf,
    config: PathBuf,
    process: Option<Process>,
}

/// State of a gateway as `ropewalk status --json` prints it, as far as it is used here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// TUN interface.
    pub interface: String,
    /// Its MTU, bytes.
    pub mtu: u64,
    /// Inner addresses with prefix length.
    pub addresses: Vec<String>,
    /// Counted drops by reason.
    pub drops: std::collections::BTreeMap<String, u64>,
    /// One per peer.
    pub tunnels: Vec<TunnelStatus>,
    /// What goes beside the tunnel, if anything may.
    pub direct: Option<DirectStatus>,
}

/// What a site sends beside its tunnel.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DirectStatus {
    /// Whether flows with two ways go beside it because the hub is not reached.
    pub fallen_back: bool,
    /// Times that they began to.
    pub fallbacks: u64,
    /// How they are spread.
    pub spread: Spread,
}

/// How flows are spread over uplinks.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Spread {
    /// The uplinks.
    pub uplinks: Vec<UplinkStatus>,
}

/// State of a tunnel.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TunnelStatus {
    /// Name of the peer.
    pub peer: String,
    /// Whether any path works.
    pub up: bool,
    /// Inner packets sent to the peer.
    pub tx_packets: u64,
    /// Inner packets received.
    pub rx_packets: u64,
    /// Packets that arrived out of order at the egress.
    pub reordered: u64,
    /// Packets the egress held until their predecessors came.
    pub held: u64,
    /// Holds that ended by time.
    pub hold_timeouts: u64,
    /// Copies removed at the egress.
    pub duplicates: u64,
    /// Packets passed on after the egress had given them up.
    pub late: u64,
    /// Packets dropped at the ingress.
    pub queue_drops: u64,
    /// Packets marked CE at the ingress.
    pub queue_marks: u64,
    /// Packets recovered from repair symbols.
    pub recovered: u64,
    /// Datagrams sent again.
    pub repairs_sent: u64,
    /// Repair symbols sent.
    pub coded_sent: u64,
    /// Bytes of datagrams that carried packets for the first time.
    pub data_bytes: u64,
    /// Bytes that protection added.
    pub protection_bytes: u64,
    /// Times that every path was down.
    pub outages: u64,
    /// Seconds that every path was down.
    pub outage_s: f64,
    /// Packets held in outages that left after them.
    pub replayed: u64,
    /// Packets dropped in outages because too much was held.
    pub hold_dropped_full: u64,
    /// Packets dropped after outages because they were too old.
    pub hold_dropped_old: u64,
    /// Times that the sender of a TCP connection was told to stop.
    pub freeze_stopped: u64,
    /// TCP connections reset because what had been acknowledged for their receivers was not delivered.
    pub freeze_resets: u64,
    /// Why the scheduler does what it does, if it says.
    pub reason: String,
    /// The paths.
    pub paths: Vec<PathStatus>,
}

/// State of a path.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PathStatus {
    /// Uplink name.
    pub uplink: String,
    /// `up`, `leaving`, `suspect`, `connecting`, `down` or `disabled`.
    pub state: String,
    /// `quic` or `tls`.
    pub transport: String,
    /// Address of the peer.
    pub remote: Option<std::net::SocketAddr>,
    /// Smoothed RTT, milliseconds.
    pub rtt_ms: f64,
    /// Estimated delivery rate, Mbit/s.
    pub rate_mbit: f64,
    /// Share of packets lost lately.
    pub loss: f64,
    /// Largest UDP payload, bytes.
    pub mtu: u64,
    /// Outer bytes sent.
    pub tx_bytes: u64,
    /// Outer bytes received.
    pub rx_bytes: u64,
}

impl GatewaySpec {
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

impl Status {
    /// Number of paths of all tunnels that are up.
    #[must_use]
    pub fn paths_up(&self) -> usize {
        self.paths().filter(|path| path.state == "up").count()
    }

    /// All paths.
    pub fn paths(&self) -> impl Iterator<Item = &PathStatus> {
        self.tunnels.iter().flat_map(|tunnel| &tunnel.paths)
    }

    /// The gateway's own inner address of a family.
    #[must_use]
    pub fn address(&self, v6: bool) -> Option<IpAddr> {
        let plain = |text: &String| text.split('/').next()?.parse::<IpAddr>().ok();
        self.addresses
            .iter()
            .filter_map(plain)
            .find(|address| address.is_ipv6() == v6)
    }
}

impl Gateway {
    /// Writes a hub's configuration; nothing runs yet.
    ///
    /// # Errors
    /// If files cannot be written or the program is missing.
    pub fn hub(namespace: &Namespace, directory: &Path, spec: &GatewaySpec) -> Result<Self> {
        let gateway = Self::new("hub", "hub", namespace, directory)?;
        let mut text = gateway.paths();
        let _ = write!(
            text,
            "[listen]\n\
             udp = [\"0.0.0.0:{UDP_PORT}\", \"[::]:{UDP_PORT}\"]\n\
             tcp = [\"0.0.0.0:{TCP_PORT}\", \"[::]:{TCP_PORT}\"]\n\
             public = [\"{HUB}:{UDP_PORT}\", \"[{HUB_V6}]:{UDP_PORT}\"]\n\
             [pool]\nipv4 = \"10.86.0.0/24\"\nipv6 = \"fd86:1::/64\"\n\
             [network]\n{}\n",
            spec.network
        );
        text += &gateway.sections(spec);
        std::fs::write(&gateway.config, text)?;
        Ok(gateway)
    }

    /// Joins a site to a hub by its token, then sets the paths of the configuration that `join`
    /// wrote; nothing runs yet.
    ///
    /// # Errors
    /// If `ropewalk join` refuses the token.
    pub fn site(
        namespace: &Namespace,
        directory: &Path,
        name: &str,
        token: &str,
        spec: &GatewaySpec,
    ) -> Result<Self> {
        let gateway = Self::new("site", name, namespace, directory)?;
        gateway
            .run(&["join", token])?
            .success()
            .context("ropewalk join failed")?;
        let joined = std::fs::read_to_string(&gateway.config)?;
        let mut text = gateway.paths();
        text += &section(&joined, "hub").context("join wrote no [hub] section")?;
        let _ = write!(text, "[network]\n{}\n", spec.network);
        text += &gateway.sections(spec);
        text += &spec.uplinks();
        std::fs::write(&gateway.config, text)?;
        Ok(gateway)
    }

    /// Makes a relay to a hub by its token ([`Gateway::invite_relay`]), then sets the paths of the
    /// configuration that `relay --join` wrote; nothing runs yet. Its sites reach it at the
    /// addresses `public`, as [`Branch::relay`](crate::Branch::relay) has them.
    ///
    /// # Errors
    /// If `ropewalk relay` refuses the token.
    pub fn relay(
        namespace: &Namespace,
        directory: &Path,
        (name, token): (&str, &str),
        public: &[IpAddr],
        spec: &GatewaySpec,
    ) -> Result<Self> {
        let gateway = Self::new("relay", name, namespace, directory)?;
        let mut program = gateway.program(&["relay", "--join", token])?;
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
            process: None,
        })
    }

    /// Top-level keys; the key file is beside the configuration.
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
        let program = self
            .namespace
            .program(programs::own("ropewalk")?)
            .args(arguments);
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
    /// After `limit`: the message holds the last state and the end of the log.
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
            if Instant::now() > end {
                let log = self
                    .process
                    .as_ref()
                    .map(Process::log_tail)
                    .unwrap_or_default();
                bail!(
                    "{}: no {what} within {limit:?}: {status:?}\n{log}",
                    self.name
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
    let header = format!("[{name}]");
    let mut lines = text.lines().skip_while(|line| line.trim() != header);
    let first = lines.next()?;
    let rest = lines.take_while(|line| !line.starts_with('['));
    let rest = rest.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    Some(
        std::iter::once(first)
            .chain(rest)
            .fold(String::new(), |text, line| text + line + "\n"),
    )
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
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

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
