//! Raw tunnels over bare transports: what a tunnel promises whatever transports tell it.
//!
//! A bare transport knows four things: a window of fixed size, acknowledgements, a probe when
//! acknowledgements stay away, and a pacer if the test wants one. The rest of its report is what
//! the test says.

use std::collections::VecDeque;

use bytes::Bytes;
use ropewalk_core::path::{PathConfig, SLOT_BYTES};
use ropewalk_core::tunnel::{Outgoing, Tunnel, TunnelConfig};
use ropewalk_netem::{Capacity, Carried, DirectionConfig, LinkConfig};
use ropewalk_types::{Duration, Ecn, Instant, PathId, PathSnapshot, Rate};
use ropewalk_wire::Datagram;

use crate::pair::{Machine, Outbound, Pair};

/// How long a gateway reads a connection that another has replaced.
const DRAIN: Duration = Duration::from_secs(2);
/// Packets bound per call, as in a gateway.
const ROUND_PACKETS: usize = 64;
/// Calls in which everything that can go now has gone.
const ROUNDS_MAX: usize = 4_000;
/// Times that a tunnel may want to be looked at again within one instant.
const LOOKS_MAX: usize = 4;
/// Bytes of an acknowledgement, or of a transport's probe.
const BARE_BYTES: usize = 40;
/// Silence beyond the round-trip time after which a transport probes.
const PROBE_AFTER: Duration = Duration::from_millis(200);

/// What bare transports send each other.
#[derive(Clone, Debug)]
pub struct Message {
    connection: u32,
    number: u32,
    /// Congestion mark.
    pub ecn: Ecn,
    body: Body,
}

impl Carried for Message {
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn mark_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

#[derive(Clone, Debug)]
enum Body {
    Datagram(Bytes),
    Probe,
    Acknowledgement,
}

impl Message {
    /// Whether it carries a datagram of the tunnel.
    #[must_use]
    pub const fn is_datagram(&self) -> bool {
        matches!(self.body, Body::Datagram(_))
    }
}

/// The transport of a path at one end.
#[derive(Clone, Debug)]
pub struct BarePath {
    /// What it reports, but for what follows from the packets that it has sent.
    pub report: PathSnapshot,
    /// Bytes that the pacer lets go at once, at the rate of the report; `None` paces nothing.
    pub burst: Option<u64>,
    /// Until when the pacer counts what has left.
    paced_until: Instant,
    /// Connection in use.
    pub connection: Option<u32>,
    /// The connection before, and until when it is read.
    drained: Option<(u32, Instant)>,
    /// Packets that are not acknowledged: number, bytes, and when each was sent.
    sent: VecDeque<(u32, u64, Instant)>,
    next_number: u32,
    silent_since: Option<Instant>,
    probe_due: Option<Instant>,
    /// Datagrams of the tunnel that it has sent.
    pub datagrams: u64,
}

impl BarePath {
    fn new(report: PathSnapshot) -> Self {
        Self {
            report,
            burst: None,
            paced_until: Instant::ZERO,
            connection: None,
            drained: None,
            sent: VecDeque::new(),
            next_number: 0,
            silent_since: None,
            probe_due: None,
            datagrams: 0,
        }
    }

    fn send(&mut self, now: Instant, link: usize, body: Body) -> Option<Outbound<Message>> {
        let connection = self.connection?;
        let bytes = match &body {
            Body::Datagram(datagram) => datagram.len(),
            Body::Probe | Body::Acknowledgement => 0,
        };
        let number = self.next_number;
        self.next_number += 1;
        self.sent.push_back((number, bytes as u64, now));
        self.silent_since.get_or_insert(now);
        self.paced_until = self.paced_until.max(now) + self.report.rate.time_for(bytes as u64);
        self.probe_due = Some(now + self.report.srtt + PROBE_AFTER);
        let packet = Message {
            connection,
            number,
            ecn: Ecn::NotEct,
            body,
        };
        let bytes = bytes.max(BARE_BYTES);
        Some(Outbound {
            link,
            bytes,
            packet,
        })
    }

    /// What was sent before an acknowledged packet is acknowledged or lost.
    fn on_acknowledgement(&mut self, now: Instant, number: u32) {
        let settled = self.sent.partition_point(|(sent, ..)| *sent <= number);
        if settled == 0 {
            return;
        }
        self.sent.drain(..settled);
        let waits = !self.sent.is_empty();
        self.silent_since = waits.then_some(now);
        self.probe_due = waits.then(|| now + self.report.srtt + PROBE_AFTER);
    }

    fn declare_lost(&mut self) {
        for (_, bytes, _) in &mut self.sent {
            *bytes = 0;
        }
    }

