//! A host's TCP sender and its receiver, with a freezer between and a network that loses, delays
//! and reorders. In any order of events the stream arrives whole.

mod hostile;

use super::segment::{ACK, Bare, FIN, RST, SYN, Segment, Template, before, write};
use super::*;
use proptest::prelude::*;
use ropewalk_types::Duration;
use ropewalk_types::checksum;

const SEGMENT: usize = 50;
const STREAM: usize = 2_000;
const SHIFT: u8 = 3;
const WINDOW: u32 = 800;
/// Bytes that the ingress takes from a sender that is acknowledged here.
const ROOM: u64 = 400;
/// What the host says of its own window, before scaling.
const HOST_WINDOW: u16 = 100;
/// The numbers of both ends wrap within the stream.
const HOST_START: u32 = u32::MAX - 500;
const PEER_START: u32 = u32::MAX - 1;

/// Packets of one end of a connection.
#[derive(Clone)]
struct End {
    v6: bool,
    flipped: bool,
}

impl End {
    fn template(&self) -> Template {
        let mut ip = if self.v6 {
            let mut ip = vec![0u8; 40];
            ip[0] = 0x60;
            ip[6] = 6;
            ip[7] = 64;
            ip[23] = 1 + u8::from(self.flipped);
            ip[39] = 2 - u8::from(self.flipped);
            ip
        } else {
            let mut ip = vec![0u8; 20];
            ip[0] = 0x45;
            ip[8] = 64;
            ip[9] = 6;
            ip[15] = 1 + u8::from(self.flipped);
            ip[19] = 2 - u8::from(self.flipped);
            ip
        };
        let length = if self.v6 { 20 } else { 40 };
        let at = if self.v6 { 5 } else { 3 };
        ip[at] = length;
        let mut ports = [0, 80, 16, 0];
        if self.flipped {
            ports.rotate_left(2);
        }
        ip.extend_from_slice(&ports);
        ip.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0x50, ACK, 0, 0, 0, 0, 0, 0]);
        Segment::parse(&ip).expect("a segment").template(&ip)
    }

    /// A segment with `data`; SYN with the option that scales windows.
    fn packet(&self, bare: Bare, data: &[u8]) -> Vec<u8> {
        let mut ip = write(&self.template(), bare);
        let fixed = if self.v6 { 40 } else { 20 };
        if bare.flags & SYN != 0 {
            ip.extend_from_slice(&[1, 3, 3, SHIFT]);
            ip[fixed + 12] += 0x10;
        }
        ip.extend_from_slice(data);
        let length = ip.len() as u16 - if self.v6 { 40 } else { 0 };
        let at = if self.v6 { 4 } else { 2 };
        ip[at..at + 2].copy_from_slice(&length.to_be_bytes());
        if !self.v6 {
            ip[10..12].fill(0);
            let sum = checksum::fold(checksum::add(0, &ip[..20]));
            ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
        }
        ip[fixed + 16..fixed + 18].fill(0);
        let sum = !tcp_sum(&ip);
        ip[fixed + 16..fixed + 18].copy_from_slice(&sum.to_be_bytes());
        ip
    }
}

/// Sum over pseudo-header and segment: all ones when the checksum is right.
fn tcp_sum(ip: &[u8]) -> u16 {
    let fixed = PacketInfo::parse(ip).expect("a packet").transport_offset;
    let addresses = if fixed == 20 { &ip[12..20] } else { &ip[8..40] };
    let sum = checksum::add(6 + (ip.len() - fixed) as u32, addresses);
    checksum::fold(checksum::add(sum, &ip[fixed..]))
}

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Send,
    Timer,
    Deliver(usize),
    Lose(usize),
    DeliverAck(usize),
    LoseAck(usize),
    /// The receiver sends something itself.
    Reply,
    Announce,
    Down,
    Back,
    Wait(u64),
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Send),
        2 => Just(Event::Timer),
        5 => (0..8usize).prop_map(Event::Deliver),
        1 => (0..8usize).prop_map(Event::Lose),
        5 => (0..8usize).prop_map(Event::DeliverAck),
        1 => (0..8usize).prop_map(Event::LoseAck),
        2 => Just(Event::Reply),
        1 => Just(Event::Announce),
        1 => Just(Event::Down),
        1 => Just(Event::Back),
        2 => (1..800u64).prop_map(Event::Wait),
    ]
}

