//! Bulk transfer over TCP or MPTCP that notices corruption and broken connections.
//!
//! The payload is a fixed noise block repeated end to end. The block's length is prime, so a
//! lost, repeated or moved piece of any usual size shifts the sequence and is seen at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use socket2::{Protocol, SockAddr, Socket, Type};

use super::{Direction, Endpoints};
use crate::namespace::Namespace;
use crate::statistics::mbit_per_second;

/// What to transfer.
#[derive(Clone, Debug)]
pub struct BulkSpec {
    /// Parallel connections, 1..=64.
    pub flows: usize,
    /// Which way.
    pub direction: Direction,
    /// Whether every connection carries as much against `direction` at the same time, which is
    /// reported as connections of its own.
    pub both_ways: bool,
    /// Congestion control of the sender, as the kernel names it.
    pub congestion: String,
    /// Whether the connections are MPTCP.
    pub mptcp: bool,
    /// When it ends.
    pub amount: Amount,
    /// Time between samples of the throughput.
    pub sample: Duration,
    /// About how large the receiver's window may become, bytes; what the kernel makes it unless
    /// given.
    pub window: Option<u32>,
}

/// When a transfer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// After a time.
    Time(Duration),
    /// After this many bytes per connection, or when `limit` has passed.
    Bytes {
        /// Bytes per connection.
        bytes: u64,
        /// Longest time it may take.
        limit: Duration,
    },
}

/// A running transfer.
#[derive(Debug)]
pub struct Bulk {
    /// Kept open: the kernel accepts further subflows of MPTCP only while the port is listened on.
    _listener: Socket,
    shared: Arc<Shared>,
    senders: Vec<JoinHandle<Option<String>>>,
    receivers: Vec<JoinHandle<FlowReport>>,
    sampler: JoinHandle<Vec<f64>>,
    sending: Namespace,
    retransmits_before: u64,
    amount: Amount,
}

/// What a transfer achieved.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BulkReport {
    /// Payload delivered per time, Mbit/s, all connections together.
    pub goodput_mbit: f64,
    /// Payload delivered, bytes.
    pub bytes: u64,
    /// Time it took, seconds.
    pub seconds: f64,
    /// Segments that the sending namespace sent again.
    pub retransmits: u64,
    /// Throughput of each sampling interval, Mbit/s.
    pub samples_mbit: Vec<f64>,
    /// Each connection.
    pub flows: Vec<FlowReport>,
    /// When the first sampling interval begins.
    #[serde(skip)]
    pub begin: Option<Instant>,
}

/// What one connection achieved.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlowReport {
    /// Payload delivered, bytes.
    pub bytes: u64,
    /// Why the connection counts as broken, if it does.
    pub broken: Option<String>,
    /// Payload delivered in each sampling interval, bytes.
    #[serde(skip)]
    pub samples: Vec<u64>,
    /// Times of at least `PAUSE_MIN` between two reads that brought something, after the begin.
    #[serde(skip)]
    pub pauses: Vec<(Duration, Duration)>,
}

impl BulkSpec {
    /// Downloads over CUBIC for a time, sampled four times a second.
    #[must_use]
    pub fn download(flows: usize, time: Duration) -> Self {
        Self {
            flows,
            direction: Direction::Download,
            both_ways: false,
            congestion: "cubic".into(),
            mptcp: false,
            amount: Amount::Time(time),
            sample: SAMPLE,
            window: None,
        }
    }

    /// This transfer over MPTCP.
    #[must_use]
    pub fn over_mptcp(self) -> Self {
        Self {
            mptcp: true,
            ..self
        }
    }

    /// The same the other way.
    #[must_use]
    pub fn upload(self) -> Self {
        Self {
            direction: Direction::Upload,
            ..self
        }
    }

    /// This transfer with every connection filled from both its ends.
    #[must_use]
    pub fn both_ways(self) -> Self {
        Self {
            both_ways: true,
            ..self
        }
    }
}

impl BulkReport {
    /// Number of broken connections.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.flows
            .iter()
            .filter(|flow| flow.broken.is_some())
            .count()
    }

    /// Why connections broke, if any did.
    #[must_use]
    pub fn reasons(&self) -> Vec<&str> {
        self.flows
            .iter()
            .filter_map(|flow| flow.broken.as_deref())
            .collect()
    }
}

