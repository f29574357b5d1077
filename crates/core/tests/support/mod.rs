//! Two tunnels and a network between them that does what it likes, in virtual time.
//!
//! The network carries datagrams of connections: a path that goes and comes again is another
//! connection, as in a gateway, and what is under way on the old one arrives as a straggler.

mod lane;
mod packet;

pub use lane::Weather;
pub use packet::{FLOWS, LENGTH_MIN};

use bytes::Bytes;
use lane::Lane;
use packet::Ledger;
use ropewalk_core::path::PathConfig;
use ropewalk_core::protect::{Class, Classes, Protection, Rule};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Outgoing, Tunnel, TunnelConfig};
use ropewalk_types::{Duration, Ecn, Instant, PathId, Random};
use ropewalk_wire::Datagram;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a gateway reads a connection that another has replaced.
const DRAIN: Duration = Duration::from_secs(2);
/// Packets bound per call, as in a gateway.
const ROUND_PACKETS: usize = 64;
/// Calls in which everything that can go now has gone.
const ROUNDS_MAX: usize = 4_000;
/// Times that a tunnel may want to be looked at again within one instant.
const LOOKS_MAX: usize = 4;

/// What happens next.
#[derive(Clone, Debug)]
pub enum Step {
    /// So many packets of one flow and length enter at an end.
    Enter {
        end: usize,
        flow: u8,
        length: u16,
        packets: u8,
    },
    /// Time passes, milliseconds.
    Wait(u16),
    /// The network treats one direction of a path in another way from now on.
    Change {
        end: usize,
        path: usize,
        weather: Weather,
    },
    /// One end takes a path away.
    Remove { end: usize, path: usize },
    /// One end builds a new connection for a path; the other follows with what comes first.
    Renew { end: usize, path: usize },
    /// One end uses another scheduler.
    Switch { end: usize, kind: SchedulerKind },
    /// One end marks a path as standby, or no longer.
    Mark {
        end: usize,
        path: usize,
        standby: bool,
    },
}

/// A path as one end has it.
#[derive(Debug)]
struct PathAt {
    /// Connection in use, counted from 1.
    connection: Option<u32>,
    /// Connection before, and until when it is read.
    drained: Option<(u32, Instant)>,
    lane: Lane,
}

struct End {
    tunnel: Tunnel,
    paths: Vec<PathAt>,
}

struct Arriving {
    end: usize,
    path: usize,
    connection: u32,
    ecn: Ecn,
    datagram: Bytes,
}

/// Both ends and what is under way between them.
pub struct World {
    now: Instant,
    ends: [End; 2],
    network: BTreeMap<(Instant, u64), Arriving>,
    datagrams: u64,
    connections: u32,
    ledger: Ledger,
    random: Random,
    /// Instants at which something happened.
    pub turns: u64,
}

impl World {
    /// Both ends with all paths up; `weather` is that of each path, in both directions at first.
    pub fn new(seed: u64, kinds: [SchedulerKind; 2], weather: &[Weather]) -> Self {
        let mut random = Random::new(seed);
        let end = |kind, probes: bool, seed| End {
            tunnel: Tunnel::new(
                TunnelConfig {
                    scheduler: kind,
                    probe_interval: probes.then_some(Duration::from_secs(10)),
                    classes: Arc::new(classes()),
                    hold: Default::default(),
                },
                seed,
            ),
            paths: Vec::new(),
        };
        let ends = [
            end(kinds[0], true, random.next_u64()),
            end(kinds[1], false, random.next_u64()),
        ];
        let mut world = Self {
            now: Instant::from_millis(1),
            ends,
            network: BTreeMap::new(),
            datagrams: 0,
            connections: 0,
            ledger: Ledger::default(),
            random,
            turns: 0,
        };
        for (path, weather) in weather.iter().enumerate() {
            world.connections += 1;
            for end in &mut world.ends {
                end.paths.push(PathAt {
                    connection: None,
                    drained: None,
                    lane: Lane::new(weather.clone()),
                });
            }
            world.connect(0, path, world.connections);
            world.connect(1, path, world.connections);
        }
        world
    }