struct World {
    now: Instant,
    freezer: Freezer,
    host: End,
    peer: End,
    down: bool,
    /// Under way in the tunnel, or held in front of it.
    data: Vec<Vec<u8>>,
    acks: Vec<Vec<u8>>,
    // The sender.
    una: usize,
    sent: usize,
    window: usize,
    window_seq: u32,
    // The receiver.
    got: Vec<u8>,
    early: std::collections::BTreeMap<usize, Vec<u8>>,
    /// Timestamp below which it drops segments.
    time: u32,
    reset: bool,
    /// What the receiver sends itself: acknowledged to it, sent by it, got by the host.
    replied: [u32; 3],
}

impl World {
    fn new(mode: Freeze, v6: bool) -> Self {
        let limits = Limits {
            freeze: mode,
            ..Limits::default()
        };
        Self::with(limits, false, v6)
    }

    fn with(limits: Limits, accelerate: bool, v6: bool) -> Self {
        let mut world = Self {
            now: Instant::from_millis(1),
            freezer: Freezer::new(limits, accelerate),
            host: End { v6, flipped: false },
            peer: End { v6, flipped: true },
            down: false,
            data: Vec::new(),
            acks: Vec::new(),
            una: 0,
            sent: 0,
            window: WINDOW as usize,
            window_seq: PEER_START.wrapping_add(1),
            got: Vec::new(),
            early: Default::default(),
            time: 0,
            reset: false,
            replied: [PEER_START.wrapping_add(1); 3],
        };
        let syn = |seq, ack, flags| Bare {
            seq,
            ack,
            window: WINDOW as u16,
            flags,
            timestamps: None,
        };
        let opening = world.host.packet(syn(HOST_START, 0, SYN), &[]);
        world.enter(opening);
        world.data.clear();
        let ack = HOST_START.wrapping_add(1);
        let answer = world.peer.packet(syn(PEER_START, ack, SYN), &[]);
        let inner = world.leave(answer).expect("the opening");
        assert!(Segment::parse(&inner).is_some_and(|s| s.window == WINDOW as u16));
        world
    }

    const fn host_seq(at: usize) -> u32 {
        HOST_START.wrapping_add(1).wrapping_add(at as u32)
    }

    /// The host's packet goes into the tunnel.
    fn enter(&mut self, packet: Vec<u8>) {
        let info = PacketInfo::parse(&packet).expect("a packet");
        let taken = self
            .freezer
            .on_ingress(self.now, (&packet, 0), &info, false, self.down);
        if taken != Taken::Answered {
            self.data.push(packet);
        }
        if !self.down {
            // Now and then others fill the bucket.
            let share = if self.now.as_nanos().is_multiple_of(3) {
                0
            } else {
                ROOM
            };
            self.freezer.settle(self.now, share, |_| 0);
        }
        self.hear();
    }

    /// A packet comes out of it, if it says anything.
    fn leave(&mut self, packet: Vec<u8>) -> Option<Bytes> {
        let mut inner = Inner::whole(Bytes::from(packet), false);
        let says = self.freezer.on_egress(self.now, &mut inner, |_| 0);
        says.then_some(inner.data)
    }

    /// The host gets what the freezer wrote.
    fn hear(&mut self) {
        while let Some(inner) = self.freezer.poll() {
            self.host_gets(&inner.data);
        }
    }

    fn host_gets(&mut self, ip: &[u8]) {
        assert_eq!(tcp_sum(ip), u16::MAX, "checksum of {ip:?}");
        let segment = Segment::parse(ip).expect("a segment");
        if segment.has(RST) {
            self.reset = true;
            return;
        }
        let ack = segment.ack.wrapping_sub(Self::host_seq(0)) as usize;
        if ack > self.sent {
            // From before what has been acknowledged.
            assert!(before(segment.ack, Self::host_seq(self.una)), "{ack}");
            return;
        }
        if ack < self.una {
            return;
        }
        let window = usize::from(segment.window) << SHIFT;
        let fresh = ack > self.una || before(self.window_seq, segment.seq);
        if fresh || segment.seq == self.window_seq && (window > self.window || window == 0) {
            self.window = window;
            self.window_seq = segment.seq;
        }
        self.una = ack;
        self.host_takes(&segment);
    }

