//! What anybody can send to the ports of a gateway: datagrams of QUIC, and bytes of TLS.

use crate::input::Input;
use bytes::BytesMut;
use ropewalk_transport::tls::{INPUT_QUEUE_MAX, OUTPUT_MAX, TlsPath};
use ropewalk_transport::{
    CongestionControl, Ecn, Endpoint, EndpointConfig, Event, Identity, KeyCheck, SocketId,
};
use ropewalk_types::{Duration, Instant};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, OnceLock};

/// Most steps of an input.
const STEPS_MAX: usize = 64;
/// Longest datagram or piece of a stream that is made up, bytes.
const LENGTH_MAX: usize = 1_500;
/// Answers to one address whose sender has not shown that it is there, by the bytes that came from there
/// (RFC 9000 §8.1).
const ANSWERS_MAX: usize = 3;

/// Takes the input for datagrams that reach a hub: made up, or those of a site whose bytes are changed, left out,
/// cut, or sent twice. The site has a key that the hub knows only if the input says so.
///
/// # Panics
/// When the hub answers more than it may, or is connected to a site whose key it does not know.
pub fn quic(data: &[u8]) {
    let mut input = Input::new(data);
    let marks = input.u8();
    let known = marks & 1 != 0;
    let mut world = World::new(known);
    if marks & 2 != 0 {
        world.connect();
    }
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
}

/// A hub, and a site that may reach it.
struct World {
    now: Instant,
    hub: Endpoint,
    site: Option<Endpoint>,
    known: bool,
    /// Bytes from strangers' addresses, and answers to them.
    from: usize,
    to: usize,
    waiting: Vec<Vec<u8>>,
}

const SITE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 4_000));
const HUB: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 2), 4_443));

fn identity(number: u8) -> Identity {
    Identity::from_seed([number; 32]).expect("any seed is one of Ed25519")
}

fn base() -> std::time::Instant {
    static BASE: OnceLock<std::time::Instant> = OnceLock::new();
    *BASE.get_or_init(std::time::Instant::now)
}

fn settings(number: u8) -> EndpointConfig {
    let mut config = EndpointConfig::new(identity(number), base());
    config.seed = Some([number; 32]);
    config
}

impl World {
    fn new(known: bool) -> Self {
        let mut config = settings(2);
        let site = identity(1).public_key();
        config.allowed = Some(Arc::new(move |key| known && *key == site));
        Self {
            now: Instant::ZERO,
            hub: Endpoint::new(config).expect("a good configuration"),
            site: None,
            known,
            from: 0,
            to: 0,
            waiting: Vec::new(),
        }
    }

    fn connect(&mut self) {
        let mut site = Endpoint::new(settings(1)).expect("a good configuration");
        let hub = identity(2).public_key();
        let began = site.connect(self.now, HUB, hub, CongestionControl::Bdp);
        assert!(began.is_ok());
        self.site = Some(site);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        match kind % 8 {
            0 | 1 => {
                let length = usize::from(input.u16()) % LENGTH_MAX;
                let mut datagram = input.bytes(length.min(64)).to_vec();
                datagram.resize(length.max(datagram.len()), kind);
                self.stranger(datagram);
            }
            2 => self.now += Duration::from_millis(u64::from(input.u8()) * 40),
            3 => self.waiting.clear(),
            4 | 5 => self.site_sends(input),
            _ => self.site_sends_well(),
        }
        self.turn();
    }

    /// A datagram of nobody.
    fn stranger(&mut self, datagram: Vec<u8>) {
        self.from += datagram.len();
        self.deliver(datagram);
    }

    fn deliver(&mut self, datagram: Vec<u8>) {
        let data = BytesMut::from(&datagram[..]);
        let socket = SocketId::default();
        self.hub
            .handle_udp(self.now, socket, SITE, None, Ecn::NotEct, data);
    }

    /// What the site has to send, as it is.
    fn site_sends_well(&mut self) {
        self.collect();
        for datagram in std::mem::take(&mut self.waiting) {
            self.from += datagram.len();
            self.deliver(datagram);
        }
    }

    /// One of the site's datagrams, changed.
    fn site_sends(&mut self, input: &mut Input<'_>) {
        self.collect();
        let at = usize::from(input.u8());
        let Some(datagram) = self.waiting.get(at % self.waiting.len().max(1)) else {
            return;
        };
        let mut datagram = datagram.clone();
        for _ in 0..input.u8() % 4 {
            let (at, value) = (usize::from(input.u16()), input.u8());
            let length = datagram.len().max(1);
            if let Some(byte) = datagram.get_mut(at % length) {
                *byte = value;
            }
        }
        if input.flag() {
            datagram.truncate(usize::from(input.u16()));
        }
        self.from += datagram.len();
        self.deliver(datagram);
    }

