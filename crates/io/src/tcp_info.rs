//! What the kernel knows of a TCP connection (tcp(7), `TCP_INFO`), and non-blocking connects
//! through one interface.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use ropewalk_types::Rate;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::debug;

use crate::{sys, tcp};

/// State of a TCP connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Smallest round-trip time; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Bytes sent and neither acknowledged nor known lost.
    pub in_flight_bytes: u64,
    /// Bytes in the socket that were not sent yet.
    pub not_sent_bytes: u64,
    /// Delivery rate; zero before the first sample.
    pub delivery_rate: Rate,
    /// Segment size in bytes.
    pub mss: u32,
    /// Segments sent again, in total.
    pub retransmitted: u32,
    /// Segments sent, in total.
    pub sent: u32,
    /// Bytes the peer acknowledged, in total.
    pub acked_bytes: u64,
    /// Time since the last acknowledgement came.
    pub last_ack_age: Duration,
}

/// Reads `TCP_INFO`.
///
/// # Errors
/// Not a TCP socket, or a kernel older than 4.9.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0; STRUCT_BYTES];
    let socket = socket.as_fd();
    let length = sys::read_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    if length < STRUCT_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "TCP_INFO needs Linux 4.9",
        ));
    }
    Ok(parse(&bytes))
}

/// `struct tcp_info` of Linux up to `tcpi_delivery_rate`, which came last of what is used.
const STRUCT_BYTES: usize = 168;

/// Offsets of the fields in `struct tcp_info` (linux/tcp.h), which never change.
mod field {
    pub(super) const LAST_ACK_RECV: usize = 56;
    pub(super) const SND_MSS: usize = 16;
    pub(super) const UNACKED: usize = 24;
    pub(super) const SACKED: usize = 28;
    pub(super) const LOST: usize = 32;
    pub(super) const RETRANS: usize = 36;
    pub(super) const RTT: usize = 68;
    pub(super) const RTTVAR: usize = 72;
    pub(super) const SND_CWND: usize = 80;
    pub(super) const TOTAL_RETRANS: usize = 100;
    pub(super) const BYTES_ACKED: usize = 120;
    pub(super) const SEGS_OUT: usize = 136;
    pub(super) const NOTSENT_BYTES: usize = 144;
    pub(super) const MIN_RTT: usize = 148;
    pub(super) const DELIVERY_RATE: usize = 160;
}

fn parse(bytes: &[u8; STRUCT_BYTES]) -> TcpInfo {
    let word = |at: usize| {
        let mut w = [0; 4];
        w.copy_from_slice(&bytes[at..at + 4]);
        u32::from_ne_bytes(w)
    };
    let long = |at: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(w)
    };
    let micros = |at: usize| Duration::from_micros(word(at).into());
    let mss = word(field::SND_MSS);
    // tcp_packets_in_flight() of Linux: sent, less what left the network, plus sent again.
    let in_flight = u64::from(word(field::UNACKED)) + u64::from(word(field::RETRANS));
    let gone = u64::from(word(field::SACKED)) + u64::from(word(field::LOST));
    TcpInfo {
        srtt: micros(field::RTT),
        rttvar: micros(field::RTTVAR),
        min_rtt: (word(field::MIN_RTT) != u32::MAX).then(|| micros(field::MIN_RTT)),
        cwnd_bytes: u64::from(word(field::SND_CWND)) * u64::from(mss),
        in_flight_bytes: in_flight.saturating_sub(gone) * u64::from(mss),
        not_sent_bytes: word(field::NOTSENT_BYTES).into(),
        delivery_rate: Rate::from_bits_per_sec(long(field::DELIVERY_RATE).saturating_mul(8)),
        mss,
        retransmitted: word(field::TOTAL_RETRANS),
        sent: word(field::SEGS_OUT),
        acked_bytes: long(field::BYTES_ACKED),
        last_ack_age: Duration::from_millis(word(field::LAST_ACK_RECV).into()),
    }
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Where to.
    pub destination: SocketAddr,
    /// Interface the connection is bound to (`SO_BINDTODEVICE`).
    pub device: Option<String>,
    /// Mark of its packets for firewall and routing rules (`SO_MARK`). Needs `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Local address; `None` lets the kernel choose.
    pub source: Option<SocketAddr>,
    /// Congestion control by name (`bbr`, `cubic`); `None` or unknown ones leave the default.
    pub congestion: Option<String>,
    /// Bytes that may wait unsent in the socket before it stops being writable
    /// (`TCP_NOTSENT_LOWAT`), so that packets wait where they can still be rescheduled.
    pub not_sent_low_water: Option<u32>,
}

