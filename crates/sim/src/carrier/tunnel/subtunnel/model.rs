//! A sub-tunnel without cryptography: numbers, acknowledgements, loss by time, pacing and the
//! real congestion control, with the settings the transport gives its QUIC connections.
//!
//! Invariant: `in_flight` is the sum of the bytes sent, to be acknowledged, and neither
//! acknowledged nor lost.

use super::pacer::Pacer;
use super::{IP_UDP, LinkItem, Settings, SubTunnel};
use crate::engine::NEVER;
use crate::host::MS;
use crate::host::ranges::Ranges;
use crate::run::SimError;
use bytes::Bytes;
use ropewalk_transport::CongestionControl;
use ropewalk_transport::congestion::model::{ModelPath, ModelReport};
use ropewalk_types::{Duration, Instant, PathSnapshot};
use std::collections::VecDeque;

/// UDP payload that path MTU discovery finds on a path of 1,500 bytes.
const MTU: u64 = 1_463;
/// QUIC short header with a connection identifier of six bytes, packet number, tag.
const PACKET_BYTES: u64 = 24;
/// Header of a datagram frame.
const DATAGRAM_BYTES: u64 = 3;
/// Largest datagram: with the tunnel's header of ten bytes an inner packet of 1,426.
const DATAGRAM_MAX: usize = 1_436;
/// What a queued datagram counts besides its bytes, as in the transport.
const QUEUE_ITEM_BYTES: u64 = 32;
/// An acknowledgement leaves after more than this many packets,
const ACK_PACKETS: u32 = 15;
/// or this time.
const ACK_DELAY_NS: u64 = 5 * MS;
/// Blocks of an acknowledgement.
const ACK_BLOCKS: usize = 64;
/// Bytes of an acknowledgement's frame, and of each block.
const ACK_BYTES: u64 = 6;
const ACK_BLOCK_BYTES: u64 = 2;
/// A ping with the wish for an immediate answer.
const PING_BYTES: u64 = 4;
/// A packet is lost when it is out for so many eighths of a round trip, and a later one arrived.
const TIME_THRESHOLD_EIGHTHS: u64 = 12;
/// Silence after which the gateway builds a new connection, and how often it tries.
const SILENCE_NS: u64 = 400 * MS;
/// As in `core`'s judgement of silence.
const SUSPECT_MARGIN_NS: u64 = 60 * MS;
const ATTEMPT_NS: u64 = 250 * MS;
/// Most doublings of the probe timeout.
const BACKOFF_MAX: u32 = 10;

/// One packet on the link.
#[derive(Debug)]
pub struct Packet {
    number: u32,
    /// UDP payload.
    bytes: u32,
    ack: Option<AckFrame>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Nothing that asks for an acknowledgement.
    Nothing,
    /// Only the wish for one, at once.
    Ping,
    One(Bytes),
    Several(Vec<Bytes>),
}

#[derive(Debug)]
struct AckFrame {
    /// Descending: the newest first.
    blocks: Vec<(u32, u32)>,
    delay_ns: u64,
}

impl LinkItem for Packet {
    fn ip_bytes(&self) -> u64 {
        u64::from(self.bytes) + IP_UDP
    }

    fn digest(&self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.bytes) << 1 | u64::from(self.ack.is_some())
    }
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at_ns: u64,
    /// Zero once acknowledged or lost, and for packets that ask for no acknowledgement.
    bytes: u32,
}

/// Round-trip estimates (RFC 9002 §5), nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    min_ns: u64,
}

impl Estimate {
    fn update(&mut self, rtt_ns: u64, delay_ns: u64) {
        self.latest_ns = rtt_ns;
        self.min_ns = self.min_ns.min(rtt_ns);
        let adjusted = if rtt_ns >= self.min_ns + delay_ns {
            rtt_ns - delay_ns
        } else {
            rtt_ns
        };
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(adjusted)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + adjusted) / 8;
    }
}

/// One end of one path.
#[derive(Debug)]
pub struct ModelledTunnel {
    control: ModelPath,
    rtt: Estimate,
    pacer: Pacer,
    next: u32,
    /// Packets from `first` on.
    sent: VecDeque<Sent>,
    first: u32,
    in_flight: u64,
    largest_acked: Option<u32>,
    last_eliciting_ns: u64,
    heard_ns: u64,
    loss_due_ns: u64,
    probe_due_ns: u64,
    probes: u32,
    ping: bool,
    /// What is queued leaves although the window is full.
    urgent: bool,
    pacer_due_ns: u64,
    queue: VecDeque<Bytes>,
    queued: u64,
    sent_packets: u64,
    lost_packets: u64,
    received: Ranges,
    unacknowledged: u32,
    ack_now: bool,
    ack_due_ns: u64,
    newest_at_ns: u64,
    /// The report for the scheduler has changed.
    news: bool,
}

