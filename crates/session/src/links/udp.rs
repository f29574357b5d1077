//! UDP sockets of the fabric: reading batches, sending segmented buffers.

use std::io;
use std::net::SocketAddr;

use anyhow::Context;
use ropewalk_io::udp::{UdpConfig, UdpSocket};
use ropewalk_transport::Transmit;
use ropewalk_types::Instant;
use rustix::event::epoll;

use super::{Fabric, Kind, Ready, Received};

/// Datagrams read from one socket before they are worked off: few enough to stay in the
/// processor's cache. One read may bring more, where the kernel joins them.
const READ_DATAGRAMS: usize = 128;

/// Names a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId(pub(super) u32);

#[derive(Debug)]
pub(super) struct Socket {
    pub udp: UdpSocket,
    pub address: Option<SocketAddr>,
}

impl Fabric {
    /// Opens a UDP socket, bound to `device` if given.
    ///
    /// # Errors
    /// When binding or registering fails; the message names address and device.
    pub fn open_udp(&mut self, bind: SocketAddr, device: Option<&str>) -> anyhow::Result<SocketId> {
        let config = UdpConfig {
            bind,
            device: device.map(str::to_owned),
            recv_buffer: self.socket_buffer_bytes,
            send_buffer: self.socket_buffer_bytes,
        };
        let on = device.map(|d| format!(" on {d}")).unwrap_or_default();
        let udp = UdpSocket::bind(&config)
            .with_context(|| format!("cannot open UDP socket {bind}{on}"))?;
        let slot = self
            .sockets
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                self.sockets.push(None);
                self.sockets.len() - 1
            });
        let id = u32::try_from(slot).unwrap_or(u32::MAX);
        self.register(&udp, Ready::Udp(id), epoll::EventFlags::IN)?;
        let address = udp.local_addr().ok();
        self.sockets[slot] = Some(Socket { udp, address });
        Ok(SocketId(id))
    }

    /// Closes a UDP socket; links over it go silent.
    pub fn close_udp(&mut self, id: SocketId) {
        if let Some(slot) = self.sockets.get_mut(id.0 as usize) {
            *slot = None;
        }
    }

    pub(super) fn socket_address(&self, id: SocketId) -> Option<SocketAddr> {
        self.sockets.get(id.0 as usize)?.as_ref()?.address
    }

    /// Reads what waits at a UDP socket and appends the datagrams of established links.
    pub fn read_udp(&mut self, now: Instant, socket: u32, out: &mut Vec<Received>) {
        let mut left = READ_DATAGRAMS;
        while left > 0 {
            let Some(Some(port)) = self.sockets.get_mut(socket as usize) else {
                return;
            };
            let mut arrivals = std::mem::take(&mut self.arrivals);
            let read = port.udp.recv_batch(&mut arrivals);
            for (meta, data) in arrivals.drain(..) {
                let connection =
                    self.endpoint
                        .handle_udp(now, meta.remote, meta.local_ip, meta.ecn, data);
                let Some(connection) = connection else {
                    continue;
                };
                let link = match self.last {
                    Some((last, link)) if last == connection => link,
                    _ => {
                        let link = self.by_connection.get(&connection).copied();
                        let link = link.unwrap_or_else(|| {
                            let kind = Kind::Quic {
                                connection,
                                socket: SocketId(socket),
                            };
                            let link = self.insert(kind);
                            self.by_connection.insert(connection, link);
                            link
                        });
                        self.last = Some((connection, link));
                        link
                    }
                };
                // Drained before the next UDP packet, so that the mark belongs to the right ones.
                while let Some(data) = self.endpoint.receive(connection) {
                    out.push(Received {
                        link,
                        ecn: meta.ecn,
                        data,
                    });
                }
                self.mark_dirty(link);
            }
            self.arrivals = arrivals;
            match read {
                Ok(0) => return,
                Ok(count) => left = left.saturating_sub(count),
                Err(error) => {
                    tracing::warn!(%error, "reading a UDP socket failed");
                    return;
                }
            }
        }
    }

    pub(super) fn transmit(&mut self, transmit: &Transmit, socket: SocketId, dscp: u8) {
        let Some(Some(port)) = self.sockets.get_mut(socket.0 as usize) else {
            self.drops.unreachable += 1;
            return;
        };
        let contents = &self.buffer[..transmit.size];
        let sent = port.udp.send(
            transmit.destination,
            transmit.source_ip,
            transmit.ecn,
            dscp,
            contents,
            transmit.segment_size,
        );
        match sent.map_err(|e| e.kind()) {
            Ok(()) => {}
            Err(io::ErrorKind::WouldBlock) => self.drops.socket_full += 1,
            Err(_) => self.drops.unreachable += 1,
        }
    }

    pub(super) fn flush_stateless(&mut self) {
        loop {
            self.buffer.clear();
            let Some(transmit) = self.endpoint.poll_stateless(&mut self.buffer) else {
                return;
            };
            // An answer leaves by the first socket of its family: a hub listens on one each.
            let family = transmit.destination.is_ipv4();
            let fits = |s: &Option<Socket>| {
                s.as_ref()
                    .and_then(|s| s.address)
                    .is_some_and(|a| a.is_ipv4() == family)
            };
            let Some(slot) = self.sockets.iter().position(fits) else {
                continue;
            };
            self.transmit(
                &transmit,
                SocketId(u32::try_from(slot).unwrap_or(u32::MAX)),
                0,
            );
        }
    }
}