    /// Does one step; ends and paths beyond those there are mean others.
    pub fn step(&mut self, step: &Step) {
        let now = self.now;
        let paths = self.ends[0].paths.len();
        match *step {
            Step::Enter {
                end,
                flow,
                length,
                packets,
            } => self.enter(end, flow, length, packets),
            Step::Wait(ms) => self.run(Duration::from_millis(u64::from(ms))),
            Step::Change {
                end,
                path,
                ref weather,
            } => self.ends[end].paths[path % paths].lane.weather = weather.clone(),
            Step::Remove { end, path } => {
                let path = path % paths;
                let at = &mut self.ends[end].paths[path];
                (at.connection, at.drained) = (None, None);
                self.ends[end].tunnel.remove_path(now, id(path));
            }
            Step::Renew { end, path } => {
                self.connections += 1;
                self.connect(end, path % paths, self.connections);
            }
            Step::Switch { end, kind } => self.ends[end].tunnel.set_scheduler(kind),
            Step::Mark { end, path, standby } => {
                let config = PathConfig {
                    standby,
                    ..PathConfig::default()
                };
                let id = id(path % paths);
                self.ends[end].tunnel.set_path_config(id, config);
            }
        }
        self.serve();
    }

    /// Packets of one flow enter at once.
    pub fn enter(&mut self, end: usize, flow: u8, length: u16, packets: u8) {
        for _ in 0..packets {
            let data = self.ledger.enter(end, flow % FLOWS, length);
            self.ends[end].tunnel.handle_inner(self.now, data, false);
        }
    }

    /// Every path is there and good from now on.
    pub fn heal(&mut self) {
        for path in 0..self.ends[0].paths.len() {
            for end in &mut self.ends {
                end.paths[path].lane.weather = Weather::FAIR;
            }
            let [a, b] = [0, 1].map(|end| self.ends[end].paths[path].connection);
            if a.is_none() || a != b {
                self.connections += 1;
                self.connect(0, path, self.connections);
                self.connect(1, path, self.connections);
            }
        }
        self.serve();
    }

    /// Packets that have entered.
    pub fn entered(&self) -> usize {
        self.ledger.entered()
    }

    /// How many of the packets from `number` on have come out.
    pub fn left_since(&self, number: usize) -> usize {
        self.ledger.left_since(number)
    }

    /// The tunnel at an end.
    pub fn tunnel(&self, end: usize) -> &Tunnel {
        &self.ends[end].tunnel
    }

    fn connect(&mut self, end: usize, path: usize, connection: u32) {
        let at = &mut self.ends[end].paths[path];
        let old = at.connection.replace(connection);
        at.drained = old.map(|old| (old, self.now + DRAIN));
        at.lane.renew();
        let config = PathConfig::default();
        self.ends[end].tunnel.add_path(self.now, id(path), config);
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.serve();
        while let Some(next) = self.next().filter(|at| *at <= end) {
            assert!(next > self.now, "the past is over");
            self.now = next;
            self.serve();
        }
        self.now = end;
        self.serve();
    }

    fn next(&self) -> Option<Instant> {
        let arrival = self.network.first_key_value().map(|((at, _), _)| *at);
        let tunnels = self.ends.iter().filter_map(|end| end.tunnel.poll_timeout());
        let paths = self.ends.iter().flat_map(|end| &end.paths);
        let lanes = paths.filter_map(|path| path.lane.next());
        lanes.chain(tunnels).chain(arrival).min()
    }

    /// Everything that is due now happens.
    fn serve(&mut self) {
        self.turns += 1;
        while let Some(first) = self.network.first_entry()
            && first.key().0 <= self.now
        {
            let arriving = first.remove();
            self.arrive(arriving);
        }
        for end in 0..2 {
            for path in &mut self.ends[end].paths {
                path.lane.settle(self.now);
            }
            self.look(end);
        }
    }