    /// The host acknowledges what the receiver sends itself, in order.
    fn host_takes(&mut self, segment: &Segment) {
        if segment.len() == 0 {
            return;
        }
        if segment.seq == self.replied[2] {
            self.replied[2] = segment.seq_end();
        }
        let packet = self.segment(self.sent, 0);
        self.enter(packet);
    }

    fn segment(&self, at: usize, length: usize) -> Vec<u8> {
        let data: Vec<u8> = (at..at + length).map(byte).collect();
        let bare = Bare {
            seq: Self::host_seq(at),
            ack: self.replied[2],
            window: HOST_WINDOW,
            flags: 0,
            timestamps: Some(((self.now.as_nanos() / 1_000_000) as u32, 1)),
        };
        self.host.packet(bare, &data)
    }

    fn send(&mut self) {
        let end = (self.sent + SEGMENT)
            .min(STREAM)
            .min(self.una + self.window);
        if end > self.sent {
            let packet = self.segment(self.sent, end - self.sent);
            self.sent = end;
            self.enter(packet);
        }
    }

    fn timer(&mut self) {
        let packet = if self.sent > self.una {
            self.segment(self.una, SEGMENT.min(self.sent - self.una))
        } else if self.window == 0 {
            // A probe of the window: the byte before the next one, without data.
            let mut probe = self.segment(self.una, 0);
            probe = self.host.packet(
                Bare {
                    seq: Self::host_seq(self.una).wrapping_sub(1),
                    ack: Segment::parse(&probe).expect("a segment").ack,
                    window: HOST_WINDOW,
                    flags: 0,
                    timestamps: None,
                },
                &[],
            );
            probe
        } else {
            return;
        };
        self.enter(packet);
    }

    /// The receiver gets a packet and answers.
    fn peer_gets(&mut self, ip: &[u8]) {
        assert_eq!(tcp_sum(ip), u16::MAX);
        let segment = Segment::parse(ip).expect("a segment");
        // RFC 5961 §5.2: what acknowledges less than a window before is taken for an attack.
        let oldest = self.replied[0].wrapping_sub(u32::from(HOST_WINDOW) << SHIFT);
        if before(segment.ack, oldest) {
            self.answer(&[]);
            return;
        }
        if before(self.replied[0], segment.ack) {
            self.replied[0] = segment.ack;
        }
        let at = segment.seq.wrapping_sub(Self::host_seq(0)) as usize;
        // RFC 7323 §5.3: what is older than the newest in order is dropped, whatever it holds.
        let time = segment.timestamps(ip).map_or(self.time, |(value, _)| value);
        let fresh = time >= self.time;
        if fresh && at <= self.got.len() {
            self.time = time;
        }
        if fresh && at < STREAM {
            let data = ip[ip.len() - segment.len()..].to_vec();
            self.early.insert(at, data);
        }
        while let Some((&at, data)) = self.early.range(..=self.got.len()).next_back() {
            let fresh = data.get(self.got.len() - at..).unwrap_or(&[]).to_vec();
            if fresh.is_empty() {
                break;
            }
            self.got.extend(fresh);
        }
        if segment.len() > 0 || at < self.got.len() {
            self.answer(&[]);
        }
    }

    /// The receiver acknowledges what it has got.
    fn answer(&mut self, data: &[u8]) {
        let bare = Bare {
            seq: self.replied[1],
            ack: Self::host_seq(self.got.len()),
            window: (WINDOW >> SHIFT) as u16,
            flags: 0,
            timestamps: Some((1, 1)),
        };
        let mut answer = self.peer.packet(bare, data);
        // What it has beyond a hole, once it has more than one segment there.
        let early = self.early.range(self.got.len() + 1..).next();
        if let Some((&at, early)) = early.filter(|_| data.is_empty() && !self.peer.v6) {
            let end = at + early.len();
            answer = selective(&answer, Self::host_seq(at), Self::host_seq(end));
        }
        self.acks.push(answer);
    }

