//! The kernel's table of connections (ctnetlink), by connection mark.
//!
//! Source: `linux/netfilter/nfnetlink_conntrack.h`. Zones other than the default one are left alone.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel's attributes grow: those without a use here are passed over"
)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute as Attribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP,
    ProtoTuple, Status, Tuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::helper::{self, Order};
use crate::netlink::socket::NetlinkSocket;

/// One tracked connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Number of the transport protocol.
    pub protocol: u8,
    /// The address of the opener, as the opener wrote it. The port is 0 for protocols without
    /// ports.
    pub source: SocketAddr,
    /// Where to, as the opener wrote it.
    pub destination: SocketAddr,
    /// Sender of the answers, behind destination translation.
    pub reply_source: SocketAddr,
    /// Where answers are sent to: the opener's address behind source translation.
    pub reply_destination: SocketAddr,
    /// Connection mark.
    pub mark: u32,
    /// Whether an answer has come.
    pub answered: bool,
    /// Whether this is a TCP connection that both sides have opened and neither has reset.
    pub tcp_open: bool,
    /// The opener's side as the kernel told it, by which the kernel finds the connection again.
    original: Vec<Tuple>,
}

/// Ports of an address: the first and the last.
pub type Ports = (Ipv4Addr, u16, u16);

/// Ends what the kernel remembers of connections from or to these addresses, or these ports of addresses, as a site
/// that is gone had them, and of connections whose source was translated to them. Pings and protocols without ports go
/// with any ports of their address: the kernel makes the entry of another site anew with its next packet.
///
/// # Errors
/// Not permitted, or the kernel has no ctnetlink.
pub fn forget(addresses: &[IpAddr], ports: &[Ports]) -> io::Result<()> {
    helper::order(
        || Order::ForgetConnections(addresses.to_vec(), ports.to_vec()),
        || forget_here(addresses, ports),
    )
}

pub(crate) fn forget_here(addresses: &[IpAddr], ports: &[Ports]) -> io::Result<()> {
    let mut found = Vec::new();
    for_each(0, 0, |connection| {
        if concerns(&connection, addresses, ports) {
            found.push(connection);
        }
    })?;
    found.iter().try_for_each(delete)
}

fn concerns(connection: &Connection, addresses: &[IpAddr], ports: &[Ports]) -> bool {
    let ends = [
        connection.source,
        connection.reply_source,
        connection.reply_destination,
    ];
    let has = |end: &SocketAddr| {
        let of = |&(ip, first, last): &Ports| {
            let port = end.port();
            end.ip() == IpAddr::V4(ip) && (port == 0 || first <= port && port <= last)
        };
        addresses.contains(&end.ip()) || ports.iter().any(of)
    };
    ends.iter().any(has)
}

/// Calls `take` with every connection whose mark, masked, is `mark`.
///
/// # Errors
/// Not permitted, or the kernel has no ctnetlink.
pub fn for_each(mark: u32, mask: u32, mut take: impl FnMut(Connection)) -> io::Result<()> {
    let filter = vec![
        Attribute::CtaMark(mark),
        Attribute::Other(DefaultNla::new(CTA_MARK_MASK, mask.to_be_bytes().to_vec())),
    ];
    let request = message(NetfilterProtoFamily::Unspec, ConntrackMessage::Get(filter));
    NetlinkSocket::open(NETLINK_NETFILTER)?.for_each(request, |message| {
        let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message.inner
        else {
            return;
        };
        // A kernel without this filter sends every connection.
        if let Some(found) = connection(attributes).filter(|found| found.mark & mask == mark) {
            take(found);
        }
    })
}

/// Forgets a connection; its absence is success.
///
/// # Errors
/// Not permitted.
pub fn delete(connection: &Connection) -> io::Result<()> {
    let family = if connection.source.is_ipv4() {
        NetfilterProtoFamily::IPv4
    } else {
        NetfilterProtoFamily::IPv6
    };
    let original = vec![Attribute::CtaTupleOrig(connection.original.clone())];
    let request = message(family, ConntrackMessage::Delete(original));
    match NetlinkSocket::open(NETLINK_NETFILTER)?.change(request, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn message(family: NetfilterProtoFamily, inner: ConntrackMessage) -> NetfilterMessage {
    NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), inner)
}

/// The connection that these attributes describe; `None` when one of its sides is missing.
fn connection(attributes: Vec<Attribute>) -> Option<Connection> {
    let (mut original, mut reply) = (None, None);
    let (mut mark, mut answered, mut tcp_open) = (0, false, false);
    for attribute in attributes {
        match attribute {
            Attribute::CtaTupleOrig(tuple) => original = Some(tuple),
            Attribute::CtaTupleReply(tuple) => reply = Some(tuple),
            Attribute::CtaMark(value) => mark = value,
            Attribute::CtaStatus(status) => answered = status.contains(Status::SeenReply),
            Attribute::CtaProtoInfo(info) => tcp_open = is_tcp_open(&info),
            _ => {}
        }
    }
    let original = original?;
    let (protocol, source, destination) = ends(&original)?;
    let (_, reply_source, reply_destination) = ends(&reply?)?;
    Some(Connection {
        protocol,
        source,
        destination,
        reply_source,
        reply_destination,
        mark,
        answered,
        tcp_open,
        original,
    })
}

