//! One `[[traffic]]` section of a plan: its flows, and what came of them.

use super::delays::{Delays, Pauses};
use super::flow::{Flow, Kind};
use super::multipath::{Multipath, SIGNAL_BYTES};
use super::probe::{Call, Ping};
use super::side;
use super::transfer::{Address, Protocol, Transfer};
use super::web::User;
use crate::host::tcp::{LossDetection, Receiver, Sender, Settings};
use crate::host::{RECEIVE_WINDOW_BYTES, plain, quic};
use crate::packet::TCP_HEADERS;
use crate::run::{DIRECT, Largest, SimError};
use crate::world::Span;
use ropewalk_plan::{Distribution, FlowReport, Traffic, TrafficReport};
use ropewalk_types::{Duration, Random};

/// Most flows of a run: they are numbered in 16 bits.
pub const FLOWS_MAX: usize = 60_000;
/// Bulk flows of one section start this far apart, as a person's or a script's would.
const STAGGER_NS: u64 = 10_000_000;

/// What a section's bulk flows delivered.
#[derive(Clone, Debug)]
pub struct Section {
    traffic: Traffic,
    span: Span,
    /// Bytes per whole second.
    series: Vec<u64>,
    last_ns: u64,
    stall_ns: u64,
}

/// What flows are made from.
pub struct Maker<'a> {
    /// Largest IP packets of hosts.
    pub largest: Largest,
    /// How bulk TCP senders find losses.
    pub detection: LossDetection,
    /// Paths of each bulk TCP connection, which is an MPTCP connection then; 0 of plain TCP.
    pub subflows: usize,
    /// All randomness of hosts.
    pub random: &'a mut Random,
}

impl Section {
    /// A section that has carried nothing.
    #[must_use]
    pub fn new(traffic: &Traffic, span: Span) -> Self {
        let seconds = usize::try_from(span.end_ns / 1_000_000_000).unwrap_or(0);
        Self {
            traffic: traffic.clone(),
            span,
            series: vec![0; seconds],
            last_ns: span.warmup_ns,
            stall_ns: 0,
        }
    }

    /// Bytes were delivered to an application.
    pub fn on_delivered(&mut self, now_ns: u64, bytes: u64) {
        let second = usize::try_from(now_ns / 1_000_000_000).unwrap_or(usize::MAX);
        if let Some(slot) = self.series.get_mut(second) {
            *slot += bytes;
        }
        if now_ns > self.span.warmup_ns {
            self.stall_ns = self.stall_ns.max(now_ns - self.last_ns);
            self.last_ns = now_ns;
        }
    }

    /// Adds the section's flows.
    ///
    /// # Errors
    /// When there are too many.
    pub fn make(
        &self,
        index: usize,
        maker: &mut Maker<'_>,
        flows: &mut Vec<Flow>,
    ) -> Result<(), SimError> {
        for nth in 0..flow_count(&self.traffic) {
            if flows.len() >= FLOWS_MAX {
                return Err(SimError::setting(
                    &format!("traffic[{index}]"),
                    format!("more than {FLOWS_MAX} flows in all; ask for fewer"),
                ));
            }
            let number = u16::try_from(flows.len()).unwrap_or(u16::MAX);
            let kind = self.make_flow(number, u64::from(nth) * STAGGER_NS, maker);
            let mut flow = Flow::new(kind, index);
            let limited = matches!(
                self.traffic,
                Traffic::Tcp {
                    window: Some(_),
                    ..
                }
            );
            flow.pauses = limited.then(Pauses::default);
            flows.push(flow);
        }
        Ok(())
    }