    /// The receiver sends what the host's window allows, or again what was not acknowledged.
    fn reply(&mut self) {
        let window = u32::from(HOST_WINDOW) << SHIFT;
        let edge = self.replied[0].wrapping_add(window);
        let next = self.replied[1];
        let end = next.wrapping_add(SEGMENT as u32);
        if before(edge, end) {
            self.replied[1] = self.replied[0];
        }
        self.answer(&[7; SEGMENT]);
        self.replied[1] = self.replied[1].wrapping_add(SEGMENT as u32);
        if before(self.replied[1], next) {
            self.replied[1] = next;
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        let outlook = if self.down {
            Outlook::Down
        } else {
            Outlook::Unclear
        };
        self.freezer.follow(self.now, outlook);
        if !self.down {
            let mut again = Vec::new();
            self.freezer.handle_timeout(self.now, &mut again);
            self.data
                .extend(again.into_iter().map(|(packet, _)| packet.to_vec()));
        }
        self.hear();
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Send => self.send(),
            Event::Timer => self.timer(),
            Event::Deliver(nth) if !self.down && !self.data.is_empty() => {
                let packet = self.data.remove(nth % self.data.len());
                self.peer_gets(&packet);
            }
            Event::Lose(nth) if !self.data.is_empty() => {
                self.data.remove(nth % self.data.len());
            }
            Event::DeliverAck(nth) if !self.down && !self.acks.is_empty() => {
                let packet = self.acks.remove(nth % self.acks.len());
                if let Some(packet) = self.leave(packet) {
                    self.host_gets(&packet);
                }
            }
            Event::LoseAck(nth) if !self.acks.is_empty() => {
                self.acks.remove(nth % self.acks.len());
            }
            Event::Reply => self.reply(),
            Event::Announce if !self.down => {
                self.freezer.follow(self.now, Outlook::Ending);
            }
            Event::Down if !self.down => {
                self.down = true;
                self.freezer.on_down();
                self.hear();
            }
            Event::Back if self.down => {
                self.down = false;
                self.freezer.on_back(self.now);
                self.hear();
            }
            Event::Wait(ms) => self.wait(ms),
            // There is nothing to deliver or lose, or it is so already.
            Event::Deliver(_)
            | Event::Lose(_)
            | Event::DeliverAck(_)
            | Event::LoseAck(_)
            | Event::Announce
            | Event::Down
            | Event::Back => {}
        }
    }

    /// From now on nothing is lost; how long it takes until all has arrived and is
    /// acknowledged at both ends.
    fn finish(&mut self) -> usize {
        self.step(Event::Back);
        for round in 0..2_000 {
            let arrived = self.una == STREAM && self.got.len() == STREAM;
            if arrived && self.freezer.proxy_ack_bytes() == 0 {
                return round;
            }
            for event in [
                Event::Send,
                Event::Deliver(0),
                Event::DeliverAck(0),
                Event::Deliver(0),
                Event::DeliverAck(0),
            ] {
                self.step(event);
            }
            if self.data.is_empty() && self.acks.is_empty() {
                self.step(Event::Timer);
            }
            self.step(Event::Wait(50));
        }
        2_000
    }
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order_whatever_happens(
        mode in prop_oneof![Just(Freeze::Off), Just(Freeze::Planned), Just(Freeze::ProxyAck)],
        accelerate: bool,
        v6: bool,
        events in prop::collection::vec(events(), 0..300),
    ) {
        // The events may go on for minutes without delivering anything: nobody is to be reset for that.
        let limits = Limits {
            freeze: mode,
            tcp_age_max: Duration::from_secs(3_600),
            ..Limits::default()
        };
        let mut world = World::with(limits, accelerate, v6);
        for event in events {
            world.step(event);
            prop_assert!(!world.reset);
            // Only TCP proxy acknowledgement says more than the receiver.
            let ahead = world.una.saturating_sub(world.got.len());
            prop_assert!(ahead == 0 || accelerate || mode == Freeze::ProxyAck);
            prop_assert!(world.freezer.proxy_ack_bytes() >= ahead as u64);
        }
        let rounds = world.finish();
        prop_assert!(!world.reset);
        prop_assert_eq!(world.got.len(), STREAM, "{} rounds", rounds);
        prop_assert_eq!(world.una, STREAM);
        prop_assert!(world.got.iter().enumerate().all(|(at, &found)| found == byte(at)));
        prop_assert_eq!(world.freezer.proxy_ack_bytes(), 0, "all is acknowledged");
    }
}

