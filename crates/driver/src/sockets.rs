//! What sessions ask for: sockets, opened, read and written.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::Context;
use bytes::BytesMut;
use ropewalk_io::tcp;
use ropewalk_io::tcp_info::{self, ConnectConfig};
use ropewalk_io::udp::{RecvMeta, UdpConfig, UdpGroup, UdpReceiver, UdpSocket};
use ropewalk_session::{
    Moved, Request, Role, Session, Slice, SocketId, StreamId, TcpInfo, Transmit,
};
use ropewalk_types::{Duration, Instant};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};

use crate::event::{Event, Owner, Ready};

/// Datagrams read from one socket before they are worked off: few enough to stay in the
/// processor's cache. One read may bring more, where the kernel joins them.
const READ_DATAGRAMS: usize = 128;
/// The same while datagrams wait for the turn of their site. More: fewer losses in the kernel, where they
/// hit all sites; datagrams leave the processor's cache.
const READ_DATAGRAMS_BEHIND: usize = 1_024;
/// Bytes read from a TCP connection at once. More: fewer system calls, more memory.
const READ_BYTES: usize = 64 * 1024;
/// TCP connections accepted per turn. More: sooner accepted, later turns of the others.
const ACCEPTS: usize = 128;
/// How long nobody is accepted after a listening socket has failed, as it does when this process has too many open
/// files. Longer: fewer attempts in vain, connections wait longer afterwards.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often such a failure is logged at most. Longer: fewer lines.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes that may wait unsent in the kernel: more would be beyond the scheduler's reach.
const NOT_SENT_MAX: u32 = 16 * 1024;
/// A TCP connection is reported when it can be read or written anew.
const STREAM_FLAGS: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::ET);

/// A request that could not be served.
#[derive(Debug)]
struct Failure {
    what: Failed,
    error: anyhow::Error,
}

#[derive(Debug)]
enum Failed {
    Socket(SocketId),
    Stream(StreamId),
    Listener,
}

/// Counted drops of the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketDrops {
    /// Datagrams the socket had no room for.
    pub full: u64,
    /// Datagrams the network stack refused: no route, or the address is gone.
    pub unreachable: u64,
}

/// A TCP connection.
#[derive(Debug)]
struct Stream {
    tcp: TcpStream,
    remote: SocketAddr,
}

/// An accepted TCP connection on its way to another worker of a hub.
#[derive(Debug)]
pub struct MovedStream {
    /// Index of the worker.
    pub worker: usize,
    stream: Stream,
    link: Moved,
}

impl Stream {
    fn failed(&self, error: &io::Error) -> String {
        format!("TCP connection to {}: {error}", self.remote)
    }
}

/// The sockets of all sessions of one thread. [`Self::of`] gives those of one session.
#[derive(Debug)]
pub struct Sockets {
    epoll: OwnedFd,
    udp: FxHashMap<(Owner, SocketId), UdpSocket>,
    streams: FxHashMap<(Owner, StreamId), Stream>,
    listeners: Vec<(Owner, TcpListener)>,
    pause: Pause,
    options: SocketOptions,
    receiver: UdpReceiver,
    arrivals: Vec<(RecvMeta, BytesMut)>,
    read: Vec<u8>,
    drops: SocketDrops,
    moved: Vec<MovedStream>,
}

/// When nobody is accepted, because that has failed.
#[derive(Debug, Default)]
struct Pause {
    until: Option<Instant>,
    logged: Option<Instant>,
}

/// The sockets of one session.
#[derive(Debug)]
pub struct SocketsOf<'a> {
    all: &'a mut Sockets,
    owner: Owner,
}

/// How sockets are opened.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Send and receive buffer of each UDP socket, bytes.
    pub buffer_bytes: usize,
    /// Whether sockets are bound to the interface that the session names.
    pub devices: bool,
    /// Mark of the packets of UDP sockets, and of TCP connections that it opens. Needs `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Which worker of a hub opens them: several share each address.
    pub slice: Slice,
}

impl Sockets {
    /// No sockets yet. Those to come are registered with `epoll`, with [`Event::encode`] as user
    /// data.
    #[must_use]
    pub fn new(epoll: OwnedFd, options: SocketOptions) -> Self {
        Self {
            epoll,
            udp: FxHashMap::default(),
            streams: FxHashMap::default(),
            listeners: Vec::new(),
            pause: Pause::default(),
            options,
            receiver: UdpReceiver::default(),
            arrivals: Vec::new(),
            read: vec![0; READ_BYTES],
            drops: SocketDrops::default(),
            moved: Vec::new(),
        }
    }

