//! One gateway of a world: a session, and the names of its sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_session::{
    Event, Request, Role, Session, SocketId, Sockets, StreamId, TcpInfo, Transmit,
};
use ropewalk_types::{Ecn, Instant};

use crate::packet::{Body, Packet, read_inner};
use crate::stream::Tcp;

/// A UDP socket, by the interface it is bound to.
#[derive(Clone, Debug)]
struct Udp {
    device: Option<Arc<str>>,
    port: u16,
}

/// A gateway.
#[derive(Debug)]
pub struct Host<R> {
    /// What decides.
    pub session: Session<R>,
    /// The inner packets it let through: when, from whom, and their numbers.
    pub delivered: Vec<(Instant, std::net::IpAddr, u64)>,
    /// The same as they are, for worlds whose inner packets carry no numbers.
    released: Option<Vec<Bytes>>,
    /// What it told the control side.
    pub events: Vec<(Instant, Event)>,
    udp: BTreeMap<SocketId, Udp>,
    tcp: BTreeMap<StreamId, Tcp>,
    /// Connections that this side has closed: the other side is told again, for a while.
    closing: Vec<Tcp>,
    /// Devices whose sockets cannot be opened.
    pub broken: Vec<String>,
    next_port: u16,
    out: Vec<Outgoing>,
}

/// A packet that leaves: through which device, from which port.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub device: Option<Arc<str>>,
    pub port: u16,
    pub to: SocketAddr,
    pub body: Body,
}

/// The sockets as the session sees them while it pumps.
struct Pumping<'a> {
    now: Instant,
    udp: &'a BTreeMap<SocketId, Udp>,
    tcp: &'a mut BTreeMap<StreamId, Tcp>,
    out: &'a mut Vec<Outgoing>,
}

impl Sockets for Pumping<'_> {
    fn send_udp(&mut self, transmit: &Transmit, contents: &[u8]) {
        let Some(socket) = self.udp.get(&transmit.socket) else {
            return;
        };
        for datagram in contents.chunks(transmit.segment_size.unwrap_or(contents.len()).max(1)) {
            self.out.push(Outgoing {
                device: socket.device.clone(),
                port: socket.port,
                to: transmit.destination,
                body: Body::Udp(transmit.ecn, BytesMut::from(datagram)),
            });
        }
    }

    fn write_stream(&mut self, stream: StreamId, bytes: &[u8]) -> Result<usize, String> {
        let Some(tcp) = self.tcp.get_mut(&stream).filter(|tcp| tcp.connected) else {
            return Ok(0);
        };
        Ok(tcp.write(self.now, bytes, self.out))
    }

    fn stream_info(&mut self, stream: StreamId) -> Option<TcpInfo> {
        self.tcp.get(&stream).map(|tcp| tcp.info(self.now))
    }
}

impl<R: Role> Host<R> {
    /// A gateway that has done nothing yet. Its sockets get ports from `first_port` on where the
    /// session does not name them.
    #[must_use]
    pub const fn new(session: Session<R>, first_port: u16) -> Self {
        Self {
            session,
            delivered: Vec::new(),
            released: None,
            events: Vec::new(),
            udp: BTreeMap::new(),
            tcp: BTreeMap::new(),
            closing: Vec::new(),
            broken: Vec::new(),
            next_port: first_port,
            out: Vec::new(),
        }
    }

    /// How many UDP sockets are open.
    #[must_use]
    pub fn udp_sockets(&self) -> usize {
        self.udp.len()
    }

    /// How many TCP connections are open.
    #[must_use]
    pub fn tcp_connections(&self) -> usize {
        self.tcp.len()
    }

