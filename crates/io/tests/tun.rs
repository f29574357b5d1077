//! Real TUN interfaces in network namespaces of their own.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Buf, Bytes};
use common::{Namespace, privileged, wait_for};
use ropewalk_io::tun::{Tun, TunConfig, TunCounters, TunError};
use ropewalk_io::udp::{UdpConfig, UdpReceiver, UdpSocket};
use ropewalk_io::{HEADROOM, InnerPacket};
use ropewalk_types::Ecn;

fn open(namespace: &Namespace, host: u8, offload: bool) -> Tun {
    let tun = namespace
        .enter(move || {
            Tun::open(&TunConfig {
                name: "t%d".into(),
                mtu: 1420,
                offload,
            })
        })
        .expect("the TUN interface opens");
    let name = tun.name().to_owned();
    namespace.run(&format!("ip addr add 10.99.0.{host}/24 dev {name}"));
    namespace.run(&format!("ip -6 addr add fd99::{host}/64 dev {name} nodad"));
    namespace.run(&format!("ip link set {name} up"));
    tun
}

/// Moves packets between two TUN interfaces until dropped.
struct Pump {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Tun, Tun)>>,
}

impl Pump {
    fn start(mut a: Tun, mut b: Tun) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if forward(&mut a, &mut b) + forward(&mut b, &mut a) == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            (a, b)
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn stop(mut self) -> (TunCounters, TunCounters) {
        self.stop.store(true, Ordering::Relaxed);
        let (a, b) = self
            .thread
            .take()
            .expect("running")
            .join()
            .expect("no panic");
        (a.counters(), b.counters())
    }
}

fn forward(from: &mut Tun, to: &mut Tun) -> usize {
    let mut packets = Vec::new();
    let count = from.recv_batch(&mut packets).expect("read");
    let mut inner: Vec<_> = packets
        .into_iter()
        .map(|mut packet| {
            packet.data.advance(HEADROOM);
            assert!(
                packet.data.len() <= 1420,
                "{} bytes exceed the MTU",
                packet.data.len()
            );
            let mut inner = InnerPacket::whole(packet.data.freeze(), packet.checksum_partial);
            // As segments come whose headers were restored apart from their payload.
            if inner.data.len() >= 40 && inner.data[0] == 0x45 && inner.data[9] == 6 {
                let headers = 20 + usize::from(inner.data[32] >> 4) * 4;
                inner.head = inner.data.split_to(headers);
            }
            inner
        })
        .collect();
    to.send_batch(&mut inner).expect("write");
    count
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| u8::try_from((i * 7 + i / 251) % 256).expect("a byte"))
        .collect()
}

/// Sends 3 MiB each way over TCP between two namespaces; returns the counters of both interfaces.
fn transfer(offload_a: bool, offload_b: bool, server: &'static str) -> (TunCounters, TunCounters) {
    let (a, b) = (Namespace::new(), Namespace::new());
    let pump = Pump::start(open(&a, 1, offload_a), open(&b, 2, offload_b));
    let data = pattern(3 << 20);
    let (sent, expected) = (data.clone(), data.clone());
    let listener = b
        .enter(move || TcpListener::bind((server, 7000)))
        .expect("the server listens");
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        stream
            .set_read_timeout(Some(common::PATIENCE))
            .expect("timeout");
        let mut received = vec![0; expected.len()];
        stream
            .read_exact(&mut received)
            .expect("all arrives at the server");
        assert!(received == expected, "the server got other bytes");
        stream.write_all(&expected).expect("answer");
    });
    let mut stream = a
        .enter(move || TcpStream::connect((server, 7000)))
        .expect("connect");
    stream
        .set_read_timeout(Some(common::PATIENCE))
        .expect("timeout");
    stream.write_all(&sent).expect("send");
    let mut received = vec![0; data.len()];
    stream
        .read_exact(&mut received)
        .expect("all arrives at the client");
    assert!(received == data, "the client got other bytes");
    serving.join().expect("the server is content");
    pump.stop()
}

#[test]
fn tcp_arrives_intact_whichever_end_has_offloads() {
    if !privileged() {
        return;
    }
    for (offload_a, offload_b) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, b) = transfer(offload_a, offload_b, "10.99.0.2");
        for (counters, offload) in [(a, offload_a), (b, offload_b)] {
            assert!(
                counters.received > 2000 && counters.written > 2000,
                "{counters:?}"
            );
            let coalesced = counters.written_calls * 2 < counters.written;
            let super_reads = counters.received_reads * 2 < counters.received;
            assert!(!offload || super_reads, "{counters:?}");
            assert!(offload || !coalesced, "{counters:?}");
            assert_eq!(counters.dropped_bad_super, 0);
        }
        if offload_a && offload_b {
            assert!(b.written_calls * 2 < b.written, "{b:?}");
        }
    }
}

