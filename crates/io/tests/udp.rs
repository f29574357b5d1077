//! Real UDP sockets on loopback and in network namespaces.

mod common;

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use common::{Namespace, code, privileged, wait_for};
use ropewalk_io::udp::{RecvMeta, UDP_PAYLOAD_MAX, UdpConfig, UdpGroup, UdpReceiver, UdpSocket};
use ropewalk_types::Ecn;

fn config(bind: &str) -> UdpConfig {
    UdpConfig {
        bind: bind.parse().expect("address"),
        device: None,
        mark: None,
        recv_buffer: 1 << 20,
        send_buffer: 1 << 20,
        group: None,
    }
}

fn bind(address: &str) -> UdpSocket {
    UdpSocket::bind(&config(address)).expect("bound")
}

fn receive(socket: &mut UdpSocket, count: usize) -> Vec<(RecvMeta, BytesMut)> {
    let (mut receiver, mut out) = (UdpReceiver::default(), Vec::new());
    wait_for("datagrams", || {
        socket
            .recv_batch(&mut receiver, &mut out)
            .expect("received");
        (out.len() >= count).then_some(())
    });
    assert_eq!(out.len(), count);
    out
}

#[test]
fn sockets_of_a_group_get_the_packets_whose_identifier_names_them() {
    const COUNT: u8 = 3;
    for any in ["127.0.0.1", "::1"] {
        let ip: IpAddr = any.parse().expect("address");
        let mut port = 0;
        let mut group = Vec::new();
        for index in 0..COUNT {
            let socket = UdpSocket::bind(&UdpConfig {
                bind: (ip, port).into(),
                group: Some(UdpGroup {
                    index,
                    count: COUNT,
                }),
                ..config("127.0.0.1:0")
            });
            let socket = socket.expect("bound");
            port = socket.local_addr().expect("bound").port();
            group.push(socket);
        }
        let mut client = bind(&SocketAddr::new(ip, 0).to_string());
        for byte in [0, 1, 2, 3, 62, 63, 64, 65, 200, 255] {
            // A long header has first byte, version and length before the identifier.
            let long = [0xc0, 0, 0, 0, 1, 16, byte, 9, 9];
            let short = [0x40, byte, 9, 9];
            for packet in [&long[..], &short[..]] {
                client
                    .send((ip, port).into(), None, Ecn::NotEct, 0, packet, None)
                    .expect("sent");
                let named = usize::from(byte % 64 % COUNT);
                let (_, data) = receive(&mut group[named], 1).remove(0);
                assert_eq!(&data[..], packet);
            }
        }
        // What is too short for an identifier is for the first one.
        client
            .send((ip, port).into(), None, Ecn::NotEct, 0, &[0xc0], None)
            .expect("sent");
        receive(&mut group[0], 1);
        // Another program that begins such a group is told that the address is taken.
        let other = UdpSocket::bind(&UdpConfig {
            bind: (ip, port).into(),
            group: Some(UdpGroup {
                index: 0,
                count: COUNT,
            }),
            ..config("127.0.0.1:0")
        });
        assert_eq!(code(other), Some(libc::EADDRINUSE));
    }
}

#[test]
fn ecn_and_source_address_pass_on_every_kind_of_socket() {
    let table = [
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"),
        ("[::1]:0", "[::1]:0", "::1"),
        ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.1"),
        ("[::]:0", "[::1]:0", "::1"),
    ];
    for (server, client, ip) in table {
        let (mut server, mut client) = (bind(server), bind(client));
        let ip: IpAddr = ip.parse().expect("address");
        let port = server.local_addr().expect("bound").port();
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            client
                .send((ip, port).into(), None, ecn, 46, b"ask", None)
                .expect("sent");
            let (meta, data) = receive(&mut server, 1).remove(0);
            assert_eq!(
                (meta.ecn, meta.local_ip, &data[..]),
                (ecn, Some(ip), &b"ask"[..])
            );
            assert_eq!(meta.remote, client.local_addr().expect("bound"));
            server
                .send(meta.remote, meta.local_ip, ecn, 0, b"answer", None)
                .expect("sent");
            let (meta, _) = receive(&mut client, 1).remove(0);
            assert_eq!((meta.ecn, meta.remote), (ecn, SocketAddr::new(ip, port)));
        }
    }
}

#[test]
fn both_families_share_a_port() {
    let v4 = bind("0.0.0.0:0");
    let port = v4.local_addr().expect("bound").port();
    assert_eq!(
        bind(&format!("[::]:{port}"))
            .local_addr()
            .expect("bound")
            .port(),
        port
    );
    let again = UdpSocket::bind(&config(&format!("0.0.0.0:{port}")));
    assert_eq!(code(again), Some(libc::EADDRINUSE));
}

