//! TLS streams of the fabric, where UDP is blocked: connecting, listening, reading and writing.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::Context;
use ropewalk_io::tcp;
use ropewalk_io::tcp_info::{self, ConnectConfig};
use ropewalk_transport::tls::{TcpInfo, TlsPath};
use ropewalk_transport::{Event, PublicKey};
use ropewalk_types::{Duration, Ecn, Instant, PathSnapshot};
use rustix::event::epoll;

use super::{Fabric, HANDSHAKE, Kind, LinkEvent, LinkId, Ready, Received};

/// TCP connections a hub keeps open at once, those in the handshake included.
const STREAMS_MAX: usize = 1_024;
/// TCP connections a hub keeps open before the peer has proved its key.
const HANDSHAKES_MAX: usize = 128;
/// The same from one address, so that one cannot keep all others out.
const HANDSHAKES_PER_ADDRESS: usize = 8;
/// How old the kernel's view of a connection may be.
const INFO_AGE: Duration = Duration::from_millis(2);
/// How often a connection with bytes under way is looked at, at the slowest: no event tells when
/// acknowledgements have made room in the window.
const LOOK_MAX: Duration = Duration::from_millis(20);
/// Bytes that may wait unsent in the kernel: more would be beyond the scheduler's reach.
const NOT_SENT_MAX: u32 = 16 * 1024;
/// Largest datagram put on a stream: what a QUIC path of MTU 1,500 takes, about.
const DATAGRAM_BYTES: usize = 1_430;
/// Bytes read from one stream per turn.
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Listener(TcpListener);

pub(super) struct Stream {
    tcp: TcpStream,
    pub tls: TlsPath,
    pub remote: SocketAddr,
    /// Encrypted bytes the socket had no room for.
    pending: Vec<u8>,
    connected: bool,
    deadline: Option<Instant>,
    info_at: Option<Instant>,
    /// When to look whether bytes under way have arrived, if there are any.
    look_at: Option<Instant>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({})", self.remote)
    }
}

impl Stream {
    fn new(tcp: TcpStream, tls: TlsPath, remote: SocketAddr, now: Instant) -> Box<Self> {
        Box::new(Self {
            tcp,
            tls,
            remote,
            pending: Vec::new(),
            connected: false,
            deadline: Some(now + HANDSHAKE),
            info_at: None,
            look_at: None,
            sent_bytes: 0,
            received_bytes: 0,
        })
    }

    pub fn local(&self) -> Option<SocketAddr> {
        self.tcp.local_addr().ok()
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.look_at).min()
    }

    /// Writes what waits, as far as the socket takes it.
    pub fn write(&mut self) -> Result<(), String> {
        loop {
            if self.pending.is_empty() && self.tls.poll_output(&mut self.pending) == 0 {
                return Ok(());
            }
            match self.tcp.write(&self.pending) {
                Ok(0) => return Err("the TCP connection takes no more data".into()),
                Ok(n) => {
                    self.sent_bytes += n as u64;
                    self.pending.drain(..n);
                }
                // Not connected yet, or full: epoll tells when it goes on.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("TCP connection to {}: {e}", self.remote)),
            }
        }
    }

    /// Reads a turn's worth; whether more may wait.
    fn read(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        let mut budget = READ_BYTES;
        while budget > 0 {
            match self.tcp.read(buffer) {
                Ok(0) => return Err("the peer closed the TCP connection".into()),
                Ok(n) => {
                    self.received_bytes += n as u64;
                    budget = budget.saturating_sub(n);
                    self.tls
                        .handle_bytes(&buffer[..n])
                        .map_err(|e| e.to_string())?;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("TCP connection to {}: {e}", self.remote)),
            }
        }
        Ok(true)
    }

    pub fn snapshot(&mut self, now: Instant) -> Option<PathSnapshot> {
        if self.info_at.is_none_or(|at| now.since(at) >= INFO_AGE) {
            self.info_at = Some(now);
            if let Ok(info) = tcp_info::tcp_info(&self.tcp) {
                let busy = info.in_flight_bytes + info.not_sent_bytes > 0;
                let pause = (info.srtt / 8).clamp(INFO_AGE, LOOK_MAX);
                self.look_at = busy.then(|| now + pause);
                self.tls
                    .update_tcp_info(now, translate(&info, self.pending.len()));
            }
        }
        let mut snapshot = self.tls.snapshot(now)?;
        // A stream takes any size; a steady inner MTU is worth more when QUIC returns.
        snapshot.max_datagram = snapshot.max_datagram.min(DATAGRAM_BYTES);
        Some(snapshot)
    }
}

/// The kernel's figures in the transport's terms.
fn translate(info: &tcp_info::TcpInfo, pending: usize) -> TcpInfo {
    TcpInfo {
        srtt: info.srtt,
        rttvar: info.rttvar,
        min_rtt: info.min_rtt.unwrap_or(info.srtt),
        cwnd_bytes: info.cwnd_bytes,
        in_flight_bytes: info.in_flight_bytes,
        not_sent_bytes: info.not_sent_bytes + pending as u64,
        delivery_rate: info.delivery_rate,
        segments_sent: u64::from(info.sent),
        segments_retransmitted: u64::from(info.retransmitted),
        last_ack_age: info.last_ack_age,
    }
}

impl Fabric {
    /// Starts a TLS connection to `remote`, bound to `device`.
    ///
    /// # Errors
    /// When the connection cannot even be started.
    pub fn connect_tls(
        &mut self,
        now: Instant,
        device: &str,
        remote: SocketAddr,
        key: &PublicKey,
    ) -> anyhow::Result<LinkId> {
        let tcp = tcp_info::connect(&ConnectConfig {
            destination: remote,
            device: Some(device.to_owned()),
            source: None,
            congestion: Some("bbr".into()),
            not_sent_low_water: Some(NOT_SENT_MAX),
        })
        .with_context(|| format!("cannot connect to TCP {remote} on {device}"))?;
        let tls = TlsPath::client(&self.identity, *key)?;
        self.add_stream(now, tcp, tls, remote)
    }

