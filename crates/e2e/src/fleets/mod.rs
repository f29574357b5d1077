//! A fleet in network namespaces: three hubs between a site and a server, three members of etcd, BIRD on the server
//! and on each hub. Long trials break its parts; `bench-fleet` is their command.
//!
//! ```text
//!                 ┌── hub a ── 10.9.1.0/30 ──┐
//! site ══ uplinks ┼── hub b ── 10.9.2.0/30 ──┼── server ── 10.9.11.0/30 … 10.9.13.0/30 ── members of etcd
//!                 └── hub c ── 10.9.3.0/30 ──┘
//! ```

pub mod call;
pub mod etcd;
pub mod faults;
pub mod history;
pub mod kills;
pub mod partitions;
pub mod random;
pub mod storm;
mod swarm;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ropewalk_api::FleetStatus;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::Endpoints;
use ropewalk_testbed::{Namespace, Process, TopologySpec, programs, veth};
use serde::Serialize;

use crate::routers::{bird, of_hub, of_server};
use crate::{Ground, two_links};
use etcd::{Etcd, MEMBERS, url};

/// Longest time until a change is seen.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Name of the fleet.
pub const FLEET: &str = "north";
/// Names of the hubs, by number.
pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// Networks of the members of etcd, and of the hubs towards sites.
const ETCD: &str = "10.9.8.0/21";
const HUBS: &str = "192.0.2.0/24";
/// Table with the routes to sites.
const TABLE: &str = "4443";
/// How often something is looked at that is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// What a trial found.
#[derive(Clone, Debug, Serialize)]
pub struct Row<F> {
    /// What was done, in words.
    pub trial: String,
    /// Figures.
    #[serde(flatten)]
    pub figures: F,
    /// What no run may have, in words; empty when all is well.
    pub broken: Vec<String>,
    /// Bounds of times that do not hold, in words. A busy machine breaks them, too.
    pub slow: Vec<String>,
}

/// Adds words unless `holds`.
pub fn want(words_of: &mut Vec<String>, holds: bool, words: impl FnOnce() -> String) {
    if !holds {
        words_of.push(words());
    }
}

/// What differs between fleets.
#[derive(Clone, Debug)]
pub struct FleetSpec {
    /// Part of the namespaces' names: letters and digits, short.
    pub purpose: String,
    /// Inner addresses of the sites.
    pub pool: String,
    /// Further lines of `[pool]`.
    pub shared: String,
    /// Whether hubs tell routers which sites they serve.
    pub routes: bool,
    /// What the server does not hear of, as a filter of BIRD.
    pub left_out: String,
}

impl FleetSpec {
    /// A fleet whose sites are reached by their inner addresses.
    #[must_use]
    pub fn new(purpose: &str) -> Self {
        Self {
            purpose: purpose.to_owned(),
            pool: "10.86.0.0/20".to_owned(),
            shared: String::new(),
            routes: true,
            left_out: String::new(),
        }
    }

    /// A fleet whose sites are reached by the ports of a shared address only.
    #[must_use]
    pub fn sharing(purpose: &str, address: Ipv4Addr) -> Self {
        Self {
            shared: format!("shared = [\"{address}\"]\nports = 64512"),
            left_out: "if net ~ 10.86.0.0/20 then reject;".to_owned(),
            ..Self::new(purpose)
        }
    }
}

/// Where a hub is reached by sites, and by the server.
#[derive(Clone, Debug)]
pub struct Place {
    /// Towards sites.
    pub wan: String,
    /// Towards the server.
    pub lan: String,
    /// The server towards the hub.
    pub server: String,
    /// Interface of the server, and of the network of sites, towards the hub.
    pub interface: String,
}

/// Where the hub with this number is.
#[must_use]
pub fn place(hub: usize) -> Place {
    let number = hub + 1;
    Place {
        wan: format!("192.0.2.{}", number * 4 + 2),
        lan: format!("10.9.{number}.2"),
        server: format!("10.9.{number}.1"),
        interface: format!("to{}", NAMES[hub]),
    }
}

/// What reaches a hub no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Everything in both directions.
    All,
    /// Sites, in both directions.
    Sites,
    /// What comes from sites. What goes to them passes.
    FromSites,
    /// What goes to sites. What comes from them passes.
    ToSites,
    /// Etcd and other hubs. Sites and routers pass.
    Etcd,
    /// Sites, etcd and other hubs. Routers pass.
    SitesAndEtcd,
}

