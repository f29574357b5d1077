//! Asks the hub for a sign of life, without keys and without a handshake.
//!
//! A QUIC server answers a packet of a version that it does not know with a Version Negotiation
//! packet (RFC 9000 §6.1), which echoes the connection identifiers (§17.2.1). Versions of the form
//! 0x?a?a?a?a are reserved for exactly this (§15).

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ropewalk_host::kill_switch::TUNNEL_MARK;
use ropewalk_io::udp::{RecvMeta, UdpConfig, UdpReceiver, UdpSocket};
use ropewalk_types::Ecn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::service::has_net_admin;

/// Smallest payload that a server must answer (RFC 9000 §14.1).
pub const PAYLOAD_MIN: usize = 1_200;
/// How often the probe is sent, and how long each waits for an answer.
const TRIES: usize = 3;
const WAIT: Duration = Duration::from_millis(700);
/// How long a TCP connection may take.
const TCP_WAIT: Duration = Duration::from_secs(3);
const VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
const ID_BYTES: usize = 8;
const BUFFER_BYTES: usize = 1 << 16;

/// Sends `payload` bytes of UDP to the hub over an interface; the time until the answer, `None`
/// when none came.
///
/// # Errors
/// The socket cannot be used: no route, too large for the interface, not permitted.
pub fn udp(
    device: Option<&str>,
    source: Option<IpAddr>,
    hub: SocketAddr,
    payload: usize,
) -> io::Result<Option<Duration>> {
    let any = if hub.is_ipv4() {
        IpAddr::from([0; 4])
    } else {
        IpAddr::from([0_u16; 8])
    };
    let mut socket = UdpSocket::bind(&UdpConfig {
        bind: SocketAddr::new(source.unwrap_or(any), 0),
        device: device.map(str::to_owned),
        mark: has_net_admin().then_some(TUNNEL_MARK),
        recv_buffer: BUFFER_BYTES,
        send_buffer: BUFFER_BYTES,
        group: None,
    })?;
    let mut ids = [0; 2 * ID_BYTES];
    ropewalk_crypto::rand::fill(&mut ids).map_err(|_| io::Error::other("no random numbers"))?;
    let packet = probe_packet(&ids, payload);
    let mut receiver = UdpReceiver::default();
    for _ in 0..TRIES {
        let sent = Instant::now();
        socket.send(hub, None, Ecn::NotEct, 0, &packet, None)?;
        while let Some(left) = WAIT.checked_sub(sent.elapsed()) {
            if !readable(&socket, left)? {
                break;
            }
            let mut received: Vec<(RecvMeta, BytesMut)> = Vec::new();
            socket.recv_batch(&mut receiver, &mut received)?;
            if received.iter().any(|(_, bytes)| is_answer(bytes, &ids)) {
                return Ok(Some(sent.elapsed()));
            }
        }
    }
    Ok(None)
}

/// Whether a TCP connection to the hub comes about over an interface, and how long it took.
///
/// # Errors
/// What the system says.
pub fn tcp(device: Option<&str>, hub: SocketAddr) -> io::Result<Duration> {
    let started = Instant::now();
    let domain = socket2::Domain::for_address(hub);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if has_net_admin() {
        // As the tunnel's own connections have it, which a kill switch lets pass.
        socket.set_mark(TUNNEL_MARK)?;
    }
    socket.connect_timeout(&hub.into(), TCP_WAIT)?;
    drop(TcpStream::from(socket));
    Ok(started.elapsed())
}

fn probe_packet(ids: &[u8; 2 * ID_BYTES], payload: usize) -> Vec<u8> {
    // Long header with the fixed bit. The rest of a packet of an unknown version is arbitrary.
    let mut packet = vec![0xc0];
    packet.extend_from_slice(&VERSION);
    for id in ids.chunks(ID_BYTES) {
        packet.push(ID_BYTES as u8);
        packet.extend_from_slice(id);
    }
    packet.resize(payload.max(PAYLOAD_MIN), 0);
    packet
}

fn is_answer(bytes: &[u8], ids: &[u8; 2 * ID_BYTES]) -> bool {
    let (destination, source) = ids.split_at(ID_BYTES);
    let mut expected = vec![0, 0, 0, 0, ID_BYTES as u8];
    // The server swaps the identifiers.
    expected.extend_from_slice(source);
    expected.push(ID_BYTES as u8);
    expected.extend_from_slice(destination);
    bytes.first().is_some_and(|first| first & 0x80 != 0) && bytes[1..].starts_with(&expected)
}

fn readable(socket: &UdpSocket, wait: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as StdUdpSocket;

    use super::*;

    /// Answers one probe as a server does, or wrongly.
    fn server(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let socket = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2_000];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&answer(&buffer[..length]), from);
            }
        });
        address
    }

    fn negotiation(probe: &[u8]) -> Vec<u8> {
        let (dcid, scid) = (&probe[6..14], &probe[15..23]);
        let mut answer = vec![0x80, 0, 0, 0, 0, 8];
        answer.extend_from_slice(scid);
        answer.push(8);
        answer.extend_from_slice(dcid);
        answer.extend_from_slice(&[0, 0, 0, 1]);
        answer
    }

    #[test]
    fn version_negotiation_is_a_sign_of_life() {
        let found = udp(None, None, server(negotiation), PAYLOAD_MIN).unwrap();
        assert!(found.is_some());
    }

    #[test]
    fn other_answers_and_silence_are_none() {
        let echo = server(<[u8]>::to_vec);
        assert_eq!(udp(None, None, echo, PAYLOAD_MIN).unwrap(), None);
        let silent = StdUdpSocket::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(udp(None, None, address, PAYLOAD_MIN).unwrap(), None);
    }

    #[test]
    fn tcp_tells_listening_from_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(tcp(None, address).is_ok());
        drop(listener);
        assert!(tcp(None, address).is_err());
    }
}