    /// The event queue, for descriptors of the driver's own.
    #[must_use]
    pub const fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Counted drops of all sessions.
    #[must_use]
    pub const fn drops(&self) -> SocketDrops {
        self.drops
    }

    /// TCP connections that other workers are to take over with [`SocketsOf::adopt`].
    pub fn take_moved(&mut self) -> impl Iterator<Item = MovedStream> {
        self.moved.drain(..)
    }

    /// When [`SocketsOf::end_input`] must be called at the latest, besides the timers of the sessions.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.pause.until
    }

    /// Accepting has failed: the listening sockets, which stay readable, are left alone for a while.
    #[cold]
    fn pause_listeners(&mut self, now: Instant, error: &io::Error) {
        let before = self.pause.logged;
        if before.is_none_or(|at| now.since(at) >= ACCEPT_LOG_INTERVAL) {
            self.pause.logged = Some(now);
            tracing::error!(
                %error,
                open = self.open(),
                "cannot accept TCP connections; UDP goes on. With too many open files, raise the hard limit \
                 (LimitNOFILE in the unit, `ulimit -Hn` in a shell)"
            );
        }
        self.pause.until = Some(now + ACCEPT_PAUSE);
        self.watch_listeners(epoll::EventFlags::empty());
    }

    fn resume_listeners(&mut self, now: Instant) {
        if self.pause.until.is_some_and(|until| until <= now) {
            self.pause.until = None;
            self.watch_listeners(epoll::EventFlags::IN);
        }
    }

    fn watch_listeners(&self, flags: epoll::EventFlags) {
        for (index, (owner, listener)) in (0..).zip(&self.listeners) {
            let (owner, ready) = (*owner, Ready::Listener(index));
            let data = epoll::EventData::new_u64(Event { owner, ready }.encode());
            if let Err(error) = epoll::modify(&self.epoll, listener, data, flags) {
                tracing::error!(%error, "cannot wait for TCP connections");
            }
        }
    }

    /// Number of open UDP sockets and TCP connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.udp.len() + self.streams.len()
    }

    /// The sockets of this session.
    pub const fn of(&mut self, owner: Owner) -> SocketsOf<'_> {
        SocketsOf { all: self, owner }
    }
}