impl Cut {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::All => "cut off from everything",
            Self::Sites => "cut off from sites",
            Self::FromSites => "deaf to sites",
            Self::ToSites => "mute to sites",
            Self::Etcd => "cut off from etcd and other hubs",
            Self::SitesAndEtcd => "cut off from sites, etcd and other hubs",
        }
    }
}

/// A fleet of three hubs.
#[derive(Debug)]
pub struct Fleet {
    // Fields are dropped in this order: what runs in namespaces first.
    /// The hubs, by number.
    pub hubs: Vec<Gateway>,
    _routers: Vec<Process>,
    /// Etcd.
    pub etcd: Etcd,
    spaces: Vec<Namespace>,
    /// Site, network and server.
    pub ground: Ground,
    section: String,
}

/// A namespace for a hub between the network of sites and the server.
fn space(purpose: &str, hub: usize, net: &Namespace, server: &Namespace) -> Result<Namespace> {
    let place = place(hub);
    let space = Namespace::create(purpose, NAMES[hub])?;
    let to = &place.interface;
    veth((net, to), (&space, "wan"), 1_500)?;
    veth((server, to), (&space, "lan"), 1_500)?;
    let gateway = format!("192.0.2.{}", (hub + 1) * 4 + 1);
    net.ip(&format!("addr add {gateway}/30 dev {to}"))?;
    server.ip(&format!("addr add {}/30 dev {to}", place.server))?;
    let (wan, lan, server) = (&place.wan, &place.lan, &place.server);
    let mut commands = format!(
        "addr add {wan}/30 dev wan\naddr add {lan}/30 dev lan\nroute add default via {gateway}\n\
         route add {SERVER} via {server}\n"
    );
    for member in 0..MEMBERS {
        commands += &format!("route add 10.9.{}.0/30 via {server}\n", 11 + member);
    }
    space.ip(&commands)?;
    Ok(space)
}

/// Checks that the programs are there.
///
/// # Errors
/// If not root, or a program is missing: the message names the package.
pub fn ready() -> Result<()> {
    let requirement = |program, package| programs::Requirement { program, package };
    programs::require(&[
        programs::IP,
        programs::NFT,
        programs::ETHTOOL,
        requirement("bird", "bird2"),
        requirement("etcd", "etcd-server"),
        requirement("etcdctl", "etcd-client"),
        requirement("strace", "strace"),
    ])
}

impl Fleet {
    /// Builds everything, and waits until the hubs know each other.
    ///
    /// # Errors
    /// A program is missing, or a part does not start.
    pub fn new(spec: &FleetSpec) -> Result<Self> {
        let topology = TopologySpec {
            server_routes: false,
            ..TopologySpec::new(&spec.purpose, two_links())
        };
        let ground = Ground::new(&topology)?;
        let (net, server) = (ground.topology.hub(), ground.topology.server());
        let directory = ground.topology.directory().to_owned();
        server.sysctl("net/ipv4/ip_forward", "1")?;
        let numbers = || 0..NAMES.len();
        let spaces = numbers().map(|hub| space(&spec.purpose, hub, net, server));
        let spaces = spaces.collect::<Result<Vec<_>>>()?;
        let etcd = Etcd::new(&spec.purpose, server, &directory)?;
        let mut routers = Vec::new();
        if spec.routes {
            let peers: Vec<_> = numbers().map(place).map(|at| (at.server, at.lan)).collect();
            routers.push(bird(&directory, "bird-server", server, &of_server(&peers))?);
            for (hub, space) in spaces.iter().enumerate() {
                let at = place(hub);
                let text = of_hub(&at.lan, &at.server, &spec.left_out);
                let name = format!("bird-{}", NAMES[hub]);
                routers.push(bird(&directory, &name, space, &text)?);
            }
        }
        let table = format!("routes_table = {TABLE}");
        let hub = |hub: usize| -> Result<Gateway> {
            let settings = GatewaySpec {
                network: format!(
                    "masquerade = false\n{}",
                    if spec.routes { table.as_str() } else { "" }
                ),
                public: vec![format!("{}:4443", place(hub).wan)],
                pool: spec.shared.clone(),
                ..GatewaySpec::default()
            };
            let made = Gateway::hub_named(&spaces[hub], &directory, NAMES[hub], &settings)?;
            let text = std::fs::read_to_string(made.config())?;
            let pool = format!("ipv4 = \"{}\"", spec.pool);
            std::fs::write(
                made.config(),
                text.replace("ipv4 = \"10.86.0.0/24\"", &pool),
            )?;
            Ok(made)
        };
        let hubs = numbers().map(hub).collect::<Result<Vec<_>>>()?;
        let mut fleet = Self {
            hubs,
            _routers: routers,
            etcd,
            spaces,
            ground,
            section: String::new(),
        };
        fleet.init()?;
        Ok(fleet)
    }

