//! Echo requests over one interface (RFC 792, RFC 4443 §4): single ones, and series that the kernel
//! puts the time of arrival on.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{checksum, sys};

/// Sends echo requests and takes the answers, bound to an interface.
#[derive(Debug)]
pub struct Echo {
    socket: Socket,
    ipv6: bool,
    token: [u8; TOKEN_BYTES],
}

/// An echo of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echoed {
    /// Place of its request in the series.
    pub index: usize,
    /// When the request was sent, by the wall clock.
    pub sent: Duration,
    /// When the kernel got the answer, by the same clock.
    pub arrived: Duration,
}

/// Bytes that tell this prober's answers from those of others.
pub const TOKEN_BYTES: usize = 8;
/// Type and code, checksum, identifier and sequence number.
const HEADER_BYTES: usize = 8;
/// Bytes of IP headers without options, by [`Echo::ipv6`].
const IP_BYTES: [usize; 2] = [20, 40];
/// Room for an answer with an IPv4 header with options.
const ANSWER_BYTES: usize = 128;
/// Room for the largest answer of a series.
const SERIES_BYTES_MAX: usize = 2_048;
/// Most requests of a series.
const SERIES_MAX: usize = 1_024;
/// `SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE`.
const TIMESTAMPS: libc::c_int = 1 << 3 | 1 << 4;
/// The kernel begins to take times a moment after it was told to, when a worker thread has run.
const TIMESTAMPS_START: Duration = Duration::from_millis(10);
const ECHO_V4: u8 = 8;
const REPLY_V4: u8 = 0;
const ECHO_V6: u8 = 128;
const REPLY_V6: u8 = 129;