#[test]
fn tcp_over_ipv6_arrives_intact() {
    if privileged() {
        let (_, b) = transfer(true, true, "fd99::2");
        assert!(b.written_calls * 2 < b.written, "{b:?}");
        transfer(true, false, "fd99::2");
    }
}

#[test]
fn segmented_udp_arrives_datagram_by_datagram() {
    if !privileged() {
        return;
    }
    for (offload_a, offload_b) in [(true, true), (true, false), (false, true)] {
        for (from, to) in [("10.99.0.1", "10.99.0.2"), ("fd99::1", "fd99::2")] {
            let (a, b) = (Namespace::new(), Namespace::new());
            let pump = Pump::start(open(&a, 1, offload_a), open(&b, 2, offload_b));
            let mut sender = bind(&a, from);
            let mut receiver = bind(&b, to);
            let destination = receiver.local_addr().expect("bound");
            let contents = pattern(1000 * 40 + 77);
            let (mut into, mut got) = (UdpReceiver::default(), Vec::new());
            // The kernel drops what is sent before it has activated the interfaces, which it does
            // some time after they are up.
            wait_for("the interfaces", || {
                sender
                    .send(destination, None, Ecn::Ect0, 0, READY, None)
                    .expect("sent");
                receiver.recv_batch(&mut into, &mut got).expect("received");
                (!got.is_empty()).then_some(())
            });
            sender
                .send(destination, None, Ecn::Ect0, 0, &contents, Some(1000))
                .expect("sent");
            wait_for("41 datagrams", || {
                receiver.recv_batch(&mut into, &mut got).expect("received");
                got.retain(|(_, data)| *data != READY);
                (got.len() >= 41).then_some(())
            });
            let sizes: Vec<_> = got.iter().map(|(_, data)| data.len()).collect();
            assert_eq!(sizes, [vec![1000; 40], vec![77]].concat());
            let joined: Vec<u8> = got.iter().flat_map(|(_, data)| data.to_vec()).collect();
            assert!(joined == contents);
            assert!(got.iter().all(|(meta, _)| meta.ecn == Ecn::Ect0));
            pump.stop();
        }
    }
}

const READY: &[u8] = b"ready";

fn bind(namespace: &Namespace, ip: &'static str) -> UdpSocket {
    let config = UdpConfig {
        bind: (ip.parse::<std::net::IpAddr>().expect("address"), 0).into(),
        device: None,
        mark: None,
        recv_buffer: 1 << 20,
        send_buffer: 1 << 20,
        group: None,
    };
    namespace
        .enter(move || UdpSocket::bind(&config))
        .expect("bound")
}

#[test]
fn largest_packet_passes_an_interface_with_the_largest_mtu() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let mut tun = open(&namespace, 1, true);
    tun.set_mtu(65_535).expect("the largest MTU");
    let mut socket = bind(&namespace, "10.99.0.1");
    let contents = pattern(65_507);
    let destination = "10.99.0.2:9".parse().expect("address");
    let mut packets = Vec::new();
    let packet = wait_for("the packet", || {
        socket
            .send(destination, None, Ecn::NotEct, 0, &contents, None)
            .expect("sent");
        tun.recv_batch(&mut packets).expect("read");
        packets
            .iter()
            .find(|p| p.data.len() > 60_000)
            .map(|p| p.data[HEADROOM..].to_vec())
    });
    assert_eq!(packet.len(), 65_535);
    assert!(packet[28..] == contents);
}

/// As when another process has the processor for some milliseconds.
#[test]
fn packets_wait_while_nobody_reads() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let mut tun = open(&namespace, 1, true);
    namespace.enter(|| {
        let socket = std::net::UdpSocket::bind("10.99.0.1:0").expect("binds");
        for number in 0..1_900u32 {
            let sent = socket.send_to(&number.to_be_bytes(), "10.99.0.2:9");
            assert_eq!(sent.expect("sends"), 4);
        }
    });
    let mut packets = Vec::new();
    while tun.recv_batch(&mut packets).expect("reads") > 0 {}
    let numbers = packets
        .iter()
        .map(|packet| &packet.data[HEADROOM..])
        .filter(|packet| packet.len() == 32)
        .map(|packet| packet[28..].to_vec());
    let expected = (0..1_900u32).map(|number| number.to_be_bytes().to_vec());
    assert!(numbers.eq(expected), "{} packets came", packets.len());
}

