//! Tells the log of events which datagram a gateway bound to which path, and why.

use crate::events::Trace;
use crate::headers::Headers;
use bytes::{Bytes, BytesMut};
use ropewalk_core::tunnel::{Observer, Outgoing};
use ropewalk_headers::Expander;
use ropewalk_netem::Side;
use ropewalk_types::{Duration, Instant, PathId, PathSnapshot};
use ropewalk_wire::{DataHeader, Datagram};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

/// What gateways did since the log was written last, as members of JSON objects.
#[derive(Clone, Debug, Default)]
pub struct Told(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Told {
    /// Writes what is new into the log.
    pub fn log(&self, trace: &mut Trace, now_ns: u64) {
        if let Ok(mut events) = self.0.lock() {
            for (name, data) in events.drain(..) {
                trace.event(now_ns, name, format_args!("{data}"));
            }
        }
    }
}

/// One gateway of a tunnel.
pub struct Gateway {
    /// Where its packets go.
    side: Side,
    /// Numbers of the paths in the plan, by identifier.
    paths: Vec<usize>,
    told: Told,
    /// The newest number of each flow bucket: older ones are sent again.
    newest: BTreeMap<u16, u16>,
    /// What it sends and what it receives, up and down.
    seen: [Expander; 2],
    hosts: Headers,
}

impl Gateway {
    /// The gateway that sends in this direction.
    pub fn new(side: Side, paths: Vec<usize>, told: Told) -> Self {
        Self {
            side,
            paths,
            told,
            newest: BTreeMap::new(),
            seen: Default::default(),
            hosts: Headers::default(),
        }
    }

    fn tell(&self, name: &'static str, side: Side, path: PathId, rest: &str) {
        let id = usize::from(path.0);
        let path = self.paths.get(id).copied().unwrap_or(id);
        let direction = direction(side);
        let data = format!("\"direction\":\"{direction}\",\"path\":{path}{rest}");
        if let Ok(mut events) = self.told.0.lock() {
            events.push((name, data));
        }
    }

    /// What a datagram in this direction is, as further members of a JSON object.
    fn describe(&mut self, now: Instant, side: Side, datagram: &Bytes) -> String {
        let Ok(parsed) = Datagram::parse(datagram) else {
            return ",\"kind\":\"malformed\"".into();
        };
        let mut text = members(&parsed, datagram.len());
        let seen = &mut self.seen[usize::from(side == Side::Down)];
        let inner = match &parsed {
            Datagram::Data { header, at } => whole(now, seen, header, &datagram[*at..]),
            Datagram::Headers { headers, at, .. } => {
                // The tunnel counts what it cannot read.
                let _ = seen.learn(now, headers, &datagram[*at..]);
                None
            }
            // The front of a packet in pieces has its headers; the rest of its content is zeros.
            Datagram::Fragment { fragment, at, .. } if fragment.offset == 0 => {
                let mut front = BytesMut::from(&datagram[*at..]);
                front.resize(usize::from(fragment.total), 0);
                Some(front)
            }
            Datagram::Fragment { .. }
            | Datagram::Report { .. }
            | Datagram::Probe { .. }
            | Datagram::Control(_)
            | Datagram::Nack { .. }
            | Datagram::DeadlineNack { .. }
            | Datagram::HeaderNotices { .. }
            | Datagram::Coded { .. } => None,
        };
        if let Some(packet) = inner.and_then(|inner| self.hosts.read(&inner)) {
            let (flow, content) = (packet.flow, packet.body.content());
            let _ = write!(text, ",\"flow\":{flow},{content}");
        }
        text
    }

    /// Whether the packet was sent before; the newest number is kept.
    fn is_again(&mut self, header: &DataHeader) -> bool {
        let newest = self.newest.entry(header.flow).or_insert(header.flow_seq);
        let ahead = header.flow_seq.wrapping_sub(*newest);
        if ahead < u16::MAX / 2 {
            *newest = header.flow_seq;
        }
        ahead >= u16::MAX / 2
    }
}

impl Observer for Gateway {
    fn on_sent(&mut self, now: Instant, sent: &Outgoing, path: &PathSnapshot, backlog: u64) {
        let mut rest = self.describe(now, self.side, &sent.datagram);
        if let Ok(Datagram::Data { header, .. }) = Datagram::parse(&sent.datagram)
            && self.is_again(&header)
        {
            rest += ",\"again\":true";
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let _ = write!(
            rest,
            ",\"srtt_ms\":{},\"min_rtt_ms\":{},\"cwnd\":{},\"in_flight\":{},\"queued\":{},\
             \"rate_mbit\":{},\"backlog\":{backlog}",
            ms(path.srtt),
            ms(path.min_rtt),
            path.cwnd,
            path.in_flight,
            path.queued,
            path.rate.bits_per_sec() as f64 / 1e6,
        );
        self.tell("tunnel_sent", self.side, sent.path, &rest);
    }

    fn on_received(&mut self, now: Instant, path: PathId, datagram: &Bytes) {
        let from = match self.side {
            Side::Up => Side::Down,
            Side::Down => Side::Up,
        };
        let rest = self.describe(now, from, datagram);
        self.tell("tunnel_received", from, path, &rest);
    }
}

/// The inner packet with its headers, if they are known.
fn whole(now: Instant, seen: &mut Expander, header: &DataHeader, inner: &[u8]) -> Option<BytesMut> {
    if !header.compressed {
        return Some(BytesMut::from(inner));
    }
    let &DataHeader {
        flow,
        flow_seq,
        checksum_partial,
        ..
    } = header;
    let mut full = BytesMut::new();
    let payload = seen
        .expand(now, flow, flow_seq, checksum_partial, inner, &mut full)
        .ok()?;
    full.extend_from_slice(&inner[payload..]);
    Some(full)
}

/// The members that tell of a datagram of this length itself.
fn members(parsed: &Datagram, length: usize) -> String {
    let kind = match parsed {
        Datagram::Data { .. } => "data",
        Datagram::Fragment { .. } => "fragment",
        Datagram::Report { .. } => "report",
        Datagram::Probe { .. } => "probe",
        Datagram::Control(_) => "control",
        Datagram::Nack { .. } => "nack",
        Datagram::DeadlineNack { .. } => "deadline_nack",
        Datagram::Headers { .. } => "headers",
        Datagram::HeaderNotices { .. } => "header_notices",
        Datagram::Coded { .. } => "repair_symbol",
    };
    let mut text = format!(",\"kind\":\"{kind}\",\"bytes\":{length}");
    if let Some(stamp) = parsed.stamp() {
        let _ = write!(text, ",\"path_seq\":{}", stamp.path_seq);
    }
    if let Datagram::Data { header, .. } | Datagram::Fragment { header, .. } = parsed {
        let DataHeader { flow, flow_seq, .. } = header;
        let _ = write!(
            text,
            ",\"bucket\":{flow},\"flow_seq\":{flow_seq},\"copy\":{}",
            header.copy
        );
    }
    text
}

/// The word for a direction in logs.
pub const fn direction(side: Side) -> &'static str {
    match side {
        Side::Up => "up",
        Side::Down => "down",
    }
}
