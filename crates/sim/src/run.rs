//! One plan, one seed: a report.

#[cfg(test)]
pub(crate) mod fleet;

use crate::bounds;
use crate::carrier::Carrier;
use crate::carrier::direct::Direct;
use crate::carrier::joint::{Joint, Links, Neighbour};
use crate::carrier::parallel::Parallel;
use crate::carrier::row::{Hop, Place, Row};
use crate::carrier::tcp_nc::TcpNc;
use crate::carrier::tunnel::{TunnelCarrier, TunnelSettings};
use crate::host::plain;
use crate::host::tcp::LossDetection;
use crate::outputs::Outputs;
use crate::packet::{TCP_HEADERS, UDP_HEADERS};
use crate::traffic::section::{Maker, Section, flow_count, nanos};
use crate::world::{Hosts, Snapshot, Span, World};
use ropewalk_core::schedule::Policy;
use ropewalk_netem::{Link, LinkConfig, LinkPlan, Side};
use ropewalk_plan::{
    self as plan, BufferReport, COMPRESSED_HEADERS, COMPRESSED_UDP, OUTER_OVERHEAD, PathReport,
    Plan, PlanError, RelayPlan, Report, TcpNcPlan, TunnelPlan,
};
use ropewalk_tcpnc::Redundancy;
use ropewalk_types::Random;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest IP packets of hosts, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// TCP with timestamps.
    pub tcp: u32,
    /// TCP without options.
    pub plain_tcp: u32,
    /// UDP.
    pub udp: u32,
}

impl Largest {
    /// All packets up to this size.
    const fn all(bytes: u32) -> Self {
        Self {
            tcp: bytes,
            plain_tcp: bytes,
            udp: bytes,
        }
    }

    /// What hosts send into a tunnel over paths that take packets of 1,500 bytes: handshakes tell TCP of
    /// segments that fit whole, and QUIC has found what fits.
    const fn in_tunnel(compressed: bool) -> Self {
        let whole = DIRECT.tcp - OUTER_OVERHEAD;
        if !compressed {
            return Self::all(whole);
        }
        let payload = whole - COMPRESSED_HEADERS;
        Self {
            tcp: payload + TCP_HEADERS,
            plain_tcp: payload + plain::HEADERS,
            udp: whole + UDP_HEADERS - COMPRESSED_UDP,
        }
    }
}

/// Hosts without a tunnel.
pub const DIRECT: Largest = Largest::all(1_500);
/// Hosts of TCP/NC over paths that take packets of 1,500 bytes.
const TCP_NC: Largest = Largest::all(1_452);

/// Why a plan cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The plan is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A link's settings are wrong.
    #[error("path[{index}].{error}")]
    Path {
        /// Which path.
        index: usize,
        /// What is wrong.
        error: ropewalk_netem::PlanError,
    },
    /// A file cannot be written.
    #[error("{0}")]
    Output(String),
    /// The settings of a shared link are wrong.
    #[error("link[{index}].{error}")]
    Link {
        /// Which link.
        index: usize,
        /// What is wrong.
        error: ropewalk_netem::PlanError,
    },
    /// The settings of a host's own link are wrong.
    #[error("traffic[{index}].access.{problem}")]
    Access {
        /// Which traffic.
        index: usize,
        /// Which key, and what is wrong.
        problem: String,
    },
}

impl SimError {
    /// A key that cannot be used, and what to do.
    #[must_use]
    pub fn setting(key: &str, problem: String) -> Self {
        Self::Plan(PlanError::Setting {
            key: key.into(),
            problem,
        })
    }
}

/// What a run may be given beside its plan.
#[derive(Default)]
pub struct Options {
    /// Schedules the gateway that sends the data of the first bulk traffic, instead of the plan's
    /// scheduler.
    pub policy: Option<Box<dyn Policy>>,
    /// Folder that relative names of trace files start from; the working folder unless given.
    pub folder: Option<PathBuf>,
    /// Bulk TCP senders take a segment for lost when so many beyond it are acknowledged (RFC 6675
    /// has three), instead of by time as Linux does (RFC 8985).
    pub duplicate_threshold: Option<u32>,
    /// Whether the report has the delays of each bulk flow as a histogram.
    pub histograms: bool,
    /// Where a log of everything that happens is written: [`crate::events`]. A plan that is refused
    /// writes nothing.
    pub events: Option<Box<dyn Write + Send>>,
    /// Directory that gets a file of packets for each interface.
    pub pcap: Option<PathBuf>,
}