impl SubTunnel for ModelledTunnel {
    type Packet = Packet;

    fn pair(settings: &Settings, _seed: u64) -> Result<[Self; 2], SimError> {
        if settings.congestion != CongestionControl::Bdp {
            return Err(SimError::setting(
                "carrier.congestion",
                format!(
                    "`{}` is not modelled in sub-tunnels; use `bdp`, or `transport = \"quic\"`",
                    settings.congestion
                ),
            ));
        }
        let rtt = settings.delays[0] + settings.delays[1];
        Ok([Self::new(rtt), Self::new(rtt)])
    }

    fn take_news(&mut self) -> Option<PathSnapshot> {
        std::mem::take(&mut self.news).then(|| self.snapshot())
    }

    fn due_ns(&mut self) -> u64 {
        let mut due = self.loss_due_ns.min(self.probe_due_ns).min(self.ack_due_ns);
        if !self.queue.is_empty() {
            due = due.min(self.pacer_due_ns);
        }
        due
    }

    fn push(&mut self, datagram: Bytes) {
        self.news = true;
        self.queued += datagram.len() as u64 + QUEUE_ITEM_BYTES;
        self.queue.push_back(datagram);
        self.control.set_queued(self.queued);
    }

    fn push_urgent(&mut self, datagram: Bytes) {
        self.urgent = true;
        self.push(datagram);
    }

    fn declare_lost(&mut self) {
        self.news = true;
        self.control.declare_lost();
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        let now_ns = now.as_nanos();
        self.news |= self.pacer_due_ns != NEVER;
        self.pacer_due_ns = NEVER;
        if self.ping {
            self.ping = false;
            let ack = self.take_ack(now_ns, MTU);
            return Some(self.emit(now, PING_BYTES, ack, Content::Ping));
        }
        if self.may_send(now_ns) {
            let first = self.queue.front().map_or(0, Bytes::len) as u64;
            let room = MTU.saturating_sub(PACKET_BYTES + DATAGRAM_BYTES + first);
            let ack = self.take_ack(now_ns, room);
            // A full datagram leaves no room for an acknowledgement that is due.
            if ack.is_some() || !self.ack_now {
                return Some(self.emit_datagrams(now, ack));
            }
        }
        if self.ack_now {
            let ack = self.take_ack(now_ns, MTU);
            return Some(self.emit(now, 0, ack, Content::Nothing));
        }
        None
    }

    fn on_packet(&mut self, now: Instant, packet: Packet, mut take: impl FnMut(Bytes)) -> bool {
        let ready = self.note(now, &packet);
        match packet.content {
            Content::Nothing | Content::Ping => {}
            Content::One(datagram) => take(datagram),
            Content::Several(datagrams) => datagrams.into_iter().for_each(take),
        }
        ready
    }

    fn on_timer(&mut self, now: Instant) {
        let now_ns = now.as_nanos();
        if self.ack_due_ns <= now_ns {
            self.ack_due_ns = NEVER;
            self.ack_now |= self.unacknowledged > 0;
        }
        if self.loss_due_ns <= now_ns {
            self.find_losses(now);
            self.set_probe_timer();
        }
        if self.probe_due_ns <= now_ns {
            self.probes += 1;
            self.ping = true;
            self.probe_due_ns = NEVER;
        }
    }
}

impl ModelledTunnel {
    /// A connection whose handshake measured `rtt`.
    fn new(rtt: Duration) -> Self {
        let rtt_ns = u64::try_from(rtt.as_nanos()).unwrap_or(MS).max(MS);
        let mtu = u16::try_from(MTU).unwrap_or(u16::MAX);
        let control = ModelPath::new(std::time::Instant::now(), Instant::ZERO, mtu);
        Self {
            pacer: Pacer::new(0, rtt_ns, control.window(), MTU),
            control,
            rtt: Estimate {
                smoothed_ns: rtt_ns,
                variation_ns: rtt_ns / 2,
                latest_ns: rtt_ns,
                min_ns: rtt_ns,
            },
            next: 0,
            sent: VecDeque::new(),
            first: 0,
            in_flight: 0,
            largest_acked: None,
            last_eliciting_ns: 0,
            heard_ns: 0,
            loss_due_ns: NEVER,
            probe_due_ns: NEVER,
            probes: 0,
            ping: false,
            urgent: false,
            pacer_due_ns: NEVER,
            queue: VecDeque::new(),
            queued: 0,
            sent_packets: 0,
            lost_packets: 0,
            received: Ranges::default(),
            unacknowledged: 0,
            ack_now: false,
            ack_due_ns: NEVER,
            newest_at_ns: 0,
            news: true,
        }
    }

