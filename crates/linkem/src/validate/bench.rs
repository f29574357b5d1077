//! A link between two namespaces of its own, and traffic over it.
//!
//! Traffic is real UDP and TCP through the kernels of both namespaces, so that what is measured
//! is what any other program would see. Everything is bounded in time.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ropewalk_io::netns::Namespace;
use ropewalk_netem::{Change, LinkConfig, TimedChange};

use crate::args::Address;
use crate::end::End;
use crate::engine::Engine;
use crate::report::cpu_seconds;
use crate::run::prefer_punctuality;

/// A running link with settings from A to B; the way back is a plain wire.
pub(super) struct Bench {
    a: Namespace,
    b: Namespace,
    thread: JoinHandle<Result<f64>>,
    stop: UnixStream,
    mtu: usize,
    ip: IpVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IpVersion {
    V4,
    V6,
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) sequence: u32,
    /// When it was sent and received, since a common start.
    pub(super) sent: Duration,
    pub(super) received: Duration,
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) packets: u32,
    /// IP length of each.
    pub(super) ip_bytes: usize,
    pub(super) packets_per_second: f64,
}

/// Time from which the settings hold; before, addresses are resolved over a plain wire. Longer:
/// surer on a busy machine, longer runs.
const SETTLED: Duration = Duration::from_millis(300);
/// After this silence nothing more is expected. Longer: slower links are measured whole, longer
/// runs.
const SILENCE: Duration = Duration::from_millis(700);
/// Socket buffer that holds every packet of a measurement.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;
const PORT: u16 = 9_000;

impl IpVersion {
    const fn header_bytes(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// Address of an end.
    fn address(self, end: u8) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 77, 0, end).into(),
            Self::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, end.into()).into(),
        }
    }

    /// Address and port of end B.
    fn target(self) -> SocketAddr {
        SocketAddr::new(self.address(2), PORT)
    }
}

impl Bench {
    /// Starts a link whose settings from A to B are those of `change`.
    pub(super) fn start(change: Change, mtu: usize, ip: IpVersion) -> Result<Self> {
        let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
        let started = Instant::now();
        let create = |namespace: &Namespace, end: u8| -> Result<End> {
            let own = namespace.enter(|| Namespace::open("self"))??;
            let addresses = [
                Address(IpVersion::V4.address(end), 24),
                Address(IpVersion::V6.address(end), 64),
            ];
            End::create_in(own, "wan0", u32::try_from(mtu)?, &addresses)
        };
        let (end_a, end_b) = (create(&a, 1)?, create(&b, 2)?);
        let (stop, stopped) = UnixStream::pair()?;
        let change = TimedChange {
            at: SETTLED,
            up: change,
            down: Change::default(),
        };
        let config = LinkConfig {
            seed: 1,
            changes: vec![change],
            ..LinkConfig::default()
        };
        let thread = std::thread::spawn(move || {
            prefer_punctuality();
            let before = cpu_seconds();
            let mut engine = Engine::new(end_a, end_b, config, false);
            engine.carry(stopped.as_fd(), ropewalk_types::Instant::FAR_FUTURE)?;
            Ok(cpu_seconds() - before)
        });
        let bench = Self {
            a,
            b,
            thread,
            stop,
            mtu,
            ip,
        };
        bench.resolve_addresses(started)?;
        std::thread::sleep((SETTLED + MARGIN).saturating_sub(started.elapsed()));
        Ok(bench)
    }

    /// Ends the link; processor seconds that it took.
    pub(super) fn finish(self) -> Result<f64> {
        drop(self.stop);
        self.thread
            .join()
            .map_err(|_| anyhow!("the link thread panicked"))?
    }