/// Runs `plan` with `seed`.
///
/// # Errors
/// When the plan is wrong or asks for what is not simulated; the error names the key.
pub fn run(plan: &Plan, seed: u64) -> Result<Report, SimError> {
    run_with(plan, seed, Options::default())
}

/// [`run`] with a scheduler of the caller's or trace files from another folder.
///
/// # Errors
/// As [`run`], and [`SimError::Output`] when events or packets cannot be written.
pub fn run_with(plan: &Plan, seed: u64, options: Options) -> Result<Report, SimError> {
    let begun = std::time::Instant::now();
    refuse_kernel_only(plan)?;
    refuse_scheduler(plan, options.policy.is_some())?;
    let mut setup = Setup::new(plan, seed, &options)?;
    setup.histograms = options.histograms;
    if let Some(threshold) = options.duplicate_threshold {
        setup.detection = LossDetection::Duplicates(threshold);
    }
    setup.outputs = Outputs {
        events: options.events,
        pcap: options.pcap,
    };
    let mut report = match &plan.carrier {
        plan::Carrier::DirectFirst => setup.run_direct(0)?,
        plan::Carrier::Path { path } => {
            let index = setup.index_of(path)?;
            setup.run_direct(index)?
        }
        plan::Carrier::Tunnel(tunnel) => setup.run_tunnel(tunnel, options.policy)?,
        plan::Carrier::Relay(relay) => setup.run_relay(relay)?,
        plan::Carrier::Chain { hops } => setup.run_chain(hops)?,
        plan::Carrier::TcpNc(tcp_nc) => setup.run_tcp_nc(tcp_nc)?,
        plan::Carrier::Mptcp => setup.run_mptcp()?,
        plan::Carrier::Balance(_) => return Err(not_simulated("balance")),
        plan::Carrier::RoundRobin => return Err(not_simulated("round-robin")),
        plan::Carrier::Peer { peer } => {
            return Err(SimError::setting(
                "carrier.kind",
                format!("`peer` (here {peer}) is not simulated; run the plan in the kernel"),
            ));
        }
    };
    report.wall_seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

fn not_simulated(kind: &str) -> SimError {
    let problem = format!("`{kind}` is not simulated; run the plan in the kernel");
    SimError::setting("carrier.kind", problem)
}

/// A scheduler of the caller's has nothing to decide without a tunnel.
fn refuse_scheduler(plan: &Plan, given: bool) -> Result<(), SimError> {
    if !given || matches!(plan.carrier, plan::Carrier::Tunnel(_)) {
        return Ok(());
    }
    let problem =
        "a scheduler from outside is for one tunnel; use `kind = \"tunnel\"`, or give none";
    Err(SimError::setting("carrier.kind", problem.into()))
}

/// Simulated senders have no windows to be stopped with.
fn refuse_kernel_only(plan: &Plan) -> Result<(), SimError> {
    let frozen = matches!(&plan.carrier, plan::Carrier::Tunnel(tunnel) if tunnel.freeze.is_some());
    let accelerated = matches!(
        &plan.carrier,
        plan::Carrier::Tunnel(tunnel) if tunnel.accelerate == Some(true)
    );
    let leaving = plan.path.iter().any(|path| !path.leaving.is_empty());
    for (index, traffic) in plan.traffic.iter().enumerate() {
        if let plan::Traffic::Tcp {
            plain: true,
            window: Some(_),
            ..
        } = traffic
        {
            let problem = "not simulated for `plain` hosts; run the plan in the kernel".into();
            return Err(SimError::setting(
                &format!("traffic[{index}].window"),
                problem,
            ));
        }
    }
    let key = match (frozen, accelerated, leaving) {
        (true, _, _) => "carrier.freeze",
        (_, true, _) => "carrier.accelerate",
        (_, _, true) => "path.leaving",
        (false, false, false) => return Ok(()),
    };
    let problem = "not simulated; run the plan in the kernel";
    Err(SimError::setting(key, problem.into()))
}

/// A checked plan with its links ready.
struct Setup<'a> {
    plan: &'a Plan,
    seed: u64,
    span: Span,
    /// Those of paths, then shared ones.
    links: Vec<LinkConfig>,
    /// Where relative names of trace files start.
    folder: PathBuf,
    /// Direction of the first bulk traffic.
    direction: Side,
    histograms: bool,
    /// Paths of each bulk TCP connection under MPTCP, else 0.
    subflows: usize,
    detection: LossDetection,
    outputs: Outputs,
}

