//! The system calls that no safe library offers: TUN ioctls, batched UDP, `TCP_INFO`.
//!
//! Every function here is safe to call with any argument; what it hands to the kernel lives until
//! the call returns.

use std::ffi::CString;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use rustix::event::epoll;
use socket2::{SockAddr, SockAddrStorage};

/// `ioctl(TUNSETIFF)`: attaches `tun` to the interface `name`; returns its real name.
pub(crate) fn tun_set_interface(
    tun: BorrowedFd<'_>,
    name: &str,
    flags: libc::c_int,
) -> io::Result<String> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = libc::c_short::from_ne_bytes(low_half(flags));
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let name = request.ifr_name.iter().take_while(|c| **c != 0);
    Ok(name.map(|c| char::from(c.to_ne_bytes()[0])).collect())
}

/// `ioctl(TUNSETOFFLOAD)`: what the reader of the interface takes.
pub(crate) fn tun_set_offload(tun: BorrowedFd<'_>, offloads: libc::c_uint) -> io::Result<()> {
    let offloads = libc::c_ulong::from(offloads);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) }).map(drop)
}

/// `ioctl(SIOCSIFMTU)` through any socket of the interface's network namespace.
pub(crate) fn set_interface_mtu(socket: BorrowedFd<'_>, name: &str, mtu: usize) -> io::Result<()> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_mtu =
        libc::c_int::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The number of the request has another type in each C library.
    let change = libc::SIOCSIFMTU as _;
    // SAFETY: SIOCSIFMTU reads one `ifreq`, which `request` is.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), change, &raw const request) }).map(drop)
}

/// Makes a copy of this process; true in the copy. The caller has one thread, so that no lock is held
/// by another in the copy.
pub(crate) fn fork() -> io::Result<bool> {
    // SAFETY: fork takes no arguments. With one thread the copy may do whatever the original may.
    Ok(check(unsafe { libc::fork() })? == 0)
}

/// Ends this process without anything that it would do at its end.
pub(crate) fn exit_now() -> ! {
    // SAFETY: _exit takes a number and does not return.
    unsafe { libc::_exit(0) }
}

/// Ignores the signals that stop, reload or restart a gateway.
pub(crate) fn ignore_stop_signals() {
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ] {
        // SAFETY: SIG_IGN is a valid disposition, and no handler of ours is in the way.
        let _ = unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Adds a filter of system calls to this thread and those that it will make. What it refuses is
/// logged where the kernel logs (`kernel.seccomp.actions_logged`).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn add_filter(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let copied = program.iter().map(|step| libc::sock_filter {
        code: step.code,
        jt: step.jt,
        jf: step.jf,
        k: step.k,
    });
    let mut steps: Vec<libc::sock_filter> = copied.collect();
    let filter = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(io::Error::other)?,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_LOG,
            &raw const filter,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `epoll_pwait` without waiting: adds to `events` what is ready, as many as it has capacity for.
pub(crate) fn ready_now(epoll: BorrowedFd<'_>, events: &mut Vec<epoll::Event>) -> io::Result<()> {
    const {
        assert!(mem::size_of::<epoll::Event>() == mem::size_of::<libc::epoll_event>());
        assert!(mem::align_of::<epoll::Event>() == mem::align_of::<libc::epoll_event>());
    };
    let spare = events.spare_capacity_mut();
    let most = libc::c_int::try_from(spare.len()).unwrap_or(libc::c_int::MAX);
    let first = spare.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `most` events to `first`, which has place for them. Both types
    // of events are laid out as the kernel's.
    let count =
        check(unsafe { libc::epoll_pwait(epoll.as_raw_fd(), first, most, 0, std::ptr::null()) })?;
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: the kernel has written `count` events behind those that were there.
    unsafe { events.set_len(events.len() + count) };
    Ok(())
}

