//! A tunnel whose peer says anything: datagrams, reports, NACKs and repair symbols of all kinds,
//! while time passes and paths come and go.

pub(crate) mod datagram;

use crate::input::Input;
use bytes::{Bytes, BytesMut};
use ropewalk_core::path::PathConfig;
use ropewalk_core::protect::{Class, Classes, Protection, Rule};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Outgoing, Tunnel, TunnelConfig};
use ropewalk_types::{Duration, Ecn, Instant, PathId, PathSnapshot, Rate};
use ropewalk_wire::{Datagram, HEADROOM};
use std::sync::Arc;

/// Paths there may be, one of them never added at first.
const PATHS: u8 = 5;
/// Datagrams of the tunnel's own that are kept for being heard again.
const OWN_MAX: usize = 64;
/// Calls in which everything that can go now has gone.
const ROUNDS_MAX: usize = 10_000;
/// Times that the tunnel may want to be looked at again within one instant.
const LOOKS_MAX: usize = 4;
/// Shortest datagram that a path takes.
const DATAGRAM_MIN: usize = 540;

/// Takes the input for what happens to a tunnel, operation by operation. It keeps within its
/// bounds, wants nothing without end, and sends datagrams that parse, fit their path, and are for
/// paths there are.
///
/// # Panics
/// When it does not.
pub fn feedback(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
        world.check();
    }
    world.turn();
    for _ in 0..3 {
        world.now += Duration::from_secs(2);
        world.turn();
    }
    world.check();
}