#[test]
fn writing_counts_what_the_kernel_does_not_take_and_keeps_offloads() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let mut tun = namespace
        .enter(|| {
            Tun::open(&TunConfig {
                name: "down0".into(),
                mtu: 1420,
                offload: true,
            })
        })
        .expect("opens");
    // A run that would be coalesced, to an interface that is down.
    let mut packets: Vec<_> = (0..10u32).map(segment).collect();
    let report = tun.send_batch(&mut packets).expect("the interface exists");
    assert!(packets.is_empty());
    assert_eq!(
        (report.written, report.dropped_refused),
        (0, 10),
        "{report:?}"
    );
    assert!(
        tun.offloads().given_up.is_empty(),
        "an interface that is down proves nothing"
    );
    namespace.run("ip link set down0 up");
    let mut packets: Vec<_> = (0..10u32).map(segment).collect();
    packets.push(InnerPacket::whole(Bytes::from_static(b"\x00junk"), false));
    packets.push(InnerPacket::whole(Bytes::from_static(&[0x45; 40]), true));
    packets.push(InnerPacket::whole(Bytes::new(), false));
    let report = tun.send_batch(&mut packets).expect("the interface exists");
    assert_eq!(
        (report.written, report.calls, report.dropped_invalid),
        (10, 1, 3),
        "{report:?}"
    );
}

/// The `index`-th packet of a TCP flow, checksum partial.
fn segment(index: u32) -> InnerPacket {
    let mut p = vec![0; 1040];
    p[0] = 0x45;
    p[2..4].copy_from_slice(&1040u16.to_be_bytes());
    p[6] = 0x40;
    (p[8], p[9]) = (64, 6);
    p[12..20].copy_from_slice(&[10, 99, 0, 2, 10, 99, 0, 1]);
    p[24..28].copy_from_slice(&(index * 1000).to_be_bytes());
    (p[32], p[33]) = (0x50, 0x10);
    InnerPacket::whole(p.into(), true)
}

#[test]
fn impossible_interfaces_are_refused_with_a_reason() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let open = |name: &str, mtu| {
        let config = TunConfig {
            name: name.into(),
            mtu,
            offload: true,
        };
        namespace.enter(move || Tun::open(&config))
    };
    for name in ["", "a/b", "sixteen-letters-", "two%dand%d", "50%", "a b"] {
        assert!(
            matches!(open(name, 1420), Err(TunError::BadName(_))),
            "{name:?}"
        );
    }
    let held = open("held0", 1420).expect("opens");
    assert!(held.offloads().tso && held.offloads().checksum);
    assert!(matches!(open("held0", 1420), Err(TunError::NameTaken(_))));
    assert!(matches!(open("lo", 1420), Err(TunError::NameTaken(_))));
    assert!(matches!(open("wide0", 1 << 20), Err(TunError::Io { .. })));
    let queues = |name: &str| {
        let config = TunConfig {
            name: name.to_owned(),
            mtu: 1420,
            offload: true,
        };
        namespace.enter(move || Tun::open_queues(&config, 3))
    };
    let several = queues("wide%d").expect("opens");
    let name = several[0].name().to_owned();
    assert_eq!(name, "wide0");
    assert!(several.iter().all(|queue| queue.name() == name));
    // A second program does not become a queue of the first one's interface.
    for taken in [name.as_str(), "held0"] {
        assert!(matches!(queues(taken), Err(TunError::NameTaken(_))));
        assert!(matches!(open(taken, 1420), Err(TunError::NameTaken(_))));
    }
    drop(several);
    drop(held);
    // A program that another test starts has all handles for a moment.
    let mut looks = (0..100).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        namespace.run("ip -o link")
    });
    assert!(
        looks.any(|links| !links.contains("held0")),
        "an interface outlives its handle"
    );
    let numbered = open("rope%d", 1420).expect("opens");
    assert_eq!(numbered.name(), "rope0");
}

#[test]
fn a_removed_interface_is_an_error_not_a_loop() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let mut tun = open(&namespace, 1, true);
    namespace.run("ip link del t0");
    assert!(tun.recv_batch(&mut Vec::new()).is_err());
    assert!(tun.send_batch(&mut vec![segment(0)]).is_err());
}