    fn make_flow(&self, number: u16, later_ns: u64, maker: &mut Maker<'_>) -> Kind {
        let span = self.span;
        match self.traffic {
            Traffic::Tcp { direction, .. } | Traffic::Quic { direction, .. } => {
                let address = Address {
                    flow: number,
                    use_count: 0,
                    data: side(direction),
                };
                self.make_bulk(address, later_ns, maker)
            }
            Traffic::Ping { interval } => Kind::Ping(Box::new(Ping::new(
                number,
                nanos(interval),
                span.warmup_ns,
                span.end_ns,
            ))),
            Traffic::Call {
                interval, bytes, ..
            } => Kind::Call(Box::new(Call::new(
                number,
                nanos(interval),
                bytes,
                span.warmup_ns,
                span.end_ns,
            ))),
            Traffic::Web { objects, pause, .. } => {
                let (pause_ns, random) = (nanos(pause), maker.random.fork());
                Kind::Web(Box::new(User::new(
                    number,
                    maker.largest.tcp,
                    objects,
                    pause_ns,
                    span,
                    random,
                )))
            }
        }
    }

    /// A bulk flow of TCP, MPTCP or QUIC.
    fn make_bulk(&self, address: Address, later_ns: u64, maker: &mut Maker<'_>) -> Kind {
        let bare = self.traffic.beside().is_some() && !self.traffic.has_own_tunnel();
        let largest = if bare { DIRECT } else { maker.largest };
        let (protocol, start, mtu) = match self.traffic {
            Traffic::Tcp {
                congestion,
                start,
                segment,
                window,
                plain,
                duplicates,
                ecn,
                ..
            } => {
                let start_ns = nanos(start) + later_ns;
                if plain {
                    return self.bulk(address, start_ns, without_options(segment, largest));
                }
                let mtu = segment.map_or(largest.tcp, |bytes| largest.tcp.min(bytes + TCP_HEADERS));
                let mut settings = Settings {
                    segment_bytes: Protocol::tcp_payload(mtu),
                    congestion,
                    detection: duplicates.map_or(maker.detection, LossDetection::Duplicates),
                    ecn,
                    window_bytes: window.map_or(RECEIVE_WINDOW_BYTES, u64::from),
                };
                if maker.subflows > 0 {
                    settings.segment_bytes -= SIGNAL_BYTES;
                    let (paths, random) = (maker.subflows, &mut *maker.random);
                    let flow = Multipath::bulk(address, start_ns, settings, paths, random);
                    return Kind::Multipath(Box::new(flow));
                }
                let sender = Box::new(Sender::new(settings, maker.random.fork()));
                (Protocol::Tcp(sender, Receiver::new()), start, mtu)
            }
            Traffic::Quic {
                congestion,
                start,
                packet_threshold,
                ..
            } => {
                let settings = quic::Settings {
                    segment_bytes: Protocol::quic_payload(largest.udp),
                    congestion,
                    packet_threshold,
                };
                let sender = Box::new(quic::Sender::new(settings, maker.random.fork()));
                (
                    Protocol::Quic(sender, quic::Receiver::default()),
                    start,
                    largest.udp,
                )
            }
            Traffic::Ping { .. } | Traffic::Call { .. } | Traffic::Web { .. } => {
                unreachable!("make_flow asks for bulk traffic only")
            }
        };
        self.bulk(address, nanos(start) + later_ns, (protocol, mtu))
    }

    /// A connection that always has something to send, in packets of the size beside its protocol.
    fn bulk(&self, address: Address, start_ns: u64, (protocol, mtu): (Protocol, u32)) -> Kind {
        let mut transfer = Transfer::bulk(address, start_ns, protocol, mtu);
        if self.end_ns() < self.span.end_ns {
            transfer.stop_at(self.end_ns());
        }
        Kind::Transfer(Box::new(transfer))
    }