impl Bulk {
    /// Opens the connections and starts to send.
    ///
    /// # Errors
    /// If a connection cannot be made within [`CONNECT_LIMIT`] or the kernel lacks the
    /// congestion control or MPTCP.
    pub fn start(ends: &Endpoints, spec: &BulkSpec) -> Result<Self> {
        let protocol = spec.mptcp.then_some(Protocol::MPTCP);
        let (listener, address) = ends
            .server_socket(Type::STREAM, protocol)
            .context("cannot listen (for MPTCP: does the kernel have it?)")?;
        listener.listen(BACKLOG)?;
        let sending = match spec.direction {
            Direction::Download => ends.server.clone(),
            Direction::Upload => ends.client.clone(),
        };
        let retransmits_before = sending.tcp_retransmits()?;
        let shared = Arc::new(Shared::new(spec.sample));
        let pattern: Arc<[u8]> = pattern().into();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        let mut pairs = Vec::new();
        if let Some(bytes) = spec.window {
            let receiving = match spec.direction {
                Direction::Download => &ends.client,
                Direction::Upload => &ends.server,
            };
            limit_window(receiving, bytes)?;
            // Otherwise the sender would be what limits.
            limit_window(&sending, bytes)?;
        }
        for _ in 0..spec.flows {
            let client = ends.client_socket(Type::STREAM, protocol)?;
            pairs.push(connect(&listener, client, &SockAddr::from(address))?);
        }
        for (client, server) in pairs {
            let (sender, receiver) = match spec.direction {
                Direction::Download => (server, client),
                Direction::Upload => (client, server),
            };
            for end in [&sender, &receiver]
                .into_iter()
                .take(1 + usize::from(spec.both_ways))
            {
                end.set_tcp_congestion(spec.congestion.as_bytes())
                    .with_context(|| format!("no congestion control {}", spec.congestion))?;
            }
            let mut ways = vec![(stream(sender)?, stream(receiver)?)];
            if spec.both_ways {
                let (sender, receiver) = &ways[0];
                ways.push((receiver.try_clone()?, sender.try_clone()?));
            }
            for (sender, receiver) in ways {
                let (amount, state, block) = (spec.amount, shared.clone(), pattern.clone());
                senders.push(std::thread::spawn(move || {
                    send(sender, amount, &state, &block)
                }));
                let (state, block) = (shared.clone(), pattern.clone());
                receivers.push(std::thread::spawn(move || {
                    receive(receiver, amount, &state, &block)
                }));
            }
        }
        let state = shared.clone();
        let sampler = std::thread::spawn(move || sample(&state));
        let amount = spec.amount;
        Ok(Self {
            _listener: listener,
            shared,
            senders,
            receivers,
            sampler,
            sending,
            retransmits_before,
            amount,
        })
    }

    /// Payload bytes delivered so far, all connections together.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub fn finish(self) -> Result<BulkReport> {
        let limit = match self.amount {
            Amount::Time(time) => time,
            Amount::Bytes { limit, .. } => limit,
        };
        while self.shared.begin.elapsed() < limit
            && !self.receivers.iter().all(JoinHandle::is_finished)
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.stop()
    }

    /// Ends the transfers now.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub fn stop(self) -> Result<BulkReport> {
        let (bytes, time) = (self.received(), self.shared.begin.elapsed());
        self.shared.stop.store(true, Ordering::Relaxed);
        let retransmits = self
            .sending
            .tcp_retransmits()?
            .saturating_sub(self.retransmits_before);
        let errors: Vec<Option<String>> = self
            .senders
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| panicked()))
            .collect();
        let flows = self
            .receivers
            .into_iter()
            .zip(errors)
            .map(|(thread, send_error)| {
                let mut flow = thread.join().unwrap_or_else(|_| FlowReport {
                    broken: panicked(),
                    ..FlowReport::default()
                });
                flow.broken = flow.broken.or(send_error);
                flow
            });
        let flows = flows.collect();
        Ok(BulkReport {
            goodput_mbit: mbit_per_second(bytes, time),
            bytes,
            seconds: time.as_secs_f64(),
            retransmits,
            samples_mbit: self.sampler.join().unwrap_or_default(),
            flows,
            begin: Some(self.shared.begin),
        })
    }
}

