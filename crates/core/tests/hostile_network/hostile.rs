//! The network, and what happens on it.

use ropewalk_core::path::PathConfig;
use ropewalk_core::protect::{Class, Classes, Protection, Rule};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Tunnel, TunnelConfig};
use ropewalk_netem::{Change, DirectionConfig, LinkConfig, LossModel, Selector, Side};
use ropewalk_testkit::tunnels::{Message, TunnelEnd, id};
use ropewalk_testkit::{Machine, Outbound, Pair};
use ropewalk_types::{Duration, Ecn, Instant, PathSnapshot, Random, Rate};
use std::sync::Arc;

use crate::ledger::{FLOWS, Ledger};

/// Delay of packets that come seconds late, and its standard deviation.
const LATE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(700));

/// What the network does to the packets of one direction of one path, and what the transport that
/// sends them reports.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Share of packets that are lost, percent; all of them at 100.
    pub loss: u8,
    /// Share of packets that arrive more than once, percent.
    pub copies: u8,
    /// Share of packets that come seconds late, percent.
    pub stragglers: u8,
    /// One-way delay, milliseconds.
    pub delay: u16,
    /// Four standard deviations of the delay, milliseconds. Packets overtake each other.
    pub jitter: u16,
    /// Window of the transport, bytes.
    pub window: u32,
    /// Rate the transport reports, Mbit/s.
    pub rate: u16,
    /// Longest datagram, bytes.
    pub datagram: u16,
    /// Share of packets that arrive with a congestion mark, percent.
    pub marks: u8,
}

impl Weather {
    /// A good path.
    pub const FAIR: Self = Self {
        loss: 0,
        copies: 0,
        stragglers: 0,
        delay: 10,
        jitter: 0,
        window: 100_000,
        rate: 50,
        datagram: 1_400,
        marks: 0,
    };

    /// The links of a path: the usual one, and that of packets that come late.
    fn changes(&self) -> [Change; 2] {
        let jitter = Duration::from_millis(u64::from(self.jitter));
        let usual = Duration::from_millis(u64::from(self.delay)) + jitter / 2;
        [(usual, jitter / 4), LATE].map(|(delay, jitter)| Change {
            loss: Some(LossModel::Bernoulli(f64::from(self.loss) / 100.0)),
            delay: Some(delay),
            jitter: Some(jitter),
            ..Change::default()
        })
    }

    fn report(&self) -> PathSnapshot {
        let jitter = Duration::from_millis(u64::from(self.jitter));
        let min_rtt = 2 * Duration::from_millis(u64::from(self.delay));
        PathSnapshot {
            srtt: min_rtt + jitter,
            rttvar: jitter / 2,
            min_rtt,
            cwnd: u64::from(self.window),
            rate: Rate::from_bits_per_sec(u64::from(self.rate) * 1_000_000),
            max_datagram: usize::from(self.datagram),
            ..PathSnapshot::default()
        }
    }
}

/// What happens next.
#[derive(Clone, Debug)]
pub enum Step {
    /// So many packets of one flow and length enter at an end.
    Enter {
        end: Side,
        flow: u8,
        length: u16,
        packets: u8,
    },
    /// Time passes, milliseconds.
    Wait(u16),
    /// The network treats one direction of a path in another way from now on.
    Change {
        end: Side,
        path: usize,
        weather: Weather,
    },
    /// One end takes a path away.
    Remove { end: Side, path: usize },
    /// One end builds a new connection for a path; the other follows with what comes first.
    Renew { end: Side, path: usize },
    /// One end uses another scheduler.
    Switch { end: Side, kind: SchedulerKind },
    /// One end marks a path as standby, or no longer.
    Mark {
        end: Side,
        path: usize,
        standby: bool,
    },
}

/// An end whose network repeats packets, marks them, and keeps some for seconds. Each path has
/// two links.
struct End {
    end: TunnelEnd,
    weather: Vec<Weather>,
    random: Random,
}

impl End {
    fn percent(&mut self, share: u8) -> bool {
        self.random.next_u64() % 100 < u64::from(share)
    }

    fn scatter(&mut self, sent: &Outbound<Message>, out: &mut Vec<Outbound<Message>>) {
        let weather = self.weather[sent.link].clone();
        let mut copies = 1;
        if self.percent(weather.copies) {
            copies += 1 + usize::from(self.percent(30));
        }
        for _ in 0..copies {
            let mut sent = sent.clone();
            sent.link = 2 * sent.link + usize::from(self.percent(weather.stragglers));
            if sent.packet.is_datagram() && self.percent(weather.marks) {
                sent.packet.ecn = Ecn::Ce;
            }
            out.push(sent);
        }
    }
}

impl Machine for End {
    type Packet = Message;

    fn receive(&mut self, now: Instant, link: usize, packet: Message) {
        self.end.receive(now, link / 2, packet);
    }

