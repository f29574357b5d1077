//! A real hub, a site that is up to something, the holder of an invitation, and strangers; and what their bytes cost the hub.

use super::LINKS;
use super::bounds::{self, Cost};
use bytes::{Bytes, BytesMut};
use ropewalk_session::{
    Command, CommonSettings, Environment, Event, Hub, HubSettings, Session, SiteDirectory,
    SiteEntry, Slice, SocketId, Sockets, StreamId, TcpInfo, Transmit,
};
use ropewalk_tally::tally;
use ropewalk_transport::{
    CongestionControl, ConnectionId, Endpoint, EndpointConfig, Identity, PublicKey,
};
use ropewalk_types::{Duration, Ecn, Instant, steps};
use ropewalk_wire::{Control, HEADROOM, Hello, Versions, emit_control};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

const HUB: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), 4_443);
const SITE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 1_000);
/// Where the holder of an invitation is.
const GUEST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 1_000);
const HUB_INNER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// What the tunnel's datagrams have for a source: see [`crate::work::datagrams`].
const SITE_INNER: Ipv4Addr = Ipv4Addr::new(0x45, 0x45, 0x45, 0x45);
/// What a datagram costs its sender besides its bytes: IPv4 and UDP.
const WIRE_BYTES: u64 = 28;
/// Exchanges between the site and the hub until both have nothing more to say at an instant.
const EXCHANGES_MAX: usize = 64;
/// Datagrams of the site that strangers can repeat.
const SEEN_MAX: usize = 64;
/// Bytes that the hub may send in a turn: place for them costs nobody anything.
const OUT_BYTES: usize = 4 << 20;

/// What the hub sends, in memory that was there before.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    datagrams: Vec<(SocketAddr, usize)>,
}

impl Sockets for Out {
    fn send_udp(&mut self, transmit: &Transmit, contents: &[u8]) {
        for datagram in contents.chunks(transmit.segment_size.unwrap_or(contents.len()).max(1)) {
            self.bytes.extend_from_slice(datagram);
            self.datagrams.push((transmit.destination, datagram.len()));
        }
    }

    fn write_stream(&mut self, _: StreamId, _: &[u8]) -> Result<usize, String> {
        Ok(0)
    }

    fn stream_info(&mut self, _: StreamId) -> Option<TcpInfo> {
        None
    }
}

/// The hub, with everything counted that it does, and the site.
pub struct Meter {
    /// Time of the world.
    pub now: Instant,
    base: std::time::Instant,
    hub: Session<Hub>,
    hub_key: PublicKey,
    site: Endpoint,
    links: [Option<ConnectionId>; LINKS],
    guest: Endpoint,
    guests: [Option<ConnectionId>; LINKS],
    out: Out,
    /// What the site has sent lately.
    seen: Vec<Vec<u8>>,
    connects: u32,
    live_before: i64,
    cost: Cost,
}

fn identity(number: u8) -> Identity {
    Identity::from_seed([number; 32]).expect("any seed is a key")
}

fn new_hub(base: std::time::Instant, site: PublicKey) -> Session<Hub> {
    let entry = SiteEntry {
        name: "site".into(),
        key: site,
        addresses: vec![SITE_INNER.into()],
        networks: Vec::new(),
        block: None,
        enabled: true,
        weight: 1,
        rate: None,
    };
    let sites = SiteDirectory::new(vec![entry]);
    sites.set_invitations([identity(4).public_key()]);
    let settings = HubSettings {
        common: CommonSettings {
            identity: identity(1),
            scheduler_send: Default::default(),
            scheduler_receive: Default::default(),
            classes: Arc::new(crate::feedback::classes()),
            hold: Default::default(),
            send: Default::default(),
            congestion: CongestionControl::default(),
            mtu: None,
        },
        listen: vec![HUB],
        tcp_listen: Vec::new(),
        addresses: vec![IpAddr::V4(HUB_INNER).into()],
        sites: Arc::new(sites),
        memory: 1 << 30,
        passes_on: false,
    };
    let environment = Environment {
        base,
        segmentation: false,
        udp_payload_max: 1_472,
        session: 1,
        tunnels: 1,
        transport: Some([1; 32]),
        slice: Slice::WHOLE,
    };
    let mut hub = Session::hub(settings, &environment).expect("valid settings");
    while hub.poll_request().is_some() {}
    hub
}

