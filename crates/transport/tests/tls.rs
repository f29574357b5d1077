//! The TLS path between two machines, bytes passed by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use bytes::Bytes;
use ropewalk_transport::{
    CloseReason, Event, Identity, PublicKey, SendError,
    tls::{DATAGRAM_MAX, OUTPUT_MAX, TcpInfo, TlsPath},
};
use ropewalk_types::{Duration, Instant};

fn identity(byte: u8) -> Identity {
    Identity::from_seed([byte; 32]).unwrap()
}

fn pair(expected: PublicKey, allowed: PublicKey) -> (TlsPath, TlsPath) {
    let client = TlsPath::client(&identity(1), expected).unwrap();
    let server = TlsPath::server(&identity(2), Arc::new(move |key| *key == allowed)).unwrap();
    (client, server)
}

fn good_pair() -> (TlsPath, TlsPath) {
    pair(identity(2).public_key(), identity(1).public_key())
}

/// Moves bytes both ways in pieces of `cut` until nothing moves; errors end the direction.
fn exchange(client: &mut TlsPath, server: &mut TlsPath, cut: usize) -> Vec<String> {
    let mut errors = Vec::new();
    loop {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let moved = client.poll_output(&mut up) + server.poll_output(&mut down);
        assert!(up.len() <= OUTPUT_MAX && down.len() <= OUTPUT_MAX);
        if moved == 0 {
            return errors;
        }
        for (bytes, to) in [(&up, &mut *server), (&down, &mut *client)] {
            for part in bytes.chunks(cut) {
                if let Err(error) = to.handle_bytes(part) {
                    errors.push(error.to_string());
                    break;
                }
            }
        }
    }
}

#[test]
fn a_byte_stream_cut_anywhere_carries_datagrams() {
    for cut in [1, 2, 3, 5, 21, 22, 100, 1_000, 100_000] {
        let (mut client, mut server) = good_pair();
        assert!(client.is_handshaking());
        assert_eq!(
            exchange(&mut client, &mut server, cut),
            Vec::<String>::new(),
            "cut {cut}"
        );
        let connected = |key| {
            Some(Event::Connected {
                peer: identity(key).public_key(),
            })
        };
        assert_eq!(
            (client.poll_event(), server.poll_event()),
            (connected(2), connected(1))
        );
        assert!(!client.is_handshaking() && !server.is_handshaking());
        let sent: Vec<Bytes> = [1, 1_400, DATAGRAM_MAX, 77]
            .iter()
            .map(|&n| Bytes::from(vec![n as u8; n]))
            .collect();
        for datagram in &sent {
            client.send(datagram.clone()).unwrap();
            server.send(datagram.clone()).unwrap();
        }
        exchange(&mut client, &mut server, cut);
        for datagram in &sent {
            assert_eq!(server.receive().as_ref(), Some(datagram), "cut {cut}");
            assert_eq!(client.receive().as_ref(), Some(datagram), "cut {cut}");
        }
        assert_eq!(server.receive(), None);
    }
}

#[test]
fn keys_change_between_datagrams_and_none_is_lost() {
    let (mut client, mut server) = good_pair();
    client.change_keys();
    assert_eq!(client.key_changes(), 0, "not before the peer is known");
    exchange(&mut client, &mut server, 1_000);
    let mut heard = 0;
    for round in 0..100_u8 {
        for side in [&mut client, &mut server] {
            side.send(Bytes::from(vec![round; 1_400])).unwrap();
        }
        let (mut up, mut down) = (Vec::new(), Vec::new());
        // Encrypted with the old keys before the change, on the way after it.
        client.poll_output(&mut up);
        client.change_keys();
        server.poll_output(&mut down);
        server.change_keys();
        server.handle_bytes(&up).unwrap();
        client.handle_bytes(&down).unwrap();
        assert!(exchange(&mut client, &mut server, 700).is_empty());
        for side in [&mut client, &mut server] {
            while let Some(datagram) = side.receive() {
                assert_eq!(datagram, vec![round; 1_400]);
                heard += 1;
            }
        }
    }
    assert_eq!(heard, 200);
    assert_eq!((client.key_changes(), server.key_changes()), (100, 100));
}

