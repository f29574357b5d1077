//! How often a tunnel asks the allocator for memory while packets pass: not per packet. Reports, announcements
//! and tables that grow are left, each for many packets.

use std::sync::Arc;

use bytes::BytesMut;
use ropewalk_core::path::PathConfig;
use ropewalk_core::protect::Classes;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Outgoing, Tunnel, TunnelConfig};
use ropewalk_tally::tally;
use ropewalk_types::{Duration, Ecn, Instant, PathId, PathSnapshot, Rate};
use ropewalk_wire::HEADROOM;

#[global_allocator]
static ALLOCATOR: ropewalk_tally::Counting = ropewalk_tally::Counting;

const PATHS: u8 = 2;
/// Packets that pass before anything is counted, and those that count.
const WARM_UP: u32 = 10_000;
const PACKETS: u32 = 10_000;
/// Flows that take turns.
const FLOWS: u32 = 20;
/// Packets in a batch, and time between two batches: 100 Mbit/s.
const BATCH: u32 = 10;
const INTERVAL: Duration = Duration::from_micros(1_000);

struct Ends {
    now: Instant,
    /// The tunnel that packets enter, and the one that they leave.
    ends: [Tunnel; 2],
    out: Vec<Outgoing>,
    delivered: u32,
    /// Requests of each end to the allocator.
    allocations: [u64; 2],
}

fn tunnel(seed: u64) -> Tunnel {
    let config = TunnelConfig {
        scheduler: SchedulerKind::default(),
        probe_interval: None,
        classes: Arc::new(Classes::default()),
        hold: Default::default(),
        send: Default::default(),
    };
    let mut tunnel = Tunnel::new(config, seed);
    for path in 0..PATHS {
        tunnel.add_path(Instant::ZERO, PathId(path), PathConfig::default());
    }
    tunnel
}

/// A packet over IPv4 with the headers of UDP, or of TCP.
fn packet(number: u32, tcp: bool) -> BytesMut {
    let (flow, length) = (number % FLOWS, 1_000_u16);
    let mut data = BytesMut::zeroed(HEADROOM + usize::from(length));
    let ip = &mut data[HEADROOM..];
    (ip[0], ip[8], ip[9]) = (0x45, 64, if tcp { 6 } else { 17 });
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    ip[20..22].copy_from_slice(&(flow as u16).to_be_bytes());
    ip[22..24].copy_from_slice(&443_u16.to_be_bytes());
    if tcp {
        let sequence = number / FLOWS * (u32::from(length) - 40);
        ip[24..28].copy_from_slice(&sequence.to_be_bytes());
        (ip[32], ip[33], ip[35]) = (0x50, 0x10, 0xff);
    } else {
        ip[24..26].copy_from_slice(&(length - 20).to_be_bytes());
    }
    // As the reader of the interface gives it: a part of memory that it shares with others.
    drop(data.split_off(data.len()));
    data
}

impl Ends {
    fn new() -> Self {
        Self {
            now: Instant::from_millis(1_000),
            ends: [tunnel(1), tunnel(2)],
            out: Vec::with_capacity(1_000),
            delivered: 0,
            allocations: [0; 2],
        }
    }

    fn counted<T>(&mut self, end: usize, work: impl FnOnce(&mut Tunnel) -> T) -> T {
        let before = tally().allocations;
        let result = work(&mut self.ends[end]);
        self.allocations[end] += tally().allocations - before;
        result
    }

    /// What one end sends reaches the other at once.
    fn send(&mut self, from: usize) {
        let now = self.now;
        let mut out = std::mem::take(&mut self.out);
        for path in 0..PATHS {
            let snapshot = PathSnapshot {
                srtt: Duration::from_millis(20),
                min_rtt: Duration::from_millis(20),
                cwnd: 256 << 10,
                free: 64 << 10,
                rate: Rate::from_bits_per_sec(100_000_000),
                max_datagram: 1_446,
                ..PathSnapshot::default()
            };
            self.counted(from, |tunnel| {
                tunnel.update_path(now, PathId(path), snapshot);
            });
        }
        while self.counted(from, |tunnel| tunnel.poll_transmit(now, &mut out, 64)) > 0 {}
        for Outgoing { path, datagram, .. } in out.drain(..) {
            // As a transport delivers it: in memory of its own.
            let data = BytesMut::from(&datagram[..]).freeze();
            drop(datagram);
            self.counted(1 - from, |tunnel| {
                tunnel.handle_datagram(now, path, Ecn::NotEct, data);
            });
        }
        self.out = out;
        self.counted(1 - from, |tunnel| {
            if tunnel.poll_timeout().is_some_and(|at| at <= now) {
                tunnel.handle_timeout(now);
            }
            tunnel.end_batch(now);
        });
        while self
            .counted(1 - from, |tunnel| tunnel.poll_inner())
            .is_some()
        {
            self.delivered += 1;
        }
    }

    fn pass(&mut self, numbers: core::ops::Range<u32>, tcp: bool) {
        for number in numbers {
            let (now, data) = (self.now, packet(number, tcp));
            self.counted(0, |tunnel| tunnel.handle_inner(now, data, false));
            if number % BATCH == BATCH - 1 {
                self.send(0);
                self.send(1);
                self.now += INTERVAL;
            }
        }
    }
}

/// Requests to the allocator for a packet at the end that it enters, and at the one that it leaves.
fn allocations(tcp: bool) -> [f64; 2] {
    let mut ends = Ends::new();
    ends.pass(0..WARM_UP, tcp);
    ends.allocations = [0; 2];
    ends.delivered = 0;
    ends.pass(WARM_UP..WARM_UP + PACKETS, tcp);
    assert_eq!(ends.delivered, PACKETS);
    ends.allocations.map(|n| n as f64 / f64::from(PACKETS))
}

#[test]
fn packets_pass_a_warm_tunnel_almost_without_the_allocator() {
    for tcp in [false, true] {
        let [enter, leave] = allocations(tcp);
        println!("tcp {tcp}: {enter:.3} for a packet that enters, {leave:.3} for one that leaves");
        assert!(enter < 0.05, "{enter}");
        assert!(leave < 0.05, "{leave}");
    }
}