impl<'a> Setup<'a> {
    fn new(plan: &'a Plan, seed: u64, options: &Options) -> Result<Self, SimError> {
        plan.check()?;
        let folder = options.folder.clone().unwrap_or_default();
        let links = (0..plan.link_count()).map(|number| {
            let link = plan.link_plan(number, seed);
            let link = link.resolve(|name| load(&folder, name));
            link.map_err(|error| match number.checked_sub(plan.path.len()) {
                None => SimError::Path {
                    index: number,
                    error,
                },
                Some(index) => SimError::Link { index, error },
            })
        });
        let links = links.collect::<Result<Vec<_>, _>>()?;
        bounds::check(plan, &links)?;
        Ok(Self {
            plan,
            seed,
            span: Span {
                warmup_ns: nanos(plan.warmup),
                end_ns: nanos(plan.duration),
                watched: None,
            },
            links,
            folder,
            direction: plan.sides()[0],
            histograms: false,
            subflows: 0,
            detection: LossDetection::default(),
            outputs: Outputs::default(),
        })
    }

    fn index_of(&self, name: &str) -> Result<usize, SimError> {
        let index = self.plan.path.iter().position(|path| path.name == name);
        index.ok_or_else(|| SimError::setting("carrier.path", format!("there is no path `{name}`")))
    }

    fn indices_of(&self, names: &[String]) -> Result<Vec<usize>, SimError> {
        names.iter().map(|name| self.index_of(name)).collect()
    }

    /// All links, if some are shared or have hosts beside the carrier.
    fn joint(&self) -> Result<Option<Links>, SimError> {
        let mut beside = Vec::new();
        for traffic in &self.plan.traffic {
            let name = traffic.beside();
            let link = name.and_then(|name| self.plan.link_number(name));
            let link = link.filter(|_| !traffic.has_own_tunnel());
            beside.extend((0..flow_count(traffic)).map(|_| link));
        }
        if self.plan.link.is_empty() && self.plan.traffic.iter().all(|t| t.beside().is_none()) {
            return Ok(None);
        }
        if self.outputs.pcap.is_some() {
            let problem = "not for plans with shared links or traffic beside the carrier";
            return Err(SimError::setting("--pcap", problem.into()));
        }
        let through = (0..self.links.len()).map(|link| self.plan.through(link));
        Ok(Some(Links {
            links: self.links.clone(),
            through: through.collect(),
            beside,
        }))
    }

    fn run_direct(self, path: usize) -> Result<Report, SimError> {
        if let Some(links) = self.joint()? {
            return self.run(Joint::new(links, path), DIRECT);
        }
        let carrier = Direct::new(Link::new(self.links[path].clone()), path);
        self.run(carrier, DIRECT)
    }

    /// TCP over all paths; everything else takes the first one.
    fn run_mptcp(mut self) -> Result<Report, SimError> {
        self.subflows = self.links.len();
        let ecn = |traffic: &plan::Traffic| matches!(traffic, plan::Traffic::Tcp { ecn: true, .. });
        if self.joint()?.is_some() || self.plan.traffic.iter().any(ecn) {
            let problem = "`mptcp` with shared links, traffic beside it or `ecn` is not simulated; \
                           run the plan in the kernel";
            return Err(SimError::setting("carrier.kind", problem.into()));
        }
        let links = self.links.iter().cloned().enumerate();
        let links = links.map(|(path, link)| Direct::new(Link::new(link), path));
        let carrier = Parallel::new(links.collect());
        self.run(carrier, DIRECT)
    }