impl SocketsOf<'_> {
    /// Does what the session asks for, and tells it what failed.
    pub fn serve<R: Role>(&mut self, now: Instant, session: &mut Session<R>) {
        while let Some(request) = session.poll_request() {
            let Err(Failure { what, error }) = self.fulfil(request, session) else {
                continue;
            };
            let reason = format!("{error:#}");
            match what {
                Failed::Socket(socket) => session.handle_socket_failed(now, socket, reason),
                Failed::Stream(stream) => session.handle_stream_closed(now, stream, reason),
                Failed::Listener => tracing::error!(reason, "cannot listen"),
            }
        }
    }

    /// [`Self::serve`] where nothing may fail: the sockets that a hub listens on.
    ///
    /// # Errors
    /// The first failure.
    pub fn serve_all<R: Role>(&mut self, session: &mut Session<R>) -> anyhow::Result<()> {
        while let Some(request) = session.poll_request() {
            self.fulfil(request, session).map_err(|f| f.error)?;
        }
        Ok(())
    }

    fn fulfil<R: Role>(
        &mut self,
        request: Request,
        session: &mut Session<R>,
    ) -> Result<(), Failure> {
        match request {
            Request::OpenUdp {
                socket,
                bind,
                device,
            } => {
                let opened = self.open_udp(socket, bind, device);
                let local = opened.map_err(|error| Failure {
                    what: Failed::Socket(socket),
                    error,
                })?;
                session.handle_socket_opened(socket, local);
            }
            Request::CloseUdp { socket } => {
                self.all.udp.remove(&(self.owner, socket));
            }
            Request::ListenTcp { address } => {
                self.listen_tcp(address).map_err(|error| Failure {
                    what: Failed::Listener,
                    error,
                })?;
            }
            Request::ConnectTcp {
                stream,
                device,
                remote,
            } => {
                let local = self.connect_tcp(stream, device, remote);
                let local = local.map_err(|error| Failure {
                    what: Failed::Stream(stream),
                    error,
                })?;
                session.handle_stream_opened(stream, local);
            }
            Request::MoveTcp { stream, worker } => {
                let link = session.take_moved(stream);
                let key = (self.owner, stream);
                if let (Some(link), Some(stream)) = (link, self.all.streams.remove(&key)) {
                    epoll::delete(&self.all.epoll, &stream.tcp).ok();
                    self.all.moved.push(MovedStream {
                        worker,
                        stream,
                        link,
                    });
                }
            }
            Request::CloseTcp { stream } => {
                self.all.streams.remove(&(self.owner, stream));
            }
        }
        Ok(())
    }

    /// Puts a new UDP socket in the place of this one: same address, another port. To the peer that is a NAT
    /// that maps the socket anew, and the session learns of it only for its status.
    ///
    /// # Errors
    /// There is no such socket, or the new one cannot be opened. Then the old one stays.
    pub fn rebind<R: Role>(
        &mut self,
        socket: SocketId,
        device: Option<String>,
        session: &mut Session<R>,
    ) -> anyhow::Result<SocketAddr> {
        let old = self.all.udp.get(&(self.owner, socket));
        let mut bind = old.context("there is no such socket")?.local_addr()?;
        bind.set_port(0);
        // The old one is still open: so the kernel gives another port.
        let local = self.open_udp(socket, bind, device)?;
        session.handle_socket_opened(socket, local);
        Ok(local)
    }

    /// Closes all sockets and TCP connections of the session, without a word to anybody.
    pub fn close_all(&mut self) {
        let owner = self.owner;
        self.all.udp.retain(|(whose, _), _| *whose != owner);
        self.all.streams.retain(|(whose, _), _| *whose != owner);
    }

    /// Takes over a TCP connection from another worker.
    pub fn adopt<R: Role>(&mut self, now: Instant, moved: MovedStream, session: &mut Session<R>) {
        let Stream { tcp, remote } = moved.stream;
        let Some(stream) = session.handle_moved(now, moved.link) else {
            return;
        };
        if let Err(error) = self.add_stream(stream, tcp, remote) {
            session.handle_stream_closed(now, stream, format!("{error:#}"));
        }
    }

    const fn event(&self, ready: Ready) -> Event {
        Event {
            owner: self.owner,
            ready,
        }
    }

    fn register(
        &self,
        fd: impl AsFd,
        ready: Ready,
        flags: epoll::EventFlags,
    ) -> anyhow::Result<()> {
        let data = epoll::EventData::new_u64(self.event(ready).encode());
        Ok(epoll::add(&self.all.epoll, fd, data, flags)?)
    }

    fn open_udp(
        &mut self,
        socket: SocketId,
        bind: SocketAddr,
        device: Option<String>,
    ) -> anyhow::Result<SocketAddr> {
        let options = self.all.options;
        let device = device.filter(|_| options.devices);
        let on = device.as_ref().map(|d| format!(" on {d}"));
        let on = on.unwrap_or_default();
        let udp = UdpSocket::bind(&UdpConfig {
            bind,
            device,
            mark: options.mark,
            recv_buffer: options.buffer_bytes,
            send_buffer: options.buffer_bytes,
            group: group(options.slice),
        })
        .with_context(|| format!("cannot open UDP socket {bind}{on}"))?;
        self.register(&udp, Ready::Udp(socket), epoll::EventFlags::IN)?;
        let local = udp.local_addr()?;
        self.all.udp.insert((self.owner, socket), udp);
        Ok(local)
    }

    fn listen_tcp(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        let what = || format!("cannot listen on TCP {address}");
        let listener = tcp::listen(address).with_context(what)?;
        let index = u32::try_from(self.all.listeners.len())?;
        self.register(&listener, Ready::Listener(index), epoll::EventFlags::IN)?;
        self.all.listeners.push((self.owner, listener));
        Ok(())
    }

    fn connect_tcp(
        &mut self,
        stream: StreamId,
        device: Option<String>,
        remote: SocketAddr,
    ) -> anyhow::Result<SocketAddr> {
        let device = device.filter(|_| self.all.options.devices);
        let on = device.as_ref().map(|d| format!(" on {d}"));
        let on = on.unwrap_or_default();
        let what = format!("cannot connect to TCP {remote}{on}");
        let tcp = tcp_info::connect(&ConnectConfig {
            destination: remote,
            device,
            mark: self.all.options.mark,
            source: None,
            congestion: Some("bbr".into()),
            not_sent_low_water: Some(NOT_SENT_MAX),
        })
        .context(what)?;
        let local = tcp.local_addr()?;
        self.add_stream(stream, tcp, remote)?;
        Ok(local)
    }

    fn add_stream(
        &mut self,
        id: StreamId,
        tcp: TcpStream,
        remote: SocketAddr,
    ) -> anyhow::Result<()> {
        // A delayed small packet helps nobody here.
        tcp.set_nodelay(true).ok();
        self.register(&tcp, Ready::Stream(id), STREAM_FLAGS)?;
        self.all
            .streams
            .insert((self.owner, id), Stream { tcp, remote });
        Ok(())
    }

    /// Reads what is ready, up to a bound. Descriptors of the driver itself are not read here.
    pub fn read<R: Role>(&mut self, now: Instant, ready: Ready, session: &mut Session<R>) {
        match ready {
            Ready::Own(_) => {}
            Ready::Udp(socket) => self.read_udp(now, socket, session),
            Ready::Stream(stream) => self.stream_ready(now, stream, session),
            Ready::Listener(index) => self.accept(now, index, session),
        }
    }

    /// Accepts what waits at a listening socket.
    fn accept<R: Role>(&mut self, now: Instant, index: u32, session: &mut Session<R>) {
        for _ in 0..ACCEPTS {
            let Some((_, listener)) = self.all.listeners.get(index as usize) else {
                return;
            };
            let (tcp, remote) = match listener.accept().map_err(|e| (e.kind(), e)) {
                Ok(accepted) => accepted,
                Err((io::ErrorKind::WouldBlock, _)) => return,
                // It failed before it was accepted.
                Err((io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted, _)) => continue,
                Err((_, error)) => return self.all.pause_listeners(now, &error),
            };
            let Some(stream) = session.handle_accepted(now, remote, tcp.local_addr().ok()) else {
                continue;
            };
            let prepared = tcp
                .set_nonblocking(true)
                .and_then(|()| tcp::set_not_sent_low_water(&tcp, NOT_SENT_MAX));
            tcp::set_congestion(&tcp, "bbr").ok();
            let added = prepared
                .map_err(anyhow::Error::from)
                .and_then(|()| self.add_stream(stream, tcp, remote));
            if let Err(error) = added {
                session.handle_stream_closed(now, stream, format!("{error:#}"));
            }
        }
    }

    /// Reads what waits at a UDP socket, up to a bound.
    fn read_udp<R: Role>(&mut self, now: Instant, id: SocketId, session: &mut Session<R>) {
        let Sockets {
            udp,
            receiver,
            arrivals,
            ..
        } = &mut *self.all;
        let Some(udp) = udp.get_mut(&(self.owner, id)) else {
            return;
        };
        let mut left = if session.is_behind() {
            READ_DATAGRAMS_BEHIND
        } else {
            READ_DATAGRAMS
        };
        loop {
            while left > 0 {
                let read = udp.recv_batch(receiver, arrivals);
                for (meta, data) in arrivals.drain(..) {
                    session.handle_udp(now, id, meta.remote, meta.local_ip, meta.ecn, data);
                }
                match read {
                    Ok(0) => return,
                    Ok(count) => left = left.saturating_sub(count),
                    Err(error) => {
                        tracing::warn!(%error, "reading a UDP socket failed");
                        return;
                    }
                }
            }
            if session.is_behind() {
                return;
            }
            session.handle_backlog(udp.backlog());
            if !session.is_behind() {
                return;
            }
            left = READ_DATAGRAMS_BEHIND;
        }
    }

    /// A TCP connection is ready: the session learns that, and says when it is read.
    fn stream_ready<R: Role>(&mut self, now: Instant, id: StreamId, session: &mut Session<R>) {
        let Some(stream) = self.all.streams.get(&(self.owner, id)) else {
            return;
        };
        if let Ok(Some(error)) = stream.tcp.take_error() {
            let reason = stream.failed(&error);
            self.all.streams.remove(&(self.owner, id));
            session.handle_stream_closed(now, id, reason);
            return;
        }
        session.handle_stream_writable(id);
        session.handle_stream_readable(now, id);
    }

    /// Ends the input of a turn: reads the TCP connections whose turn it is, then lets timers go off. Every driver
    /// calls this method once in a turn, after it has read what was ready. In this order a timer never goes off
    /// because of bytes that lie unread in the kernel.
    pub fn end_input<R: Role>(&mut self, now: Instant, session: &mut Session<R>) {
        self.all.resume_listeners(now);
        self.read_streams(now, session);
        session.handle_timeout(now);
    }

    /// Reads the TCP connections whose turn it is.
    fn read_streams<R: Role>(&mut self, now: Instant, session: &mut Session<R>) {
        while let Some((id, bytes)) = session.poll_stream(now) {
            let Sockets { streams, read, .. } = &mut *self.all;
            let Some(stream) = streams.get_mut(&(self.owner, id)) else {
                continue;
            };
            let result = read_stream(stream, read, bytes, |bytes| {
                session.handle_stream_data(now, id, bytes);
            });
            match result {
                // Epoll tells only of changes, so not of data that was left unread.
                Ok(true) => session.handle_stream_readable(now, id),
                Ok(false) => {}
                Err(reason) => {
                    session.handle_stream_closed(now, id, reason);
                    self.all.streams.remove(&(self.owner, id));
                }
            }
        }
    }
}

