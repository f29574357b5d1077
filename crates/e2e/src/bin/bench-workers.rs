//! How many packets a second the sessions of two workers of a hub carry, beside one: sealed datagrams of one
//! site in, sealed datagrams for another site out. There are no sockets, and only the processor time of the
//! hub counts, not that of the sites, which run in between on the same thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::BytesMut;
use clap::Parser;
use ropewalk_core::hold::Limits;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::{Table, range};
use ropewalk_session::{
    Command, CommonSettings, Environment, Hub, HubAddresses, HubSettings, Role, Session, Site,
    SiteDirectory, SiteEntry, SiteHub, SiteSettings, Slice, SocketId, Sockets, StreamId, TcpInfo,
    Transmit, Uplink, group_of,
};
use ropewalk_testkit::packet::udp;
use ropewalk_transport::Identity;
use ropewalk_types::{Duration as Span, Instant as Time};
use ropewalk_wire::HEADROOM;
use serde::Serialize;

/// Compare the packets per second of two workers with those of one
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Rounds of one worker, then two.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Length of each run, seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Bytes of an inner packet.
    #[arg(long, default_value_t = 1_400)]
    bytes: usize,
}

/// Packets that the sending site gets in each turn.
const BATCH: u16 = 64;
/// Time in the little world between turns.
const TURN: Span = Span::from_millis(1);
/// Longest time for a path to come up there.
const JOIN_TURNS: usize = 1_000;

const HUB: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 4_443);

/// What a session sent: the datagrams one after the other, and the length of each.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    datagrams: Vec<(SocketAddr, usize)>,
}

impl Sockets for Outbox {
    fn send_udp(&mut self, transmit: &Transmit, contents: &[u8]) {
        self.bytes.extend_from_slice(contents);
        let segment = transmit.segment_size.unwrap_or(contents.len()).max(1);
        let pieces = contents.chunks(segment);
        let to = transmit.destination;
        self.datagrams.extend(pieces.map(|piece| (to, piece.len())));
    }

    fn write_stream(&mut self, _: StreamId, _: &[u8]) -> Result<usize, String> {
        Ok(0)
    }

    fn stream_info(&mut self, _: StreamId) -> Option<TcpInfo> {
        None
    }
}

impl Outbox {
    fn take(&mut self) -> Vec<(SocketAddr, BytesMut)> {
        let mut from = 0;
        let cut = |(to, length): (SocketAddr, usize)| {
            let piece = BytesMut::from(&self.bytes[from..from + length]);
            from += length;
            (to, piece)
        };
        let all = self.datagrams.drain(..).map(cut).collect();
        self.bytes.clear();
        all
    }
}

/// A site, and where it sends from.
struct End {
    session: Session<Site>,
    address: SocketAddr,
    inner: Ipv4Addr,
    outbox: Outbox,
}

/// A worker with two of its sites.
struct World {
    hub: Session<Hub>,
    outbox: Outbox,
    ends: [End; 2],
    now: Time,
    /// Time that the worker has worked.
    worked: Duration,
    /// Datagrams from the first site, and for the second one.
    taken: u64,
    sent: u64,
    number: u32,
    /// Length of inner packets.
    bytes: usize,
}

fn common(identity: Identity) -> CommonSettings {
    CommonSettings {
        identity,
        scheduler_send: ropewalk_types::SchedulerKind::default(),
        scheduler_receive: ropewalk_types::SchedulerKind::default(),
        classes: Arc::default(),
        hold: Limits::default(),
        send: ropewalk_core::tunnel::SendOptions::default(),
        congestion: ropewalk_transport::CongestionControl::default(),
        mtu: None,
    }
}

fn identity(number: u16) -> Result<Identity> {
    let mut seed = [7; 32];
    seed[..2].copy_from_slice(&number.to_le_bytes());
    Ok(Identity::from_seed(seed)?)
}