/// Starts to connect without waiting. The stream is writable when it succeeded or failed, and
/// `take_error` tells which.
///
/// # Errors
/// What `socket`, `bind` or `connect` report at once.
pub fn connect(config: &ConnectConfig) -> io::Result<TcpStream> {
    let domain = Domain::for_address(config.destination);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(device) = &config.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if let Some(mark) = config.mark {
        crate::set_mark(&socket, mark)?;
    }
    if let Some(source) = config.source {
        socket.bind(&source.into())?;
    }
    match socket.connect(&config.destination.into()) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
        _ => {}
    }
    let stream = TcpStream::from(socket);
    tune(&stream, config);
    Ok(stream)
}

/// Sets congestion control and low water mark; what the kernel does not have stays as it is.
fn tune(stream: &TcpStream, config: &ConnectConfig) {
    if let Some(name) = &config.congestion
        && let Err(error) = tcp::set_congestion(stream, name)
    {
        debug!(name, %error, "congestion control not available");
    }
    if let Some(bytes) = config.not_sent_low_water
        && let Err(error) = tcp::set_not_sent_low_water(stream, bytes)
    {
        debug!(%error, "TCP_NOTSENT_LOWAT not available");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn config(destination: SocketAddr) -> ConnectConfig {
        ConnectConfig {
            destination,
            device: Some("lo".into()),
            mark: None,
            source: None,
            congestion: Some("reno".into()),
            not_sent_low_water: Some(16_384),
        }
    }

    /// Waits until the stream is connected.
    fn connected(destination: SocketAddr) -> TcpStream {
        let stream = connect(&config(destination)).expect("connect");
        let mut ready = [rustix::event::PollFd::new(
            &stream,
            rustix::event::PollFlags::OUT,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 5,
            tv_nsec: 0,
        };
        assert_eq!(
            rustix::event::poll(&mut ready, Some(&limit)).expect("poll"),
            1
        );
        stream
    }

    #[test]
    fn info_follows_what_was_sent_and_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut stream = connected(listener.local_addr().expect("address"));
        assert!(stream.take_error().expect("error").is_none());
        let (mut peer, _) = listener.accept().expect("accept");
        let before = tcp_info(&stream).expect("info");
        assert_eq!(before.not_sent_bytes, 0);
        stream.write_all(&[7; 10_000]).expect("write");
        let mut buffer = [0; 10_000];
        peer.read_exact(&mut buffer).expect("read");
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        let mut after = tcp_info(&stream).expect("info");
        while after.acked_bytes < 10_000 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            after = tcp_info(&stream).expect("info");
        }
        // The kernel counts the SYN as one byte.
        assert!((10_000..=10_001).contains(&after.acked_bytes), "{after:?}");
        assert!(
            after.srtt > Duration::ZERO && after.srtt < Duration::from_secs(5),
            "{after:?}"
        );
        assert!(
            after
                .min_rtt
                .is_some_and(|rtt| rtt <= after.srtt.max(Duration::from_millis(1)))
        );
        assert!(after.cwnd_bytes >= u64::from(after.mss), "{after:?}");
        assert_eq!((after.in_flight_bytes, after.not_sent_bytes), (0, 0));
        assert!(after.delivery_rate > Rate::ZERO);
        assert!(after.sent > before.sent);
    }

    #[test]
    fn unread_data_shows_as_not_sent_and_blocks_at_the_low_water_mark() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut stream = connected(listener.local_addr().expect("address"));
        let _peer = listener.accept().expect("accept");
        let block = vec![0; 1 << 16];
        let mut written = 0;
        while written < 64 << 20 {
            match stream.write(&block) {
                Ok(count) => written += count,
                Err(e) => {
                    assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        assert!(
            written < 64 << 20,
            "a peer that does not read must block the sender"
        );
        assert!(tcp_info(&stream).expect("info").not_sent_bytes > 0);
    }

    #[test]
    fn refused_connection_is_reported_by_the_stream() {
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            listener.local_addr().expect("address")
        };
        let error = match connect(&config(closed)) {
            Err(e) => e,
            Ok(stream) => {
                std::thread::sleep(Duration::from_millis(50));
                stream.take_error().expect("error").expect("refused")
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