    /// Sends `stream` from A to B; what arrived, in order of arrival.
    pub(super) fn send(&self, stream: Stream) -> Result<Vec<Arrival>> {
        let receiver = self.socket_b()?;
        let sender = self.socket_a()?;
        let header_bytes = self.ip.header_bytes() + UDP_HEADER_BYTES;
        let payload = stream
            .ip_bytes
            .checked_sub(header_bytes)
            .context("packet too short")?;
        if payload < STAMP_BYTES || stream.ip_bytes > self.mtu {
            bail!("{} bytes do not fit this link", stream.ip_bytes);
        }
        let start = Instant::now();
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || pace(&sender, start, payload, stream));
            let arrivals = collect(&receiver, start, stream.packets)?;
            sending
                .join()
                .map_err(|_| anyhow!("the sender panicked"))??;
            Ok(arrivals)
        })
    }

    /// Sends over one TCP connection for `time`; IP bits per second received after `skip`.
    pub(super) fn tcp_rate(&self, time: Duration, skip: Duration) -> Result<f64> {
        let target = self.ip.target();
        let listener = self.b.enter(|| TcpListener::bind(target))??;
        let mut sender = self
            .a
            .enter(|| TcpStream::connect_timeout(&target, SILENCE * 4))??;
        let (mut receiver, _) = listener.accept()?;
        sender.set_write_timeout(Some(time + SILENCE))?;
        receiver.set_read_timeout(Some(SILENCE * 4))?;
        let start = Instant::now();
        let bytes = std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                let block = vec![0x5a; 128 * 1024];
                while start.elapsed() < time {
                    sender.write_all(&block)?;
                }
                sender.shutdown(std::net::Shutdown::Both)
            });
            let (mut block, mut bytes) = (vec![0; 256 * 1024], 0u64);
            while start.elapsed() < time {
                let length = receiver.read(&mut block)? as u64;
                bytes += if start.elapsed() >= skip { length } else { 0 };
            }
            drop(receiver);
            // The sender fails when the receiver closes first; the bytes are counted already.
            let _ = sending.join();
            std::io::Result::Ok(bytes)
        })?;
        let header_bytes = self.ip.header_bytes() + TCP_HEADER_BYTES;
        let payload_share = 1.0 - header_bytes as f64 / self.mtu as f64;
        Ok(bytes as f64 * 8.0 / payload_share / (time - skip).as_secs_f64())
    }

    /// Sends until something arrives, so that neighbours know each other.
    fn resolve_addresses(&self, started: Instant) -> Result<()> {
        let (sender, receiver) = (self.socket_a()?, self.socket_b()?);
        receiver.set_read_timeout(Some(Duration::from_millis(20)))?;
        while started.elapsed() < SETTLED {
            sender.send(&[0; STAMP_BYTES])?;
            if receiver.recv(&mut [0; STAMP_BYTES]).is_ok() {
                return Ok(());
            }
        }
        bail!("nothing passed the link within {SETTLED:?}; is the machine overloaded?")
    }

    fn socket_a(&self) -> Result<UdpSocket> {
        let local = SocketAddr::new(self.ip.address(1), 0);
        let socket = self.a.enter(|| UdpSocket::bind(local))??;
        socket.connect(self.ip.target())?;
        Ok(socket)
    }

    fn socket_b(&self) -> Result<UdpSocket> {
        let socket = self.b.enter(|| UdpSocket::bind(self.ip.target()))??;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
        Ok(socket)
    }
}

/// Time for the planned change to be carried out. Longer: surer on a busy machine, longer runs.
const MARGIN: Duration = Duration::from_millis(20);
const UDP_HEADER_BYTES: usize = 8;
/// With the timestamp option, which Linux uses by default.
const TCP_HEADER_BYTES: usize = 32;
/// Sequence and sending time.
const STAMP_BYTES: usize = 12;
/// Packets due within this time leave together. Longer: less work, less even streams.
const SLOT: Duration = Duration::from_millis(1);

/// Sends packets at their times; several that are due within a slot leave together.
fn pace(socket: &UdpSocket, start: Instant, payload: usize, stream: Stream) -> Result<()> {
    let mut packet = vec![0; payload];
    let gap = Duration::from_secs_f64(1.0 / stream.packets_per_second);
    for sequence in 0..stream.packets {
        let due = gap * sequence;
        let early = due.saturating_sub(start.elapsed());
        if early >= SLOT || (early > Duration::ZERO && gap >= SLOT) {
            std::thread::sleep(early);
        }
        packet[..4].copy_from_slice(&sequence.to_be_bytes());
        let sent = u64::try_from(start.elapsed().as_nanos())?;
        packet[4..STAMP_BYTES].copy_from_slice(&sent.to_be_bytes());
        match socket.send(&packet) {
            Ok(_) => {}
            // A full interface queue drops as a full link queue would.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives until `packets` have come or nothing comes any more.
fn collect(socket: &UdpSocket, start: Instant, packets: u32) -> Result<Vec<Arrival>> {
    socket.set_read_timeout(Some(SILENCE))?;
    let mut buffer = vec![0; 65_536];
    let mut arrivals = Vec::with_capacity(packets as usize);
    loop {
        match socket.recv(&mut buffer) {
            Ok(STAMP_BYTES..) => {}
            Ok(_) => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(arrivals);
            }
            Err(error) => return Err(error.into()),
        }
        let received = start.elapsed();
        let (sequence, sent) = buffer[..STAMP_BYTES].split_at(4);
        let sequence = u32::from_be_bytes(sequence.try_into()?);
        let sent = Duration::from_nanos(u64::from_be_bytes(sent.try_into()?));
        arrivals.push(Arrival {
            sequence,
            sent,
            received,
        });
        if arrivals.len() >= packets as usize {
            return Ok(arrivals);
        }
    }
}
