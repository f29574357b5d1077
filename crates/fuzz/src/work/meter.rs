//! A real tunnel between its host and a peer that is up to something, and what the peer's bytes cost it.

use super::bounds::{self, Cost};
use bytes::{Bytes, BytesMut};
use ropewalk_core::path::PathConfig;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Tunnel, TunnelConfig};
use ropewalk_tally::tally;
use ropewalk_types::{Duration, Ecn, Instant, PathId, PathSnapshot, Rate, steps};
use ropewalk_wire::{Datagram, HEADROOM};
use std::sync::Arc;

/// Paths of the tunnel.
pub const PATHS: u8 = 4;
/// What a datagram costs its sender besides its bytes: IPv4, UDP, QUIC's header and tag.
const WIRE_BYTES: u64 = 58;
/// What a path takes at most in one turn, bytes: about what a window of a link of 100 Mbit/s and 20 ms lets through.
const FREE_BYTES: u64 = 256 << 10;
/// Datagrams that leave in one go.
const BATCH: usize = 64;
/// Times that the tunnel is asked for more in one turn.
const ROUNDS_MAX: usize = 10_000;

/// The tunnel, with everything counted that it does.
pub struct Meter {
    /// Time of the world.
    pub now: Instant,
    tunnel: Tunnel,
    snapshot: PathSnapshot,
    /// What the allocator had given when nothing had happened yet.
    live_before: i64,
    cost: Cost,
}

impl Meter {
    /// A tunnel whose paths are up, and a time at which nothing has happened.
    #[must_use]
    pub fn new(scheduler: SchedulerKind) -> Self {
        let config = TunnelConfig {
            scheduler,
            probe_interval: None,
            classes: Arc::new(crate::feedback::classes()),
            hold: Default::default(),
            send: Default::default(),
        };
        let mut meter = Self {
            now: Instant::from_millis(1_000),
            tunnel: Tunnel::new(config, 1),
            snapshot: PathSnapshot {
                srtt: Duration::from_millis(20),
                min_rtt: Duration::from_millis(20),
                cwnd: FREE_BYTES,
                free: FREE_BYTES,
                rate: Rate::from_bits_per_sec(100_000_000),
                max_datagram: 1_446,
                ..PathSnapshot::default()
            },
            live_before: 0,
            cost: Cost::default(),
        };
        for path in 0..PATHS {
            let config = PathConfig::default();
            meter.tunnel.add_path(meter.now, PathId(path), config);
        }
        meter.live_before = tally().live;
        meter
    }

    /// Does something with the tunnel, and counts what that costs.
    fn counted<T>(&mut self, work: impl FnOnce(&mut Tunnel) -> T) -> T {
        let (before, steps_before) = (tally(), steps());
        let result = work(&mut self.tunnel);
        let after = tally();
        self.cost.allocations += after.allocations - before.allocations;
        self.cost.allocated += after.bytes - before.bytes;
        self.cost.steps += steps() - steps_before;
        result
    }

    /// A datagram of the peer comes.
    pub fn hear(&mut self, path: PathId, datagram: Vec<u8>) {
        let (now, data) = (self.now, Bytes::from(datagram));
        self.cost.datagrams_in += 1;
        self.cost.bytes_in += data.len() as u64 + WIRE_BYTES;
        self.counted(|tunnel| tunnel.handle_datagram(now, path, Ecn::NotEct, data));
        self.note_places();
    }

    fn note_places(&mut self) {
        let places = self.tunnel.footprint().places as u64;
        self.cost.places_made += places.saturating_sub(self.cost.places);
        self.cost.places = places;
    }

    /// A packet of a host comes, that is for the peer.
    pub fn enter(&mut self, flow: u8, length: usize) {
        let mut data = BytesMut::zeroed(HEADROOM + length.max(40));
        let length = data.len() - HEADROOM;
        let ip = &mut data[HEADROOM..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&u16::try_from(length).unwrap_or(0).to_be_bytes());
        ip[9] = if flow % 2 == 1 { 6 } else { 17 };
        (ip[20], ip[32]) = (flow, 0x50);
        let now = self.now;
        self.cost.entered += 1;
        self.cost.entered_bytes += length as u64;
        self.counted(|tunnel| tunnel.handle_inner(now, data, false));
    }

    /// What a gateway does after it has read what came, until the tunnel wants nothing more now.
    pub fn turn(&mut self) {
        let now = self.now;
        self.cost.turns += 1;
        self.counted(|tunnel| {
            if tunnel.poll_timeout().is_some_and(|at| at <= now) {
                tunnel.handle_timeout(now);
            }
            tunnel.end_batch(now);
        });
        while let Some(inner) = self.counted(|tunnel| tunnel.poll_inner()) {
            drop(inner);
            self.cost.delivered += 1;
        }
        self.send();
        self.note_places();
    }

    fn send(&mut self) {
        let mut free = [FREE_BYTES; PATHS as usize];
        let mut out = Vec::with_capacity(4 * BATCH);
        let now = self.now;
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "there is always more to send");
            for path in 0..PATHS {
                let snapshot = PathSnapshot {
                    free: free[usize::from(path)],
                    ..self.snapshot.clone()
                };
                self.counted(|tunnel| tunnel.update_path(now, PathId(path), snapshot));
            }
            if self.counted(|tunnel| tunnel.poll_transmit(now, &mut out, BATCH)) == 0 {
                break;
            }
            for outgoing in out.drain(..) {
                let free = &mut free[outgoing.path.index()];
                *free = free.saturating_sub(outgoing.datagram.len() as u64);
                let bytes = outgoing.datagram.len() as u64 + WIRE_BYTES;
                self.cost.datagrams_out += 1;
                let is_data = matches!(
                    Datagram::parse(&outgoing.datagram),
                    Ok(Datagram::Data { .. } | Datagram::Fragment { .. } | Datagram::Coded { .. })
                );
                if is_data {
                    self.cost.data_out += bytes;
                } else {
                    self.cost.answers_out += bytes;
                }
            }
        }
    }

    /// Time passes.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        self.cost.time += time;
    }

    /// What all of this has cost so far.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let mut cost = self.cost;
        cost.retained = tally().live - self.live_before;
        cost
    }

    /// # Panics
    /// When the peer's bytes have cost more than they may.
    pub fn check(&self) {
        let kept = self.tunnel.footprint();
        assert_eq!(kept.excess(), None, "{kept:?}");
        bounds::check(&self.cost());
    }
}