    fn snapshot(&self, now: Instant) -> PathSnapshot {
        let in_flight = self.sent.iter().map(|(_, bytes, _)| bytes).sum();
        let window = self.report.cwnd.saturating_sub(in_flight);
        let paced = self.burst.map_or(u64::MAX, |burst| {
            let standing = self.report.rate.bytes_in(self.paced_until.since(now));
            burst.saturating_sub(standing)
        });
        let blocks = paced < SLOT_BYTES && window >= SLOT_BYTES;
        let slot = self.report.rate.time_for(SLOT_BYTES);
        PathSnapshot {
            in_flight,
            free: window.min(paced),
            next_credit: blocks.then(|| self.paced_until - slot),
            silent_since: self.silent_since,
            ..self.report.clone()
        }
    }
}

/// A tunnel and the transports of its paths.
pub struct TunnelEnd {
    /// The tunnel.
    pub tunnel: Tunnel,
    /// One transport per link.
    pub paths: Vec<BarePath>,
    /// Inner packets that the tunnel has let through.
    pub delivered: Vec<(Instant, Bytes)>,
    /// Datagrams that the tunnel has sent.
    pub sent: Vec<(Instant, PathId, Bytes)>,
    /// Link, connection and number of what is to be acknowledged.
    acknowledge: Vec<(usize, u32, u32)>,
    out: Vec<Outgoing>,
}

impl TunnelEnd {
    /// A tunnel whose paths are not connected yet; their transports report this.
    #[must_use]
    pub fn new(config: TunnelConfig, seed: u64, reports: Vec<PathSnapshot>) -> Self {
        Self {
            tunnel: Tunnel::new(config, seed),
            paths: reports.into_iter().map(BarePath::new).collect(),
            delivered: Vec::new(),
            sent: Vec::new(),
            acknowledge: Vec::new(),
            out: Vec::new(),
        }
    }

    /// A new connection for a path. The one before is read for a while.
    pub fn connect(&mut self, now: Instant, path: usize, connection: u32) {
        self.put_in_use(now, path, connection);
        self.tunnel.add_path(now, id(path), PathConfig::default());
    }

    /// The connection before takes its path back from the one in use, which is read for a while.
    pub fn take_back(&mut self, now: Instant, path: usize) {
        let before = self.paths[path].drained.expect("a connection before");
        self.put_in_use(now, path, before.0);
        self.tunnel
            .take_path_back(now, id(path), PathConfig::default());
    }

    fn put_in_use(&mut self, now: Instant, path: usize, connection: u32) {
        let at = &mut self.paths[path];
        let drained = at.connection.map(|old| (old, now + DRAIN));
        *at = BarePath {
            connection: Some(connection),
            drained,
            burst: at.burst,
            datagrams: at.datagrams,
            ..BarePath::new(at.report.clone())
        };
    }

    /// Takes a path away.
    pub fn disconnect(&mut self, now: Instant, path: usize) {
        let at = &mut self.paths[path];
        *at = BarePath::new(at.report.clone());
        self.tunnel.remove_path(now, id(path));
    }

    fn on_datagram(&mut self, now: Instant, link: usize, message: &Message, datagram: Bytes) {
        let at = &self.paths[link];
        let (path, ecn) = (id(link), message.ecn);
        let read = at.drained.filter(|drained| drained.1 > now);
        let control = if at.connection == Some(message.connection) {
            self.tunnel.handle_datagram(now, path, ecn, datagram)
        } else if read.is_some_and(|drained| drained.0 == message.connection) {
            self.tunnel.handle_straggler(now, path, ecn, datagram)
        } else {
            None
        };
        assert_eq!(control, None, "nobody sent a message");
    }

    fn pump(&mut self, now: Instant, out: &mut Vec<Outbound<Message>>) {
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "there is always more to send");
            while let Some(path) = self.tunnel.poll_declared_lost() {
                self.paths[path.index()].declare_lost();
            }
            self.refresh(now);
            let bound = &mut self.out;
            if self.tunnel.poll_transmit(now, bound, ROUND_PACKETS) == 0 {
                break;
            }
            for Outgoing { path, datagram, .. } in self.out.drain(..) {
                let parsed = Datagram::parse(&datagram);
                assert!(parsed.is_ok(), "{parsed:?}: {datagram:x?}");
                self.sent.push((now, path, datagram.clone()));
                let at = &mut self.paths[path.index()];
                at.datagrams += 1;
                let sent = at.send(now, path.index(), Body::Datagram(datagram));
                out.push(sent.expect("a datagram for a path there is"));
            }
        }
        self.refresh(now);
    }

    fn refresh(&mut self, now: Instant) {
        for (index, path) in self.paths.iter().enumerate() {
            if path.connection.is_some() {
                self.tunnel.update_path(now, id(index), path.snapshot(now));
            }
        }
    }
}

impl Machine for TunnelEnd {
    type Packet = Message;

