//! Tells the log of events which datagram a gateway bound to which path, and why.

use crate::events::Trace;
use crate::packet::Packet;
use bytes::Bytes;
use ropewalk_core::tunnel::{Observer, Outgoing};
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
}

impl Gateway {
    /// The gateway that sends in this direction.
    pub const fn new(side: Side, paths: Vec<usize>, told: Told) -> Self {
        Self {
            side,
            paths,
            told,
            newest: BTreeMap::new(),
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
    fn on_sent(&mut self, _now: Instant, sent: &Outgoing, path: &PathSnapshot, backlog: u64) {
        let mut rest = describe(&sent.datagram);
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

    fn on_received(&mut self, _now: Instant, path: PathId, datagram: &Bytes) {
        let from = match self.side {
            Side::Up => Side::Down,
            Side::Down => Side::Up,
        };
        self.tell("tunnel_received", from, path, &describe(datagram));
    }
}

/// What a datagram is, as further members of a JSON object.
fn describe(datagram: &Bytes) -> String {
    let Ok(parsed) = Datagram::parse(datagram) else {
        return ",\"kind\":\"malformed\"".into();
    };
    let kind = match &parsed {
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
    let mut text = format!(",\"kind\":\"{kind}\",\"bytes\":{}", datagram.len());
    if let Some(stamp) = parsed.stamp() {
        let _ = write!(text, ",\"path_seq\":{}", stamp.path_seq);
    }
    if let Datagram::Data { header, .. } | Datagram::Fragment { header, .. } = &parsed {
        let DataHeader { flow, flow_seq, .. } = header;
        let _ = write!(
            text,
            ",\"bucket\":{flow},\"flow_seq\":{flow_seq},\"copy\":{}",
            header.copy
        );
    }
    if let Datagram::Data { at, .. } = parsed
        && let Some(packet) = datagram.get(at..).and_then(Packet::read)
    {
        let (flow, content) = (packet.flow, packet.body.content());
        let _ = write!(text, ",\"flow\":{flow},{content}");
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