    fn snapshot(&self) -> PathSnapshot {
        let paced = self.queued > 0 && self.pacer_due_ns != NEVER;
        self.control.snapshot(&ModelReport {
            srtt: Duration::from_nanos(self.rtt.smoothed_ns),
            next_credit: paced.then(|| Instant::from_nanos(self.pacer_due_ns)),
            max_datagram: DATAGRAM_MAX,
            sent_packets: self.sent_packets,
            lost_packets: self.lost_packets,
        })
    }

    fn may_send(&mut self, now_ns: u64) -> bool {
        if self.queue.is_empty() {
            self.urgent = false;
            return false;
        }
        let window = self.control.window();
        if self.in_flight + MTU >= window && !self.urgent {
            return false;
        }
        let wait = self
            .pacer
            .wait_until(now_ns, self.rtt.smoothed_ns, MTU, window);
        self.pacer_due_ns = wait.unwrap_or(NEVER);
        self.news |= wait.is_some();
        wait.is_none()
    }

    fn emit_datagrams(&mut self, now: Instant, ack: Option<AckFrame>) -> Packet {
        let mut bytes = 0;
        let room = MTU - PACKET_BYTES - ack.as_ref().map_or(0, ack_bytes);
        let mut content = Content::Nothing;
        while let Some(datagram) = self.queue.front() {
            let more = DATAGRAM_BYTES + datagram.len() as u64;
            if bytes > 0 && bytes + more > room {
                break;
            }
            let Some(datagram) = self.queue.pop_front() else {
                break;
            };
            bytes += more;
            self.queued -= datagram.len() as u64 + QUEUE_ITEM_BYTES;
            content = match content {
                Content::Nothing | Content::Ping => Content::One(datagram),
                Content::One(first) => Content::Several(vec![first, datagram]),
                Content::Several(mut all) => {
                    all.push(datagram);
                    Content::Several(all)
                }
            };
        }
        let frame = self.emit(now, bytes, ack, content);
        self.control.set_queued(self.queued);
        frame
    }

    fn emit(
        &mut self,
        now: Instant,
        content_bytes: u64,
        ack: Option<AckFrame>,
        content: Content,
    ) -> Packet {
        let ack_len = ack.as_ref().map_or(0, ack_bytes);
        let bytes = PACKET_BYTES + content_bytes + ack_len;
        let bytes32 = u32::try_from(bytes).unwrap_or(u32::MAX);
        let eliciting = content_bytes > 0;
        let number = self.next;
        self.next += 1;
        self.news = true;
        self.sent_packets += 1;
        self.pacer.on_sent(bytes);
        let at_ns = now.as_nanos();
        self.sent.push_back(Sent {
            at_ns,
            bytes: if eliciting { bytes32 } else { 0 },
        });
        if eliciting {
            if self.in_flight == 0 {
                self.heard_ns = at_ns;
            }
            self.in_flight += bytes;
            self.last_eliciting_ns = at_ns;
            self.control.on_sent(now, bytes);
            self.set_probe_timer();
        }
        Packet {
            number,
            bytes: bytes32,
            ack,
            content,
        }
    }

    /// The acknowledgement, if anything waits for one and it fits; early where it costs nothing.
    fn take_ack(&mut self, now_ns: u64, room: u64) -> Option<AckFrame> {
        if self.unacknowledged == 0 && !self.ack_now {
            return None;
        }
        let ranges = self.received.as_slice();
        let count = ranges.len().min(ACK_BLOCKS);
        if ACK_BYTES + ACK_BLOCK_BYTES * (count as u64) > room {
            return None;
        }
        let blocks = ranges.iter().rev().take(count).copied().collect();
        self.unacknowledged = 0;
        self.ack_now = false;
        self.ack_due_ns = NEVER;
        Some(AckFrame {
            blocks,
            delay_ns: now_ns.saturating_sub(self.newest_at_ns),
        })
    }

    /// A packet of the peer arrived; whether there is something to send or news of the path.
    fn note(&mut self, now: Instant, packet: &Packet) -> bool {
        let now_ns = now.as_nanos();
        if let Some(ack) = &packet.ack {
            self.on_ack(now, ack);
        }
        let newest = self.received.as_slice().last().map_or(0, |range| range.1);
        if packet.number >= newest {
            self.newest_at_ns = now_ns;
        }
        self.received.insert(packet.number);
        self.received.keep_last(ACK_BLOCKS);
        match packet.content {
            Content::Nothing => return self.news,
            Content::Ping => self.ack_now = true,
            Content::One(_) | Content::Several(_) => {}
        }
        self.unacknowledged += 1;
        self.ack_now |= self.unacknowledged > ACK_PACKETS;
        self.ack_due_ns = self.ack_due_ns.min(now_ns + ACK_DELAY_NS);
        self.ack_now || self.news
    }

