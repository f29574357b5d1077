//! A client behind a machine with several uplinks, which `ropewalk balance` spreads flows over.
//!
//! ```text
//!                       ┌─ up0 ══ link 0 ══ isp0 ─┐
//!   client ── lan ── site                         ├── hub ── server
//!                       └─ up1 ══ link 1 ══ isp1 ─┘
//! ```
//!
//! The hub's namespace is the internet between, without a gateway. The server tells every TCP client
//! the address that it came from, which tells the uplink.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_api::{Status, UplinkStatus};

use crate::namespace::{Namespace, address_command, veth};
use crate::process::{Process, Program};
use crate::programs;
use crate::topology::{SERVER, SERVER_V6, Topology};

/// The client, the server's listener, and the program while it runs.
#[derive(Debug)]
pub struct Balanced {
    client: Namespace,
    site: Namespace,
    directory: PathBuf,
    process: Option<Process>,
}

impl Balanced {
    /// Puts a client behind the topology's site, and a listener on its server. Nothing balances yet.
    ///
    /// # Errors
    /// Without root or the programs.
    pub fn new(topology: &Topology) -> Result<Self> {
        let client = Namespace::create("bal", "client")?;
        let site = topology.site().clone();
        veth((&client, "eth0"), (&site, "lan0"), 1_500)?;
        let mut near = String::new();
        for ip in CLIENT {
            near += &address_command(ip, length(ip), "eth0");
        }
        for ip in ROUTER {
            near += &format!("route add default via {ip}\n");
        }
        let far = ROUTER.map(|ip| address_command(ip, length(ip), "lan0"));
        site.ip(&far.concat())?;
        client.ip(&near)?;
        listen(topology, PORT)?;
        Ok(Self {
            client,
            site,
            directory: topology.directory().join("balance"),
            process: None,
        })
    }

    /// Balances what the site itself sends. Nothing balances yet.
    #[must_use]
    pub fn on_site(topology: &Topology) -> Self {
        Self {
            client: topology.site().clone(),
            site: topology.site().clone(),
            directory: topology.directory().join("balance"),
            process: None,
        }
    }

    /// The client.
    #[must_use]
    pub const fn client(&self) -> &Namespace {
        &self.client
    }

