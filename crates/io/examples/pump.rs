//! The bare cost of a tunnel: TUN to UDP and back on one thread, without encryption, scheduling or
//! congestion control. Run one end in each of two network namespaces:
//!
//! ```text
//! pump TUN ADDRESS/PREFIX LOCAL:PORT PEER:PORT SECONDS [plain]
//! ```
//!
//! `plain` opens the TUN interface without offloads. At the end one line says what was moved.

use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use ropewalk_io::tun::{Tun, TunConfig};
use ropewalk_io::udp::{
    RecvMeta, SEGMENTS_MAX, UDP_PAYLOAD_MAX, UdpConfig, UdpReceiver, UdpSocket,
};
use ropewalk_io::{HEADROOM, InnerPacket, TunPacket, netlink};
use ropewalk_types::Ecn;
use rustix::event::{PollFd, PollFlags, poll};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, address, local, peer, seconds, rest @ ..] = &arguments[..] else {
        return Err("usage: pump TUN ADDRESS/PREFIX LOCAL:PORT PEER:PORT SECONDS [plain]".into());
    };
    let (ip, prefix) = address
        .split_once('/')
        .ok_or("ADDRESS needs a prefix length")?;
    let offload = !rest.iter().any(|a| a == "plain");
    let tun = Tun::open(&TunConfig {
        name: name.clone(),
        mtu: 1420,
        offload,
    })?;
    netlink::add_address(tun.ifindex(), ip.parse()?, prefix.parse()?)?;
    netlink::set_up(tun.ifindex())?;
    let udp = UdpSocket::bind(&UdpConfig {
        bind: local.parse()?,
        device: None,
        mark: None,
        recv_buffer: 4 << 20,
        send_buffer: 4 << 20,
        group: None,
    })?;
    let mut pump = Pump {
        tun,
        udp,
        peer: peer.parse()?,
        outgoing: Vec::new(),
        lost: 0,
    };
    pump.run(Duration::from_secs(seconds.parse()?))?;
    println!("tun {:?}", pump.tun.counters());
    println!("udp {:?} lost {}", pump.udp.counters(), pump.lost);
    println!(
        "offloads {:?}, segments {}",
        pump.tun.offloads(),
        pump.udp.max_segments()
    );
    Ok(())
}

struct Pump {
    tun: Tun,
    udp: UdpSocket,
    peer: SocketAddr,
    outgoing: Vec<u8>,
    lost: u64,
}

impl Pump {
    fn run(&mut self, time: Duration) -> Result<(), Box<dyn Error>> {
        let end = Instant::now() + time;
        let mut from_tun: Vec<TunPacket> = Vec::new();
        let mut from_udp: Vec<(RecvMeta, BytesMut)> = Vec::new();
        let mut to_tun: Vec<InnerPacket> = Vec::new();
        let mut receiver = UdpReceiver::default();
        while Instant::now() < end {
            {
                let mut ready = [
                    PollFd::from_borrowed_fd(self.tun.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(self.udp.as_fd(), PollFlags::IN),
                ];
                let limit = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 100_000_000,
                };
                poll(&mut ready, Some(&limit))?;
            }
            if self.tun.recv_batch(&mut from_tun)? > 0 {
                self.send(&from_tun);
                from_tun.clear();
            }
            if self.udp.recv_batch(&mut receiver, &mut from_udp)? > 0 {
                for (_, mut data) in from_udp.drain(..) {
                    if data.len() > HEADROOM {
                        let checksum_partial = data[0] != 0;
                        data.advance(HEADROOM);
                        to_tun.push(InnerPacket::whole(data.freeze(), checksum_partial));
                    }
                }
                self.tun.send_batch(&mut to_tun)?;
            }
        }
        Ok(())
    }

    /// Bundles neighbours of equal size into one send; a shorter one may end a bundle.
    fn send(&mut self, packets: &[TunPacket]) {
        let segments_max = self.udp.max_segments().min(SEGMENTS_MAX);
        let (mut segment, mut count) = (0, 0);
        for packet in packets {
            let length = packet.data.len();
            let full = count == segments_max
                || self.outgoing.len() + length > UDP_PAYLOAD_MAX
                || length > segment
                || self.outgoing.len() < count * segment;
            if full {
                self.flush(segment);
                (segment, count) = (length, 0);
            }
            let start = self.outgoing.len();
            self.outgoing.extend_from_slice(&packet.data);
            self.outgoing[start] = u8::from(packet.checksum_partial);
            count += 1;
        }
        self.flush(segment);
    }

    fn flush(&mut self, segment: usize) {
        if self.outgoing.is_empty() {
            return;
        }
        let sent = self.udp.send(
            self.peer,
            None,
            Ecn::NotEct,
            0,
            &self.outgoing,
            Some(segment),
        );
        self.lost += u64::from(sent.is_err());
        self.outgoing.clear();
    }
}