impl Echo {
    /// A prober of one address family, bound to `interface`, whose packets carry `mark`; `token` comes
    /// back with every answer.
    ///
    /// # Errors
    /// Not permitted (`CAP_NET_RAW`), or no such interface.
    pub fn open(
        interface: &str,
        ipv6: bool,
        mark: u32,
        token: [u8; TOKEN_BYTES],
    ) -> io::Result<Self> {
        let (domain, protocol) = if ipv6 {
            (Domain::IPV6, Protocol::ICMPV6)
        } else {
            (Domain::IPV4, Protocol::ICMPV4)
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        crate::set_mark(&socket, mark)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            ipv6,
            token,
        })
    }

    /// Sends an echo request.
    ///
    /// # Errors
    /// What the system call reports, such as no route.
    pub fn send(&self, target: IpAddr, sequence: u16) -> io::Result<()> {
        self.send_padded(target, sequence, 0)
    }

    fn send_padded(&self, target: IpAddr, sequence: u16, padding: usize) -> io::Result<()> {
        let mut packet = vec![if self.ipv6 { ECHO_V6 } else { ECHO_V4 }, 0, 0, 0];
        packet.extend(&self.token[..2]);
        packet.extend(sequence.to_be_bytes());
        packet.extend(self.token);
        packet.resize(packet.len() + padding, 0);
        if !self.ipv6 {
            // The kernel computes that of IPv6, whose pseudo-header it knows.
            let sum = !checksum::fold(checksum::add(0, &packet));
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let target = SocketAddr::new(target, 0);
        self.socket.send_to(&packet, &target.into()).map(drop)
    }

    /// The next answer: who sent it and the sequence number of its request. Packets that do not
    /// answer this prober are skipped.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn receive(&self) -> io::Result<(IpAddr, u16)> {
        loop {
            let mut buffer = [0; ANSWER_BYTES];
            let (length, _, from) =
                rustix::net::recvfrom(&self.socket, &mut buffer, RecvFlags::empty())?;
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            let (bytes, from) = (buffer.get(..length).unwrap_or(&[]), from.map(|f| f.ip()));
            if let (Some(sequence), Some(from)) = (self.answer(bytes), from) {
                return Ok((from, sequence));
            }
        }
    }

    /// Sends requests of these sizes (bytes with the IP header) one after the other, with pauses of
    /// `gap`. Takes the answers until `patience` after the last one. Answers of another size, or
    /// without a time, are left out. Blocks. Meant for a socket of its own: other answers are
    /// dropped.
    ///
    /// # Errors More than 1,024 requests, sizes that do not hold a request or are above 2,048, and
    /// what system calls report, such as no route. A request that the interface drops counts as not
    /// answered.
    pub fn series(
        &self,
        target: IpAddr,
        sizes: &[usize],
        gap: Duration,
        patience: Duration,
    ) -> io::Result<Vec<Echoed>> {
        let least = IP_BYTES[usize::from(self.ipv6)] + HEADER_BYTES + TOKEN_BYTES;
        let fits = |bytes: &usize| (least..=SERIES_BYTES_MAX).contains(bytes);
        if sizes.len() > SERIES_MAX || !sizes.iter().all(fits) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sys::set_option(
            &self.socket,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            TIMESTAMPS,
        )?;
        std::thread::sleep(TIMESTAMPS_START);
        let (mut sent, mut echoed) = (Vec::with_capacity(sizes.len()), Vec::new());
        for (index, bytes) in sizes.iter().enumerate() {
            sent.push(wall_clock());
            let sequence = u16::try_from(index).unwrap_or(u16::MAX);
            match self.send_padded(target, sequence, bytes - least) {
                Err(error) if !is_full(&error) => return Err(error),
                _ => {}
            }
            if !gap.is_zero() {
                self.collect(sizes, &sent, &mut echoed, gap)?;
            }
        }
        self.collect(sizes, &sent, &mut echoed, patience)?;
        Ok(echoed)
    }

    /// Takes answers for `time`, or until everything that was sent is answered.
    fn collect(
        &self,
        sizes: &[usize],
        sent: &[Duration],
        echoed: &mut Vec<Echoed>,
        time: Duration,
    ) -> io::Result<()> {
        let end = Instant::now() + time;
        let mut buffers: [BytesMut; sys::SLOTS] = Default::default();
        let mut received = Vec::new();
        while echoed.len() < sizes.len() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.wait(left)? {
                break;
            }
            buffers.iter_mut().for_each(|buffer| {
                buffer.clear();
                buffer.reserve(SERIES_BYTES_MAX);
            });
            received.clear();
            match sys::receive(self.as_fd(), &mut buffers, &mut received) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                other => other?,
            }
            for (buffer, received) in buffers.iter().zip(&received) {
                let index = self.answer(buffer).map(usize::from);
                let whole = |index: usize| {
                    let header = if self.ipv6 { IP_BYTES[1] } else { 0 };
                    sizes.get(index) == Some(&(buffer.len() + header))
                };
                let Some(index) = index.filter(|&index| whole(index)) else {
                    continue;
                };
                let is_new = echoed.iter().all(|other| other.index != index);
                if let (Some(&sent), Some(arrived), true) =
                    (sent.get(index), received.arrived, is_new)
                {
                    echoed.push(Echoed {
                        index,
                        sent,
                        arrived,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether something came within `time`.
    fn wait(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut ready, Some(&time)) {
            Err(rustix::io::Errno::INTR) => Ok(true),
            other => Ok(other? > 0),
        }
    }

    fn answer(&self, bytes: &[u8]) -> Option<u16> {
        let header = if self.ipv6 {
            0
        } else {
            usize::from(bytes.first()? & 0xf) * 4
        };
        let icmp = bytes.get(header..)?;
        let wanted = if self.ipv6 { REPLY_V6 } else { REPLY_V4 };
        let token = icmp.get(HEADER_BYTES..HEADER_BYTES + TOKEN_BYTES)?;
        let sequence = icmp.get(6..8)?.first_chunk()?;
        (icmp[0] == wanted && token == self.token).then(|| u16::from_be_bytes(*sequence))
    }
}

/// Whether only this packet could not be sent.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// The clock of the kernel's timestamps.
fn wall_clock() -> Duration {
    let now = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl AsFd for Echo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_answers_come_back_and_those_of_others_do_not() {
        for (ipv6, target) in [(false, "127.0.0.1"), (true, "::1")] {
            let open = |token| Echo::open("lo", ipv6, 0, [token; TOKEN_BYTES]);
            let (first, second) = match (open(7), open(8)) {
                (Ok(first), Ok(second)) => (first, second),
                (Err(error), _) | (_, Err(error)) => {
                    eprintln!("skipped: needs root ({error})");
                    return;
                }
            };
            let target: IpAddr = target.parse().expect("address");
            if first.send(target, 513).is_err() {
                eprintln!("skipped: no {target} here");
                continue;
            }
            let mut came = Vec::new();
            for _ in 0..50 {
                came.extend(first.receive());
                assert!(second.receive().is_err(), "an answer to somebody else");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            assert_eq!(came, [(target, 513)]);
        }
    }

    #[test]
    fn a_series_comes_back_with_the_times_of_the_kernel() {
        for (ipv6, target) in [(false, "127.0.0.1"), (true, "::1")] {
            let Ok(echo) = Echo::open("lo", ipv6, 0, [9; TOKEN_BYTES]) else {
                eprintln!("skipped: needs root");
                return;
            };
            let target: IpAddr = target.parse().expect("address");
            let begin = wall_clock();
            let (gap, patience) = (Duration::from_millis(2), Duration::from_secs(2));
            let sizes = [100, 1_200, 100, 600];
            let series = || echo.series(target, &sizes, gap, patience);
            let Ok(mut echoed) = series() else {
                eprintln!("skipped: no {target} here");
                continue;
            };
            // On a starved machine the first may still come without a time.
            for _ in 0..4 {
                if echoed.len() < sizes.len() {
                    echoed = series().expect("it went before");
                }
            }
            let order: Vec<usize> = echoed.iter().map(|echo| echo.index).collect();
            assert_eq!(order, [0, 1, 2, 3]);
            for echo in &echoed {
                assert!(begin <= echo.sent && echo.sent <= echo.arrived, "{echo:?}");
            }
            for wrong in [&[20][..], &[3_000], &[100; SERIES_MAX + 1]] {
                assert!(echo.series(target, wrong, gap, patience).is_err());
            }
        }
    }
}