    /// Writes a configuration: probes go to the server, `more` follows. Capacity is not probed: what
    /// unshaped links carry is the machine's mood.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn configure(&self, more: &str) -> Result<()> {
        let section = if more.contains("[balance]") {
            ""
        } else {
            "[balance]\n"
        };
        self.configure_probe(&format!("capacity = \"none\"\n{section}{more}"))
    }

    /// The same with the section `[probe]` still open.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn configure_probe(&self, more: &str) -> Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        let directory = self.directory.display();
        let text = format!(
            "state_dir = \"{directory}/state\"\n[api]\nsocket = \"{directory}/api.sock\"\n\
             [uplinks]\ninclude = [\"up*\"]\n\
             [probe]\ntargets = [\"{SERVER}\", \"{SERVER_V6}\"]\n{more}"
        );
        Ok(std::fs::write(self.config(), text)?)
    }

    /// A `ropewalk` command with this configuration.
    ///
    /// # Errors
    /// If the program was not built.
    pub fn program(&self, words: &[&str]) -> Result<Program> {
        let program = self.site.program(programs::own("ropewalk")?);
        Ok(program.args(words).arg("--config").arg(self.config()))
    }

    /// Starts the program and waits until it balances over `uplinks` uplinks.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start(&mut self, uplinks: usize) -> Result<()> {
        self.launch()?;
        self.wait_for("uplinks that answer", |all| {
            all.iter()
                .filter(|uplink| uplink.state_ipv4 == "up")
                .count()
                == uplinks
        })
    }

    /// Starts the program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn launch(&mut self) -> Result<()> {
        let process = self
            .program(&["balance"])?
            .start(&self.directory, "balance")?;
        self.process = Some(process);
        Ok(())
    }

    /// The running program.
    ///
    /// # Panics
    /// If it was not started.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it was started")
    }

    /// State of the uplinks.
    ///
    /// # Errors
    /// If the program does not answer.
    pub fn status(&self) -> Result<Vec<UplinkStatus>> {
        let text = self.program(&["status", "--json"])?.success(COMMAND)?;
        let status: Status = serde_json::from_str(&text)?;
        let balance = status.balance.context("something else than balance runs")?;
        Ok(balance.uplinks)
    }

    /// Waits until `check` holds of the uplinks.
    ///
    /// # Errors
    /// If it does not within some seconds, or the program has ended; the message holds the states and
    /// the last line of the log.
    pub fn wait_for(&self, what: &str, check: impl Fn(&[UplinkStatus]) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if status.as_ref().is_ok_and(|all| check(all)) {
                return Ok(());
            }
            let last = || self.process.as_ref().map(Process::last_line);
            if self.process.as_ref().is_some_and(Process::has_ended) {
                bail!("ropewalk balance ended: {}", last().unwrap_or_default());
            }
            if Instant::now() > end {
                bail!(
                    "no {what} within {PATIENCE:?}: {}\n{}",
                    describe(&status),
                    last().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Opens a connection from `from` to the server and learns the address it came from.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn connect(from: &Namespace, server: IpAddr, port: u16) -> Result<(TcpStream, IpAddr)> {
        let address = SocketAddr::new(server, port);
        let mut stream = from.enter(|| TcpStream::connect_timeout(&address, PATIENCE))??;
        let came_from = read_address(&mut stream)?;
        Ok((stream, came_from))
    }

    /// Opens and closes `count` connections one after the other; how many came from each address.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn count(
        from: &Namespace,
        server: IpAddr,
        count: usize,
    ) -> Result<BTreeMap<IpAddr, usize>> {
        Self::count_at(from, SocketAddr::new(server, PORT), count)
    }

    /// The same to another port of the server.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn count_at(
        from: &Namespace,
        address: SocketAddr,
        count: usize,
    ) -> Result<BTreeMap<IpAddr, usize>> {
        from.enter(|| {
            let mut counts = BTreeMap::new();
            for _ in 0..count {
                let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
                *counts.entry(read_address(&mut stream)?).or_default() += 1;
            }
            Ok(counts)
        })?
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.directory.join("balance.toml")
    }
}

/// The states of the uplinks, or why they are not known.
fn describe(status: &Result<Vec<UplinkStatus>>) -> String {
    let state = |uplink: &UplinkStatus| format!("{} {}", uplink.uplink, uplink.state_ipv4);
    match status {
        Ok(uplinks) => uplinks.iter().map(state).collect::<Vec<_>>().join(", "),
        Err(error) => format!("{error:#}"),
    }
}

/// The line in which the server tells where a connection came from.
///
/// # Errors
/// If it does not come.
pub fn read_address(stream: &mut TcpStream) -> Result<IpAddr> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LINE_MAX {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    let text = String::from_utf8(line)?;
    text.parse()
        .with_context(|| format!("{text:?} is no address"))
}

/// Lets the server of a topology listen at one more port, whichever of its IPv4 addresses is asked.
///
/// # Errors
/// If the port is taken.
pub fn listen(topology: &Topology, port: u16) -> Result<()> {
    for address in [Ipv4Addr::UNSPECIFIED.into(), IpAddr::from(SERVER_V6)] {
        let address = SocketAddr::new(address, port);
        let listener = topology.server().enter(|| TcpListener::bind(address))??;
        std::thread::spawn(move || serve(&listener));
    }
    Ok(())
}

/// Tells each client its address, and sends back what it sends until it ends the connection.
fn serve(listener: &TcpListener) {
    while let Ok((mut stream, from)) = listener.accept() {
        std::thread::spawn(move || {
            let _ = stream.write_all(format!("{}\n", from.ip()).as_bytes());
            let mut rest = [0; 1_024];
            while let Ok(count @ 1..) = stream.read(&mut rest) {
                if stream.write_all(&rest[..count]).is_err() {
                    break;
                }
            }
        });
    }
}

const fn length(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 24 } else { 64 }
}

/// Addresses of the client, and of the site towards it (RFC 1918, RFC 4193).
const CLIENT: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2)),
];
const ROUTER: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1)),
];
/// Port of the server that tells addresses.
pub const PORT: u16 = 7_000;
/// Longest address in text form.
const LINE_MAX: usize = 64;
const COMMAND: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(15);