    fn run_tunnel(
        self,
        tunnel: &TunnelPlan,
        policy: Option<Box<dyn Policy>>,
    ) -> Result<Report, SimError> {
        let used: Vec<usize> = match &tunnel.paths {
            None => (0..self.plan.path.len()).collect(),
            Some(names) => self.indices_of(names)?,
        };
        let settings = TunnelSettings::parse(tunnel, "carrier")?;
        let mut carrier = self.tunnel(&settings, &used, 0, (self.neighbours(), policy))?;
        if let Some(links) = self.joint()? {
            carrier = carrier.over_joint(links);
        }
        self.run(carrier, Largest::in_tunnel(settings.send.compress_headers))
    }

    /// The tunnel of a hop over these paths.
    fn tunnel(
        &self,
        settings: &TunnelSettings,
        paths: &[usize],
        hop: usize,
        (neighbours, policy): (Vec<Neighbour>, Option<Box<dyn Policy>>),
    ) -> Result<TunnelCarrier, SimError> {
        let (links, seed) = self.hop(paths, hop);
        let policy = (self.direction, policy);
        let seed = (seed, self.plan.path.len());
        let mut carrier = TunnelCarrier::new(settings, links, neighbours, seed, policy)?;
        carrier.watch(&self.outputs);
        Ok(carrier)
    }

    /// The sites of traffic that has tunnels of its own.
    fn neighbours(&self) -> Vec<Neighbour> {
        let mut found = Vec::new();
        let mut first = 0_u16;
        for traffic in &self.plan.traffic {
            let count = u16::try_from(flow_count(traffic)).unwrap_or(u16::MAX);
            let flows = first..first.saturating_add(count);
            first = flows.end;
            let entry = traffic
                .beside()
                .and_then(|name| self.plan.link_number(name));
            if let Some(entry) = entry.filter(|_| traffic.has_own_tunnel()) {
                let link = self.with_delays(entry);
                found.push(Neighbour { entry, link, flows });
            }
        }
        found
    }

    /// Links and seed of a hop.
    fn hop(&self, paths: &[usize], hop: usize) -> (Vec<(usize, LinkConfig)>, u64) {
        let links = paths.iter().map(|&path| (path, self.with_delays(path)));
        let seed = self.seed ^ (hop as u64).wrapping_mul(HOP_SEED);
        (links.collect(), seed)
    }

    /// The link of a path, with the delays of the links that it goes on over: the tunnel connects
    /// over these.
    fn with_delays(&self, path: usize) -> LinkConfig {
        let mut link = self.links[path].clone();
        for next in std::iter::successors(self.plan.through(path), |next| self.plan.through(*next))
        {
            link.up.delay += self.links[next].up.delay;
            link.down.delay += self.links[next].down.delay;
        }
        link
    }

    fn run_relay(self, relay: &RelayPlan) -> Result<Report, SimError> {
        let settings = TunnelSettings::parse(&relay.tunnel, "carrier.tunnel")?;
        let mut hops = Vec::new();
        for (number, names) in relay.hops.iter().enumerate() {
            let paths = self.indices_of(names)?;
            let carrier = self.tunnel(&settings, &paths, number, (Vec::new(), None))?;
            hops.push(Hop { carrier, paths });
        }
        self.run_row(hops, Largest::in_tunnel(settings.send.compress_headers))
    }

    fn run_chain(self, names: &[String]) -> Result<Report, SimError> {
        let hop = |path: usize| Hop {
            carrier: Direct::new(Link::new(self.links[path].clone()), path),
            paths: vec![path],
        };
        let hops: Vec<_> = self.indices_of(names)?.into_iter().map(hop).collect();
        self.run_row(hops, DIRECT)
    }

