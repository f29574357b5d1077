//! A UDP stream at a steady pace, like a call: what arrives, when, in which order.
//!
//! Each packet carries its sequence number and sending time. The client opens the stream with a
//! hello (so that address translation on the way lets it in) and repeats it every second.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use socket2::{Protocol, Type};

use super::{Direction, Endpoints};
use crate::statistics::{Summary, summarize};

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct ProbeSpec {
    /// Which way the stream goes.
    pub direction: Direction,
    /// Time between packets.
    pub interval: Duration,
    /// UDP payload bytes, 16..=1400.
    pub size: usize,
}

/// A running stream.
#[derive(Debug)]
pub struct Probe {
    begin: Instant,
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    sender: JoinHandle<Result<Sent>>,
    receiver: JoinHandle<Result<Vec<Arrival>>>,
}

/// One packet that arrived. Times count from the start of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Sequence number from 0.
    pub sequence: u64,
    /// When it was sent.
    pub sent: Duration,
    /// When it arrived.
    pub arrived: Duration,
}

/// All that happened on a stream.
#[derive(Clone, Debug, Default)]
pub struct ProbeLog {
    /// When the stream began.
    pub begin: Option<Instant>,
    /// Packets sent.
    pub sent: u64,
    /// When the last was sent.
    pub end: Duration,
    /// Longest pause of the sender itself: what the machine, not the network, did.
    pub sender_gap: Duration,
    /// Every arrival in order of time, copies included.
    pub arrivals: Vec<Arrival>,
}

/// Figures of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Packets sent.
    pub sent: u64,
    /// Different packets that arrived.
    pub received: u64,
    /// Share of packets that arrived, `0.0..=1.0`.
    pub delivered_ratio: f64,
    /// Share of packets that arrived within [`CALL_DEADLINE`], `0.0..=1.0`.
    pub in_time_ratio: f64,
    /// Packets that arrived more than once.
    pub duplicates: u64,
    /// Packets that arrived after a later one.
    pub reordered: u64,
    /// Longest time without an arrival, milliseconds.
    pub longest_gap_ms: f64,
    /// Longest pause of the sender itself, milliseconds.
    pub sender_gap_ms: f64,
    /// One-way delay, milliseconds.
    pub delay_ms: Summary,
}

impl ProbeSpec {
    /// Like a voice call: 160 bytes every 20 ms towards the client.
    #[must_use]
    pub const fn call() -> Self {
        let interval = Duration::from_millis(20);
        Self {
            direction: Direction::Download,
            interval,
            size: 160,
        }
    }

    /// For gaps: 64 bytes every 10 ms.
    #[must_use]
    pub const fn fine(direction: Direction) -> Self {
        Self {
            direction,
            interval: Duration::from_millis(10),
            size: 64,
        }
    }
}

impl Probe {
    /// Opens the stream and waits for its first arrival.
    ///
    /// # Errors
    /// If nothing arrives within [`OPEN_LIMIT`].
    pub fn start(ends: &Endpoints, spec: &ProbeSpec) -> Result<Self> {
        let size = spec.size.clamp(HEADER_BYTES, 1_400);
        let (server, address) = ends.server_socket(Type::DGRAM, Some(Protocol::UDP))?;
        let client = ends.client_socket(Type::DGRAM, Some(Protocol::UDP))?;
        client.connect(&address.into())?;
        let (server, client) = (UdpSocket::from(server), UdpSocket::from(client));
        let begin = Instant::now();
        let (stop, arrived) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (sending, receiving) = match spec.direction {
            Direction::Download => (server.try_clone()?, client.try_clone()?),
            Direction::Upload => (client.try_clone()?, server.try_clone()?),
        };
        let (flag, count) = (stop.clone(), arrived.clone());
        let receiver = std::thread::spawn(move || receive(&receiving, begin, &flag, &count, size));
        let peer = match spec.direction {
            Direction::Download => Some(await_hello(&server, &client, &stop)),
            Direction::Upload => None,
        };
        let target = match peer {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err(error)) => {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        };
        if target.is_some() {
            let flag = stop.clone();
            std::thread::spawn(move || keep_alive(&client, &flag));
        }
        let (flag, interval) = (stop.clone(), spec.interval);
        let sender =
            std::thread::spawn(move || send(&sending, target, begin, interval, size, &flag));
        let probe = Self {
            begin,
            stop,
            arrived,
            sender,
            receiver,
        };
        probe.await_first()?;
        Ok(probe)
    }