    fn add_stream(
        &mut self,
        now: Instant,
        tcp: TcpStream,
        tls: TlsPath,
        remote: SocketAddr,
    ) -> anyhow::Result<LinkId> {
        // A delayed small packet helps nobody here.
        tcp.set_nodelay(true).ok();
        let link = self.insert(Kind::Tls(Stream::new(tcp, tls, remote, now)));
        let Some(Kind::Tls(stream)) = self.link(link).map(|l| &l.kind) else {
            anyhow::bail!("the link has just been made");
        };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        self.register(&stream.tcp, Ready::Stream(link.slot), flags)?;
        self.mark_dirty(link);
        Ok(link)
    }

    /// Listens for TLS connections.
    ///
    /// # Errors
    /// When the address is in use or not ours.
    pub fn listen_tls(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        let what = || format!("cannot listen on TCP {address}");
        let listener = tcp::listen(address).with_context(what)?;
        let index = u32::try_from(self.listeners.len())?;
        self.register(&listener, Ready::Listener(index), epoll::EventFlags::IN)?;
        self.listeners.push(Listener(listener));
        Ok(())
    }

    /// Accepts what waits at a listening socket.
    pub fn accept(&mut self, now: Instant, index: u32) {
        let Some(allowed) = self.allowed.clone() else {
            return;
        };
        for _ in 0..HANDSHAKES_MAX {
            let Some(listener) = self.listeners.get(index as usize) else {
                return;
            };
            let Ok((tcp, remote)) = listener.0.accept() else {
                return;
            };
            let (mut open, mut handshakes, mut from_there) = (0, 0, 0);
            for link in self.links.iter().flatten() {
                if let Kind::Tls(stream) = &link.kind {
                    open += 1;
                    handshakes += usize::from(!stream.connected);
                    let same = !stream.connected && stream.remote.ip() == remote.ip();
                    from_there += usize::from(same);
                }
            }
            let full = open >= STREAMS_MAX || handshakes >= HANDSHAKES_MAX;
            if full || from_there >= HANDSHAKES_PER_ADDRESS {
                self.drops.streams_refused += 1;
                continue;
            }
            let added = tcp
                .set_nonblocking(true)
                .map_err(anyhow::Error::from)
                .and_then(|()| {
                    tcp::set_not_sent_low_water(&tcp, NOT_SENT_MAX)?;
                    tcp::set_congestion(&tcp, "bbr").ok();
                    let tls = TlsPath::server(&self.identity, allowed.clone())?;
                    self.add_stream(now, tcp, tls, remote)
                });
            if let Err(error) = added {
                tracing::debug!(%remote, %error, "TCP connection dropped");
            }
        }
    }

    /// Reads and writes a stream that is ready, and appends the datagrams that came.
    pub fn serve_stream(&mut self, slot: u32, out: &mut Vec<Received>) {
        let Some(Some(link)) = self.links.get_mut(slot as usize) else {
            return;
        };
        let id = LinkId {
            slot,
            serial: link.serial,
        };
        let Kind::Tls(stream) = &mut link.kind else {
            return;
        };
        if let Ok(Some(error)) = stream.tcp.take_error() {
            let reason = format!("TCP connection to {}: {error}", stream.remote);
            self.fail(id, reason);
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(READ_BYTES, 0);
        let result = stream.read(&mut buffer);
        self.buffer = buffer;
        while let Some(data) = stream.tls.receive() {
            out.push(Received {
                link: id,
                ecn: Ecn::NotEct,
                data,
            });
        }
        let more = matches!(result, Ok(true));
        let mut result = result.and(stream.write());
        while let Some(event) = stream.tls.poll_event() {
            match event {
                Event::Connected { peer } => {
                    stream.connected = true;
                    stream.deadline = None;
                    self.events.push_back((id, LinkEvent::Connected { peer }));
                }
                // What the TLS layer says of the end is closer to its cause.
                Event::Closed { reason } => result = Err(reason.to_string()),
            }
        }
        if let Err(reason) = result {
            // What the TLS layer still has to say, an alert, goes out if it can.
            stream.write().unwrap_or_default();
            self.fail(id, reason);
        } else {
            // Room to write is room for more to send.
            self.mark_dirty(id);
            // What was left unread is no news to epoll: it tells only of changes.
            if more {
                self.rearm(id);
            }
        }
    }

    fn rearm(&self, id: LinkId) {
        if let Some(Kind::Tls(stream)) = self.link(id).map(|l| &l.kind) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(Ready::Stream(id.slot).encode());
            if let Err(error) = epoll::modify(&self.epoll, &stream.tcp, data, flags) {
                tracing::warn!(%error, "cannot wait for a TCP connection");
            }
        }
    }

    /// Lets the timers of streams go off.
    pub(super) fn stream_timers(&mut self, now: Instant) {
        for slot in 0..self.links.len() {
            let Some(Link {
                serial,
                kind: Kind::Tls(stream),
                ..
            }) = &mut self.links[slot]
            else {
                continue;
            };
            let id = LinkId {
                slot: u32::try_from(slot).unwrap_or(u32::MAX),
                serial: *serial,
            };
            if stream.deadline.is_some_and(|at| at <= now) {
                self.fail(id, "the TLS handshake took too long".into());
            } else if stream.look_at.take_if(|at| *at <= now).is_some() {
                self.mark_dirty(id);
            }
        }
    }
}

use super::Link;