/// Starts a transfer and waits for its end.
///
/// # Errors
/// As [`Bulk::start`] and [`Bulk::finish`].
pub fn run(ends: &Endpoints, spec: &BulkSpec) -> Result<BulkReport> {
    Bulk::start(ends, spec)?.finish()
}

#[derive(Debug)]
struct Shared {
    begin: Instant,
    sample: Duration,
    received: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn new(sample: Duration) -> Self {
        Self {
            begin: Instant::now(),
            sample,
            received: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Number of the sampling interval that goes on now.
    fn interval(&self) -> usize {
        let number = self.begin.elapsed().as_nanos() / self.sample.as_nanos().max(1);
        usize::try_from(number)
            .unwrap_or(SAMPLES_MAX)
            .min(SAMPLES_MAX)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Makes the kernel keep receive windows of a namespace to about `bytes`. Half of the buffer of a
/// connection is window, the rest is for the overhead of packets (`tcp_adv_win_scale`, or a
/// measured share since Linux 6.6).
fn limit_window(namespace: &Namespace, bytes: u32) -> Result<()> {
    let buffer = 2 * u64::from(bytes);
    let first = buffer.min(WINDOW_FIRST);
    namespace.sysctl("net/ipv4/tcp_rmem", &format!("4096 {first} {buffer}"))?;
    let sending = buffer.max(SEND_BUFFER_MIN);
    namespace.sysctl("net/ipv4/tcp_wmem", &format!("4096 65536 {sending}"))
}

/// Connects one client and accepts it. The listener is bounded by a receive timeout.
fn connect(listener: &Socket, client: Socket, address: &SockAddr) -> Result<(Socket, Socket)> {
    listener.set_read_timeout(Some(CONNECT_LIMIT))?;
    client
        .connect_timeout(address, CONNECT_LIMIT)
        .with_context(|| {
            let name = address
                .as_socket()
                .map(|a| a.to_string())
                .unwrap_or_default();
            format!("cannot connect to {name}")
        })?;
    // With a time limit, a process that was stopped and goes on sees `EINTR` here (signal(7)).
    let (server, _) = loop {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            accepted => break accepted.context("the connection did not arrive")?,
        }
    };
    Ok((client, server))
}

/// A stream whose calls return often enough to see the stop flag.
fn stream(socket: Socket) -> Result<TcpStream> {
    socket.set_nonblocking(false)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(TICK))?;
    Ok(stream)
}

/// Sends the pattern until the end; returns what broke.
fn send(mut stream: TcpStream, amount: Amount, shared: &Shared, block: &[u8]) -> Option<String> {
    let total = match amount {
        Amount::Time(_) => u64::MAX,
        Amount::Bytes { bytes, .. } => bytes,
    };
    let (mut sent, mut at) = (0u64, 0usize);
    while sent < total {
        if shared.stopped() {
            // An abort instead of a slow farewell: what is queued must not disturb the next run.
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            return None;
        }
        let piece = usize::try_from(total - sent).map_or(block.len(), |n| n.min(block.len()));
        let end = (at + piece).min(block.len());
        match stream.write(&block[at..end]) {
            Ok(0) => return Some("connection closed while sending".into()),
            Ok(count) => {
                sent += count as u64;
                at = (at + count) % block.len();
            }
            Err(error) if is_pause(&error) => {}
            Err(_) if shared.stopped() => return None,
            Err(error) => return Some(format!("sending: {error}")),
        }
    }
    let closed = stream.shutdown(Shutdown::Write);
    closed.err().map(|error| format!("closing: {error}"))
}

/// Receives and checks the pattern until the end.
fn receive(mut stream: TcpStream, amount: Amount, shared: &Shared, block: &[u8]) -> FlowReport {
    let (mut bytes, mut at) = (0u64, 0usize);
    let mut last = Instant::now();
    let mut buffer = vec![0u8; READ_BYTES];
    let mut samples = Vec::new();
    let mut pauses = Vec::new();
    let broken = loop {
        if shared.stopped() {
            break unfinished(amount, bytes, last);
        }
        match stream.read(&mut buffer) {
            // The other way's sender aborts at the stop, and may be the one that is told.
            Ok(0) if shared.stopped() => break unfinished(amount, bytes, last),
            Ok(0) => break early_end(amount, bytes),
            Ok(count) => {
                if !matches(&buffer[..count], block, at) {
                    break Some(format!("corrupted within {count} bytes after byte {bytes}"));
                }
                bytes += count as u64;
                at = (at + count) % block.len();
                let now = Instant::now();
                if now - last >= PAUSE_MIN && pauses.len() < PAUSES_MAX {
                    pauses.push((last - shared.begin, now - shared.begin));
                }
                last = now;
                let interval = shared.interval();
                if samples.len() <= interval {
                    samples.resize(interval + 1, 0);
                }
                samples[interval] += count as u64;
                shared.received.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if is_pause(&error) => {}
            // The sender aborts at the stop.
            Err(_) if shared.stopped() => break unfinished(amount, bytes, last),
            Err(error) => break Some(format!("receiving: {error}")),
        }
    };
    FlowReport {
        bytes,
        broken,
        samples,
        pauses,
    }
}

/// Whether `data` continues the repeated block from offset `at`.
fn matches(mut data: &[u8], block: &[u8], mut at: usize) -> bool {
    while !data.is_empty() {
        let length = data.len().min(block.len() - at);
        if data[..length] != block[at..at + length] {
            return false;
        }
        data = &data[length..];
        at = (at + length) % block.len();
    }
    true
}

/// What it means that the run was stopped from outside.
fn unfinished(amount: Amount, bytes: u64, last: Instant) -> Option<String> {
    match amount {
        Amount::Time(_) if last.elapsed() <= SILENCE_LIMIT => None,
        Amount::Time(_) => Some(format!("nothing arrived for {SILENCE_LIMIT:?} at the end")),
        Amount::Bytes { bytes: all, .. } => Some(format!("only {bytes} of {all} bytes in time")),
    }
}

/// What it means that the sender closed.
fn early_end(amount: Amount, bytes: u64) -> Option<String> {
    match amount {
        Amount::Bytes { bytes: all, .. } if bytes == all => None,
        Amount::Time(_) | Amount::Bytes { .. } => Some(format!("closed after {bytes} bytes")),
    }
}

/// Throughput of each interval until the stop flag, Mbit/s.
fn sample(shared: &Shared) -> Vec<f64> {
    let every = shared.sample;
    let mut samples = Vec::new();
    let (mut before, mut next) = (0, shared.begin + every);
    while !shared.stopped() && samples.len() < SAMPLES_MAX {
        let pause = next.saturating_duration_since(Instant::now());
        std::thread::sleep(pause.min(TICK));
        if Instant::now() >= next {
            let now = shared.received.load(Ordering::Relaxed);
            samples.push(mbit_per_second(now - before, every));
            before = now;
            next += every;
        }
    }
    samples
}

/// The repeated block: a multiplicative congruential sequence (Park and Miller 1988).
fn pattern() -> Vec<u8> {
    let mut state = 20_261_121_u64;
    let mut next = || {
        state = state * 48_271 % 0x7fff_ffff;
        state.to_le_bytes()[1]
    };
    (0..BLOCK_BYTES).map(|_| next()).collect()
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

fn panicked() -> Option<String> {
    Some(anyhow!("a traffic thread panicked").to_string())
}

/// Longest time to open a connection.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A timed connection that received nothing for so long before its end counts as broken.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// Default time between samples.
pub const SAMPLE: Duration = Duration::from_millis(250);

/// Shorter pauses than this are not noted.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Most pauses noted per connection.
const PAUSES_MAX: usize = 10_000;
/// What the kernel begins with unless it is more than what is asked for, bytes.
const WINDOW_FIRST: u64 = 131_072;
/// The sender may always queue so much, bytes.
const SEND_BUFFER_MIN: u64 = 4 << 20;
/// The largest prime below 2^16.
const BLOCK_BYTES: usize = 65_521;
const READ_BYTES: usize = 128 * 1024;
const TICK: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 64;
const SAMPLES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifted_missing_and_changed_bytes_are_seen() {
        let block = pattern();
        let twice: Vec<u8> = block.iter().chain(&block).copied().collect();
        assert!(matches(&twice[1_000..80_000], &block, 1_000));
        assert!(!matches(&twice[1_001..80_000], &block, 1_000));
        for lost in [1, 1_380, 1_448, 65_536] {
            let mut cut = twice.clone();
            cut.drain(10_000..10_000 + lost);
            assert!(!matches(&cut, &block, 0), "{lost} bytes lost");
        }
        let mut changed = twice.clone();
        changed[70_000] ^= 1;
        assert!(!matches(&changed, &block, 0));
    }
}