    /// Sessions carry what leaves the site, as on the kernel.
    fn run_tcp_nc(self, tcp_nc: &TcpNcPlan) -> Result<Report, SimError> {
        let fixed = tcp_nc.fixed().map(|(n, k)| Redundancy::Fixed { n, k });
        let redundancy = fixed.unwrap_or_default();
        let hop = |path: usize| {
            let link = Link::new(self.links[path].clone());
            Hop {
                carrier: TcpNc::new(link, path, Side::Up, redundancy),
                paths: vec![path],
            }
        };
        let hops = self.indices_of(&tcp_nc.hops)?.into_iter().map(hop);
        let hops: Vec<_> = hops.collect();
        self.run_row(hops, TCP_NC)
    }

    fn run_row<C: Carrier>(
        mut self,
        hops: Vec<Hop<C>>,
        largest: Largest,
    ) -> Result<Report, SimError> {
        self.span.watched = Some(self.direction);
        let (mut access, mut places) = (Vec::new(), Vec::new());
        for (index, traffic) in self.plan.traffic.iter().enumerate() {
            let link = traffic.access_link(self.seed, index);
            let link = link
                .map(|link| self.resolve_access(&link, index))
                .transpose()?;
            let place = Place {
                hop: traffic.enter() as usize - 1,
                access: link.is_some().then_some(access.len()),
            };
            // In the trace, access links are numbered after the paths.
            let number = self.links.len() + access.len();
            access.extend(link.map(|link| Direct::new(Link::new(link), number)));
            places.extend((0..flow_count(traffic)).map(|_| place));
        }
        self.run(Row::new(hops, access, places), largest)
    }

    fn resolve_access(&self, link: &LinkPlan, index: usize) -> Result<LinkConfig, SimError> {
        link.resolve(|name| load(&self.folder, name))
            .map_err(|error| {
                let error = error.to_string();
                let problem = error.strip_prefix("both.").unwrap_or(&error);
                SimError::Access {
                    index,
                    problem: problem.to_owned(),
                }
            })
    }

    fn run<C: Carrier>(mut self, carrier: C, largest: Largest) -> Result<Report, SimError> {
        let mut random = Random::new(self.seed ^ HOST_SEED);
        let traffic = self.plan.traffic.iter();
        let sections: Vec<Section> = traffic.map(|t| Section::new(t, self.span)).collect();
        let mut maker = Maker {
            largest,
            detection: self.detection,
            subflows: self.subflows,
            random: &mut random,
        };
        let mut flows = Vec::new();
        for (index, section) in sections.iter().enumerate() {
            section.make(index, &mut maker, &mut flows)?;
        }
        // The plan has no error any more.
        let trace = std::mem::take(&mut self.outputs).open(self.plan, self.seed)?;
        let hosts = Hosts { flows, sections };
        let mut world = World::new(carrier, hosts, self.span, self.links.len(), trace);
        let (warm, end) = world.run();
        let mut notes = self.plan.warnings();
        notes.extend(conservation_notes(&end));
        world.core.trace.finish().map_err(SimError::Output)?;
        let sections = world.sections.iter().enumerate();
        let mut traffic: Vec<_> = sections
            .map(|(i, s)| s.report(i, &world.flows, self.histograms))
            .collect();
        let links: Vec<&LinkConfig> = self.links.iter().collect();
        let ceiling_mbit = plan::describe_ceilings(self.plan, &links, &mut traffic);
        notes.extend(ceiling_mbit.is_none().then(|| plan::NO_CEILING.into()));
        Ok(Report {
            plan: self.plan.name.clone(),
            runner: "sim".into(),
            seed: self.seed,
            seconds: (self.span.end_ns - self.span.warmup_ns) as f64 / 1e9,
            ceiling_mbit: ceiling_mbit.unwrap_or_default(),
            traffic,
            paths: self.path_reports(&warm, &end),
            links: self.link_reports(&warm, &end),
            tunnel: world.carrier.tunnel_report(self.direction),
            buffers: self.buffer_reports(&world.watched),
            trace_hash: Some(format!("{:016x}", world.core.trace.hash())),
            packets: Some(world.packets + world.carrier.packets()),
            wall_seconds: 0.0,
            notes,
        })
    }