    /// Time since the start of the stream: what arrivals are counted in.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Packets arrived so far, copies included.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Ends the stream, waits [`DRAIN`] for what is under way, and returns all that happened.
    ///
    /// # Errors
    /// If a socket failed for good.
    pub fn finish(self) -> Result<ProbeLog> {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self
            .sender
            .join()
            .map_err(|_| anyhow!("the probe sender panicked"))??;
        let arrivals = self
            .receiver
            .join()
            .map_err(|_| anyhow!("the probe receiver panicked"))??;
        Ok(ProbeLog {
            begin: Some(self.begin),
            sent: sent.count,
            end: sent.last,
            sender_gap: sent.longest_gap,
            arrivals,
        })
    }

    fn await_first(&self) -> Result<()> {
        let end = Instant::now() + OPEN_LIMIT;
        while self.arrived() == 0 {
            if Instant::now() > end {
                self.stop.store(true, Ordering::Relaxed);
                bail!("no probe packet arrived within {OPEN_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl ProbeLog {
    /// Figures of the whole stream.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
    pub fn report(&self) -> ProbeReport {
        let mut seen = vec![false; usize::try_from(self.sent).unwrap_or(usize::MAX)];
        let (mut received, mut duplicates, mut reordered, mut in_time) = (0, 0, 0, 0u64);
        let mut highest = None;
        let mut delays = Vec::with_capacity(self.arrivals.len());
        for arrival in &self.arrivals {
            let index = usize::try_from(arrival.sequence).unwrap_or(usize::MAX);
            let Some(slot) = seen.get_mut(index) else {
                continue;
            };
            if std::mem::replace(slot, true) {
                duplicates += 1;
                continue;
            }
            received += 1;
            reordered += u64::from(highest.is_some_and(|highest| arrival.sequence < highest));
            highest = highest.max(Some(arrival.sequence));
            let delay = arrival.arrived.saturating_sub(arrival.sent);
            in_time += u64::from(delay <= CALL_DEADLINE);
            delays.push(delay.as_secs_f64() * 1e3);
        }
        let share = |count: u64| {
            if self.sent == 0 {
                0.0
            } else {
                count as f64 / self.sent as f64
            }
        };
        let first = self
            .arrivals
            .first()
            .map_or(Duration::ZERO, |arrival| arrival.arrived);
        ProbeReport {
            sent: self.sent,
            received,
            delivered_ratio: share(received),
            in_time_ratio: share(in_time),
            duplicates,
            reordered,
            longest_gap_ms: self.longest_gap(first, self.end).as_secs_f64() * 1e3,
            sender_gap_ms: self.sender_gap.as_secs_f64() * 1e3,
            delay_ms: summarize(delays),
        }
    }

    /// Longest time without an arrival between two times of the stream.
    #[must_use]
    pub fn longest_gap(&self, from: Duration, to: Duration) -> Duration {
        let times = self
            .arrivals
            .iter()
            .map(|a| a.arrived)
            .filter(|t| (from..=to).contains(t));
        let mut last = from;
        let mut longest = Duration::ZERO;
        for time in times.chain(std::iter::once(to)) {
            longest = longest.max(time.saturating_sub(last));
            last = time;
        }
        longest
    }
}

struct Sent {
    count: u64,
    last: Duration,
    longest_gap: Duration,
}

/// Client says hello until the server hears it; the server learns where to send.
fn await_hello(server: &UdpSocket, client: &UdpSocket, stop: &AtomicBool) -> Result<SocketAddr> {
    server.set_read_timeout(Some(Duration::from_millis(100)))?;
    let end = Instant::now() + OPEN_LIMIT;
    let mut buffer = [0; 64];
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        let _ = client.send(HELLO);
        if let Ok((length, from)) = server.recv_from(&mut buffer)
            && &buffer[..length] == HELLO
        {
            return Ok(from);
        }
    }
    Err(anyhow!(
        "the probe's hello did not reach the server within {OPEN_LIMIT:?}"
    ))
}

fn keep_alive(client: &UdpSocket, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let _ = client.send(HELLO);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Sends on a fixed schedule; a late packet is sent at once and the schedule stays. What the
/// network refuses (a dead interface) counts as sent and lost.
fn send(
    socket: &UdpSocket,
    target: Option<SocketAddr>,
    begin: Instant,
    interval: Duration,
    size: usize,
    stop: &AtomicBool,
) -> Result<Sent> {
    let mut packet = vec![0; size];
    let mut sent = Sent {
        count: 0,
        last: begin.elapsed(),
        longest_gap: Duration::ZERO,
    };
    let mut next = Instant::now();
    while sent.count < PACKETS_MAX && sleep_until(next, stop) {
        next += interval;
        let now = begin.elapsed();
        packet[..8].copy_from_slice(&sent.count.to_be_bytes());
        let now_ns = u64::try_from(now.as_nanos()).context("the stream ran for centuries")?;
        packet[8..HEADER_BYTES].copy_from_slice(&now_ns.to_be_bytes());
        let _ = match target {
            Some(target) => socket.send_to(&packet, target),
            None => socket.send(&packet),
        };
        sent.longest_gap = sent.longest_gap.max(now.saturating_sub(sent.last));
        sent.last = now;
        sent.count += 1;
    }
    Ok(sent)
}

/// Sleeps until `time`; false if the stream is stopped before.
fn sleep_until(time: Instant, stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::Relaxed) {
        let left = time.saturating_duration_since(Instant::now());
        if left <= STOP_CHECK {
            std::thread::sleep(left);
            return !stop.load(Ordering::Relaxed);
        }
        std::thread::sleep(STOP_CHECK);
    }
    false
}

fn receive(
    socket: &UdpSocket,
    begin: Instant,
    stop: &AtomicBool,
    arrived: &AtomicU64,
    size: usize,
) -> Result<Vec<Arrival>> {
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut arrivals = Vec::new();
    let mut buffer = vec![0; 2_048];
    let mut stopped_at = None;
    while arrivals.len() < ARRIVALS_MAX {
        if stop.load(Ordering::Relaxed)
            && stopped_at.get_or_insert_with(Instant::now).elapsed() > DRAIN
        {
            break;
        }
        // Errors are what ICMP says of packets of ours (unreachable): the stream goes on.
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        if length != size || length == HELLO.len() {
            continue;
        }
        let field = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buffer[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        let (sequence, sent) = (field(0), Duration::from_nanos(field(8)));
        arrivals.push(Arrival {
            sequence,
            sent,
            arrived: begin.elapsed(),
        });
        arrived.fetch_add(1, Ordering::Relaxed);
    }
    Ok(arrivals)
}

/// A call packet that is later than this is as good as lost (ITU-T G.114: 150 ms mouth to ear).
pub const CALL_DEADLINE: Duration = Duration::from_millis(150);

/// Longest time to the first arrival.
pub const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// How long to wait for stragglers after the last packet.
pub const DRAIN: Duration = Duration::from_millis(700);

/// How soon a sender between two packets sees that the stream is stopped. Longer: slower ends.
const STOP_CHECK: Duration = Duration::from_millis(100);
const HEADER_BYTES: usize = 16;
/// Shorter than any probe packet, so the two cannot be confused.
const HELLO: &[u8] = b"hello";
const PACKETS_MAX: u64 = 10_000_000;
const ARRIVALS_MAX: usize = 20_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(sequence: u64, sent_ms: u64, arrived_ms: u64) -> Arrival {
        let (sent, arrived) = (
            Duration::from_millis(sent_ms),
            Duration::from_millis(arrived_ms),
        );
        Arrival {
            sequence,
            sent,
            arrived,
        }
    }

    #[test]
    fn a_sender_between_two_packets_sees_that_it_is_stopped() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let target = socket.local_addr().expect("an address");
        let (begin, stop) = (Instant::now(), AtomicBool::new(false));
        let interval = Duration::from_secs(15);
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| send(&socket, Some(target), begin, interval, 64, &stop));
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
            sender.join().expect("no panic").expect("it sent")
        });
        assert_eq!(sent.count, 1);
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn losses_copies_order_and_gaps_are_counted() {
        let log = ProbeLog {
            begin: None,
            sent: 6,
            end: Duration::from_millis(500),
            sender_gap: Duration::from_millis(11),
            arrivals: vec![
                arrival(0, 0, 5),
                arrival(2, 20, 25),
                arrival(1, 10, 30),
                arrival(2, 20, 31),
                arrival(4, 40, 240),
            ],
        };
        let report = log.report();
        assert_eq!((report.sent, report.received), (6, 4));
        assert_eq!((report.duplicates, report.reordered), (1, 1));
        assert!((report.delivered_ratio - 4.0 / 6.0).abs() < 1e-9);
        assert!((report.in_time_ratio - 3.0 / 6.0).abs() < 1e-9);
        assert!((report.longest_gap_ms - 260.0).abs() < 1e-9);
        let gap = log.longest_gap(Duration::from_millis(20), Duration::from_millis(300));
        assert_eq!(gap, Duration::from_millis(209));
    }
}