    /// Makes the fleet at the first hub, and starts all.
    fn init(&mut self) -> Result<()> {
        for hub in &self.hubs {
            hub.run(&["key", "generate"])?.success()?;
        }
        let urls: Vec<_> = (0..MEMBERS).map(url).collect();
        let mut line = vec!["fleet", "init", FLEET];
        line.extend(urls.iter().flat_map(|url| ["--endpoint", url.as_str()]));
        let end = Instant::now() + LIMIT;
        self.section = loop {
            match self.hubs[0].run(&line)?.success() {
                Ok(section) => break section,
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        for hub in &mut self.hubs {
            let text = std::fs::read_to_string(hub.config())? + &self.section;
            std::fs::write(hub.config(), text)?;
            hub.start()?;
        }
        self.await_all()
    }

    /// The fleet's public key, base64.
    ///
    /// # Errors
    /// `fleet init` has printed none.
    pub fn key(&self) -> Result<String> {
        let mut lines = self.section.lines();
        let key = lines.find_map(|line| line.strip_prefix("key = \""));
        let key = key.context("no key in the section of the fleet")?;
        Ok(key.trim_end_matches('"').to_owned())
    }

    /// Waits until every hub sees all hubs run, and etcd.
    ///
    /// # Errors
    /// Not in time.
    pub fn await_all(&self) -> Result<()> {
        for hub in 0..self.hubs.len() {
            self.await_status(hub, "three hubs run", |fleet| {
                fleet.etcd.is_there() && fleet.hubs.iter().filter(|hub| hub.runs).count() == 3
            })?;
        }
        Ok(())
    }

    /// What `ropewalk fleet status` says at a hub.
    ///
    /// # Errors
    /// The hub does not answer.
    pub fn status(&self, hub: usize) -> Result<FleetStatus> {
        let text = self.hubs[hub].run(&["fleet", "status", "--json"])?;
        Ok(serde_json::from_str(&text.success()?)?)
    }

    /// Waits until `ropewalk fleet status` is as wanted at a hub.
    ///
    /// # Errors
    /// Not in time: the message holds what it says.
    pub fn await_status(
        &self,
        hub: usize,
        what: &str,
        holds: impl Fn(&FleetStatus) -> bool,
    ) -> Result<FleetStatus> {
        let end = Instant::now() + LIMIT;
        loop {
            let status = self.status(hub)?;
            if holds(&status) {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!(
                    "hub {}: not within {LIMIT:?}: {what}: {status:?}",
                    NAMES[hub]
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Joins a site that was invited at this hub, its home, and starts it.
    ///
    /// # Errors
    /// The site is not let in, or its paths do not come up.
    pub fn site(&self, home: usize) -> Result<Gateway> {
        let token = self.hubs[home].invite("site")?;
        let (within, directory) = (self.ground.topology.site(), self.directory());
        let mut site = Gateway::site(within, directory, "site", &token, &GatewaySpec::default())?;
        site.start()?;
        site.wait_paths(2, LIMIT)?;
        Ok(site)
    }

    /// Where programs log and keep their state.
    #[must_use]
    pub fn directory(&self) -> &std::path::Path {
        self.ground.topology.directory()
    }

    /// Namespace of a hub.
    #[must_use]
    pub fn space(&self, hub: usize) -> &Namespace {
        &self.spaces[hub]
    }

    /// The server.
    #[must_use]
    pub const fn server(&self) -> &Namespace {
        self.ground.topology.server()
    }

    /// Traffic between site and server.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        self.ground.topology.endpoints()
    }

    /// The hub that serves this site, as the site says.
    ///
    /// # Errors
    /// The site does not answer, or names no hub.
    pub fn serving(&self, site: &Gateway) -> Result<usize> {
        let status = site.status()?;
        let tunnel = status.tunnels.first().context("the site has no tunnel")?;
        let at = tunnel.serving_hub_addresses.join(" ");
        let of = |hub: &usize| at.contains(&format!("{}:", place(*hub).wan));
        (0..self.hubs.len())
            .find(of)
            .with_context(|| format!("the site is served at {at:?}"))
    }

    /// Waits until another hub serves this site, with `paths` paths; which one.
    ///
    /// # Errors
    /// Not in time.
    pub fn await_move(&self, site: &Gateway, from: usize, paths: usize) -> Result<usize> {
        let end = Instant::now() + LIMIT;
        loop {
            let now = self.serving(site)?;
            if now != from {
                site.wait_paths(paths, LIMIT)?;
                return Ok(now);
            }
            if Instant::now() > end {
                bail!("the site is still with hub {} after {LIMIT:?}", NAMES[from]);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the server sends packets for this address by the hub with this number.
    ///
    /// # Errors
    /// Not in time.
    pub fn await_route(&self, address: &str, hub: usize) -> Result<()> {
        let interface = place(hub).interface;
        let end = Instant::now() + LIMIT;
        loop {
            let route = self.server().ip_json(&["route", "show", address])?;
            if route[0]["dev"] == interface.as_str() {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("no route to {address} by {interface} within {LIMIT:?}: {route}");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Cuts a hub off. Packets that leave it are dropped where they arrive, so that the hub is told nothing.
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn cut(&self, hub: usize, cut: Cut) -> Result<()> {
        let to = place(hub).interface;
        let (mut own, mut net, mut server) = (String::new(), String::new(), String::new());
        if matches!(
            cut,
            Cut::All | Cut::Sites | Cut::FromSites | Cut::SitesAndEtcd
        ) {
            own += "iifname \"wan\" drop\n";
        }
        if matches!(
            cut,
            Cut::All | Cut::Sites | Cut::ToSites | Cut::SitesAndEtcd
        ) {
            net += &format!("iifname \"{to}\" drop\n");
        }
        if cut == Cut::All {
            own += "iifname \"lan\" drop\n";
            server += &format!("iifname \"{to}\" drop\n");
        }
        if matches!(cut, Cut::Etcd | Cut::SitesAndEtcd) {
            own += &format!("ip saddr {ETCD} drop\niifname \"wan\" ip saddr {HUBS} drop\n");
            net += &format!("iifname \"{to}\" ip daddr {HUBS} drop\n");
            server += &format!("iifname \"{to}\" ip daddr {ETCD} drop\n");
        }
        let name = NAMES[hub];
        for (space, rules) in self.around(hub).into_iter().zip([own, net, server]) {
            if rules.is_empty() {
                continue;
            }
            space.nft(&format!(
                "table inet cut_{name}\ndelete table inet cut_{name}\ntable inet cut_{name} {{\n \
                 chain arriving {{\n type filter hook prerouting priority -300;\n {rules} }}\n}}\n"
            ))?;
        }
        Ok(())
    }

    /// Ends [`Self::cut`].
    ///
    /// # Errors
    /// If `nft` refuses.
    pub fn mend(&self, hub: usize) -> Result<()> {
        let name = NAMES[hub];
        for space in self.around(hub) {
            space.nft(&format!(
                "table inet cut_{name}\ndelete table inet cut_{name}\n"
            ))?;
        }
        Ok(())
    }

    /// Where packets of a hub arrive: itself, the network of sites, the server.
    fn around(&self, hub: usize) -> [&Namespace; 3] {
        [&self.spaces[hub], self.ground.topology.hub(), self.server()]
    }

    /// What programs have logged last, for the message of a trial that failed.
    #[must_use]
    pub fn explain(&self) -> String {
        let tail = |hub: &Gateway| hub.process().map(Process::log_tail).unwrap_or_default();
        let hubs = self.hubs.iter().zip(NAMES);
        hubs.map(|(hub, name)| format!("hub {name}:\n{}\n", tail(hub)))
            .collect()
    }
}