#[test]
fn replies_leave_from_the_address_that_was_asked() {
    let (mut server, mut client) = (bind("0.0.0.0:0"), bind("127.0.0.1:0"));
    let port = server.local_addr().expect("bound").port();
    let asked: IpAddr = "127.5.6.7".parse().expect("address");
    client
        .send((asked, port).into(), None, Ecn::NotEct, 0, b"?", None)
        .expect("sent");
    let (meta, _) = receive(&mut server, 1).remove(0);
    assert_eq!(meta.local_ip, Some(asked));
    server
        .send(meta.remote, meta.local_ip, Ecn::NotEct, 0, b"!", None)
        .expect("sent");
    assert_eq!(
        receive(&mut client, 1)[0].0.remote,
        SocketAddr::new(asked, port)
    );
}

#[test]
fn dscp_reaches_the_outer_header() {
    // A plain socket shows the whole traffic class.
    let watcher = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket2::SockRef::from(&watcher)
        .set_recv_tos_v4(true)
        .expect("option");
    let mut sender = bind("127.0.0.1:0");
    let destination = watcher.local_addr().expect("bound");
    sender
        .send(destination, None, Ecn::Ect0, 46, b"voice", None)
        .expect("sent");
    let mut control = [0u8; 64];
    let mut buffer = [0u8; 16];
    let class = {
        let mut slices = [std::io::IoSliceMut::new(&mut buffer)];
        let mut header = libc_msghdr(&mut slices, &mut control);
        // SAFETY: the header points to buffers that outlive the call.
        let length = unsafe {
            libc::recvmsg(
                std::os::fd::AsRawFd::as_raw_fd(&watcher),
                &raw mut header,
                0,
            )
        };
        assert_eq!(length, 5);
        // SAFETY: the kernel wrote `msg_controllen` bytes of control messages.
        unsafe { *libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&raw const header)) }
    };
    assert_eq!(class, 46 << 2 | 2);
}

fn libc_msghdr(slices: &mut [std::io::IoSliceMut<'_>], control: &mut [u8]) -> libc::msghdr {
    // SAFETY: all zeros are a valid header. `IoSliceMut` is an `iovec` by its documentation.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = slices.as_mut_ptr().cast();
    header.msg_iovlen = slices.len();
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len();
    header
}

#[test]
fn segments_are_sent_and_received_in_few_buffers() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    assert_eq!(a.max_segments(), 64);
    let contents: Vec<u8> = (0..64_000u32)
        .map(|i| u8::try_from(i / 1000).expect("small"))
        .collect();
    let to = b.local_addr().expect("bound");
    a.send(to, None, Ecn::Ect0, 0, &contents, Some(1000))
        .expect("sent");
    a.send(to, None, Ecn::Ect0, 0, &contents[..2500], Some(1000))
        .expect("sent");
    let got = receive(&mut b, 67);
    for (index, (_, data)) in got.iter().take(64).enumerate() {
        assert!(data.len() == 1000 && data.iter().all(|byte| usize::from(*byte) == index));
    }
    assert_eq!(
        got[64..].iter().map(|(_, d)| d.len()).collect::<Vec<_>>(),
        [1000, 1000, 500]
    );
    let (sent, received) = (a.counters(), b.counters());
    assert_eq!((sent.sent, sent.sent_buffers), (67, 2));
    assert_eq!((received.received, received.received_buffers), (67, 2));
}

