//! How datagrams fill packets: the largest ones, many in one, and what must never follow one.
#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::{Bytes, BytesMut};
use ropewalk_netem::{Change, Side};
use ropewalk_testkit::Pair;
use ropewalk_testkit::endpoints::EndpointEnd;
use ropewalk_transport::{CongestionControl, Ecn};
use ropewalk_types::{Duration, Instant, Random};

type World = Pair<EndpointEnd>;

const BDP: CongestionControl = CongestionControl::Bdp;
/// UDP payload of a path over Ethernet and IPv4.
const UDP_MAX: usize = 1_472;
/// That less flags 1, connection identifier 6, packet number 2, tag 16 and frame type 1.
const LARGEST: usize = 1_446;

/// Connected, and the MTU of the path is found.
fn world() -> World {
    let mut world = World::simple(100.0, Duration::from_millis(20));
    world.up(BDP);
    world.run(Duration::from_secs(3));
    world.hub.inbox = Some(Vec::new());
    world
}

/// A site that sends to its hub. Nothing is acknowledged, and no window limits.
struct OneWay {
    world: World,
    now: Instant,
    sent: Vec<Bytes>,
}

impl OneWay {
    fn new() -> Self {
        let world = world();
        let now = world.now();
        Self {
            world,
            now,
            sent: Vec::new(),
        }
    }

    fn queue(&mut self, size: usize) {
        // No byte is that of PADDING, and each datagram begins with another one.
        let fill = (self.sent.len() % 255) as u8 + 1;
        let datagram = Bytes::from(vec![fill; size]);
        let id = self.world.site.id.unwrap();
        let sent = self.world.site.endpoint.send(id, datagram.clone());
        sent.unwrap_or_else(|error| panic!("{size} bytes: {error}"));
        self.sent.push(datagram);
    }

    /// Sends what is queued; the sizes of the UDP payloads.
    fn flush(&mut self) -> Vec<usize> {
        let site = &mut self.world.site;
        let (id, from) = (site.id.unwrap(), site.address);
        let (mut buf, mut sizes) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            site.endpoint.declare_lost(id);
            // The pacer lets some more go.
            self.now += Duration::from_millis(2);
            while let Some(transmit) = site.endpoint.poll_transmit(self.now, id, &mut buf) {
                for data in buf.chunks(transmit.segment_size.unwrap_or(buf.len())) {
                    sizes.push(data.len());
                    let hub = &mut self.world.hub;
                    hub.hear(self.now, from, Ecn::NotEct, BytesMut::from(data));
                }
            }
        }
        assert!(sizes.iter().all(|&size| size <= UDP_MAX), "{sizes:?}");
        sizes
    }

    fn check(&mut self) {
        let received = self.world.hub.inbox.as_mut().unwrap();
        for (n, (sent, received)) in self.sent.iter().zip(received.iter()).enumerate() {
            let [sent, received] = [sent, received].map(|d| (d.first().copied(), d.len()));
            assert_eq!(sent, received, "datagram {n}");
        }
        assert!(self.sent == *received, "the same datagrams");
        self.sent.clear();
        received.clear();
    }
}

#[test]
fn the_largest_datagram_fills_the_path() {
    let mut way = OneWay::new();
    let id = way.world.site.id.unwrap();
    assert_eq!(way.world.site.endpoint.mtu(id), UDP_MAX);
    let snapshot = way.world.site.snapshot(way.now);
    assert_eq!(snapshot.max_datagram, LARGEST);
    // Packet numbers have one byte first, and then two.
    for _ in 0..300 {
        way.queue(LARGEST);
        assert_eq!(way.flush(), [UDP_MAX]);
    }
    way.check();
}

#[test]
fn datagrams_of_every_size_arrive_as_they_were() {
    let mut way = OneWay::new();
    for size in 0..=LARGEST {
        way.queue(size);
        way.flush();
    }
    way.check();
    // And after one that leaves little room in the packet.
    for first in 0..=40 {
        for second in [0, 1, 62, 63, 64, 65, 700, LARGEST - first, 1_400 - first] {
            way.queue(first);
            way.queue(second);
            way.queue(first);
            way.flush();
        }
    }
    way.check();
}