/// A system call with zeros for arguments.
#[cfg(test)]
pub(crate) fn bare_call(number: libc::c_long) -> io::Result<()> {
    // SAFETY: tests ask for calls that a null pointer makes fail.
    let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain data for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let name = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let bytes = name.as_bytes_with_nul();
    if bytes.len() > request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    Ok(request)
}

/// The low 16 bits: interface flags fit them.
fn low_half(flags: libc::c_int) -> [u8; 2] {
    let bytes = flags.to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]]).to_ne_bytes()
}

/// Sets a socket option with an integer value.
pub(crate) fn set_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = socklen(mem::size_of::<libc::c_int>());
    // SAFETY: the pointer is to an integer of the given length that outlives the call.
    let result = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value, length)
    };
    check(result).map(drop)
}

/// Largest number of messages in one [`receive`].
pub(crate) const SLOTS: usize = 8;

/// Room for control messages: `IP_TOS`, `IPV6_TCLASS`, both packet infos and `UDP_GRO`.
const CONTROL_BYTES: usize = 192;

#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

impl Control {
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); CONTROL_BYTES])
    }
}

/// One buffer that [`receive`] filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    /// Traffic class of the outer header.
    pub(crate) traffic_class: u8,
    /// Size of every datagram in the buffer but the last; `None` when it is one datagram.
    pub(crate) segment: Option<usize>,
    /// When the kernel got it, by the wall clock; only of sockets that ask for it.
    pub(crate) arrived: Option<Duration>,
    pub(crate) truncated: bool,
}

/// `recvmmsg` into the spare capacity of `buffers`, which must be empty; sets the length of those
/// filled, and describes them in `out` in the same order.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [BytesMut; SLOTS],
    out: &mut Vec<Received>,
) -> io::Result<()> {
    let mut names: [MaybeUninit<SockAddrStorage>; SLOTS] = [const { MaybeUninit::uninit() }; SLOTS];
    let mut controls = [const { Control::new() }; SLOTS];
    let mut vectors = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; SLOTS];
    // SAFETY: `mmsghdr` is plain data for which all zeros are valid.
    let mut messages: [libc::mmsghdr; SLOTS] = unsafe { mem::zeroed() };
    for (i, message) in messages.iter_mut().enumerate() {
        debug_assert!(buffers[i].is_empty());
        let spare = buffers[i].spare_capacity_mut();
        vectors[i] = libc::iovec {
            iov_base: spare.as_mut_ptr().cast(),
            iov_len: spare.len(),
        };
        let header = &mut message.msg_hdr;
        header.msg_name = names[i].as_mut_ptr().cast();
        header.msg_namelen = socklen(mem::size_of::<SockAddrStorage>());
        header.msg_iov = &raw mut vectors[i];
        header.msg_iovlen = 1;
        header.msg_control = controls[i].0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
    }
    // SAFETY: every message points to a name, a control buffer and a vector of the lengths given.
    // The vector points to spare capacity of a buffer. All outlive the call and are not aliased.
    let count = check(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            SLOTS as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    })?;
    let count = usize::try_from(count).unwrap_or(0);
    for (i, message) in messages.iter().take(count).enumerate() {
        let length = usize::try_from(message.msg_len)
            .unwrap_or(0)
            .min(vectors[i].iov_len);
        // SAFETY: the kernel initialised the first `length` bytes of the spare capacity.
        unsafe { buffers[i].set_len(length) };
        out.push(describe(&message.msg_hdr));
    }
    Ok(())
}