/// A sender with a full window under way, all of which has arrived and been acknowledged but for the
/// last `open` segments.
fn under_way(mode: Freeze, open: usize) -> World {
    let mut world = World::new(mode, false);
    for _ in 0..16 {
        world.step(Event::Send);
    }
    while world.data.len() > open {
        world.step(Event::Deliver(0));
        world.step(Event::DeliverAck(0));
    }
    world
}

#[test]
fn an_announced_end_stops_the_sender_and_the_return_lets_it_go_with_the_true_window() {
    let mut world = under_way(Freeze::Planned, 4);
    assert_eq!(world.window, WINDOW as usize);
    world.step(Event::Announce);
    world.step(Event::Deliver(0));
    world.step(Event::DeliverAck(0));
    assert_eq!(world.window, 0);
    assert_eq!(world.una, world.got.len(), "acknowledged by the receiver");
    let sent = world.sent;
    world.step(Event::Send);
    assert_eq!(world.sent, sent);
    world.step(Event::Down);
    world.step(Event::Wait(5_000));
    assert_eq!(world.window, 0, "however long it lasts");
    world.step(Event::Back);
    assert_eq!(world.window, WINDOW as usize);
    assert_eq!(world.freezer.stopped(), 1);
}

#[test]
fn an_end_that_does_not_come_stops_nobody_for_long() {
    let mut world = under_way(Freeze::Planned, 4);
    world.step(Event::Announce);
    world.step(Event::Deliver(0));
    world.step(Event::DeliverAck(0));
    assert_eq!(world.window, 0);
    world.step(Event::Wait(2_000));
    assert_eq!(world.window, WINDOW as usize);
    world.step(Event::Announce);
    assert!(!world.freezer.is_frozen(), "not twice for one announcement");
}

#[test]
fn custody_acknowledges_what_it_keeps_and_nothing_behind_a_hole() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    assert_eq!((world.una, world.window), (world.sent, 0));
    let promised = world.una;
    // What was under way is lost, and comes again from here.
    world.data.clear();
    world.step(Event::Back);
    assert!(world.window > 0);
    world.step(Event::Wait(300));
    assert_eq!(world.data.len(), 4);
    // Without the opening the scale of the windows is not known: nothing is said.
    let mut stranger = World::new(Freeze::ProxyAck, false);
    stranger.freezer = Freezer::new(
        Limits {
            freeze: Freeze::ProxyAck,
            ..Limits::default()
        },
        false,
    );
    for _ in 0..4 {
        stranger.step(Event::Send);
    }
    stranger.step(Event::Down);
    assert_eq!(stranger.una, 0);
    // A segment that never came through here is not acknowledged.
    let mut hole = under_way(Freeze::ProxyAck, 0);
    hole.sent += SEGMENT;
    hole.step(Event::Send);
    hole.step(Event::Down);
    assert_eq!(hole.una, hole.got.len());
    assert!(promised > 0);
}

/// A sender that is acknowledged here at all times, with `segments` under way.
fn accelerated(segments: usize) -> World {
    let mut world = World::with(Limits::default(), true, false);
    for _ in 0..segments {
        world.step(Event::Send);
    }
    world
}

#[test]
fn an_accelerated_sender_knows_at_once_and_may_send_what_the_ingress_takes() {
    let world = accelerated(1);
    assert_eq!((world.una, world.got.len()), (SEGMENT, 0));
    assert_eq!(world.freezer.accelerated(), 1);
    // The receiver's window is 800 from its last acknowledgement, 750 from this one.
    let offered = world.window;
    assert!(offered as u64 <= ROOM && offered > 350, "{offered}");
    // Nothing is promised beyond what the receiver allows.
    let mut world = accelerated(40);
    assert!(world.una <= WINDOW as usize, "{}", world.una);
    world.finish();
    assert_eq!((world.got.len(), world.una), (STREAM, STREAM));
}