impl World {
    fn new(slice: Slice, bytes: usize) -> Result<Self> {
        let hub = identity(0)?;
        let environment = Environment {
            base: Instant::now(),
            segmentation: true,
            udp_payload_max: 1_472,
            session: 1,
            tunnels: 1,
            transport: None,
            slice,
        };
        let of_worker = |number: &u16| {
            let key = identity(*number).map(|identity| identity.public_key());
            key.is_ok_and(|key| slice.serves(group_of(&hub.public_key(), &key)))
        };
        let mut numbers = (1..u16::MAX).filter(of_worker);
        let mut end = |host: u8| -> Result<(End, SiteEntry)> {
            let identity = identity(numbers.next().context("no site for this worker")?)?;
            let inner = Ipv4Addr::new(10, 9, 0, host);
            let entry = SiteEntry {
                name: host.to_string(),
                key: identity.public_key(),
                addresses: vec![inner.into()],
                networks: Vec::new(),
                block: None,
                enabled: true,
                weight: 1,
                rate: None,
            };
            let settings = SiteSettings {
                common: common(identity),
                hubs: vec![SiteHub {
                    name: "hub".into(),
                    key: hub.public_key(),
                    addresses: Arc::new(HubAddresses::new(&[HUB])),
                    tcp_port: 443,
                }],
                udp_blocked_fallback: false,
                ipv6: false,
            };
            let end = End {
                session: Session::site(settings, &environment)?,
                address: SocketAddr::from(([192, 0, 2, host], 1_000)),
                inner,
                outbox: Outbox::default(),
            };
            Ok((end, entry))
        };
        let ((first, first_entry), (second, second_entry)) = (end(2)?, end(3)?);
        let settings = HubSettings {
            common: common(hub.clone()),
            listen: vec![HUB],
            tcp_listen: Vec::new(),
            addresses: vec!["10.9.0.1/24".parse()?],
            sites: Arc::new(SiteDirectory::new(vec![first_entry, second_entry])),
            memory: 1 << 30,
            passes_on: false,
        };
        let mut world = Self {
            hub: Session::hub(settings, &environment)?,
            outbox: Outbox::default(),
            ends: [first, second],
            now: Time::ZERO,
            worked: Duration::ZERO,
            taken: 0,
            sent: 0,
            number: 0,
            bytes,
        };
        world.join()?;
        Ok(world)
    }

    fn join(&mut self) -> Result<()> {
        for end in &mut self.ends {
            let uplink = Uplink {
                name: "up0".into(),
                ifindex: 1,
                addresses: vec![end.address.ip()],
                mtu: 1_500,
                standby: false,
                metered: false,
                bottleneck: None,
                weight: None,
                protection_hourly: None,
                congestion: None,
            };
            let done = end
                .session
                .handle_command(self.now, Command::Uplinks(vec![uplink]));
            done.map_err(anyhow::Error::msg)?;
        }
        for _ in 0..JOIN_TURNS {
            self.turn(0);
            let up = |end: &End| {
                let tunnels = end.session.status().tunnels;
                tunnels.iter().any(|tunnel| tunnel.up)
            };
            if self.ends.iter().all(up) {
                return Ok(());
            }
        }
        anyhow::bail!(
            "the sites do not connect: {:?}",
            self.ends[0].session.status()
        )
    }

    /// Lets the first site send packets to the second one, and everybody have a turn.
    fn turn(&mut self, packets: u16) {
        self.now += TURN;
        let [from, to] = [self.ends[0].inner, self.ends[1].inner];
        let mut incoming = Vec::new();
        for (index, end) in self.ends.iter_mut().enumerate() {
            if index == 0 {
                for port in 0..packets {
                    self.number += 1;
                    let mut data = udp(self.number, 1_000 + port % 4, self.bytes);
                    data[HEADROOM + 12..HEADROOM + 16].copy_from_slice(&from.octets());
                    data[HEADROOM + 16..HEADROOM + 20].copy_from_slice(&to.octets());
                    end.session.handle_inner(self.now, data, true);
                }
            }
            settle(&mut end.session, self.now, &mut end.outbox);
            let of_end = end.outbox.take();
            self.taken += if index == 0 { of_end.len() as u64 } else { 0 };
            incoming.extend(of_end.into_iter().map(|(_, data)| (end.address, data)));
        }
        // The worker: what came in, then what goes on to the other site.
        let began = processor_time();
        for (from, data) in incoming {
            let local = Some(HUB.ip());
            let ecn = ropewalk_types::Ecn::Ect0;
            self.hub
                .handle_udp(self.now, SocketId(0), from, local, ecn, data);
        }
        self.hub.handle_timeout(self.now);
        self.hub.end_batch(self.now);
        let mut inner = Vec::new();
        while let Some(packet) = self.hub.poll_inner() {
            inner.push(packet);
        }
        self.worked += processor_time() - began;
        // The kernel would hand them back like this.
        let forwarded: Vec<BytesMut> = inner.iter().map(with_headroom).collect();
        let began = processor_time();
        for data in forwarded {
            self.hub.handle_inner(self.now, data, true);
        }
        settle_sockets(&mut self.hub);
        self.hub.pump(self.now, &mut self.outbox);
        self.worked += processor_time() - began;
        for (to, data) in self.outbox.take() {
            for (index, end) in self.ends.iter_mut().enumerate() {
                if end.address == to {
                    self.sent += index as u64;
                    let local = Some(end.address.ip());
                    let ecn = ropewalk_types::Ecn::Ect0;
                    let data = data.clone();
                    end.session
                        .handle_udp(self.now, SocketId(0), HUB, local, ecn, data);
                }
            }
        }
    }

