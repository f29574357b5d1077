//! A user who loads pages: objects with long-tailed numbers and sizes over a few connections.
//!
//! A page is a document, then its objects, over up to six TCP connections. Each is opened for the
//! page with two round trips (TCP and TLS 1.3) and asked for one object after the other. The time
//! until the last object is the page's load time. Client messages are repeated until answered.

use super::Outbox;
use super::transfer::{Address, Protocol, Transfer};
use crate::engine::NEVER;
use crate::headers::USES;
use crate::host::tcp::{LossDetection, Receiver, Sender, Settings};
use crate::host::{MS, RECEIVE_WINDOW_BYTES};
use crate::packet::{Body, Packet, Upper};
use crate::world::Span;
use ropewalk_netem::Side;
use ropewalk_plan::Congestion;
use ropewalk_plan::page::{self, CONNECTIONS};
use ropewalk_types::{Ecn, Random};

/// Round trips before the first request: TCP, then TLS.
const HANDSHAKES: u32 = 2;
/// Length of a client's handshake packet and of its request, bytes of IP.
const HELLO_BYTES: u32 = 300;
const REQUEST_BYTES: u32 = 500;
/// Repetition of what is not answered (RFC 6298 §2.1), doubling up to a bound.
const RETRY_NS: u64 = 1_000 * MS;
const RETRY_MAX_NS: u64 = 16_000 * MS;

/// One user.
#[derive(Clone, Debug)]
pub struct User {
    flow: u16,
    mtu: u32,
    objects: u32,
    pause_ns: u64,
    span: Span,
    random: Random,
    /// Pages begun; each has connections of its own.
    page: u16,
    begun_ns: u64,
    next_page_ns: u64,
    /// Sizes in segments of the objects not asked for yet, and how many are under way.
    waiting: Vec<u32>,
    connections: Vec<Connection>,
    /// Load times of counted pages, ms.
    pub load_ms: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Connection {
    transfer: Transfer,
    /// Handshakes answered.
    hellos: u32,
    /// Segments asked for in all, and offered by the server.
    asked: u32,
    offered: u32,
    busy: bool,
    retry_due_ns: u64,
    retry_ns: u64,
}

impl User {
    /// A user with pages of `objects` objects on average.
    #[must_use]
    pub fn new(
        flow: u16,
        mtu: u32,
        objects: u32,
        pause_ns: u64,
        span: Span,
        random: Random,
    ) -> Self {
        Self {
            flow,
            mtu,
            objects,
            pause_ns,
            span,
            random,
            page: 0,
            begun_ns: 0,
            next_page_ns: 0,
            waiting: Vec::new(),
            connections: Vec::new(),
            load_ms: Vec::new(),
        }
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        let connections = self.connections.iter();
        let due = connections.map(|c| c.transfer.due_ns().min(c.retry_due_ns));
        due.min().unwrap_or(NEVER).min(self.next_page_ns)
    }

    /// A timer may be due.
    pub fn on_timer(&mut self, now_ns: u64, out: &mut Outbox) {
        if now_ns >= self.next_page_ns {
            self.next_page_ns = NEVER;
            self.begin_page(now_ns, out);
        }
        for index in 0..self.connections.len() {
            self.connections[index].transfer.on_timer(now_ns, out);
            if self.connections[index].retry_due_ns <= now_ns {
                let retry_ns = (self.connections[index].retry_ns * 2).min(RETRY_MAX_NS);
                self.ask(index, now_ns, retry_ns, out);
            }
        }
    }

    /// A packet of one of the connections arrived.
    pub fn on_packet(&mut self, now_ns: u64, packet: &Packet, out: &mut Outbox) {
        let index = usize::from(packet.use_count % CONNECTIONS);
        if packet.use_count / CONNECTIONS != self.page_number() {
            return;
        }
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        match packet.body {
            Body::Ping(number) => out.push((
                Side::Down,
                Packet {
                    clock: Sender::clock(now_ns),
                    body: Body::Pong(number),
                    ..*packet
                },
            )),
            Body::Pong(number) => {
                if number == connection.hellos && number < HANDSHAKES {
                    connection.hellos += 1;
                    self.ask(index, now_ns, RETRY_NS, out);
                }
            }
            Body::Request(asked) => {
                let news = asked.saturating_sub(connection.offered);
                connection.offered += news;
                if news > 0 {
                    connection.transfer.offer(now_ns, news, out);
                }
            }
            Body::Data { .. } | Body::Ack(_) => {
                connection.transfer.on_packet(now_ns, packet, out);
                if matches!(packet.body, Body::Data { .. }) {
                    self.check_object(index, now_ns, out);
                }
            }
            Body::Voice { .. } => {}
        }
    }