#[test]
fn only_what_the_receiver_misses_is_sent_again_before_the_timer() {
    let mut world = accelerated(8);
    world.step(Event::Wait(20));
    for _ in 0..6 {
        world.step(Event::Send);
    }
    assert!(world.data.len() > 8, "{}", world.data.len());
    let lost = world.data.remove(2);
    // The last one is still under way: it is not older than what has arrived.
    world.data.pop();
    // The receiver says what it has beyond the hole.
    for nth in 0..world.data.len() {
        let packet = world.data[nth].clone();
        world.peer_gets(&packet);
        let end = World::host_seq(3 * SEGMENT + nth.saturating_sub(1) * SEGMENT);
        if nth >= 2 {
            let plain = world.acks.pop().expect("an answer");
            world
                .acks
                .push(selective(&plain, World::host_seq(3 * SEGMENT), end));
        }
    }
    world.data.clear();
    world.step(Event::Wait(20));
    while !world.acks.is_empty() {
        world.step(Event::DeliverAck(0));
    }
    world.step(Event::Wait(10));
    let again: Vec<u32> = world
        .data
        .iter()
        .filter_map(|packet| Segment::parse(packet).map(|segment| segment.seq))
        .collect();
    let lost = Segment::parse(&lost).expect("a segment").seq;
    assert_eq!(again, vec![lost]);
    assert_eq!(world.freezer.resent(), 1);
}

/// An acknowledgement with a block of a selective one. Its checksum is made anew.
fn selective(plain: &[u8], from: u32, to: u32) -> Vec<u8> {
    let mut ip = plain.to_vec();
    ip.extend_from_slice(&[1, 1, 5, 10]);
    ip.extend_from_slice(&from.to_be_bytes());
    ip.extend_from_slice(&to.to_be_bytes());
    ip[32] += 0x30;
    let length = (ip.len() as u16).to_be_bytes();
    ip[2..4].copy_from_slice(&length);
    ip[10..12].fill(0);
    let sum = checksum::fold(checksum::add(0, &ip[..20]));
    ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
    ip[36..38].fill(0);
    let sum = !tcp_sum(&ip);
    ip[36..38].copy_from_slice(&sum.to_be_bytes());
    ip
}

#[test]
fn copies_acknowledge_what_the_host_has_got_since() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.data.clear();
    world.step(Event::Back);
    // More than a window the other way, before what was lost comes again.
    for _ in 0..40 {
        world.step(Event::Reply);
        world.step(Event::DeliverAck(0));
        world.step(Event::Deliver(0));
    }
    world.finish();
    assert!(!world.reset);
    assert_eq!((world.got.len(), world.una), (STREAM, STREAM));
}

#[test]
fn who_was_promised_what_cannot_be_kept_is_reset() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.freezer.abandon();
    world.hear();
    assert!(world.reset);
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.step(Event::Back);
    world.data.clear();
    world.step(Event::Wait(59_000));
    world.data.clear();
    assert!(!world.reset);
    world.step(Event::Wait(1_001));
    assert!(world.reset, "in time");
    assert_eq!(world.freezer.proxy_ack_bytes(), 0);
    assert_eq!(world.freezer.resets(), 1);
}

#[test]
fn a_promise_that_is_being_kept_is_not_late() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.data.clear();
    world.step(Event::Back);
    for _ in 0..4 {
        world.step(Event::Wait(40_000));
        assert!(!world.data.is_empty() && !world.reset);
        world.step(Event::Deliver(0));
        world.step(Event::DeliverAck(0));
        world.data.clear();
    }
    assert_eq!(world.got.len(), world.una, "all of it, in 160 s");
    assert_eq!(world.freezer.proxy_ack_bytes(), 0);
}

#[test]
fn what_is_sent_again_in_vain_is_sent_less_often() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.data.clear();
    world.step(Event::Back);
    for _ in 0..100 {
        world.step(Event::Wait(100));
    }
    // After 0.3, 0.9, 2.1, 4.5 and 9.3 s, four segments each.
    assert_eq!(world.data.len(), 20);
}

#[test]
fn a_host_that_does_not_believe_its_reset_is_reset_again() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.step(Event::Back);
    world.data.clear();
    world.step(Event::Wait(60_001));
    assert!(std::mem::take(&mut world.reset));
    // Its challenge says what it has really got; a reset must have that number (RFC 5961 §3.2).
    world.replied[2] = world.replied[2].wrapping_add(10);
    let challenge = world.segment(world.sent, 0);
    let info = PacketInfo::parse(&challenge).expect("a packet");
    let taken = world
        .freezer
        .on_ingress(world.now, (&challenge, 0), &info, false, world.down);
    assert_eq!(taken, Taken::Answered);
    let written = world.freezer.poll().expect("a reset").data;
    let reset = Segment::parse(&written).expect("a segment");
    assert!(reset.has(RST));
    assert_eq!(reset.seq, world.replied[2]);
}

