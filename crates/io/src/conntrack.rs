//! The kernel's table of connections (ctnetlink), by connection mark.
//!
//! Source: `linux/netfilter/nfnetlink_conntrack.h`. Zones other than the default one are left alone.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::raw_netlink::{RawNetlink, attribute, attributes, push, push_nested};

/// One tracked connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Number of the transport protocol.
    pub protocol: u8,
    /// Who opened it, as it wrote its address. The port is 0 for protocols without ports.
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
    /// `CTA_TUPLE_ORIG` as the kernel wrote it, by which it finds the connection again.
    original: Vec<u8>,
}

/// Calls `take` with every connection whose mark, masked, is `mark`.
///
/// # Errors
/// Not permitted, or the kernel has no ctnetlink.
pub fn for_each(mark: u32, mask: u32, mut take: impl FnMut(Connection)) -> io::Result<()> {
    let mut body = header(libc::AF_UNSPEC);
    push(&mut body, CTA_MARK, &mark.to_be_bytes());
    push(&mut body, CTA_MARK_MASK, &mask.to_be_bytes());
    RawNetlink::open(NETLINK_NETFILTER)?.dump(CT_GET, &body, |message| {
        // A kernel that knows no filter sends everything.
        if let Some(found) = parse(message).filter(|found| found.mark & mask == mark) {
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
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let mut body = header(family);
    push_nested(&mut body, CTA_TUPLE_ORIG, &connection.original);
    match RawNetlink::open(NETLINK_NETFILTER)?.change(CT_DELETE, &body) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// `struct nfgenmsg`.
fn header(family: libc::c_int) -> Vec<u8> {
    vec![u8::try_from(family).unwrap_or(0), 0, 0, 0]
}

fn parse(message: &[u8]) -> Option<Connection> {
    let bytes = message.get(4..)?;
    let original = attribute(bytes, CTA_TUPLE_ORIG)?;
    let (protocol, source, destination) = tuple(original)?;
    let (_, reply_source, reply_destination) = tuple(attribute(bytes, CTA_TUPLE_REPLY)?)?;
    let number = |kind| {
        let value = attribute(bytes, kind).and_then(|value| value.first_chunk());
        value.map_or(0, |value| u32::from_be_bytes(*value))
    };
    let tcp_state = attribute(bytes, CTA_PROTOINFO)
        .and_then(|info| attribute(info, CTA_PROTOINFO_TCP))
        .and_then(|tcp| attribute(tcp, CTA_PROTOINFO_TCP_STATE))
        .and_then(|state| state.first().copied());
    Some(Connection {
        protocol,
        source,
        destination,
        reply_source,
        reply_destination,
        mark: number(CTA_MARK),
        answered: number(CTA_STATUS) & IPS_SEEN_REPLY != 0,
        tcp_open: tcp_state.is_some_and(|state| TCP_OPEN.contains(&state)),
        original: original.to_owned(),
    })
}

fn tuple(bytes: &[u8]) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (mut source, mut destination) = (None, None);
    for (kind, value) in attributes(attribute(bytes, CTA_TUPLE_IP)?) {
        match kind {
            CTA_IP_V4_SRC | CTA_IP_V6_SRC => source = ip(value),
            CTA_IP_V4_DST | CTA_IP_V6_DST => destination = ip(value),
            _ => {}
        }
    }
    let proto = attribute(bytes, CTA_TUPLE_PROTO)?;
    let port = |kind| {
        let value = attribute(proto, kind).and_then(|value| value.first_chunk());
        value.map_or(0, |value| u16::from_be_bytes(*value))
    };
    let number = attribute(proto, CTA_PROTO_NUM)?.first().copied()?;
    let source = SocketAddr::new(source?, port(CTA_PROTO_SRC_PORT));
    let destination = SocketAddr::new(destination?, port(CTA_PROTO_DST_PORT));
    Some((number, source, destination))
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(v6)
}

const NETLINK_NETFILTER: isize = 12;
/// `NFNL_SUBSYS_CTNETLINK << 8` with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const CT_GET: u16 = 0x101;
const CT_DELETE: u16 = 0x102;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_MARK: u16 = 8;
const CTA_MARK_MASK: u16 = 21;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const IPS_SEEN_REPLY: u32 = 2;
/// `TCP_CONNTRACK_ESTABLISHED` to `TCP_CONNTRACK_LAST_ACK`.
const TCP_OPEN: std::ops::RangeInclusive<u8> = 3..=6;

#[cfg(test)]
mod tests {
    use super::*;

    fn side(source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let (mut ip, mut proto, mut tuple) = (Vec::new(), Vec::new(), Vec::new());
        push(&mut ip, CTA_IP_V4_SRC, &source);
        push(&mut ip, CTA_IP_V4_DST, &destination);
        push(&mut proto, CTA_PROTO_NUM, &[6]);
        push(&mut proto, CTA_PROTO_SRC_PORT, &ports.0.to_be_bytes());
        push(&mut proto, CTA_PROTO_DST_PORT, &ports.1.to_be_bytes());
        push_nested(&mut tuple, CTA_TUPLE_IP, &ip);
        push_nested(&mut tuple, CTA_TUPLE_PROTO, &proto);
        tuple
    }

    #[test]
    fn a_translated_connection_is_read_with_both_sides_and_cut_messages_are_none() {
        let mut message = header(libc::AF_INET);
        let original = side([10, 0, 0, 2], [192, 0, 2, 1], (4_000, 443));
        push_nested(&mut message, CTA_TUPLE_ORIG, &original);
        let reply = side([192, 0, 2, 1], [198, 51, 100, 7], (443, 4_001));
        push_nested(&mut message, CTA_TUPLE_REPLY, &reply);
        push(&mut message, CTA_STATUS, &IPS_SEEN_REPLY.to_be_bytes());
        push(&mut message, CTA_MARK, &0x1100_0000_u32.to_be_bytes());
        let (mut tcp, mut info) = (Vec::new(), Vec::new());
        push(&mut tcp, CTA_PROTOINFO_TCP_STATE, &[3]);
        push_nested(&mut info, CTA_PROTOINFO_TCP, &tcp);
        push_nested(&mut message, CTA_PROTOINFO, &info);
        let found = parse(&message).expect("a whole message");
        assert_eq!(found.source.to_string(), "10.0.0.2:4000");
        assert_eq!(found.destination.to_string(), "192.0.2.1:443");
        assert_eq!(found.reply_destination.to_string(), "198.51.100.7:4001");
        assert!(found.answered && found.tcp_open);
        assert_eq!((found.protocol, found.mark), (6, 0x1100_0000));
        for end in 0..original.len() {
            assert!(parse(&message[..end]).is_none(), "{end}");
        }
    }
}