impl Meter {
    /// A hub to which the site has connected with all links, each of which carries a path.
    #[must_use]
    pub fn new() -> Self {
        let base = std::time::Instant::now();
        let key = identity(2);
        let hub = new_hub(base, key.public_key());
        let endpoint = |key, seed| {
            let mut config = EndpointConfig::new(key, base);
            config.seed = Some([seed; 32]);
            config.gso_segments_max = 1;
            Endpoint::new(config).expect("valid settings")
        };
        let mut meter = Self {
            now: Instant::from_millis(1_000),
            base,
            hub,
            hub_key: identity(1).public_key(),
            site: endpoint(key, 2),
            links: [None; LINKS],
            guest: endpoint(identity(4), 4),
            guests: [None; LINKS],
            out: Out {
                bytes: Vec::with_capacity(OUT_BYTES),
                datagrams: Vec::with_capacity(OUT_BYTES / 1_000),
            },
            seen: Vec::new(),
            connects: 0,
            live_before: 0,
            cost: Cost::default(),
        };
        meter.live_before = tally().live;
        for link in 0..LINKS {
            meter.connect_anew(link);
            for _ in 0..4 {
                meter.turn();
                meter.wait(Duration::from_millis(30));
            }
            let mut hello = Vec::new();
            let path = Hello {
                versions: Versions::OURS,
                session: 1,
                path: link as u8,
                generation: 1,
                standby: false,
                metered: false,
                bottleneck: None,
                scheduler: 0,
                weight: 0,
                name: String::new(),
                claim: None,
            };
            emit_control(&Control::Hello(path), &mut hello);
            meter.say(link, hello);
            meter.turn();
        }
        let up = meter.hub.status().tunnels[0].paths.len();
        assert_eq!(up, LINKS, "all paths are up");
        meter
    }

    /// Does something with the hub, and counts what that costs.
    fn counted<T>(&mut self, work: impl FnOnce(&mut Session<Hub>, &mut Out) -> T) -> T {
        let (before, steps_before) = (tally(), steps());
        let result = work(&mut self.hub, &mut self.out);
        let after = tally();
        self.cost.allocations += after.allocations - before.allocations;
        self.cost.allocated += after.bytes - before.bytes;
        self.cost.retained += after.live - before.live;
        self.cost.steps += steps() - steps_before;
        result
    }

    fn hear(&mut self, from: SocketAddr, datagram: &[u8]) {
        self.cost.datagrams_in += 1;
        self.cost.bytes_in += datagram.len() as u64 + WIRE_BYTES;
        let now = self.now;
        // The block that it came in is the driver's.
        let data = BytesMut::from(datagram);
        let bytes = data.len() as i64;
        self.cost.retained += bytes;
        self.counted(|hub, _| hub.handle_udp(now, SocketId(0), from, None, Ecn::NotEct, data));
    }

    /// The site queues a datagram on one of its connections.
    pub fn say(&mut self, link: usize, datagram: Vec<u8>) {
        if let Some(id) = self.links[link] {
            self.site.send(id, Bytes::from(datagram)).ok();
        }
    }

    /// The site gives a connection up, if there is one, and begins another.
    pub fn connect_anew(&mut self, link: usize) {
        if let Some(id) = self.links[link] {
            self.site.close(self.now, id, "as the test wants");
        }
        self.connects += 1;
        let (now, key) = (self.now, self.hub_key);
        self.links[link] = self
            .site
            .connect(now, HUB, key, CongestionControl::default())
            .ok();
        self.turn();
    }

    /// The holder of an invitation says something over one of the connections, which it begins, or begins `anew`.
    pub fn ask(&mut self, guest: usize, anew: bool, datagram: Vec<u8>) {
        let now = self.now;
        if anew && let Some(id) = self.guests[guest].take() {
            self.guest.close(now, id, "as the test wants");
        }
        if self.guests[guest].is_none() {
            let (key, congestion) = (self.hub_key, CongestionControl::default());
            self.guests[guest] = self.guest.connect(now, HUB, key, congestion).ok();
            self.turn();
        }
        if let Some(id) = self.guests[guest] {
            self.guest.send(id, Bytes::from(datagram)).ok();
        }
    }

    /// The first packet of somebody who has the key of the hub and none that the hub knows, from an address of its
    /// own; parts of it are wrong as the numbers say.
    pub fn hear_stranger(&mut self, number: u64, numbers: [u16; 4]) {
        let [a, b, c, d] = numbers;
        let mut config = EndpointConfig::new(identity(3), self.base);
        config.seed = Some([(number % 251) as u8; 32]);
        let Ok(mut stranger) = Endpoint::new(config) else {
            return;
        };
        let (now, key) = (self.now, self.hub_key);
        let Ok(id) = stranger.connect(now, HUB, key, CongestionControl::default()) else {
            return;
        };
        let mut buffer = Vec::new();
        let Some(transmit) = stranger.poll_transmit(now, id, &mut buffer) else {
            return;
        };
        buffer.truncate(transmit.size);
        let place = usize::from(a) % buffer.len();
        buffer[place] ^= b.to_le_bytes()[0];
        buffer.truncate(1 + (buffer.len() - 1).saturating_sub(usize::from(c) % 1_400));
        let address = Ipv4Addr::from(0xc633_6400 + u32::from(d) * number as u32 % 256);
        self.hear(SocketAddr::new(address.into(), 1_000), &buffer);
    }