    /// What came of the section; with the distributions of delays as histograms, if asked for.
    #[must_use]
    pub fn report(&self, index: usize, flows: &[Flow], histograms: bool) -> TrafficReport {
        let seconds = (self.span.end_ns - self.span.warmup_ns) as f64 / 1e9;
        let mut report = TrafficReport {
            kind: self.traffic.kind().into(),
            ..TrafficReport::default()
        };
        let mut load_ms = Vec::new();
        let mut delays = Delays::default();
        for flow in flows.iter().filter(|flow| flow.section() == index) {
            match &flow.kind {
                Kind::Transfer(_) | Kind::Multipath(_) => {
                    delays.merge(&flow.delays);
                    report.flows.push(FlowReport {
                        goodput_mbit: flow.counted_bytes() as f64 * 8e-6 / seconds,
                        retransmits: flow.sender_stats().map_or(0, |stats| stats.retransmits),
                        delay_ms: flow.delays.distribution(),
                        delay_histogram_ms: if histograms {
                            flow.delays.histogram_ms()
                        } else {
                            Vec::new()
                        },
                        broken: false,
                        pauses: flow
                            .pauses
                            .iter()
                            .flat_map(Pauses::found)
                            .copied()
                            .collect(),
                    });
                }
                Kind::Ping(ping) => {
                    let (sent, answered) = (ping.sent(), ping.rtt_ms.len() as u64);
                    report.sent = Some(sent);
                    report.lost = Some(sent.saturating_sub(answered));
                    report.delay_ms = Some(Distribution::of(&ping.rtt_ms));
                }
                Kind::Call(call) => self.report_call(call, &mut report),
                Kind::Web(user) => load_ms.extend_from_slice(&user.load_ms),
            }
        }
        if matches!(self.traffic, Traffic::Web { .. }) {
            report.delay_ms = Some(Distribution::of(&load_ms));
        }
        if matches!(self.traffic, Traffic::Tcp { .. } | Traffic::Quic { .. }) {
            report.delay_ms = delays.distribution();
            report.goodput_mbit = report.flows.iter().map(|flow| flow.goodput_mbit).sum();
            report.series_mbit = self.series.iter().map(|b| *b as f64 * 8e-6).collect();
            let open_ns = self.end_ns().saturating_sub(self.last_ns);
            report.longest_stall_seconds = Some(self.stall_ns.max(open_ns) as f64 / 1e9);
        }
        report
    }

    /// When the section stops.
    fn end_ns(&self) -> u64 {
        match self.traffic {
            Traffic::Tcp {
                until: Some(until), ..
            } => nanos(until),
            Traffic::Tcp { .. }
            | Traffic::Quic { .. }
            | Traffic::Ping { .. }
            | Traffic::Call { .. }
            | Traffic::Web { .. } => self.span.end_ns,
        }
    }

    fn report_call(&self, call: &Call, report: &mut TrafficReport) {
        let Traffic::Call { deadline, .. } = self.traffic else {
            return;
        };
        let arrived = call.delay_ms.len() as u64;
        let deadline_ms = deadline.as_secs_f64() * 1e3;
        let in_time = call.delay_ms.iter().filter(|d| **d <= deadline_ms).count();
        report.sent = Some(call.sent);
        report.lost = Some(call.sent.saturating_sub(arrived));
        report.in_time = Some(in_time as f64 / call.sent.max(1) as f64);
        report.delay_ms = Some(Distribution::of(&call.delay_ms));
    }
}

/// Hosts without TCP options, with the length of their packets.
fn without_options(segment: Option<u32>, largest: Largest) -> (Protocol, u32) {
    let payload = segment
        .unwrap_or(u32::MAX)
        .min(largest.plain_tcp - plain::HEADERS);
    let packet = payload + plain::HEADERS;
    let sender = Box::new(plain::Sender::new(packet));
    let protocol = Protocol::Plain(sender, plain::Receiver::default());
    (protocol, packet)
}

/// Flows of a section.
#[must_use]
pub const fn flow_count(traffic: &Traffic) -> u32 {
    match traffic {
        Traffic::Tcp { flows, .. } | Traffic::Quic { flows, .. } => *flows,
        Traffic::Web { users, .. } => *users,
        Traffic::Ping { .. } | Traffic::Call { .. } => 1,
    }
}

/// Whole nanoseconds; plans last an hour at most.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