/// Reads the name and the control messages the kernel wrote.
fn describe(header: &libc::msghdr) -> Received {
    // SAFETY: called for messages that `recvmmsg` filled. The name holds `msg_namelen` bytes of an
    // address the kernel wrote, the control buffer `msg_controllen` bytes of control messages.
    unsafe {
        let mut storage = SockAddrStorage::zeroed();
        let length = (header.msg_namelen as usize).min(mem::size_of::<SockAddrStorage>());
        std::ptr::copy_nonoverlapping(
            header.msg_name.cast::<u8>(),
            (&raw mut storage).cast(),
            length,
        );
        let remote = SockAddr::new(storage, socklen(length)).as_socket();
        let mut received = Received {
            remote: remote.unwrap_or(UNKNOWN),
            local_ip: None,
            traffic_class: 0,
            segment: None,
            arrived: None,
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0
                || remote.is_none(),
        };
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = control.as_ref() {
            let data = libc::CMSG_DATA(message);
            let base = std::ptr::from_ref(message).cast::<u8>().addr();
            #[allow(
                clippy::unnecessary_cast,
                reason = "the type differs between C libraries"
            )]
            let length = (message.cmsg_len as usize).saturating_sub(data.addr() - base);
            let contents = std::slice::from_raw_parts(data.cast_const(), length);
            received.note(message.cmsg_level, message.cmsg_type, contents);
            control = libc::CMSG_NXTHDR(header, message);
        }
        received
    }
}

const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Received {
    fn note(&mut self, level: libc::c_int, kind: libc::c_int, contents: &[u8]) {
        match (level, kind, contents) {
            // The kernel sends one byte for IPv4 and an integer for IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS, [class, ..]) => self.traffic_class = *class,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &[a, b, c, d, ..]) => {
                self.traffic_class = i32::from_ne_bytes([a, b, c, d]).to_le_bytes()[0];
            }
            // `in_pktinfo`: interface index, local address, destination address.
            (libc::IPPROTO_IP, libc::IP_PKTINFO, info) if info.len() >= 12 => {
                self.local_ip = Some(Ipv4Addr::new(info[8], info[9], info[10], info[11]).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info) if info.len() >= 16 => {
                let mut ip = [0; 16];
                ip.copy_from_slice(&info[..16]);
                self.local_ip = Some(Ipv6Addr::from(ip).into());
            }
            (libc::SOL_UDP, libc::UDP_GRO, &[a, b, c, d, ..]) => {
                self.segment = usize::try_from(i32::from_ne_bytes([a, b, c, d])).ok();
            }
            // `scm_timestamping`, of which the first is by software.
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, times) => self.arrived = time(times),
            _ => {}
        }
    }
}

/// The first `timespec` in `bytes`, on machines where its parts have 64 bits.
fn time(bytes: &[u8]) -> Option<Duration> {
    let part = |at: usize| Some(i64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let seconds = u64::try_from(part(0)?).ok()?;
    Some(Duration::new(seconds, u32::try_from(part(8)?).ok()?))
}

/// A datagram, or several of equal size, for [`send`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    /// In the address family of the socket.
    pub(crate) destination: &'a SockAddr,
    pub(crate) source_ip: Option<IpAddr>,
    pub(crate) traffic_class: u8,
    pub(crate) contents: &'a [u8],
    pub(crate) segment: Option<u16>,
    /// The outer header is IPv4.
    pub(crate) v4: bool,
}

/// `sendmsg`.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &Outgoing<'_>) -> io::Result<()> {
    let mut control = Control::new();
    let mut vector = libc::iovec {
        iov_base: message.contents.as_ptr().cast_mut().cast(),
        iov_len: message.contents.len(),
    };
    // SAFETY: `msghdr` is plain data for which all zeros are valid.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = message.destination.as_ptr().cast_mut().cast();
    header.msg_namelen = message.destination.len();
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    let length = write_control(&mut control, message);
    if length > 0 {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = length as _;
    }
    // SAFETY: name, vector, contents and control messages outlive the call; the kernel only reads
    // them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Writes the control messages of `message`; returns their length.