    /// Looks after one end until it wants nothing more now.
    fn look(&mut self, end: usize) {
        let now = self.now;
        for look in 0.. {
            let tunnel = &mut self.ends[end].tunnel;
            if tunnel.poll_timeout().is_some_and(|at| at <= now) {
                tunnel.handle_timeout(now);
            }
            self.pump(end);
            let tunnel = &mut self.ends[end].tunnel;
            tunnel.end_batch(now);
            while let Some(inner) = tunnel.poll_inner() {
                self.ledger.leave(end, &inner.data);
            }
            let footprint = tunnel.footprint();
            assert_eq!(footprint.excess(), None, "{footprint:?}");
            let due = tunnel.poll_timeout();
            if due.is_none_or(|at| at > now) {
                return;
            }
            assert!(
                look < LOOKS_MAX,
                "due at {due:?}, it is {now:?}: {footprint:?}"
            );
        }
    }

    fn pump(&mut self, end: usize) {
        let mut out = Vec::new();
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "there is always more to send");
            self.refresh(end);
            let tunnel = &mut self.ends[end].tunnel;
            if tunnel.poll_transmit(self.now, &mut out, ROUND_PACKETS) == 0 {
                break;
            }
            for outgoing in out.drain(..) {
                self.send(end, &outgoing);
            }
        }
        self.refresh(end);
    }

    fn refresh(&mut self, end: usize) {
        let End { tunnel, paths } = &mut self.ends[end];
        for (index, path) in paths.iter().enumerate() {
            if path.connection.is_some() {
                tunnel.update_path(self.now, id(index), path.lane.snapshot());
            }
        }
    }

    fn send(&mut self, end: usize, outgoing: &Outgoing) {
        let parsed = Datagram::parse(&outgoing.datagram);
        assert!(parsed.is_ok(), "{parsed:?}: {outgoing:x?}");
        let path = outgoing.path.index();
        let at = &mut self.ends[end].paths[path];
        let connection = at.connection.expect("a datagram for a path there is");
        at.lane.send(self.now, outgoing.datagram.len());
        let weather = &at.lane.weather;
        for at in weather.arrivals(self.now, &mut self.random) {
            let marked = self.random.next_u64() % 100 < u64::from(weather.marks);
            self.datagrams += 1;
            let arriving = Arriving {
                end: 1 - end,
                path,
                connection,
                ecn: if marked { Ecn::Ce } else { Ecn::NotEct },
                datagram: outgoing.datagram.clone(),
            };
            self.network.insert((at, self.datagrams), arriving);
        }
    }

    fn arrive(&mut self, arriving: Arriving) {
        let Arriving {
            end,
            path,
            connection,
            ecn,
            datagram,
        } = arriving;
        let now = self.now;
        let at = &self.ends[end].paths[path];
        // A new connection of the other end speaks: this end follows.
        let newest = at.connection.max(at.drained.map(|drained| drained.0));
        if newest.is_some_and(|newest| newest < connection) {
            self.connect(end, path, connection);
        }
        let End { tunnel, paths } = &mut self.ends[end];
        let at = &paths[path];
        let read = at.drained.filter(|drained| drained.1 > now);
        let control = if at.connection == Some(connection) {
            tunnel.handle_datagram(now, id(path), ecn, datagram)
        } else if read.is_some_and(|drained| drained.0 == connection) {
            tunnel.handle_straggler(now, id(path), ecn, datagram)
        } else {
            None
        };
        assert_eq!(control, None, "nobody sent a message");
    }
}

/// A class for each protection: flows differ by their codepoint.
fn classes() -> Classes {
    let class = |(dscp, protection)| Class {
        rule: Rule {
            dscp: vec![dscp],
            ..Rule::default()
        },
        protection,
        ..Class::default()
    };
    Classes::new(Class::default(), (1..).zip(Protection::ALL).map(class))
}

fn id(path: usize) -> PathId {
    PathId(u8::try_from(path).expect("few paths"))
}
