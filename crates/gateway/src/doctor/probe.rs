//! Asks the hub for a sign of life, without keys and without a handshake.
//!
//! A QUIC server answers a packet of a version that it does not know with a Version Negotiation
//! packet (RFC 9000 §6.1), which echoes the connection identifiers (§17.2.1). Versions of the form
//! 0x?a?a?a?a are reserved for exactly this (§15).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ropewalk_api::words::is_stranger;
use ropewalk_host::kill_switch::TUNNEL_MARK;
use ropewalk_io::udp::{RecvMeta, UdpConfig, UdpReceiver, UdpSocket};
use ropewalk_transport::tls::TlsPath;
use ropewalk_transport::{Event, Identity, PublicKey};
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
#[derive(Debug)]
pub struct Connected {
    /// Time until the connection stood.
    pub after: Duration,
    /// What the other end said, if that end is no hub.
    pub stranger: Option<String>,
}

/// Connects to the hub with this key over an interface, and begins TLS with a key that no hub knows.
///
/// # Errors
/// What the system says.
pub fn tcp(device: Option<&str>, hub: SocketAddr, key: PublicKey) -> io::Result<Connected> {
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
    let after = started.elapsed();
    // A hub that is too busy to answer is no stranger.
    let error = handshake(&mut TcpStream::from(socket), key).unwrap_or_default();
    Ok(Connected {
        after,
        stranger: error.filter(|error| is_stranger(error)),
    })
}

/// How a TLS handshake with a hub fails: the hub refuses the key, and a stranger breaks the protocol.
fn handshake(stream: &mut TcpStream, key: PublicKey) -> io::Result<Option<String>> {
    let end = Instant::now() + TCP_WAIT;
    let identity = Identity::generate().map_err(io::Error::other)?;
    let mut tls = TlsPath::client(&identity, key).map_err(io::Error::other)?;
    let mut buffer = [0; 4_096];
    loop {
        let mut output = Vec::new();
        while tls.poll_output(&mut output) > 0 {}
        stream.write_all(&output)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            tls.handle_eof();
        }
        // What broke the protocol is the reason of the event, too.
        let _ = tls.handle_bytes(&buffer[..length]);
        while let Some(event) = tls.poll_event() {
            if let Event::Closed { reason } = event {
                return Ok(Some(reason.to_string()));
            }
        }
    }
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
        let key = Identity::from_seed([1; 32]).unwrap().public_key();
        // The connection ends before an answer, as it does where a hub serves as many as it can.
        let accepts = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(tcp(None, address, key).unwrap().stranger.is_none());
        accepts.join().unwrap();
        assert!(tcp(None, address, key).is_err());
    }

    #[test]
    fn a_login_page_is_a_stranger_and_a_hub_is_none() {
        let hub = Identity::from_seed([1; 32]).unwrap();
        let key = hub.public_key();
        for is_hub in [true, false] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let identity = hub.clone();
            let serves = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = [0; 4_096];
                let nobody: ropewalk_transport::KeyCheck =
                    std::sync::Arc::new(|_: &PublicKey| false);
                let mut tls = TlsPath::server(&identity, nobody).unwrap();
                while let Ok(length) = stream.read(&mut buffer)
                    && length > 0
                {
                    let mut output =
                        b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n".to_vec();
                    if is_hub {
                        output.clear();
                        let _ = tls.handle_bytes(&buffer[..length]);
                        tls.poll_output(&mut output);
                    }
                    let _ = stream.write_all(&output);
                }
            });
            let found = tcp(None, address, key).unwrap();
            assert_eq!(found.stranger.is_none(), is_hub, "{found:?}");
            serves.join().unwrap();
        }
    }
}