    /// A packet arrived at a port of this gateway, over the interface `device` of a site.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        packet: Packet,
        port: u16,
        device: Option<&str>,
    ) {
        let (from, to) = (packet.from, packet.to);
        match packet.body {
            Body::Udp(ecn, data) => self.receive_udp(now, (from, to), port, ecn, data),
            Body::TcpOpen => self.receive_open(now, (from, to), port),
            Body::TcpData(at, data) => {
                let Some(id) = self.known_stream(from, port, device) else {
                    return;
                };
                let tcp = self.tcp.get_mut(&id).expect("it is known");
                if tcp.on_data(at, data, &mut self.out) {
                    self.session.handle_stream_writable(id);
                    self.session.handle_stream_readable(now, id);
                }
            }
            Body::TcpAck(place) => {
                let Some(id) = self.known_stream(from, port, device) else {
                    return;
                };
                let tcp = self.tcp.get_mut(&id).expect("it is known");
                if tcp.on_ack(now, place, &mut self.out) {
                    self.session.handle_stream_writable(id);
                }
            }
            Body::TcpClose => {
                if let Some(id) = self.stream(from, port) {
                    if let Some(tcp) = self.tcp.remove(&id) {
                        self.session.handle_stream_data(now, id, &tcp.unread);
                    }
                    let reason = "the peer closed the TCP connection".to_owned();
                    self.session.handle_stream_closed(now, id, reason);
                }
            }
            // Packets of hosts beside the tunnel never come to a gateway.
            Body::Plain(_) => {}
        }
    }

    fn receive_udp(
        &mut self,
        now: Instant,
        (from, to): (SocketAddr, SocketAddr),
        port: u16,
        ecn: Ecn,
        data: BytesMut,
    ) {
        let mut sockets = self.udp.iter();
        let Some((&socket, _)) = sockets.find(|(_, socket)| socket.port == port) else {
            return;
        };
        let local = Some(to.ip());
        self.session.handle_udp(now, socket, from, local, ecn, data);
    }

    fn receive_open(&mut self, now: Instant, (from, to): (SocketAddr, SocketAddr), port: u16) {
        if let Some(id) = self.stream(from, port) {
            let tcp = self.tcp.get_mut(&id).expect("it is known");
            if tcp.accepted {
                // Its first answer was lost.
                self.out.push(tcp.packet(Body::TcpOpen));
            } else if !tcp.connected {
                tcp.opened();
                self.session.handle_stream_writable(id);
            }
            return;
        }
        let accepted = self.session.handle_accepted(now, from, Some(to));
        let body = if let Some(id) = accepted {
            let tcp = Tcp::new(None, port, from, true);
            self.tcp.insert(id, tcp);
            Body::TcpOpen
        } else {
            Body::TcpClose
        };
        self.out.push(Outgoing {
            device: None,
            port,
            to: from,
            body,
        });
    }

    /// The connection of a packet. Whoever sends on one that is not known is told so.
    fn known_stream(
        &mut self,
        remote: SocketAddr,
        port: u16,
        device: Option<&str>,
    ) -> Option<StreamId> {
        let known = self.stream(remote, port);
        if known.is_none() {
            let unknown = Tcp::new(device.map(Arc::from), port, remote, false);
            self.out.push(unknown.packet(Body::TcpClose));
        }
        known
    }

    fn stream(&self, remote: SocketAddr, port: u16) -> Option<StreamId> {
        let same = |tcp: &Tcp| tcp.remote == remote && tcp.port == port;
        let mut streams = self.tcp.iter();
        streams.find(|(_, tcp)| same(tcp)).map(|(&id, _)| id)
    }

    /// The first half of a turn, as the engine takes it: all input is in. `due` says whether
    /// timers may be due.
    pub(crate) fn take_in(&mut self, now: Instant, due: bool) {
        self.read_streams(now);
        if due {
            self.session.handle_timeout(now);
        }
        self.drain(now);
    }

    /// Gives the session the bytes of the TCP connections whose turn it is.
    fn read_streams(&mut self, now: Instant) {
        while let Some((id, bytes)) = self.session.poll_stream(now) {
            let Some(tcp) = self.tcp.get_mut(&id) else {
                continue;
            };
            let more = tcp.unread.len() > bytes;
            let data = tcp.unread.split_to(bytes.min(tcp.unread.len()));
            self.session.handle_stream_data(now, id, &data);
            if more {
                self.session.handle_stream_readable(now, id);
            }
        }
    }

    /// The second half of a turn: everything that may leave does.
    pub(crate) fn pump(&mut self, now: Instant) {
        self.serve(now);
        for tcp in self.tcp.values_mut() {
            tcp.on_timeout(now, &mut self.out);
        }
        for tcp in &mut self.closing {
            tcp.on_timeout(now, &mut self.out);
        }
        self.closing.retain(|tcp| tcp.due() != Instant::FAR_FUTURE);
        self.session.pump(
            now,
            &mut Pumping {
                now,
                udp: &self.udp,
                tcp: &mut self.tcp,
                out: &mut self.out,
            },
        );
        self.serve(now);
        while let Some(event) = self.session.poll_event() {
            self.events.push((now, event));
        }
    }

    /// Says goodbye, as a gateway that is stopped.
    pub(crate) fn shutdown(&mut self, now: Instant) {
        self.serve(now);
        self.session.shutdown(
            now,
            &mut Pumping {
                now,
                udp: &self.udp,
                tcp: &mut self.tcp,
                out: &mut self.out,
            },
        );
        self.serve(now);
        self.drain(now);
    }

    /// When the next turn is wanted, if no input comes before.
    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        let streams = self.tcp.values().chain(&self.closing).map(Tcp::due);
        let streams = streams.filter(|due| *due != Instant::FAR_FUTURE);
        streams.chain(self.session.poll_timeout()).min()
    }

    fn drain(&mut self, now: Instant) {
        self.session.end_batch(now);
        while let Some(mut inner) = self.session.poll_inner() {
            inner.join();
            if let Some(released) = &mut self.released {
                released.push(inner.data);
            } else if let Some((source, number)) = read_inner(&inner.data) {
                self.delivered.push((now, source, number));
            }
        }
    }

    fn serve(&mut self, now: Instant) {
        while let Some(request) = self.session.poll_request() {
            match request {
                Request::OpenUdp { socket, device, .. }
                    if device.as_ref().is_some_and(|d| self.broken.contains(d)) =>
                {
                    let reason = "no such device".to_owned();
                    self.session.handle_socket_failed(now, socket, reason);
                }
                Request::OpenUdp {
                    socket,
                    bind,
                    device,
                } => {
                    let port = if bind.port() > 0 {
                        bind.port()
                    } else {
                        self.port()
                    };
                    let device = device.map(Arc::from);
                    self.udp.insert(socket, Udp { device, port });
                    let local = SocketAddr::new(bind.ip(), port);
                    self.session.handle_socket_opened(socket, local);
                }
                Request::CloseUdp { socket } => {
                    self.udp.remove(&socket);
                }
                // Whoever connects to a port finds somebody there.
                Request::ListenTcp { .. } => {}
                Request::ConnectTcp { stream, device, .. }
                    if device.iter().any(|device| self.broken.contains(device)) =>
                {
                    let reason = "no such device".to_owned();
                    self.session.handle_stream_closed(now, stream, reason);
                }
                Request::ConnectTcp {
                    stream,
                    device,
                    remote,
                } => {
                    let port = self.port();
                    let mut tcp = Tcp::new(device.map(Arc::from), port, remote, false);
                    tcp.open(now, &mut self.out);
                    self.tcp.insert(stream, tcp);
                }
                // One worker serves all sites here.
                Request::MoveTcp { stream, .. } => drop(self.tcp.remove(&stream)),
                Request::CloseTcp { stream } => {
                    if let Some(mut tcp) = self.tcp.remove(&stream) {
                        tcp.close(now, &mut self.out);
                        self.closing.push(tcp);
                    }
                }
            }
        }
    }

    fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// What leaves now is exchanged for an empty list, whose memory is used again.
    pub(crate) fn swap_out(&mut self, out: &mut Vec<Outgoing>) {
        std::mem::swap(&mut self.out, out);
    }

    /// From now on inner packets are kept as they are, for [`Self::take_released`].
    pub(crate) fn keep_released(&mut self) {
        self.released = Some(Vec::new());
    }

    /// The inner packets that were let through since the last call.
    pub(crate) fn take_released(&mut self) -> impl Iterator<Item = Bytes> {
        self.released
            .iter_mut()
            .flat_map(|released| released.drain(..))
    }

    /// Whether [`Self::take_released`] has something.
    pub(crate) fn has_released(&self) -> bool {
        self.released
            .as_ref()
            .is_some_and(|released| !released.is_empty())
    }
}
