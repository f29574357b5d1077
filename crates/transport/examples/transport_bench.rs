//! Times both sides of a QUIC sub-tunnel in memory, cryptography included, without any I/O.
//!
//! `cargo run --release -p ropewalk-transport --example transport_bench`

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use ropewalk_transport::{
    CongestionControl, Ecn, Endpoint, EndpointConfig, Event, Identity, SocketId,
};

const DATAGRAM: usize = 1_400;
const DATAGRAMS: u64 = 2_000_000;
/// Datagrams of one transmit, and of one buffer the receiver splits.
const SEGMENTS: usize = 10;
/// Datagrams timed together.
const CHUNK: u64 = 1_000;
/// One-way delay of the simulated wire.
const DELAY_NS: u64 = 50_000;

struct Side {
    endpoint: Endpoint,
    id: Option<ropewalk_transport::ConnectionId>,
    address: std::net::SocketAddr,
    spent: Duration,
}

fn side(byte: u8, hub: bool, base: Instant) -> Side {
    let mut config = EndpointConfig::new(Identity::from_seed([byte; 32]).expect("a seed"), base);
    if hub {
        config.allowed = Some(Arc::new(|_| true));
    }
    config.gso_segments_max = SEGMENTS;
    Side {
        endpoint: Endpoint::new(config).expect("a valid configuration"),
        id: None,
        address: format!("192.0.2.{byte}:1").parse().expect("an address"),
        spent: Duration::ZERO,
    }
}

/// Sends what `from` has to `to`; the number of datagrams delivered there.
fn exchange(
    now: ropewalk_types::Instant,
    from: &mut Side,
    to: &mut Side,
    buf: &mut Vec<u8>,
) -> u64 {
    let mut delivered = 0;
    let mut start = Instant::now();
    while let Some(id) = from.endpoint.poll_dirty() {
        while let Some(transmit) = from.endpoint.poll_transmit(now, id, buf) {
            from.spent += start.elapsed();
            // What the kernel does: copy into one buffer, as receive offload delivers it.
            let mut received = BytesMut::with_capacity(buf.len());
            received.extend_from_slice(buf);
            let arrived = Instant::now();
            let later = now + Duration::from_nanos(DELAY_NS);
            let segment = transmit.segment_size.unwrap_or(buf.len());
            while !received.is_empty() {
                let data = received.split_to(segment.min(received.len()));
                let from_ip = from.address;
                if let Some(id) = to.endpoint.handle_udp(
                    later,
                    SocketId::default(),
                    from_ip,
                    None,
                    Ecn::NotEct,
                    data,
                ) {
                    while let Some(datagram) = to.endpoint.receive(id) {
                        delivered += 1;
                        black_box(datagram);
                    }
                }
            }
            to.spent += arrived.elapsed();
            start = Instant::now();
        }
    }
    from.spent += start.elapsed();
    delivered
}

/// Times of chunks, in nanoseconds per datagram: sender, its part for ACKs, receiver.
#[derive(Default)]
struct Times {
    chunks: Vec<[f64; 3]>,
    acknowledging: Duration,
    chunk_start: u64,
}

impl Times {
    fn note(&mut self, delivered: u64, site: &mut Side, hub: &mut Side) {
        if delivered - self.chunk_start < CHUNK {
            return;
        }
        let count = (delivered - self.chunk_start) as f64;
        self.chunk_start = delivered;
        let times = [&mut site.spent, &mut self.acknowledging, &mut hub.spent];
        let times = times.map(|time| core::mem::take(time).as_secs_f64() * 1e9 / count);
        self.chunks.push(times);
    }

    /// Other programs take the processor now and then: the median chunk is about this one.
    fn median(&self, column: usize) -> f64 {
        let mut values: Vec<f64> = self.chunks.iter().map(|chunk| chunk[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}

/// Hands the site as much as its path takes.
fn offer(now: ropewalk_types::Instant, site: &mut Side, payload: &Bytes) {
    let start = Instant::now();
    if let Some(id) = site.id
        && let Some(snapshot) = site.endpoint.snapshot(now, id)
    {
        let mut left = snapshot.free;
        while left >= DATAGRAM as u64 && snapshot.max_datagram >= DATAGRAM {
            site.endpoint
                .send(id, payload.clone())
                .expect("free was asked for");
            left -= DATAGRAM as u64;
        }
    }
    site.spent += start.elapsed();
}

fn main() {
    let base = Instant::now();
    let (mut site, mut hub) = (side(1, false, base), side(2, true, base));
    let key = Identity::from_seed([2; 32]).expect("a seed").public_key();
    let mut now = ropewalk_types::Instant::from_millis(1);
    let congestion = CongestionControl::Bdp;
    let id = site
        .endpoint
        .connect(now, hub.address, key, congestion)
        .expect("an address");
    let mut buf = Vec::with_capacity(SEGMENTS * 1_500);
    let payload = Bytes::from(vec![0x5a; DATAGRAM]);
    let (mut delivered, mut times) = (0, Times::default());
    while delivered < DATAGRAMS {
        while let Some((_, event)) = site.endpoint.poll_event() {
            assert!(matches!(event, Event::Connected { .. }), "{event:?}");
            site.id = Some(id);
            (site.spent, hub.spent) = (Duration::ZERO, Duration::ZERO);
        }
        while hub.endpoint.poll_event().is_some() {}
        offer(now, &mut site, &payload);
        delivered += exchange(now, &mut site, &mut hub, &mut buf);
        now += Duration::from_nanos(DELAY_NS);
        let before = site.spent;
        exchange(now, &mut hub, &mut site, &mut buf);
        times.acknowledging += site.spent - before;
        times.note(delivered, &mut site, &mut hub);
        for side in [&mut site, &mut hub] {
            let start = Instant::now();
            if side.endpoint.poll_timeout().is_some_and(|at| at <= now) {
                side.endpoint.handle_timeout(now);
            }
            side.spent += start.elapsed();
        }
    }
    println!("{delivered} datagrams of {DATAGRAM} bytes, {SEGMENTS} per transmit");
    let (sender, acks, receiver) = (times.median(0), times.median(1), times.median(2));
    println!("sender   {sender:6.0} ns per datagram, of which {acks:.0} for ACKs");
    println!("receiver {receiver:6.0} ns per datagram");
    let counters = site.endpoint.counters(id).expect("connected");
    println!(
        "lost {}, ACK packets {}",
        counters.lost_packets, counters.received_datagrams
    );
}