    fn receive(&mut self, now: Instant, link: usize, message: Message) {
        let at = &mut self.paths[link];
        if matches!(message.body, Body::Acknowledgement) {
            if at.connection == Some(message.connection) {
                at.on_acknowledgement(now, message.number);
            }
            return;
        }
        // A new connection of the other end speaks: this end follows.
        let newest = at.connection.max(at.drained.map(|drained| drained.0));
        if newest.is_some_and(|newest| newest < message.connection) {
            self.connect(now, link, message.connection);
        }
        if self.paths[link].connection == Some(message.connection) {
            self.acknowledge
                .push((link, message.connection, message.number));
        }
        if let Body::Datagram(datagram) = &message.body {
            self.on_datagram(now, link, &message, datagram.clone());
        }
    }

    /// As a gateway does, until the tunnel wants nothing more now.
    fn turn(&mut self, now: Instant, out: &mut Vec<Outbound<Message>>) {
        for (link, connection, number) in self.acknowledge.drain(..) {
            out.push(Outbound {
                link,
                bytes: BARE_BYTES,
                packet: Message {
                    connection,
                    number,
                    ecn: Ecn::NotEct,
                    body: Body::Acknowledgement,
                },
            });
        }
        for (link, path) in self.paths.iter_mut().enumerate() {
            if path.probe_due.is_some_and(|at| at <= now) {
                out.extend(path.send(now, link, Body::Probe));
            }
        }
        for look in 0.. {
            if self.tunnel.poll_timeout().is_some_and(|at| at <= now) {
                self.tunnel.handle_timeout(now);
            }
            self.pump(now, out);
            self.tunnel.end_batch(now);
            while let Some(mut inner) = self.tunnel.poll_inner() {
                inner.join();
                self.delivered.push((now, inner.data));
            }
            let footprint = self.tunnel.footprint();
            assert_eq!(footprint.excess(), None, "{footprint:?}");
            let due = self.tunnel.poll_timeout();
            if due.is_none_or(|at| at > now) {
                return;
            }
            assert!(
                look < LOOKS_MAX,
                "due at {due:?}, it is {now:?}: {footprint:?}"
            );
        }
    }

    fn poll_timeout(&mut self) -> Option<Instant> {
        let now = self.tunnel.now();
        let waits = self.tunnel.queue_bytes() > 0;
        let paced = self
            .paths
            .iter()
            .filter(|path| waits && path.burst.is_some());
        let credits = paced.filter_map(|path| path.snapshot(now).next_credit);
        let probes = self.paths.iter().filter_map(|path| path.probe_due);
        let due = credits.filter(|at| *at > now).chain(probes);
        due.chain(self.tunnel.poll_timeout()).min()
    }
}

/// A path between two tunnels.
#[derive(Clone, Debug)]
pub struct PathSpec {
    /// Both directions of its link.
    pub link: LinkConfig,
    /// What the transports at the site and at the hub report.
    pub reports: [PathSnapshot; 2],
}

impl PathSpec {
    /// A path of this rate up and 100 Mbit/s down, with windows of two bandwidth-delay products.
    #[must_use]
    pub fn new(mbit: u64, delay_ms: u64) -> Self {
        let delay = Duration::from_millis(delay_ms);
        let direction = |rate| DirectionConfig {
            capacity: Capacity::Fixed(rate),
            delay,
            queue_packets_max: None,
            ..DirectionConfig::default()
        };
        let report = |rate: Rate| {
            let cwnd = 2 * rate.bytes_in(2 * delay) + 4_000;
            PathSnapshot {
                srtt: 2 * delay,
                rttvar: delay / 8,
                min_rtt: 2 * delay,
                cwnd,
                rate,
                max_datagram: 1_400,
                ..PathSnapshot::default()
            }
        };
        let rates = [mbit, 100].map(|mbit| Rate::from_bits_per_sec(mbit * 1_000_000));
        let [up, down] = rates.map(direction);
        Self {
            link: LinkConfig {
                up,
                down,
                ..LinkConfig::default()
            },
            reports: rates.map(report),
        }
    }
}

impl Pair<TunnelEnd> {
    /// Two tunnels with all paths connected.
    #[must_use]
    pub fn tunnels(configs: [TunnelConfig; 2], seed: u64, paths: &[PathSpec]) -> Self {
        let now = Instant::from_millis(1);
        let reports = |end: usize| paths.iter().map(|path| path.reports[end].clone()).collect();
        let [site, hub] = configs;
        let mut site = TunnelEnd::new(site, seed, reports(0));
        let mut hub = TunnelEnd::new(hub, seed + 1, reports(1));
        for path in 0..paths.len() {
            site.connect(now, path, 1);
            hub.connect(now, path, 1);
        }
        let links = (seed..).zip(paths).map(|(seed, path)| LinkConfig {
            seed,
            ..path.link.clone()
        });
        Self::new(now, site, hub, links)
    }
}

/// The path over the link of this number.
///
/// # Panics
/// When the number is above 255.
#[must_use]
pub fn id(link: usize) -> PathId {
    PathId(u8::try_from(link).expect("few paths"))
}