#[test]
fn received_buffers_are_reused_and_never_shared() {
    let (mut a, mut b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let to = b.local_addr().expect("bound");
    let mut kept = Vec::new();
    for round in 0..200u8 {
        let contents = vec![round; 3000];
        a.send(to, None, Ecn::NotEct, 0, &contents, Some(700))
            .expect("sent");
        let mut got = receive(&mut b, 5);
        if round % 10 == 0 {
            kept.push((round, got.swap_remove(2).1));
        }
    }
    for (round, data) in kept {
        assert!(data.iter().all(|byte| *byte == round));
    }
}

#[test]
fn limits_are_refused_before_anything_is_sent() {
    let (mut a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let to = b.local_addr().expect("bound");
    let large = vec![0; UDP_PAYLOAD_MAX + 1];
    let mut send = |contents: &[u8], segment| {
        a.send(to, None, Ecn::NotEct, 0, contents, segment)
            .map_err(|e| e.kind())
    };
    let refused = Err(std::io::ErrorKind::InvalidInput);
    assert_eq!(send(&large, None), refused);
    assert_eq!(send(&large[..6500], Some(100)), refused);
    assert_eq!(send(&large[..100], Some(0)), refused);
    assert_eq!(send(&large[..UDP_PAYLOAD_MAX], None), Ok(()));
    assert_eq!(send(b"short", Some(100)), Ok(()));
    assert_eq!(a.counters().sent, 2);
    let v6 = "[::1]:9".parse().expect("address");
    assert_eq!(
        code(a.send(v6, None, Ecn::NotEct, 0, b"", None)),
        Some(libc::EAFNOSUPPORT)
    );
}

#[test]
fn a_closed_port_disturbs_nothing() {
    let mut socket = bind("127.0.0.1:0");
    let closed = bind("127.0.0.1:0").local_addr().expect("bound");
    for _ in 0..5 {
        socket
            .send(closed, None, Ecn::NotEct, 0, b"knock", None)
            .expect("sent");
        let read = socket.recv_batch(&mut UdpReceiver::default(), &mut Vec::new());
        assert_eq!(read.expect("no error"), 0);
    }
}

/// Two namespaces joined by a veth pair with MTU 1500: 10.98.0.1 and 10.98.0.2.
fn joined() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.run(&format!(
        "ip link add v0 type veth peer name v0 netns {}",
        b.tid
    ));
    for (namespace, host) in [(&a, 1), (&b, 2)] {
        namespace.run(&format!("ip addr add 10.98.0.{host}/24 dev v0"));
        namespace.run("ip link set v0 up");
    }
    (a, b)
}

fn bind_in(namespace: &Namespace, config: UdpConfig) -> std::io::Result<UdpSocket> {
    namespace.enter(move || UdpSocket::bind(&config))
}

#[test]
fn too_large_datagrams_are_refused_and_not_blamed_on_offloads() {
    if !privileged() {
        return;
    }
    let (a, b) = joined();
    let mut sender = bind_in(&a, config("10.98.0.1:0")).expect("bound");
    let receiver = bind_in(&b, config("10.98.0.2:0")).expect("bound");
    let to = receiver.local_addr().expect("bound");
    let contents = vec![0; 10_000];
    let mut send = |length: usize, segment| {
        code(sender.send(to, None, Ecn::NotEct, 0, &contents[..length], segment))
    };
    assert_eq!(
        send(1473, None),
        Some(libc::EMSGSIZE),
        "DF is set and nothing fragments"
    );
    assert_eq!(send(1472, None), None);
    assert_eq!(send(10_000, Some(1473)), Some(libc::EMSGSIZE));
    assert_eq!(send(10_000, Some(1472)), None);
    assert_eq!(sender.max_segments(), 64);
}

#[test]
fn segments_arrive_whatever_the_interface_can_do() {
    if !privileged() {
        return;
    }
    for features in [
        "tx-udp-segmentation off",
        "tx off",
        "tx off gso off",
        "gro on",
    ] {
        let (a, b) = joined();
        for namespace in [&a, &b] {
            namespace.run(&format!("ethtool -K v0 {features}"));
        }
        let mut sender = bind_in(&a, config("10.98.0.1:0")).expect("bound");
        let mut receiver = bind_in(&b, config("10.98.0.2:0")).expect("bound");
        let to = receiver.local_addr().expect("bound");
        let contents: Vec<u8> = (0..30_500u32).map(|i| i.to_le_bytes()[1]).collect();
        for _ in 0..3 {
            sender
                .send(to, None, Ecn::NotEct, 0, &contents, Some(1000))
                .expect("sent");
            let got = receive(&mut receiver, 31);
            let joined: Vec<u8> = got.iter().flat_map(|(_, data)| data.to_vec()).collect();
            assert!(joined == contents, "{features}");
        }
        println!("{features}: {} segments per send", sender.max_segments());
    }
}

#[test]
fn a_socket_stays_on_its_device() {
    if !privileged() {
        return;
    }
    let (a, b) = joined();
    let on = |device: &str| UdpConfig {
        device: Some(device.into()),
        ..config("0.0.0.0:0")
    };
    assert_eq!(code(bind_in(&a, on("nosuch0"))), Some(libc::ENODEV));
    let mut bound = bind_in(&a, on("v0")).expect("bound");
    let mut other = bind_in(&a, config("127.0.0.1:0")).expect("bound");
    let mut peer = bind_in(&b, config("10.98.0.2:0")).expect("bound");
    let port = bound.local_addr().expect("bound").port();
    // Over loopback it hears nothing, over its device it does.
    let local = SocketAddr::new("127.0.0.1".parse().expect("address"), port);
    other
        .send(local, None, Ecn::NotEct, 0, b"no", None)
        .expect("sent");
    let there = peer.local_addr().expect("bound");
    bound
        .send(there, None, Ecn::NotEct, 0, b"hello", None)
        .expect("sent");
    let (meta, _) = receive(&mut peer, 1).remove(0);
    peer.send(meta.remote, None, Ecn::NotEct, 0, b"yes", None)
        .expect("sent");
    assert_eq!(&receive(&mut bound, 1)[0].1[..], b"yes");
}