#[test]
fn small_datagrams_share_a_packet_and_a_large_one_has_its_own() {
    let mut way = OneWay::new();
    for _ in 0..10 {
        way.queue(100);
    }
    assert_eq!(way.flush().len(), 1);
    // Two fill a packet to the last byte: three bytes for the first frame's header, one for the other.
    way.queue(700);
    way.queue(LARGEST - 703);
    assert_eq!(way.flush(), [UDP_MAX]);
    way.queue(100);
    way.queue(LARGEST);
    way.queue(100);
    assert_eq!(way.flush().len(), 3);
    way.check();
}

#[test]
fn batches_of_any_sizes_are_never_padded_into_a_datagram() {
    let mut way = OneWay::new();
    let mut random = Random::new(7);
    let mut below = |n: usize| (random.unit() * n as f64) as usize;
    for _ in 0..1_000 {
        let usual = below(LARGEST + 1);
        for _ in 0..=below(30) {
            let size = match below(5) {
                0 => LARGEST - below(20),
                1 => below(LARGEST + 1),
                2 => below(70),
                // Nearly equal ones go together into one batch.
                _ => usual.saturating_sub(below(4)),
            };
            way.queue(size);
        }
        way.flush();
        way.check();
    }
}

#[test]
fn datagrams_of_any_sizes_arrive_beside_acknowledgements() {
    let mut world = world();
    world.site.inbox = Some(Vec::new());
    let mut random = Random::new(8);
    let mut sent = [Vec::new(), Vec::new()];
    for _ in 0..2_000 {
        for (side, sent) in [&mut world.site, &mut world.hub].into_iter().zip(&mut sent) {
            for _ in 0..(random.unit() * 6.0) as usize {
                let size = if random.chance(0.5) {
                    LARGEST - (random.unit() * 30.0) as usize
                } else {
                    (random.unit() * LARGEST as f64) as usize
                };
                let datagram = Bytes::from(vec![(sent.len() % 255) as u8 + 1; size]);
                side.send(&datagram);
                sent.push(datagram);
            }
        }
        world.run(Duration::from_micros((random.unit() * 4_000.0) as u64));
    }
    world.run(Duration::from_secs(1));
    assert!(world.hub.inbox.as_ref() == Some(&sent[0]));
    assert!(world.site.inbox.as_ref() == Some(&sent[1]));
    for side in Side::ALL {
        assert_eq!(world.counters(0, side).dropped_queue, 0);
    }
}

#[test]
fn the_largest_datagrams_keep_flowing_through_a_nat_rebinding() {
    let mut world = World::simple(10.0, Duration::from_millis(50));
    world.up(BDP);
    world.hub.saturate = usize::MAX;
    world.run(Duration::from_secs(3));
    world.site.address = "192.0.2.1:2000".parse().unwrap();
    let id = world.hub.id.unwrap();
    let largest = world.hub.snapshot(world.now()).max_datagram;
    assert_eq!(largest, LARGEST);
    let before = (world.counters(0, Side::Down), world.site.received);
    world.run(Duration::from_millis(300));
    assert_eq!(world.hub.endpoint.remote(id), Some(world.site.address));
    let packets = world.counters(0, Side::Down).sent_packets - before.0.sent_packets;
    let datagrams = world.site.received - before.1;
    assert!(datagrams > 150, "{datagrams} of {packets}");
    world.run(Duration::from_secs(2));
    assert_eq!(world.hub.snapshot(world.now()).max_datagram, LARGEST);
}