    /// A datagram of the site comes again from somewhere, with errors as the numbers say.
    pub fn hear_again(&mut self, number: usize, numbers: [u16; 4]) {
        let [a, b, c, d] = numbers;
        if self.seen.is_empty() {
            return;
        }
        let mut datagram = self.seen[(usize::from(a) + number) % self.seen.len()].clone();
        let place = usize::from(b) % datagram.len();
        datagram[place] ^= c.to_le_bytes()[0];
        let from = if d % 2 == 0 {
            SITE
        } else {
            SocketAddr::new(SITE.ip(), d)
        };
        self.hear(from, &datagram);
    }

    /// A packet of the hub's machine comes that is for the site.
    pub fn enter(&mut self, flow: u8, length: usize) {
        let mut data = BytesMut::zeroed(HEADROOM + length.max(40));
        let length = data.len() - HEADROOM;
        let ip = &mut data[HEADROOM..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&u16::try_from(length).unwrap_or(0).to_be_bytes());
        ip[9] = 17;
        ip[12..16].copy_from_slice(&HUB_INNER.octets());
        ip[16..20].copy_from_slice(&SITE_INNER.octets());
        ip[20] = flow;
        self.cost.entered += 1;
        self.cost.entered_bytes += length as u64;
        self.cost.retained += data.len() as i64;
        let now = self.now;
        self.counted(|hub, _| hub.handle_inner(now, data, false));
    }

    /// The site and the hub send what they have, until both are silent at this instant.
    pub fn turn(&mut self) {
        for _ in 0..EXCHANGES_MAX {
            let sent = self.site_turn();
            let got = self.hub_turn();
            if !sent && !got {
                return;
            }
        }
    }

    /// Whether the site or the holder of the invitation has sent anything.
    fn site_turn(&mut self) -> bool {
        let now = self.now;
        let mut packets = Vec::new();
        for (endpoint, links, from) in [
            (&mut self.site, &mut self.links, SITE),
            (&mut self.guest, &mut self.guests, GUEST),
        ] {
            if endpoint.poll_timeout().is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now);
            }
            while let Some((id, event)) = endpoint.poll_event() {
                if matches!(event, ropewalk_transport::Event::Closed { .. })
                    && let Some(link) = links.iter_mut().find(|link| **link == Some(id))
                {
                    *link = None;
                }
            }
            let mut buffer = Vec::new();
            while let Some(id) = endpoint.poll_dirty() {
                while let Some(transmit) = endpoint.poll_transmit(now, id, &mut buffer) {
                    packets.push((from, buffer[..transmit.size].to_vec()));
                }
            }
        }
        for (from, datagram) in &packets {
            self.hear(*from, datagram);
        }
        let sent = !packets.is_empty();
        for (from, datagram) in packets {
            if from == SITE {
                if self.seen.len() == SEEN_MAX {
                    self.seen.remove(0);
                }
                self.seen.push(datagram);
            }
        }
        sent
    }

    /// Whether the hub has sent anything.
    fn hub_turn(&mut self) -> bool {
        let now = self.now;
        self.cost.turns += 1;
        self.counted(|hub, out| {
            if hub.poll_timeout().is_some_and(|at| at <= now) {
                hub.handle_timeout(now);
            }
            hub.end_batch(now);
            while hub.poll_inner().is_some() {}
            hub.pump(now, out);
            while let Some(event) = hub.poll_event() {
                if let Event::Enrol {
                    invitation, key, ..
                } = event
                {
                    let refused = Some("used".to_owned());
                    let answer = Command::Enrolled {
                        invitation,
                        key,
                        refused,
                        owner: None,
                    };
                    hub.handle_command(now, answer).ok();
                }
            }
            while hub.poll_request().is_some() {}
        });
        let mut at = 0;
        let Out { bytes, datagrams } = std::mem::take(&mut self.out);
        for &(to, length) in &datagrams {
            let datagram = &bytes[at..at + length];
            at += length;
            self.cost.datagrams_out += 1;
            self.cost.bytes_out += length as u64 + WIRE_BYTES;
            let endpoint = if to == SITE {
                &mut self.site
            } else if to == GUEST {
                &mut self.guest
            } else {
                continue;
            };
            let data = BytesMut::from(datagram);
            let id = endpoint.handle_udp(now, SocketId(0), HUB, None, Ecn::NotEct, data);
            while id.is_some_and(|id| endpoint.receive(id).is_some()) {}
        }
        let any = !datagrams.is_empty();
        self.out = Out { bytes, datagrams };
        self.out.bytes.clear();
        self.out.datagrams.clear();
        any
    }

    /// Time passes.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        self.cost.time += time;
    }

    /// What all of this has cost so far.
    #[must_use]
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// # Panics
    /// When the bytes have cost more than they may.
    pub fn check(&self) {
        bounds::check(&self.cost);
        let drops = self.hub.status().drops;
        assert_eq!(drops["internal_errors"], 0, "the hub panicked");
    }
}