/// The sockets of all workers at one address, where there are several.
fn group(slice: Slice) -> Option<UdpGroup> {
    let (index, count) = (u8::try_from(slice.index()), u8::try_from(slice.count()));
    let (index, count) = (index.ok()?, count.ok()?);
    (count > 1).then_some(UdpGroup { index, count })
}

/// Reads so many bytes at most; whether more may wait.
///
/// # Errors
/// Why the connection is over, in words.
fn read_stream(
    stream: &mut Stream,
    buffer: &mut [u8],
    mut left: usize,
    mut take: impl FnMut(&[u8]),
) -> Result<bool, String> {
    while left > 0 {
        let room = left.min(buffer.len());
        match stream.tcp.read(&mut buffer[..room]) {
            Ok(0) => return Err("the peer closed the TCP connection".into()),
            Ok(count) => {
                left -= count;
                take(&buffer[..count]);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(stream.failed(&error)),
        }
    }
    Ok(true)
}

impl ropewalk_session::Sockets for SocketsOf<'_> {
    fn send_udp(&mut self, transmit: &Transmit, contents: &[u8]) {
        let Some(udp) = self.all.udp.get_mut(&(self.owner, transmit.socket)) else {
            self.all.drops.unreachable += 1;
            return;
        };
        let sent = udp.send(
            transmit.destination,
            transmit.source_ip,
            transmit.ecn,
            transmit.dscp,
            contents,
            transmit.segment_size,
        );
        match sent.map_err(|e| e.kind()) {
            Ok(()) => {}
            Err(io::ErrorKind::WouldBlock) => self.all.drops.full += 1,
            Err(_) => self.all.drops.unreachable += 1,
        }
    }

    fn write_stream(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, String> {
        let Some(stream) = self.all.streams.get_mut(&(self.owner, id)) else {
            // Asked for, and not opened yet.
            return Ok(0);
        };
        loop {
            match stream.tcp.write(bytes) {
                Ok(0) => return Err("the TCP connection takes no more data".into()),
                Ok(count) => return Ok(count),
                // Not connected yet, or full: epoll tells when it goes on.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(stream.failed(&error)),
            }
        }
    }

    fn stream_info(&mut self, id: StreamId) -> Option<TcpInfo> {
        let info = tcp_info::tcp_info(&self.all.streams.get(&(self.owner, id))?.tcp).ok()?;
        Some(TcpInfo {
            srtt: info.srtt,
            rttvar: info.rttvar,
            min_rtt: info.min_rtt.unwrap_or(info.srtt),
            cwnd_bytes: info.cwnd_bytes,
            in_flight_bytes: info.in_flight_bytes,
            not_sent_bytes: info.not_sent_bytes,
            acked_bytes: info.acked_bytes,
            delivery_rate: info.delivery_rate,
            segments_sent: u64::from(info.sent),
            segments_retransmitted: u64::from(info.retransmitted),
            last_ack_age: info.last_ack_age,
        })
    }
}