struct World {
    now: Instant,
    tunnel: Tunnel,
    snapshots: Vec<PathSnapshot>,
    own: Vec<Bytes>,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let config = TunnelConfig {
            scheduler: kind(input),
            probe_interval: input.flag().then_some(Duration::from_secs(10)),
            classes: Arc::new(classes()),
            hold: Default::default(),
            send: Default::default(),
        };
        let mut world = Self {
            now: Instant::from_millis(1),
            tunnel: Tunnel::new(config, 1),
            snapshots: vec![PathSnapshot::default(); usize::from(PATHS)],
            own: Vec::new(),
        };
        for path in 0..PATHS - 1 {
            let config = PathConfig::default();
            world.tunnel.add_path(world.now, PathId(path), config);
        }
        world
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.u8() % 22 {
            0 => self.now += Duration::from_micros(u64::from(input.u16()) * 16),
            1 => self.now += Duration::from_millis(u64::from(input.u16())),
            2 => {
                let length = usize::from(input.u8());
                let bytes = Bytes::copy_from_slice(input.bytes(length));
                self.hear(input, bytes);
            }
            3 => {
                let own = usize::from(input.u8()) % self.own.len().max(1);
                if let Some(bytes) = self.own.get(own).cloned() {
                    self.hear(input, bytes);
                }
            }
            4..=6 => {
                let heard = datagram::packets(now, input);
                self.hear_all(input, heard);
            }
            7 => self.hear_one(input, datagram::report),
            8 => self.hear_one(input, datagram::nack),
            9 => self.hear_one(input, datagram::repair_symbol),
            10 => {
                let path = path(input);
                self.tunnel.add_path(now, path, config(input));
            }
            11 => self.tunnel.remove_path(now, path(input)),
            12 => self.change(input),
            13..=15 => self.enter(input),
            16 => self.tunnel.set_scheduler(kind(input)),
            18 => self.hear_one(input, datagram::deadline_nack),
            19 => self.keep_rhythm(input),
            17 => match input.u8() % 8 {
                0 => self.tunnel.reset_exit(),
                1 => self.tunnel.ask_all_paths(),
                2 => self.tunnel.end_batch(now),
                3 => self.tunnel.handle_timeout(now),
                _ => self.tunnel.set_path_config(path(input), config(input)),
            },
            _ => self.turn(),
        }
    }

    fn hear_one(&mut self, input: &mut Input<'_>, make: fn(Instant, &mut Input<'_>) -> Vec<u8>) {
        let bytes = make(self.now, input);
        self.hear(input, bytes.into());
    }

    fn hear(&mut self, input: &mut Input<'_>, bytes: Bytes) {
        self.hear_all(input, vec![bytes]);
    }

    /// Datagrams come over a path, or over a connection that a path has left.
    fn hear_all(&mut self, input: &mut Input<'_>, datagrams: Vec<Bytes>) {
        let (path, how) = (path(input), input.u8());
        let ecn = Ecn::from_bits(how >> 6);
        for bytes in datagrams {
            let parsed = Datagram::parse(&bytes);
            let control = if how % 8 == 0 {
                self.tunnel.handle_straggler(self.now, path, ecn, bytes)
            } else {
                self.tunnel.handle_datagram(self.now, path, ecn, bytes)
            };
            let is_control = matches!(parsed, Ok(Datagram::Control(_)));
            assert_eq!(control.is_some(), is_control);
        }
    }

    /// Packets of a flow come at equal intervals; some do not.
    fn keep_rhythm(&mut self, input: &mut Input<'_>) {
        let (path, interval, lost) = (path(input), input.u8(), input.u8());
        let (flow, first) = (input.u16() % 4_096, input.u16());
        for n in 0..8 {
            self.now += Duration::from_millis(u64::from(interval % 80));
            if lost >> n & 1 == 0 {
                let packet = datagram::beat(self.now, flow, first.wrapping_add(n));
                self.tunnel
                    .handle_datagram(self.now, path, Ecn::NotEct, packet.into());
            }
            if interval >= 128 {
                self.turn();
            }
        }
    }

    /// The transport reports something else from now on.
    fn change(&mut self, input: &mut Input<'_>) {
        let path = path(input);
        let millis = |input: &mut Input<'_>| Duration::from_millis(u64::from(input.u8()) * 4);
        let snapshot = PathSnapshot {
            srtt: millis(input),
            rttvar: millis(input) / 4,
            min_rtt: millis(input),
            cwnd: u64::from(input.u16()) * 16,
            in_flight: u64::from(input.u16()) * 16,
            queued: u64::from(input.u8()) * 100,
            free: u64::from(input.u16()) * 16,
            next_credit: input.flag().then(|| self.now + millis(input)),
            rate: Rate::from_bits_per_sec(u64::from(input.u16()) * 10_000),
            max_datagram: DATAGRAM_MIN + usize::from(input.u16() % 2_000),
            silent_since: input.flag().then(|| self.now - millis(input)),
            ..PathSnapshot::default()
        };
        self.snapshots[path.index()] = snapshot;
    }

    /// Packets of a flow enter.
    fn enter(&mut self, input: &mut Input<'_>) {
        let (flow, count, length) = (input.u8(), input.u8() % 64, input.u16());
        for _ in 0..count {
            let length = usize::from(length % 12_000).max(40);
            let mut data = BytesMut::zeroed(HEADROOM + length);
            let ip = &mut data[HEADROOM..];
            (ip[0], ip[1]) = (0x45, flow >> 3);
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            ip[9] = if flow % 2 == 1 { 6 } else { 17 };
            (ip[20], ip[32]) = (flow, 0x50);
            self.tunnel.handle_inner(self.now, data, flow >= 128);
        }
    }

    /// What a gateway does when something has happened, until the tunnel wants nothing more now.
    fn turn(&mut self) {
        let now = self.now;
        for look in 0.. {
            if self.tunnel.poll_timeout().is_some_and(|at| at <= now) {
                self.tunnel.handle_timeout(now);
            }
            self.pump();
            self.tunnel.end_batch(now);
            while self.tunnel.poll_inner().is_some() {}
            if self.tunnel.poll_timeout().is_none_or(|at| at > now) {
                return;
            }
            assert!(
                look < LOOKS_MAX,
                "always due: {:?}",
                self.tunnel.footprint()
            );
        }
    }

    fn pump(&mut self) {
        let mut out = Vec::new();
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "there is always more to send");
            for (path, snapshot) in (0..).zip(&self.snapshots) {
                self.tunnel
                    .update_path(self.now, PathId(path), snapshot.clone());
            }
            if self.tunnel.poll_transmit(self.now, &mut out, 64) == 0 {
                return;
            }
            for outgoing in out.drain(..) {
                self.leave(outgoing);
            }
        }
    }

    fn leave(&mut self, outgoing: Outgoing) {
        let Outgoing { path, datagram, .. } = outgoing;
        assert!(self.tunnel.path_state(path).is_some());
        let parsed = Datagram::parse(&datagram);
        let is_control = matches!(parsed, Ok(Datagram::Control(_)));
        assert!(parsed.is_ok() && !is_control, "{parsed:?}: {datagram:x?}");
        let snapshot = &mut self.snapshots[path.index()];
        assert!(datagram.len() <= snapshot.max_datagram);
        snapshot.free = snapshot.free.saturating_sub(datagram.len() as u64);
        if self.own.len() < OWN_MAX {
            self.own.push(datagram);
        }
    }

    fn check(&self) {
        let kept = self.tunnel.footprint();
        assert_eq!(kept.excess(), None, "{kept:?}");
        let stats = self.tunnel.stats();
        let queue = stats.queue;
        let dropped = queue.dropped_codel + queue.dropped_full + queue.held_full + queue.held_old;
        let gone = queue.dequeued + dropped;
        assert_eq!(queue.enqueued, gone + kept.queued as u64);
        assert_eq!(queue.dequeued, stats.tx_packets);
        assert_eq!(kept.queued == 0, self.tunnel.queue_bytes() == 0);
        for path in 0..PATHS {
            let stats = self.tunnel.path_stats(PathId(path));
            assert!(stats.is_none_or(|stats| (0.0..=1.0).contains(&stats.loss)));
        }
    }
}

fn path(input: &mut Input<'_>) -> PathId {
    PathId(input.u8() % PATHS)
}

pub(crate) fn kind(input: &mut Input<'_>) -> SchedulerKind {
    let kinds = SchedulerKind::ALL;
    kinds[usize::from(input.u8()) % kinds.len()]
}

/// A class for each protection, by codepoint.
pub(crate) fn classes() -> Classes {
    let class = |(dscp, protection): (u8, Protection)| Class {
        rule: Rule {
            dscp: vec![dscp],
            ..Rule::default()
        },
        protection,
        copies: 2 + usize::from(dscp),
        ..Class::default()
    };
    Classes::new(Class::default(), (1..).zip(Protection::ALL).map(class))
}

fn config(input: &mut Input<'_>) -> PathConfig {
    let marks = input.u8();
    PathConfig {
        standby: marks & 1 != 0,
        metered: marks & 2 != 0,
        bottleneck: (marks & 16 != 0).then_some(1),
        weight: (marks & 4 != 0).then(|| 1 + u16::from(marks)),
        protection_hourly: (marks & 8 != 0).then(|| u64::from(marks) << 10),
    }
}
