//! `ropewalk-tcpnc`: one end of a TCP/NC session, between a TUN interface and a UDP socket.
//!
//! A baseline for measurements in network namespaces: datagrams are not encrypted, and whoever sends
//! the first good one is the peer. The rules are those of the crate `ropewalk-tcpnc`. A session
//! begins without a handshake: who starts one end again has to start the other again, too.

#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Parser;
use ropewalk_io::clock::Clock;
use ropewalk_io::tun::{Tun, TunConfig};
use ropewalk_io::{HEADROOM, InnerPacket};
use ropewalk_tcpnc::tuning::PACKET_MAX;
use ropewalk_tcpnc::{Endpoint, Redundancy};
use rustix::event::{PollFd, PollFlags, Timespec};

/// One end of a TCP/NC session over IPv4, for measurements: nothing is encrypted.
///
/// A session begins without a handshake: who starts one end again has to start the other again, too.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Name of the TUN interface to make.
    #[arg(long)]
    interface: String,
    /// Waits for the peer at this address.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "peer")]
    listen: Option<SocketAddrV4>,
    /// Sends to the peer at this address.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "listen", value_parser = peer)]
    peer: Option<SocketAddrV4>,
    /// Packets of a coding window, instead of what the losses want.
    #[arg(long, requires = "k", value_parser = clap::value_parser!(u8).range(1..=200))]
    n: Option<u8>,
    /// Combinations beyond them.
    #[arg(long, requires = "n", value_parser = clap::value_parser!(u8).range(0..=50))]
    k: Option<u8>,
}

/// An address to which datagrams can be sent.
fn peer(text: &str) -> Result<SocketAddrV4, String> {
    let address: SocketAddrV4 = text
        .parse()
        .map_err(|_| "no IPv4 address with a port, such as 192.0.2.1:4790".to_string())?;
    if address.port() == 0 {
        return Err("nothing can be sent to port 0".into());
    }
    Ok(address)
}

fn main() -> ExitCode {
    let result = Gateway::open(&Args::parse()).and_then(|mut gateway| gateway.run());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropewalk-tcpnc: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Gateway {
    tun: Tun,
    socket: UdpSocket,
    peer: Option<SocketAddr>,
    end: Endpoint,
    clock: Clock,
}

impl Gateway {
    fn open(args: &Args) -> Result<Self> {
        let tun = Tun::open(&TunConfig {
            name: args.interface.clone(),
            mtu: PACKET_MAX,
            // A packet is the unit of coding: the kernel must not join several.
            offload: false,
        })?;
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let address = args.listen.unwrap_or(any);
        let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind {address}"))?;
        socket.set_nonblocking(true)?;
        let fixed = args.n.zip(args.k).map(|(n, k)| Redundancy::Fixed { n, k });
        let gateway = Self {
            tun,
            socket,
            peer: args.peer.map(SocketAddr::V4),
            end: Endpoint::new(fixed.unwrap_or_default()),
            clock: Clock::new(),
        };
        println!("{} is there", gateway.tun.name());
        Ok(gateway)
    }

    fn run(&mut self) -> Result<()> {
        let mut inner = Vec::new();
        loop {
            self.wait()?;
            self.tun.recv_batch(&mut inner)?;
            let now = self.clock.now();
            for packet in inner.drain(..) {
                self.end.offer(now, &packet.data[HEADROOM..]);
            }
            self.receive()?;
            if self.end.poll_timeout().is_some_and(|at| at <= now) {
                self.end.handle_timeout(now);
            }
            self.deliver()?;
            self.transmit()?;
        }
    }

    /// Until something came or is due.
    fn wait(&self) -> Result<()> {
        let now = self.clock.now();
        let due = self.end.poll_timeout().map(|at| {
            let left = at.since(now);
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut ready = [
            PollFd::from_borrowed_fd(self.tun.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut ready, due.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; DATAGRAM_MAX];
        for _ in 0..BATCH_MAX {
            let (length, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if passes(&error) => return Ok(()),
                Err(error) => return Err(error).context("cannot receive"),
            };
            // Nonsense is dropped, as TCP drops it, and makes nobody the peer.
            if self.peer.is_none_or(|peer| peer == from)
                && self.end.handle(self.clock.now(), &buffer[..length]).is_ok()
            {
                self.peer = Some(from);
            }
        }
        Ok(())
    }

    fn deliver(&mut self) -> Result<()> {
        let mut packets = Vec::new();
        while let Some(packet) = self.end.poll_packet() {
            packets.push(InnerPacket::whole(Bytes::from(packet), false));
        }
        self.tun.send_batch(&mut packets)?;
        Ok(())
    }

    fn transmit(&mut self) -> Result<()> {
        while let Some(datagram) = self.end.poll_transmit() {
            let Some(peer) = self.peer else { continue };
            match self.socket.send_to(&datagram, peer) {
                Ok(_) => {}
                // A full socket drops, as a full link does; so does a link that is down.
                Err(error) if passes(&error) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot send to {peer}"));
                }
            }
        }
        Ok(())
    }
}

/// Errors of UDP that pass: nothing there, no room, a link that is down, or a peer that is not up.
fn passes(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::NetworkDown
            | ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::OutOfMemory
    )
}

/// Datagrams read in one turn, so that sending is not starved.
const BATCH_MAX: usize = 64;
/// More than a path of 1,500 bytes carries.
const DATAGRAM_MAX: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_an_address_and_a_port() {
        assert!(peer("127.0.0.1:4790").is_ok());
        assert!(peer("127.0.0.1:0").unwrap_err().contains("port 0"));
        assert!(peer("here").unwrap_err().contains("192.0.2.1:4790"));
    }
}