    fn page_number(&self) -> u16 {
        self.page % (USES / CONNECTIONS)
    }

    fn begin_page(&mut self, now_ns: u64, out: &mut Outbox) {
        self.page = self.page.wrapping_add(1);
        self.begun_ns = now_ns;
        self.connections.clear();
        let payload = Protocol::tcp_payload(self.mtu);
        let sizes = page::sizes(self.objects, &mut self.random);
        self.waiting
            .extend(sizes.iter().map(|size| size.div_ceil(payload)));
        self.open(now_ns, out);
    }

    /// Opens the next connection, with an object to ask for.
    fn open(&mut self, now_ns: u64, out: &mut Outbox) {
        let Some(object) = self.waiting.pop() else {
            return;
        };
        let index = self.connections.len();
        let settings = Settings {
            segment_bytes: Protocol::tcp_payload(self.mtu),
            congestion: Congestion::Cubic,
            detection: LossDetection::Rack,
            window_bytes: RECEIVE_WINDOW_BYTES,
            ecn: false,
        };
        let sender = Sender::new(settings, self.random.fork());
        let number = u16::try_from(index).unwrap_or(0);
        let address = Address {
            flow: self.flow,
            use_count: self.page_number() * CONNECTIONS + number,
            data: Side::Down,
        };
        let protocol = Protocol::Tcp(Box::new(sender), Receiver::new());
        self.connections.push(Connection {
            transfer: Transfer::on_demand(address, protocol, self.mtu),
            hellos: 0,
            asked: object,
            offered: 0,
            busy: true,
            retry_due_ns: NEVER,
            retry_ns: RETRY_NS,
        });
        self.ask(index, now_ns, RETRY_NS, out);
    }

    /// Sends what the connection waits for an answer to.
    fn ask(&mut self, index: usize, now_ns: u64, retry_ns: u64, out: &mut Outbox) {
        let page = self.page_number();
        let connection = &mut self.connections[index];
        let (bytes, body) = if connection.hellos < HANDSHAKES {
            (HELLO_BYTES, Body::Ping(connection.hellos))
        } else {
            (REQUEST_BYTES, Body::Request(connection.asked))
        };
        connection.retry_ns = retry_ns;
        connection.retry_due_ns = now_ns + retry_ns;
        let packet = Packet {
            flow: self.flow,
            use_count: page * CONNECTIONS + u16::try_from(index).unwrap_or(0),
            subflow: 0,
            bytes,
            upper: Upper::Tcp,
            clock: Sender::clock(now_ns),
            ecn: Ecn::NotEct,
            reduced: false,
            body,
        };
        out.push((Side::Up, packet));
    }

    /// Whether the object under way is complete, and what comes then.
    fn check_object(&mut self, index: usize, now_ns: u64, out: &mut Outbox) {
        let connection = &mut self.connections[index];
        // The server answers: nothing needs to be repeated.
        connection.retry_due_ns = NEVER;
        if !connection.busy || connection.transfer.delivered() < connection.asked {
            return;
        }
        connection.busy = false;
        if let Some(object) = self.waiting.pop() {
            let connection = &mut self.connections[index];
            connection.busy = true;
            connection.asked += object;
            self.ask(index, now_ns, RETRY_NS, out);
        }
        // The document names the rest.
        while self.connections.len() < usize::from(CONNECTIONS) && !self.waiting.is_empty() {
            self.open(now_ns, out);
        }
        if self.connections.iter().all(|connection| !connection.busy) {
            if self.begun_ns >= self.span.warmup_ns {
                self.load_ms.push((now_ns - self.begun_ns) as f64 / 1e6);
            }
            self.next_page_ns = now_ns + self.pause_ns;
        }
    }
}