#[test]
fn with_a_long_packet_number_the_largest_datagrams_wait_and_none_is_lost() {
    let mut world = World::simple(1_000.0, Duration::from_millis(20));
    world.change_up(&Change {
        queue_bytes_max: Some(Some(4 << 20)),
        ..Change::default()
    });
    world.up(BDP);
    world.site.saturate = usize::MAX;
    world.run(Duration::from_secs(2));
    world.site.saturate = 0;
    world.run(Duration::from_secs(1));
    let id = world.site.id.unwrap();
    let sent = |world: &World| {
        let counters = world.site.endpoint.counters(id).unwrap();
        counters.sent_datagrams
    };
    // Nothing comes back, and losses declared let ever more packets out.
    world.cut(true);
    world.site.saturate = LARGEST;
    let before = sent(&world);
    for _ in 0..1_000 {
        world.site.endpoint.declare_lost(id);
        world.run(Duration::from_millis(10));
    }
    let out = sent(&world) - before;
    assert!((32_700..33_500).contains(&out), "{out} packets");
    world.site.saturate = 0;
    // The queue counts the handle of each datagram, too.
    let each = (LARGEST + size_of::<Bytes>()) as u64;
    let waiting = world.site.snapshot(world.now()).queued / each;
    assert!(waiting > 0);
    let received = world.hub.received;
    world.cut(false);
    world.run(Duration::from_secs(15));
    assert_eq!(world.site.snapshot(world.now()).queued, 0);
    let arrived = world.hub.received - received;
    assert!(arrived >= waiting, "{arrived} of {waiting}");
    // Nothing is too long any more.
    let received = world.hub.received;
    world.site.send(&[1; LARGEST]);
    world.run(Duration::from_millis(50));
    assert_eq!(world.hub.received, received + 1);
}

#[test]
fn what_no_longer_fits_a_smaller_path_leaves_the_queue() {
    let mut world = world();
    world.site.saturate = usize::MAX;
    world.run(Duration::from_secs(1));
    world.change_up(&Change {
        mtu: Some(Some(1_328)),
        ..Change::default()
    });
    world.run(Duration::from_secs(4));
    let snapshot = world.site.snapshot(world.now());
    assert!(snapshot.max_datagram <= 1_300 - 26, "{snapshot:?}");
    let before = world.hub.received;
    world.run(Duration::from_secs(1));
    assert!(world.hub.received > before + 1_000);
}

#[test]
fn a_queue_that_overflows_is_no_smaller_path() {
    for congestion in [BDP, CongestionControl::Cubic] {
        let mut world = World::simple(100.0, Duration::from_millis(20));
        world.change_up(&Change {
            queue_bytes_max: Some(Some(100_000)),
            ..Change::default()
        });
        world.up(congestion);
        world.run(Duration::from_secs(3));
        world.site.saturate = LARGEST - 4;
        let id = world.site.id.unwrap();
        for second in 0..20 {
            world.set_rate_up(if second % 2 == 0 { 100.0 } else { 25.0 });
            // Few packets are as large as they may be. What is lost later is nearly as large.
            if second % 2 == 0 {
                world.site.send(&[1; LARGEST]);
            }
            for _ in 0..100 {
                world.run(Duration::from_millis(10));
                assert_eq!(world.site.endpoint.mtu(id), UDP_MAX, "second {second}");
            }
        }
        assert!(world.counters(0, Side::Up).dropped_queue > 500);
    }
}

#[test]
fn a_path_that_takes_a_few_bytes_less_is_found_out() {
    for less in [4, 8, 20] {
        let mut world = world();
        let id = world.site.id.unwrap();
        let site = world.site.endpoint.mtu(id);
        // Packets of many sizes, some of which pass: the largest that still fits among them.
        let sizes = [
            LARGEST,
            LARGEST - 1,
            LARGEST - 3,
            LARGEST - less,
            LARGEST - 30,
        ];
        let send = |world: &mut World| {
            for n in 0..3_000 {
                let room = world.site.snapshot(world.now()).max_datagram;
                world.site.send(&vec![1; sizes[n % sizes.len()].min(room)]);
                world.run(Duration::from_millis(1));
            }
            world.site.endpoint.mtu(id)
        };
        assert_eq!(send(&mut world), site);
        world.change_up(&Change {
            mtu: Some(Some(1_500 - less as u64)),
            ..Change::default()
        });
        let mtu = send(&mut world);
        assert!(
            mtu <= UDP_MAX - less && mtu > 1_400,
            "{less} bytes less: {mtu}"
        );
    }
}
