//! TUN interface with segmentation offloads.
//!
//! Invariants:
//! - A packet enters the kernel at most once.
//! - Packets of one flow keep their order.
//! - An offload that the kernel refuses is given up for good with one log line, and its packets are
//!   sent without it.
//!
//! Source: Linux `Documentation/networking/tuntap.rst`, virtio 1.2 §5.1.6.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::coalesce::{self, Allowed, Coalescer, Group};
use crate::headers::Plain;
use crate::helper::{self, Order};
use crate::pool::Pool;
use crate::split::split;
use crate::virtio::{VNET_HEADER_LEN, VnetHeader};
use crate::{InnerPacket, TunPacket, emit, netlink, sys};

/// How to open a TUN interface.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// Interface name, at most 15 bytes; `%d` is replaced by the first free number.
    pub name: String,
    /// MTU in bytes, 68..=65535 (1280 and more for IPv6).
    pub mtu: usize,
    /// Whether to use segmentation and checksum offloads where the kernel has them.
    pub offload: bool,
}

/// Why a TUN interface could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// `/dev/net/tun` is missing.
    #[error("/dev/net/tun is missing: load the kernel module with `modprobe tun`")]
    NoDevice,
    /// The process may not create network interfaces.
    #[error("creating the TUN interface {0} needs CAP_NET_ADMIN: run as root")]
    NotPermitted(String),
    /// Another process holds an interface of this name.
    #[error("the interface name {0} is in use: choose another name or stop the other program")]
    NameTaken(String),
    /// The name is empty, too long or has characters interfaces cannot have.
    #[error("{0:?} is no interface name: 1 to 15 bytes without space, `/` or `:`")]
    BadName(String),
    /// Another system call failed.
    #[error("{step} on the TUN interface {name}: {source}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Interface name.
        name: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Which offloads of a TUN interface are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The kernel hands over and takes TCP super packets of up to 64 KiB.
    pub tso: bool,
    /// The same for UDP.
    pub uso: bool,
    /// The kernel leaves TCP and UDP checksums to whoever delivers the packet.
    pub checksum: bool,
    /// One sentence for every offload that is off although it was asked for.
    pub given_up: Vec<String>,
}

/// What became of a batch of packets written to a TUN interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Inner packets the kernel took.
    pub written: usize,
    /// System calls it took.
    pub calls: usize,
    /// Inner packets that are neither IPv4 nor IPv6.
    pub dropped_invalid: usize,
    /// Inner packets lost to a full queue or missing memory (`EAGAIN`, `ENOBUFS`, `ENOMEM`).
    pub dropped_full: usize,
    /// Inner packets the kernel refused otherwise (interface down, bad header).
    pub dropped_refused: usize,
}

/// Counts of a TUN interface since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunCounters {
    /// Inner packets read.
    pub received: u64,
    /// Reads that gave something: super packets count once.
    pub received_reads: u64,
    /// Reads dropped because the kernel's offload header contradicts the packet.
    pub dropped_bad_super: u64,
    /// Inner packets written.
    pub written: u64,
    /// Writes that succeeded: super packets count once.
    pub written_calls: u64,
}

/// An open TUN interface; it vanishes when dropped.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    /// A socket of the network namespace the interface was made in, for ioctls.
    control: OwnedFd,
    name: String,
    ifindex: u32,
    /// Every packet has a virtio header in front.
    vnet: bool,
    offloads: Offloads,
    /// What may be written as super packets; shrinks when the kernel refuses one.
    coalesce: Allowed,
    coalescer: Coalescer,
    read_buffer: Box<[u8]>,
    pool: Pool,
    counters: TunCounters,
}

/// Reads end a batch when it has this many packets, so that receiving cannot starve sending.
pub const RECV_PACKETS_MAX: usize = 192;

/// Reads per batch, should most of them be dropped.
const RECV_READS_MAX: usize = 256;

/// Largest packet a TUN interface hands over, super packets included.
const PACKET_BYTES_MAX: usize = 65_536;

/// Pool blocks take the largest packet twice.
const POOL_BLOCK_BYTES: usize = 128 * 1024;

/// Packets that may wait in the interface for this process: 13 ms of 1,200-byte packets at 150,000 a second.
/// The kernel drops what finds the queue full. Its own default of 500 packets is 3 ms, and overflowed while
/// other processes had the processor. Longer waits would delay interactive packets.
const QUEUE_PACKETS: u32 = 2_000;

/// Larger batches are written in parts, so that the memory for planning stays bounded.
const SEND_PACKETS_MAX: usize = 1024;