fn write_control(control: &mut Control, message: &Outgoing<'_>) -> usize {
    let mut writer = ControlWriter { control, used: 0 };
    if message.traffic_class != 0 {
        let class = libc::c_int::from(message.traffic_class).to_ne_bytes();
        if message.v4 {
            writer.push(libc::IPPROTO_IP, libc::IP_TOS, &class);
        } else {
            writer.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
        }
    }
    match message.source_ip {
        Some(IpAddr::V4(ip)) if message.v4 => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&ip.octets());
            writer.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        Some(IpAddr::V6(ip)) if !message.v4 => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&ip.octets());
            writer.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        _ => {}
    }
    if let Some(segment) = message.segment {
        writer.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    writer.used
}

struct ControlWriter<'a> {
    control: &'a mut Control,
    used: usize,
}

impl ControlWriter<'_> {
    fn push(&mut self, level: libc::c_int, kind: libc::c_int, contents: &[u8]) {
        // SAFETY: these compute lengths from a length.
        let (space, length) = unsafe {
            let length = libc::c_uint::try_from(contents.len()).unwrap_or(0);
            (libc::CMSG_SPACE(length) as usize, libc::CMSG_LEN(length))
        };
        let end = self.used + space;
        assert!(
            end <= CONTROL_BYTES,
            "the largest set of control messages fits"
        );
        let place = &mut self.control.0[self.used..end];
        place.fill(MaybeUninit::new(0));
        // SAFETY: `cmsghdr` is plain data for which all zeros are valid. musl has padding in it.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_len = length as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: `place` is `CMSG_SPACE` bytes, aligned for `cmsghdr` because the buffer is
        // aligned to 8 and every space is a multiple of its alignment; header and contents fit it.
        unsafe {
            let start = place.as_mut_ptr().cast::<libc::cmsghdr>();
            start.write(header);
            let data = libc::CMSG_DATA(start);
            std::ptr::copy_nonoverlapping(contents.as_ptr(), data, contents.len());
        }
        self.used = end;
    }
}

/// `getsockopt` into the bytes of `value`; returns how many the kernel filled.
pub(crate) fn read_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = socklen(value.len());
    // SAFETY: the kernel writes at most `length` bytes, which `value` has, and the new length.
    let result = unsafe {
        let value = value.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut length)
    };
    check(result)?;
    Ok(usize::try_from(length).unwrap_or(0).min(value.len()))
}

/// Attaches a program to the sockets bound to one address that chooses among `count` of them by the first
/// byte of the destination identifier of a QUIC packet (RFC 8999 §5): its lower six bits, modulo `count`.
/// A packet that is too short goes to the first one.
pub(crate) fn steer_by_identifier(socket: BorrowedFd<'_>, count: u8) -> io::Result<()> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let mut steps = [
        step(load, 0, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K,
            0,
            2,
            LONG_HEADER,
        ),
        step(load, 0, 0, LONG_IDENTIFIER_AT),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        step(load, 0, 0, SHORT_IDENTIFIER_AT),
        step(
            libc::BPF_ALU | libc::BPF_AND | libc::BPF_K,
            0,
            0,
            GROUP_MASK,
        ),
        step(
            libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K,
            0,
            0,
            count.max(1).into(),
        ),
        step(libc::BPF_RET | BPF_A, 0, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).unwrap_or(0),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the kernel reads one `sock_fprog` and the steps it points to, all alive until then.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            socklen(mem::size_of::<libc::sock_fprog>()),
        )
    };
    check(result).map(drop)
}

/// Bit of the first byte of packets with a long header (RFC 8999 §5.1).
const LONG_HEADER: u32 = 0x80;
/// Where the destination identifier begins there: after first byte, version and length.
const LONG_IDENTIFIER_AT: u32 = 6;
/// The same in packets with a short header (RFC 8999 §5.2).
const SHORT_IDENTIFIER_AT: u32 = 1;
/// Bits of the identifier's first byte that count.
const GROUP_MASK: u32 = 0x3f;
/// Return what the accumulator has (linux/filter.h).
const BPF_A: u32 = 0x10;

fn socklen(length: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(length).unwrap_or(libc::socklen_t::MAX)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