    fn turn(&mut self, now: Instant, out: &mut Vec<Outbound<Message>>) {
        let mut sent = Vec::new();
        self.end.turn(now, &mut sent);
        for sent in &sent {
            self.scatter(sent, out);
        }
    }

    fn poll_timeout(&mut self) -> Option<Instant> {
        self.end.poll_timeout()
    }
}

/// Both ends and what is under way between them.
pub struct World {
    pair: Pair<End>,
    connections: u32,
    ledger: Ledger,
}

impl World {
    /// Both ends with all paths up; `weather` is that of each path, in both directions at first.
    pub fn new(seed: u64, kinds: [SchedulerKind; 2], weather: &[Weather]) -> Self {
        let mut random = Random::new(seed);
        let mut end = |kind, probes: bool| {
            let config = TunnelConfig {
                scheduler: kind,
                probe_interval: probes.then_some(Duration::from_secs(10)),
                classes: Arc::new(classes()),
                hold: Default::default(),
                send: Default::default(),
            };
            let reports = weather.iter().map(Weather::report).collect();
            End {
                end: TunnelEnd::new(config, random.next_u64(), reports),
                weather: weather.to_vec(),
                random: random.fork(),
            }
        };
        let (site, hub) = (end(kinds[0], true), end(kinds[1], false));
        let both = DirectionConfig {
            reorder: true,
            queue_packets_max: None,
            ..DirectionConfig::default()
        };
        let links = weather.iter().flat_map(Weather::changes).map(|change| {
            let [up, down] = [both.clone(), both.clone()].map(|both| both.with(&change));
            LinkConfig {
                seed: random.next_u64(),
                up,
                down,
                ..LinkConfig::default()
            }
        });
        let mut world = Self {
            pair: Pair::new(Instant::from_millis(1), site, hub, links),
            connections: 0,
            ledger: Ledger::default(),
        };
        for path in 0..weather.len() {
            world.connect(path);
        }
        world
    }

    /// Does one step; paths beyond those there are mean others.
    pub fn step(&mut self, step: &Step) {
        let now = self.pair.now();
        let paths = self.pair.links() / 2;
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
            } => self.change(end, path % paths, weather),
            Step::Remove { end, path } => self.end(end).disconnect(now, path % paths),
            Step::Renew { end, path } => {
                self.connections += 1;
                let connection = self.connections;
                self.end(end).connect(now, path % paths, connection);
            }
            Step::Switch { end, kind } => self.end(end).tunnel.set_scheduler(kind),
            Step::Mark { end, path, standby } => {
                let config = PathConfig {
                    standby,
                    ..PathConfig::default()
                };
                self.end(end)
                    .tunnel
                    .set_path_config(id(path % paths), config);
            }
        }
        self.run(Duration::ZERO);
    }

    /// Packets of one flow enter at once.
    pub fn enter(&mut self, end: Side, flow: u8, length: u16, packets: u8) {
        let now = self.pair.now();
        for _ in 0..packets {
            let data = self.ledger.enter(end, flow % FLOWS, length);
            self.end(end).tunnel.handle_inner(now, data, false);
        }
    }

    /// Every path is there and good from now on.
    pub fn heal(&mut self) {
        for path in 0..self.pair.links() / 2 {
            for side in Side::ALL {
                self.change(side, path, &Weather::FAIR);
            }
            let [a, b] = Side::ALL.map(|side| self.end(side).paths[path].connection);
            if a.is_none() || a != b {
                self.connect(path);
            }
        }
        self.run(Duration::ZERO);
    }

    /// Lets time pass. What comes out must be what entered, once.
    pub fn run(&mut self, time: Duration) {
        self.pair.run(time);
        for side in Side::ALL {
            for (_, data) in std::mem::take(&mut self.end(side).delivered) {
                self.ledger.leave(side, &data);
            }
        }
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
    pub fn tunnel(&mut self, end: Side) -> &Tunnel {
        &self.end(end).tunnel
    }

    /// Datagrams that both tunnels have sent.
    pub fn datagrams(&self) -> usize {
        self.pair.site.end.sent.len() + self.pair.hub.end.sent.len()
    }

    fn end(&mut self, side: Side) -> &mut TunnelEnd {
        &mut self.pair.sender(side).end
    }

    fn change(&mut self, side: Side, path: usize, weather: &Weather) {
        let [usual, late] = weather.changes();
        self.pair.change(2 * path, Selector::One(side), &usual);
        self.pair.change(2 * path + 1, Selector::One(side), &late);
        self.end(side).paths[path].report = weather.report();
        self.pair.sender(side).weather[path] = weather.clone();
    }

    /// A new connection that both ends know.
    fn connect(&mut self, path: usize) {
        let now = self.pair.now();
        self.connections += 1;
        let connection = self.connections;
        for side in Side::ALL {
            self.end(side).connect(now, path, connection);
        }
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