#[test]
fn a_wrong_server_key_is_refused_by_the_client() {
    let (mut client, mut server) = pair(identity(9).public_key(), identity(1).public_key());
    assert!(!exchange(&mut client, &mut server, 4_096).is_empty());
    assert!(matches!(
        client.poll_event(),
        Some(Event::Closed {
            reason: CloseReason::KeyRejected(_)
        })
    ));
    assert!(matches!(
        server.poll_event(),
        Some(Event::Closed {
            reason: CloseReason::KeyRejected(_)
        })
    ));
}

#[test]
fn an_unknown_client_key_never_sees_a_connection() {
    let (mut client, mut server) = pair(identity(2).public_key(), identity(9).public_key());
    exchange(&mut client, &mut server, 4_096);
    for side in [&mut client, &mut server] {
        let event = side.poll_event();
        assert!(
            matches!(
                &event,
                Some(Event::Closed {
                    reason: CloseReason::KeyRejected(_) | CloseReason::KeyUnknown
                })
            ),
            "{event:?}"
        );
        assert_eq!(
            side.send(Bytes::from_static(b"x")),
            Err(SendError::NotConnected)
        );
    }
}

#[test]
fn garbage_ends_the_path_with_an_error() {
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"[..],
        &[0; 64],
        &[0x16, 3, 1, 0xff, 0xff, 9],
    ] {
        let (_, mut server) = good_pair();
        let result = server.handle_bytes(garbage);
        let more = server.handle_bytes(&[0xaa; 70_000]);
        assert!(result.is_err() || more.is_err(), "{garbage:?}");
        assert!(matches!(server.poll_event(), Some(Event::Closed { .. })));
        assert_eq!(
            server.handle_bytes(&[1, 2, 3]),
            Ok(()),
            "ignored after the end"
        );
    }
}

#[test]
fn the_queue_is_bounded_and_empties() {
    let (mut client, mut server) = good_pair();
    exchange(&mut client, &mut server, 4_096);
    let datagram = Bytes::from(vec![5; 1_400]);
    let mut sent = 0;
    while client.send(datagram.clone()).is_ok() {
        sent += 1;
        assert!(sent < 1_000);
    }
    assert_eq!(client.send(datagram.clone()), Err(SendError::Full));
    let too_large = client.send(Bytes::from(vec![0; DATAGRAM_MAX + 1]));
    assert_eq!(too_large, Err(SendError::TooLarge(DATAGRAM_MAX)));
    exchange(&mut client, &mut server, 100_000);
    assert_eq!(std::iter::from_fn(|| server.receive()).count(), sent);
    assert_eq!(client.send(datagram), Ok(()));
}

#[test]
fn closing_tells_the_peer_after_the_data() {
    let (mut client, mut server) = good_pair();
    exchange(&mut client, &mut server, 4_096);
    assert!(client.poll_event().is_some() && server.poll_event().is_some());
    client.send(Bytes::from_static(b"last")).unwrap();
    client.close();
    exchange(&mut client, &mut server, 4_096);
    assert_eq!(server.receive().as_deref(), Some(&b"last"[..]));
    assert_eq!(
        server.poll_event(),
        Some(Event::Closed {
            reason: CloseReason::PeerClosed(String::new())
        })
    );
}

#[test]
fn what_waits_unencrypted_counts_as_queued() {
    let (mut client, mut server) = good_pair();
    exchange(&mut client, &mut server, 4_096);
    let info = TcpInfo {
        srtt: Duration::from_millis(20),
        cwnd_bytes: 14_000,
        not_sent_bytes: 100,
        ..TcpInfo::default()
    };
    client.update_tcp_info(Instant::ZERO, info);
    let before = client.snapshot(Instant::ZERO).unwrap();
    client.send(Bytes::from(vec![0; 1_000])).unwrap();
    let after = client.snapshot(Instant::ZERO).unwrap();
    assert_eq!((before.queued, after.queued), (100, 1_102));
    assert_eq!(before.free - after.free, 1_002);
}