    /// What was seen of buffers; only hops that have send buffers have looks at them.
    fn buffer_reports(&self, looks: &[Vec<u32>]) -> Vec<BufferReport> {
        let Some(first) = looks.first() else {
            return Vec::new();
        };
        let links = self
            .plan
            .path
            .iter()
            .map(|path| format!("link {}", path.name));
        let hops = match &self.plan.carrier {
            plan::Carrier::TcpNc(tcp_nc) => tcp_nc.hops.as_slice(),
            plan::Carrier::DirectFirst
            | plan::Carrier::Path { .. }
            | plan::Carrier::Tunnel(_)
            | plan::Carrier::Relay(_)
            | plan::Carrier::Chain { .. }
            | plan::Carrier::Mptcp
            | plan::Carrier::Balance(_)
            | plan::Carrier::RoundRobin
            | plan::Carrier::Peer { .. } => &[],
        };
        let names = links.chain(hops.iter().map(|path| format!("send {path}")));
        let report = |(at, name): (usize, String)| BufferReport {
            name,
            packets: looks
                .iter()
                .filter_map(|look| look.get(at).copied())
                .collect(),
        };
        names.take(first.len()).enumerate().map(report).collect()
    }

    fn path_reports(&self, warm: &Snapshot, end: &Snapshot) -> Vec<PathReport> {
        let paths = self.plan.path.iter().enumerate();
        let report =
            |(number, path): (usize, &plan::PathPlan)| self.report(number, &path.name, warm, end);
        paths.map(report).collect()
    }

    fn link_reports(&self, warm: &Snapshot, end: &Snapshot) -> Vec<PathReport> {
        let links = (self.plan.path.len()..).zip(&self.plan.link);
        let report =
            |(number, link): (usize, &plan::SharedLink)| self.report(number, &link.name, warm, end);
        links.map(report).collect()
    }

    fn report(&self, number: usize, name: &str, warm: &Snapshot, end: &Snapshot) -> PathReport {
        let side = usize::from(self.direction == Side::Down);
        let (before, after) = (warm[number][side], end[number][side]);
        PathReport {
            name: name.to_owned(),
            bytes: after.sent_bytes - before.sent_bytes,
            delivered_bytes: after.delivered_bytes - before.delivered_bytes,
            dropped: after.dropped_queue - before.dropped_queue,
            lost: (after.dropped_loss + after.dropped_blackhole)
                - (before.dropped_loss + before.dropped_blackhole),
            capacity_mbit: self.capacity_mbit(number, self.direction),
            dropped_aqm: after.dropped_aqm - before.dropped_aqm,
            marked: after.marked - before.marked,
        }
    }

    /// Mean capacity of a link over the counted time, Mbit/s; 0 of one without a limit.
    fn capacity_mbit(&self, path: usize, direction: Side) -> f64 {
        let (from, to) = (self.plan.warmup, self.plan.duration);
        let mean = self.links[path].mean_capacity(direction, from, to);
        mean.unwrap_or(0.0) / 1e6
    }
}

/// The text of a trace file.
fn load(folder: &Path, name: &str) -> Result<String, String> {
    plan::read_trace(&folder.join(name))
}

/// Every packet that entered a link left it, was dropped, or is inside.
fn conservation_notes(end: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, sides) in end.iter().enumerate() {
        for (side, counters) in Side::ALL.iter().zip(sides) {
            let inside = counters.queued_packets + counters.in_flight_packets;
            let accounted = counters.delivered_packets + counters.dropped() + inside;
            if accounted != counters.sent_packets {
                notes.push(format!(
                    "path[{index}] {side:?}: {} packets entered, {accounted} accounted for",
                    counters.sent_packets
                ));
            }
        }
    }
    notes
}

/// Keeps the randomness of the gateways of different hops apart.
const HOP_SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keeps the hosts' randomness apart from the links'.
const HOST_SEED: u64 = 0x686f_7374_7300;