#[test]
fn connections_that_ended_or_vanished_are_not_followed_any_more() {
    let ending = |seq, ack| Bare {
        seq,
        ack,
        window: WINDOW as u16,
        flags: FIN | ACK,
        timestamps: None,
    };
    let mut world = under_way(Freeze::ProxyAck, 0);
    let (host, peer) = (World::host_seq(world.sent), world.replied[2]);
    assert_eq!(world.freezer.flows(), 1);
    let last = world.host.packet(ending(host, peer), &[]);
    world.enter(last);
    assert_eq!(
        world.freezer.flows(),
        1,
        "the other end may have more to say"
    );
    let answer = world.peer.packet(ending(peer, host.wrapping_add(1)), &[]);
    world.leave(answer);
    assert_eq!(world.freezer.flows(), 0);

    let mut world = under_way(Freeze::ProxyAck, 4);
    assert!(world.freezer.proxy_ack_bytes() > 0);
    world.now += Duration::from_secs(300);
    let opening = Bare {
        seq: 7,
        ack: 0,
        window: WINDOW as u16,
        flags: SYN,
        timestamps: None,
    };
    // Another connection, of the other family.
    let other = End {
        v6: true,
        flipped: false,
    };
    world.enter(other.packet(opening, &[]));
    assert_eq!(
        (world.freezer.flows(), world.freezer.proxy_ack_bytes()),
        (1, 0)
    );
}

#[test]
fn a_reset_that_the_host_may_not_believe_ends_no_promise() {
    let mut world = under_way(Freeze::ProxyAck, 4);
    world.step(Event::Down);
    world.data.clear();
    world.step(Event::Back);
    let reset = |seq| Bare {
        seq,
        ack: 0,
        window: 0,
        flags: RST,
        timestamps: None,
    };
    let got = world.replied[2];
    let guessed = world.peer.packet(reset(got.wrapping_add(99)), &[]);
    world.leave(guessed);
    world.step(Event::Wait(300));
    assert_eq!(world.data.len(), 4, "still to be delivered");
    let genuine = world.peer.packet(reset(got), &[]);
    world.leave(genuine);
    assert_eq!(world.freezer.proxy_ack_bytes(), 0);
}

#[test]
fn rewriting_keeps_partial_checksums_and_takes_selective_acknowledgements_out() {
    let peer = End {
        v6: false,
        flipped: true,
    };
    let bare = Bare {
        seq: 1,
        ack: 1_000,
        window: 77,
        flags: 0,
        timestamps: Some((5, 6)),
    };
    let mut ip = peer.packet(bare, &[]);
    // NOP, NOP, then one block of a selective acknowledgement at an even and at an odd offset.
    for lead in [vec![1, 1], vec![1]] {
        let mut options = lead;
        options.extend_from_slice(&[5, 10, 0, 0, 1, 0, 0, 0, 2, 0]);
        options.resize(12, 0);
        let mut with = ip.clone();
        with.extend_from_slice(&options);
        with[32] += 0x30;
        let length = (with.len() as u16).to_be_bytes();
        with[2..4].copy_from_slice(&length);
        with[36..38].fill(0);
        let sum = !tcp_sum(&with);
        with[36..38].copy_from_slice(&sum.to_be_bytes());
        let segment = Segment::parse(&with).expect("a segment");
        segment.set_ack(&mut with, 0x1234_5678, false);
        segment.set_window(&mut with, 0, false);
        let changed = Segment::parse(&with).expect("a segment");
        assert_eq!((changed.ack, changed.window), (0x1234_5678, 0));
        assert_eq!(tcp_sum(&with), u16::MAX);
        assert!(!with[52..].contains(&5));
        assert_eq!(changed.timestamps(&with), Some((5, 6)));
    }
    let field = [ip[36], ip[37]];
    let segment = Segment::parse(&ip).expect("a segment");
    segment.set_window(&mut ip, 0, true);
    assert_eq!([ip[36], ip[37]], field);
}