    fn collect(&mut self) {
        let Some(site) = &mut self.site else {
            return;
        };
        site.handle_timeout(self.now);
        self.waiting.extend(sent(site, self.now));
        self.waiting.truncate(STEPS_MAX);
    }

    fn turn(&mut self) {
        self.hub.handle_timeout(self.now);
        let answers = sent(&mut self.hub, self.now);
        let mut connected = false;
        while let Some((id, event)) = self.hub.poll_event() {
            connected |= matches!(event, Event::Connected { .. });
            while self.hub.receive(id).is_some() {}
        }
        assert!(self.known || !connected, "a stranger is connected");
        self.to += answers.iter().map(Vec::len).sum::<usize>();
        if self.site.is_none() {
            // Nobody has shown that it is there.
            let (from, to) = (self.from, self.to);
            assert!(to <= ANSWERS_MAX * from, "{to} bytes for {from}");
        }
        if let Some(site) = &mut self.site {
            for answer in answers {
                let data = BytesMut::from(&answer[..]);
                let socket = SocketId::default();
                site.handle_udp(self.now, socket, HUB, None, Ecn::NotEct, data);
            }
            while let Some((id, _)) = site.poll_event() {
                while site.receive(id).is_some() {}
            }
        }
    }
}

/// All datagrams that an endpoint has to send.
fn sent(from: &mut Endpoint, now: Instant) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut buffer = Vec::new();
    while from.poll_stateless(&mut buffer).is_some() {
        found.push(std::mem::take(&mut buffer));
    }
    while let Some(id) = from.poll_dirty() {
        buffer.clear();
        while let Some(transmit) = from.poll_transmit(now, id, &mut buffer) {
            let size = transmit.segment_size.unwrap_or(buffer.len()).max(1);
            found.extend(buffer.chunks(size).map(<[u8]>::to_vec));
            buffer.clear();
            if found.len() > STEPS_MAX {
                break;
            }
        }
    }
    found
}

/// Takes the input for the bytes of a TCP connection to a hub: made up, or those of a site whose bytes are changed
/// or cut off. The site has a key that the hub knows only if the input says so.
///
/// # Panics
/// When the hub keeps or answers more than it may, or is connected to a site whose key it does not know.
pub fn tls(data: &[u8]) {
    let mut input = Input::new(data);
    let marks = input.u8();
    let known = marks & 1 != 0;
    let key = identity(1).public_key();
    let allowed: KeyCheck = Arc::new(move |asked| known && *asked == key);
    let mut hub = TlsPath::server(&identity(2), allowed).expect("a good key");
    let mut site = (marks & 2 != 0)
        .then(|| TlsPath::client(&identity(1), identity(2).public_key()).expect("a good key"));
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let ended = tls_step(&mut input, &mut hub, site.as_mut());
        let mut kept = 0;
        while let Some(datagram) = hub.receive() {
            kept += datagram.len();
        }
        assert!(kept <= INPUT_QUEUE_MAX);
        while let Some(event) = hub.poll_event() {
            assert!(known || !matches!(event, Event::Connected { .. }));
        }
        let mut answer = Vec::new();
        hub.poll_output(&mut answer);
        assert!(answer.len() <= OUTPUT_MAX);
        if ended {
            break;
        }
        if let Some(site) = &mut site {
            let _ = site.handle_bytes(&answer);
            while site.receive().is_some() {}
        }
    }
}

/// Some bytes reach the hub; whether that was the end.
fn tls_step(input: &mut Input<'_>, hub: &mut TlsPath, site: Option<&mut TlsPath>) -> bool {
    let kind = input.u8();
    let mut bytes = Vec::new();
    match site {
        Some(site) => {
            if kind & 1 != 0 {
                let length = usize::from(input.u8());
                let _ = site.send(bytes::Bytes::copy_from_slice(input.bytes(length)));
            }
            site.poll_output(&mut bytes);
            for _ in 0..kind >> 1 & 3 {
                let (at, value) = (usize::from(input.u16()), input.u8());
                let length = bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at % length) {
                    *byte = value;
                }
            }
            if kind & 8 != 0 {
                bytes.truncate(usize::from(input.u16()));
            }
        }
        None => {
            let length = usize::from(input.u16()) % LENGTH_MAX;
            bytes = input.bytes(length).to_vec();
        }
    }
    if kind & 0x80 != 0 {
        hub.handle_eof();
        return true;
    }
    hub.handle_bytes(&bytes).is_err()
}