fn is_tcp_open(info: &[ProtoInfo]) -> bool {
    let tcp = info.iter().filter_map(|info| match info {
        ProtoInfo::TCP(tcp) => Some(tcp),
        _ => None,
    });
    let mut open = tcp.flatten().map(|tcp| match tcp {
        ProtoInfoTCP::State(state) => TCP_OPEN.contains(state),
        _ => false,
    });
    open.any(|open| open)
}

/// Protocol, source and destination of one side. The ports are 0 for protocols without ports.
fn ends(tuple: &[Tuple]) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (mut source, mut destination): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    let (mut protocol, mut ports) = (None, [0, 0]);
    for part in tuple {
        match part {
            Tuple::Ip(addresses) => {
                for address in addresses {
                    match address {
                        IPTuple::SourceAddress(ip) => source = Some(*ip),
                        IPTuple::DestinationAddress(ip) => destination = Some(*ip),
                        _ => {}
                    }
                }
            }
            Tuple::Proto(parts) => {
                for part in parts {
                    match part {
                        ProtoTuple::Protocol(number) => protocol = Some(u8::from(*number)),
                        ProtoTuple::SourcePort(port) => ports[0] = *port,
                        ProtoTuple::DestinationPort(port) => ports[1] = *port,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let source = SocketAddr::new(source?, ports[0]);
    let destination = SocketAddr::new(destination?, ports[1]);
    Some((protocol?, source, destination))
}

/// Attribute of a request: the bits of the mark that count.
const CTA_MARK_MASK: u16 = 21;
/// `TCP_CONNTRACK_ESTABLISHED` to `TCP_CONNTRACK_LAST_ACK`.
const TCP_OPEN: std::ops::RangeInclusive<u8> = 3..=6;

#[cfg(test)]
mod tests {
    use netlink_packet_core::{Emitable, ParseableParametrized};
    use netlink_packet_netfilter::conntrack::Protocol;

    use super::*;

    fn side(source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) -> Vec<Tuple> {
        let addresses = vec![
            IPTuple::SourceAddress(source.into()),
            IPTuple::DestinationAddress(destination.into()),
        ];
        let parts = vec![
            ProtoTuple::Protocol(Protocol::Tcp),
            ProtoTuple::SourcePort(ports.0),
            ProtoTuple::DestinationPort(ports.1),
        ];
        vec![Tuple::Ip(addresses), Tuple::Proto(parts)]
    }

    /// Reads a message as the socket does.
    fn parse(bytes: &[u8]) -> Option<Connection> {
        const CT_NEW: u16 = 0x100;
        let message = NetfilterMessage::parse_with_param(bytes, CT_NEW).ok()?;
        match message.inner {
            NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) => {
                connection(attributes)
            }
            _ => None,
        }
    }

    #[test]
    fn a_translated_connection_is_read_with_both_sides_and_cut_messages_are_none() {
        let original = side([10, 0, 0, 2], [192, 0, 2, 1], (4_000, 443));
        let reply = side([192, 0, 2, 1], [198, 51, 100, 7], (443, 4_001));
        let sides = vec![
            Attribute::CtaTupleOrig(original),
            Attribute::CtaTupleReply(reply),
        ];
        let short = message(
            NetfilterProtoFamily::IPv4,
            ConntrackMessage::New(sides.clone()),
        );
        let mut whole = sides;
        whole.extend([
            Attribute::CtaStatus(Status::SeenReply),
            Attribute::CtaMark(0x1100_0000),
            Attribute::CtaProtoInfo(vec![ProtoInfo::TCP(vec![ProtoInfoTCP::State(3)])]),
        ]);
        let whole = message(NetfilterProtoFamily::IPv4, ConntrackMessage::New(whole));
        let mut bytes = vec![0; whole.buffer_len()];
        whole.emit(&mut bytes);
        let found = parse(&bytes).expect("a whole message");
        assert_eq!(found.source.to_string(), "10.0.0.2:4000");
        assert_eq!(found.destination.to_string(), "192.0.2.1:443");
        assert_eq!(found.reply_destination.to_string(), "198.51.100.7:4001");
        assert!(found.answered && found.tcp_open);
        assert_eq!((found.protocol, found.mark), (6, 0x1100_0000));
        for end in 0..short.buffer_len() {
            assert!(parse(&bytes[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn connections_of_a_block_of_ports_are_told_from_those_of_its_neighbours() {
        let shared = [203, 0, 113, 7];
        let of = |ports: (u16, u16), from_outside: bool| {
            let (site, server) = ((shared, ports.0), ([192, 0, 2, 1], ports.1));
            let (from, to) = if from_outside {
                (server, site)
            } else {
                (site, server)
            };
            let original = side(from.0, to.0, (from.1, to.1));
            let reply = side(to.0, from.0, (to.1, from.1));
            let sides = vec![
                Attribute::CtaTupleOrig(original),
                Attribute::CtaTupleReply(reply),
            ];
            connection(sides).expect("both sides")
        };
        let block = (Ipv4Addr::from(shared), 1_024, 2_031);
        for from_outside in [false, true] {
            let concerned = [1_023, 1_024, 2_031, 2_032, 0]
                .map(|port| concerns(&of((port, 443), from_outside), &[], &[block]));
            assert_eq!(concerned, [false, true, true, false, true]);
            // The port of the other end is not the site's.
            assert!(!concerns(&of((5_000, 1_500), from_outside), &[], &[block]));
        }
        assert!(concerns(&of((5_000, 443), false), &[shared.into()], &[]));
    }
}