    fn on_ack(&mut self, now: Instant, ack: &AckFrame) {
        let now_ns = now.as_nanos();
        let mut newest: Option<(u32, u64)> = None;
        let mut any = false;
        for &(start, end) in ack.blocks.iter().rev() {
            for number in start.max(self.first)..end.min(self.next) {
                let Some(sent) = self.sent.get_mut((number - self.first) as usize) else {
                    break;
                };
                let bytes = std::mem::take(&mut sent.bytes);
                if bytes > 0 {
                    any = true;
                    self.in_flight -= u64::from(bytes);
                    newest = Some((number, sent.at_ns));
                    let at = Instant::from_nanos(sent.at_ns);
                    self.control.on_ack(now, at, u64::from(bytes));
                }
            }
        }
        if !any {
            return;
        }
        self.news = true;
        self.control.on_end_acks(now, self.in_flight);
        if let Some((number, at_ns)) = newest
            && self.largest_acked.is_none_or(|largest| number > largest)
        {
            self.largest_acked = Some(number);
            self.rtt
                .update(now_ns - at_ns, ack.delay_ns.min(ACK_DELAY_NS));
        }
        self.probes = 0;
        self.find_losses(now);
        if now_ns.saturating_sub(self.heard_ns) > self.silence_ns() {
            self.restart(now);
        }
        self.heard_ns = now_ns;
        self.set_probe_timer();
    }

    /// Silence after which the gateway builds a new connection: the path is suspect first.
    fn silence_ns(&self) -> u64 {
        let suspect = 2 * self.rtt.smoothed_ns + 4 * self.rtt.variation_ns + SUSPECT_MARGIN_NS;
        suspect.max(SILENCE_NS)
    }

    /// The gateway has built a new connection, which knows nothing of what was under way.
    fn restart(&mut self, now: Instant) {
        let mtu = u16::try_from(MTU).unwrap_or(u16::MAX);
        self.control = ModelPath::new(std::time::Instant::now(), now, mtu);
        self.control.set_queued(self.queued);
        for sent in &mut self.sent {
            sent.bytes = 0;
        }
        self.in_flight = 0;
        self.forget_settled();
        let window = self.control.window();
        self.pacer = Pacer::new(now.as_nanos(), self.rtt.smoothed_ns, window, MTU);
        self.loss_due_ns = NEVER;
    }

    /// RFC 9002 §6.1.2: only by time.
    fn find_losses(&mut self, now: Instant) {
        let now_ns = now.as_nanos();
        self.loss_due_ns = NEVER;
        let Some(largest) = self.largest_acked else {
            return;
        };
        let reference = self.rtt.smoothed_ns.max(self.rtt.latest_ns);
        let patience_ns = (reference * TIME_THRESHOLD_EIGHTHS / 8).max(MS);
        let (mut lost_bytes, mut newest_ns) = (0, 0);
        for (number, sent) in (self.first..largest).zip(self.sent.iter_mut()) {
            debug_assert!(number < largest, "only what was overtaken can be lost");
            if sent.bytes == 0 {
                continue;
            }
            if now_ns.saturating_sub(sent.at_ns) < patience_ns {
                self.loss_due_ns = sent.at_ns + patience_ns;
                break;
            }
            lost_bytes += u64::from(std::mem::take(&mut sent.bytes));
            newest_ns = sent.at_ns;
            self.lost_packets += 1;
        }
        if lost_bytes > 0 {
            self.news = true;
            self.in_flight -= lost_bytes;
            let at = Instant::from_nanos(newest_ns);
            self.control.on_lost(now, at, lost_bytes);
        }
        self.forget_settled();
    }

    fn forget_settled(&mut self) {
        while self.sent.front().is_some_and(|sent| sent.bytes == 0) {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    fn set_probe_timer(&mut self) {
        self.probe_due_ns = NEVER;
        if self.in_flight == 0 {
            return;
        }
        let base = self.rtt.smoothed_ns + (4 * self.rtt.variation_ns).max(MS) + ACK_DELAY_NS;
        let wait_ns = base << self.probes.min(BACKOFF_MAX);
        let silent =
            self.last_eliciting_ns.saturating_sub(self.heard_ns) + wait_ns > self.silence_ns();
        let wait_ns = if silent {
            wait_ns.min(ATTEMPT_NS)
        } else {
            wait_ns
        };
        self.probe_due_ns = self.last_eliciting_ns + wait_ns;
    }
}

fn ack_bytes(ack: &AckFrame) -> u64 {
    ACK_BYTES + ACK_BLOCK_BYTES * ack.blocks.len() as u64
}