    /// Datagrams in and out for each second of work, over a while.
    fn run(&mut self, length: Duration) -> f64 {
        let (packets, worked) = (self.taken + self.sent, self.worked);
        let began = Instant::now();
        while began.elapsed() < length {
            self.turn(BATCH);
        }
        let packets = self.taken + self.sent - packets;
        packets as f64 / (self.worked - worked).as_secs_f64()
    }
}

/// Processor time of this thread: other programs may have had the processor meanwhile.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

fn with_headroom(packet: &ropewalk_session::Inner) -> BytesMut {
    let mut data = BytesMut::zeroed(HEADROOM);
    data.extend_from_slice(&packet.head);
    data.extend_from_slice(&packet.data);
    data
}

fn settle<R: Role>(session: &mut Session<R>, now: Time, outbox: &mut Outbox) {
    session.handle_timeout(now);
    session.end_batch(now);
    while session.poll_inner().is_some() {}
    settle_sockets(session);
    session.pump(now, outbox);
    settle_sockets(session);
}

/// Every socket that a session asks for is there at once.
fn settle_sockets<R: Role>(session: &mut Session<R>) {
    while session.poll_request().is_some() {}
    while session.poll_event().is_some() {}
}

#[derive(Debug, Serialize)]
struct Outcome {
    bytes: usize,
    /// Datagrams in and out for each second of work.
    one: Vec<f64>,
    two: Vec<f64>,
    /// Of each round: both workers by the one.
    ratio: Vec<f64>,
}

fn measure(args: &Args) -> Result<Outcome> {
    anyhow::ensure!(
        (40..=1_400).contains(&args.bytes),
        "--bytes must be 40 to 1400"
    );
    let length = Duration::from_secs_f64(if args.bench.quick { 0.3 } else { args.seconds });
    let rounds = if args.bench.quick { 1 } else { args.rounds };
    let world = |index, count| {
        let slice = Slice::new(index, count).context("a slice")?;
        World::new(slice, args.bytes)
    };
    let mut alone = world(0, 1)?;
    let mut both = [world(0, 2)?, world(1, 2)?];
    let mut outcome = Outcome {
        bytes: args.bytes,
        one: Vec::new(),
        two: Vec::new(),
        ratio: Vec::new(),
    };
    // The first seconds of a path are slower.
    alone.run(length);
    for world in &mut both {
        world.run(length);
    }
    for _ in 0..rounds {
        let one = alone.run(length);
        let two = std::thread::scope(|scope| {
            let [a, b] = &mut both;
            let beside = scope.spawn(|| a.run(length));
            let here = b.run(length);
            beside.join().map(|there| here + there)
        });
        let two = two.map_err(|_| anyhow::anyhow!("a worker panicked"))?;
        outcome.one.push(one);
        outcome.two.push(two);
        outcome.ratio.push(two / one);
    }
    Ok(outcome)
}

fn table(outcome: &Outcome) -> Table {
    let mut table = Table::new(&["workers", "datagrams in and out per second of work"]);
    table.row(&["1".into(), range(&outcome.one, 0)]);
    table.row(&["2".into(), range(&outcome.two, 0)]);
    table.row(&["ratio".into(), range(&outcome.ratio, 2)]);
    table
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), table)
}