impl Tun {
    /// Creates the interface (down, without addresses), or attaches to a persistent one that no
    /// other process uses.
    ///
    /// # Errors
    /// See [`TunError`].
    pub fn open(config: &TunConfig) -> Result<Self, TunError> {
        Self::open_queue(config, 0)
    }

    /// [`Self::open`] with several queues, each of which can be read and written by another thread. The
    /// kernel puts a packet into the queue that wrote a packet of the same flow in the last three seconds; other
    /// packets may come in any. Unlike [`Self::open`] it never attaches to an interface that is there.
    ///
    /// # Errors
    /// See [`TunError`].
    pub fn open_queues(config: &TunConfig, count: usize) -> Result<Vec<Self>, TunError> {
        if count <= 1 {
            return Ok(vec![Self::open(config)?]);
        }
        // Without the second flag it would become a queue of another program's interface.
        let first = Self::open_queue(config, libc::IFF_MULTI_QUEUE | libc::IFF_TUN_EXCL)?;
        let config = TunConfig {
            name: first.name.clone(),
            ..config.clone()
        };
        let mut queues = vec![first];
        for _ in 1..count {
            queues.push(Self::open_queue(&config, libc::IFF_MULTI_QUEUE)?);
        }
        Ok(queues)
    }

    fn open_queue(config: &TunConfig, more: libc::c_int) -> Result<Self, TunError> {
        check_name(&config.name)?;
        let fail = |step| {
            let name = config.name.clone();
            move |source: io::Error| TunError::Io { step, name, source }
        };
        let vnet = if config.offload {
            libc::IFF_VNET_HDR
        } else {
            0
        };
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | vnet | more;
        let (fd, made) = open_with_rights(&config.name, flags).map_err(|error| {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => TunError::NoDevice,
                Some(Errno::ACCESS | Errno::PERM) => TunError::NotPermitted(config.name.clone()),
                Some(Errno::BUSY | Errno::INVAL) => TunError::NameTaken(config.name.clone()),
                _ => fail("TUNSETIFF")(error),
            }
        })?;
        let Made { name, ifindex } = made;
        let control = control_socket().map_err(fail("opening a control socket"))?;
        let (offloads, coalesce) = negotiate(fd.as_fd(), config.offload);
        let tun = Self {
            fd,
            control,
            name,
            ifindex,
            vnet: config.offload,
            offloads,
            coalesce,
            coalescer: Coalescer::default(),
            read_buffer: vec![0; VNET_HEADER_LEN + PACKET_BYTES_MAX].into_boxed_slice(),
            pool: Pool::new(POOL_BLOCK_BYTES),
            counters: TunCounters::default(),
        };
        tun.set_mtu(config.mtu).map_err(fail("setting the MTU"))?;
        Ok(tun)
    }

    /// Interface name, with the number in place of `%d`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kernel interface index.
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Offloads in use now; writing may give some up.
    #[must_use]
    pub const fn offloads(&self) -> &Offloads {
        &self.offloads
    }

    /// Counts since the interface was opened.
    #[must_use]
    pub const fn counters(&self) -> TunCounters {
        self.counters
    }

    /// Sets the MTU of the interface, in bytes.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` out of range.
    pub fn set_mtu(&self, mtu: usize) -> io::Result<()> {
        let order = Order::SetMtu {
            name: self.name.clone(),
            bytes: mtu,
        };
        match helper::quick_order(&order, None) {
            Some(done) => done.map(|((), _)| ()).map_err(io::Error::from),
            None => sys::set_interface_mtu(self.control.as_fd(), &self.name, mtu),
        }
    }

    /// Appends the packets that wait in the interface to `out`; returns how many. Reads until
    /// nothing waits or the batch has [`RECV_PACKETS_MAX`] packets (a super packet is never left
    /// half read). Zero means nothing waits.
    ///
    /// # Errors
    /// The interface is gone or broken; packets read before stay in `out`.
    pub fn recv_batch(&mut self, out: &mut Vec<TunPacket>) -> io::Result<usize> {
        let mut received = 0;
        for _ in 0..RECV_READS_MAX {
            if received >= RECV_PACKETS_MAX {
                break;
            }
            let length = match rustix::io::read(&self.fd, &mut self.read_buffer[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            self.counters.received_reads += 1;
            match self.take_read(length, out) {
                Some(count) => received += count,
                None => self.counters.dropped_bad_super += 1,
            }
        }
        self.counters.received += u64::try_from(received).unwrap_or(0);
        Ok(received)
    }

    /// Splits the first `length` bytes of the read buffer; `None` when they are malformed.
    fn take_read(&mut self, length: usize, out: &mut Vec<TunPacket>) -> Option<usize> {
        let read = self.read_buffer.get_mut(..length)?;
        if !self.vnet {
            return split(&VnetHeader::default(), read, &mut self.pool, out).ok();
        }
        let (header, packet) = read.split_first_chunk_mut::<VNET_HEADER_LEN>()?;
        split(&VnetHeader::parse(header), packet, &mut self.pool, out).ok()
    }

    /// Writes `packets` in order per flow and empties the vector. Losses are counted, not errors.
    ///
    /// # Errors
    /// The interface is gone (`EBADFD`); the packets are dropped.
    pub fn send_batch(&mut self, packets: &mut Vec<InnerPacket>) -> io::Result<SendReport> {
        let mut report = SendReport::default();
        let mut coalescer = std::mem::take(&mut self.coalescer);
        let mut result = Ok(());
        for part in packets.chunks(SEND_PACKETS_MAX) {
            coalescer.plan(part, self.coalesce);
            for group in coalescer.groups() {
                result = self.write_group(part, &coalescer, group, &mut report);
                if result.is_err() {
                    break;
                }
            }
        }
        self.coalescer = coalescer;
        packets.clear();
        self.counters.written += u64::try_from(report.written).unwrap_or(0);
        self.counters.written_calls += u64::try_from(report.calls).unwrap_or(0);
        result.map(|()| report)
    }

    fn write_group(
        &mut self,
        packets: &[InnerPacket],
        coalescer: &Coalescer,
        group: &Group,
        report: &mut SendReport,
    ) -> io::Result<()> {
        let refused = match group.plain {
            Some(plain) if group.count > 1 => {
                match self.write_super(packets, coalescer, group, plain) {
                    Err(error @ (Errno::INVAL | Errno::IO)) => Some((error, plain)),
                    result => return tally(result, group.count, report),
                }
            }
            _ => None,
        };
        let mut index = group.first;
        for _ in 0..group.count {
            let result = self.write_one(&packets[index], group.plain);
            // A single packet passes where the super packet did not: the offload is at fault. An
            // interface that is down refuses both.
            if let (Some((error, plain)), Ok(())) = (refused, result) {
                self.give_up(plain, error);
            }
            match result {
                Err(Refusal::Invalid) => report.dropped_invalid += 1,
                Err(Refusal::Kernel(e)) => tally(Err(e), 1, report)?,
                Ok(()) => tally(Ok(()), 1, report)?,
            }
            index = coalescer.after(index);
        }
        Ok(())
    }

    fn give_up(&mut self, plain: Plain, error: Errno) {
        let (allowed, protocol) = if plain.tcp {
            (&mut self.coalesce.tcp, "TCP")
        } else {
            (&mut self.coalesce.udp, "UDP")
        };
        if std::mem::take(allowed) {
            warn!(interface = self.name, protocol, %error, "super packets given up when writing");
            self.offloads.given_up.push(format!(
                "writing {protocol} super packets: the kernel said {error}"
            ));
        }
    }

    /// Writes one packet, whose headers are `plain` if it is a plain one.
    fn write_one(&self, packet: &InnerPacket, plain: Option<Plain>) -> Result<(), Refusal> {
        if !matches!(packet.front().first().map(|b| b >> 4), Some(4 | 6)) {
            return Err(Refusal::Invalid);
        }
        if !packet.checksum_partial {
            let header = VnetHeader::default().to_bytes();
            let header = if self.vnet { &header[..] } else { &[] };
            let pieces = [header, &packet.head, &packet.data];
            return Ok(self.write(&pieces.map(IoSlice::new))?);
        }
        // Only plain packets may come with a partial checksum.
        let plain = plain.ok_or(Refusal::Invalid)?;
        let scratch = emit::completed(packet, plain, self.offloads.checksum);
        let payload = IoSlice::new(packet.payload(plain.header_len));
        Ok(self.write(&[IoSlice::new(scratch.bytes(self.vnet)), payload])?)
    }

    /// Writes a group as one super packet whose payloads stay where they are.
    fn write_super(
        &self,
        packets: &[InnerPacket],
        coalescer: &Coalescer,
        group: &Group,
        plain: Plain,
    ) -> Result<(), Errno> {
        let scratch = emit::super_packet(&packets[group.first], group, plain);
        let mut slices = [IoSlice::new(&[]); 1 + coalesce::SEGMENTS_MAX];
        slices[0] = IoSlice::new(scratch.bytes(true));
        let mut index = group.first;
        for slice in &mut slices[1..=group.count] {
            *slice = IoSlice::new(packets[index].payload(plain.header_len));
            index = coalescer.after(index);
        }
        self.write(&slices[..=group.count])
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> Result<(), Errno> {
        loop {
            match rustix::io::writev(&self.fd, slices) {
                Err(Errno::INTR) => {}
                result => return result.map(drop),
            }
        }
    }
}

/// Why a single packet was not written.
#[derive(Clone, Copy)]
enum Refusal {
    /// It is not an IP packet, or its partial checksum cannot be completed.
    Invalid,
    Kernel(Errno),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Counts one write of `packets` packets; only a missing interface is an error.
fn tally(result: Result<(), Errno>, packets: usize, report: &mut SendReport) -> io::Result<()> {
    match result {
        Ok(()) => {
            report.written += packets;
            report.calls += 1;
        }
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => report.dropped_full += packets,
        Err(e @ (Errno::BADFD | Errno::BADF)) => return Err(e.into()),
        Err(_) => report.dropped_refused += packets,
    }
    Ok(())
}

/// Asks for as many offloads as the kernel has.
fn negotiate(tun: BorrowedFd<'_>, wanted: bool) -> (Offloads, Allowed) {
    let mut offloads = Offloads::default();
    if !wanted {
        return (
            offloads,
            Allowed {
                tcp: false,
                udp: false,
            },
        );
    }
    let checksum = libc::TUN_F_CSUM;
    let tso = checksum | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let uso = tso | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    for (set, lost) in [
        (uso, "UDP segmentation"),
        (tso, "TCP segmentation"),
        (checksum, "checksum"),
    ] {
        match sys::tun_set_offload(tun, set) {
            Ok(()) => {
                offloads.checksum = true;
                offloads.tso = set & libc::TUN_F_TSO4 != 0;
                offloads.uso = set & libc::TUN_F_USO4 != 0;
                break;
            }
            Err(error) => {
                warn!(offload = lost, %error, "the kernel's TUN driver has no such offload");
                offloads
                    .given_up
                    .push(format!("{lost} offload: the kernel said {error}"));
            }
        }
    }
    let coalesce = Allowed {
        tcp: offloads.tso,
        udp: offloads.uso,
    };
    (offloads, coalesce)
}

/// Longest interface name in bytes (`IFNAMSIZ` less the final zero).
const NAME_BYTES_MAX: usize = 15;

/// An interface that was made or attached to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
}

/// What interfaces are made with.
pub(crate) const FLAGS: libc::c_int = libc::IFF_TUN
    | libc::IFF_NO_PI
    | libc::IFF_VNET_HDR
    | libc::IFF_MULTI_QUEUE
    | libc::IFF_TUN_EXCL;

/// By the helper, where there is one.
fn open_with_rights(name: &str, flags: libc::c_int) -> io::Result<(OwnedFd, Made)> {
    let order = Order::OpenTun {
        name: name.to_owned(),
        flags,
    };
    let Some(done) = helper::quick_order(&order, None) else {
        return open_here(name, flags);
    };
    let (made, tun): (Made, _) = done?;
    let tun = tun.ok_or_else(|| io::Error::other("the helper sent no descriptor"))?;
    Ok((tun, made))
}

/// Makes an interface, or attaches to it.
pub(crate) fn open_here(name: &str, flags: libc::c_int) -> io::Result<(OwnedFd, Made)> {
    let open = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tun = rustix::fs::open("/dev/net/tun", open, Mode::empty())?;
    let name = sys::tun_set_interface(tun.as_fd(), name, flags)?;
    let ifindex = rustix::net::netdevice::name_to_index(control_socket()?, &name)?;
    netlink::set_queue_here(ifindex, QUEUE_PACKETS).map_err(io::Error::other)?;
    Ok((tun, Made { name, ifindex }))
}

pub(crate) fn set_mtu_here(name: &str, mtu: usize) -> io::Result<()> {
    sys::set_interface_mtu(control_socket()?.as_fd(), name, mtu)
}

/// Any socket, for requests about interfaces.
fn control_socket() -> io::Result<OwnedFd> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    Ok(socket.into())
}

fn check_name(name: &str) -> Result<(), TunError> {
    let sound = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':')
        && name.matches('%').count() <= 1
        && name.contains('%') == name.contains("%d");
    if sound {
        Ok(())
    } else {
        Err(TunError::BadName(name.to_owned()))
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Tun {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
